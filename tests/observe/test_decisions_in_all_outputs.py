"""Four decisions followed through log, span, audit file and metrics, with the same ids."""

import json

import pytest

from retrytemplate import (
    FixedBackoff,
    MemoryRetryContextCache,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import CircuitBreaker, Consecutive
from retrytemplate.observe import InMemoryMetrics, JsonLinesSink, SpanSink, install, uninstall
from retrytemplate.testing import VirtualClock
from tests.support.failing_cache import Down


class Failing:
    """Fails a number of times, then returns."""

    def __init__(self, times):
        self.times = times

    def __call__(self):
        self.times -= 1
        if self.times >= 0:
            raise ConnectionError("down")
        return "value"


def template(**settings):
    values = {"backoff": FixedBackoff(0.5), "name": "charge", "clock": VirtualClock()} | settings
    return RetryTemplate(SimpleRetryPolicy(4, retry_on=OSError), **values)


def succeed_at_the_third_attempt():
    template().call(Failing(2))


def redeliver_after_a_crash():
    cache = Down(lambda step, record: False)
    bound = template(cache=cache, backoff=FixedBackoff(0.0)).bind(state=RetryState("order-17"))
    bound.outcome(Failing(1))
    cache.lost = "gone:1"  # as if a second delivery had crashed
    bound.call(Failing(0))


def reject_a_call():
    breaker = CircuitBreaker("billing", window=Consecutive(1))
    with pytest.raises(ConnectionError):
        breaker.call(Failing(1))
    template().outcome(lambda: breaker.call(len, "abc"))


def trip_a_breaker():
    breaker = CircuitBreaker("billing", window=Consecutive(2))
    template(cache=MemoryRetryContextCache()).outcome(lambda: breaker.call(Failing(1)))


# By case: the types of the events of the execution, and metrics with their label values.
CASES = {
    succeed_at_the_third_attempt: (
        ["retry.scheduled", "retry.scheduled", "call.succeeded_after_retry"],
        {("retries", "charge", "ConnectionError"): 2, ("call", "success_after_retry"): 1},
    ),
    redeliver_after_a_crash: (
        ["retry.deferred", "attempt.lost", "call.succeeded_after_retry"],
        {
            ("attempt.lost", "charge"): 1,
            ("call", "redelivered"): 1,
            ("call", "success_after_retry"): 1,
        },
    ),
    reject_a_call: (
        ["circuit_breaker.rejected", "call.rejected"],
        {("rejections", "circuit_breaker", "billing"): 1, ("call", "rejected"): 1},
    ),
    trip_a_breaker: (
        [
            *("retry.scheduled", "circuit_breaker.state_changed", "retry.scheduled"),
            *("circuit_breaker.rejected", "call.failed"),
        ],
        {("circuit_breaker.transitions", "billing", "open", "false"): 1, ("call", "failed"): 1},
    ),
}
# An execution reports the rejection itself: the log has one line for it.
NOT_LOGGED = "circuit_breaker.rejected"


def counted(metrics):
    """The values of counters, and the numbers of calls by their outcome."""
    shown = {}
    for name, series in metrics.snapshot().items():
        for labels, value in series.items():
            if name == "call.duration":
                shown["call", labels[1]] = value.count
            else:
                shown[name, *labels] = value
    return shown


@pytest.mark.statement("S4-95")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_decision_has_the_same_id_in_log_span_audit_and_metrics(case, spans, caplog, tmp_path):
    caplog.set_level("INFO")
    expected, measured = CASES[case]
    metrics, path = InMemoryMetrics(), tmp_path / "audit.jsonl"
    install(sinks=[SpanSink(), JsonLinesSink(path)], metrics=[metrics])
    try:
        with spans.span() as span:
            case()
    finally:
        uninstall()
    in_span = [
        (each.name.removeprefix("retrytemplate."), each.attributes["retrytemplate.execution_id"])
        for each in span.events
        if "retrytemplate.execution_id" in each.attributes
    ]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    in_audit = [
        (line["type"].removeprefix("retrytemplate."), line["executionid"])
        for line in lines
        if "executionid" in line
    ]
    in_log = [(each.event, each.execution_id) for each in caplog.records if each.execution_id]
    assert [kind for kind, _ in in_span] == expected
    assert len({id for _, id in in_span}) == 1
    assert sorted(in_audit) == sorted(in_span)
    assert in_log == [each for each in in_span if each[0] != NOT_LOGGED]
    trace_id = f"{span.context.trace_id:032x}"
    assert {each.trace_id for each in caplog.records} == {trace_id}
    assert {line["traceparent"].split("-")[1] for line in lines} == {trace_id}
    shown = counted(metrics)
    assert {name: shown.get(name) for name in measured} == measured
