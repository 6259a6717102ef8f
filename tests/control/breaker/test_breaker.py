"""A circuit breaker: when it opens, which calls it rejects, when it closes."""

import asyncio
import gc
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from random import Random

import pytest

from retrytemplate import (
    BulkheadFullError,
    CircuitOpenError,
    Deadline,
    ExceptionClassifier,
    MisuseError,
    Rejected,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import (
    CallRejected,
    Calls,
    CircuitBreaker,
    CircuitChanged,
    Consecutive,
    ControlListener,
    LateResult,
    Seconds,
    Strategy,
    Timeout,
)
from retrytemplate.testing import VirtualClock
from tests.support.event_loops import LOOPS
from tests.support.gc_probe import left_by


class Down(Exception):
    """The error of the failing service."""


class Recorded(ControlListener):
    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)

    def changes(self):
        return [(each.before, each.after) for each in self.of(CircuitChanged)]

    def of(self, kind):
        return [each for each in self.events if type(each) is kind]


def failing():
    raise Down


def fine():
    return "fine"


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def listener():
    return Recorded()


@pytest.fixture
def make(clock, listener):
    """A breaker on virtual time that opens after three consecutive failures."""

    def made(**settings):
        usual = {"window": Consecutive(3), "reset_jitter": 0.0, "listeners": [listener]}
        return CircuitBreaker("billing", clock=clock, **usual | settings)

    return made


def call(breaker, *functions):
    """Call each function; return the outcomes."""
    return [breaker.outcome(function) for function in functions]


def opened(breaker):
    call(breaker, failing, failing, failing)
    assert breaker.state == "open"
    return breaker


def half_open(breaker, clock):
    opened(breaker)
    clock.advance(30)
    assert breaker.state == "half_open"
    return breaker


# -- closed ----------------------------------------------------------------------------------------


@pytest.mark.statement("S4-30")
def test_states_follow_the_standard_transitions(make, clock):
    breaker = make(window=Consecutive(5), reset_timeout=60, half_open_calls=3, required_successes=1)
    call(breaker, *[failing] * 4)
    assert breaker.state == "closed"
    call(breaker, failing)
    assert breaker.state == "open"
    clock.advance(59.9)
    assert breaker.state == "open"
    clock.advance(0.1)
    assert breaker.state == "half_open"
    call(breaker, failing)
    assert breaker.state == "open"
    clock.advance(60)
    call(breaker, fine)
    assert breaker.state == "closed"


def test_success_ends_consecutive_failures(make):
    breaker = make()
    call(breaker, failing, failing, fine, failing, failing)
    assert breaker.state == "closed"


@pytest.mark.statement("S4-33")
@pytest.mark.parametrize("order", ["first", "last", "mixed"])
def test_fifteen_failures_in_fifty_calls_open_it_and_fourteen_do_not(make, order):
    breaker = make(window=Calls(50), failure_rate=0.3, minimum_calls=50)
    calls = [failing] * 14 + [fine] * 36
    if order == "last":
        calls.reverse()
    elif order == "mixed":
        Random(17).shuffle(calls)
    call(breaker, *calls)
    assert (breaker.state, breaker.snapshot().failures) == ("closed", 14)
    call(breaker, *[fine] * calls.index(failing))  # as many as are before the first failure
    assert breaker.snapshot().failures == 14
    call(breaker, failing)  # instead of the oldest, which failed
    assert (breaker.state, breaker.snapshot().failures) == ("closed", 14)
    while breaker.snapshot().failures == 14:
        call(breaker, failing)
    assert (breaker.state, breaker.snapshot().failures) == ("open", 15)


def test_failure_rate_is_not_computed_before_minimum_calls(make):
    breaker = make(window=Calls(50), minimum_calls=10, failure_rate=0.5)
    call(breaker, *[failing] * 9)
    assert breaker.state == "closed"
    call(breaker, fine)
    assert breaker.state == "open"


@pytest.mark.statement("S4-33")
def test_time_window_forgets_old_calls(make, clock):
    breaker = make(window=Seconds(timedelta(seconds=10)), minimum_calls=4, failure_rate=0.5)
    call(breaker, failing, failing)
    clock.advance(10)
    call(breaker, fine, fine, failing)
    assert (breaker.state, breaker.snapshot().calls) == ("closed", 3)
    call(breaker, failing)
    assert breaker.state == "open"


