"""Policies as values: equal if their settings are, hashable, represented by their settings."""

import copy
import pickle

import pytest

from retrytemplate import (
    AlwaysRetryPolicy,
    CircuitBreakerRetryPolicy,
    ExceptionClassifier,
    ExceptionClassifierRetryPolicy,
    ExponentialBackoff,
    FixedBackoff,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    NoBackoff,
    PatternClassifier,
    PredicateRetryPolicy,
    ResultRetryPolicy,
    RetryAfterBackoff,
    RetryPolicy,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    UniformRandomBackoff,
)

MAKERS = {
    "Simple": lambda: SimpleRetryPolicy(4, OSError, KeyError),
    "MaxAttempts": lambda: MaxAttemptsRetryPolicy(4),
    "Never": NeverRetryPolicy,
    "Always": AlwaysRetryPolicy,
    "Timeout": lambda: TimeoutRetryPolicy(4),
    "Predicate": lambda: PredicateRetryPolicy(bool),
    "Result": lambda: ResultRetryPolicy(bool, SimpleRetryPolicy(2), "return"),
    "chooser": lambda: ExceptionClassifierRetryPolicy({OSError: MaxAttemptsRetryPolicy(2)}),
    "breaker": lambda: CircuitBreakerRetryPolicy(SimpleRetryPolicy(2), 1, 2),
    "composite": lambda: (SimpleRetryPolicy(2) & TimeoutRetryPolicy(1)) | NeverRetryPolicy(),
    "NoBackoff": NoBackoff,
    "Fixed": lambda: FixedBackoff(4),
    "Uniform": lambda: UniformRandomBackoff(1, 2),
    "Exponential": lambda: ExponentialBackoff(1, 2, 3, "full"),
    "RetryAfter": lambda: RetryAfterBackoff(FixedBackoff(1), 3),
    "classifier": lambda: ExceptionClassifier({OSError: True}, default=1),
    "from config": lambda: ExceptionClassifier.from_config(
        {"builtins.OSError": True, "urllib.error.HTTPError": {"status": {"5xx": True}}}
    ),
    "patterns": lambda: PatternClassifier({"*": 1}),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_equal_settings_make_equal_policies_unlike_all_others(make):
    one, two = make(), make()
    assert one == two
    assert hash(one) == hash(two)
    assert repr(one) == repr(two)
    for other in MAKERS.values():
        assert other is make or one != other()


def pickled(one):
    return pickle.loads(pickle.dumps(one))  # noqa: S301  # our own


every_copy = pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, pickled])


@every_copy
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_copy_equals_the_original(make, make_copy):
    one = make()
    again = make_copy(one)
    assert (type(again), again, hash(again)) == (type(one), one, hash(one))
    assert repr(again) == repr(one)


@every_copy
def test_copy_decides_as_the_original(make_copy):
    worth = ExceptionClassifier.from_config({"builtins.OSError": True})
    policy = make_copy(SimpleRetryPolicy(4, not_on=KeyError) & PredicateRetryPolicy(worth.classify))
    assert policy.allows(1, OSError())
    assert not policy.allows(4, OSError())
    assert not policy.allows(1, KeyError())


@every_copy
def test_policy_used_twice_counts_once_also_in_a_copy(make_copy):
    both = MaxAttemptsRetryPolicy(3)
    policy = make_copy(ExceptionClassifierRetryPolicy({OSError: both, KeyError: both}))
    state = policy.start(0.0)
    for failure, allowed in [(OSError(), True), (KeyError(), True), (OSError(), False)]:
        state = policy.record(state, failure, 0.0)
        assert policy.decide(state, 0.0)[0] is allowed


def test_default_setting_is_not_shown():
    assert repr(ExponentialBackoff(maximum=float("30"), multiplier=float("3"))) == (
        "ExponentialBackoff(multiplier=3.0)"
    )
    assert repr(ExceptionClassifier({}, default=0)) == "ExceptionClassifier(rules={}, default=0)"


def test_different_settings_make_unequal_policies():
    assert SimpleRetryPolicy(2) != SimpleRetryPolicy(3)
    assert ExponentialBackoff(jitter="full") != ExponentialBackoff(jitter="equal")
    from_config = ExceptionClassifier.from_config
    assert from_config({"builtins.OSError": True}) != from_config({"builtins.OSError": False})


def test_representation_shows_the_settings():
    policy = SimpleRetryPolicy(5, OSError) & TimeoutRetryPolicy(30.0)
    assert repr(policy) == (
        "CompositeRetryPolicy(policies=(SimpleRetryPolicy(max_attempts=5, "
        "retry_on=(<class 'OSError'>,)), TimeoutRetryPolicy(timeout=30.0)))"
    )
    assert repr(ExponentialBackoff(jitter="full")) == "ExponentialBackoff(jitter='full')"


def test_custom_policy_is_equal_to_itself_alone():
    class Own(RetryPolicy):
        pass

    one = Own()
    assert one == one
    assert one != Own()
    assert len({one, Own()}) == 2
    assert "Own object at" in repr(one)


@pytest.mark.parametrize(
    ("policy", "endless"),
    [
        (AlwaysRetryPolicy(), True),
        (ResultRetryPolicy(bool, AlwaysRetryPolicy()), True),
        (CircuitBreakerRetryPolicy(AlwaysRetryPolicy()), True),
        (ExceptionClassifierRetryPolicy({}, default=AlwaysRetryPolicy()), True),
        (AlwaysRetryPolicy() & AlwaysRetryPolicy(), True),
        (AlwaysRetryPolicy() | NeverRetryPolicy(), True),
        (AlwaysRetryPolicy() & NeverRetryPolicy(), False),
        (ResultRetryPolicy(bool), False),
        (CircuitBreakerRetryPolicy(), False),
        (ExceptionClassifierRetryPolicy({OSError: AlwaysRetryPolicy()}), False),
        (PredicateRetryPolicy(bool), False),
        (TimeoutRetryPolicy(1), False),
        (SimpleRetryPolicy(), False),
    ],
)
def test_never_ends_is_known(policy, endless):
    assert policy.never_ends is endless
