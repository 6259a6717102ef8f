"""Spans of attempts, links between deliveries, and programs without OpenTelemetry."""

import asyncio
import subprocess
import sys

import pytest
import trio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from retrytemplate import (
    FixedBackoff,
    MemoryRetryContextCache,
    MissingExtraError,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    current_context,
)
from retrytemplate.control import Pipeline, Strategy, Timeout
from retrytemplate.observe import Observer, SpanSink, Tracing
from retrytemplate.testing import ListenerConformance, VirtualClock
from tests.support.redis_caches import ValkeyStore
from tests.support.sql_caches import SQLStore

TRACEPARENT = "retrytemplate.traceparent"


def template(*listeners, **settings):
    values = {"policy": SimpleRetryPolicy(4), "backoff": FixedBackoff(0.0), "name": "charge"}
    return RetryTemplate(clock=VirtualClock(), listeners=listeners, **values | settings)


class Failing:
    """Fails a number of times, then returns."""

    def __init__(self, times, error=ConnectionError):
        self.times, self.error = times, error

    def __call__(self):
        self.times -= 1
        if self.times >= 0:
            raise self.error("down: token=17")
        return "value"

    async def awaited(self):
        return self()


@pytest.fixture(params=["sqlite", "valkey"])
def store(request, tmp_path):
    if request.param == "sqlite":
        made = SQLStore("sqlite", f"sqlite:///{tmp_path}/retry.db")
    else:
        made = ValkeyStore(request.getfixturevalue("valkey_url"))
    yield made
    made.close()


def linked(span):
    return [each.context.span_id for each in span.links]


# Links.


def test_four_deliveries_of_a_key_are_linked_in_order(spans, store):
    fails = Failing(3)
    for _ in range(4):  # each with a cache of its own, as in four processes
        delivery = template(Tracing(), cache=store.cache()).bind(state=RetryState("order-17"))
        with spans.span("delivery"):
            delivery.outcome(fails)
    made = spans.named("delivery")
    ids = [each.context.span_id for each in made]
    assert [linked(each) for each in made] == [[], ids[:1], ids[1:2], ids[2:3]]
    assert made[1].links[0].context.trace_id == made[0].context.trace_id
    assert len({each.context.trace_id for each in made}) == 4


def test_async_deliveries_are_linked(spans):
    bound = template(Tracing(), cache=MemoryRetryContextCache())
    bound = bound.bind(state=RetryState("order-17"))
    fails = Failing(1)

    async def deliver():
        with spans.span("delivery"):
            await bound.outcome_async(fails.awaited)

    for _ in range(2):
        asyncio.run(deliver())
    first, second = spans.named("delivery")
    assert linked(second) == [first.context.span_id]


def test_recovery_in_a_later_delivery_is_linked(spans):
    cache = MemoryRetryContextCache()
    bound = template(Tracing(), cache=cache, policy=SimpleRetryPolicy(1))
    bound = bound.bind(state=RetryState("order-17"), recovery=lambda context: "other")
    for _ in range(2):
        with spans.span("delivery"):
            bound.outcome(Failing(9))
    first, second = spans.named("delivery")
    assert linked(second) == [first.context.span_id]


@pytest.mark.parametrize("stored", [17, "", "not-a-traceparent", f"00-{'0' * 32}-{'0' * 16}-01"])
def test_invalid_stored_traceparent_is_ignored(spans, stored):
    cache = MemoryRetryContextCache()
    bound = template(cache=cache).bind(state=RetryState("order-17"))

    def fail():
        current_context().attributes[TRACEPARENT] = stored
        raise OSError

    bound.outcome(fail)
    with spans.span("delivery"):
        again = template(Tracing(), cache=cache).bind(state=RetryState("order-17"))
        assert again.call(len, "abc") == 3
    assert spans.named("delivery")[0].links == ()


def test_deliveries_in_one_span_are_not_linked(spans):
    bound = template(Tracing(), cache=MemoryRetryContextCache()).bind(state=RetryState("order-17"))
    fails = Failing(1)
    with spans.span("batch"):
        bound.outcome(fails)
        bound.outcome(fails)
    assert spans.named("batch")[0].links == ()


