"""Waiting for a state of another process, thread or server, which gives no event to wait for."""

import asyncio
import threading
import time

TIMEOUT = 60.0


def wait_until(condition, processes=()):
    """Poll until the condition is true, and return its value; fail if a process has failed."""
    end = time.monotonic() + TIMEOUT
    while not (value := condition()):
        assert all(each.exitcode in (None, 0) for each in processes)
        assert time.monotonic() < end
        time.sleep(0.002)  # the interval of the polls
    return value


def has_no_driver_thread():
    """Whether each thread of aiosqlite has ended: that of a failed connection is not awaited."""
    return not any("_connection_worker" in each.name for each in threading.enumerate())


async def driver_has_ended():
    """Wait in the loop to which these threads report their end."""
    async with asyncio.timeout(TIMEOUT):
        while not has_no_driver_thread():
            await asyncio.sleep(0.001)  # an unknown thread cannot be joined