def test_slow_calls_open_it_although_they_succeed(make, clock):
    def slow():
        clock.advance(2)
        return "at last"

    breaker = make(window=Calls(10), minimum_calls=4, slow_call=2.0, slow_rate=0.5)
    call(breaker, fine, fine, slow)
    assert (breaker.state, breaker.snapshot().slow) == ("closed", 1)
    call(breaker, slow)
    assert breaker.state == "open"


@pytest.mark.parametrize(
    ("failures", "counted"),
    [
        (Down, {Down}),
        ((Down, KeyError), {Down, KeyError}),
        (lambda exc: isinstance(exc, KeyError), {KeyError}),
        (ExceptionClassifier({LookupError: True, KeyError: False}, default=False), set()),
        ((Exception,), {Down, KeyError}),
        ((Exception, Rejected), {Down, KeyError, BulkheadFullError}),
    ],
)
def test_exception_that_is_not_a_failure_is_not_counted(make, failures, counted):
    for kind in (Down, KeyError, BulkheadFullError):

        def fails(kind=kind):
            raise kind

        breaker = make(failures=failures, window=Calls(3), minimum_calls=1)
        (outcome,) = call(breaker, fails)
        assert type(outcome.exception) is kind
        expected = 1 if kind in counted else 0
        assert (breaker.snapshot().calls, breaker.snapshot().failures) == (expected, expected)


def test_predicate_that_raises_releases_the_permit(make, clock):
    def odd(exc):
        raise ZeroDivisionError

    breaker = half_open(make(half_open_calls=1), clock)
    asking = CircuitBreaker("odd", failures=odd, half_open_calls=1, clock=clock)
    asking._backend.circuit.force_state("half_open", None)  # nothing counts as a failure there
    outcome = asking.outcome(failing)
    assert type(outcome.exception) is ZeroDivisionError
    assert type(outcome.exception.__context__) is Down
    assert (asking.snapshot().probes, breaker.snapshot().probes) == (0, 0)


