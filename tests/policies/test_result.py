import pickle

import pytest

from retrytemplate import (
    CircuitBreakerRetryPolicy,
    ExceptionClassifier,
    MaxAttemptsRetryPolicy,
    ResultRetryPolicy,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    UnacceptableResultError,
)
from tests.policies.driving import Driven, attempts

REFUSED = UnacceptableResultError("no good", 17)


def test_inner_policy_decides_about_exceptions():
    policy = ResultRetryPolicy(bool, SimpleRetryPolicy(4, OSError))
    assert attempts(policy, OSError()) == 4
    assert attempts(policy, KeyError()) == 1
    assert policy.max_attempts == policy.attempt_limit == 4


def test_rejected_result_counts_for_any_classes_of_the_inner_policy():
    policy = ResultRetryPolicy(bool, SimpleRetryPolicy(4, OSError))
    assert attempts(policy, REFUSED) == 4
    assert attempts(policy, OSError(), REFUSED, OSError()) == 4


def test_default_is_three_attempts():
    assert attempts(ResultRetryPolicy(bool), REFUSED) == 3


def test_policy_keeps_state_only_if_the_inner_policy_does():
    assert not ResultRetryPolicy(bool).needs_state
    timed = ResultRetryPolicy(bool, TimeoutRetryPolicy(10))
    assert timed.needs_state
    assert Driven(timed).fail(REFUSED).allowed(after=10.0)
    assert not Driven(timed).fail(REFUSED).allowed(after=10.5)


def test_not_recoverable_of_the_inner_policy_applies():
    strict = SimpleRetryPolicy(1, not_recoverable=KeyError)
    for inner in (strict, strict & TimeoutRetryPolicy(10)):
        assert Driven(ResultRetryPolicy(bool, inner)).fail(KeyError()).recovery_forbidden()
        assert not Driven(ResultRetryPolicy(bool, inner)).fail(OSError()).recovery_forbidden()


def test_result_policy_over_circuit_keeps_its_context():
    policy = ResultRetryPolicy(bool, CircuitBreakerRetryPolicy(MaxAttemptsRetryPolicy(1)))
    assert policy.keeps_context
    driven = Driven(policy).fail(REFUSED)
    assert not driven.allowed()
    assert driven.shown == {"circuit.open": True, "circuit.short_count": 1}
    assert policy.failures(driven.state) == 1
    assert not ResultRetryPolicy(bool).keeps_context


def test_pickled_result_policy_over_circuit_keeps_its_context():
    policy = ResultRetryPolicy(bool, CircuitBreakerRetryPolicy())
    assert pickle.loads(pickle.dumps(policy)).keeps_context  # noqa: S301  # our own


def test_nested_rules_are_all_found():
    inner = ResultRetryPolicy(callable)
    outer = ResultRetryPolicy(bool, inner & MaxAttemptsRetryPolicy(2), when_exhausted="return")
    assert outer.result_rules() == (outer, inner)
    assert (outer.when_exhausted, inner.when_exhausted) == ("return", "raise")


def test_rule_that_names_rejected_results_decides_about_them():
    rules = ExceptionClassifier({UnacceptableResultError: False}, default=True)
    assert attempts(ResultRetryPolicy(bool, SimpleRetryPolicy(classifier=rules)), REFUSED) == 1


def test_invalid_settings_are_rejected():
    with pytest.raises(ValueError, match="when_exhausted must be 'raise' or 'return', got 'stop'"):
        ResultRetryPolicy(bool, when_exhausted="stop")
    with pytest.raises(TypeError, match="policy must be a RetryPolicy, got 3"):
        ResultRetryPolicy(bool, 3)
    with pytest.raises(TypeError, match="retry_if must be callable, got True"):
        ResultRetryPolicy(True)


def test_coroutine_function_as_rule_is_rejected():
    async def later(result):
        return True

    with pytest.raises(TypeError, match="retry_if must be a plain function, got the coroutine"):
        ResultRetryPolicy(later)
