import pytest

from retrytemplate import (
    AlwaysRetryPolicy,
    CircuitBreakerRetryPolicy,
    CompositeRetryPolicy,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    PredicateRetryPolicy,
    ResultRetryPolicy,
    RetryPolicy,
    SimpleRetryPolicy,
    StatefulRetryPolicy,
    TimeoutRetryPolicy,
)
from tests.policies.driving import Driven, attempts

TWO, FOUR = MaxAttemptsRetryPolicy(2), MaxAttemptsRetryPolicy(4)


def test_composite_needs_all_members_or_any_member():
    assert attempts(TWO & FOUR, OSError()) == 2
    assert attempts(TWO | FOUR, OSError()) == 4
    assert attempts(CompositeRetryPolicy([TWO, FOUR]), OSError()) == 2
    assert attempts(CompositeRetryPolicy([TWO, FOUR], optimistic=True), OSError()) == 4


def test_members_may_keep_state():
    policy = FOUR & TimeoutRetryPolicy(10)
    driven = Driven(policy).fail(OSError(), after=10.0)
    assert driven.allowed()
    assert not driven.allowed(after=0.5)
    assert Driven(FOUR | TimeoutRetryPolicy(10)).fail(OSError()).allowed(after=99.0)


def test_composite_of_stateless_policies_keeps_no_state():
    assert not (TWO & (FOUR | NeverRetryPolicy())).needs_state
    assert (TWO & (FOUR | TimeoutRetryPolicy(1))).needs_state


def test_stateless_member_keeps_count_and_decision_at_any_depth():
    policy = (TWO & (FOUR | NeverRetryPolicy())) | TimeoutRetryPolicy(1)
    assert Driven(policy).state[0] == [0, True, False]
    assert Driven(policy).fail(OSError()).fail(OSError()).state[0] == [2, False, False]


def test_rejection_before_the_first_attempt_forbids_no_recovery():
    class Refusing(RetryPolicy):
        def allows(self, failures, failure):
            return False

    driven = Driven(Refusing() & TimeoutRetryPolicy(1))
    assert not driven.allowed()
    assert not driven.recovery_forbidden()


def test_one_operator_makes_one_flat_composite():
    third = AlwaysRetryPolicy()
    assert (TWO & FOUR & third).policies == (TWO & (FOUR & third)).policies == (TWO, FOUR, third)
    assert (TWO | FOUR | third).policies == (TWO, FOUR, third)


def test_two_operators_stay_two_composites():
    third = AlwaysRetryPolicy()
    either = TWO | FOUR
    assert (either & third).policies == (either, third)
    assert (third & either).policies == (third, either)
    assert ((TWO & FOUR) | third).policies == (TWO & FOUR, third)


def test_every_member_decides_each_time():
    class Counting(StatefulRetryPolicy):
        def start(self, now):
            return 0

        def record(self, state, failure, now):
            return state

        def decide(self, state, now):
            return True, state + 1

    policy = NeverRetryPolicy() & Counting()
    driven = Driven(policy).fail(OSError())
    assert not driven.allowed()
    assert not driven.allowed()
    assert driven.state[1] == 2
    driven = Driven(AlwaysRetryPolicy() | Counting())
    assert driven.allowed()
    assert driven.state[1] == 1


def test_inner_circuit_advances_also_when_another_member_rejects():
    breaker = CircuitBreakerRetryPolicy(NeverRetryPolicy(), open_timeout=5, reset_timeout=20)
    driven = Driven(NeverRetryPolicy() & breaker).fail(OSError())
    assert not driven.allowed()
    assert not driven.allowed()
    assert driven.shown == {"circuit.open": True, "circuit.short_count": 2}


def test_stateless_member_sees_an_exception_once():
    seen = []
    policy = PredicateRetryPolicy(lambda error: not seen.append(error)) & TimeoutRetryPolicy(9)
    driven = Driven(policy).fail(OSError())
    assert driven.allowed()
    assert driven.allowed()
    assert len(seen) == 1


