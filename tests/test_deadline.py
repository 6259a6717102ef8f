"""A deadline by itself: what is left of it, and whether it is over."""

from datetime import timedelta

import pytest

from retrytemplate import Deadline
from retrytemplate.testing import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock()


def test_a_deadline_is_over_when_nothing_is_left_of_it(clock):
    deadline = Deadline.after(2.0, clock=clock)
    assert not deadline.expired()
    clock.advance(1.5)
    assert (deadline.remaining(), deadline.expired()) == (0.5, False)
    clock.advance(0.5)
    assert (deadline.remaining(), deadline.expired()) == (0.0, True)
    clock.advance(1.0)
    assert (deadline.remaining(), deadline.expired()) == (0.0, True)


def test_before_it_is_entered_a_deadline_stands_still(clock):
    deadline = Deadline(timedelta(seconds=2), clock=clock)
    clock.advance(3.0)
    assert (deadline.remaining(), deadline.expired()) == (2.0, False)
    with deadline:
        assert (deadline.remaining(), deadline.expired()) == (2.0, False)


def test_a_deadline_of_no_time_is_over_from_the_start(clock):
    deadline = Deadline(0, clock=clock)
    assert deadline.expired()
    with deadline:
        assert deadline.expired()


def test_a_deadline_without_end_is_never_over(clock):
    deadline = Deadline.after(float("inf"), clock=clock)
    clock.advance(1e9)
    assert not deadline.expired()


def test_an_inner_deadline_is_over_with_the_outer_one(clock):
    with Deadline(1.0, clock=clock) as outer, Deadline(5.0, clock=clock) as inner:
        clock.advance(1.0)
        assert (outer.expired(), inner.expired()) == (True, True)
