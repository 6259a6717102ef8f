"""A timeout: each call has its limit anew, and an error that says which limit it was."""

import asyncio
import copy

import pytest

from retrytemplate import (
    AttemptTimeoutError,
    Deadline,
    DeadlineExceededError,
    FixedBackoff,
    MisuseError,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import Strategy, Timeout
from retrytemplate.testing import VirtualClock, run, run_trio


def in_asyncio(main, clock):
    return run(main(), clock=clock)


def in_trio(main, clock):
    return run_trio(main, clock=clock)


runs = pytest.mark.parametrize("runs", [in_asyncio, in_trio], ids=["asyncio", "trio"])


@pytest.fixture
def clock():
    return VirtualClock()


@runs
def test_an_asynchronous_call_is_cut_at_the_limit_each_time_anew(runs, clock):
    limited = Timeout(2.0, kind="partner read", clock=clock)

    @limited.wrap
    async def slow(seconds):
        await clock.sleep_async(seconds)
        return "in time"

    async def main():
        assert await slow(1.5) == "in time"
        with pytest.raises(DeadlineExceededError) as raised:
            await slow(60)
        assert (raised.value.kind, raised.value.outcome_unknown) == ("partner read", True)
        assert await limited.call_async(slow, 1.5) == "in time"
        return clock.monotonic()

    assert runs(main, clock) == 5.0


@pytest.mark.statement("S1-26")
def test_a_synchronous_call_that_took_too_long_is_an_error_when_it_ends(clock):
    limited = Timeout(2.0, clock=clock)
    assert limited.call(clock.advance, 2.0 - 0.5) is None
    with pytest.raises(DeadlineExceededError, match="took longer than 2 seconds") as raised:
        limited.call(clock.advance, 2.0)
    assert (raised.value.kind, raised.value.outcome_unknown) == ("request", True)


def test_what_is_called_inherits_the_limit(clock):
    def inside():
        return Deadline.current().remaining()

    assert Timeout(2.0, clock=clock).call(inside) == 2.0
    assert Timeout(2.0, clock=clock).wrap(inside)() == 2.0
    assert Deadline.current() is None


@pytest.mark.statement("S0-11")
@pytest.mark.statement("S0-12")
@runs
def test_around_a_retry_it_bounds_all_attempts_and_waits(runs, clock):
    template = RetryTemplate(
        SimpleRetryPolicy(9), FixedBackoff(1.0), attempt_timeout=1.5, clock=clock
    )
    began = []

    async def hangs():
        began.append(clock.monotonic())
        await clock.sleep_async(60)

    async def main():
        with pytest.raises(DeadlineExceededError) as raised:
            await Timeout(5.0, clock=clock).wrap(template.wrap(hangs))()
        return raised.value

    error = runs(main, clock)
    assert began == [0.0, 2.5]
    assert type(error.__cause__) is AttemptTimeoutError
    # A third attempt would have begun with the limit: neither it nor the wait before it is begun.
    assert (clock.monotonic(), error.kind, error.outcome_unknown) == (4.0, "request", False)


@pytest.mark.statement("S1-25")
@runs
def test_the_nearer_limit_is_the_one_that_is_named(runs, clock):
    async def main():
        for outer, inner, kind in ((9.0, 2.0, "database"), (2.0, 9.0, "request")):
            with pytest.raises(DeadlineExceededError) as raised:
                await Timeout(outer, kind="request", clock=clock).call_async(
                    Timeout(inner, kind="database", clock=clock).call_async,
                    clock.sleep_async,
                    60,
                )
            assert raised.value.kind == kind

    runs(main, clock)


@pytest.mark.statement("S4-10")
@runs
def test_another_answer_may_be_given_when_the_time_is_over(runs, clock):
    async def main():
        for on_timeout in ("later", lambda: "later", None):
            limited = Timeout(1.0, on_timeout=on_timeout, clock=clock)
            answer = await limited.call_async(clock.sleep_async, 60)
            assert answer == (None if on_timeout is None else "later")
            assert limited.call(clock.advance, 60) == answer
        assert await Timeout(1.0, on_timeout="later", clock=clock).call_async(int, "17") == 17

    runs(main, clock)


def test_the_other_answer_is_for_this_limit_alone(clock):
    limited = Timeout(9.0, on_timeout="later", clock=clock)

    def inner():
        raise DeadlineExceededError("another's", kind="another")

    with pytest.raises(DeadlineExceededError, match="another's"):
        limited.call(inner)
    shutdown = Deadline(2.0, kind="shutdown", clock=clock)
    with pytest.raises(DeadlineExceededError) as raised, shutdown:
        limited.call(clock.advance, 3.0)
    assert raised.value.kind == "shutdown"


def test_what_the_call_raises_passes_and_what_nobody_awaits_is_refused(clock):
    with pytest.raises(ZeroDivisionError):
        Timeout(1.0, clock=clock).call(lambda: 1 / 0)

    async def up():
        """Not awaited."""

    with pytest.raises(MisuseError, match=r"use call_async\(\)"):
        Timeout(1.0, clock=clock).call(lambda: up())


@runs
def test_a_cancellation_from_outside_passes(runs, clock):
    async def main():
        if runs is in_trio:
            import trio

            with trio.move_on_after(1.0) as scope:
                await Timeout(5.0, clock=clock).call_async(clock.sleep_async, 60)
            return scope.cancelled_caught
        task = asyncio.ensure_future(Timeout(5.0, clock=clock).call_async(clock.sleep_async, 60))
        await clock.sleep_async(1.0)
        task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0].__class__ is (
            asyncio.CancelledError
        )

    assert runs(main, clock)


