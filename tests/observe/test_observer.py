"""The observer: hooks of all objects as one stream of events."""

import asyncio
import logging

import pytest

from retrytemplate import (
    FixedBackoff,
    MemoryRetryContextCache,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import CircuitBreaker, Consecutive, Fallback, KillSwitch
from retrytemplate.listeners import add_default, remove_default
from retrytemplate.observe import EVENT_TYPES, LogSink, MemorySink, Observer
from retrytemplate.testing import VirtualClock
from tests.support.failing_cache import Down

POLICY = SimpleRetryPolicy(3, retry_on=OSError)


class Failing:
    """Fails a number of times, then returns."""

    def __init__(self, times, error=OSError):
        self.times, self.error = times, error

    def __call__(self):
        self.times -= 1
        if self.times >= 0:
            raise self.error("token=17")
        return "value"


def observed(kept, **settings):
    values = {"policy": POLICY, "backoff": FixedBackoff(0.5), "name": "charge"} | settings
    observer = values.pop("observer", None) or Observer(sinks=[kept])
    return RetryTemplate(listeners=[observer], clock=VirtualClock(), **values)


def types(kept):
    return [event.type for event in kept.events]


@pytest.fixture
def kept():
    sink = MemorySink()
    yield sink
    for event in sink.events:  # the keys in the table, no others
        assert event.data.keys() <= set(EVENT_TYPES[event.type].keys)
        level = logging.getLevelName(event.severity)
        assert level in EVENT_TYPES[event.type].severity.split("/")


def test_success_at_third_attempt_has_one_id_in_events_and_logs(kept, caplog):
    caplog.set_level("DEBUG")
    template = observed(kept, observer=Observer(sinks=[kept, LogSink()]))
    template.call(Failing(2))
    assert types(kept) == ["retry.scheduled", "retry.scheduled", "call.succeeded_after_retry"]
    ids = [event.execution_id for event in kept.events]
    assert len({*ids}) == 1
    assert ids == [record.execution_id for record in caplog.records]
    assert kept.events[-1].data["attempts"] == 3


def test_success_at_first_attempt_makes_no_event(kept):
    observed(kept).call(Failing(0))
    assert kept.events == ()


def test_failure_has_redacted_message_and_reason(kept):
    observed(kept).outcome(Failing(9))
    data = kept.events[-1].data
    assert kept.events[-1].type == "call.failed"
    assert (data["reason"], data["error_message"]) == ("attempts_exhausted", "token=***")


def test_recovery_makes_one_event_at_the_end(kept):
    observed(kept).bind(recovery=lambda context: "other").call(Failing(9))
    assert types(kept)[2:] == ["call.recovered"]


def test_redeliveries_of_a_key_have_one_execution_id(kept):
    template = observed(kept, cache=MemoryRetryContextCache(), backoff=FixedBackoff(0.0))
    fails = Failing(2)
    for _ in range(3):
        template.bind(state=RetryState("order-17")).outcome(fails)
    assert types(kept) == ["retry.deferred", "retry.deferred", "call.succeeded_after_retry"]
    assert len({event.execution_id for event in kept.events}) == 1


def test_exhausted_key_keeps_its_id_for_the_recovery(kept):
    template = observed(kept, cache=MemoryRetryContextCache(), policy=SimpleRetryPolicy(1))
    bound = template.bind(state=RetryState("order-17"), recovery=lambda context: None)
    bound.outcome(Failing(9))
    bound.outcome(Failing(9))
    assert types(kept) == ["retry.deferred", "call.recovered"]
    assert len({event.execution_id for event in kept.events}) == 1


def test_redelivery_after_a_crash_has_the_id_of_the_first_delivery(kept):
    cache = Down(lambda step, record: False)
    template = observed(kept, cache=cache, backoff=FixedBackoff(0.0), policy=SimpleRetryPolicy(4))
    bound = template.bind(state=RetryState("order-17"))
    bound.outcome(Failing(1))
    cache.lost = "gone:1"  # as if a second delivery had crashed
    bound.call(Failing(0))
    assert types(kept) == ["retry.deferred", "attempt.lost", "call.succeeded_after_retry"]
    assert len({event.execution_id for event in kept.events}) == 1
    assert kept.events[1].data["worker"] == "gone:1"


def test_two_crashes_in_a_row_have_one_execution_id(kept):
    """The second process crashes in its attempt, before it reports anything else."""
    cache, later = (Down(lambda step, record: False) for _ in range(2))
    first, second = (
        observed(kept, cache=each, policy=SimpleRetryPolicy(4)) for each in (cache, later)
    )
    state = RetryState("order-17")
    cache.lost = "gone:1"

    def crash():
        [key] = cache._records.keys
        later._store(key, cache._load(key))
        later.lost = "gone:2"
        second.bind(state=state).call(Failing(0))

    first.bind(state=state).call(crash)
    lost = [event for event in kept.events if event.type == "attempt.lost"]
    assert [event.data["worker"] for event in lost] == ["gone:1", "gone:2"]
    assert lost[0].execution_id == lost[1].execution_id


def test_rejected_call_has_the_id_of_its_component_event(kept):
    observer = Observer(sinks=[kept])
    breaker = CircuitBreaker("billing", listeners=[observer])
    breaker.force_open(by="ada", reason="incident 17")
    observed(kept, observer=observer).outcome(lambda: breaker.call(len, "abc"))
    assert types(kept) == [
        "circuit_breaker.state_changed",
        "circuit_breaker.rejected",
        "call.rejected",
    ]
    change, rejected, call = kept.events
    assert (change.severity, change.data["by"]) == (logging.WARNING, "ada")
    assert rejected.execution_id == call.execution_id is not None


def test_nested_executions_share_the_id_of_the_outermost(kept):
    inner = observed(kept, name="inner")
    outer = observed(kept, name="outer")
    outer.outcome(lambda: inner.call(Failing(9)))
    of_inner = [event for event in kept.events if event.subject == "inner"]
    of_outer = [event for event in kept.events if event.subject == "outer"]
    assert {event.root_id for event in of_inner} == {of_outer[0].execution_id}


def test_cancelled_call_has_the_reason(kept):
    async def main():
        task = asyncio.ensure_future(observed(kept).execute_async(lambda _: asyncio.sleep(60)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    assert [(each.type, each.data["reason"]) for each in kept.events] == [
        ("call.cancelled", "manual")
    ]


@pytest.mark.parametrize(("keys", "shown"), [("plain", "order-17"), ("omit", None)])
def test_keys_are_shown_or_omitted(kept, keys, shown):
    template = observed(kept, observer=Observer(sinks=[kept], keys=keys))
    template.bind(state=RetryState("order-17")).outcome(Failing(1))
    assert kept.events[0].data["key"] == shown


def test_hashed_key_depends_on_the_key_of_the_environment(kept, monkeypatch):
    for secret in ("a", "a", "b"):
        monkeypatch.setenv("RETRYTEMPLATE_HASH_KEY", secret)
        template = observed(kept, observer=Observer(sinks=[kept], keys="hash"))
        template.bind(state=RetryState("order-17")).outcome(Failing(1))
    first, second, third = (event.data["key"] for event in kept.events)
    assert first == second != third
    assert "order-17" not in (first, third)


def test_observers_of_a_process_show_the_same_hash_of_a_key(kept, monkeypatch):
    monkeypatch.delenv("RETRYTEMPLATE_HASH_KEY", raising=False)
    for _ in range(2):
        template = observed(kept, observer=Observer(sinks=[kept], keys="hash"))
        template.bind(state=RetryState("order-17")).outcome(Failing(1))
    first, second = (event.data["key"] for event in kept.events)
    assert first == second


def test_failing_sink_and_correlation_change_no_call(kept, caplog):
    class Raises:
        def emit(self, event):
            raise RuntimeError("full")

    def correlation():
        raise KeyError("request")

    observer = Observer(sinks=[Raises(), kept], correlation=correlation)
    assert observed(kept, observer=observer).call(Failing(1)) == "value"
    assert [event.correlation for event in kept.events] == [{}, {}]
    assert sum("the sink" in record.message for record in caplog.records) == 1


class Unprintable:
    def __str__(self):
        raise OSError("no text")


@pytest.mark.parametrize(
    "wrong",
    [
        {"severity": "ERROR"},
        {"severity": True},
        {"data": [1]},
        {"data": {b"cents": 5}},
        {"data": {"order": {b"cents": 5}}},
        {"data": {"cents": 10**5000}},
        {"data": {"order": Unprintable()}},
    ],
)
def test_own_event_that_no_sink_can_write_is_rejected(wrong, kept):
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be"):
        Observer(sinks=[kept]).emit("shop.refund", "order-17", **wrong)
    assert kept.events == ()


def test_names_of_a_correlation_are_text_in_every_event():
    kept = MemorySink()
    Observer(sinks=[kept], correlation=lambda: {17: "ada"}).emit("shop.refund", "order-17")
    assert kept.events[0].correlation == {"17": "ada"}


def test_own_event_has_ids_and_correlation():
    kept = MemorySink()
    observer = Observer(sinks=[kept], correlation=lambda: {"request": "r-1"})
    RetryTemplate().call(lambda: observer.emit("shop.refund", "order-17", data={"cents": 5}))
    (event,) = kept.events
    assert (event.type, event.severity, event.data) == ("shop.refund", logging.INFO, {"cents": 5})
    assert event.correlation == {"request": "r-1"}
    assert event.execution_id == event.root_id is not None


def test_observer_of_all_and_of_one_template_is_notified_once(kept):
    observer = Observer(sinks=[kept])
    add_default(observer)
    try:
        observed(kept, observer=observer).call(Failing(1))
    finally:
        remove_default(observer)
    assert types(kept) == ["retry.scheduled", "call.succeeded_after_retry"]


def test_every_class_of_the_converters_exists_and_names_a_type():
    import retrytemplate.control.breaker.events as breaker
    import retrytemplate.control.hedge.events as hedge
    import retrytemplate.control.rate_limiter.events as limiter
    import retrytemplate.control.switch.events as switch
    from retrytemplate.config import reload
    from retrytemplate.control import events, fallback
    from retrytemplate.control.idempotency import operation
    from retrytemplate.control.propagation import nesting
    from retrytemplate.control.timeout import timeout
    from retrytemplate.observe.component_events import CONVERTERS
    from retrytemplate.workers import events as workers

    modules = (breaker, hedge, limiter, switch, events, fallback, operation, nesting, timeout)
    for name in CONVERTERS:
        assert any(hasattr(module, name) for module in (*modules, workers, reload)), name


def test_steps_give_their_events(kept):
    from retrytemplate.batch.events import Event

    observer = Observer(sinks=[kept])
    for kind in ("started", "read", "failed", "dead_lettered", "ended"):
        observer.on_event(Event(kind=kind, step="load", run_id=7, numbers=[3], attempt=1))
    assert types(kept) == ["run.started", "item.failed", "item.dead_lettered", "run.ended"]
    assert kept.events[1].data["numbers"] == [3]


def test_settled_message_has_the_level_of_its_outcome(kept):
    from retrytemplate.workers.events import MessageSettled

    observer = Observer(sinks=[kept])
    values = {"name": "w", "queue_name": "orders", "key": "m-9", "attempt": 1, "crashes": 0}
    values |= {"action": "requeue", "outcome": "failed", "reason": "x", "error_type": "OSError"}
    observer.on_event(MessageSettled(**values))
    assert (kept.events[0].type, kept.events[0].severity) == ("message.settled", logging.INFO)


@pytest.mark.statement("S4-95")
def test_every_decision_is_an_audit_event_with_the_ids_of_its_call(kept, caplog):
    caplog.set_level("DEBUG")
    observer = Observer(sinks=[kept, LogSink()])
    listeners = [observer]
    breaker = CircuitBreaker("billing", window=Consecutive(1), listeners=listeners)
    fallback = Fallback(lambda: "cached", name="prices", listeners=listeners)
    with KillSwitch(name="main", listeners=listeners) as switch:
        inner = observed(kept, observer=observer, name="inner", policy=SimpleRetryPolicy(1))
        guarded = inner.with_(guards=[switch.guard(segment="billing")])

        def pay():
            switch.stop(segment="billing", reason="leak, incident 4711", by="kim", expires_in=60)
            guarded.outcome(len, "abc")
            fallback.call(Failing(9))
            breaker.call(Failing(9))

        observed(kept, observer=observer, policy=SimpleRetryPolicy(2)).outcome(pay)
    decisions = {event.type: event.root_id for event in kept.events}
    assert decisions.keys() >= {
        *("retry.scheduled", "circuit_breaker.state_changed", "circuit_breaker.rejected"),
        *("fallback.used", "kill_switch.changed", "kill_switch.rejected", "call.failed"),
    }
    assert len({*decisions.values()}) == 1
    assert {each.root_id for each in caplog.records if hasattr(each, "root_id")} == {
        *decisions.values()
    }


def test_levels_leave_out_types_whose_severity_a_value_decides():
    from retrytemplate.observe.observer import LEVELS

    decided = {name for name, kind in EVENT_TYPES.items() if "/" in kind.severity}
    assert "call.cancelled" in decided
    assert LEVELS.keys() == EVENT_TYPES.keys() - decided
    assert {type(level) for level in LEVELS.values()} == {int}
