from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    AlwaysRetryPolicy,
    CircuitBreakerRetryPolicy,
    ExceptionClassifierRetryPolicy,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    ResultRetryPolicy,
    RetryPolicy,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
)
from tests.policies.driving import Driven


def breaker(limit=2, **times):
    times = {"open_timeout": 5.0, "reset_timeout": 20.0} | times
    return Driven(CircuitBreakerRetryPolicy(MaxAttemptsRetryPolicy(limit), **times))


def count(driven):
    return driven.policy.failures(driven.state)


def open_breaker(**times):
    driven = breaker(1, **times).fail(OSError())
    assert not driven.allowed()
    return driven


def test_circuit_is_closed_while_the_delegate_allows():
    driven = breaker(2)
    assert driven.allowed()
    assert driven.fail(OSError()).allowed()
    assert driven.shown == {"circuit.open": False, "circuit.short_count": 0}


def test_circuit_opens_when_delegate_rejects_and_counts_the_rejection():
    driven = breaker(2).fail(OSError()).fail(OSError())
    assert not driven.allowed()
    assert driven.shown == {"circuit.open": True, "circuit.short_count": 1}
    assert not driven.allowed()
    assert driven.shown["circuit.short_count"] == 2


def test_circuit_state_is_unknown_before_the_first_check():
    driven = breaker()
    assert driven.shown == {"circuit.short_count": 0}
    assert "circuit.open" not in driven.fail(OSError()).shown


def test_circuit_closes_after_reset_time_with_a_new_delegate_state():
    driven = open_breaker()
    assert not driven.allowed(after=20.0)
    assert driven.allowed(after=0.001)
    assert driven.shown == {"circuit.open": False, "circuit.short_count": 0}
    assert count(driven) == 0


def test_reset_time_runs_from_the_opening():
    driven = breaker(1).fail(OSError(), after=4.0)
    assert not driven.allowed()
    assert not driven.allowed(after=20.0)
    assert driven.allowed(after=0.001)


@pytest.mark.parametrize("late", [5.0, 12.0, 20.0])
def test_circuit_that_opens_late_resets_earlier(late):
    driven = breaker(1).fail(OSError(), after=late)
    assert not driven.allowed()
    assert driven.shown["circuit.open"]
    assert driven.allowed(after=20.0 - late + 0.001)


def test_rejections_while_open_do_not_move_the_reset():
    driven = open_breaker()
    for _ in range(4):
        assert not driven.allowed(after=5.0)
    assert driven.allowed(after=0.001)


def test_failures_are_discarded_after_a_window_without_opening():
    driven = breaker(2).fail(OSError())
    assert driven.allowed(after=5.0)
    assert count(driven) == 1
    assert driven.allowed(after=0.001)
    assert count(driven) == 0
    assert driven.fail(OSError()).allowed()


def test_success_discards_no_failure():
    driven = breaker(2).fail(OSError())
    assert driven.allowed()
    assert driven.allowed()
    assert not driven.fail(OSError()).allowed()


def test_late_failure_opens_a_circuit_that_was_not_checked_before():
    driven = breaker(1).fail(OSError(), after=100.0)
    assert driven.allowed()
    assert count(driven) == 0


def test_delegate_that_rejects_from_the_start_opens_at_once():
    refuses = CircuitBreakerRetryPolicy(TimeoutRetryPolicy(0), open_timeout=5, reset_timeout=20)
    driven = Driven(refuses)
    assert driven.allowed()
    assert not driven.allowed(after=0.5)
    assert driven.shown == {"circuit.open": True, "circuit.short_count": 1}


def test_delegate_that_rejects_again_reopens_the_circuit():
    class Refusing(RetryPolicy):
        def allows(self, failures, failure):
            return False

    driven = Driven(CircuitBreakerRetryPolicy(Refusing(), open_timeout=5, reset_timeout=20))
    assert not driven.allowed()
    assert not driven.allowed(after=1.0)
    assert driven.shown["circuit.short_count"] == 2
    assert not driven.allowed(after=20.0)
    assert driven.shown == {"circuit.open": True, "circuit.short_count": 1}


