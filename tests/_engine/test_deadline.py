"""A deadline: its remaining time, its end, and the reaction of a template."""

import asyncio
import weakref
from datetime import timedelta

import pytest

from retrytemplate import Deadline, DeadlineExceededError, Guard, MisuseError
from retrytemplate.testing import VirtualClock, run, run_trio
from tests.support.gc_probe import left_by, no_collector
from tests.support.runners import Script, every_driver, made


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.mark.statement("S1-30")
def test_deadline_is_expired_when_no_time_remains(clock):
    deadline = Deadline.after(2.0, clock=clock)
    assert not deadline.expired()
    clock.advance(1.5)
    assert (deadline.remaining(), deadline.expired()) == (0.5, False)
    clock.advance(0.5)
    assert (deadline.remaining(), deadline.expired()) == (0.0, True)
    clock.advance(1.0)
    assert (deadline.remaining(), deadline.expired()) == (0.0, True)


def test_deadline_does_not_run_before_it_is_entered(clock):
    deadline = Deadline(timedelta(seconds=2), clock=clock)
    clock.advance(3.0)
    assert (deadline.remaining(), deadline.expired()) == (2.0, False)
    with deadline:
        assert (deadline.remaining(), deadline.expired()) == (2.0, False)


def test_deadline_of_zero_seconds_is_expired_from_the_start(clock):
    deadline = Deadline(0, clock=clock)
    assert deadline.expired()
    with deadline:
        assert deadline.expired()


def test_infinite_deadline_never_expires(clock):
    deadline = Deadline.after(float("inf"), clock=clock)
    clock.advance(1e9)
    assert not deadline.expired()


@pytest.mark.statement("S1-34")
def test_inner_deadline_expires_with_the_outer_one(clock):
    with Deadline(1.0, clock=clock) as outer, Deadline(5.0, clock=clock) as inner:
        clock.advance(1.0)
        assert (outer.expired(), inner.expired()) == (True, True)


def test_deadline_cannot_be_entered_twice(clock):
    deadline = Deadline.after(2.0, clock=clock)
    with pytest.raises(MisuseError, match="create one"), deadline:
        pytest.fail("it was entered")


def test_deadline_repr_has_the_remaining_time(clock):
    deadline = Deadline.after(2.0, clock=clock)
    clock.advance(0.5)
    assert repr(deadline) == "<Deadline 1.500 of 2 seconds left>"


async def _left_alone(clock):
    async with Deadline(2.0, clock=clock) as deadline:
        assert Deadline.current() is deadline
        await clock.sleep_async(1.0)
    return Deadline.current()


async def _cut(clock):
    with pytest.raises(DeadlineExceededError, match="the deadline of 2 seconds is over"):
        async with Deadline(2.0, clock=clock):
            await clock.sleep_async(3.0)
    return Deadline.current()


async def _failing(clock):
    with pytest.raises(OSError, match="its own"):
        async with Deadline(2.0, clock=clock):
            raise OSError("its own")
    return Deadline.current()


@pytest.mark.parametrize("block", [_left_alone, _cut, _failing])
def test_asynchronous_block_leaves_no_current_deadline(clock, block):
    assert run(block(clock), clock=clock) is None
    assert run_trio(block, clock, clock=clock) is None


def test_deadline_block_leaves_no_garbage(clock):
    def block():
        with Deadline(2.0, clock=clock):
            pass

    assert left_by(block) == 0


def test_asynchronous_deadline_block_leaves_no_garbage(clock):
    async def block():
        async with Deadline(2.0, clock=clock) as deadline:
            return weakref.ref(deadline)

    with no_collector():
        assert run(block(), clock=clock)() is None


@pytest.mark.statement("S1-24")
def test_awaits_in_a_block_share_its_time(clock):
    done = []

    async def block():
        with pytest.raises(DeadlineExceededError):
            async with Deadline(1.5, clock=clock):
                for step in range(3):
                    await clock.sleep_async(1.0)
                    done.append(step)

    run(block(), clock=clock)
    run_trio(block, clock=clock)
    assert (done, clock.monotonic()) == ([0, 0], 3.0)