class Breakable(VirtualClock):
    """A clock that raises after a number of readings; None: never."""

    left = None

    def monotonic(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise ZeroDivisionError
        return super().monotonic()


def probed(clock):
    breaker = CircuitBreaker("billing", window=Consecutive(3), half_open_calls=1, clock=clock)
    opened(breaker)
    clock.advance(60)
    return breaker


@pytest.mark.parametrize("answers", [1, 2])
@pytest.mark.parametrize("ends", [fine, failing])
def test_clock_that_raises_releases_the_permit(answers, ends):
    clock = Breakable()
    breaker = probed(clock)
    clock.left = answers
    with suppress(Down, ZeroDivisionError):
        breaker.call(ends)
    clock.left = None
    assert breaker.snapshot().probes == 0


def test_clock_that_raises_at_the_verdict_releases_the_permit():
    clock = Breakable()
    breaker = probed(clock)
    with pytest.raises(ZeroDivisionError), breaker.permit() as permit:
        clock.left = 0
        permit.success()
    clock.left = None
    assert breaker.snapshot().probes == 0


class Ends(ControlListener):
    """A listener that raises a base exception once it is enabled."""

    on = False

    def on_event(self, event):
        if self.on:
            self.on = False
            raise KeyboardInterrupt


def by_hand(breaker):
    with breaker.permit():
        fine()


async def awaited(breaker):
    async with breaker.permit():
        fine()


@pytest.mark.parametrize(
    "driver",
    [
        lambda breaker: breaker.call(fine),
        lambda breaker: breaker.outcome(fine),
        lambda breaker: breaker.wrap(fine)(),
        by_hand,
        lambda breaker: asyncio.run(breaker.call_async(fine)),
        lambda breaker: asyncio.run(breaker.outcome_async(fine)),
        lambda breaker: asyncio.run(awaited(breaker)),
    ],
    ids=["call", "outcome", "wrapped", "block", "call_async", "outcome_async", "async block"],
)
def test_listener_that_raises_at_admission_releases_the_permit(make, clock, driver):
    ends = Ends()
    breaker = opened(make(half_open_calls=1, required_successes=1, listeners=[ends]))
    clock.advance(breaker.reset_timeout)
    ends.on = True
    with pytest.raises(KeyboardInterrupt):
        driver(breaker)
    assert (breaker.state, breaker.snapshot().probes) == ("half_open", 0)
    driver(breaker)
    assert breaker.state == "closed"


class Chance:
    """A random source that returns one number until it is broken."""

    broken = False

    def random(self):
        if self.broken:
            raise ZeroDivisionError
        return 0.5


def test_random_source_that_raises_keeps_the_previous_open_time(make, clock, listener, caplog):
    chance = Chance()
    breaker = make(
        window=Consecutive(1),
        reset_timeout=10,
        reset_jitter=1.0,
        random=chance,
        half_open_calls=1,
        required_successes=1,
    )
    chance.broken = True
    for _ in range(2):
        assert type(breaker.outcome(failing).exception) is Down
        assert breaker.snapshot().retry_after == 15
        clock.advance(15)
    assert breaker.call(fine) == "fine"
    assert breaker.snapshot().probes == 0
    opens = ("half_open", "open"), ("open", "half_open")
    assert listener.changes() == [("closed", "open"), opens[1], *opens, ("half_open", "closed")]
    assert "the random source of circuit breaker 'billing' failed" in caplog.text


# -- open ------------------------------------------------------------------------------------------


@pytest.mark.statement("S4-31")
def test_open_circuit_calls_nothing(make, clock, listener):
    breaker = opened(make())
    clock.advance(10)
    called = []
    with pytest.raises(CircuitOpenError, match="'billing' is open, for 20 more seconds") as raised:
        breaker.call(called.append, 1)
    assert (raised.value.name, raised.value.retry_after) == ("billing", 20.0)
    outcome = breaker.outcome(called.append, 1)
    assert (type(outcome.exception), outcome.attempts) == (CircuitOpenError, 0)
    assert not called
    assert len(listener.of(CallRejected)) == breaker.snapshot().rejected == 2


def test_every_rejection_raises_a_new_exception(make):
    breaker = opened(make())
    first, second = call(breaker, fine, fine)
    assert first.exception is not second.exception
    assert first.exception.__traceback__ is None


@pytest.mark.statement("S4-34")
@pytest.mark.statement("S4-101")
def test_breakers_of_one_service_do_not_come_back_at_once(clock):
    def waits(seed):
        breaker = CircuitBreaker(
            "billing", window=Consecutive(1), reset_jitter=0.2, clock=clock, random=Random(seed)
        )
        call(breaker, failing)
        return breaker.snapshot().retry_after

    times = [waits(seed) for seed in range(100)]
    assert all(30.0 <= each <= 36.0 for each in times)
    assert len(set(times)) == 100
    assert max(times) - min(times) > 5


@pytest.mark.statement("S4-40")
def test_change_of_the_wall_clock_has_no_effect(listener):
    class Set(VirtualClock):
        def time(self):
            return super().time() + shift

    shift, clock = 0, Set()
    breaker = CircuitBreaker(
        "billing", window=Consecutive(1), reset_timeout=30, reset_jitter=0, clock=clock
    )
    call(breaker, failing)
    shift = 10**6
    assert (breaker.state, breaker.snapshot().retry_after) == ("open", 30)
    shift = -(10**6)
    clock.advance(30)
    assert breaker.state == "half_open"


def test_open_time_is_drawn_again_each_time(make, clock):
    breaker = make(window=Consecutive(1), reset_jitter=1.0, random=Random(17))
    times = []
    for _ in range(5):
        call(breaker, failing)
        times.append(breaker.snapshot().retry_after)
        clock.advance(60)
    assert len(set(times)) == 5


def test_open_time_grows_with_each_failed_probe_up_to_a_maximum(make, clock):
    breaker = make(reset_timeout=10, reset_growth=2.0, reset_maximum=35.0)
    opened(breaker)
    times = []
    for _ in range(4):
        times.append(breaker.snapshot().retry_after)
        clock.advance(times[-1])
        call(breaker, failing)
    assert times == [10, 20, 35, 35]
    clock.advance(35)
    call(breaker, fine, fine, fine, failing, failing, failing)
    assert breaker.snapshot().retry_after == 10  # it had been closed


# -- half-open -------------------------------------------------------------------------------------


@pytest.mark.statement("S4-32")
@pytest.mark.statement("S4-101")
def test_half_open_limits_concurrent_calls(make, clock):
    breaker = half_open(make(half_open_calls=2), clock)
    with breaker.permit(), breaker.permit():
        rejection = breaker.outcome(fine)
        assert type(rejection.exception) is CircuitOpenError
        assert "is half_open" in str(rejection.exception)
    assert breaker.outcome(fine).ok


@pytest.mark.statement("S4-38")
def test_half_open_circuit_closes_after_required_successes(make, clock, listener):
    breaker = half_open(make(half_open_calls=1, required_successes=3), clock)
    call(breaker, fine, fine)
    assert (breaker.state, breaker.snapshot().successes) == ("half_open", 2)
    call(breaker, fine)
    assert breaker.state == "closed"
    assert listener.changes() == [
        ("closed", "open"),
        ("open", "half_open"),
        ("half_open", "closed"),
    ]


def test_failed_probe_opens_the_circuit_again(make, clock):
    breaker = half_open(make(), clock)
    call(breaker, fine, fine, failing)
    assert (breaker.state, breaker.snapshot().retry_after) == ("open", 30)


def test_slow_probe_opens_the_circuit_again(make, clock):
    breaker = half_open(make(slow_call=1.0), clock)
    breaker.call(clock.advance, 1.0)
    assert breaker.state == "open"


@pytest.mark.statement("S4-36")
def test_late_success_changes_nothing(make, clock, listener):
    breaker = make(required_successes=1, half_open_calls=1)
    slow, slower = breaker.permit(), breaker.permit()
    with slower:
        with slow:
            opened(breaker)
        assert breaker.state == "open"
        clock.advance(30)
        probe = breaker.permit().__enter__()
    # That one came in half-open: it closes nothing, and takes no permit.
    assert (breaker.state, breaker.snapshot().probes, breaker.snapshot().late) == (
        "half_open",
        1,
        2,
    )
    probe.failure()
    assert breaker.state == "open"
    assert [each.verdict for each in listener.of(LateResult)] == ["success", "success"]


def test_open_circuit_shows_the_counts_that_opened_it(make, clock):
    breaker = make(window=Seconds(10), minimum_calls=3)
    call(breaker, failing, failing, failing)
    clock.advance(25)
    shown = breaker.snapshot()
    assert (shown.state, shown.calls, shown.failures) == ("open", 3, 3)


def test_late_result_of_a_wrapped_function_changes_nothing(make):
    breaker = make(window=Consecutive(1))

    @breaker.wrap
    def outer():
        call(breaker, failing)
        return "late"

    assert outer() == "late"
    assert (breaker.state, breaker.snapshot().late) == ("open", 1)


async def test_late_result_of_a_wrapped_coroutine_is_reported(make, listener):
    breaker = make(window=Consecutive(1))

    @breaker.wrap
    async def outer():
        call(breaker, failing)

    await outer()
    assert breaker.snapshot().late == 1
    assert [each.verdict for each in listener.of(LateResult)] == ["success"]


def test_result_of_an_expired_permit_is_reported(make, clock, listener):
    breaker = half_open(make(half_open_calls=1, permit_timeout=5), clock)
    with breaker.permit():
        clock.advance(5)
        breaker.permit().__enter__()
    assert [each.verdict for each in listener.of(LateResult)] == ["success"]


def interrupts():
    raise KeyboardInterrupt


@pytest.mark.parametrize("driver", ["call", "outcome"])
@pytest.mark.parametrize(("state", "ends"), [("open", fine), ("closed", interrupts)])
def test_rejection_and_interruption_leave_no_cycle(make, driver, state, ends):
    breaker = opened(make()) if state == "open" else make()

    def ended():
        with suppress(CircuitOpenError, KeyboardInterrupt):
            getattr(breaker, driver)(ends)

    assert left_by(ended) == 0


@pytest.mark.statement("S4-37")
@pytest.mark.parametrize("end", [KeyboardInterrupt, asyncio.CancelledError, CancelledError])
def test_cancelled_probe_releases_its_permit_and_decides_nothing(make, clock, end):
    breaker = half_open(make(half_open_calls=1, required_successes=1), clock)
    with pytest.raises(end), breaker.permit():
        raise end
    snapshot = breaker.snapshot()
    assert (snapshot.state, snapshot.probes, snapshot.successes) == ("half_open", 0, 0)
    call(breaker, fine)
    assert breaker.state == "closed"


LIMITS = {
    "timeout": lambda: Timeout(0.001),
    "attempt timeout": lambda: RetryTemplate(SimpleRetryPolicy(1), attempt_timeout=0.001),
}


def ways_in(breaker, hangs):
    async def in_a_block():
        with breaker.permit():
            await hangs()

    return {
        "called": lambda: breaker.call_async(hangs),
        "wrapped": breaker.wrap(hangs),
        "outcome": lambda: breaker.outcome_async(hangs),
        "block": in_a_block,
    }


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("driver", ["called", "wrapped", "outcome", "block"])
def test_calls_cut_by_an_outer_timeout_are_failures(loop, limit, driver):
    breaker = CircuitBreaker("service", window=Consecutive(2))
    hangs = ways_in(breaker, loop.forever)[driver]

    async def main():
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await limit().call_async(hangs)

    loop.run(main)
    assert breaker.state == "open"


@pytest.mark.parametrize("driver", ["called", "wrapped", "outcome", "block"])
def test_call_with_tasks_cut_by_the_timeout_is_a_failure(driver):
    loop = LOOPS[1]  # where each task receives the cancellation
    breaker = CircuitBreaker("service", window=Consecutive(2))

    async def inner():
        await loop.together(loop.forever, loop.forever)

    async def hangs():
        await loop.together(inner, loop.forever)

    async def main():
        with pytest.raises(TimeoutError):
            await Timeout(0.001).call_async(ways_in(breaker, hangs)[driver])

    loop.run(main)
    assert breaker.snapshot().failures == 1


@pytest.mark.parametrize("loop", LOOPS)
def test_timeout_outside_of_failures_decides_nothing(loop):
    breaker = CircuitBreaker("service", window=Consecutive(1), failures=ConnectionError)

    async def main():
        with pytest.raises(TimeoutError):
            await Timeout(0.001).call_async(breaker.call_async, loop.forever)

    loop.run(main)
    assert (breaker.state, breaker.snapshot().calls) == ("closed", 0)


@pytest.mark.parametrize("loop", LOOPS)
def test_cancellation_before_the_deadline_is_not_a_failure(loop):
    breaker, begun = CircuitBreaker("service", window=Consecutive(1)), []

    async def hangs():
        begun.append(True)
        await loop.forever()

    async def main():
        with Deadline(60):
            await loop.cancelled(lambda: breaker.call_async(hangs), lambda: begun)

    loop.run(main)
    assert (breaker.state, breaker.snapshot().calls) == ("closed", 0)


def failure_beside(*others):
    return BaseExceptionGroup("both", [Down(), *others])


INTERRUPTIONS = [asyncio.CancelledError, CancelledError, KeyboardInterrupt]


@pytest.mark.parametrize("kind", INTERRUPTIONS)
@pytest.mark.parametrize("failures", [Exception, Down])
def test_failure_in_group_with_cancellation_counts(kind, failures):
    breaker = CircuitBreaker("service", window=Consecutive(1), failures=failures)
    group = failure_beside(BaseExceptionGroup("inner", [kind()]))
    with pytest.raises(BaseExceptionGroup) as raised, breaker.permit():
        raise group
    assert (raised.value, breaker.state) == (group, "open")


def test_failure_in_group_with_cancellation_not_listed_is_ignored():
    breaker = CircuitBreaker("service", window=Consecutive(1), failures=ConnectionError)
    with pytest.raises(BaseExceptionGroup), breaker.permit():
        raise failure_beside(KeyboardInterrupt())
    assert (breaker.state, breaker.snapshot().calls) == ("closed", 0)


@pytest.mark.parametrize("others", [[], [KeyboardInterrupt()]])
@pytest.mark.parametrize(("failures", "state"), [(Exception, "closed"), (CircuitOpenError, "open")])
def test_group_of_rejections_counts_where_failures_names_them(others, failures, state):
    breaker = CircuitBreaker("service", window=Consecutive(1), failures=failures)
    with pytest.raises(BaseExceptionGroup), breaker.permit():
        raise BaseExceptionGroup("rejected", [CircuitOpenError("no"), *others])
    assert breaker.state == state


@pytest.mark.parametrize("driver", ["called", "wrapped", "outcome", "block"])
def test_asyncio_group_with_failure_counts_and_propagates(driver):
    breaker = CircuitBreaker("service", window=Consecutive(1))

    async def fails():
        raise failure_beside(asyncio.CancelledError())

    with pytest.raises(BaseExceptionGroup):
        asyncio.run(ways_in(breaker, fails)[driver]())
    assert breaker.state == "open"


@pytest.mark.parametrize("driver", ["called", "wrapped", "outcome", "block"])
def test_trio_cancelled_call_with_failing_task_counts_as_failure(driver):
    loop = LOOPS[1]
    breaker, begun = CircuitBreaker("service", window=Consecutive(1)), []

    async def fails_when_cancelled():
        try:
            begun.append(True)
            await loop.forever()
        finally:
            raise Down

    async def calls():
        await loop.together(fails_when_cancelled, loop.forever)

    async def main():
        with pytest.raises(BaseExceptionGroup) as raised:
            await loop.cancelled(ways_in(breaker, calls)[driver], lambda: begun)
        assert raised.group_contains(Down)

    loop.run(main)
    assert breaker.state == "open"


def test_probe_without_an_end_loses_its_permit(make, clock):
    breaker = half_open(make(half_open_calls=1, required_successes=1, permit_timeout=5), clock)
    lost = breaker.permit().__enter__()
    clock.advance(4.9)
    assert not breaker.outcome(fine).ok
    clock.advance(0.1)
    probe = breaker.permit().__enter__()
    lost.success()
    assert (breaker.state, breaker.snapshot().late, breaker.snapshot().expired) == (
        "half_open",
        1,
        1,
    )
    probe.success()
    assert breaker.state == "closed"


def test_result_is_recorded_once(make):
    breaker = make(window=Calls(9), minimum_calls=9)
    with breaker.permit() as permit:
        permit.failure()
        permit.success()
    with pytest.raises(Down), breaker.permit() as permit:
        permit.ignore()
        raise Down
    with breaker.permit() as permit:
        permit.cancel()
    assert (breaker.snapshot().calls, breaker.snapshot().failures) == (1, 1)


# -- by hand ---------------------------------------------------------------------------------------


def test_forced_open_rejects_until_reset(make, clock, listener):
    breaker = make()
    breaker.force_open(by="kim", reason="the provider asked for it")
    clock.advance(10**6)
    rejection = breaker.outcome(fine).exception
    assert (type(rejection), rejection.retry_after) == (CircuitOpenError, None)
    assert (breaker.snapshot().by, breaker.snapshot().reason) == (
        "kim",
        "the provider asked for it",
    )
    breaker.reset(by="lee", reason="they are back")
    assert breaker.outcome(fine).ok
    assert breaker.snapshot().by is None
    assert [(each.after, each.by) for each in listener.of(CircuitChanged)] == [
        ("forced_open", "kim"),
        ("closed", "lee"),
    ]


def test_forced_state_can_expire(make, clock):
    breaker = make()
    breaker.force_open(by="kim", reason="maintenance", seconds=timedelta(minutes=1))
    assert breaker.outcome(fine).exception.retry_after == 60
    clock.advance(60)
    assert breaker.outcome(fine).ok
    assert breaker.state == "closed"


def test_disabled_breaker_counts_nothing_and_measuring_never_opens(make):
    breaker = make()
    breaker.disable(by="kim", reason="a load test")
    call(breaker, *[failing] * 5)
    assert (breaker.state, breaker.snapshot().calls) == ("disabled", 0)
    breaker.only_measure(by="kim", reason="what would it do?")
    call(breaker, *[failing] * 5)
    assert (breaker.state, breaker.snapshot().failures) == ("metrics_only", 5)


# -- entry points ----------------------------------------------------------------------------------


def test_breaker_is_a_strategy(make):
    assert isinstance(make(), Strategy)


class Service:
    def __init__(self, breaker):
        self.breaker = breaker

    def ask(self, number, *, by=1):
        return number * by


def test_wrapped_function_keeps_its_signature_and_kind(make):
    breaker = make()

    @breaker.wrap
    def double(number: int, *, by: int = 2) -> int:
        """Multiply."""
        return number * by

    assert (double(4), double(4, by=3), double.__name__, double.__doc__) == (
        8,
        12,
        "double",
        "Multiply.",
    )

    class Shop:
        @breaker.wrap
        def name(self):
            return type(self).__name__

        @breaker.wrap
        @classmethod
        def kind(cls):
            return cls.__name__

    assert (Shop().name(), Shop.kind(), Shop().kind()) == ("Shop", "Shop", "Shop")


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])
def test_asynchronous_calls_are_counted_when_they_end(make, loop):
    breaker = make()

    async def down():
        await loop.checkpoint()
        raise Down

    async def up():
        await loop.checkpoint()
        return "up"

    async def main():
        assert await breaker.call_async(up) == "up"
        assert await breaker.call_async(fine) == "fine"
        assert (await breaker.outcome_async(up)).value == "up"
        wrapped = breaker.wrap(down)
        for _ in range(2):
            with pytest.raises(Down):
                await wrapped()
        assert type((await breaker.outcome_async(down)).exception) is Down
        for driver in (wrapped, lambda: breaker.call_async(down)):
            with pytest.raises(CircuitOpenError):
                await driver()
        assert (await breaker.outcome_async(down)).attempts == 0
        with pytest.raises(CircuitOpenError):
            async with breaker.permit():
                """Not reached."""

    loop.run(main)


