"""How many items may be given up: at once, and over restarts."""

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


def together(way):
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

    return fails if way == "sync" else fails_too


def settings(limit=None, **rate):
    return {
        "retry": SimpleRetryPolicy(1),
        "skip": SkipPolicy(on=Bad, limit=limit, **rate),
        "chunk_size": len(ITEMS),
    }


def test_of_sixteen_failures_at_once_as_many_are_given_up_as_may_be(world, way):
    step = world.step(ITEMS, processor=together(way), concurrency=AT_ONCE, **settings(5))
    report = run(step, way)
    assert (report.status, report.dead_lettered, report.skipped) == ("failed", 5, 5)
    assert isinstance(report.exception, SkipLimitExceededError)
    assert isinstance(report.exception.__cause__, Bad)
    assert world.letters() == [1, 2, 3, 4, 5]
    assert accounted(report)


def test_the_limit_is_that_of_the_run_however_often_it_is_started_again(world, way):
    for _ in range(6):
        step = world.step(ITEMS, processor=together(way), concurrency=AT_ONCE, **settings(5))
        report = run(step, way)
        assert (report.status, report.dead_lettered) == ("failed", 5)
        assert accounted(report)
    assert world.letters() == [1, 2, 3, 4, 5]
    report = run(world.step(ITEMS, **settings(5)), way)  # it is mended
    assert (report.status, report.written, report.dead_lettered) == ("completed", 27, 5)
    assert world.rows() == list(range(6, 33))


def always(item, _):
    raise Bad(item)


@pytest.mark.parametrize("fault_search", ["bisect", "linear", "chunk"])
def test_the_limit_holds_for_failures_of_the_writer_too(world, way, fault_search):
    for _ in range(3):
        step = world.step(ITEMS, write=always, fault_search=fault_search, **settings(5))
        report = run(step, way)
        assert (report.status, report.dead_lettered) == ("failed", 5)
        assert accounted(report)
    assert world.letters() == [1, 2, 3, 4, 5]


def test_a_new_run_has_its_own_limit(sqlite):
    step = sqlite.step(ITEMS, write=always, **settings(5))
    assert step.run().dead_lettered == step.run(on_existing="restart").dead_lettered == 5
    assert sqlite.letters() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_skip_rate_limits_the_skipped_items(world, way):
    for _ in range(3):
        step = world.step(range(1, 101), write=always, **settings(rate=0.125))
        report = run(step, way)
        assert (report.status, report.read, report.dead_lettered) == ("failed", 32, 4)
    assert world.letters() == [1, 2, 3, 4]


def test_the_rate_counts_only_when_enough_was_read(world, way):
    step = world.step(range(1, 101), write=always, **settings(rate=0.125, after=40))
    report = run(step, way)
    # All of the first chunk, when 32 were read; of 64 an eighth is given up already.
    assert (report.status, report.read, report.dead_lettered) == ("failed", 64, 32)


@given(percent=st.integers(1, 99), hundreds=st.integers(1, 100))
def test_a_rate_is_the_share_that_is_written_down(percent, hundreds):
    """Also if a float times a number is rounded."""
    policy, whole = SkipPolicy(rate=percent / 100), percent * hundreds
    assert policy.has_room(skipped=whole - 1, read=100 * hundreds)
    assert not policy.has_room(skipped=whole, read=100 * hundreds)


def test_of_nothing_that_was_read_there_is_no_share():
    assert not SkipPolicy(rate=0.29).has_room(skipped=0, read=0)
