"""A budget that continues the state of another one."""

import pytest

from retrytemplate import RetryBudgetExhaustedError
from retrytemplate.control import RetryBudget
from retrytemplate.testing import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock()


def budget(clock, **settings):
    return RetryBudget(
        **{"ratio": 0.0, "min_per_second": 1.0, "ttl": 10.0, **settings}, clock=clock
    )


def withdraw(made, times):
    for _ in range(times):
        made.withdraw()


def test_equal_budget_continues_with_the_same_balance(clock):
    old, new = budget(clock), budget(clock)
    withdraw(old, 4)
    new.restore_state_from(old)
    assert (new.snapshot().available, old.snapshot().available) == (6.0, 6.0)


def test_exhausted_budget_stays_exhausted_with_other_settings(clock):
    old, new = budget(clock), budget(clock, min_per_second=5.0, ttl=20.0)
    withdraw(old, 10)
    new.restore_state_from(old)
    with pytest.raises(RetryBudgetExhaustedError):
        new.withdraw()


def test_withdrawals_taken_over_leave_the_window_at_their_time(clock):
    old, new = budget(clock), budget(clock)
    withdraw(old, 3)
    clock.advance(5.0)
    withdraw(old, 2)
    new.restore_state_from(old)
    clock.advance(6.0)
    assert new.snapshot().available == 8.0


def test_counted_calls_are_taken_over(clock):
    old, new = (budget(clock, ratio=0.5, min_per_second=0.0) for _ in range(2))
    for _ in range(4):
        old._deposit()
    new.restore_state_from(old)
    assert new.snapshot().available == 2.0


def test_bucket_keeps_the_share_that_is_left(clock):
    old = RetryBudget.tokens(capacity=10, clock=clock)
    new = RetryBudget.tokens(capacity=100, refill_per_second=1.0, clock=clock)
    clock.advance(60.0)
    withdraw(old, 1)
    new.restore_state_from(old)
    clock.advance(2.0)
    assert new.snapshot().available == 52.0


@pytest.mark.parametrize("other", [object(), RetryBudget.tokens()], ids=["object", "tokens"])
def test_budget_of_another_form_is_rejected(clock, other):
    with pytest.raises(TypeError, match="other must be a"):
        budget(clock).restore_state_from(other)
