"""Exception groups: retryable only if every leaf is."""

import pytest

from retrytemplate import (
    AttemptLostError,
    AttemptTimeoutError,
    CircuitOpenError,
    ExceptionClassifier,
    ExceptionClassifierRetryPolicy,
    MaxAttemptsRetryPolicy,
    PredicateRetryPolicy,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
)
from tests.policies.driving import Driven, attempts, caused


def group(*leaves):
    return ExceptionGroup("several", list(leaves))


RETRIED = SimpleRetryPolicy(3, retry_on=(ConnectionError, TimeoutError))


def test_group_is_retried_only_if_all_leaves_are_retryable():
    assert attempts(RETRIED, group(ConnectionError(), TimeoutError())) == 3
    assert attempts(RETRIED, group(ConnectionError(), ValueError())) == 1


def test_leaves_of_nested_groups_count():
    assert attempts(RETRIED, group(ConnectionError(), group(group(TimeoutError())))) == 3
    assert attempts(RETRIED, group(ConnectionError(), group(group(ValueError())))) == 1


def test_default_rule_for_every_exception_checks_the_leaves():
    policy = SimpleRetryPolicy(3, not_on=ValueError)
    assert attempts(policy, group(OSError(), KeyError())) == 3
    assert attempts(policy, group(OSError(), ValueError())) == 1


def test_leaf_that_is_not_an_exception_makes_the_group_fatal():
    mixed = BaseExceptionGroup("several", [OSError(), KeyboardInterrupt()])
    assert attempts(SimpleRetryPolicy(3), mixed) == 1


def test_predicate_is_called_with_each_leaf():
    policy = PredicateRetryPolicy(lambda error: isinstance(error, OSError))
    assert policy.allows(1, group(ConnectionError(), group(TimeoutError())))
    assert not policy.allows(1, group(ConnectionError(), ValueError()))


def test_predicate_with_fatal_classes_is_called_with_each_leaf():
    policy = SimpleRetryPolicy(3, retry_on=lambda error: True, not_on=ValueError)
    assert policy.allows(1, group(OSError(), KeyError()))
    assert not policy.allows(1, group(OSError(), ValueError()))


def test_rule_for_the_group_class_decides_for_the_group():
    class Batch(ExceptionGroup):
        def derive(self, excs):
            return Batch(self.message, excs)

    policy = SimpleRetryPolicy(3, retry_on=(Batch,), not_on=(ExceptionGroup, ValueError))
    assert attempts(policy, Batch("batch", [ValueError()])) == 3
    assert attempts(policy, group(OSError())) == 1
    assert attempts(policy, group(Batch("batch", [ValueError()]))) == 1


def test_rule_for_a_group_class_applies_inside_another_group():
    class Batch(ExceptionGroup):
        pass

    policy = SimpleRetryPolicy(3, retry_on=(Batch, OSError))
    assert attempts(policy, group(OSError(), Batch("batch", [ValueError()]))) == 3


def test_group_class_with_another_base_is_classified_by_its_leaves():
    class Trouble(Exception):
        pass

    class Troubles(Trouble, ExceptionGroup):
        pass

    policy = SimpleRetryPolicy(3, retry_on=(Trouble, OSError))
    assert attempts(policy, Troubles("several", [OSError()])) == 3
    assert attempts(policy, Troubles("several", [ValueError()])) == 1


def test_causes_of_the_leaves_are_read_with_traverse_causes():
    policy = SimpleRetryPolicy(3, ConnectionError, traverse_causes=True)
    assert attempts(policy, group(caused(ValueError(), ConnectionError()), ConnectionError())) == 3
    assert attempts(policy, group(caused(ValueError(), KeyError()), ConnectionError())) == 1


def test_group_as_a_cause_is_classified_by_its_leaves():
    policy = SimpleRetryPolicy(3, ConnectionError, not_on=ValueError, traverse_causes=True)
    assert attempts(policy, caused(KeyError(), group(ConnectionError()))) == 3
    assert attempts(policy, caused(KeyError(), group(ConnectionError(), ValueError()))) == 1


def test_retryable_cause_of_the_group_does_not_replace_a_leaf():
    policy = SimpleRetryPolicy(3, ConnectionError, traverse_causes=True)
    assert attempts(policy, caused(group(ValueError()), ConnectionError())) == 1


def test_fatal_cause_of_the_group_is_fatal():
    rules = ExceptionClassifier({KeyError: False}, default=True, traverse_causes=True)
    policy = SimpleRetryPolicy(3, classifier=rules)
    assert attempts(policy, group(ValueError())) == 3
    assert attempts(policy, caused(group(ValueError()), KeyError())) == 1


