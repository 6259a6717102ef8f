"""Why an execution made no further attempt, on every entry point."""

import asyncio
import concurrent.futures

import pytest

from retrytemplate import (
    AttemptTimeout,
    CircuitOpenError,
    Deadline,
    FixedBackoff,
    Guard,
    KillSwitchActiveError,
    MaxAttemptsRetryPolicy,
    MisuseError,
    PredicateRetryPolicy,
    Rejected,
    ResultRetryPolicy,
    RetryAfterBackoff,
    RetryBudgetExhaustedError,
    RetryListener,
    RetryPolicy,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    current_context,
    intercept,
    retryable,
)
from retrytemplate.history import STOP_REASONS
from retrytemplate.testing import VirtualClock
from tests.support.runners import Script, every_driver, made


class Ends(RetryListener):
    """Records the stop reason of each execution."""

    def __init__(self):
        self.reasons = []

    def close(self, context, exception):
        self.reasons.append(context.stop_reason)


class Admits(Guard):
    """Admits this number of attempts."""

    def __init__(self, attempts, rejection):
        self.attempts, self.rejection = attempts, rejection

    def admit(self, context):
        if context.retry_count >= self.attempts:
            raise self.rejection


class Grants(Guard):
    """Grants no retry."""

    def __init__(self, rejection):
        self.rejection = rejection

    def reserve(self, context, delay):
        raise self.rejection


class Raises(RetryListener):
    """Raises in one hook."""

    def __init__(self, hook):
        self.hook = hook
        setattr(self, hook, self.fail)

    def fail(self, context, *rest):
        raise LookupError(self.hook)


class Vetoes(RetryListener):
    def open(self, context):
        return False


def boom(context):
    raise LookupError("no answer")


def gives_up(context):
    context.give_up()
    raise ValueError("enough")


PICKY = SimpleRetryPolicy(3, retry_on=OSError)
BY_RULE = SimpleRetryPolicy(2, retry_on=CircuitOpenError)
CASES = {
    "attempts": ("attempts_exhausted", {}, [OSError()]),
    "a failure that is not named": ("not_retryable", {"policy": PICKY}, [ValueError()]),
    "the time limit": (
        "time_limit",
        {"policy": TimeoutRetryPolicy(5.0), "backoff": FixedBackoff(3.0)},
        [OSError()],
    ),
    "a guard before the first attempt": ("guard", {"guards": [Admits(0, Rejected("no"))]}, [1]),
    "a guard before the second attempt": (
        "guard",
        {"guards": [Admits(1, KillSwitchActiveError("no"))]},
        [OSError()],
    ),
    "a guard that grants no retry": ("guard", {"guards": [Grants(Rejected("no"))]}, [OSError()]),
    "the budget": (
        "budget_exhausted",
        {"guards": [Grants(RetryBudgetExhaustedError("no"))]},
        [OSError()],
    ),
    "a rejection inside the attempt": ("rejected", {}, [CircuitOpenError("open")]),
    "a rejection after a failure": ("rejected", {}, [OSError(), CircuitOpenError("open")]),
    "a group with a rejection": (
        "rejected",
        {},
        [ExceptionGroup("two", [OSError(), CircuitOpenError("open")])],
    ),
    "a rejection that a rule names": (
        "attempts_exhausted",
        {"policy": BY_RULE},
        [CircuitOpenError("open")],
    ),
    "a kill switch inside the attempt": ("rejected", {}, [KillSwitchActiveError("stop")]),
    "misuse": ("not_retryable", {}, [MisuseError("no context")]),
    "a veto": ("terminated", {"listeners": [Vetoes()]}, [1]),
    "a listener in on_error": ("terminated", {"listeners": [Raises("on_error")]}, [OSError()]),
    "a listener in on_backoff": ("terminated", {"listeners": [Raises("on_backoff")]}, [OSError()]),
    "a policy that raises": (
        "terminated",
        {"policy": PredicateRetryPolicy(lambda error: 1 / 0)},
        [OSError()],
    ),
    "a result": (
        "attempts_exhausted",
        {"policy": ResultRetryPolicy(lambda result: True, SimpleRetryPolicy(2))},
        [1],
    ),
}


each_case = pytest.mark.parametrize(("reason", "settings", "script"), CASES.values(), ids=CASES)


@every_driver
@each_case
def test_failed_execution_has_its_stop_reason(driver, reason, settings, script):
    ends = Ends()
    template = made(3, **{**settings, "listeners": [ends, *settings.get("listeners", ())]})
    with pytest.raises(Exception):  # noqa: B017  # which one, other tests say
        driver(template, Script(*script))
    assert ends.reasons == [reason]
    assert reason in STOP_REASONS


