"""Log records of retries."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress

import pytest

from retrytemplate import (
    BulkheadFullError,
    CircuitOpenError,
    Deadline,
    ExhaustedRetryError,
    FixedBackoff,
    Guard,
    KillSwitchActiveError,
    MaxAttemptsRetryPolicy,
    Rejected,
    RetryBudgetExhaustedError,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    Veto,
)
from retrytemplate.listeners.log_records import FIELDS
from retrytemplate.listeners.logging import LoggingListener
from retrytemplate.testing import VirtualClock
from tests.listeners.callbacks import Stopped, failing, fails
from tests.support.failing_cache import Down


class Mute(Exception):
    """An exception whose ``__str__`` raises."""

    def __str__(self):
        raise RuntimeError("no text")


def template(listener=None, **settings):
    settings.setdefault("backoff", FixedBackoff(0.25))
    listeners = (listener or LoggingListener(),)
    return RetryTemplate(listeners=listeners, clock=VirtualClock(), name="charge", **settings)


class Kept(logging.Handler):
    """Keeps the records."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


@pytest.fixture
def log(caplog):
    caplog.set_level(1)
    handler = Kept()
    handler.addFilter(lambda record: record.name != "asyncio")  # of a task of an earlier test
    logging.getLogger().addHandler(handler)
    yield handler.records
    logging.getLogger().removeHandler(handler)


@pytest.mark.statement("S0-52")
def test_retry_record_has_attempt_error_type_and_delay(log):
    template().execute(fails(2))

    assert [record.levelname for record in log] == ["WARNING", "WARNING"]
    assert [(each.attempt, each.error_type, each.delay) for each in log] == [
        (1, "ConnectionError", 0.25),
        (2, "ConnectionError", 0.25),
    ]


@pytest.mark.statement("S0-52")
def test_retry_without_a_wait_has_a_record(log):
    template(backoff=FixedBackoff(0.0)).execute(fails(1))

    assert [(record.event, record.delay) for record in log] == [("retry.scheduled", 0.0)]


def test_retry_is_logged_before_its_wait(log):
    clock = VirtualClock(interrupt_at=1)
    slow = RetryTemplate(
        backoff=FixedBackoff(60.0), listeners=(LoggingListener(),), clock=clock, name="charge"
    )
    slow.outcome(fails(1), None)

    assert log[0].event == "retry.scheduled"


def lines(log):
    return [f"{record.levelname} {record.getMessage()}" for record in log]


def raising(*errors, seconds=0.0, clock=None):
    """A function that takes *seconds* and raises these in turn, then the last one repeatedly."""
    left = list(errors)

    def pay_invoice(*arguments):
        if clock is not None:
            clock.advance(seconds)
        raise left.pop(0) if len(left) > 1 else left[0]

    pay_invoice.__module__, pay_invoice.__qualname__ = "shop", "pay_invoice"
    return pay_invoice


IN_PLACE = RetryState("order-17", rollback_for=())
CALL = "charge (shop.pay_invoice)"


def test_retry_line_names_function_key_attempt_error_and_reason(log):
    clock = VirtualClock()
    charge = RetryTemplate(
        SimpleRetryPolicy(2),
        FixedBackoff(0.2),
        name="charge",
        listeners=(LoggingListener(failure_level="WARNING"),),
        clock=clock,
    )
    function = raising(ConnectionError("unreachable"), seconds=1.5, clock=clock)
    with pytest.raises(ExhaustedRetryError):
        charge.execute(function, state=IN_PLACE)

    assert lines(log) == [
        f"WARNING {CALL} key=order-17: attempt 1 of 2 failed: ConnectionError: unreachable; "
        "next attempt in 0.2 s",
        f"WARNING {CALL} key=order-17: gave up after attempt 2 of 2 in 3.2 s: "
        "ConnectionError: unreachable; reason: attempts exhausted",
    ]


def test_line_without_template_name_has_the_function_alone(log):
    policy = SimpleRetryPolicy(4, retry_on=OSError)
    nameless = RetryTemplate(policy, listeners=(LoggingListener(),), clock=VirtualClock())
    with pytest.raises(ValueError):
        nameless.call(raising(ValueError("bad row\nsee above")))

    assert lines(log) == [
        "INFO shop.pay_invoice: gave up after attempt 1 of 4 in 0 s: ValueError: bad row; "
        "reason: not retryable"
    ]


