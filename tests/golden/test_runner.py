"""The runner itself: it detects every altered value and rejects unknown fields."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.golden.compare import differences, stopped_in_open
from tests.golden.lines import SCENARIOS, lines_of
from tests.golden.model import JSON, UnknownFieldError, check_known
from tests.golden.run import MODES, Mode, check, compared, run

pytestmark = pytest.mark.filterwarnings("ignore::retrytemplate.UnboundedRetryWarning")

LINES = lines_of(SCENARIOS)
DIRECTED = [line for line in LINES if line["group"] == "directed"]
SYNC = MODES["sync"]


def places(value: JSON, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a tree: the leaves, and the lists and objects themselves."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def other(value: JSON) -> JSON:
    """A different value, of the same type if possible."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return [*value, "x"]
    if isinstance(value, dict):
        return {**value, "x": 1}
    return "x"


def altered(trace: JSON, path: tuple[Any, ...]) -> JSON:
    trace = deepcopy(trace)
    parent = trace
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = other(parent[path[-1]])
    return trace


def shortened(trace: JSON, path: tuple[Any, ...]) -> JSON:
    trace = deepcopy(trace)
    parent = trace
    for step in path[:-1]:
        parent = parent[step]
    del parent[path[-1]]
    return trace


@pytest.mark.parametrize("line", DIRECTED, ids=lambda line: line["id"])
def test_trace_equals_itself_and_no_altered_trace(line: JSON) -> None:
    trace = line["trace"]

    assert differences(trace, trace) == []
    for path in places(trace):
        assert differences(altered(trace, path), trace), path


@settings(deadline=None)
@given(data=st.data())
def test_altered_value_is_found(data: st.DataObject) -> None:
    trace = data.draw(st.sampled_from(LINES))["trace"]
    path = data.draw(st.sampled_from(list(places(trace))))

    assert differences(altered(trace, path), trace)


@settings(deadline=None)
@given(data=st.data())
def test_missing_value_is_found(data: st.DataObject) -> None:
    trace = data.draw(st.sampled_from(LINES))["trace"]
    path = data.draw(st.sampled_from(list(places(trace))))
    assume(not (path[-1] == "max_attempts" and stopped_in_open(trace[path[0]])))

    assert differences(shortened(trace, path), trace)


@settings(deadline=None)
@given(data=st.data())
def test_extra_value_is_found(data: st.DataObject) -> None:
    trace = data.draw(st.sampled_from(LINES))["trace"]
    path = data.draw(st.sampled_from(list(places(trace))))
    assume(path[1:] != ("context",))

    assert differences(trace, shortened(trace, path))


def test_true_is_not_one() -> None:
    assert differences([{"clock": 1}], [{"clock": True}])
    assert differences([{"sync_leak": True}], [{"sync_leak": 1}])


def test_numbers_may_differ_by_rounding_errors() -> None:
    assert not differences([{"clock": 3}], [{"clock": 3.0000000001}])
    assert differences([{"clock": 3}], [{"clock": 3.00000001}])


def test_declared_attempts_may_be_missing_only_if_open_ended_the_call() -> None:
    undeclared: JSON = {"events": [["open", 0, "veto"]], "context": {}}
    known: JSON = {"events": [["open", 0, "veto"]], "context": {"max_attempts": 3}}

    assert not differences([undeclared], [known])
    assert differences([undeclared | {"events": []}], [known | {"events": []}])
    assert differences([known], [known | {"context": {"max_attempts": 4}}])


@pytest.mark.parametrize("mode", MODES.values(), ids=lambda mode: mode.name.replace(" ", "-"))
def test_only_the_altered_scenario_fails(mode: Mode, loop: asyncio.AbstractEventLoop) -> None:
    lines = [line for line in DIRECTED if mode.serves(line["scenario"])]
    wrong = lines[len(lines) // 2]

    for line in lines:
        actual = run(line["scenario"], mode, loop)
        expected = line["trace"]
        if line is wrong:
            expected = altered(expected, (len(expected) - 1, "clock"))
        assert bool(compared(expected, actual, mode)) == (line is wrong), line["id"]


def line_with(**parts: JSON) -> JSON:
    """The simplest line, with some parts of its scenario replaced."""
    call = {"outcomes": [{"return": "ok"}]}
    return {
        "id": "made",
        "group": "made",
        "scenario": {"policy": {"type": "never"}, "calls": [call], **parts},
        "trace": [
            {
                "events": [["callback", 1, 0, 1]],
                "result": {"return": "ok"},
                "context": {
                    "retry_count": 0,
                    "last": None,
                    "exhausted_only": False,
                    "flags": ["closed"],
                    "max_attempts": -1,
                },
                "clock": 0,
            }
        ],
    }


def test_simplest_line_passes() -> None:
    assert check(line_with(), SYNC) == []


CALL = {"outcomes": [{"return": "ok"}]}
UNKNOWN = {
    "scenario": {"colour": 1},
    "policy": {"policy": {"type": "whim"}},
    "policy field": {"policy": {"type": "never", "max": 3}},
    "policy inside": {"policy": {"type": "composite", "policies": [{"type": "never", "x": 1}]}},
    "exception of a map": {"policy": {"type": "simple", "max": 3, "map": {"Odd": True}}},
    "backoff": {"backoff": {"type": "whim"}},
    "backoff field": {"backoff": {"type": "fixed", "ms": 1, "max": 2}},
    "listener": {"listeners": [{"closed": {}}]},
    "open action": {"listeners": [{"open": "sleep"}]},
    "open action's field": {"listeners": [{"open": {"sleep": 1}}]},
    "error action": {"listeners": [{"error": {"sleep": 1}}]},
    "close action": {"listeners": [{"close": {"sleep": 1}}]},
    "call": {"calls": [CALL | {"colour": 1}]},
    "state": {"calls": [CALL | {"state": {"key": "a", "ttl": 1}}]},
    "rollback": {"calls": [CALL | {"state": {"key": "a", "rollback": {"map": {}, "x": 1}}}]},
    "recovery": {"calls": [CALL | {"recovery": {"sleep": 1}}]},
    "outcome": {"calls": [{"outcomes": [{"return": "ok", "colour": 1}]}]},
    "outcome without an end": {"calls": [{"outcomes": [{"advance": 1}]}]},
    "outcome that is not reached": {"calls": [{"outcomes": [{"return": "ok"}, {"sleep": 1}]}]},
    "raised exception": {"calls": [{"outcomes": [{"return": "ok"}, {"raise": ["Odd"]}]}]},
    "nested": {
        "calls": [
            {"outcomes": [{"nested": {"policy": {"type": "never"}, "outcomes": [], "state": {}}}]}
        ]
    },
}


@pytest.mark.parametrize("parts", UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_word_in_a_scenario_is_rejected(parts: JSON) -> None:
    with pytest.raises(UnknownFieldError):
        check(line_with(**parts), SYNC)


@pytest.mark.parametrize("field", [{"colour": 1}, {"tags": ["odd"]}], ids=["field", "tag"])
def test_unknown_word_on_a_line_is_rejected(field: JSON) -> None:
    with pytest.raises(UnknownFieldError):
        check(line_with() | field, SYNC)


def test_value_that_is_not_an_object_is_rejected() -> None:
    with pytest.raises(UnknownFieldError, match="policy: an object was expected"):
        check_known("policy", ["never"], "type")


def test_every_scenario_runs_in_several_modes_and_some_in_all() -> None:
    modes = [sum(mode.serves(line["scenario"]) for mode in MODES.values()) for line in LINES]

    assert min(modes) >= 3
    assert max(modes) == len(MODES)
