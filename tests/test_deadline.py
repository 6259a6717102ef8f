"""A deadline: what is left of it, whether it is over, and what a template does about it."""

import weakref
from datetime import timedelta

import pytest

from retrytemplate import Deadline, DeadlineExceededError, Guard, MisuseError
from retrytemplate.testing import VirtualClock, run, run_trio
from tests.garbage import left_by, no_collector
from tests.ways import Script, every_way, made


@pytest.fixture
def clock():
    return VirtualClock()


def test_a_deadline_is_over_when_nothing_is_left_of_it(clock):
    deadline = Deadline.after(2.0, clock=clock)
    assert not deadline.expired()
    clock.advance(1.5)
    assert (deadline.remaining(), deadline.expired()) == (0.5, False)
    clock.advance(0.5)
    assert (deadline.remaining(), deadline.expired()) == (0.0, True)
    clock.advance(1.0)
    assert (deadline.remaining(), deadline.expired()) == (0.0, True)


def test_before_it_is_entered_a_deadline_stands_still(clock):
    deadline = Deadline(timedelta(seconds=2), clock=clock)
    clock.advance(3.0)
    assert (deadline.remaining(), deadline.expired()) == (2.0, False)
    with deadline:
        assert (deadline.remaining(), deadline.expired()) == (2.0, False)


def test_a_deadline_of_no_time_is_over_from_the_start(clock):
    deadline = Deadline(0, clock=clock)
    assert deadline.expired()
    with deadline:
        assert deadline.expired()


def test_a_deadline_without_end_is_never_over(clock):
    deadline = Deadline.after(float("inf"), clock=clock)
    clock.advance(1e9)
    assert not deadline.expired()


def test_an_inner_deadline_is_over_with_the_outer_one(clock):
    with Deadline(1.0, clock=clock) as outer, Deadline(5.0, clock=clock) as inner:
        clock.advance(1.0)
        assert (outer.expired(), inner.expired()) == (True, True)


def test_a_deadline_runs_once(clock):
    deadline = Deadline.after(2.0, clock=clock)
    with pytest.raises(MisuseError, match="make a new one"), deadline:
        pytest.fail("it was entered")


def test_a_deadline_shows_what_is_left_of_it(clock):
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
def test_an_asynchronous_block_leaves_no_deadline_in_force(clock, block):
    assert run(block(clock), clock=clock) is None
    assert run_trio(block, clock, clock=clock) is None


def test_a_block_leaves_no_garbage(clock):
    def block():
        with Deadline(2.0, clock=clock):
            pass

    assert left_by(block) == 0


def test_an_asynchronous_block_leaves_no_garbage(clock):
    async def block():
        async with Deadline(2.0, clock=clock) as deadline:
            return weakref.ref(deadline)

    with no_collector():
        assert run(block(), clock=clock)() is None


# -- in a template -------------------------------------------------------------------------------


@every_way
def test_when_the_deadline_is_over_no_attempt_is_begun(way):
    template, callback = made(), Script("value")
    with (
        Deadline(0, clock=template.clock),
        pytest.raises(DeadlineExceededError, match="no attempt is begun"),
    ):
        way(template, callback, recovery=lambda context: "recovered")
    assert callback.calls == 0


@every_way
def test_when_the_deadline_is_over_no_guard_is_asked(way):
    class Untouched(Guard):
        def admit(self, context):
            pytest.fail("it was asked")

    template = made(guards=[Untouched()])
    with Deadline(0, clock=template.clock), pytest.raises(DeadlineExceededError):
        way(template, Script("value"))


@every_way
def test_when_the_deadline_is_over_no_further_attempt_is_begun(way):
    template, failure = made(9), ValueError("took too long")
    calls = []

    def callback(context):
        calls.append(context.attempt)
        template.clock.advance(1.5)
        raise failure

    with Deadline(3.0, clock=template.clock), pytest.raises(DeadlineExceededError) as caught:
        way(template, callback)
    assert calls == [1, 2]
    assert caught.value.__cause__ is failure


@every_way
def test_when_the_deadline_is_over_after_a_failure_it_is_the_recoverys_turn(way):
    template = made(9)

    def callback(context):
        template.clock.advance(3.0)
        raise ValueError

    with Deadline(3.0, clock=template.clock):
        assert way(template, callback, recovery=lambda context: "recovered") == "recovered"


@every_way
@pytest.mark.parametrize(("delay", "sleeps"), [(1.9, [1.9]), (2.0, [])])
def test_a_wait_that_takes_all_that_is_left_does_not_fit(way, delay, sleeps):
    template = made(2, delay=delay)
    with Deadline(2.0, clock=template.clock), pytest.raises((ValueError, DeadlineExceededError)):
        way(template, Script(ValueError()))
    assert template.clock.sleeps == sleeps
