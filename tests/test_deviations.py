"""Documented deviations from the original library.

The traces of ``golden/deviations.jsonl`` show the original, Spring Retry; each kind of them has a
test here that plays the same scenario and holds what we do instead.  "Differences" in
``docs/migrate/spring-retry.md`` has the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest

from retrytemplate import (
    ExhaustedRetryError,
    MemoryRetryContextCache,
    RetryContext,
    RetryContextCacheFullError,
    RetryListener,
    RetryState,
    RetryTemplate,
    TerminatedRetryError,
    current_context,
)
from tests.golden.compare import differences, stopped_in_open
from tests.golden.lines import DEVIATIONS, lines_of
from tests.golden.model import CLASSES, JSON, RAISED
from tests.golden.run import MODES, TAGS, run

pytestmark = pytest.mark.filterwarnings("ignore::retrytemplate.UnboundedRetryWarning")

LINES = lines_of(DEVIATIONS)
REFUSED = ("max_zero", "empty_composite")


def each(tag: str) -> pytest.MarkDecorator:
    """Every scenario of a tag that can be built, synchronous and asynchronous."""
    chosen = [
        pytest.param(line, mode, id=f"{line['id']}-{mode}")
        for line in LINES
        for mode in ("sync", "async")
        if tag in line["tags"] and (tag in REFUSED or not is_refused(line))
    ]
    return pytest.mark.parametrize(("line", "mode"), chosen)


def is_refused(line: JSON) -> bool:
    """Whether a setting of the scenario is invalid, so that it cannot run."""
    return bool({*line["tags"]} & {*REFUSED}) or line["scenario"].get("cache_capacity") == 0


def played(line: JSON, mode: str, leave_out: frozenset[int] = frozenset()) -> list[JSON]:
    return run(line["scenario"], MODES[mode], leave_out=leave_out)


def calls_of(line: JSON, trace: list[JSON]) -> Iterator[tuple[int, JSON, JSON]]:
    """Number, call and record of each execution."""
    for number, (call, record) in enumerate(zip(line["scenario"]["calls"], trace, strict=True), 1):
        yield number, call, record


def key_of(call: JSON) -> str | None:
    key: str | None = call.get("state", {}).get("key")
    return key


def attempts_of(call: JSON, record: JSON) -> list[JSON]:
    """The results of the called callbacks."""
    called = [event for event in record["events"] if event[0] == "callback"]
    end = {"return": "end"}
    return [call["outcomes"][n] if n < len(call["outcomes"]) else end for n in range(len(called))]


def agree(expected: list[JSON], actual: list[JSON]) -> None:
    found = differences(expected, actual)
    assert not found, "\n".join(found)


def events_of(record: JSON, *kinds: str) -> list[JSON]:
    return [event for event in record["events"] if event[0] in kinds]


def hard_ended(call: JSON, record: JSON) -> bool:
    attempts = attempts_of(call, record)
    return bool(attempts) and attempts[-1].get("raise", [""])[0] == "Hard"


def recovery_failed(record: JSON) -> bool:
    return bool(events_of(record, "recover")) and "recovered" not in record["context"]["flags"]


def forbids_recovery(expected: JSON, actual: JSON) -> bool:
    """Whether ours forbids the recovery and the original does not."""
    flags = [record["context"]["flags"] for record in (expected, actual)]
    return ["no_recovery" in each for each in flags] == [False, True]


def first_deviation(line: JSON, trace: list[JSON]) -> int:
    """The first difference to the original: an index, or the length of the trace."""
    kept: JSON = {}
    for index, (expected, (_, call, record)) in enumerate(
        zip(line["trace"], calls_of(line, trace), strict=True)
    ):
        key = key_of(call)
        if (
            hard_ended(call, record)
            or forbids_recovery(expected, record)
            or (key in kept and stopped_in_open(record))
            or (key is not None and recovery_failed(record))
        ):
            return index
        kept = record.get("cache", {})
    return len(trace)


def agree_until_the_first_deviation(line: JSON, mode: str) -> tuple[list[JSON], int]:
    """The trace of this library, and its first deviation from the original."""
    trace = played(line, mode)
    until = first_deviation(line, trace)
    agree(line["trace"][:until], trace[:until])
    return trace, until


def test_every_kind_of_deviation_has_its_lines() -> None:
    assert {tag for line in LINES for tag in line["tags"]} == TAGS - {"interrupt"}


# -- base exceptions are never retried ----------------------------------------------------------


@each("hard")
def test_base_exception_ends_the_call_uncounted(line: JSON, mode: str) -> None:
    kept: JSON = {}
    for number, call, record in calls_of(line, played(line, mode)):
        attempts = attempts_of(call, record)
        assert all(outcome.get("raise", [""])[0] != "Hard" for outcome in attempts[:-1])
        if hard_ended(call, record):
            raised = record["result"]["raise"]
            assert (raised["type"], raised["id"]) == ("Hard", f"c{number}.a{len(attempts)}")
            last_callback = events_of(record, "callback")[-1]
            assert record["context"]["retry_count"] == last_callback[2]
            after = record["events"][record["events"].index(last_callback) + 1 :]
            listeners = range(len(line["scenario"].get("listeners", [])))
            assert [event[:3] for event in after] == [["close", i, "Hard"] for i in listeners[::-1]]
            if key_of(call) and len(attempts) == 1:
                assert record["cache"] == kept
        assert (record["context"]["last"] or {}).get("type") != "Hard"
        kept = record.get("cache", {})


@each("hard")
def test_trace_before_a_base_exception_equals_the_original(line: JSON, mode: str) -> None:
    agree_until_the_first_deviation(line, mode)


# -- every close runs, and the current context is restored --------------------------------------


@each("sync_leak")
def test_close_that_raises_prevents_no_other_close(line: JSON, mode: str) -> None:
    listeners = line["scenario"]["listeners"]
    expected = deepcopy(line["trace"])
    for record in expected:
        if not record.pop("sync_leak", False):
            continue
        _, stopped_at, name, flags, _ = record["events"][-1]
        for index in reversed(range(stopped_at)):
            raises = ["raise"] if "close" in listeners[index] else []
            record["events"].append(["close", index, name, flags, *raises])
    trace = played(line, mode)
    for record in trace:
        # What the call was about to raise may be chained to it; the original forgets it.
        record["result"].get("raise", {}).pop("cause", None)

    agree(expected, trace)


def test_error_of_a_close_is_chained_to_the_pending_error() -> None:
    class Closing(RetryListener):
        def close(self, context: RetryContext, exception: BaseException | None) -> None:
            raise LookupError("from close")

    def fail(context: RetryContext) -> None:
        raise ValueError("from the callback")

    with pytest.raises(LookupError, match="from close") as caught:
        RetryTemplate(listeners=(Closing(),)).execute(fail)

    assert isinstance(caught.value.__cause__ or caught.value.__context__, ValueError)
    assert current_context() is None


# -- a full cache still serves the keys that it has ---------------------------------------------


FULL = {
    "type": "TerminatedRetryException",
    "cause": {"type": "RetryCacheCapacityExceededException"},
}


@each("cache_full")
def test_full_cache_rejects_new_keys_only(line: JSON, mode: str) -> None:
    capacity = line["scenario"]["cache_capacity"]
    kept: JSON = {}
    for _, call, record in calls_of(line, played(line, mode)):
        failed = any("raise" in outcome for outcome in attempts_of(call, record))
        no_room = key_of(call) not in kept and len(kept) >= capacity
        assert (record["result"].get("raise") == FULL) == (failed and no_room)
        if no_room:
            assert record["cache"] == kept
        kept = record["cache"]


@each("cache_full")
def test_known_key_is_not_affected_by_a_full_cache(line: JSON, mode: str) -> None:
    roomy = deepcopy(line)
    del roomy["scenario"]["cache_capacity"]
    expected, trace = played(roomy, mode), played(line, mode)
    full = [record["result"].get("raise") == FULL for record in trace]
    until = full.index(True) if any(full) else len(trace)

    assert until > 0
    agree(expected[:until], trace[:until])


def test_cache_without_capacity_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"capacity must be an int >= 1, got 0"):
        MemoryRetryContextCache(capacity=0)


def chained(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if error.__cause__ is not error.__context__ and error.__cause__ is not None:
            yield from chained(error.__context__)
        error = error.__cause__ or error.__context__


def test_full_cache_keeps_the_exception_of_the_callback() -> None:
    def fail(context: RetryContext) -> None:
        raise failure

    template = RetryTemplate(name="orders", cache=MemoryRetryContextCache(capacity=1))
    failure = ValueError("first")
    with pytest.raises(ValueError, match="first"):
        template.execute(fail, state=RetryState("a"))
    failure = ValueError("second")
    with pytest.raises(TerminatedRetryError) as caught:
        template.execute(fail, state=RetryState("b"))

    assert isinstance(caught.value.__cause__, RetryContextCacheFullError)
    assert any(error is failure for error in chained(caught.value))


# -- nothing ends in an accident ----------------------------------------------------------------


@each("java_npe")
def test_exhausted_without_a_failure_has_its_own_error(line: JSON, mode: str) -> None:
    expected = deepcopy(line["trace"])
    for record in expected:
        if record["result"].get("raise", {}).get("type") == "NullPointerException":
            record["result"] = {"raise": {"type": "ExhaustedRetryException"}}

    agree(expected, played(line, mode))


class GivesUp(RetryListener):
    def open(self, context: RetryContext) -> None:
        context.give_up()


@pytest.mark.parametrize("state", [None, RetryState("a")], ids=["stateless", "stateful"])
def test_exhausted_without_a_failure_has_a_reason(state: RetryState | None) -> None:
    template = RetryTemplate(listeners=(GivesUp(),), raise_last=True, name="orders")

    with pytest.raises(ExhaustedRetryError, match=r"no attempt|gave up|given up") as caught:
        template.execute(lambda context: None, state=state)

    assert caught.value.__cause__ is None


# -- invalid settings are rejected --------------------------------------------------------------


@each("max_zero")
def test_zero_attempts_are_rejected(line: JSON, mode: str) -> None:
    with pytest.raises(ValueError, match=r"max_attempts must be an int >= 1, got 0"):
        played(line, mode)


@each("empty_composite")
def test_empty_composite_is_rejected(line: JSON, mode: str) -> None:
    with pytest.raises(ValueError, match=r"policies must .*, got "):
        played(line, mode)


# -- delays are not cut to whole milliseconds ---------------------------------------------------


@each("ms_truncation")
def test_delays_are_products_without_rounding(line: JSON, mode: str) -> None:
    backoff = line["scenario"]["backoff"]
    steps: dict[str | None, int] = {}
    kept: JSON = {}
    for _, call, record in calls_of(line, played(line, mode)):
        key = key_of(call)
        fresh = key not in kept or call["state"].get("force_refresh", False)
        step = 0 if fresh else steps[key]
        for _, delay in events_of(record, "sleep"):
            product = backoff["initial"] * backoff["multiplier"] ** step
            assert delay == pytest.approx(min(product, backoff.get("max", 30_000)), rel=1e-12)
            step += 1
        steps[key], kept = step, record.get("cache", {})


def test_some_delays_are_not_integers() -> None:
    lines = [line for line in LINES if "ms_truncation" in line["tags"]]
    delays = [e[1] for line in lines for r in played(line, "sync") for e in events_of(r, "sleep")]

    assert any(delay != int(delay) for delay in delays)


@each("ms_truncation")
def test_trace_without_delays_equals_the_original(line: JSON, mode: str) -> None:
    trace = played(line, mode)
    until = first_deviation(line, trace)

    assert until == len(trace) or "nested_not_recoverable" in line["tags"]
    agree(untimed(line["trace"][:until]), untimed(trace[:until]))


def untimed(trace: list[JSON]) -> list[JSON]:
    trace = deepcopy(trace)
    for record in trace:
        del record["clock"]
        record["events"] = [["sleep"] if e[0] == "sleep" else e for e in record["events"]]
    return trace


# -- not_recoverable works at any depth ---------------------------------------------------------


def not_recoverable_in(policy: JSON) -> Iterator[type[BaseException]]:
    """The classes that any member of a policy tree calls not recoverable."""
    yield from (CLASSES[name] for name in policy.get("not_recoverable", ()))
    members = [*policy.get("policies", ()), *policy.get("map", {}).values()]
    for member in [*members, policy.get("delegate")]:
        if isinstance(member, dict):
            yield from not_recoverable_in(member)


def types_of(failure: JSON) -> Iterator[type[BaseException]]:
    while failure is not None:
        yield RAISED[failure["type"]]
        failure = failure.get("cause")


def plain(tag: str) -> list[JSON]:
    """The lines whose only deviation is this one."""
    return [line for line in LINES if line["tags"] == [tag]]


@each("nested_not_recoverable")
def test_not_recoverable_failure_applies_in_any_member(line: JSON, mode: str) -> None:
    hopeless = tuple(not_recoverable_in(line["scenario"]["policy"]))
    for _, _, record in calls_of(line, played(line, mode)):
        context = record["context"]
        if "no_recovery" not in context["flags"]:
            continue
        assert any(issubclass(kind, hopeless) for kind in types_of(context["last"]))
        if "exhausted" in context["flags"]:
            assert not events_of(record, "recover")
            assert record["result"] == {"raise": context["last"]}


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("line", plain("nested_not_recoverable"), ids=lambda line: line["id"])
def test_trace_without_not_recoverable_equals_the_original(line: JSON, mode: str) -> None:
    agree_until_the_first_deviation(line, mode)


def test_some_lines_end_without_the_recovery_of_the_original() -> None:
    received = [
        line["id"]
        for line in plain("nested_not_recoverable")
        if any(map(forbids_recovery, line["trace"], played(line, "sync")))
    ]

    assert "directed-not-recoverable-nested-ignored" in received
    assert "directed-not-recoverable-circuit-ignored" in received


# -- a veto, or an exception out of open, keeps the key's history -------------------------------


@each("veto_keeps_history")
def test_call_ended_by_open_leaves_the_key_unchanged(line: JSON, mode: str) -> None:
    trace = played(line, mode)
    stopped = {number for number, _, record in calls_of(line, trace) if stopped_in_open(record)}
    without = played(line, mode, leave_out=frozenset(stopped))

    assert stopped
    for index, (record, other) in enumerate(zip(trace, without, strict=True)):
        if other is None:
            assert record["cache"] == (trace[index - 1]["cache"] if index else {})
        else:
            assert_same_but_statistics(record, other)


def assert_same_but_statistics(record: JSON, other: JSON) -> None:
    mine, yours = ({k: v for k, v in r.items() if k != "stats"} for r in (record, other))
    agree([mine], [yours])


@each("veto_keeps_history")
def test_call_ended_by_open_ends_as_in_the_original(line: JSON, mode: str) -> None:
    trace = played(line, mode)
    for expected, record in zip(line["trace"], trace, strict=True):
        if stopped_in_open(record) and stopped_in_open(expected):
            assert record["result"] == expected["result"]
            assert events_of(record, "open") == events_of(expected, "open")
            assert [e[:3] for e in events_of(record, "close")] == [
                e[:3] for e in events_of(expected, "close")
            ]


# -- the key goes when recovery has returned ----------------------------------------------------


@each("recovery_keeps_key")
def test_recovery_that_raises_runs_again_at_the_next_delivery(line: JSON, mode: str) -> None:
    owed: dict[str, JSON] = {}
    for _, call, record in calls_of(line, played(line, mode)):
        key = key_of(call)
        if key is None:
            continue
        if key in owed and not call["state"].get("force_refresh", False):
            assert not events_of(record, "callback")
            assert record["context"]["last"] == owed[key]["last"]
            assert record["context"]["retry_count"] == owed[key]["retry_count"]
            if "recovery" in call and "no_recovery" not in record["context"]["flags"]:
                assert len(events_of(record, "recover")) == 1
            else:
                assert key not in record["cache"]
        owed.pop(key, None)
        if recovery_failed(record):
            owed[key] = record["context"]
            assert record["cache"][key] == record["context"]["retry_count"]
        elif events_of(record, "recover"):
            assert key not in record["cache"]


@each("recovery_keeps_key")
def test_trace_before_a_recovery_raises_equals_the_original(line: JSON, mode: str) -> None:
    trace, until = agree_until_the_first_deviation(line, mode)

    if until < len(trace) and recovery_failed(trace[until]):
        # That call itself differs in nothing but that the key is still there.
        expected = line["trace"][until] | {"cache": trace[until]["cache"]}
        agree([expected], [trace[until]])


def test_lines_have_recoveries_that_are_redelivered() -> None:
    again: list[Any] = []
    for line in plain("recovery_keeps_key"):
        trace = played(line, "sync")
        again += [1 for one, next_ in pairwise(trace) if recovery_failed(one) and next_]

    assert again