def test_line_of_last_stateful_failure_names_action_of_next_delivery(log):
    orders = template(policy=SimpleRetryPolicy(2))
    for recovery in (None, lambda context: None):
        with pytest.raises(ValueError):
            orders.execute(
                raising(ValueError("bad row")), state=RetryState("m-9"), recovery=recovery
            )
    assert lines(log) == [
        f"WARNING {CALL} key=m-9: attempt 1 of 2 failed: ValueError: bad row; "
        "next attempt at the next delivery, in 0.25 s or later",
        f"WARNING {CALL} key=m-9: attempt 2 of 2 failed: ValueError: bad row; "
        "the next delivery runs the recovery",
    ]
    assert [record.event for record in log] == ["retry.deferred", "retry.deferred"]


def test_line_of_last_stateful_failure_names_the_missing_recovery(log):
    with pytest.raises(ValueError):
        template(policy=SimpleRetryPolicy(1)).execute(
            raising(ValueError("bad row")), state=RetryState("m-9")
        )
    assert lines(log)[0].endswith("; the next delivery fails without an attempt")


@pytest.mark.parametrize(
    ("error", "component"),
    [
        (CircuitOpenError, "circuit breaker"),
        (BulkheadFullError, "bulkhead"),
        (KillSwitchActiveError, "kill switch"),
    ],
)
def test_line_of_a_rejection_is_no_failed_attempt(log, error, component):
    template().outcome(raising(error("rejected", name="billing", retry_after=28.0)))

    assert lines(log) == [f"INFO {CALL}: rejected by {component} billing; retry after 28 s"]
    [record] = log
    assert (record.event, record.reason) == ("call.rejected", "rejected")
    assert (record.component, record.component_name, record.retry_after) == (
        component,
        "billing",
        28.0,
    )


class Stopping(Guard):
    """Admits this number of attempts, and grants retries if *retries* is True."""

    def __init__(self, attempts, rejection, retries=True):
        self.attempts, self.rejection, self.retries = attempts, rejection, retries

    def admit(self, context):
        if context.retry_count >= self.attempts:
            raise self.rejection

    def reserve(self, context, delay):
        if not self.retries:
            raise self.rejection


def test_line_of_a_guard_that_admits_no_attempt_is_a_rejection(log):
    stopping = Stopping(0, KillSwitchActiveError("incident 4711", name="orders"))
    template(guards=(stopping,)).outcome(raising(OSError()))
    template(guards=(Stopping(0, Rejected("not now")),)).outcome(raising(OSError()))

    assert lines(log) == [
        f"INFO {CALL}: rejected by kill switch orders",
        f"INFO {CALL}: rejected by guard: not now",
    ]


@pytest.mark.parametrize(
    ("guard", "reason"),
    [
        (Stopping(1, KillSwitchActiveError("no", name="orders")), "guard (kill switch orders)"),
        (
            Stopping(9, RetryBudgetExhaustedError("no", name="api"), retries=False),
            "budget exhausted (retry budget api)",
        ),
    ],
)
def test_line_after_a_failure_names_the_guard_that_ended_it(log, guard, reason):
    template(guards=(guard,)).outcome(raising(OSError("reset")))

    assert lines(log)[-1].endswith(f": OSError: reset; reason: {reason}")


def test_line_of_a_deadline_names_failure_and_reason(log):
    clock = VirtualClock()
    slow = RetryTemplate(backoff=FixedBackoff(9.0), listeners=(LoggingListener(),), clock=clock)
    with Deadline(1.0, clock=clock):
        slow.outcome(raising(OSError("reset")))
        clock.advance(2.0)
        slow.outcome(raising(OSError("reset")))

    assert lines(log) == [
        "INFO shop.pay_invoice: gave up after attempt 1 of 3 in 0 s: OSError: reset; "
        "reason: deadline",
        "INFO shop.pay_invoice: gave up before the first attempt: DeadlineExceededError: "
        "the deadline is over: no attempt is begun; reason: deadline",
    ]


