"""The measures of the structure."""

import pytest

from tools import structure

CYCLES = [f"import cycles{each}" for each in (", type-only imports included", " at run time")]
LOADED = "import cycles at import time"
ONE = "modules with one importer"
TWINS = "pairs of duplicate functions"

TWIN = """
{0}def {1}(self, {2}):
    \"\"\"{1}.\"\"\"
    total = 0
    for each in {2}:
        if each.ready:
            total += {3}step{4}(each)
    log("{1}")
    return total
"""


@pytest.fixture
def project(tmp_path):
    def write(**modules):
        for name, text in modules.items():
            file = tmp_path / "retrytemplate" / f"{name.replace('__in__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return write


def held(root):
    return structure.measure(root).held


@pytest.mark.parametrize(
    ("back", "counts"),
    [
        ("from retrytemplate import a", (1, 1, 1)),
        ("from . import a", (1, 1, 1)),
        ("try:\n    import retrytemplate.a\nexcept ImportError: ...", (1, 1, 1)),
        ("def f():\n    from retrytemplate.a import x", (1, 1, 0)),
        ("if TYPE_CHECKING:\n    from retrytemplate.a import x", (1, 0, 0)),
        ("if TYPE_CHECKING: ...\nelse:\n    from retrytemplate.a import x", (1, 1, 1)),
        ("import other", (0, 0, 0)),
    ],
)
def test_cycle_given_a_kind_of_import_is_counted_where_it_runs(project, back, counts):
    found = held(project(a="import retrytemplate.b", b=back))
    assert tuple(len(found[name]) for name in (*CYCLES, LOADED)) == counts


def test_cycle_through_a_name_that_a_package_exports_is_found(project):
    export = "if TYPE_CHECKING:\n    from retrytemplate.p.b import B as C"
    root = project(
        p__in____init__=export, p__in__b="import retrytemplate.a", a="from retrytemplate.p import C"
    )
    assert held(root)[LOADED] == ["retrytemplate.a, retrytemplate.p.b"]


def test_module_with_one_importer_ignores_imports_for_types(project):
    only_types = "if TYPE_CHECKING:\n    import retrytemplate.a"
    root = project(a="", b="def f():\n    import retrytemplate.a", c=only_types)
    assert held(root)[ONE] == ["retrytemplate.a: retrytemplate.b"]


def test_duplicates_differ_in_names_texts_and_await_only(project):
    plain = TWIN.format("", "run", "items", "", "")
    twin = TWIN.format("async ", "run_async", "parts", "await ", "_async")
    other = TWIN.format("", "walk", "items", "-", "")
    [pair] = held(project(a=plain, b=twin, c=other))[TWINS]
    assert pair == "retrytemplate/a.py:2 run = retrytemplate/b.py:2 run_async"


def test_long_functions_and_files_are_counted_without_docstrings(project):
    code = "def f():\n" + '    """A\n    text."""\n' + "    x = 1\n" * 49
    longer = code.replace("def f", "def g") + "    x = 1\n"
    found = held(project(a=code + longer, b="\n" * 401, c="\n" * 501))
    assert found["functions over 50 lines"] == ["retrytemplate/a.py:53 g: 51"]
    assert [len(found[f"files over {limit} lines"]) for limit in (400, 500)] == [2, 1]


def test_lines_of_code_leave_out_docstrings_comments_and_blank_lines(project):
    root = project(a='"""A\ntext."""\n\n# A comment.\nx = """\ny"""\n')
    assert structure.measure(root).lines["lines of code of the library"] == 2


def test_layers_are_the_lines_of_the_contract(project):
    root = project(a="")
    text = "[importlinter:contract:x]\ncontainers = retrytemplate\nlayers =\n    a | b\n    c\n"
    (root / "setup.cfg").write_text(text)
    assert held(root)["import layers"] == ["a | b", "c"]


def test_check_fails_when_a_measure_is_worse_than_updated(project, capsys):
    root = project(a="")
    (root / "tools").mkdir()
    assert structure.main(["--update"], root=root) == 0
    assert structure.main(["--check"], root=root) == 0
    project(b="")
    assert structure.main(["--check"], root=root) == 1
    assert "modules in the root: 2, at most 1 allowed" in capsys.readouterr().err
    structure.main(["--update"], root=root)
    (root / "retrytemplate/b.py").unlink()
    assert structure.main(["--check", "--list"], root=root) == 0
    printed = capsys.readouterr().out
    assert "    retrytemplate/a.py\n" in printed
    assert printed.endswith("run python tools/structure.py --update\n")
