"""The runner of the pages' examples."""

import pytest
from sybil import Sybil

import tests.support.forked_python  # noqa: F401  # its server starts before the tests
from tests.support.pages import PARSERS, run

pytestmark = pytest.mark.documentation


@pytest.fixture
def page(tmp_path):
    """Run the examples of a page with these blocks: language and content in turn."""

    def examples(*blocks):
        pairs = zip(blocks[::2], blocks[1::2], strict=True)
        text = "\n".join(f"```{language}\n{content}\n```\n" for language, content in pairs)
        path = tmp_path / "page.md"
        path.write_text(text, encoding="utf-8")
        document = Sybil(PARSERS, path=str(tmp_path)).parse(path)
        return len(list(run(document.examples())))

    return examples


def test_output_below_a_block_is_compared(page):
    assert page("python", "number = 17", "python", "print(number)", "text", "17") == 3
    with pytest.raises(AssertionError, match="the output differs"):
        page("python", "print(17)", "text", "18")


def test_output_that_is_not_shown_fails(page):
    for blocks in (("python", "print(17)"), ("python", "print(17)", "python", "x = 1")):
        with pytest.raises(AssertionError, match="must show the output"):
            page(*blocks)


def test_output_without_a_block_above_it_fails(page):
    with pytest.raises(AssertionError, match="the output differs"):
        page("text", "17")


def test_dots_match_any_output(page):
    page("python", "print(object())", "text", "<object object at 0x...>")


def test_file_is_written_and_its_command_runs(page):
    job = "# file: job.py\nimport sys\n\nprint(sys.argv[1])"
    assert page("python", job, "console", "$ python job.py 17\n17\n$ python job.py x\nx") == 2
    with pytest.raises(AssertionError, match="the output differs"):
        page("python", job, "console", "$ python job.py 17\n18")


def test_error_of_a_block_is_raised(page):
    with pytest.raises(ZeroDivisionError):
        page("python", "1 / 0")


def test_page_runs_in_an_empty_folder(page):
    page("python", "from pathlib import Path\n\nprint(list(Path().iterdir()))", "text", "[]")