def test_line_of_a_recovery_that_fails_has_its_error(log):
    def recovery(context):
        raise KeyError("no answer")

    template(policy=SimpleRetryPolicy(1)).bind(recovery=recovery).outcome(raising(OSError()))

    assert lines(log) == [
        f"INFO {CALL}: gave up after attempt 1 of 1 in 0 s: KeyError: 'no answer'; "
        "reason: recovery failed"
    ]


def test_line_of_a_veto_reports_no_attempt(log):
    class Vetoes(RetryListener):
        def open(self, context):
            raise Veto("maintenance")

    vetoed = RetryTemplate(listeners=(Vetoes(), LoggingListener()))
    vetoed.outcome(raising(OSError()))

    assert lines(log) == [
        "INFO shop.pay_invoice: gave up before the first attempt: TerminatedRetryError: "
        "a listener vetoed the execution: maintenance; "
        "reason: a policy, backoff, listener or context cache raised an exception"
    ]


def test_early_redelivery_writes_no_record(log):
    state = RetryState("k", defer_backoff="raise")
    orders = template()
    for _ in range(2):
        orders.bind(state=state).outcome(raising(OSError()))

    assert [record.event for record in log] == ["retry.deferred"]


def test_record_is_one_line_for_any_names_and_keys(log):
    forged = "x\nWARNING forged \x1b[2J"
    function = raising(ConnectionError(forged))
    function.__qualname__ = forged
    named = RetryTemplate(
        SimpleRetryPolicy(2), name=forged, listeners=(LoggingListener(),), clock=VirtualClock()
    )
    named.bind(state=RetryState(forged, rollback_for=())).outcome(function)
    named.bind(state=RetryState((forged,), rollback_for=())).outcome(function)

    for record in log:
        fields = [value for value in vars(record).values() if isinstance(value, str)]
        assert all(text.isprintable() for text in [record.getMessage(), *fields])


def test_record_fields_collide_with_no_attribute_of_records(log):
    template().execute(fails(1))

    plain = vars(logging.makeLogRecord({}))
    assert set(vars(log[0])) - set(plain) - {"message", "asctime"} == {*FIELDS}


@pytest.mark.parametrize(
    ("delay", "text"),
    [
        (0.0, "0"),
        (0.000012345, "0.000012"),
        (0.12345, "0.123"),
        (59.96, "60"),
        (99.96, "100"),
        (999.6, "1000"),
        (3661.0, "3661"),
        (1234567.0, "1234567"),
    ],
)
def test_delay_is_written_without_exponent(log, delay, text):
    template(backoff=FixedBackoff(delay)).execute(fails(1))

    assert log[0].getMessage().endswith(f"; next attempt in {text} s")


def test_record_names_template_and_key(log):
    policy = MaxAttemptsRetryPolicy(2)
    with pytest.raises(ConnectionError):
        template(policy=policy).execute(failing, state=RetryState(("order", 17)))

    assert (log[0].template, log[0].key) == ("charge", "('order', 17)")


def test_exception_is_named_with_its_module(log):
    class Busy(Exception):
        pass

    def busy(context):
        raise Busy

    template().outcome(busy, None)

    assert log[0].error_type.endswith("test_exception_is_named_with_its_module.<locals>.Busy")
    assert log[0].error_type.startswith(f"{__name__}.")


def test_exception_without_text_is_logged(log):
    def mute(context):
        raise Mute

    with pytest.raises(Mute):
        template().execute(mute)

    assert [record.attempt for record in log] == [1, 2, 3]


def test_success_at_first_attempt_writes_no_record(log):
    template().call(lambda: "ok")

    assert log == []


def test_giving_up_is_an_info_record(log):
    with pytest.raises(ConnectionError):
        template().execute(failing)

    last = log[-1]
    assert (last.event, last.levelname, last.attempt, last.delay) == (
        "call.failed",
        "INFO",
        3,
        None,
    )
    assert last.reason == "attempts_exhausted"