# -- deadlines with a name -------------------------------------------------------------------------


@pytest.mark.statement("S1-31")
@pytest.mark.statement("S1-33")
def test_what_cannot_end_in_time_is_not_begun(clock):
    called = []
    with Deadline(1.0, kind="request", clock=clock) as deadline:
        deadline.ensure(minimum=1.0)
        clock.advance(0.96)
        with pytest.raises(DeadlineExceededError, match=r"0\.04 seconds are left") as raised:
            deadline.ensure()
            called.append(1)
        assert (raised.value.kind, raised.value.outcome_unknown) == ("request", False)
        deadline.ensure(minimum=0)
        clock.advance(1.0)
        with pytest.raises(DeadlineExceededError):
            deadline.ensure(minimum=0)
    assert not called


@pytest.mark.statement("S1-130")
@pytest.mark.parametrize(
    "kind",
    [
        *("request", "partner connect", "partner read", "database statement"),
        *("lock acquire", "queue acknowledgement", "shutdown cleanup", "one of my own"),
    ],
)
def test_an_error_says_which_limit_it_was_in_another_process_too(kind, clock):
    error = Deadline(1.0, kind=kind, clock=clock).error("over", outcome_unknown=True)
    again = copy.copy(error)  # as pickling does
    assert (again.kind, again.outcome_unknown, str(again)) == (kind, True, "over")


def test_an_attempt_that_the_deadline_cuts_has_an_unknown_outcome(clock):
    template = RetryTemplate(SimpleRetryPolicy(3), clock=clock)
    with Deadline(1.0, kind="job", clock=clock):
        error = template.outcome(clock.advance, 2.0).exception
        assert (error.kind, error.outcome_unknown) == ("job", True)
        error = template.outcome(clock.advance, 2.0).exception
        assert (error.kind, error.outcome_unknown) == ("job", False)  # it has not begun


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"seconds": 0}, "seconds must be"),
        ({"seconds": "2"}, "seconds must be"),
        ({"kind": ""}, "kind must be a text"),
        ({"kind": None}, "kind must be a text"),
        ({"clock": 17}, "clock must"),
        ({"on_timeout": in_asyncio}, None),
    ],
)
def test_a_timeout_that_makes_no_sense_is_refused(given, problem):
    if problem is None:
        assert isinstance(Timeout(**{"seconds": 1.0, **given}), Strategy)
        return
    with pytest.raises((TypeError, ValueError), match=problem):
        Timeout(**{"seconds": 1.0, **given})


def test_the_other_answer_must_not_have_to_be_awaited():
    async def later():
        """Not awaited."""

    with pytest.raises(TypeError, match="must not have to be awaited"):
        Timeout(1.0, on_timeout=later)
    with pytest.raises(TypeError, match="kind must be"):
        Deadline(1.0, kind=17)
    with pytest.raises((TypeError, ValueError), match="minimum must be"):
        Deadline(1.0).ensure(minimum=-1)
