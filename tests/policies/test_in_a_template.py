"""Policies and backoffs in an execution."""

import asyncio
import concurrent.futures

import pytest

from retrytemplate import (
    AlwaysRetryPolicy,
    CircuitBreakerRetryPolicy,
    CircuitOpenError,
    ExceptionClassifierRetryPolicy,
    ExhaustedRetryError,
    ExponentialBackoff,
    FixedBackoff,
    NeverRetryPolicy,
    NoBackoff,
    PredicateRetryPolicy,
    RetryPolicy,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    StatefulRetryPolicy,
    TimeoutRetryPolicy,
)
from retrytemplate.testing import ScriptedRandom, VirtualClock


def failing(*failures, result="done"):
    """A function that raises these in turn, then returns; ``calls`` is the number of its calls."""
    turns = iter(failures)

    def function():
        function.calls += 1
        for failure in turns:
            raise failure
        return result

    function.calls = 0
    return function


@pytest.mark.statement("S2-20")
def test_policy_creates_state_records_failures_and_decides():
    calls = []

    class Recording(StatefulRetryPolicy):
        def start(self, now):
            calls.append("start")
            return 0

        def record(self, state, failure, now):
            calls.append(f"record {failure}")
            return state + 1

        def decide(self, state, now):
            calls.append(f"decide {state}")
            return state < 2, state

    with pytest.raises(OSError, match="two"):
        RetryTemplate(Recording()).call(failing(OSError("one"), OSError("two"), OSError("three")))
    attempt = ["decide 0", "record one", "decide 1", "decide 1", "record two", "decide 2"]
    assert calls[: len(attempt) + 1] == ["start", *attempt]
    assert set(calls[len(attempt) + 1 :]) <= {"decide 2"}


@pytest.mark.statement("S2-26")
def test_custom_policy_is_one_small_class():
    class Twice(RetryPolicy):
        def allows(self, failures, failure):
            return failures < 2

    function = failing(OSError(), OSError())
    with pytest.raises(OSError):
        RetryTemplate(Twice()).call(function)
    assert function.calls == 2


@pytest.mark.statement("S0-22")
@pytest.mark.parametrize(
    "policy",
    [
        AlwaysRetryPolicy(),
        PredicateRetryPolicy(lambda error: True),
        ExceptionClassifierRetryPolicy({BaseException: AlwaysRetryPolicy()}),
        SimpleRetryPolicy(9) | AlwaysRetryPolicy(),
    ],
)
@pytest.mark.parametrize(
    "stop",
    [asyncio.CancelledError, concurrent.futures.CancelledError, KeyboardInterrupt, SystemExit],
)
def test_cancellation_is_never_retried_by_any_policy(policy, stop):
    function = failing(stop())
    with pytest.raises(stop):
        RetryTemplate(policy, FixedBackoff(1), clock=VirtualClock()).call(function)
    assert function.calls == 1


@pytest.mark.statement("S0-31")
def test_type_predicate_and_count_must_all_allow():
    policy = SimpleRetryPolicy(2, OSError) & PredicateRetryPolicy(lambda e: "busy" in str(e))
    template = RetryTemplate(policy)
    assert template.call(failing(OSError("busy"))) == "done"
    for failures in ([OSError("gone")], [ValueError("busy")], [OSError("busy")] * 2):
        function = failing(*failures)
        with pytest.raises(type(failures[0])):
            template.call(function)
        assert function.calls == len(failures)


@pytest.mark.statement("S2-25")
def test_classes_have_different_numbers_of_attempts_in_one_call():
    policy = ExceptionClassifierRetryPolicy(
        {TimeoutError: SimpleRetryPolicy(4), OSError: SimpleRetryPolicy(2)}
    )
    assert RetryTemplate(policy).call(failing(*[TimeoutError()] * 3)) == "done"
    assert RetryTemplate(policy).call(failing(OSError(), TimeoutError(), TimeoutError())) == "done"
    with pytest.raises(ConnectionError):
        RetryTemplate(policy).call(failing(TimeoutError(), OSError(), ConnectionError()))


@pytest.mark.statement("S2-28")
def test_one_policy_and_one_backoff_serve_concurrent_executions():
    clock = VirtualClock()
    template = RetryTemplate(SimpleRetryPolicy(3), ExponentialBackoff(1, 2), clock=clock)

    def nested():
        inner = failing(ValueError(), ValueError())
        template.call(inner)
        raise OSError(f"{inner.calls} calls inside")

    with pytest.raises(OSError, match="3 calls inside"):
        template.call(nested)
    assert clock.sleeps == [1, 2, 1, 1, 2, 2, 1, 2]


