"""The pictures of timelines show what the library does."""

import importlib.util
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.documentation

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("timelines", ROOT / "tools/timelines.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def labels(bars, lane):
    return [bar.label.replace("\n", ", ") for bar in bars if bar.lane == lane]


def test_record_of_a_key_is_written_before_each_attempt(tool):
    bars = tool.key()
    assert labels(bars, "record") == [
        *("attempting, 0 failed", "idle, 1 failed", "attempting, 1 failed", "idle, 2 failed"),
        *("attempting, 2 failed", "idle, 3 failed", "recovering, 3 failed", "no record"),
    ]
    assert labels(bars, "delivery")[-2:] == ["3: rolled back", "4: dead letter"]


def test_open_circuit_rejects_all_calls_but_trials(tool):
    calls = [bar for bar in tool.circuit() if bar.lane == "calls"]
    failed = [bar.start for bar in calls if bar.color == tool.BAD]
    assert failed == [4.0, 4.5, 5.0, 10.0, 15.0]


def test_bad_item_is_isolated_and_the_others_are_written(tool):
    last = {bar.lane: bar.color for bar in tool.chunk()}
    assert last.pop("item 3") == tool.OTHER
    assert set(last.values()) == {tool.GOOD}


def test_clients_with_jitter_call_at_different_times(tool):
    third = [bar.start for bar in tool.attempts() if bar.label == "3"]
    assert len(set(third)) == 4


def test_poison_message_ends_its_attempts_alone_and_the_others_succeed(tool):
    bars = [bar for bar in tool.poison() if bar.label]
    assert labels(bars, tool.POISON) == [
        "shared,, crash",
        "exclusive,, crash 1 of 2",
        "exclusive,, crash 2 of 2",
        "dead letter",
    ]
    for neighbor in tool.NEIGHBORS:
        assert labels(bars, neighbor) == ["shared,, lost", "exclusive"]
    others = [bar for bar in tool.poison() if bar.lane.startswith("others")]
    assert {bar.color for bar in others} == {tool.GOOD}
    assert len(others) == tool.OTHERS


def words(picture):
    return re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text(encoding="utf-8"))


def test_pictures_of_the_pages_show_the_present_behavior(tool, tmp_path):
    for name in tool.PICTURES:
        tool.draw(name, tmp_path)
        assert words(tmp_path / f"{name}.svg") == words(tool.IMAGES / f"{name}.svg") != []
