"""Waiting for a state of another process, thread or server, which gives no event to wait for."""

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
