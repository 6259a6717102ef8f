"""Listeners and clocks of every control object: none changes a call, none runs under a lock."""

import gc
import inspect
import threading
import weakref

import pytest
from attrs import evolve

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
    RateLimiter,
    RequireIdempotency,
    RetryBudget,
    StreamTimeout,
    Timeout,
)
from retrytemplate.control.events import Observable
from retrytemplate.listeners import add_default, remove_default
from retrytemplate.testing import VirtualClock, run
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from retrytemplate.workers import TaskSupervisor, WorkerRuntime


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


def rate_limiter(clock, listeners):
    made = RateLimiter("r", permits=1, max_wait=1.0, clock=clock, listeners=listeners)
    return made, lambda: [outcome(made.call, int) for _ in range(2)] + [outcome(made.acquire, 1)]


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
    RateLimiter: rate_limiter,
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


class Keeps(ControlListener):
    def __init__(self, events=None, name=""):
        self.events = [] if events is None else events
        self.name = name

    def on_event(self, event):
        self.events.append(self.name or type(event).__name__)


@pytest.fixture
def default():
    added = []

    def add(listener):
        add_default(listener)
        added.append(listener)
        return listener

    yield add
    for listener in added:
        remove_default(listener)


@every
def test_default_listener_gets_the_events_of_objects_of_any_age(driver, default):
    own = Keeps()
    _, calls = driver(VirtualClock(), [own])
    kept = default(Keeps())
    calls()
    assert kept.events == own.events != []
    _, later = driver(VirtualClock(), [])
    kept.events.clear()
    later()
    assert kept.events == own.events


@every
def test_default_listener_that_is_also_an_own_one_is_notified_once(driver, default):
    own, alone = Keeps(), Keeps()
    _, calls = driver(VirtualClock(), [alone])
    calls()
    default(own)
    _, calls = driver(VirtualClock(), [own])
    calls()
    assert own.events == alone.events


@pytest.mark.parametrize("kind", DRIVERS, ids=lambda kind: kind.__name__)
def test_every_class_with_listeners_registers_more(kind):
    assert issubclass(kind, Observable)
    assert issubclass(TaskSupervisor, Observable)
    assert issubclass(WorkerRuntime, Observable)


def test_registered_listener_is_notified_in_its_place():
    order = []
    first, second, third = (Keeps(order, name) for name in ("first", "second", "third"))
    made = Timeout(1.0, clock=VirtualClock(), listeners=[second])
    made.register_listener(third)
    made.register_listener(first, 0)
    outcome(made.call, made.clock.advance, 9.0)
    assert order == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: Hedge(0.05, idempotent=True), lambda made: made._recorder.on_failed(1, OSError())),
        (lambda: CircuitBreaker("b"), lambda made: made.force_open(by="kim", reason="test")),
        (
            KillSwitch,
            lambda made: made.stop(
                everything=True, reason="a long reason", by="kim", permanent=True
            ),
        ),
        (
            lambda: RetryBudget.tokens(capacity=1, cost=1),
            lambda made: outcome(made.withdraw, made.withdraw()),
        ),
    ],
    ids=["hedge", "breaker", "switch", "budget"],
)
def test_listener_registered_later_gets_the_events_of_every_part(make, cause):
    made, kept = make(), Keeps()
    made.register_listener(kept)
    cause(made)
    assert len(kept.events) == 1


@pytest.mark.parametrize("index", [True, "first", 1.0])
def test_index_of_a_listener_that_is_not_an_int_is_rejected(index):
    with pytest.raises(TypeError, match="index must be an int or None"):
        Timeout(1.0).register_listener(Keeps(), index)


def test_registered_object_without_on_event_is_rejected():
    with pytest.raises(TypeError, match="listener: each must"):
        Timeout(1.0).register_listener(object())


def test_copy_has_listeners_of_its_own():
    made = Timeout(1.0, clock=VirtualClock(), listeners=[kept := Keeps()])
    copied = evolve(made, seconds=2.0)
    copied.register_listener(Keeps())
    assert (list(made.listeners), len(copied.listeners)) == ([kept], 2)


def test_listeners_do_not_keep_their_object_alive():
    seen = weakref.ref(Timeout(1.0).listeners)
    gc.collect()
    assert seen() is None


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
