"""Time on which sleeping takes none, alone and under asyncio and trio."""

import asyncio
import os
import signal
import threading
from datetime import timedelta

import pytest
import trio

from retrytemplate.clock import Clock
from retrytemplate.testing import Interrupted, VirtualClock, run, run_trio, virtual_loop
from retrytemplate.testing.clock import NEW_YEAR
from retrytemplate.testing.conformance.base import in_threads


def test_virtual_clock_is_a_clock():
    assert isinstance(VirtualClock(), Clock)


def test_sleeping_moves_the_time_on_and_is_recorded():
    clock = VirtualClock()
    clock.sleep(0.5)
    clock.sleep(2)
    assert (clock.monotonic(), clock.sleeps, clock.slept) == (2.5, [0.5, 2], 2.5)


def test_time_is_constant_without_sleeping():
    clock = VirtualClock(start=7.0)
    assert {clock.monotonic() for _ in range(3)} == {7.0}


def test_calendar_moves_with_the_clock():
    clock = VirtualClock(start=40.0)
    assert clock.time() == NEW_YEAR
    clock.sleep(60.0)
    assert clock.time() == NEW_YEAR + 60


def test_calendar_starts_at_the_given_epoch():
    assert VirtualClock(epoch=1000.0).time() == 1000.0


@pytest.mark.parametrize("step", [1.5, timedelta(seconds=1.5)])
def test_advance_records_no_sleep(step):
    clock = VirtualClock()
    clock.advance(step)
    assert (clock.monotonic(), clock.sleeps) == (1.5, [])


def test_chosen_sleep_is_interrupted_and_takes_no_time():
    clock = VirtualClock(interrupt_at=2)
    clock.sleep(1.0)
    with pytest.raises(Interrupted):
        clock.sleep(5.0)
    clock.sleep(1.0)
    assert (clock.sleeps, clock.monotonic()) == ([1.0, 5.0, 1.0], 2.0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("shutdown")])
def test_interruption_can_be_any_exception(error):
    clock = VirtualClock(interrupt_at=1, interrupt_with=error)
    with pytest.raises(error if isinstance(error, type) else type(error)):
        clock.sleep(1.0)


def test_asynchronous_sleep_is_interrupted():
    clock = VirtualClock(interrupt_at=1)
    with pytest.raises(Interrupted):
        asyncio.run(clock.sleep_async(1.0))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"start": float("nan")}, "start"),
        ({"start": float("inf")}, "start"),
        ({"epoch": "now"}, "epoch"),
        ({"interrupt_at": 0}, "interrupt_at"),
        ({"interrupt_at": 1.5}, "interrupt_at"),
    ],
)
def test_invalid_settings_are_rejected(arguments, field):
    with pytest.raises((TypeError, ValueError), match=field):
        VirtualClock(**arguments)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "1", None, True])
def test_invalid_delays_are_rejected_and_not_recorded(delay):
    clock = VirtualClock()
    with pytest.raises((TypeError, ValueError), match="delay"):
        clock.sleep(delay)
    with pytest.raises((TypeError, ValueError), match="seconds"):
        clock.advance(delay)
    assert (clock.sleeps, clock.monotonic()) == ([], 0.0)


def test_no_sleep_of_many_threads_is_lost():
    clock = VirtualClock()
    in_threads(lambda thread: [clock.sleep(0.5) for _ in range(200)], 8)
    assert (len(clock.sleeps), clock.monotonic()) == (1600, 800.0)


async def ticking(steps, checkpoint):
    for number in range(3):
        steps.append(number)
        await checkpoint()


def test_other_asyncio_tasks_run_during_a_sleep():
    async def main():
        clock, steps = VirtualClock(), []
        other = asyncio.create_task(ticking(steps, lambda: asyncio.sleep(0)))
        await clock.sleep_async(1.0)
        seen = list(steps)
        await other
        return seen, clock.monotonic()

    assert asyncio.run(main()) == ([0], 1.0)


def test_other_trio_tasks_run_during_a_sleep():
    async def main():
        clock, steps = VirtualClock(), []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticking, steps, trio.lowlevel.checkpoint)
            while not steps:
                await clock.sleep_async(1.0)
        return clock.monotonic() >= 1.0

    assert trio.run(main)