@pytest.mark.parametrize("driver", ["call", "outcome", "wrap"])
def test_awaitable_result_is_rejected_in_a_synchronous_call(make, driver):
    breaker = make()

    async def up():
        """Not awaited."""

    def hidden():
        return up()

    with pytest.raises(MisuseError, match=r"use call_async\(\)"):
        breaker.wrap(hidden)() if driver == "wrap" else getattr(breaker, driver)(hidden)
    assert breaker.snapshot().calls == 0


def test_generators_and_classes_are_not_wrapped(make):
    def numbers():
        yield 1

    async def streamed():
        yield 1

    for wrong in (numbers, streamed, Service, 17):
        with pytest.raises(TypeError, match=r"wrap\(\) takes"):
            make().wrap(wrong)


def test_open_circuit_is_not_retried(make):
    breaker = make(window=Consecutive(1))
    template = RetryTemplate(SimpleRetryPolicy(5))
    calls = []

    @template.wrap
    @breaker.wrap
    def ask():
        calls.append(1)
        raise Down

    with pytest.raises(CircuitOpenError):
        ask()
    assert (len(calls), breaker.snapshot().rejected) == (1, 1)


# -- listeners -------------------------------------------------------------------------------------


class Breaks(ControlListener):
    def on_event(self, event):
        raise ZeroDivisionError


