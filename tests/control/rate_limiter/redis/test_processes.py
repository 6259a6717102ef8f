"""Processes that share a limit never exceed it together."""

import pytest

from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.control.rate_limiter.redis.hammering import Taker
from tests.support.fork_server import processes
from tests.support.polling import wait_until


def server_time(client):
    seconds, microseconds = client.time()
    return seconds + microseconds / 1e6


@pytest.mark.parametrize(
    ("number", "seconds"), [(2, 0.5), pytest.param(8, 5.0, marks=pytest.mark.stress)]
)
@pytest.mark.parametrize("max_wait", [0.0, 0.2], ids=["rejects", "waits"])
def test_processes_together_stay_within_the_bound(sharing, number, seconds, max_wait):
    settings = {"permits": 100, "per": 1.0, "burst": 10, "max_wait": max_wait}
    began = server_time(sharing.client)
    takers = [
        Taker(sharing.url, sharing.prefix, settings, is_async=bool(place % 2))
        for place in range(number)
    ]
    workers = [processes.Process(target=each.run, daemon=True) for each in takers]
    for each in workers:
        each.start()
    try:
        taken = f"{sharing.prefix}:taken"
        wait_until(lambda: int(sharing.client.get(taken) or 0) >= 20 + 80 * seconds, workers)
        sharing.client.set(f"{sharing.prefix}:stop", 1)
        for each in workers:
            each.join(JOIN_TIMEOUT)
            assert each.exitcode == 0
    finally:
        for each in workers:
            each.kill()
            each.join()
    passed = server_time(sharing.client) - began
    assert int(sharing.client.get(taken)) <= 10 + 100 * passed