def test_failure_that_is_not_retryable_is_given_up_without_a_warning(log):
    picky = SimpleRetryPolicy(3, retry_on=(TimeoutError,))
    with pytest.raises(ConnectionError):
        template(policy=picky).execute(failing)

    assert [(record.event, record.attempt) for record in log] == [("call.failed", 1)]


def test_recovery_is_a_warning(log):
    template().execute(failing, recovery=lambda context: "instead")

    assert [record.event for record in log] == [
        "retry.scheduled",
        "retry.scheduled",
        "call.recovered",
    ]
    assert (log[-1].levelname, log[-1].error_type) == ("WARNING", "ConnectionError")


def test_recovery_that_raises_is_given_up(log):
    def recovery(context):
        raise KeyError("no answer")

    with pytest.raises(KeyError):
        template().execute(failing, recovery=recovery)

    assert [record.event for record in log] == ["retry.scheduled", "retry.scheduled", "call.failed"]


def test_stateful_failure_with_attempts_left_is_not_given_up(log):
    with pytest.raises(ConnectionError):
        template().execute(failing, state=RetryState("k"))

    assert [record.event for record in log] == ["retry.deferred"]


def test_delivery_without_attempts_left_is_given_up_with_last_failure(log):
    stateful = template(policy=MaxAttemptsRetryPolicy(1))
    with pytest.raises(ConnectionError):
        stateful.execute(failing, state=RetryState("k"))
    with pytest.raises(ExhaustedRetryError):
        stateful.execute(failing, state=RetryState("k"))

    assert [(record.event, record.error_type) for record in log] == [
        ("retry.deferred", "ConnectionError"),
        ("call.failed", "ConnectionError"),
    ]


def test_cancellation_writes_no_record(log):
    def stop(context):
        raise Stopped

    with pytest.raises(Stopped):
        template().execute(stop)

    assert log == []


def test_records_go_to_the_given_logger(log):
    listener = LoggingListener(logging.getLogger("shop.invoices"))
    template(listener).execute(fails(1))
    template(LoggingListener("shop.stock")).execute(fails(1))
    template().execute(fails(1))

    assert [record.name for record in log] == ["shop.invoices", "shop.stock", "retrytemplate"]


def test_levels_can_be_chosen_and_switched_off(log):
    listener = LoggingListener(level="DEBUG", recovery_level=35, failure_level=None)
    template(listener).execute(failing, recovery=lambda context: "instead")
    template(listener).outcome(failing, None)

    assert [record.levelno for record in log] == [10, 10, 35, 10, 10]


def test_disabled_logger_costs_no_record(caplog):
    caplog.set_level(logging.ERROR)
    template().execute(fails(1))

    assert caplog.records == []


@pytest.mark.parametrize("bad", [object(), 3])
def test_logger_of_wrong_type_is_rejected(bad):
    with pytest.raises(TypeError, match=r"logger must be a logging\.Logger, its name or None"):
        LoggingListener(bad)


@pytest.mark.parametrize("field", ["level", "recovery_level", "failure_level"])
def test_level_of_wrong_type_is_rejected(field):
    with pytest.raises(ValueError, match=f"{field} must be .* got 'LOUD'"):
        LoggingListener(**{field: "LOUD"})
    with pytest.raises(TypeError, match=f"{field} must be .* got 1.5"):
        LoggingListener(**{field: 1.5})


def test_logging_is_imported_only_by_the_listener():
    code = "import sys, retrytemplate; assert 'logging' not in sys.modules, 'logging is loaded'"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("step", "setting", "says"),
    [
        ("begin", "run_unguarded", "before the first attempt: {}; the execution continues without"),
        ("fail", "raise", "attempt 1 of 3: {}; its record of this execution may be incomplete"),
        ("succeed", "raise", "attempt 1 of 3: {}; its record of this execution may be incomplete"),
    ],
)
def test_store_error_record_says_what_follows(log, step, setting, says):
    cache = Down(lambda called, record: called == step, on_store_error=setting)
    run = raising(OSError("away")) if step == "fail" else lambda context: "paid"
    with suppress(OSError):
        template(cache=cache).execute(run, state=IN_PLACE)

    record = next(each for each in log if each.event == "store.unavailable")
    assert (
        says.format("the context cache failed: CacheUnavailableError: down") in record.getMessage()
    )