def test_listener_that_raises_changes_nothing(make, listener, caplog):
    breaker = make(listeners=[Breaks(), listener])
    outcomes = call(breaker, failing, failing, failing, fine)
    assert [type(each.exception) for each in outcomes] == [Down, Down, Down, CircuitOpenError]
    assert len(listener.events) == 2
    assert "raised an exception, which is ignored" in caplog.text


def test_listener_may_read_the_breaker(make):
    class Asks(ControlListener):
        def on_event(self, event):
            self.seen = (event.after, breaker.state)

    asks = Asks()
    breaker = make(listeners=[asks])
    opened(breaker)
    assert asks.seen == ("open", "open")


def test_no_lock_is_held_while_user_code_runs(clock):
    """Another thread can read the breaker while a function, a predicate or a listener runs."""
    queries = []

    def elsewhere(who):
        with ThreadPoolExecutor(1) as pool:
            if made:
                pool.submit(made["breaker"].snapshot).result(10)
                queries.append(who)
        return True

    class Chance:
        def random(self):
            elsewhere("random")
            return 0.0

    class Listens(ControlListener):
        def on_event(self, event):
            elsewhere("listener")

    made = {}
    made["breaker"] = breaker = CircuitBreaker(
        "billing",
        window=Consecutive(1),
        failures=lambda exc: elsewhere("predicate"),
        random=Chance(),
        listeners=[Listens()],
        clock=clock,
    )
    breaker.call(elsewhere, "function")
    call(breaker, failing)
    assert queries == ["function", "predicate", "random", "listener"]


