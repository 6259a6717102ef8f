"""The system's clock and its stop event; no sleep here comes to its end."""

import asyncio
import threading

import pytest
import trio

from retrytemplate.clock import StoppedError, SystemClock

HOUR = 3600.0


def test_a_set_stop_event_ends_a_sleep():
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        SystemClock(stop=stop).sleep(HOUR)


@pytest.mark.parametrize("run", [lambda function: asyncio.run(function()), trio.run])
def test_a_stop_event_set_during_an_asynchronous_sleep_ends_it(run):
    stop = threading.Event()

    class FromElsewhere(threading.Event):
        """Set at the second look, as if another thread had done it meanwhile."""

        def is_set(self):
            looked, _ = stop.is_set(), stop.set()
            return looked

    async def main():
        with pytest.raises(StoppedError):
            await SystemClock(stop=FromElsewhere()).sleep_async(HOUR)

    run(main)
    assert stop.is_set()


def test_an_unset_stop_event_lets_short_sleeps_end():
    clock = SystemClock(stop=threading.Event())
    clock.sleep(0.0)
    asyncio.run(clock.sleep_async(0.001))
    trio.run(clock.sleep_async, 0.001)