@each_case
def test_outcome_has_the_stop_reason(reason, settings, script):
    callback = Script(*script)
    outcome = made(3, **settings).outcome(lambda: callback(current_context()))
    assert outcome.stop_reason == reason


@pytest.mark.parametrize(
    "settings",
    [
        {"listeners": [Raises("close")]},
        {"backoff": FixedBackoff(1.0), "clock": VirtualClock(interrupt_at=1)},
    ],
    ids=["a listener in close", "an interrupted wait"],
)
def test_outcome_that_was_ended_from_outside_is_terminated(settings):
    callback = Script(OSError(), 1) if "clock" in settings else Script(1)
    outcome = made(3, **settings).outcome(lambda: callback(current_context()))
    assert (outcome.ok, outcome.stop_reason) == (False, "terminated")


@every_driver
def test_stop_reason_without_listeners_is_on_the_context(driver):
    seen = []

    def fails(context):
        seen.append(context)
        assert context.stop_reason is None
        raise OSError

    with pytest.raises(OSError):
        driver(made(2), fails)
    assert seen[0].stop_reason == "attempts_exhausted"


@every_driver
@pytest.mark.parametrize(
    ("recovery", "reason"),
    [(lambda context: context.stop_reason, "attempts_exhausted"), (boom, "recovery_failed")],
    ids=["returns", "raises"],
)
def test_recovery_sees_the_reason_and_replaces_it_when_it_fails(driver, recovery, reason):
    ends = Ends()
    try:
        value = driver(made(2, listeners=[ends]), Script(OSError()), recovery=recovery)
    except LookupError:
        value = reason
    assert (value, ends.reasons) == (reason, [reason])


@every_driver
def test_execution_given_up_by_the_callback_has_its_reason(driver):
    ends = Ends()
    with pytest.raises(ValueError):
        driver(made(3, listeners=[ends]), gives_up)
    assert ends.reasons == ["gave_up"]


@every_driver
def test_success_has_no_stop_reason(driver):
    ends = Ends()
    driver(made(3, listeners=[ends]), Script(OSError(), "ok"))
    assert ends.reasons == [None]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), concurrent.futures.CancelledError()])
def test_cancelled_execution_has_no_stop_reason(stop):
    ends = Ends()
    with pytest.raises(type(stop)):
        made(3, listeners=[ends]).execute(Script(OSError(), stop))
    assert ends.reasons == [None]


def test_deadline_that_leaves_no_time_for_the_wait_is_the_reason():
    clock = VirtualClock()
    template = made(3, delay=5.0, clock=clock)
    with Deadline(1.0, clock=clock):
        assert template.outcome(int, "x").stop_reason == "deadline"


def test_deadline_that_is_over_before_the_first_attempt_is_the_reason():
    clock = VirtualClock()
    with Deadline(1.0, clock=clock):
        clock.advance(2.0)
        assert made(3, clock=clock).outcome(int, "x").stop_reason == "deadline"


def test_attempts_that_exceed_their_limit_are_exhausted():
    clock = VirtualClock()
    limit = AttemptTimeout(1.0, on_late_result="discard")
    template = made(2, clock=clock, attempt_timeout=limit)
    assert template.outcome(clock.advance, 2.0).stop_reason == "attempts_exhausted"


def test_wait_that_is_too_long_is_not_retryable():
    def busy():
        raise Rejected("busy", retry_after=600.0)

    template = made(
        policy=SimpleRetryPolicy(3, Rejected),
        backoff=RetryAfterBackoff(FixedBackoff(1.0), give_up_above=60.0),
    )
    assert template.outcome(busy).stop_reason == "not_retryable"


# -- with a key ----------------------------------------------------------------------------------


@every_driver
def test_stateful_failure_has_a_reason_only_when_no_attempt_is_left(driver):
    ends, state = Ends(), RetryState("key")
    template = made(2, listeners=[ends], name="orders")
    for _ in range(2):
        with pytest.raises(OSError):
            driver(template, Script(OSError()), state=state)
    driver(template, Script("not called"), state=state, recovery=lambda context: None)
    assert ends.reasons == [None, "attempts_exhausted", "attempts_exhausted"]


def test_stateful_failure_that_is_not_retryable_keeps_its_reason():
    ends, state = Ends(), RetryState("key")
    template = made(policy=PICKY, listeners=[ends])
    with pytest.raises(ValueError):
        template.execute(Script(ValueError()), state=state)
    template.execute(Script("not called"), state=state, recovery=lambda context: None)
    assert ends.reasons == ["not_retryable", "not_retryable"]


