"""Skip limits: concurrent failures, and restarts of the run."""

import asyncio
import threading
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import SimpleRetryPolicy
from retrytemplate.batch import SkipLimitExceededError, SkipPolicy
from tests.support.step_fixture import accounted, run

ITEMS = range(1, 33)
AT_ONCE = 16


class Bad(Exception):
    """What every item raises."""


def together(mode):
    """A processor whose first sixteen calls all fail at the same moment."""
    calls = count(1)
    barrier, meeting = threading.Barrier(AT_ONCE), asyncio.Barrier(AT_ONCE)

    def fails(item):
        if next(calls) <= AT_ONCE:
            barrier.wait()
        raise Bad(item)

    async def fails_too(item):
        if next(calls) <= AT_ONCE:
            await meeting.wait()
        raise Bad(item)

    return fails if mode == "sync" else fails_too


def settings(limit=None, **rate):
    return {
        "retry": SimpleRetryPolicy(1),
        "skip": SkipPolicy(on=Bad, limit=limit, **rate),
        "chunk_size": len(ITEMS),
    }


def test_skip_limit_holds_for_sixteen_concurrent_failures(world, mode):
    step = world.step(ITEMS, processor=together(mode), concurrency=AT_ONCE, **settings(5))
    report = run(step, mode)
    assert (report.status, report.dead_lettered, report.skipped) == ("failed", 5, 5)
    assert isinstance(report.exception, SkipLimitExceededError)
    assert isinstance(report.exception.__cause__, Bad)
    assert world.letters() == [1, 2, 3, 4, 5]
    assert accounted(report)


def test_skip_limit_holds_over_restarts_of_the_run(world, mode):
    for _ in range(6):
        step = world.step(ITEMS, processor=together(mode), concurrency=AT_ONCE, **settings(5))
        report = run(step, mode)
        assert (report.status, report.dead_lettered) == ("failed", 5)
        assert accounted(report)
    assert world.letters() == [1, 2, 3, 4, 5]
    report = run(world.step(ITEMS, **settings(5)), mode)  # it is mended
    assert (report.status, report.written, report.dead_lettered) == ("completed", 27, 5)
    assert world.rows() == list(range(6, 33))


def always(item, _):
    raise Bad(item)


@pytest.mark.parametrize("fault_search", ["bisect", "linear", "chunk"])
def test_skip_limit_holds_for_failures_of_the_writer(world, mode, fault_search):
    for _ in range(3):
        step = world.step(ITEMS, write=always, fault_search=fault_search, **settings(5))
        report = run(step, mode)
        assert (report.status, report.dead_lettered) == ("failed", 5)
        assert accounted(report)
    assert world.letters() == [1, 2, 3, 4, 5]


def test_new_run_has_its_own_skip_limit(sqlite):
    step = sqlite.step(ITEMS, write=always, **settings(5))
    assert step.run().dead_lettered == step.run(on_existing="restart").dead_lettered == 5
    assert sqlite.letters() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_skip_rate_limits_the_skipped_items(world, mode):
    for _ in range(3):
        step = world.step(range(1, 101), write=always, **settings(rate=0.125))
        report = run(step, mode)
        assert (report.status, report.read, report.dead_lettered) == ("failed", 32, 4)
    assert world.letters() == [1, 2, 3, 4]


def test_skip_rate_applies_after_enough_items_were_read(world, mode):
    step = world.step(range(1, 101), write=always, **settings(rate=0.125, after=40))
    report = run(step, mode)
    # All of the first chunk, when 32 were read; of 64 an eighth is given up already.
    assert (report.status, report.read, report.dead_lettered) == ("failed", 64, 32)


@given(percent=st.integers(1, 99), hundreds=st.integers(1, 100))
def test_skip_rate_is_exact_at_whole_percentages(percent, hundreds):
    """Also when the product of a float and a number is rounded."""
    policy, whole = SkipPolicy(rate=percent / 100), percent * hundreds
    assert policy.has_room(skipped=whole - 1, read=100 * hundreds)
    assert not policy.has_room(skipped=whole, read=100 * hundreds)


def test_skip_rate_allows_no_skip_before_the_first_read():
    assert not SkipPolicy(rate=0.29).has_room(skipped=0, read=0)
    assert SkipPolicy(rate=1.0).has_room(skipped=0, read=1)
