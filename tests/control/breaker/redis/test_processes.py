"""Processes that share a circuit; some are killed at random moments."""

import os
from contextlib import contextmanager
from random import Random

import pytest

from retrytemplate import CircuitOpenError
from retrytemplate.control import Consecutive
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.control.breaker.redis.hammering import LEASE, PLACES, Caller, Entries, Prober, probing
from tests.control.breaker.redis.shared import Down, failing, fine
from tests.support.fork_server import processes
from tests.support.polling import wait_until


@contextmanager
def running(workers):
    """Processes that run concurrently; all end with the block."""
    started = [processes.Process(target=each.run, daemon=True) for each in workers]
    for each in started:
        each.start()
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.join()


def half_open(sharing, mode):
    breaker = probing(sharing.store(mode=mode, stale_after=3600), clock=sharing.clock)
    sharing.made.append(breaker)
    with pytest.raises(ZeroDivisionError):
        breaker.call(lambda: 1 / 0)
    wait_until(lambda: breaker.state == "open")
    sharing.advance(30, "probed")
    assert breaker.state == "half_open"
    return breaker


@pytest.mark.parametrize(
    ("number", "kills"), [(2, 1), pytest.param(8, 2, marks=pytest.mark.stress)]
)
@pytest.mark.parametrize("mode", ["strict", "cached"])
def test_half_open_permits_of_processes_are_limited_and_recovered(sharing, mode, number, kills):
    """Pains 20 and 21: each process has its own lock, and a half-open circuit admits every call."""
    breaker = half_open(sharing, mode)
    entries = Entries(sharing.url, sharing.prefix)
    random = Random(number)
    with running([Prober(sharing.url, sharing.prefix, mode)] * number) as workers:
        wait_until(lambda: entries.most_at_once() == min(number, PLACES), workers)
        for _ in range(kills):  # a killed process keeps its permits for the rest of the test
            before = entries.number()
            wait_until(lambda before=before: entries.number() >= before + 20, workers)
            killed = workers.pop(random.randrange(len(workers)))
            killed.kill()
            killed.join()
        sharing.client.set(f"{sharing.prefix}:stop", 1)
        for each in workers:
            each.join(JOIN_TIMEOUT)
            assert each.exitcode == 0
    assert entries.most_at_once() <= PLACES
    assert sharing.permits("probed") <= kills
    sharing.advance(LEASE, "probed")
    permits = [breaker.permit() for _ in range(PLACES + 1)]
    refused = [permit.acquire() for permit in permits]
    assert refused[:PLACES] == [None] * PLACES
    assert type(refused[PLACES]) is CircuitOpenError
    entries.client.close()


@pytest.mark.parametrize("number", [2, pytest.param(8, marks=pytest.mark.stress)])
def test_open_circuit_rejects_calls_of_every_process(sharing, number):
    """Pain 20: the state of one process is not that of the others."""
    with running([Caller(sharing.url, sharing.prefix, 5)] * number) as workers:
        killed = workers.pop()
        made = f"{sharing.prefix}:made"
        wait_until(lambda: int(sharing.client.get(made) or 0) >= 30, workers)
        killed.kill()
        killed.join()
        for each in workers:
            each.join(JOIN_TIMEOUT)
            assert each.exitcode == 0
    assert int(sharing.client.get(made)) >= 5 * 20
    assert sharing.client.get(f"{sharing.prefix}:late") is None
    for circuit in range(5):
        assert sharing.fields(f"round {circuit}")["state"] == "open"


@pytest.mark.parametrize("mode", ["strict", "cached"])
def test_forked_child_works_independently(sharing, mode):
    store = sharing.store(mode=mode, stale_after=3600)
    breaker = sharing.breaker(store=store, window=Consecutive(2))
    assert breaker.outcome(fine).exception is None
    child = os.fork()
    if child == 0:
        try:
            ended = [type(breaker.outcome(failing).exception) for _ in range(2)]
            opened = breaker.state == "open"
            os._exit(0 if ended == [Down, Down] and opened else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert breaker.state == "open"