def test_delivery_without_a_span_keeps_the_earlier_link(spans):
    bound = template(Tracing(), cache=MemoryRetryContextCache()).bind(state=RetryState("order-17"))
    fails = Failing(2)
    with spans.span("delivery"):
        bound.outcome(fails)
    with pytest.raises(ConnectionError):
        bound.call(fails)
    with spans.span("delivery"):
        bound.call(fails)
    first, last = spans.named("delivery")
    assert linked(last) == [first.context.span_id]


@pytest.mark.parametrize("links", [(False, True), (True, False)])
def test_tracing_without_links_stores_and_links_nothing(spans, links):
    cache, fails = MemoryRetryContextCache(), Failing(1)
    for each in links:
        bound = template(Tracing(links=each), cache=cache).bind(state=RetryState("order-17"))
        with spans.span("delivery"):
            bound.outcome(fails)
    assert [each.links for each in spans.named("delivery")] == [(), ()]


def test_stateless_execution_stores_no_trace_context(spans):
    seen = []

    def call():
        seen.append(dict(current_context().attributes))
        raise OSError

    with spans.span():
        template(Tracing()).outcome(call)
    assert seen == [{}] * 4


def test_tracing_passes_the_kit_of_listeners():
    class Kit(ListenerConformance):
        def make(self):
            return Tracing()

    assert Kit().run_all() == {}


# Spans of attempts.


def charging(spans, *layers, listeners=(), **settings):
    charge = template(*listeners, **settings)
    return Pipeline(charge, *layers, Tracing(spans.provider).attempt)


def shown(span):
    return dict(span.attributes), span.status.status_code, span.status.description


ATTEMPTS = [
    (
        {"retrytemplate.attempt": 1, "error.type": "ConnectionError"},
        StatusCode.ERROR,
        "down: token=***",
    ),
    ({"retrytemplate.attempt": 2}, StatusCode.UNSET, None),
]


def call_sync(pipeline, fails):
    return pipeline.call(fails)


def call_wrapped(pipeline, fails):
    return pipeline.wrap(lambda: fails())()


def call_asyncio(pipeline, fails):
    return asyncio.run(pipeline.call_async(fails.awaited))


def call_wrapped_asyncio(pipeline, fails):
    async def call():
        return await fails.awaited()

    return asyncio.run(pipeline.wrap(call)())


def call_trio(pipeline, fails):
    return trio.run(pipeline.call_async, fails.awaited)


@pytest.mark.parametrize(
    "call", [call_sync, call_wrapped, call_asyncio, call_wrapped_asyncio, call_trio]
)
def test_each_attempt_has_a_span_with_its_number_and_status(spans, call):
    assert call(charging(spans), Failing(1)) == "value"
    made = spans.named("charge attempt")
    assert [shown(each) for each in made] == ATTEMPTS
    assert {each.kind for each in made} == {SpanKind.INTERNAL}
    assert [each.events for each in made] == [(), ()]  # no stack trace


def test_attempt_is_a_strategy_with_a_description(spans):
    attempt = Tracing(spans.provider).attempt
    assert isinstance(attempt, Strategy)
    assert "each call has a span of OpenTelemetry" in charging(spans, Timeout(5.0)).explain()
    assert repr(attempt) == "<Tracing.attempt>"


def test_spans_of_attempts_are_children_that_get_no_event_of_the_execution(spans):
    pipeline = charging(spans, listeners=[Observer(sinks=[SpanSink()])])
    with spans.span() as request:
        pipeline.call(Failing(1))
    made = spans.named("charge attempt")
    assert {each.parent.span_id for each in made} == {request.context.span_id}
    assert [len(each.events) for each in (*made, request)] == [0, 0, 2]


def test_attempts_of_nested_executions_are_spans_in_spans(spans):
    inner = charging(spans, name="inner")
    outer = charging(spans, name="outer")
    outer.call(lambda: inner.call(Failing(1)))
    (around,) = spans.named("outer attempt")
    assert {each.parent.span_id for each in spans.named("inner attempt")} == {
        around.context.span_id
    }


