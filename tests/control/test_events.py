"""Listeners and clocks of every control object: none changes a call, none runs under a lock."""

import inspect
import threading

import pytest

from retrytemplate import RetryTemplate, SimpleRetryPolicy, control
from retrytemplate.control import (
    Bulkhead,
    CircuitBreaker,
    Consecutive,
    ControlListener,
    Fallback,
    Hedge,
    KillSwitch,
    NestedRetries,
    Operations,
    RequireIdempotency,
    RetryBudget,
    StreamTimeout,
    Timeout,
)
from retrytemplate.testing import VirtualClock, run
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT


class Down(Exception):
    """The error of a failing call."""


def failing(*_):
    raise Down("no answer")


def outcome(function, *args):
    """The outcome of the call, as comparable values."""
    try:
        return function(*args)
    except Exception as exc:
        return type(exc), str(exc), getattr(exc, "__notes__", []), repr(exc.__context__)


def breaker(clock, listeners):
    settings = {"window": Consecutive(1), "reset_jitter": 0.0}
    made = CircuitBreaker("b", clock=clock, listeners=listeners, **settings)
    return made, lambda: [outcome(made.call, each) for each in (int, failing, int)]


def bulkhead(clock, listeners):
    made = Bulkhead("b", limit=1, queue=0, clock=clock, listeners=listeners)

    def calls():
        made.resize(2, over=60.0)
        with made.slot():
            return [outcome(made.call, int)]

    return made, calls


def budget(clock, listeners):
    made = RetryBudget.tokens(capacity=5, clock=clock, listeners=listeners)
    template = RetryTemplate(SimpleRetryPolicy(3), guards=[made], clock=clock)
    return made, lambda: [outcome(template.call, failing), made.refund()]


def fallback(clock, listeners):
    made = Fallback(lambda: "cached", clock=clock, listeners=listeners)
    alone = Fallback(failing, clock=clock, listeners=listeners)
    return made, lambda: [outcome(made.call, failing), outcome(alone.call, failing)]


def hedge(clock, listeners):
    made = Hedge(1.0, idempotent=True, clock=clock, listeners=listeners)
    takes = iter([60.0, 0.5])

    async def slow():
        await clock.sleep_async(seconds := next(takes))
        return seconds

    return made, lambda: [run(made.call_async(slow), clock=clock)]


def kill_switch(clock, listeners):
    made = KillSwitch(clock=clock, listeners=listeners)
    guard = made.guard(segment="billing")
    stop = {"segment": "billing", "reason": "charged twice, incident 9", "by": "kim"}

    def calls():
        made.stop(**stop, permanent=True)
        return [outcome(guard.call, int)]

    return made, calls


def nested_retries(clock, listeners):
    template = RetryTemplate(SimpleRetryPolicy(3), guards=[NestedRetries(listeners=listeners)])
    return None, lambda: [outcome(template.call, template.call, failing)]


def operations(clock, listeners):
    made = Operations(listeners=listeners)
    return None, lambda: [made.call("key", lambda: {"number": 17}) for _ in range(2)]


def idempotency(clock, listeners):
    guard = RequireIdempotency(listeners=listeners)
    template = RetryTemplate(SimpleRetryPolicy(3), guards=[guard])
    return None, lambda: [outcome(template.call, failing)]


def stream(clock, listeners):
    made = StreamTimeout(first=1.0, clock=clock, listeners=listeners)

    async def items():
        await clock.sleep_async(9.0)
        yield 17

    async def reads():
        return [each async for each in made.over(items())]

    return None, lambda: [outcome(lambda: run(reads(), clock=clock))]


def timeout(clock, listeners):
    made = Timeout(1.0, clock=clock, listeners=listeners)
    return None, lambda: [outcome(made.call, clock.advance, 9.0)]


DRIVERS = {
    Bulkhead: bulkhead,
    CircuitBreaker: breaker,
    Fallback: fallback,
    Hedge: hedge,
    KillSwitch: kill_switch,
    NestedRetries: nested_retries,
    Operations: operations,
    RequireIdempotency: idempotency,
    RetryBudget: budget,
    StreamTimeout: stream,
    Timeout: timeout,
}

every = pytest.mark.parametrize(
    "driver", list(DRIVERS.values()), ids=lambda driver: driver.__name__
)


def test_table_covers_every_class_with_listeners():
    parts = [getattr(control, name) for name in control.__all__]
    classes = [part for part in parts if isinstance(part, type)]
    assert {
        each
        for each in classes
        if "__init__" in dir(each) and "listeners" in inspect.signature(each.__init__).parameters
    } == DRIVERS.keys()


class Breaks(ControlListener):
    def __init__(self):
        self.events = 0

    def on_event(self, event):
        self.events += 1
        raise ZeroDivisionError("the listener")


@every
def test_listener_that_raises_does_not_change_the_result(driver, caplog):
    _, usual = driver(VirtualClock(), [])
    breaks = Breaks()
    _, disturbed = driver(VirtualClock(), [breaks, Breaks()])
    assert disturbed() == usual()
    assert breaks.events > 0
    assert "raised an exception, which is ignored" in caplog.text


def is_free(part):
    """Whether another thread can use the object at this time."""
    thread = threading.Thread(target=part.snapshot, daemon=True)
    thread.start()
    thread.join(JOIN_TIMEOUT)
    return not thread.is_alive()


LOOKED_AT = [driver for part, driver in DRIVERS.items() if hasattr(part, "snapshot")]
looked_at = pytest.mark.parametrize("driver", LOOKED_AT, ids=lambda driver: driver.__name__)


@looked_at
def test_listener_is_notified_without_a_lock(driver):
    seen = []

    class Looks(ControlListener):
        def on_event(self, event):
            seen.append(all(seen) and is_free(made))

    made, calls = driver(VirtualClock(), [Looks()])
    calls()
    assert seen
    assert all(seen)


@looked_at
def test_clock_is_read_without_a_held_lock(driver):
    seen = []

    class Looks(VirtualClock):
        def monotonic(self):
            if made is not None and threading.current_thread() is main:
                seen.append(all(seen) and is_free(made))
            return super().monotonic()

    made, main = None, threading.current_thread()
    made, calls = driver(Looks(), [])
    calls()
    assert seen
    assert all(seen)
