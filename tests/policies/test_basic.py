"""The basic policies: a number, never, always, a time, a predicate."""

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
def test_max_attempts_depends_on_the_number_alone(number):
    assert attempts(MaxAttemptsRetryPolicy(number), KeyError(), OSError()) == number


def test_max_attempts_defaults_to_three():
    assert MaxAttemptsRetryPolicy().max_attempts == 3


@pytest.mark.statement("S0-66")
@pytest.mark.statement("S3-14")
def test_max_attempts_below_one_is_rejected():
    with pytest.raises(ValueError, match="max_attempts must be an int >= 1, got 0"):
        MaxAttemptsRetryPolicy(0)


def test_never_allows_only_the_first_attempt():
    assert attempts(NeverRetryPolicy(), OSError()) == 1
    assert NeverRetryPolicy().attempt_limit == 1
    assert NeverRetryPolicy().max_attempts is None


def test_always_allows_every_attempt():
    assert AlwaysRetryPolicy().allows(10**9, OSError())
    assert AlwaysRetryPolicy().attempt_limit is None


def test_timeout_allows_attempts_up_to_its_end():
    driven = Driven(TimeoutRetryPolicy(30.0), now=1000.0)
    assert driven.fail(OSError(), after=30.0).allowed()
    assert not driven.allowed(after=0.001)


def test_timeout_of_zero_allows_immediate_attempts():
    driven = Driven(TimeoutRetryPolicy(0))
    assert driven.allowed()
    assert not driven.allowed(after=0.001)


def test_timeout_may_be_a_timedelta():
    assert TimeoutRetryPolicy(timedelta(minutes=1)) == TimeoutRetryPolicy(60.0)


def test_timeout_may_be_infinite():
    assert Driven(TimeoutRetryPolicy(float("inf"))).allowed(after=1e12)


@pytest.mark.statement("S0-66")
@pytest.mark.parametrize("value", [-1, float("nan"), timedelta(seconds=-1)])
def test_negative_timeout_is_rejected(value):
    with pytest.raises(ValueError, match=r"timeout must be a number of seconds .* >= 0, got -?"):
        TimeoutRetryPolicy(value)


def test_timeout_of_wrong_type_is_rejected():
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        TimeoutRetryPolicy("30s")
    with pytest.raises(ValueError, match=r"timeout must be .* too large for a float"):
        TimeoutRetryPolicy(10**400)


def test_predicate_decides_without_a_limit():
    policy = PredicateRetryPolicy(lambda error: isinstance(error, OSError))
    assert attempts(policy, OSError()) == 100
    assert attempts(policy, OSError(), KeyError()) == 2


def test_predicate_is_not_called_before_the_first_failure():
    assert PredicateRetryPolicy(lambda error: 1 / 0).allows(0, None)


def test_predicate_may_return_any_type():
    assert PredicateRetryPolicy(lambda error: "yes").allows(1, OSError()) is True
    assert PredicateRetryPolicy(lambda error: None).allows(1, OSError()) is False


def test_exception_of_a_predicate_is_raised():
    with pytest.raises(ZeroDivisionError):
        PredicateRetryPolicy(lambda error: 1 / 0).allows(1, OSError())


def test_predicate_may_be_a_classifier():
    rules = ExceptionClassifier({OSError: True, FileNotFoundError: False}, traverse_causes=True)
    policy = PredicateRetryPolicy(rules.classify)
    wrapped = ValueError()
    wrapped.__cause__ = OSError()
    assert policy.allows(9, OSError())
    assert policy.allows(9, wrapped)
    assert not policy.allows(9, FileNotFoundError())


def test_other_method_of_a_classifier_is_an_ordinary_predicate():
    classifier = ExceptionClassifier({OSError: True})
    policy = PredicateRetryPolicy(classifier.names)
    assert not policy.allows(1, OSError())


@pytest.mark.parametrize("value", [None, True, OSError()])
def test_predicate_that_is_not_callable_is_rejected(value):
    with pytest.raises(TypeError, match="predicate must be callable, got "):
        PredicateRetryPolicy(value)


def test_coroutine_function_as_predicate_is_rejected():
    async def later(error):
        return True

    class Later:
        async def __call__(self, error):
            return True

    for predicate in (later, Later()):
        with pytest.raises(TypeError, match="predicate must be a plain function"):
            PredicateRetryPolicy(predicate)
