import pytest

from retrytemplate import (
    AlwaysRetryPolicy,
    ExceptionClassifier,
    ExceptionClassifierRetryPolicy,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    ResultRetryPolicy,
    RetryPolicy,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
)
from tests.policies.driving import Driven, attempts


def chooser(**settings):
    return ExceptionClassifierRetryPolicy(
        {TimeoutError: MaxAttemptsRetryPolicy(5), OSError: MaxAttemptsRetryPolicy(2)}, **settings
    )


@pytest.mark.statement("S2-25")
def test_classes_have_different_numbers_of_attempts():
    assert attempts(chooser(), TimeoutError()) == 5
    assert attempts(chooser(), ConnectionError()) == 2


@pytest.mark.statement("S2-25")
def test_policy_counts_only_the_failures_it_was_selected_for():
    mixed = [TimeoutError(), OSError(), TimeoutError(), TimeoutError(), TimeoutError()]
    assert attempts(chooser(), *mixed, TimeoutError()) == 6
    assert attempts(chooser(), *mixed, OSError()) == 6
    assert attempts(chooser(), *mixed[:3], OSError()) == 4


def test_class_without_a_match_is_retried_only_by_the_default():
    assert attempts(chooser(), ValueError()) == 1
    assert attempts(chooser(default=MaxAttemptsRetryPolicy(3)), ValueError()) == 3


def test_first_attempt_is_always_allowed():
    assert Driven(ExceptionClassifierRetryPolicy({})).allowed()
    assert attempts(ExceptionClassifierRetryPolicy({}), OSError()) == 1


def test_latest_failure_selects_the_policy():
    driven = Driven(chooser()).fail(OSError()).fail(OSError())
    assert not driven.allowed()
    assert driven.fail(TimeoutError()).allowed()


def test_time_of_a_policy_starts_when_it_is_first_selected():
    timed = ExceptionClassifierRetryPolicy(
        {OSError: TimeoutRetryPolicy(10), KeyError: AlwaysRetryPolicy()}
    )
    driven = Driven(timed).fail(KeyError(), after=100.0).fail(OSError(), after=100.0)
    assert driven.allowed(after=10.0)
    assert driven.fail(KeyError(), after=5.0).allowed()
    assert not driven.fail(OSError()).allowed()


def test_only_the_selected_policy_decides():
    calls = []

    class Recording(RetryPolicy):
        def allows(self, failures, failure):
            calls.append(failure)
            return failures < 3

    policy = ExceptionClassifierRetryPolicy({OSError: Recording(), KeyError: SimpleRetryPolicy(3)})
    driven = Driven(policy).fail(KeyError())
    assert driven.allowed()
    assert not calls
    failure = OSError()
    assert driven.fail(failure).allowed()
    assert calls == [None, failure]


def test_policy_object_used_for_two_classes_counts_for_both():
    shared = MaxAttemptsRetryPolicy(3)
    policy = ExceptionClassifierRetryPolicy({OSError: shared, KeyError: shared}, default=shared)
    assert attempts(policy, OSError(), KeyError(), ValueError()) == 3


def test_two_equal_policies_count_separately():
    policy = ExceptionClassifierRetryPolicy(
        {OSError: MaxAttemptsRetryPolicy(2), KeyError: MaxAttemptsRetryPolicy(2)}
    )
    assert attempts(policy, OSError(), KeyError()) == 3


def test_causes_select_a_policy_only_with_traverse_causes():
    wrapped = ValueError()
    wrapped.__cause__ = TimeoutError()
    assert attempts(chooser(), wrapped) == 1
    assert attempts(chooser(traverse_causes=True), wrapped) == 5


def test_number_of_attempts_is_unknown():
    assert chooser().max_attempts is None
    assert chooser().attempt_limit is None


def test_not_recoverable_of_the_selected_policy_forbids_recovery():
    policy = ExceptionClassifierRetryPolicy(
        {
            OSError: SimpleRetryPolicy(1, not_recoverable=OSError),
            KeyError: SimpleRetryPolicy(1),
        }
    )
    assert Driven(policy).fail(OSError()).recovery_forbidden()
    assert not Driven(policy).fail(KeyError()).recovery_forbidden()
    assert not Driven(policy).fail(OSError()).fail(KeyError()).recovery_forbidden()


def test_rules_on_results_are_found_inside():
    rule = ResultRetryPolicy(bool, SimpleRetryPolicy(3))
    policy = ExceptionClassifierRetryPolicy({OSError: rule, KeyError: NeverRetryPolicy()})
    assert policy.result_rules() == (rule,)


def test_classifier_may_select_the_policy():
    patient = SimpleRetryPolicy(4)
    rules = ExceptionClassifier({OSError: patient, TimeoutError: False}, default=patient)
    policy = ExceptionClassifierRetryPolicy(rules)
    assert attempts(policy, OSError(), KeyError(), OSError(), OSError()) == 4
    assert attempts(policy, OSError(), TimeoutError()) == 2


def test_values_of_a_classifier_must_be_policies():
    message = "policies must map to RetryPolicy objects or False, got True as a value of "
    with pytest.raises(TypeError, match=message):
        ExceptionClassifierRetryPolicy(ExceptionClassifier({OSError: True}))
    for settings in ({"default": SimpleRetryPolicy()}, {"traverse_causes": True}):
        with pytest.raises(ValueError, match="must be left out when policies is a classifier"):
            ExceptionClassifierRetryPolicy(ExceptionClassifier({}), **settings)


def test_value_missing_in_values_of_a_classifier_raises():
    class Hides(ExceptionClassifier):
        def values(self):
            return ()

    policy = ExceptionClassifierRetryPolicy(Hides({OSError: SimpleRetryPolicy()}))
    with pytest.raises(LookupError, match=r"Hides\(.* returned SimpleRetryPolicy\(\), .* in its"):
        policy.record(policy.start(0.0), OSError(), 0.0)


def test_value_that_is_not_a_policy_is_rejected():
    with pytest.raises(TypeError, match=r"policies must map to RetryPolicy objects, got 3 for "):
        ExceptionClassifierRetryPolicy({OSError: 3})
    with pytest.raises(TypeError, match="map exception classes to policies, got the key 'OSError'"):
        ExceptionClassifierRetryPolicy({"OSError": SimpleRetryPolicy()})
    with pytest.raises(TypeError, match="policies must map exception classes to policies"):
        ExceptionClassifierRetryPolicy(SimpleRetryPolicy())
    with pytest.raises(TypeError, match="default must be a RetryPolicy, got None"):
        ExceptionClassifierRetryPolicy({}, default=None)