def test_asyncio_cancellation_is_delivered_in_a_sleep():
    async def main():
        clock = VirtualClock()
        task = asyncio.create_task(clock.sleep_async(1.0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return clock.sleeps, clock.monotonic()

    assert asyncio.run(main()) == ([1.0], 0.0)


def test_trio_cancellation_is_delivered_in_a_sleep():
    async def main():
        clock = VirtualClock()
        with trio.CancelScope() as scope:
            scope.cancel()
            await clock.sleep_async(1.0)
        return scope.cancelled_caught, clock.monotonic()

    assert trio.run(main) == (True, 0.0)


# -- the loop's own timers -----------------------------------------------------------------------


def test_asyncio_timers_fire_in_their_order_without_waiting():
    order = []

    async def nap(clock, delay):
        await clock.sleep_async(delay)
        order.append((delay, clock.monotonic()))

    async def main(clock):
        asyncio.get_running_loop().call_later(1800, lambda: order.append("half an hour"))
        await asyncio.gather(nap(clock, 3600.0), nap(clock, 60.0), nap(clock, 7200.0))

    clock = VirtualClock()
    run(main(clock), clock=clock)
    assert order == [(60.0, 60.0), "half an hour", (3600.0, 3600.0), (7200.0, 7200.0)]


def test_signal_reaches_a_loop_that_only_has_timers():
    received = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, received.append, "usr1")
        os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(200):
            await asyncio.sleep(1.0)

    run(main())
    assert received == ["usr1"]


def test_trio_timers_fire_in_their_order_without_waiting():
    order = []

    async def nap(clock, delay):
        await clock.sleep_async(delay)
        order.append((delay, clock.monotonic()))

    async def main(clock):
        async with trio.open_nursery() as nursery:
            for delay in (3600.0, 60.0, 7200.0):
                nursery.start_soon(nap, clock, delay)

    clock = VirtualClock()
    run_trio(main, clock, clock=clock)
    assert order == [(60.0, 60.0), (3600.0, 3600.0), (7200.0, 7200.0)]


def test_asyncio_timeout_cuts_a_virtual_sleep():
    async def main(clock):
        async with asyncio.timeout(5.0):
            await clock.sleep_async(60.0)

    clock = VirtualClock(start=100.0)
    with pytest.raises(TimeoutError):
        run(main(clock), clock=clock)
    assert (clock.monotonic(), clock.sleeps) == (105.0, [60.0])


def test_trio_timeout_cuts_a_virtual_sleep_and_keeps_the_time():
    async def main(clock):
        with trio.fail_after(5.0):
            await clock.sleep_async(60.0)

    clock = VirtualClock(start=100.0)
    with pytest.raises(trio.TooSlowError):
        run_trio(main, clock, clock=clock)
    assert (clock.monotonic(), clock.sleeps) == (105.0, [60.0])
    clock.sleep(1.0)
    assert clock.monotonic() == 106.0


@pytest.mark.parametrize("start", [0.0, 3.3, 1e9])
def test_advancing_inside_a_run_makes_timers_due(start):
    async def main_asyncio(clock):
        async with asyncio.timeout(5.0):
            clock.advance(6.0)
            await asyncio.sleep(1.0)  # virtual seconds

    async def main_trio(clock):
        with trio.fail_after(5.0):
            clock.advance(6.0)
            await trio.sleep(1.0)  # virtual seconds

    with pytest.raises(TimeoutError):
        run(main_asyncio(clock := VirtualClock(start)), clock=clock)
    assert clock.monotonic() == pytest.approx(start + 6)
    with pytest.raises(trio.TooSlowError):
        run_trio(main_trio, clock := VirtualClock(start), clock=clock)
    assert clock.monotonic() == pytest.approx(start + 6)


def test_other_clock_in_a_virtual_run_is_not_changed():
    async def main(own, other):
        await other.sleep_async(10.0)
        return own.monotonic(), other.monotonic()

    own, other = VirtualClock(), VirtualClock()
    assert run(main(own, other), clock=own) == (0.0, 10.0)
    assert run(main(own, other)) == (0.0, 20.0)


def test_run_without_a_clock_makes_one():
    assert run(asyncio.sleep(3600, "woken")) == "woken"  # virtual seconds
    assert run_trio(trio.sleep, 3600) is None


def test_work_in_threads_ends_within_the_grace():
    async def main(work):
        async with asyncio.timeout(3600):
            return await asyncio.to_thread(work)

    assert run(main(lambda: "done"), grace=30.0) == "done"


def test_loop_without_timers_waits_for_its_threads():
    release = threading.Event()

    async def main():
        asyncio.get_running_loop().call_later(10.0, release.set)
        return await asyncio.to_thread(release.wait, 30.0)

    assert run(main()) is True


def test_closing_a_loop_that_used_threads_does_not_warn():
    with asyncio.Runner(loop_factory=virtual_loop) as runner:
        assert runner.run(asyncio.to_thread(lambda: 17)) == 17


@pytest.mark.parametrize("grace", [-1, float("inf"), "long"])
def test_invalid_grace_is_rejected(grace):
    with pytest.raises((TypeError, ValueError), match="grace"):
        virtual_loop(grace=grace)
    with pytest.raises((TypeError, ValueError), match="grace"):
        run_trio(trio.sleep, 1, grace=grace)