@pytest.mark.statement("S1-27")
def test_inside_it_is_a_cancellation_and_outside_a_timeout(clock):
    import trio

    inside = []

    async def block():
        try:
            async with Deadline(2.0, clock=clock):
                try:
                    await clock.sleep_async(60.0)
                except BaseException as exc:
                    inside.append(type(exc))
                    raise
        except TimeoutError as exc:
            return type(exc)

    assert run(block(), clock=clock) is DeadlineExceededError
    assert run_trio(block, clock=clock) is DeadlineExceededError
    assert inside == [asyncio.CancelledError, trio.Cancelled]


@pytest.mark.statement("S1-27")
def test_swallowed_cancellation_at_the_deadline_still_raises(clock):
    async def block():
        async with Deadline(2.0, clock=clock):
            try:
                await clock.sleep_async(60.0)
            except asyncio.CancelledError:
                return "swallowed"

    with pytest.raises(DeadlineExceededError):
        run(block(), clock=clock)


def test_failure_during_the_cancellation_is_raised_unchanged(clock):
    async def block():
        async with Deadline(2.0, clock=clock):
            try:
                await clock.sleep_async(60.0)
            finally:
                raise OSError("while cleaning up")

    with pytest.raises(OSError, match="while cleaning up"):
        run(block(), clock=clock)
    with pytest.raises(OSError, match="while cleaning up"):
        run_trio(block, clock=clock)


def test_deadline_error_names_the_limit_that_expired(clock):
    with Deadline(2.0, kind="request", clock=clock):
        clock.advance(1.5)
        inner = Deadline.after(9.0, kind="step", clock=clock)
        error = inner.error("over")
    assert (error.kind, error.limit) == ("request", 2.0)
    error = Deadline(3.0, clock=clock).error("over")
    assert (error.kind, error.limit) == (None, 3.0)


# -- in a template -------------------------------------------------------------------------------


@every_driver
def test_expired_deadline_prevents_the_first_attempt(driver):
    template, callback = made(), Script("value")
    with (
        Deadline(0, clock=template.clock),
        pytest.raises(DeadlineExceededError, match="no attempt is begun"),
    ):
        driver(template, callback, recovery=lambda context: "recovered")
    assert callback.calls == 0


@every_driver
def test_expired_deadline_precedes_guards(driver):
    class Untouched(Guard):
        def admit(self, context):
            pytest.fail("it was queried")

    template = made(guards=[Untouched()])
    with Deadline(0, clock=template.clock), pytest.raises(DeadlineExceededError):
        driver(template, Script("value"))


@every_driver
def test_expired_deadline_prevents_further_attempts(driver):
    template, failure = made(9), ValueError("took too long")
    calls = []

    def callback(context):
        calls.append(context.attempt)
        template.clock.advance(1.5)
        raise failure

    with Deadline(3.0, clock=template.clock), pytest.raises(DeadlineExceededError) as caught:
        driver(template, callback)
    assert calls == [1, 2]
    assert caught.value.__cause__ is failure


@every_driver
def test_deadline_over_after_a_failure_calls_the_recovery(driver):
    template = made(9)

    def callback(context):
        template.clock.advance(3.0)
        raise ValueError

    with Deadline(3.0, clock=template.clock):
        assert driver(template, callback, recovery=lambda context: "recovered") == "recovered"


@every_driver
@pytest.mark.parametrize(("delay", "sleeps"), [(1.9, [1.9]), (2.0, [])])
def test_wait_as_long_as_the_remaining_time_is_not_started(driver, delay, sleeps):
    template = made(2, delay=delay)
    with Deadline(2.0, clock=template.clock), pytest.raises((ValueError, DeadlineExceededError)):
        driver(template, Script(ValueError()))
    assert template.clock.sleeps == sleeps


