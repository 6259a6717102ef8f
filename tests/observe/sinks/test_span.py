"""Events as span events of OpenTelemetry."""

import asyncio
import re
import sys
from pathlib import Path

import pytest
import trio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from retrytemplate import (
    FixedBackoff,
    MemoryRetryContextCache,
    MissingExtraError,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import CircuitBreaker
from retrytemplate.observe import EVENT_TYPES, Observer, SpanSink
from retrytemplate.observe.event_types import OUTCOMES
from retrytemplate.testing import VirtualClock
from tests.observe.events import event

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "tracing.md"


def observed(*sinks, name="charge", **settings):
    values = {"policy": SimpleRetryPolicy(3), "backoff": FixedBackoff(0.5)} | settings
    observer = Observer(sinks=[SpanSink(), *sinks])
    return RetryTemplate(name=name, listeners=[observer], clock=VirtualClock(), **values)


class Failing:
    """Fails a number of times, then returns."""

    def __init__(self, times):
        self.times = times

    def __call__(self):
        self.times -= 1
        if self.times >= 0:
            raise ConnectionError("down: token=17")
        return "value"


def end_attributes(span):
    """The attributes of an execution's end, without the prefix."""
    return {name.removeprefix("retrytemplate."): value for name, value in span.attributes.items()}


@pytest.mark.statement("S0-53")
def test_span_has_an_event_per_retry_and_the_end_as_attributes(spans):
    with spans.span() as span:
        observed().call(Failing(2))
    assert [each.name for each in span.events] == [
        "retrytemplate.retry.scheduled",
        "retrytemplate.retry.scheduled",
        "retrytemplate.call.succeeded_after_retry",
    ]
    retry = span.events[0].attributes
    assert (retry["retrytemplate.attempt"], retry["retrytemplate.delay"]) == (1, 0.5)
    assert retry["error.type"] == "ConnectionError"
    assert retry["retrytemplate.error_message"] == "down: token=***"
    assert "retrytemplate.key" not in retry  # None: no attribute
    assert end_attributes(span) == {
        "template": "charge",
        "attempts": 3,
        "outcome": "success_after_retry",
    }


def test_first_success_sets_no_attribute(spans):
    with spans.span() as span:
        observed().call(Failing(0))
    assert (span.events, dict(span.attributes)) == ((), {})


def test_failed_execution_sets_its_stop_reason(spans):
    with spans.span() as span:
        observed().outcome(Failing(9))
    assert end_attributes(span) == {
        "template": "charge",
        "attempts": 3,
        "outcome": "failed",
        "stop_reason": "attempts_exhausted",
    }


def test_recovered_execution_has_the_outcome_recovered(spans):
    with spans.span() as span:
        observed().bind(recovery=lambda context: "other").call(Failing(9))
    assert end_attributes(span)["outcome"] == "recovered"


@pytest.mark.parametrize("attempts", [3, 1])
def test_deferred_delivery_has_the_outcome_redelivered(spans, attempts):
    template = observed(policy=SimpleRetryPolicy(attempts), cache=MemoryRetryContextCache())
    with spans.span() as span:
        template.bind(state=RetryState("order-17")).outcome(Failing(9))
    assert [each.name for each in span.events] == ["retrytemplate.retry.deferred"]
    assert span.events[0].attributes["retrytemplate.key"] == "order-17"
    assert end_attributes(span) == {"template": "charge", "attempts": 1, "outcome": "redelivered"}


def test_rejected_execution_has_no_attempts(spans):
    breaker = CircuitBreaker("billing")
    breaker.force_open(by="ada", reason="incident")
    with spans.span() as span:
        observed().outcome(breaker.call, len, "abc")
    attributes = end_attributes(span)
    assert (attributes["outcome"], attributes["attempts"]) == ("rejected", 0)
    assert span.events[-1].attributes["retrytemplate.name"] == "billing"


def test_component_event_names_the_component(spans):
    breaker = CircuitBreaker("billing", listeners=[Observer(sinks=[SpanSink()])])
    with spans.span() as span:
        breaker.force_open(by="ada", reason="incident")
    (change,) = span.events
    assert change.name == "retrytemplate.circuit_breaker.state_changed"
    assert change.attributes["retrytemplate.subject"] == "billing"
    assert dict(span.attributes) == {}


def test_outermost_of_nested_executions_sets_the_attributes(spans):
    inner, outer = observed(name="inner"), observed(name="outer")
    fails = Failing(1)

    def call():
        inner.outcome(Failing(9))
        return fails()

    with spans.span() as span:
        outer.call(call)
    names = [each.name for each in span.events]
    assert names.count("retrytemplate.call.failed") == 2  # the inner ones
    attributes = end_attributes(span)
    assert (attributes["template"], attributes["outcome"]) == ("outer", "success_after_retry")
    assert "stop_reason" not in attributes


def test_nested_execution_in_a_first_success_sets_no_attribute(spans):
    inner, outer = observed(name="inner"), observed(name="outer")
    with spans.span() as span:
        outer.call(lambda: inner.call(Failing(1)))
    assert len(span.events) == 2
    assert dict(span.attributes) == {}


def test_later_execution_in_a_span_replaces_the_stop_reason(spans):
    with spans.span() as span:
        observed(name="first").outcome(Failing(9))
        observed(name="second").call(Failing(1))
    assert end_attributes(span) == {
        "template": "second",
        "attempts": 2,
        "outcome": "success_after_retry",
        "stop_reason": "",
    }


def test_cancelled_execution_has_no_stop_reason(spans):
    async def main():
        with spans.span() as span:
            task = asyncio.ensure_future(observed().execute_async(lambda _: asyncio.sleep(60)))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        return span

    span = asyncio.run(main())
    assert end_attributes(span) == {"template": "charge", "attempts": 1, "outcome": "cancelled"}
    assert span.events[0].attributes["retrytemplate.reason"] == "manual"


def test_concurrent_trio_tasks_add_events_to_their_own_spans(spans):
    async def task(name, times):
        fails = Failing(times)

        async def call():
            await trio.lowlevel.checkpoint()
            return fails()

        with spans.span(name):
            await observed(backoff=FixedBackoff(0.0)).call_async(call)

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task, "one", 1)
            nursery.start_soon(task, "two", 2)

    trio.run(main)
    assert [len(spans.named(name)[0].events) for name in ("one", "two")] == [2, 3]


