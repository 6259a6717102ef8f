"""The system's clock and its stop event; every sleep is interrupted."""

import asyncio
import threading

import pytest
import trio

from retrytemplate.clock import StoppedError, SystemClock

HOUR = 3600.0


def test_stop_event_set_before_ends_a_sleep():
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        SystemClock(stop=stop).sleep(HOUR)


@pytest.mark.parametrize("run", [lambda function: asyncio.run(function()), trio.run])
def test_stop_event_set_during_an_asynchronous_sleep_ends_it(run):
    stop = threading.Event()

    class FromElsewhere(threading.Event):
        """Set at the second check, as by another thread."""

        def is_set(self):
            looked, _ = stop.is_set(), stop.set()
            return looked

    async def main():
        with pytest.raises(StoppedError):
            await SystemClock(stop=FromElsewhere()).sleep_async(HOUR)

    run(main)
    assert stop.is_set()


class Watched(threading.Event):
    looks = 0

    def is_set(self):
        self.looks += 1
        return super().is_set()

    def wait(self, timeout=None):
        self.looks += 1
        return super().wait(timeout)


@pytest.mark.parametrize(
    "sleep",
    [
        lambda clock: clock.sleep(0.0),
        lambda clock: asyncio.run(clock.sleep_async(0.001)),
        lambda clock: trio.run(clock.sleep_async, 0.001),
    ],
    ids=["sync", "asyncio", "trio"],
)
def test_stop_event_that_is_not_set_lets_a_sleep_end(sleep):
    stop = Watched()
    sleep(SystemClock(stop=stop))
    assert stop.looks
