import concurrent.futures
from asyncio import CancelledError

import pytest

from retrytemplate import (
    ExceptionClassifier,
    MaxAttemptsRetryPolicy,
    PredicateRetryPolicy,
    SimpleRetryPolicy,
)
from tests.policies.driving import Driven, attempts, caused


class Base(Exception):
    pass


class Fatal(Base):
    pass


class Poison(Fatal):
    pass


class Curable(Poison):
    pass


@pytest.mark.statement("S2-23")
@pytest.mark.parametrize("number", [1, 2, 5])
def test_max_attempts_counts_the_first_one(number):
    assert attempts(SimpleRetryPolicy(number), OSError()) == number


@pytest.mark.statement("S2-27")
def test_default_is_three_attempts_for_every_exception_only():
    policy = SimpleRetryPolicy()
    assert policy.max_attempts == policy.attempt_limit == 3
    assert attempts(policy, Exception()) == attempts(policy, Poison()) == 3
    for hard in (KeyboardInterrupt(), SystemExit(), GeneratorExit(), CancelledError()):
        assert attempts(policy, hard) == 1


@pytest.mark.statement("S0-30")
def test_unlisted_exception_is_not_retried():
    policy = SimpleRetryPolicy(3, retry_on=(ConnectionError, TimeoutError))
    assert attempts(policy, ConnectionResetError()) == 3
    assert attempts(policy, ValueError()) == attempts(policy, OSError()) == 1


@pytest.mark.statement("S0-30")
def test_all_but_some_classes_needs_not_on():
    policy = SimpleRetryPolicy(3, retry_on=Exception, not_on=Fatal)
    assert attempts(policy, ValueError()) == attempts(policy, Base()) == 3
    assert attempts(policy, Fatal()) == 1


@pytest.mark.statement("S2-24")
def test_fatal_class_and_its_subclasses_win_over_a_retried_base():
    policy = SimpleRetryPolicy(3, retry_on=Base, not_on=Fatal)
    assert attempts(policy, Base()) == 3
    assert attempts(policy, Fatal()) == attempts(policy, Poison()) == 1


@pytest.mark.statement("S2-24")
def test_class_in_both_lists_is_fatal():
    assert attempts(SimpleRetryPolicy(3, retry_on=(Base, Fatal), not_on=Fatal), Fatal()) == 1
    assert attempts(SimpleRetryPolicy(3, retry_on=Fatal, not_on=(Fatal,)), Poison()) == 1


@pytest.mark.statement("S2-24")
def test_retried_subclass_of_a_fatal_class_is_retried():
    policy = SimpleRetryPolicy(3, retry_on=(Base, Curable), not_on=Fatal)
    assert attempts(policy, Curable()) == 3
    assert attempts(policy, Poison()) == 1


def test_single_class_needs_no_tuple():
    assert SimpleRetryPolicy(retry_on=OSError) == SimpleRetryPolicy(retry_on=(OSError,))


def test_predicate_may_replace_the_classes():
    policy = SimpleRetryPolicy(3, retry_on=lambda error: "again" in str(error))
    assert attempts(policy, ValueError("again")) == 3
    assert attempts(policy, ValueError("no")) == 1


def test_fatal_class_wins_over_the_predicate():
    calls = []
    policy = SimpleRetryPolicy(3, retry_on=lambda error: not calls.append(error), not_on=Fatal)
    assert attempts(policy, Poison()) == 1
    assert not calls


@pytest.mark.statement("S0-31")
def test_type_predicate_and_count_must_all_allow():
    policy = SimpleRetryPolicy(3, OSError) & PredicateRetryPolicy(lambda e: "busy" in str(e))
    assert attempts(policy, OSError("busy")) == 3
    assert attempts(policy, OSError("gone")) == 1
    assert attempts(policy, ValueError("busy")) == 1


def test_causes_are_read_only_with_traverse_causes():
    wrapped = caused(ValueError(), caused(LookupError(), ConnectionError()))
    assert attempts(SimpleRetryPolicy(3, ConnectionError), wrapped) == 1
    assert attempts(SimpleRetryPolicy(3, ConnectionError, traverse_causes=True), wrapped) == 3


def test_outermost_match_decides():
    policy = SimpleRetryPolicy(3, ConnectionError, not_on=Fatal, traverse_causes=True)
    assert attempts(policy, caused(Poison(), ConnectionError())) == 1
    assert attempts(policy, caused(ConnectionError(), Poison())) == 3


def test_classifier_may_replace_both_lists():
    rules = ExceptionClassifier({Base: True, Fatal: False}, default=True)
    policy = SimpleRetryPolicy(2, classifier=rules)
    assert attempts(policy, Base()) == attempts(policy, ValueError()) == 2
    assert attempts(policy, Poison()) == 1


def test_classifier_values_may_be_of_any_type():
    policy = SimpleRetryPolicy(2, classifier=ExceptionClassifier({Base: "slow", Fatal: ""}))
    assert policy.allows(1, Base()) is True
    assert policy.allows(1, Fatal()) is False


@pytest.mark.parametrize("default", ["slow", 7])
def test_classifier_without_a_false_value_is_rejected(default):
    with pytest.raises(ValueError, match=f"a false value .* got the values 'fast', {default!r}"):
        SimpleRetryPolicy(2, classifier=ExceptionClassifier({Base: "fast"}, default))