def test_cycle_of_causes_through_a_group_ends():
    leaf = ValueError()
    around = group(leaf, ConnectionError())
    leaf.__cause__ = around
    policy = SimpleRetryPolicy(3, ConnectionError, traverse_causes=True)
    assert attempts(policy, around) == 1


def test_rejection_inside_a_group_is_retried_only_if_a_rule_names_it():
    rejected = group(OSError(), CircuitOpenError())
    assert attempts(SimpleRetryPolicy(3), rejected) == 1
    assert attempts(PredicateRetryPolicy(lambda error: True), rejected) == 1
    assert attempts(SimpleRetryPolicy(3, (OSError, CircuitOpenError)), rejected) == 3


def test_lost_attempt_inside_a_group_is_not_retried():
    assert attempts(SimpleRetryPolicy(3), group(AttemptLostError("lost"))) == 1


def test_attempt_timeout_inside_a_group_is_a_timeout():
    assert attempts(SimpleRetryPolicy(3, TimeoutError), group(AttemptTimeoutError())) == 3


def test_leaf_or_cause_that_is_not_recoverable_forbids_recovery():
    policy = SimpleRetryPolicy(1, not_recoverable=ValueError)
    assert policy.forbids_recovery(1, group(OSError(), group(ValueError())))
    assert policy.forbids_recovery(1, caused(group(OSError()), ValueError()))
    assert not policy.forbids_recovery(1, group(OSError(), KeyError()))


def test_policy_that_all_leaves_select_is_used():
    chooser = ExceptionClassifierRetryPolicy(
        {OSError: MaxAttemptsRetryPolicy(4), KeyError: MaxAttemptsRetryPolicy(2)}
    )
    assert attempts(chooser, group(OSError(), ConnectionError())) == 4
    assert attempts(chooser, group(KeyError(), group(KeyError()))) == 2
    assert attempts(chooser, group(ValueError(), ValueError())) == 1


def test_group_whose_leaves_agree_counts_once():
    chooser = ExceptionClassifierRetryPolicy({OSError: MaxAttemptsRetryPolicy(4)})
    driven = Driven(chooser).fail(group(OSError(), OSError(), OSError()))
    assert driven.state["members"] == {"0": [1, True, False]}


def test_first_selected_policy_that_rejects_decides_for_mixed_leaves():
    chooser = ExceptionClassifierRetryPolicy(
        {
            OSError: MaxAttemptsRetryPolicy(9),
            KeyError: MaxAttemptsRetryPolicy(2),
            LookupError: MaxAttemptsRetryPolicy(1),
        }
    )
    driven = Driven(chooser).fail(group(OSError(), LookupError(), ValueError()))
    assert not driven.allowed()
    assert driven.state["chosen"] == "2"


def test_each_selected_policy_counts_for_mixed_leaves_if_none_rejects():
    chooser = ExceptionClassifierRetryPolicy(
        {OSError: MaxAttemptsRetryPolicy(9), KeyError: MaxAttemptsRetryPolicy(2)}
    )
    assert attempts(chooser, group(OSError(), KeyError())) == 2
    assert attempts(chooser, group(OSError(), KeyError()), KeyError()) == 2
    assert Driven(chooser).fail(group(OSError(), KeyError())).state["chosen"] == "0"


def test_policy_for_the_group_class_is_used():
    chooser = ExceptionClassifierRetryPolicy(
        {ExceptionGroup: MaxAttemptsRetryPolicy(3), OSError: MaxAttemptsRetryPolicy(2)}
    )
    assert attempts(chooser, group(OSError())) == 3


def test_causes_of_leaves_select_with_traverse_causes():
    policies = {OSError: MaxAttemptsRetryPolicy(3)}
    wrapped = group(caused(ValueError(), OSError()))
    assert attempts(ExceptionClassifierRetryPolicy(policies), wrapped) == 1
    assert attempts(ExceptionClassifierRetryPolicy(policies, traverse_causes=True), wrapped) == 3


@pytest.mark.parametrize("flat", [True, False])
def test_members_with_state_get_the_group(flat):
    inner = SimpleRetryPolicy(3, OSError)
    policy = inner if flat else inner & TimeoutRetryPolicy(100)
    assert attempts(policy, group(OSError())) == 3
    assert attempts(policy, group(OSError(), KeyError())) == 1