def test_failure_is_not_referenced_after_the_call(make):
    breaker = make()
    gone = []

    def fails():
        failure = Down()
        gone.append(weakref.ref(failure))
        raise failure

    for driver in (breaker.call, breaker.wrap(fails)):
        with pytest.raises(Down):
            driver(fails) if driver == breaker.call else driver()
    gc.collect()
    assert [each() for each in gone] == [None, None]


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"name": ""}, "name must be a non-blank str, got ''"),
        ({"name": None}, "name must be a non-blank str"),
        ({"window": 50}, "window must be Calls, Seconds or Consecutive, got 50"),
        ({"minimum_calls": 0}, "minimum_calls must be"),
        ({"minimum_calls": 51}, "minimum_calls must be at most the 50 calls of the window"),
        ({"failure_rate": 0}, "failure_rate must be a share above 0 and up to 1, got 0"),
        ({"failure_rate": 1.1}, "failure_rate must be a share"),
        ({"failure_rate": "30%"}, "failure_rate must be a share"),
        ({"failures": 17}, "17"),
        ({"slow_call": 0}, "slow_call must be"),
        ({"slow_call": 1.0, "slow_rate": 0}, "slow_rate must be a share"),
        ({"slow_rate": 0.5}, "slow_rate must be left out without slow_call"),
        ({"reset_timeout": 0}, "reset_timeout must be"),
        ({"reset_timeout": float("nan")}, "reset_timeout must be"),
        ({"reset_jitter": -0.1}, "reset_jitter must be"),
        ({"reset_jitter": float("inf")}, "reset_jitter must be"),
        ({"reset_growth": 0.5}, "reset_growth must be"),
        ({"reset_growth": 101}, "reset_growth must be between 1 and 100"),
        ({"half_open_calls": 0}, "half_open_calls must be"),
        ({"required_successes": 1.5}, "required_successes must be"),
        ({"permit_timeout": -1}, "permit_timeout must be"),
        ({"window": Consecutive(3), "failure_rate": 0.5}, "failure_rate must be left out with"),
        ({"window": Consecutive(3), "minimum_calls": 5}, "consecutive failures have no rate"),
        ({"listeners": [17]}, "listeners"),
        ({"clock": 17}, "clock must"),
        ({"random": 17}, "random must"),
    ],
)
def test_breaker_with_wrong_settings_is_rejected(settings, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        CircuitBreaker(**{"name": "billing", **settings})


@pytest.mark.parametrize(
    ("kind", "value"), [(Calls, 0), (Calls, 2.0), (Seconds, 0), (Seconds, "1"), (Consecutive, -1)]
)
def test_empty_window_is_rejected(kind, value):
    with pytest.raises((TypeError, ValueError), match="must be"):
        kind(value)


def test_manual_state_requires_a_reason(make):
    breaker = make()
    for wrong in ({"by": "", "reason": "x"}, {"by": "kim", "reason": " " * 0}, {"by": 1}):
        with pytest.raises(TypeError):
            breaker.force_open(**{"reason": "y", **wrong})
    with pytest.raises(ValueError, match="seconds must be"):
        breaker.disable(by="kim", reason="y", seconds=-1)
    assert breaker.state == "closed"


def test_asynchronous_listener_is_rejected():
    class Awaited(ControlListener):
        async def on_event(self, event):
            """Not awaited."""

    with pytest.raises(TypeError, match="must be synchronous"):
        CircuitBreaker("billing", listeners=[Awaited()])


@pytest.mark.statement("S4-41")
def test_gauge_is_above_0_in_rejecting_states(make, clock):
    breaker = make()
    gauges = [breaker.snapshot().gauge]
    opened(breaker)
    gauges.append(breaker.snapshot().gauge)
    clock.advance(30)
    gauges.append(breaker.snapshot().gauge)
    for change in (breaker.force_open, breaker.disable, breaker.only_measure):
        change(by="kim", reason="a test")
        gauges.append(breaker.snapshot().gauge)
    assert gauges == [0, 2, 1, 3, -1, -2]


def test_setting_of_a_breaker_cannot_be_assigned():
    breaker = CircuitBreaker("billing")
    with pytest.raises(AttributeError, match=r"reset_timeout of a CircuitBreaker .*; make another"):
        breaker.reset_timeout = 1.0
    assert breaker.reset_timeout == 30.0
