"""The picture of a thousand clients after an outage, and its figures on the page."""

import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.documentation

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| `(None|\"\w+\")` \| (\d+) \| (\d+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def tool():
    path = ROOT / "tools/outage_picture.py"
    spec = importlib.util.spec_from_file_location("outage_picture", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def crowds(tool):
    return [tool.crowd(jitter) for jitter in tool.JITTERS]


def words(picture):
    return re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text(encoding="utf-8"))


@pytest.mark.statement("S4-23")
def test_no_delay_of_any_jitter_is_exactly_the_cap(crowds):
    assert [each.jitter for each in crowds if each.at_cap] == [None]


@pytest.mark.statement("S0-41")
def test_jitter_spreads_clients_that_failed_together(tool, crowds):
    plain, *jittered = crowds
    assert plain.peak == tool.CLIENTS
    assert max(each.peak for each in jittered) < tool.CLIENTS / 25


def test_every_client_succeeds_once_after_the_outage(tool, crowds):
    for each in crowds:
        assert each.bins.total() - each.during == tool.CLIENTS


def test_page_has_the_figures_of_the_picture(crowds):
    page = (ROOT / "docs/guide/backoff.md").read_text(encoding="utf-8")
    assert ROW.findall(page) == [
        (
            "None" if each.jitter is None else f'"{each.jitter}"',
            str(each.peak),
            str(each.during),
        )
        for each in crowds
    ]


def test_picture_is_that_of_the_tool(tool, tmp_path):
    tool.draw(tmp_path / "outage.svg")
    drawn = words(tmp_path / "outage.svg")
    assert "at most 25 calls in 100 ms after it" in drawn
    assert words(tool.IMAGE) == drawn
