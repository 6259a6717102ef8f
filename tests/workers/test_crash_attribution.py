"""The policy of redelivered messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    AttemptLostError,
    ResultRetryPolicy,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.errors import (
    AttemptTimeoutError,
    CircuitOpenError,
    ExclusiveRequiredError,
    ExhaustedRetryError,
)
from retrytemplate.testing import PolicyConformance, VirtualClock
from retrytemplate.workers import RedeliveryPolicy, Reject
from retrytemplate.workers.crash_attribution import RetryRequested
from retrytemplate.workers.testing import LeasedMemoryCache

SHARED = AttemptLostError("lost", worker="h:1:a-1")
EXCLUSIVE = AttemptLostError("lost", worker="h:1:a-1!", exclusive=True)


class TestConformance(PolicyConformance):
    def make(self):
        return RedeliveryPolicy()


class TestConformanceWithPolicy(PolicyConformance):
    def make(self):
        return RedeliveryPolicy(policy=SimpleRetryPolicy(3))


def decided(policy, *failures):
    state = policy.start(0.0)
    for failure in failures:
        state = policy.record(state, failure, 0.0)
    return policy.decide(state, 0.0)[0]


@given(st.lists(st.sampled_from([OSError(), ValueError(), SHARED, EXCLUSIVE])))
@pytest.mark.statement("S1-75")
def test_attempts_end_at_the_limit_of_failures_or_of_crashes(failures):
    lost = [each for each in failures if isinstance(each, AttemptLostError)]
    expected = len(failures) - len(lost) < 4 and lost.count(EXCLUSIVE) < 2
    assert decided(RedeliveryPolicy(4, max_crashes=2), *failures) is expected


def test_shared_lost_attempts_never_end_the_attempts():
    assert decided(RedeliveryPolicy(1, max_crashes=1), *[SHARED] * 100)


def test_second_attributed_crash_is_the_last():
    assert decided(RedeliveryPolicy(), EXCLUSIVE)
    assert not decided(RedeliveryPolicy(), SHARED, EXCLUSIVE, EXCLUSIVE)


@pytest.mark.parametrize(
    ("failure", "verdict"),
    [
        (ConnectionError(), "listed"),
        (AttemptTimeoutError(), "listed"),
        (RetryRequested("busy", None), "listed"),
        (ValueError(), "unlisted"),
        (ExhaustedRetryError("inner"), "unlisted"),
        (KeyError(), "rejected"),
        (Reject("no such order"), "rejected"),
        (ExceptionGroup("", [ConnectionError(), TimeoutError()]), "listed"),
        (ExceptionGroup("", [ConnectionError(), ValueError()]), "unlisted"),
        (ExceptionGroup("", [ValueError(), KeyError()]), "rejected"),
    ],
)
def test_verdict_names_the_list_of_a_failure(failure, verdict):
    assert RedeliveryPolicy(not_on=LookupError).verdict(failure) == verdict


@pytest.mark.parametrize("retry_on", [ValueError, (ValueError,), lambda exc: True])
def test_retry_on_takes_classes_and_predicates(retry_on):
    assert RedeliveryPolicy(retry_on=retry_on).verdict(ValueError()) == "listed"


def test_nearer_class_decides():
    policy = RedeliveryPolicy(retry_on=ConnectionError, not_on=OSError)
    assert policy.verdict(ConnectionResetError()) == "listed"
    assert policy.verdict(FileNotFoundError()) == "rejected"


def test_unlisted_failure_ends_the_attempts_on_request():
    assert not decided(RedeliveryPolicy(on_unlisted="reject"), ValueError())
    assert decided(RedeliveryPolicy(), ValueError())


def test_policy_decides_on_exceptions_and_not_on_lost_attempts():
    policy = RedeliveryPolicy(policy=SimpleRetryPolicy(2, retry_on=OSError))
    assert decided(policy, OSError(), SHARED, EXCLUSIVE)
    assert decided(policy, RetryRequested("busy", 1.0))
    assert not decided(policy, ValueError())
    assert not decided(policy, Reject("gone"))
    assert not decided(policy, OSError(), OSError())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_attempts": 0}, "max_attempts must be an int >= 1, got 0"),
        ({"max_crashes": 0}, "max_crashes must be an int >= 1, got 0"),
        ({"on_unlisted": "drop"}, "on_unlisted must be 'retry' or 'reject', got 'drop'"),
        ({"not_on": KeyboardInterrupt}, "not_on must be subclasses of Exception"),
        ({"retry_on": "OSError"}, "retry_on must be an exception class"),
        ({"policy": 3}, "policy must be a RetryPolicy or None"),
        ({"policy": SimpleRetryPolicy(), "max_attempts": 3}, "policy must be given without"),
    ],
)
def test_wrong_setting_is_named(settings, text):
    with pytest.raises((TypeError, ValueError), match=text):
        RedeliveryPolicy(**settings)


def test_suspect_stays_one_when_its_history_has_lost_the_attempt():
    clock = VirtualClock()
    cache = LeasedMemoryCache(lease=10.0, clock=clock)
    template = RetryTemplate(
        policy=RedeliveryPolicy(40, retry_on=OSError), name="billing", cache=cache, clock=clock
    )

    def execute(exclusive, raised):
        with pytest.raises(raised):
            template.execute(fail, state=RetryState("m-1", exclusive=exclusive))

    def fail(context):
        raise OSError

    for _ in range(4):
        execute(False, OSError)
    cache.begin("billing/s:m-1", worker="h:1:a-1")  # its process crashes
    clock.advance(10.0)
    for _ in range(20):
        execute(False, ExclusiveRequiredError)
        execute(True, OSError)
    history = cache.peek("billing/s:m-1").history
    assert not any(each.type_name.endswith("AttemptLostError") for each in history)


@pytest.mark.parametrize(
    "policy", [RedeliveryPolicy(), RedeliveryPolicy() & SimpleRetryPolicy(3)], ids=["plain", "both"]
)
def test_state_of_the_policy_shows_a_lost_attempt(policy):
    policy = ResultRetryPolicy(lambda result: result is None, policy=policy)
    state = policy.record(policy.start(0.0), OSError(), 0.0)
    assert not policy.has_lost_attempt(state)
    state = policy.record(state, SHARED, 0.0)
    assert policy.has_lost_attempt(policy.record(state, OSError(), 0.0))


def test_context_shows_failures_without_lost_attempts_and_the_crashes():
    policy = RedeliveryPolicy()
    state = policy.start(0.0)
    for failure in (OSError(), SHARED, EXCLUSIVE):
        state = policy.record(state, failure, 0.0)
    assert policy.failures(state) == 1
    assert policy.attributes(state) == {"crashes": 1}


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        ([OSError()] * 5, "attempts_exhausted"),
        ([EXCLUSIVE] * 2, "attempts_exhausted"),
        ([Reject("gone")], "not_retryable"),
    ],
)
def test_stop_reason_names_the_limit(failures, reason):
    policy = RedeliveryPolicy()
    state = policy.start(0.0)
    for failure in failures:
        state = policy.record(state, failure, 0.0)
    assert policy.stop_reason_from(state, len(failures), failures[-1], 0.0) == reason


def test_rules_for_library_errors_are_recognized():
    named = RedeliveryPolicy(retry_on=(OSError, CircuitOpenError))
    assert named.names(CircuitOpenError())
    assert not RedeliveryPolicy().names(CircuitOpenError())
