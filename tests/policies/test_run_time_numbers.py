"""Callable numbers: read when an execution resolves its policy, and checked."""

from datetime import timedelta
from functools import wraps

import pytest

from retrytemplate import (
    AlwaysRetryPolicy,
    CircuitBreakerRetryPolicy,
    CompositeRetryPolicy,
    ExceptionClassifierRetryPolicy,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    PredicateRetryPolicy,
    ResultRetryPolicy,
    RetryPolicy,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
)
from tests.policies.driving import Driven, attempts

STEADY = [
    SimpleRetryPolicy(2),
    MaxAttemptsRetryPolicy(2),
    NeverRetryPolicy(),
    AlwaysRetryPolicy(),
    TimeoutRetryPolicy(1),
    PredicateRetryPolicy(bool),
    ResultRetryPolicy(bool),
    ExceptionClassifierRetryPolicy({OSError: SimpleRetryPolicy(2)}),
    CircuitBreakerRetryPolicy(),
    SimpleRetryPolicy(2) & (TimeoutRetryPolicy(1) | NeverRetryPolicy()),
]


def numbers(*values):
    return iter(values).__next__


@pytest.mark.parametrize("policy", STEADY, ids=lambda policy: type(policy).__name__)
def test_policy_without_callables_resolves_to_itself(policy):
    assert not policy.dynamic
    assert policy.resolved() is policy


@pytest.mark.parametrize("kind", [SimpleRetryPolicy, MaxAttemptsRetryPolicy])
def test_number_of_attempts_is_read_once_per_execution(kind):
    policy = kind(numbers(2, 4))
    assert policy.dynamic
    assert policy.max_attempts is None
    assert attempts(policy.resolved(), OSError()) == 2
    second = policy.resolved()
    assert attempts(second, OSError()) == second.max_attempts == 4


@pytest.mark.parametrize("kind", [SimpleRetryPolicy, MaxAttemptsRetryPolicy, TimeoutRetryPolicy])
def test_function_with_parameters_is_rejected(kind):
    with pytest.raises(TypeError, match="must be a number, or a function without parameters, got"):
        kind(lambda context: 2)


def test_decorated_function_has_the_parameters_of_its_wrapper():
    def limit(settings):
        return settings["attempts"]

    @wraps(limit)
    def read():
        return limit({"attempts": 2})

    assert SimpleRetryPolicy(read).resolved().max_attempts == 2


@pytest.mark.parametrize("kind", [SimpleRetryPolicy, MaxAttemptsRetryPolicy])
def test_unresolved_number_is_read_for_each_decision(kind):
    limit = 2
    policy = kind(lambda: limit)
    assert not policy.allows(3, OSError())
    limit = 5
    assert policy.allows(3, OSError())


def test_other_settings_are_kept():
    policy = SimpleRetryPolicy(lambda: 2, OSError, KeyError, ValueError)
    assert policy.resolved() == SimpleRetryPolicy(2, OSError, KeyError, ValueError)


def test_timeout_is_read():
    policy = TimeoutRetryPolicy(numbers(10, timedelta(seconds=20), 30))
    assert policy.resolved() == TimeoutRetryPolicy(10)
    assert policy.resolved() == TimeoutRetryPolicy(20.0)
    assert Driven(policy).allowed(after=30.0)


def test_times_of_a_circuit_are_read():
    policy = CircuitBreakerRetryPolicy(
        SimpleRetryPolicy(lambda: 2), open_timeout=lambda: 1, reset_timeout=lambda: 2
    )
    assert policy.resolved() == CircuitBreakerRetryPolicy(SimpleRetryPolicy(2), 1.0, 2.0)
    assert CircuitBreakerRetryPolicy(SimpleRetryPolicy(lambda: 2)).dynamic
    assert not Driven(policy).fail(OSError()).fail(OSError()).allowed()


def test_members_of_composites_are_read_recursively():
    steady = NeverRetryPolicy()
    policy = CompositeRetryPolicy(
        [steady, ResultRetryPolicy(bool, TimeoutRetryPolicy(lambda: 7))], optimistic=True
    )
    assert policy.dynamic
    resolved = policy.resolved()
    assert resolved == steady | ResultRetryPolicy(bool, TimeoutRetryPolicy(7))
    assert resolved.policies[0] is steady


def test_member_policies_are_read_and_a_shared_one_stays_shared():
    shared = MaxAttemptsRetryPolicy(numbers(3))
    policy = ExceptionClassifierRetryPolicy({OSError: shared, KeyError: shared}, default=shared)
    assert policy.dynamic
    assert attempts(policy.resolved(), OSError(), KeyError(), ValueError()) == 3


def test_one_member_with_a_callable_is_enough():
    policy = ExceptionClassifierRetryPolicy({OSError: MaxAttemptsRetryPolicy(lambda: 3)})
    assert policy.resolved() == ExceptionClassifierRetryPolicy({OSError: MaxAttemptsRetryPolicy(3)})


def test_custom_policy_with_resolved_is_dynamic():
    class Own(RetryPolicy):
        def resolved(self):
            return NeverRetryPolicy()

    assert Own().dynamic
    assert (Own() & AlwaysRetryPolicy()).resolved().policies[0] == NeverRetryPolicy()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (SimpleRetryPolicy(lambda: 0), "max_attempts must be an int >= 1, got 0"),
        (MaxAttemptsRetryPolicy(lambda: -2), "max_attempts must be an int >= 1, got -2"),
        (TimeoutRetryPolicy(lambda: -1), "timeout must be a number of seconds .* >= 0, got -1"),
        (CircuitBreakerRetryPolicy(open_timeout=lambda: -1), "open_timeout must be .* got -1"),
        (CircuitBreakerRetryPolicy(reset_timeout=lambda: -1), "reset_timeout must be .* got -1"),
        (SimpleRetryPolicy(3) & SimpleRetryPolicy(lambda: 0), "max_attempts must be .* got 0"),
    ],
)
def test_invalid_number_is_rejected_as_at_construction(policy, message):
    with pytest.raises(ValueError, match=message):
        policy.resolved()


@pytest.mark.parametrize("value", [None, "3", 2.5, True, lambda: 3])
def test_number_of_wrong_type_is_rejected(value):
    with pytest.raises(TypeError, match="max_attempts must be an int >= 1, got"):
        SimpleRetryPolicy(lambda: value).resolved()