def test_declared_number_is_the_smallest_of_any_member():
    assert (TWO & FOUR).max_attempts == (TWO | FOUR).max_attempts == 2
    assert (FOUR & TimeoutRetryPolicy(1)).max_attempts == 4
    assert (AlwaysRetryPolicy() & TimeoutRetryPolicy(1)).max_attempts is None


def test_last_attempt_is_known_if_the_members_know_it():
    assert (TWO & FOUR).attempt_limit == 2
    assert (TWO | FOUR).attempt_limit == 4
    assert (FOUR & AlwaysRetryPolicy()).attempt_limit == 4
    assert (FOUR | AlwaysRetryPolicy()).attempt_limit is None
    assert (FOUR & NeverRetryPolicy()).attempt_limit == 1


@pytest.mark.parametrize("keeping", [False, True])
def test_not_recoverable_applies_at_any_depth(keeping):
    strict = SimpleRetryPolicy(2, not_recoverable=KeyError)
    also = TimeoutRetryPolicy(100) if keeping else AlwaysRetryPolicy()
    deep = (strict | NeverRetryPolicy()) & also
    assert Driven(deep).fail(OSError()).fail(KeyError()).recovery_forbidden()
    assert not Driven(deep).fail(KeyError()).fail(OSError()).recovery_forbidden()


@pytest.mark.parametrize("keeping", [False, True])
def test_only_a_member_that_rejects_forbids_recovery(keeping):
    strict = SimpleRetryPolicy(9, not_recoverable=KeyError)
    also = TimeoutRetryPolicy(100) if keeping else AlwaysRetryPolicy()
    assert not Driven(strict & NeverRetryPolicy() & also).fail(KeyError()).recovery_forbidden()


def test_rules_on_results_of_all_members_are_found():
    one, two = ResultRetryPolicy(bool), ResultRetryPolicy(callable)
    assert (one & (two | TWO)).result_rules() == (one, two)
    assert (TWO & FOUR).result_rules() == ()


@pytest.mark.statement("S2-26")
def test_custom_policy_is_one_small_class():
    class OnlyOnce(RetryPolicy):
        def allows(self, failures, failure):
            return failures < 2 and not isinstance(failure, KeyError)

    assert attempts(OnlyOnce(), OSError()) == 2
    assert attempts(OnlyOnce(), KeyError()) == 1
    assert attempts(OnlyOnce() | FOUR, KeyError()) == 4


def test_policy_without_allows_raises_error_that_names_it():
    class Empty(RetryPolicy):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty must override allows\(\)"):
        Empty().allows(0, None)


@pytest.mark.parametrize("length", [1, 3])
def test_state_of_another_tree_is_not_accepted(length):
    policy = TWO & TimeoutRetryPolicy(1)
    foreign = (policy.start(0.0) * 2)[:length]
    with pytest.raises(ValueError, match="zip"):
        policy.record(foreign, OSError(), 0.0)
    with pytest.raises(ValueError, match="zip"):
        policy.decide(foreign, 0.0)


def test_empty_composite_is_rejected():
    with pytest.raises(ValueError, match="policies must hold at least one policy, got none"):
        CompositeRetryPolicy([])


@pytest.mark.parametrize("value", [[3], TWO, [TWO, None]])
def test_list_with_another_object_is_rejected(value):
    with pytest.raises(TypeError, match="policies must be RetryPolicy objects, got"):
        CompositeRetryPolicy(value)


def test_value_that_is_not_iterable_is_rejected():
    with pytest.raises(TypeError, match="policies must be RetryPolicy objects, got 3"):
        CompositeRetryPolicy(3)


def test_allows_of_a_policy_with_state_raises():
    with pytest.raises(TypeError, match=r"TimeoutRetryPolicy is stateful; call decide\(\)"):
        TimeoutRetryPolicy(1).allows(0, None)