def test_delay_may_depend_on_the_failure():
    """Wait if the service is throttling, retry at once if a connection was dropped."""
    clock = VirtualClock()
    backoff = FixedBackoff(lambda failures, error: 0 if isinstance(error, OSError) else 30)
    template = RetryTemplate(SimpleRetryPolicy(4), backoff, clock=clock)
    template.call(failing(OSError(), RuntimeError("slow down"), OSError()))
    assert sum(clock.sleeps) == 30


def test_run_time_numbers_are_read_for_each_execution():
    limit, delay = 2, 1
    clock = VirtualClock()
    template = RetryTemplate(
        SimpleRetryPolicy(lambda: limit), FixedBackoff(lambda: delay), clock=clock
    )

    def attempts():
        function = failing(*[OSError()] * 9)
        with pytest.raises(OSError):
            template.call(function)
        return function.calls

    assert attempts() == 2
    limit, delay = 4, 5
    assert attempts() == 4
    assert clock.sleeps == [1, 5, 5, 5]


def test_changed_number_does_not_affect_a_running_execution():
    limits = iter([3, 1, 1, 1])
    function = failing(*[OSError()] * 9)
    with pytest.raises(OSError):
        RetryTemplate(SimpleRetryPolicy(limits.__next__)).call(function)
    assert function.calls == 3


@pytest.mark.statement("S3-02")
def test_full_jitter_in_a_template():
    clock = VirtualClock()
    template = RetryTemplate(
        SimpleRetryPolicy(5),
        ExponentialBackoff(0.2, maximum=1.0, jitter="full"),
        clock=clock,
        random=ScriptedRandom([0.5, 0.25, 0.75, 0.5]),
    )
    with pytest.raises(OSError):
        template.call(failing(*[OSError()] * 5))
    assert clock.sleeps == pytest.approx([0.5 * 0.2, 0.25 * 0.4, 0.75 * 0.8, 0.5 * 1.0])


def test_backoff_that_gives_up_ends_the_attempts():
    class Enough(NoBackoff):
        never_waits = False

        def next(self, state, failure, random):
            return None, state

    function = failing(OSError(), OSError())
    with pytest.raises(OSError):
        RetryTemplate(SimpleRetryPolicy(5), Enough()).call(function)
    assert function.calls == 1


def test_never_policy_makes_one_call():
    function = failing(OSError())
    with pytest.raises(OSError):
        RetryTemplate(NeverRetryPolicy()).call(function)
    assert function.calls == 1


@pytest.mark.parametrize(
    "policy",
    [
        SimpleRetryPolicy(3),
        TimeoutRetryPolicy(60.0),
        CircuitBreakerRetryPolicy(SimpleRetryPolicy(3)),
    ],
)
def test_library_error_raised_by_others_is_retried_only_by_name(policy):
    rejected = failing(*[CircuitOpenError("open")] * 9)
    with pytest.raises(CircuitOpenError):
        RetryTemplate(policy, clock=VirtualClock()).call(rejected)
    assert rejected.calls == 1


def test_force_refresh_closes_a_circuit():
    template = RetryTemplate(
        CircuitBreakerRetryPolicy(SimpleRetryPolicy(1)), name="fresh", clock=VirtualClock()
    )
    broken, mended = failing(OSError()), failing()
    with pytest.raises(OSError):
        template.bind(state=RetryState("circuit")).call(broken)
    with pytest.raises(ExhaustedRetryError):
        template.bind(state=RetryState("circuit")).call(mended)
    fresh = RetryState("circuit", force_refresh=True)
    assert template.bind(state=fresh).call(mended) == "done"
    assert template.bind(state=RetryState("circuit")).call(mended) == "done"


def test_recovery_with_a_circuit_gets_the_exception_itself():
    failure = OSError("live")
    template = RetryTemplate(
        CircuitBreakerRetryPolicy(SimpleRetryPolicy(3)), name="live", clock=VirtualClock()
    )
    state = RetryState("circuit", rollback_for=())
    found = template.bind(state=state, recovery=lambda context: context.last_exception)
    assert found.call(failing(failure)) is failure
