"""The switch that removes all waiting."""

import asyncio
import threading
import time

import pytest
import trio

from retrytemplate import clock as system
from retrytemplate.clock import StoppedError, SystemClock
from retrytemplate.testing import Interrupted, VirtualClock, no_waiting
from retrytemplate.testing.conformance.base import in_threads

HOUR = 3600.0


@pytest.fixture(autouse=True)
def real_waiting_is_a_failure(monkeypatch):
    """No test waits; the system's time is restored after each."""

    def wait(*args):
        raise AssertionError(f"a real wait: {args}")

    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setattr(system, "_offset", system._offset)
    yield
    assert system._override is None


def test_clock_made_before_does_not_wait():
    clock = SystemClock()
    with no_waiting() as skipped:
        clock.sleep(HOUR)
        asyncio.run(clock.sleep_async(2 * HOUR))
        trio.run(clock.sleep_async, 3 * HOUR)
    assert skipped.sleeps == [HOUR, 2 * HOUR, 3 * HOUR]


def test_clock_waits_again_afterwards():
    with no_waiting():
        pass
    with pytest.raises(AssertionError, match="a real wait"):
        SystemClock().sleep(HOUR)


def test_clock_waits_again_after_an_error():
    with pytest.raises(ZeroDivisionError), no_waiting():
        SystemClock().sleep(1 / 0)
    assert system._override is None


def test_time_advances_by_skipped_delays_and_real_time():
    clock = SystemClock()
    before, epoch = clock.monotonic(), clock.time()
    with no_waiting():
        clock.sleep(HOUR)
        later = clock.monotonic()
        assert later - before >= HOUR
        assert clock.time() - epoch >= HOUR - 60
        while clock.monotonic() == later:
            pass


def test_advancing_the_time_is_possible():
    with no_waiting() as skipped:
        before = SystemClock().monotonic()
        skipped.advance(HOUR)
        assert SystemClock().monotonic() - before >= HOUR
    assert skipped.sleeps == []


def test_monotonic_time_does_not_go_back_after_the_block():
    clock = SystemClock()
    seen = [clock.monotonic()]
    for _ in range(3):
        with no_waiting():
            seen.append(clock.monotonic())
            clock.sleep(HOUR)
            seen.append(clock.monotonic())
        seen.append(clock.monotonic())
    assert seen == sorted(seen)


def test_calendar_is_restored_after_the_block():
    with no_waiting():
        SystemClock().sleep(1000 * HOUR)
    assert abs(SystemClock().time() - time.time()) < HOUR


def test_all_threads_skip():
    clock = SystemClock()
    with no_waiting() as skipped:
        in_threads(lambda thread: clock.sleep(HOUR), 4)
    assert skipped.sleeps == [HOUR] * 4


def test_innermost_block_applies():
    clock = SystemClock()
    with no_waiting() as outer:
        clock.sleep(1.0)
        with no_waiting() as inner:
            clock.sleep(2.0)
        clock.sleep(3.0)
    assert (outer.sleeps, inner.sleeps) == ([1.0, 3.0], [2.0])


def test_blocks_may_end_in_any_order():
    first, second = no_waiting(), no_waiting()
    first.__enter__()
    clock = second.__enter__()
    first.__exit__(None, None, None)
    SystemClock().sleep(HOUR)
    second.__exit__(None, None, None)
    assert clock.sleeps == [HOUR]


def test_object_may_be_used_again():
    switch = no_waiting()
    with switch as first, switch as second:
        SystemClock().sleep(1.0)
    with switch as third:
        SystemClock().sleep(2.0)
    assert [clock.sleeps for clock in (first, second, third)] == [[], [1.0], [2.0]]


def test_given_clock_is_constant_between_sleeps():
    virtual = VirtualClock()
    with no_waiting(virtual) as clock:
        assert clock is virtual
        SystemClock().sleep(5.0)
        assert (SystemClock().monotonic(), SystemClock().time()) == (5.0, virtual.time())
    assert virtual.sleeps == [5.0]


def test_given_clock_limits_the_sleeps():
    with no_waiting(VirtualClock(interrupt_at=2)), pytest.raises(Interrupted):
        while True:
            SystemClock().sleep(1.0)


def test_stop_event_ends_a_skipped_sleep():
    stop = threading.Event()
    clock = SystemClock(stop=stop)
    with no_waiting() as skipped:
        clock.sleep(1.0)
        stop.set()
        with pytest.raises(StoppedError):
            clock.sleep(1.0)
        with pytest.raises(StoppedError):
            asyncio.run(clock.sleep_async(1.0))
    assert skipped.sleeps == [1.0]


def test_no_waiting_decorates_functions():
    @no_waiting()
    def napping(delay, *, times):
        for _ in range(times):
            SystemClock().sleep(delay)
        return system._override.sleeps

    assert napping(HOUR, times=2) == [HOUR, HOUR]
    assert napping(HOUR, times=1) == [HOUR]
    assert napping.__name__ == "napping"


def test_no_waiting_decorates_coroutine_functions():
    @no_waiting()
    async def napping():
        await asyncio.sleep(0)
        await SystemClock().sleep_async(HOUR)
        return system._override.sleeps

    assert asyncio.run(napping()) == [HOUR]


def test_generators_and_classes_cannot_be_decorated():
    def generator():
        yield

    async def async_generator():
        yield

    for wrong in (generator, async_generator, VirtualClock):
        with pytest.raises(TypeError, match="no_waiting"):
            no_waiting()(wrong)


def test_clock_must_be_a_virtual_clock():
    with pytest.raises(TypeError, match="clock must be a VirtualClock or None"):
        no_waiting(SystemClock())


def test_cancellation_is_delivered_while_skipping():
    async def main():
        task = asyncio.create_task(SystemClock().sleep_async(HOUR))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    with no_waiting():
        assert asyncio.run(main())