# -- of a policy ---------------------------------------------------------------------------------


def is_busy(error):
    return "busy" in str(error)


@pytest.mark.parametrize(
    ("policy", "message", "reason"),
    [
        (MaxAttemptsRetryPolicy(2) & PredicateRetryPolicy(is_busy), "busy", "attempts_exhausted"),
        (MaxAttemptsRetryPolicy(2) & PredicateRetryPolicy(is_busy), "gone", "not_retryable"),
        (MaxAttemptsRetryPolicy(2) | PredicateRetryPolicy(is_busy), "gone", "attempts_exhausted"),
        (PICKY | SimpleRetryPolicy(2), "gone", "attempts_exhausted"),
        (TimeoutRetryPolicy(5.0) & MaxAttemptsRetryPolicy(9), "busy", "time_limit"),
        (TimeoutRetryPolicy(50.0) & MaxAttemptsRetryPolicy(2), "busy", "attempts_exhausted"),
        (TimeoutRetryPolicy(5.0) & PredicateRetryPolicy(is_busy), "gone", "not_retryable"),
    ],
)
def test_composite_has_the_reason_of_the_member_that_ended_it(policy, message, reason):
    def fails():
        raise ValueError(message)

    assert made(policy=policy, delay=3.0).outcome(fails).stop_reason == reason


def test_user_policy_has_its_own_reason():
    class Quota(RetryPolicy):
        def allows(self, failures, failure):
            return failure is None

        def stop_reason(self, failures, failure):
            return "time_limit"

    assert made(policy=Quota()).outcome(int, "x").stop_reason == "time_limit"


def test_error_in_stop_reason_does_not_replace_the_failure():
    class Broken(RetryPolicy):
        def allows(self, failures, failure):
            return failure is None

        def stop_reason(self, failures, failure):
            raise LookupError

    outcome = made(policy=Broken()).outcome(int, "x")
    assert (type(outcome.exception), outcome.stop_reason) == (ValueError, "terminated")


# -- the operation -------------------------------------------------------------------------------

SEEN = []


def operation(*args, **kwargs):
    SEEN.append(current_context().operation)


async def operation_async():
    SEEN.append(current_context().operation)


def operation_items():
    SEEN.append(current_context().operation)
    yield 1


class Service:
    def do(self):
        SEEN.append(current_context().operation)


TEMPLATE = RetryTemplate(name="charge")
HERE = __name__
CALLS = {
    "call": (lambda: TEMPLATE.call(operation), "operation"),
    "call with keywords": (lambda: TEMPLATE.call(operation, number=1), "operation"),
    "execute": (lambda: TEMPLATE.execute(operation), "operation"),
    "outcome": (lambda: TEMPLATE.outcome(operation), "operation"),
    "wrap": (lambda: TEMPLATE.wrap(operation)(), "operation"),
    "a label": (lambda: TEMPLATE.bind(label="night").call(operation), "operation"),
    "a key": (lambda: TEMPLATE.execute(operation, state=RetryState(1)), "operation"),
    "a generator": (lambda: list(TEMPLATE.wrap(operation_items)()), "operation_items"),
    "a coroutine": (lambda: asyncio.run(TEMPLATE.wrap(operation_async)()), "operation_async"),
    "call_async": (lambda: asyncio.run(TEMPLATE.call_async(operation)), "operation"),
    "intercept": (lambda: intercept(Service(), "do", TEMPLATE).do(), "Service.do"),
    "retryable": (lambda: retryable(template=TEMPLATE)(operation)(), "operation"),
    "a deadline around it": (lambda: _within(operation), "operation"),
}


def _within(function):
    with Deadline(5.0):
        TEMPLATE.call(function)


@pytest.mark.parametrize(("call", "name"), CALLS.values(), ids=CALLS)
def test_operation_is_the_qualified_name_of_the_function(call, name):
    SEEN.clear()
    call()
    assert [f"{HERE}.{name}"] == SEEN


def test_operation_of_a_lambda_is_its_file_and_line():
    seen = []
    TEMPLATE.call(lambda: seen.append(current_context().operation))
    assert seen[0].startswith("test_stop_reason.py:")


@pytest.mark.parametrize(
    ("template", "name"),
    [(TEMPLATE, "charge"), (TEMPLATE.bind(label="night"), "night"), (RetryTemplate(), "attempts")],
)
@pytest.mark.parametrize("state", [None, RetryState("key")])
def test_operation_of_a_block_is_the_name_or_attempts(template, name, state):
    for attempt in template.attempts(state=state):
        with attempt as context:
            assert context.operation == name
