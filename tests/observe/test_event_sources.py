"""Events of executions and control objects: a scenario for each type, sync and async."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from retrytemplate import (
    FixedBackoff,
    NoBackoff,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import (
    Bulkhead,
    CircuitBreaker,
    Consecutive,
    Fallback,
    Hedge,
    KillSwitch,
    NestedRetries,
    Operations,
    RateLimiter,
    RequireIdempotency,
    RetryBudget,
    Timeout,
)
from retrytemplate.observe import EVENT_TYPES
from retrytemplate.observe.event_types import COMPONENTS, EXECUTIONS
from retrytemplate.testing import VirtualClock, capture_events
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.control.switch.shared import SharedStore
from tests.support.failing_cache import Down


class Fails:
    """Fails a number of times, then returns."""

    def __init__(self, times=99):
        self.times = times

    def __call__(self):
        self.times -= 1
        if self.times >= 0:
            raise OSError("down")
        return "value"


def call_sync(made, function, inside=None):
    with suppress(Exception):
        made.call(function if inside is None else inside.wrap(function))


def call_async(made, function, inside=None):
    async def awaited():
        return function()

    with suppress(Exception):
        asyncio.run(made.call_async(awaited if inside is None else inside.wrap(awaited)))


def template(*guards, attempts=2, **settings):
    values = {"name": "charge", "clock": VirtualClock(), "backoff": FixedBackoff(1.0)} | settings
    return RetryTemplate(SimpleRetryPolicy(attempts, retry_on=OSError), guards=guards, **values)


def calls(make, failures, times=1, inside=lambda: None):
    """Call a function that fails some times through the object that *make* returns."""

    def main(call):
        made, function, around = make(), Fails(failures), inside()
        for _ in range(times):
            call(made, function, around)

    return main


def deliver(down=lambda step, record: False, lost=None, failures=0):
    """Deliver a message to a template with a cache."""

    def main(call):
        cache = Down(down)
        cache.lost = lost
        made = template(cache=cache, backoff=NoBackoff()).bind(state=RetryState("m-9"))
        call(made, Fails(failures))

    return main


def overrun(call):
    clock = VirtualClock()
    call(template(clock=clock, attempt_timeout=1.0), lambda: clock.advance(2.0))


def open_breaker():
    breaker = CircuitBreaker("billing")
    breaker.force_open(by="ada", reason="incident 17")
    return breaker


def late_result(call):
    breaker = CircuitBreaker("billing", window=Consecutive(1))
    with breaker.permit():
        call(breaker, Fails())


def full_bulkhead(call):
    bulkhead = Bulkhead("llm", limit=1, max_wait=0.0)
    with bulkhead.slot():
        call(bulkhead, Fails(0))


def empty_limiter():
    limiter = RateLimiter("api", permits=1, per=60.0, clock=VirtualClock())
    limiter.acquire()
    return limiter


def stopped_switch(call):
    with KillSwitch(name="main") as switch:
        switch.stop(segment="billing", reason="leak, incident 4711", by="kim", expires_in=60)
        call(template(switch.guard(segment="billing")), Fails(0))


def lost_store(call):
    clock = VirtualClock()
    store = SharedStore(clock=clock)
    with KillSwitch(store, 5.0, clock=clock) as switch:
        for store.down in (True, False):
            clock.advance(5.0)
            call(template(switch.guard(segment="billing")), Fails(0))


def exceeded(call):
    clock = VirtualClock()
    limit = Timeout(1.0, on_late_result="discard", clock=clock)
    call(limit, lambda: clock.advance(2.0))


class Keyed:
    """The calls of one idempotent operation."""

    def __init__(self, cache=None):
        self.operations = Operations(cache)

    def call(self, function):
        return self.operations.call("order-17", function)

    async def call_async(self, function):
        return await self.operations.call_async("order-17", function)


def unrecorded():
    return Keyed(Down(lambda step, record: step == "succeed"))


def nested():
    return template(NestedRetries(name="one layer"), backoff=NoBackoff())


def empty_budget():
    budget = RetryBudget.tokens(capacity=5, cost=5, name="shop")
    budget.withdraw()
    return budget


def poor():
    return template(empty_budget())


SCENARIOS = {
    "retry.scheduled": calls(template, 1),
    "retry.deferred": deliver(failures=1),
    "attempt.lost": deliver(lost="gone:1"),
    "attempt.overrun": overrun,
    "call.succeeded_after_retry": calls(template, 1),
    "call.recovered": calls(lambda: template(recovery=lambda context: "other"), 9),
    "call.failed": calls(template, 9),
    "call.rejected": calls(template, 0, inside=open_breaker),
    "circuit_breaker.rejected": calls(open_breaker, 0),
    "bulkhead.rejected": full_bulkhead,
    "rate_limiter.rejected": calls(empty_limiter, 0),
    "kill_switch.rejected": stopped_switch,
    "idempotency.rejected": calls(lambda: template(RequireIdempotency()), 9),
    "retry_budget.rejected": calls(poor, 9),
    "nesting.rejected": calls(nested, 9, inside=nested),
    "circuit_breaker.state_changed": calls(
        lambda: CircuitBreaker("shop", window=Consecutive(1)), 9
    ),
    "circuit_breaker.late_result": late_result,
    "timeout.exceeded": exceeded,
    "fallback.used": calls(lambda: Fallback(lambda: "other"), 9),
    "operation.replayed": calls(Keyed, 0, times=2),
    "operation.outcome_unknown": calls(Keyed, 1, times=2),
    "operation.not_recorded": calls(unrecorded, 0),
    "store.unavailable": deliver(lambda step, record: step == "fail", failures=1),
    "store.available": lost_store,
    "kill_switch.changed": stopped_switch,
}


def checked(events, kind):
    """The events of a type, all with the keys and a severity of the table."""
    for event in events:
        of_table = EVENT_TYPES[event.type]
        assert event.data.keys() <= {*of_table.keys}
        assert logging.getLevelName(event.severity) in of_table.severity.split("/")
        assert event.subject
    return [event for event in events if event.type == kind]


@pytest.mark.parametrize("call", [call_sync, call_async], ids=["sync", "async"])
@pytest.mark.parametrize("kind", SCENARIOS)
def test_type_of_the_table_occurs_in_a_scenario(kind, call):
    with capture_events() as captured:
        SCENARIOS[kind](call)
    assert checked(captured.events, kind)


def test_every_type_of_executions_and_components_has_a_scenario():
    others = {each for each in COMPONENTS if each.startswith("hedge.")}
    others |= {"call.cancelled", "task_supervisor.rejected"}  # of tasks
    assert others | {*SCENARIOS} == {*EXECUTIONS, *COMPONENTS}


class SecondAnswers:
    """The first call waits until it is over; the second one returns."""

    def __init__(self):
        self.calls, self.over = 0, threading.Event()

    def __call__(self):
        self.calls += 1
        if self.calls == 1:
            self.over.wait(JOIN_TIMEOUT)

    async def answer(self):
        self.calls += 1
        if self.calls == 1:
            await asyncio.sleep(JOIN_TIMEOUT)


def hedged_sync(function, **settings):
    with ThreadPoolExecutor(2) as pool:
        with suppress(OSError):
            Hedge(idempotent=True, executor=pool, **settings).call(function)
        getattr(function, "over", threading.Event()).set()


def hedged_async(function, **settings):
    async def awaited():
        return function()

    hedge = Hedge(idempotent=True, **settings)
    with suppress(OSError):
        asyncio.run(hedge.call_async(getattr(function, "answer", awaited)))


def fails_once():
    return Fails(1)


def poor_hedge():
    return {"delay": JOIN_TIMEOUT, "budget": empty_budget()}


@pytest.mark.parametrize(
    ("call", "function", "settings", "types"),
    [
        (hedged_sync, SecondAnswers, {"delay": 0.0}, {"started", "won", "attempt_abandoned"}),
        (hedged_async, SecondAnswers, {"delay": 0.0}, {"started", "won"}),
        (hedged_sync, fails_once, {"delay": JOIN_TIMEOUT}, {"won", "attempt_failed"}),
        (hedged_async, fails_once, {"delay": JOIN_TIMEOUT}, {"won", "attempt_failed"}),
        (hedged_sync, Fails, poor_hedge(), {"rejected"}),
        (hedged_async, Fails, poor_hedge(), {"rejected"}),
    ],
)
def test_hedged_call_has_its_events(call, function, settings, types):
    with capture_events() as captured:
        call(function(), **settings)
    found = {event.type for event in captured.events if checked([event], event.type)}
    assert {f"hedge.{each}" for each in types} <= found
