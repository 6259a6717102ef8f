"""The policies of one idea: a number, never, always, a time, a predicate."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    AlwaysRetryPolicy,
    ExceptionClassifier,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    PredicateRetryPolicy,
    TimeoutRetryPolicy,
)
from tests.policies.driving import Driven, attempts


@given(st.integers(1, 50))
def test_max_attempts_looks_at_the_number_alone(number):
    assert attempts(MaxAttemptsRetryPolicy(number), KeyError(), OSError()) == number


def test_max_attempts_is_three_where_nothing_else_is_said():
    assert MaxAttemptsRetryPolicy().max_attempts == 3


@pytest.mark.statement("S0-66")
@pytest.mark.statement("S3-14")
def test_max_attempts_below_one_is_refused():
    with pytest.raises(ValueError, match="max_attempts must be an int >= 1, got 0"):
        MaxAttemptsRetryPolicy(0)


def test_never_makes_the_first_attempt_and_no_other():
    assert attempts(NeverRetryPolicy(), OSError()) == 1
    assert NeverRetryPolicy().attempt_limit == 1
    assert NeverRetryPolicy().max_attempts is None


def test_always_goes_on():
    assert AlwaysRetryPolicy().allows(10**9, OSError())
    assert AlwaysRetryPolicy().attempt_limit is None


def test_a_timeout_allows_attempts_up_to_its_very_end():
    driven = Driven(TimeoutRetryPolicy(30.0), now=1000.0)
    assert driven.fail(OSError(), after=30.0).allowed()
    assert not driven.allowed(after=0.001)


def test_a_timeout_of_zero_allows_what_happens_at_once():
    driven = Driven(TimeoutRetryPolicy(0))
    assert driven.allowed()
    assert not driven.allowed(after=0.001)


def test_a_timeout_may_be_a_timedelta():
    assert TimeoutRetryPolicy(timedelta(minutes=1)) == TimeoutRetryPolicy(60.0)


def test_a_timeout_is_infinite_where_asked_for():
    assert Driven(TimeoutRetryPolicy(float("inf"))).allowed(after=1e12)


@pytest.mark.statement("S0-66")
@pytest.mark.parametrize("value", [-1, float("nan"), timedelta(seconds=-1)])
def test_a_negative_timeout_is_refused(value):
    with pytest.raises(ValueError, match=r"timeout must be a number of seconds .* >= 0, got -?"):
        TimeoutRetryPolicy(value)


def test_a_timeout_that_is_no_time_is_refused():
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        TimeoutRetryPolicy("30s")
    with pytest.raises(ValueError, match=r"timeout must be .* too large for a float"):
        TimeoutRetryPolicy(10**400)


def test_a_predicate_decides_without_a_limit():
    policy = PredicateRetryPolicy(lambda error: isinstance(error, OSError))
    assert attempts(policy, OSError()) == 100
    assert attempts(policy, OSError(), KeyError()) == 2


def test_a_predicate_is_not_asked_before_the_first_failure():
    assert PredicateRetryPolicy(lambda error: 1 / 0).allows(0, None)


def test_a_predicate_may_give_anything_true_or_false():
    assert PredicateRetryPolicy(lambda error: "yes").allows(1, OSError()) is True
    assert PredicateRetryPolicy(lambda error: None).allows(1, OSError()) is False


def test_what_a_predicate_raises_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        PredicateRetryPolicy(lambda error: 1 / 0).allows(1, OSError())


def test_a_classifier_will_do_as_a_predicate():
    rules = ExceptionClassifier({OSError: True, FileNotFoundError: False}, traverse_causes=True)
    policy = PredicateRetryPolicy(rules.classify)
    wrapped = ValueError()
    wrapped.__cause__ = OSError()
    assert policy.allows(9, OSError())
    assert policy.allows(9, wrapped)
    assert not policy.allows(9, FileNotFoundError())


def test_another_method_of_a_classifier_is_a_predicate_like_any_other():
    classifier = ExceptionClassifier({OSError: True})
    policy = PredicateRetryPolicy(classifier.names)
    assert not policy.allows(1, OSError())


@pytest.mark.parametrize("value", [None, True, OSError()])
def test_what_cannot_be_called_is_no_predicate(value):
    with pytest.raises(TypeError, match="predicate must be callable, got "):
        PredicateRetryPolicy(value)


def test_a_coroutine_function_is_no_predicate():
    async def later(error):
        return True

    class Later:
        async def __call__(self, error):
            return True

    for predicate in (later, Later()):
        with pytest.raises(TypeError, match="predicate must be a plain function"):
            PredicateRetryPolicy(predicate)