def test_attempt_of_a_template_without_a_name_has_the_name_of_the_function(spans):
    charging(spans, name=None).call(int, "17")
    charging(spans, name=None).outcome(int, "17")
    assert len(spans.named("int attempt")) == 2


def test_call_outside_of_a_template_has_a_span_without_a_number(spans):
    Tracing(spans.provider).attempt.call(int, "17")
    (span,) = spans.named("int attempt")
    assert dict(span.attributes) == {}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_cancelled_attempt_has_the_type_and_no_error_status(spans, backend):
    pipeline = charging(spans)

    async def in_asyncio():
        task = asyncio.ensure_future(pipeline.call_async(asyncio.sleep, 60))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    async def in_trio():
        with trio.CancelScope() as scope:
            scope.cancel()
            await pipeline.call_async(trio.sleep, 60)
        assert scope.cancelled_caught

    asyncio.run(in_asyncio()) if backend == "asyncio" else trio.run(in_trio)
    (span,) = spans.named("charge attempt")
    assert span.attributes["error.type"].rpartition(".")[2] in ("CancelledError", "Cancelled")
    assert span.status.status_code is StatusCode.UNSET


def test_interrupt_leaves_an_attempt_with_its_span_ended(spans):
    with pytest.raises(KeyboardInterrupt):
        charging(spans).call(Failing(1, KeyboardInterrupt))
    (span,) = spans.named("charge attempt")
    assert span.attributes["error.type"] == "KeyboardInterrupt"


def test_attempts_run_when_their_spans_are_not_sampled():
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    pipeline = Pipeline(template(), Tracing(provider).attempt)
    assert pipeline.call(Failing(1)) == "value"
    provider.shutdown()


def test_error_whose_text_fails_is_raised_and_has_a_status(spans):
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    with pytest.raises(Silent):
        charging(spans, policy=SimpleRetryPolicy(1)).call(Failing(1, Silent))
    assert spans.named("charge attempt")[0].status.description == "<no text: str() failed>"


def test_class_name_of_an_attempt_is_escaped_in_its_span(spans):
    kind = type("red \x1b[31m", (OSError,), {"__module__": "builtins"})
    with pytest.raises(kind):
        charging(spans).call(Failing(9, kind))
    assert spans.named("charge attempt")[0].attributes["error.type"] == r"red \x1b[31m"


# Construction and imports.


def test_links_other_than_a_bool_are_rejected():
    with pytest.raises(TypeError, match="links must be True or False, got 'no'"):
        Tracing(links="no")


def test_provider_without_a_tracer_is_rejected():
    with pytest.raises(TypeError, match="tracer_provider must be an object with the methods get_"):
        Tracing(object())


def test_missing_api_raises_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(MissingExtraError, match=r"Tracing needs .*: install retrytemplate\[otel\]"):
        Tracing()


ABSENT = """
import sys
sys.modules["opentelemetry"] = None  # an import of it fails
from retrytemplate import MissingExtraError, RetryTemplate
from retrytemplate.observe import MemorySink, SpanSink, Tracing, install
kept = MemorySink()
install(logs=None, sinks=[kept])
print(RetryTemplate().outcome(int, "x").attempts, len(kept.events), kept.events[0].traceparent)
for made in (SpanSink, Tracing):
    try:
        made()
    except MissingExtraError as error:
        print(error)
"""
PRESENT = """
import sys
from retrytemplate import RetryTemplate
from retrytemplate.observe import MemorySink, SpanSink, Tracing, install
install(logs=None, sinks=[MemorySink()])
RetryTemplate().outcome(int, "x")
print(any(each.startswith("opentelemetry") for each in sys.modules))
SpanSink()
print("opentelemetry.trace" in sys.modules)
"""


def printed(program):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()


@pytest.mark.statement("S0-53")
def test_program_without_opentelemetry_is_observed():
    assert printed(ABSENT) == [
        "3 3 None",
        "a SpanSink needs opentelemetry.trace: install retrytemplate[otel]",
        "Tracing needs opentelemetry.trace: install retrytemplate[otel]",
    ]


@pytest.mark.statement("S0-53")
def test_opentelemetry_is_imported_by_the_sink_only():
    assert printed(PRESENT) == ["False", "True"]