@pytest.mark.statement("S1-36")
def test_operation_with_a_longer_attempt_ends_exactly_at_its_deadline():
    async def operation(template):
        async def attempt():
            await template.clock.sleep_async(0.2)
            raise ValueError

        async with Deadline(0.1, clock=template.clock):
            await template.call_async(attempt)

    template = made(99)
    with pytest.raises(DeadlineExceededError):
        run(operation(template), clock=template.clock)
    assert template.clock.monotonic() == 0.1
    template = made(99)
    with pytest.raises(DeadlineExceededError):
        run_trio(operation, template, clock=template.clock)
    assert template.clock.monotonic() == 0.1


@pytest.mark.statement("S1-36")
def test_client_with_the_remaining_time_as_limit_ends_at_the_deadline():
    template = made(99)

    def attempt():
        template.clock.advance(min(0.2, Deadline.current().remaining()))
        raise ValueError

    with Deadline(0.1, clock=template.clock), pytest.raises(DeadlineExceededError):
        template.call(attempt)
    assert template.clock.monotonic() == 0.1


@every_driver
@pytest.mark.statement("S1-36")
def test_attempt_with_less_time_than_the_floor_is_not_started(driver):
    template = made(9)
    began = []

    def callback(context):
        began.append(template.clock.monotonic())
        template.clock.advance(0.75)
        raise ValueError

    with (
        Deadline(2.0, floor=0.625, clock=template.clock),
        pytest.raises(DeadlineExceededError, match=r"is in 0\.5 seconds: no attempt is begun"),
    ):
        driver(template, callback)
    assert began == [0.0, 0.75]


@every_driver
@pytest.mark.statement("S1-37")
@pytest.mark.parametrize(("delay", "sleeps"), [(1.5, [1.5]), (1.625, [])])
def test_wait_that_leaves_less_than_the_floor_is_not_started(driver, delay, sleeps):
    template = made(2, delay=delay)
    with (
        Deadline(2.0, floor=0.5, clock=template.clock),
        pytest.raises((ValueError, DeadlineExceededError)),
    ):
        driver(template, Script(ValueError()))
    assert template.clock.sleeps == sleeps


def test_floor_applies_inside_another_deadline(clock):
    with Deadline(2.0, floor=0.5, clock=clock), Deadline(1.75, clock=clock) as inner:
        assert inner.fits(1.5)
        assert not inner.fits(1.625)
    with Deadline(2.0, clock=clock), Deadline(1.0, floor=0.25, clock=clock) as inner:
        assert inner.fits(0.75)
        assert not inner.fits(0.875)


def test_delay_may_be_a_timedelta(clock):
    deadline = Deadline(2.0, clock=clock)
    assert deadline.fits(timedelta(seconds=1.5))
    assert deadline.remaining_after(timedelta(seconds=1.5)) == 0.5


@every_driver
@pytest.mark.statement("S1-41")
def test_deadline_over_on_entry_raises_the_limit_without_a_call(driver):
    template, callback = made(), Script("value")
    for seconds in (0, 1e-9):
        deadline = Deadline(seconds, kind="request", floor=0.001, clock=template.clock)
        with pytest.raises(DeadlineExceededError) as caught, deadline:
            driver(template, callback)
        error = caught.value
        assert (error.kind, error.limit, error.outcome_unknown) == ("request", seconds, False)
    assert callback.calls == 0


@pytest.mark.parametrize("given", [{"floor": -1}, {"floor": "1"}, {"seconds": -1}])
def test_deadline_with_an_invalid_number_is_rejected(given):
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(given))} must be"):
        Deadline(**{"seconds": 1.0, **given})


@pytest.mark.parametrize("unknown", [True, False])
def test_error_of_shortened_deadline_keeps_outcome_unknown(clock, unknown):
    with Deadline(1.0, kind="request", clock=clock), Deadline(2.0, clock=clock) as inner:
        error = inner.error("too late", outcome_unknown=unknown)
    assert (error.kind, error.outcome_unknown) == ("request", unknown)
