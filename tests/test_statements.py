"""The page of statements: made from the list of statements and the marks on the tests."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.documentation

ROOT = Path(__file__).resolve().parent.parent

LISTED = """
["X-01"]
kind = "rule"
says = "It does."
"""

HELD = """
import pytest

@pytest.mark.statement("X-01")
def test_that_it_does(): ...
"""


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("statements_tool", ROOT / "tools/statements.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path):
    def write(listed=LISTED, tests=HELD):
        for path, text in (("docs/internals/statements.toml", listed), ("tests/test_it.py", tests)):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return tmp_path

    return write


def test_page_just_written_passes_the_check(tool, project, capsys):
    root = project()
    assert tool.main([], root=root) == 0
    assert tool.main(["--check"], root=root) == 0
    page = (root / "docs/internals/statements.md").read_text()
    assert "| X-01 | rule | It does. | `tests/test_it.py::test_that_it_does` |" in page
    assert capsys.readouterr().err == ""


def test_missing_or_old_page_fails_the_check_unchanged(tool, project, capsys):
    root = project()
    assert tool.main(["--check"], root=root) == 1
    assert not (root / "docs/internals/statements.md").exists()
    tool.main([], root=root)
    project(tests=HELD.replace("it_does", "it_still_does"))
    assert tool.main(["--check"], root=root) == 1
    assert "not up to date" in capsys.readouterr().err


def test_statement_without_a_test_is_a_problem(tool, project, capsys):
    assert tool.main([], root=project(tests="")) == 1
    assert "X-01: no test is marked with it" in capsys.readouterr().err


def test_unlisted_id_is_a_problem(tool, project, capsys):
    root = project(tests=HELD + HELD.replace("X-01", "X-99").replace("it_does", "it_is_new"))
    assert tool.main([], root=root) == 1
    assert "X-99: tests/test_it.py::test_that_it_is_new is marked" in capsys.readouterr().err


def test_guide_needs_a_page_and_no_test(tool, project, capsys):
    listed = LISTED.replace('"rule"', '"guide"') + 'page = "why.md"\n'
    root = project(listed, tests="")
    assert tool.main([], root=root) == 1
    assert "its page is missing: why.md" in capsys.readouterr().err
    (root / "docs/why.md").write_text("# Why\n")
    assert tool.main([], root=root) == 0
    assert "| [why.md](../why.md) |" in (root / "docs/internals/statements.md").read_text()


def test_unknown_kind_is_a_problem(tool, project, capsys):
    assert tool.main([], root=project(LISTED.replace('"rule"', '"hope"'))) == 1
    assert "got 'hope'" in capsys.readouterr().err


def test_marks_count_on_functions_classes_and_modules(tool, project):
    root = project(
        tests="""
import pytest

pytestmark = [pytest.mark.timeout(9), pytest.mark.statement("M")]

@pytest.mark.statement("C")
class TestIt:
    @pytest.mark.statement("F", "G")
    async def test_one(self): ...

def test_two(): ...

def helper(): ...
"""
    )
    one, two = "tests/test_it.py::TestIt::test_one", "tests/test_it.py::test_two"
    assert tool.holders(root) == {"M": [one, two], "C": [one], "F": [one], "G": [one]}


def test_mark_on_a_helper_stops_the_run(tool, project):
    root = project(tests=HELD.replace("def test_that", "def that"))
    with pytest.raises(SystemExit, match="that_it_does is marked as holding X-01 but is no test"):
        tool.main([], root=root)
