"""The count of banned words."""

import pytest

from tools import words


@pytest.fixture
def project(tmp_path):
    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return tmp_path

    write("tools/words.toml", words.written({group: {} for group in words.GROUPS}))
    return write


def found(root):
    return [(hit.pattern, hit.place) for hit in words.hits(root)]


@pytest.mark.parametrize(
    ("path", "source", "line"),
    [
        ("retrytemplate/a.py", '"""First.\n\nThen nobody."""', 3),
        ("retrytemplate/a.py", "x = 1  # NOBODY", 1),
        ("retrytemplate/a.py", 'x = f"{1} nobody"', 1),
        ("tests/test_a.py", "async def test_nobody_waits(): ...", 1),
        ("docs/a.md", "First.\n```python\nx = 1  # nobody\n```\n", 3),
    ],
)
def test_banned_word_in_prose_is_found_with_its_line(project, path, source, line):
    assert found(project(path, source)) == [("nobody, whoever, he", f"{path}:{line}")]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("retrytemplate/a.py", "nobody = 1"),
        ("retrytemplate/a.py", '"""See ``nobody``."""'),
        ("retrytemplate/a.py", 'f(on_existing="refuse")'),
        ("docs/a.md", "See `nobody` and\n`a\nnobody`, on_existing='refuse', kill -9.\n"),
        ("docs/_build/a.md", "nobody"),
        ("other/a.md", "nobody"),
    ],
)
def test_code_and_other_folders_are_not_counted(project, path, source):
    assert found(project(path, source)) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("docs/a.md", "under\nway"),
        ("retrytemplate/a.py", "# under\n# way"),
        ("retrytemplate/a.py", '"""It is under\n    way."""'),
    ],
)
def test_phrase_wrapped_between_lines_is_found(project, path, source):
    assert found(project(path, source)) == [("under way", f"{path}:1")]


def test_unpaired_backtick_hides_only_its_paragraph(project):
    assert len(found(project("docs/a.md", "A ` here.\n\nnobody there ` too.\n"))) == 1


def test_check_given_a_higher_count_fails(project, capsys):
    root = project("docs/a.md", "nobody")
    assert words.main(["--check"], root=root) == 1
    assert "docs: nobody, whoever, he: 1, at most 0 allowed" in capsys.readouterr().err


def test_update_only_lowers_committed_counts(project, capsys):
    root = project("tools/words.toml", "[library]\n[tests]\n[docs]\ndies = 9\nroom = 0\n[tools]\n")
    project("docs/a.md", "dies\n\nroom\n")
    assert words.main(["--update", "--check"], root=root) == 1
    assert "docs: room: 1, at most 0 allowed" in capsys.readouterr().err
    assert '"dies" = 1\n' in (root / "tools/words.toml").read_text()


def test_check_given_a_lower_count_asks_for_update(project, capsys):
    root = project("tools/words.toml", "[library]\n[tests]\n[docs]\ndies = 9\n[tools]\n")
    assert words.main(["--check"], root=root) == 0
    assert "run python tools/words.py --update" in capsys.readouterr().out


def test_list_prints_each_place(project, capsys):
    words.main(["--list"], root=project("docs/a.md", "First.\nnobody\n"))
    assert "docs/a.md:2: nobody" in capsys.readouterr().out
