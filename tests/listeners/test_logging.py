"""What the log is told of retries."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from retrytemplate import (
    ExhaustedRetryError,
    FixedBackoff,
    MaxAttemptsRetryPolicy,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.listeners.logging import LoggingListener
from retrytemplate.testing import VirtualClock
from tests.listeners.callbacks import Stopped, failing, fails


class Mute(Exception):
    """Its text cannot be had."""

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
    logging.getLogger().addHandler(handler)
    yield handler.records
    logging.getLogger().removeHandler(handler)


@pytest.mark.statement("S0-52")
def test_each_retry_is_one_warning_with_attempt_exception_type_and_delay(log):
    template().execute(fails(2))

    assert [record.levelname for record in log] == ["WARNING", "WARNING"]
    assert [(each.attempt, each.exception_type, each.delay) for each in log] == [
        (1, "ConnectionError", 0.25),
        (2, "ConnectionError", 0.25),
    ]


@pytest.mark.statement("S0-52")
def test_a_retry_without_a_wait_is_a_record_too(log):
    template(backoff=FixedBackoff(0.0)).execute(fails(1))

    assert [(record.event, record.delay) for record in log] == [("retry", 0.0)]


def test_a_retry_is_logged_before_its_wait(log):
    clock = VirtualClock(interrupt_at=1)
    slow = RetryTemplate(
        backoff=FixedBackoff(60.0), listeners=(LoggingListener(),), clock=clock, name="charge"
    )
    slow.outcome(fails(1), None)

    assert log[0].event == "retry"


def test_the_message_reads_as_a_sentence(log):
    template().execute(fails(1))

    assert log[0].getMessage() == (
        "charge: attempt 1 failed with ConnectionError: down; the next one in 0.25 s"
    )


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
def test_a_delay_is_written_in_plain_digits(log, delay, text):
    template(backoff=FixedBackoff(delay)).execute(fails(1))

    assert log[0].getMessage().endswith(f"; the next one in {text} s")


def test_a_record_says_which_template_and_which_key(log):
    policy = MaxAttemptsRetryPolicy(2)
    with pytest.raises(ConnectionError):
        template(policy=policy).execute(failing, state=RetryState(("order", 17)))

    assert (log[0].template, log[0].key) == ("charge", ("order", 17))


def test_an_exception_is_named_with_its_module(log):
    class Busy(Exception):
        pass

    def busy(context):
        raise Busy

    template().outcome(busy, None)

    assert log[0].exception_type.endswith(
        "test_an_exception_is_named_with_its_module.<locals>.Busy"
    )
    assert log[0].exception_type.startswith(f"{__name__}.")


def test_an_exception_without_text_does_no_harm(log):
    def mute(context):
        raise Mute

    with pytest.raises(Mute):
        template().execute(mute)

    assert [record.attempt for record in log] == [1, 2, 3]


def test_nothing_is_logged_unless_a_listener_was_asked_for(log):
    RetryTemplate(clock=VirtualClock()).outcome(failing, None)

    assert log == []


def test_a_success_at_once_writes_nothing(log):
    template().call(lambda: "ok")

    assert log == []


def test_giving_up_is_an_info_record_since_the_caller_gets_the_exception(log):
    with pytest.raises(ConnectionError):
        template().execute(failing)

    last = log[-1]
    assert (last.event, last.levelname, last.attempt, last.delay) == ("given_up", "INFO", 3, None)
    assert last.getMessage() == "charge: attempt 3 failed with ConnectionError: down; given up"


def test_a_failure_not_worth_retrying_is_given_up_without_a_warning(log):
    picky = SimpleRetryPolicy(3, retry_on=(TimeoutError,))
    with pytest.raises(ConnectionError):
        template(policy=picky).execute(failing)

    assert [(record.event, record.attempt) for record in log] == [("given_up", 1)]


def test_a_recovery_is_a_warning_since_nobody_else_sees_the_failure(log):
    template().execute(failing, recovery=lambda context: "instead")

    assert [record.event for record in log] == ["retry", "retry", "recovered"]
    assert (log[-1].levelname, log[-1].exception_type) == ("WARNING", "ConnectionError")


def test_a_recovery_that_raises_is_given_up(log):
    def recovery(context):
        raise KeyError("no answer")

    with pytest.raises(KeyError):
        template().execute(failing, recovery=recovery)

    assert [record.event for record in log] == ["retry", "retry", "given_up"]


def test_a_rethrow_for_a_later_delivery_is_not_given_up(log):
    with pytest.raises(ConnectionError):
        template().execute(failing, state=RetryState("k"))

    assert [record.event for record in log] == ["retry"]


def test_a_delivery_that_finds_no_attempt_left_is_given_up_with_the_last_failure(log):
    stateful = template(policy=MaxAttemptsRetryPolicy(1))
    with pytest.raises(ConnectionError):
        stateful.execute(failing, state=RetryState("k"))
    with pytest.raises(ExhaustedRetryError):
        stateful.execute(failing, state=RetryState("k"))

    assert [(record.event, record.exception_type) for record in log] == [
        ("given_up", "ConnectionError")
    ]


def test_a_cancellation_writes_nothing(log):
    def stop(context):
        raise Stopped

    with pytest.raises(Stopped):
        template().execute(stop)

    assert log == []


def test_the_records_go_to_the_logger_that_was_given(log):
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


def test_what_the_logger_does_not_want_costs_no_record(caplog):
    caplog.set_level(logging.ERROR)
    template().execute(fails(1))

    assert caplog.records == []


@pytest.mark.parametrize("bad", [object(), 3])
def test_a_logger_must_be_one(bad):
    with pytest.raises(TypeError, match=r"logger must be a logging\.Logger, its name or None"):
        LoggingListener(bad)


@pytest.mark.parametrize("field", ["level", "recovery_level", "failure_level"])
def test_a_level_must_be_one(field):
    with pytest.raises(ValueError, match=f"{field} must be .* got 'LOUD'"):
        LoggingListener(**{field: "LOUD"})
    with pytest.raises(TypeError, match=f"{field} must be .* got 1.5"):
        LoggingListener(**{field: 1.5})


def test_nobody_imports_logging_who_does_not_log():
    code = "import sys, retrytemplate; assert 'logging' not in sys.modules, 'logging is loaded'"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