def test_span_that_is_sampled_out_gets_no_event(monkeypatch):
    added = []
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    with provider.get_tracer("shop").start_as_current_span("request") as span:
        monkeypatch.setattr(type(span), "add_event", lambda *given: added.append(given))
        assert observed().call(Failing(1)) == "value"
    assert added == []
    provider.shutdown()


def test_events_without_a_span_cause_no_error(caplog):
    assert observed().call(Failing(1)) == "value"
    assert caplog.records == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (5, 5),
        (0.25, 0.25),
        (True, True),
        ("red \ud800", "red \\ud800"),
        ([3, 4], "[3, 4]"),
        ({"read": 7}, '{"read": 7}'),
    ],
)
def test_values_of_the_data_are_attributes_that_can_be_exported(spans, value, shown):
    with spans.span() as span:
        SpanSink().emit(event("shop.refund", data={"value": value, "none": None}))
    (added,) = span.events
    assert added.name == "retrytemplate.shop.refund"
    assert dict(added.attributes) == {
        "retrytemplate.subject": "charge",
        "retrytemplate.value": shown,
    }


def test_failing_span_changes_no_call(spans, monkeypatch, caplog):
    with spans.span() as span:
        monkeypatch.setattr(span, "add_event", None)
        assert observed().call(Failing(1)) == "value"
    assert [each.message.partition(" raised")[2] for each in caplog.records][:1] == [
        " an exception (1 so far); its events are lost"
    ]


def test_each_end_of_an_execution_has_an_outcome():
    ends = {name for name in EVENT_TYPES if name.startswith("call.")}
    assert OUTCOMES.keys() == ends | {"retry.deferred"}


def rows(table):
    """The rows of a table of the page."""
    text = PAGE.read_text(encoding="utf-8")
    (found,) = re.findall(rf"<!-- {table} -->\n\|.*\n\|[-|]+\n((?:\|.*\n)+)", text)
    return found.splitlines()


@pytest.mark.documentation
def test_page_of_tracing_has_a_row_for_every_outcome():
    expected = [f"| `{outcome}` | `{kind}` |" for kind, outcome in OUTCOMES.items()]
    assert rows("span outcomes") == expected


@pytest.mark.documentation
def test_page_of_tracing_has_a_row_for_every_attribute(spans):
    with spans.span() as span:
        observed().outcome(Failing(9))
    assert [row.split("`")[1] for row in rows("span attributes")] == list(span.attributes)


def test_missing_api_raises_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(MissingExtraError, match=r"install retrytemplate\[otel\]"):
        SpanSink()
