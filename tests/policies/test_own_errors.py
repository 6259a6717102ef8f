"""The library's own errors as failures: which are only counted, and which must be named."""

import pytest

from retrytemplate import (
    AttemptLostError,
    AttemptTimeoutError,
    CircuitBreakerRetryPolicy,
    CircuitOpenError,
    DeadlineExceededError,
    ExceptionClassifier,
    ExceptionClassifierRetryPolicy,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    PredicateRetryPolicy,
    RecordedFailure,
    Rejected,
    ResultRetryPolicy,
    RetryError,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    UnacceptableResultError,
)
from tests.policies.driving import Driven, attempts

COUNTED = [
    AttemptLostError("lost"),
    UnacceptableResultError("no good"),
    RecordedFailure("ValueError"),
]


def by_name(error):
    return type(error).__name__


@pytest.mark.parametrize("error", COUNTED, ids=by_name)
def test_count_only_errors_count_without_rules_on_other_classes(error):
    strict = SimpleRetryPolicy(3, retry_on=OSError, not_on=(Exception,))
    traversing = SimpleRetryPolicy(3, retry_on=OSError, traverse_causes=True)
    denying = SimpleRetryPolicy(3, classifier=ExceptionClassifier({Exception: False}))
    assert attempts(strict, error) == attempts(traversing, error) == attempts(denying, error) == 3


@pytest.mark.parametrize("error", COUNTED, ids=by_name)
def test_predicate_is_not_called(error):
    calls = []
    assert PredicateRetryPolicy(calls.append).allows(1, error)
    assert SimpleRetryPolicy(3, retry_on=calls.append).allows(1, error)
    assert not calls


@pytest.mark.parametrize("error", COUNTED, ids=by_name)
def test_classifier_from_a_configuration_is_not_called(error):
    rules = ExceptionClassifier.from_config({"builtins.Exception": False})
    assert SimpleRetryPolicy(3, classifier=rules).allows(1, error)
    assert PredicateRetryPolicy(rules.classify).allows(1, error)


@pytest.mark.parametrize("error", COUNTED, ids=by_name)
@pytest.mark.parametrize("level", [0, 1])
def test_rule_that_names_the_error_decides(error, level):
    kind = type(error).__mro__[level]
    assert attempts(SimpleRetryPolicy(3, retry_on=Exception, not_on=kind), error) == 1
    assert attempts(SimpleRetryPolicy(3, retry_on=kind), error) == 3
    rules = ExceptionClassifier({kind: False}, default=True)
    assert attempts(PredicateRetryPolicy(rules.classify), error) == 1


def test_configuration_may_name_the_error():
    rules = ExceptionClassifier.from_config(
        {"retrytemplate.errors.AttemptLostError": False}, default=True
    )
    assert attempts(SimpleRetryPolicy(3, classifier=rules), AttemptLostError("lost")) == 1


def test_never_policy_rejects_after_a_lost_attempt():
    assert attempts(NeverRetryPolicy(), AttemptLostError("lost")) == 1


@pytest.mark.parametrize("error", COUNTED, ids=by_name)
def test_recovery_is_forbidden_only_by_a_rule_that_names_the_error(error):
    assert not SimpleRetryPolicy(1, not_recoverable=Exception).forbids_recovery(1, error)
    assert SimpleRetryPolicy(1, not_recoverable=type(error)).forbids_recovery(1, error)


def test_attempt_timeout_is_a_timeout_error():
    assert attempts(SimpleRetryPolicy(3, retry_on=TimeoutError), AttemptTimeoutError()) == 3
    assert attempts(SimpleRetryPolicy(3, retry_on=ConnectionError), AttemptTimeoutError()) == 1


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (SimpleRetryPolicy(retry_on=Rejected), CircuitOpenError()),
        (SimpleRetryPolicy(retry_on=Exception, not_on=CircuitOpenError), CircuitOpenError()),
        (SimpleRetryPolicy(retry_on=DeadlineExceededError), DeadlineExceededError()),
        (SimpleRetryPolicy(classifier=ExceptionClassifier({RetryError: 1})), CircuitOpenError()),
        (PredicateRetryPolicy(ExceptionClassifier({Rejected: True}).classify), Rejected()),
        (TimeoutRetryPolicy(1) & SimpleRetryPolicy(retry_on=Rejected), Rejected()),
        (ExceptionClassifierRetryPolicy({Rejected: SimpleRetryPolicy(5)}), Rejected()),
        (
            ExceptionClassifierRetryPolicy({Exception: SimpleRetryPolicy(retry_on=Rejected)}),
            Rejected(),
        ),
        (ResultRetryPolicy(bool, SimpleRetryPolicy(retry_on=Rejected)), Rejected()),
        (CircuitBreakerRetryPolicy(SimpleRetryPolicy(retry_on=Rejected)), Rejected()),
    ],
)
def test_rule_names_an_error_by_its_class_or_a_base_of_the_library(policy, error):
    assert policy.matches_library_error(error)


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (SimpleRetryPolicy(), CircuitOpenError()),
        (SimpleRetryPolicy(retry_on=TimeoutError), DeadlineExceededError()),
        (SimpleRetryPolicy(retry_on=CircuitOpenError), Rejected()),
        (PredicateRetryPolicy(lambda error: True), Rejected()),
        (MaxAttemptsRetryPolicy(3), Rejected()),
        (ExceptionClassifierRetryPolicy({Exception: SimpleRetryPolicy(5)}), Rejected()),
    ],
)
def test_rule_on_a_builtin_base_does_not_name_the_error(policy, error):
    assert not policy.matches_library_error(error)


def test_lost_attempt_counts_with_every_member_policy():
    chooser = ExceptionClassifierRetryPolicy(
        {TimeoutError: SimpleRetryPolicy(4), OSError: SimpleRetryPolicy(2)}
    )
    assert attempts(chooser, AttemptLostError("lost")) == 4
    assert attempts(chooser, AttemptLostError("lost"), TimeoutError()) == 4
    assert attempts(chooser, AttemptLostError("lost"), OSError()) == 2


def test_lost_attempts_alone_forbid_recovery_only_by_name():
    def lost_twice(kind):
        strict = SimpleRetryPolicy(2, not_recoverable=kind)
        driven = Driven(ExceptionClassifierRetryPolicy({OSError: strict}))
        return driven.fail(AttemptLostError("lost")).fail(AttemptLostError("lost"))

    assert not lost_twice(Exception).recovery_forbidden()
    assert lost_twice(AttemptLostError).recovery_forbidden()


def test_lost_attempt_does_not_change_the_selected_policy():
    chooser = ExceptionClassifierRetryPolicy(
        {TimeoutError: SimpleRetryPolicy(4), OSError: SimpleRetryPolicy(3)}
    )
    driven = Driven(chooser).fail(OSError()).fail(AttemptLostError("lost"))
    assert driven.allowed()
    assert not driven.fail(AttemptLostError("lost")).allowed()


def test_policy_for_lost_attempts_is_selected_by_name():
    chooser = ExceptionClassifierRetryPolicy(
        {AttemptLostError: MaxAttemptsRetryPolicy(2), Exception: MaxAttemptsRetryPolicy(9)}
    )
    assert attempts(chooser, AttemptLostError("lost")) == 2


def test_lost_attempt_does_not_restart_the_time():
    timed = ExceptionClassifierRetryPolicy({OSError: TimeoutRetryPolicy(10)})
    driven = Driven(timed).fail(OSError()).fail(AttemptLostError("lost"), after=9.0)
    assert driven.allowed(after=1.0)
    assert not driven.allowed(after=0.5)