def test_classifier_that_is_true_for_everything_is_accepted():
    policy = SimpleRetryPolicy(2, classifier=ExceptionClassifier({Base: True}, default=True))
    assert policy.allows(1, OSError())


def test_classifier_as_retry_on_is_rejected_with_the_right_argument():
    with pytest.raises(
        TypeError, match=r"retry_on must be exception classes .* use SimpleRetryPolicy\(classifier="
    ):
        SimpleRetryPolicy(retry_on=ExceptionClassifier({OSError: True}))


def test_classifier_subclass_is_used():
    class Moody(ExceptionClassifier):
        def explicit(self, exc):
            return True, str(exc) == "again"

    policy = SimpleRetryPolicy(2, classifier=Moody({}))
    assert attempts(policy, ValueError("again")) == 2
    assert attempts(policy, ValueError("no")) == 1


def test_not_recoverable_forbids_recovery_by_failure_or_cause():
    policy = SimpleRetryPolicy(2, not_recoverable=(Fatal,))
    wrapped = caused(ValueError(), Poison())
    assert Driven(policy).fail(ValueError()).fail(Poison()).recovery_forbidden()
    assert Driven(policy).fail(ValueError()).fail(wrapped).recovery_forbidden()
    assert not Driven(policy).fail(Poison()).fail(ValueError()).recovery_forbidden()


@pytest.mark.statement("S0-22")
@pytest.mark.parametrize(
    "kind",
    [
        BaseException,
        CancelledError,
        concurrent.futures.CancelledError,
        GeneratorExit,
        KeyboardInterrupt,
        SystemExit,
    ],
)
def test_class_that_is_never_retried_is_rejected(kind):
    with pytest.raises(ValueError, match=f"retry_on .*{kind.__name__}, which is never retried"):
        SimpleRetryPolicy(retry_on=(ValueError, kind))


@pytest.mark.statement("S0-22")
def test_subclass_of_a_cancellation_is_rejected():
    class Stop(concurrent.futures.CancelledError):
        pass

    with pytest.raises(ValueError, match="never retried"):
        SimpleRetryPolicy(retry_on=Stop)


def test_other_class_of_that_name_or_module_is_accepted():
    class CancelledError(Exception):
        pass

    for kind in (CancelledError, concurrent.futures.InvalidStateError):
        assert attempts(SimpleRetryPolicy(3, retry_on=kind), kind()) == 3


def test_class_that_is_never_retried_is_accepted_in_not_on():
    assert attempts(SimpleRetryPolicy(2, not_on=(KeyboardInterrupt,)), KeyboardInterrupt()) == 1


@pytest.mark.statement("S0-66")
@pytest.mark.statement("S3-14")
@pytest.mark.parametrize("number", [0, -1])
def test_max_attempts_below_one_is_rejected(number):
    with pytest.raises(ValueError, match=f"max_attempts must be an int >= 1, got {number}"):
        SimpleRetryPolicy(number)


@pytest.mark.parametrize("number", [2.0, "3", None, True])
def test_max_attempts_that_is_not_an_int_is_rejected(number):
    with pytest.raises(TypeError, match=r"max_attempts must be an int >= 1, got "):
        SimpleRetryPolicy(number)


@pytest.mark.parametrize("field", ["retry_on", "not_on", "not_recoverable"])
@pytest.mark.parametrize("value", [(int,), (ValueError, "OSError"), [ValueError], 7])
def test_value_that_is_not_an_exception_class_is_rejected(field, value):
    with pytest.raises(TypeError, match=f"{field} must be an exception class or a tuple"):
        SimpleRetryPolicy(**{field: value})


@pytest.mark.parametrize(
    "settings",
    [{"retry_on": OSError}, {"not_on": OSError}, {"traverse_causes": True}],
    ids=lambda settings: next(iter(settings)),
)
def test_classifier_with_other_rules_is_rejected(settings):
    with pytest.raises(ValueError, match="classifier must be given without"):
        SimpleRetryPolicy(classifier=ExceptionClassifier({}), **settings)


def test_traverse_causes_with_a_predicate_is_rejected():
    with pytest.raises(ValueError, match="traverse_causes must be False with a predicate"):
        SimpleRetryPolicy(retry_on=lambda error: True, traverse_causes=True)


def test_settings_of_wrong_type_are_rejected():
    with pytest.raises(TypeError, match="traverse_causes must be True or False, got 'yes'"):
        SimpleRetryPolicy(traverse_causes="yes")
    with pytest.raises(TypeError, match="classifier must be an ExceptionClassifier or None"):
        SimpleRetryPolicy(classifier={ValueError: True})


def test_coroutine_function_as_predicate_is_rejected():
    async def later(error):
        return True

    with pytest.raises(TypeError, match="retry_on must be a plain function, got the coroutine"):
        SimpleRetryPolicy(retry_on=later)


def test_policies_are_frozen():
    for policy in (SimpleRetryPolicy(), MaxAttemptsRetryPolicy()):
        with pytest.raises(AttributeError):
            policy._max_attempts = 7