def test_delegate_may_keep_state():
    timed = CircuitBreakerRetryPolicy(TimeoutRetryPolicy(1), open_timeout=50, reset_timeout=60)
    driven = Driven(timed)
    assert driven.allowed(after=1.0)
    assert not driven.allowed(after=0.5)
    assert driven.allowed(after=60.5)


def test_delegate_decides_which_failures_count():
    policy = CircuitBreakerRetryPolicy(
        ExceptionClassifierRetryPolicy({OSError: MaxAttemptsRetryPolicy(2)}, AlwaysRetryPolicy())
    )
    driven = Driven(policy)
    for _ in range(9):
        assert driven.fail(KeyError()).allowed()
    assert driven.fail(OSError()).allowed()
    assert not driven.fail(OSError()).allowed()


@pytest.mark.parametrize("nested", [False, True])
def test_not_recoverable_of_the_delegate_applies(nested):
    strict = SimpleRetryPolicy(1, not_recoverable=KeyError)
    delegate = strict & TimeoutRetryPolicy(100) if nested else strict
    assert Driven(CircuitBreakerRetryPolicy(delegate)).fail(KeyError()).recovery_forbidden()
    assert not Driven(CircuitBreakerRetryPolicy(delegate)).fail(OSError()).recovery_forbidden()


def test_circuit_keeps_its_context_and_declares_no_number():
    policy = CircuitBreakerRetryPolicy()
    assert policy.keeps_context
    assert policy.max_attempts is None
    assert policy.attempt_limit is None


def test_defaults_equal_those_of_the_reference():
    policy = CircuitBreakerRetryPolicy()
    assert (policy.delegate, policy.open_timeout, policy.reset_timeout) == (
        SimpleRetryPolicy(3),
        5.0,
        20.0,
    )


def test_times_may_be_timedeltas_and_open_time_the_longer_one():
    policy = CircuitBreakerRetryPolicy(open_timeout=timedelta(minutes=1), reset_timeout=1)
    assert policy.open_timeout == 60.0


def test_rules_on_results_are_found_inside():
    rule = ResultRetryPolicy(bool)
    assert CircuitBreakerRetryPolicy(rule).result_rules() == (rule,)


@pytest.mark.statement("S0-66")
@pytest.mark.parametrize("field", ["open_timeout", "reset_timeout"])
def test_negative_times_are_rejected(field):
    with pytest.raises(ValueError, match=f"{field} must be a number of seconds .* >= 0, got -1"):
        CircuitBreakerRetryPolicy(**{field: -1})


def test_delegate_that_is_not_a_policy_is_rejected():
    with pytest.raises(TypeError, match="delegate must be a RetryPolicy, got 3"):
        CircuitBreakerRetryPolicy(3)


class Reference:
    """The state machine implemented from its description, with a count as delegate."""

    def __init__(self, limit, window, reset):
        self.limit, self.window, self.reset = limit, window, reset
        self.failures, self.started, self.flag, self.short = 0, 0.0, None, 0

    def afresh(self, now):
        self.failures, self.started, self.short = 0, now, 0

    def is_open(self, now):
        elapsed = now - self.started
        if self.failures < self.limit:
            if elapsed > self.window:
                self.afresh(now)
            self.flag = False
        elif elapsed > self.reset:
            self.afresh(now)
            self.flag = False
        else:
            if elapsed < self.window and not self.flag:
                self.started = now
            self.flag = True
        return self.flag

    def allows(self, now):
        if self.is_open(now):
            self.short += 1
            return False
        self.short = 0
        return True


steps = st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=40)


@given(st.integers(1, 3), st.integers(0, 9), st.integers(0, 9), steps)
def test_every_history_matches_the_description(limit, window, reset, history):
    driven = breaker(limit, open_timeout=window, reset_timeout=reset)
    reference = Reference(limit, window, reset)
    for fails, passing in history:
        if fails:
            driven.fail(OSError(), after=passing)
            reference.failures += 1
        else:
            assert driven.allowed(after=passing) == reference.allows(driven.now)
        assert driven.shown.get("circuit.open") == reference.flag
        assert driven.shown["circuit.short_count"] == reference.short
        assert count(driven) == reference.failures


def test_never_as_a_delegate_opens_at_the_first_failure():
    driven = Driven(CircuitBreakerRetryPolicy(NeverRetryPolicy()))
    assert driven.allowed()
    assert not driven.fail(OSError()).allowed()
