"""The garbage collector ends abandoned objects at any time, in the thread that allocates."""

import gc
from contextlib import suppress

import pytest

from retrytemplate import (
    FixedBackoff,
    MemoryRetryContextCache,
    RetryError,
    RetryState,
    SimpleRetryPolicy,
    StatisticsListener,
)
from retrytemplate.listeners.statistics import RollingStatistics
from tests.support.polling import wait_until
from tests.support.runners import made

TURNS = 300


@pytest.fixture(autouse=True)
def _a_busy_collector():
    before = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*before)


def collect_until(condition):
    """Collect all garbage; while another thread collects, ``gc.collect()`` returns at once."""
    wait_until(lambda: gc.collect() >= 0 and condition())


class Left:
    """Runs a function when the garbage collector frees it."""

    def __init__(self, then):
        self.me, self.then = self, then

    def __del__(self):
        self.then()


def test_concurrent_counts_in_one_thread_are_not_lost():
    numbers = RollingStatistics(window=1e9)
    for _ in range(TURNS):
        Left(lambda: numbers.increment("started", "error"))
        numbers.increment("started", "complete")
    collect_until(lambda: numbers.error == TURNS)
    assert (numbers.started, numbers.complete) == (2 * TURNS, TURNS)
    assert numbers.rolled("started") == 2 * TURNS


@pytest.mark.parametrize("when_full", ["raise", "evict"])
def test_memory_cache_used_by_finalizers_keeps_no_claim(when_full):
    cache = MemoryRetryContextCache(capacity=10, ttl=60.0, when_full=when_full)
    template = made(3, name="work", cache=cache)

    def fail(context):
        Left(lambda: template.outcome(int))
        raise ValueError

    for number in range(TURNS):
        Left(template.attempts(state=RetryState(("left", number))).__next__)
        with suppress(ValueError, RetryError):  # of an attempt, of the end, of a full cache
            template.execute(fail, state=RetryState(number % 20))
    collect_until(lambda: cache._claims == {})


def test_abandoned_loops_are_closed_while_others_run():
    statistics = StatisticsListener(window=1e9)
    template = made(
        policy=SimpleRetryPolicy(3), backoff=FixedBackoff(1), name="work", listeners=[statistics]
    )
    for number in range(TURNS):
        attempts = template.attempts(state=RetryState(number))
        next(attempts)
        attempts.me = attempts
        del attempts
        template.call(int)
    collect_until(lambda: template.cache._claims == {})
    assert statistics.find("work").started >= TURNS
