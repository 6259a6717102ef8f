"""Events as log records, with the lines of a LoggingListener."""

import logging

import pytest

from retrytemplate import (
    CircuitOpenError,
    FixedBackoff,
    KillSwitchActiveError,
    LoggingListener,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.listeners.log_records import FIELDS
from retrytemplate.listeners.logging import (
    end_event,
    overrun_event,
    retry_event,
    store_error_event,
)
from retrytemplate.observe import EVENT_TYPES, LogSink
from retrytemplate.testing import VirtualClock
from tests.listeners.test_logging import Stopping, raising
from tests.observe.events import event
from tests.support.failing_cache import Down


@pytest.fixture
def log(caplog):
    caplog.set_level(1)
    return caplog


def line(log, *arguments, **values):
    LogSink().emit(event(*arguments, **values))
    return f"{log.records[-1].levelname} {log.records[-1].getMessage()}"


CHARGE = {"operation": "shop.pay_invoice", "key": "order-17"}
RESET = {"error_type": "builtins.ConnectionError", "error_message": "reset\nby peer"}


def test_line_of_a_retry(log):
    data = CHARGE | RESET | {"attempt": 1, "max_attempts": 4, "delay": 0.2}
    assert line(log, "retry.scheduled", data=data) == (
        "WARNING charge (shop.pay_invoice) key=order-17: attempt 1 of 4 failed: "
        "ConnectionError: reset; next attempt in 0.2 s"
    )


def test_line_of_a_failure(log):
    data = {"attempts": 1, "max_attempts": 4, "elapsed": 0.1, "reason": "not_retryable"}
    data |= {"operation": "shop.fetch", "error_type": "TimeoutError", "error_message": "10 s"}
    assert line(log, "call.failed", "shop.fetch", data=data) == (
        "WARNING shop.fetch: gave up after attempt 1 of 4 in 0.1 s: TimeoutError: 10 s; "
        "reason: not retryable"
    )
    assert (log.records[0].template, log.records[0].attempt, log.records[0].operation) == (
        None,
        1,
        "shop.fetch",
    )


BILLING = {"operation": "pay", "component": "circuit breaker", "name": "billing"} | RESET


def test_line_of_a_rejection(log):
    assert line(log, "call.rejected", severity=20, data=BILLING | {"retry_after": 28.0}) == (
        "INFO charge (pay): rejected by circuit breaker billing; retry after 28 s"
    )
    assert (log.records[0].component, log.records[0].component_name) == (
        "circuit breaker",
        "billing",
    )


def test_line_of_folded_rejections_has_their_number(log):
    folded = BILLING | {"retry_after": 1.0, "count": 4812, "interval": 10.0}
    assert line(log, "call.rejected", data=folded).endswith(
        ": rejected by circuit breaker billing 4812 times in 10 s"
    )


def test_line_of_a_state_change(log):
    change = {"before": "closed", "after": "open", "by": None, "reason": None}
    text = "WARNING circuit breaker billing: closed -> open"
    assert line(log, "circuit_breaker.state_changed", "billing", data=change) == text
    change |= {"by": "ada", "reason": "incident 17"}
    assert line(log, "circuit_breaker.state_changed", "billing", data=change) == (
        f"{text}; by ada: incident 17"
    )


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("bulkhead.rejected", {"retry_after": 2.0}, "bulkhead x: rejected; retry after 2 s"),
        ("bulkhead.rejected", {"retry_after": None}, "bulkhead x: rejected"),
        (
            "fallback.used",
            {"source": "cache", "error_type": None},
            "fallback x: used; source: cache",
        ),
        ("attempt.lost", CHARGE | {"attempt": 2, "worker": "h:1"}, "attempt 2 was lost with its"),
        (
            "call.succeeded_after_retry",
            CHARGE | {"attempts": 3, "elapsed": 1.0},
            "key=order-17: succeeded after attempt 3 in 1 s",
        ),
        (
            "call.cancelled",
            CHARGE | {"attempt": 1, "reason": "server_shutdown"},
            "cancelled in attempt 1: server_shutdown",
        ),
        ("shop.refund", {"amount": 5, "at": 0.5}, "shop x: refund; amount: 5; at: 0.5"),
        ("refund", {"note": "one\ntwo"}, "refund x: refund; note: one"),
    ],
)
def test_line_of_other_types(log, kind, data, text):
    assert text in line(log, kind, "x", data=data)


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_type_has_a_line_and_all_fields(log, kind):
    values = dict.fromkeys(EVENT_TYPES[kind].keys, 1)
    values |= dict.fromkeys({"component", "name", "error_type", "error_message"} & set(values), "e")
    values |= dict.fromkeys({"by", "reason", "operation", "key"} & set(values), "text")
    assert line(log, kind, "subject", data=values)
    assert vars(log.records[0]).keys() >= {*FIELDS}
    assert (log.records[0].event, log.records[0].subject) == (kind, "subject")


def test_record_has_ids_trace_and_correlation(log):
    line(
        log,
        execution_id="e",
        root_id="r",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        correlation={"request_id": "q"},
        type="shop.refund",
    )
    assert (log.records[0].execution_id, log.records[0].root_id, log.records[0].request_id) == (
        "e",
        "r",
        "q",
    )
    assert log.records[0].trace_id == "0af7651916cd43dd8448eb211c80319c"


def test_data_with_names_of_record_attributes_gets_other_fields(log):
    line(log, "shop.refund", data={"message": "m", "args": 1}, correlation={"module": "a"})
    assert (log.records[0].message_, log.records[0].args_, log.records[0].module_) == ("m", 1, "a")


def test_line_and_fields_have_no_control_characters(log):
    forged = "x\nWARNING forged \x1b[2J"
    data = {"operation": forged, "key": forged, "error_type": forged, "error_message": forged}
    data |= {"attempts": 1, "elapsed": None, "reason": forged}
    line(log, "call.failed", forged, data=data, correlation={"user": forged})
    fields = [value for value in vars(log.records[0]).values() if isinstance(value, str)]
    assert all(text.isprintable() for text in [log.records[0].getMessage(), *fields])


def test_component_rejection_inside_an_execution_has_no_record(log):
    LogSink().emit(event("circuit_breaker.rejected", execution_id="e", data={}))
    assert log.records == []
    LogSink().emit(event("circuit_breaker.rejected", data={}))
    assert len(log.records) == 1


def test_levels_by_type_and_pattern(log):
    levels = {"call.failed": "ERROR", "call.*": 10, "*.rejected": None, "shop.*": None}
    sink = LogSink(levels=levels)
    for kind in ("call.failed", "call.rejected", "bulkhead.rejected", "shop.refund", "x.y"):
        sink.emit(event(kind, data=BILLING | {"attempts": 0, "reason": None}))
    assert [(each.event, each.levelno) for each in log.records] == [
        ("call.failed", 40),
        ("call.rejected", 10),
        ("x.y", 30),
    ]


def test_record_goes_to_the_given_logger(log):
    LogSink("shop.retries").emit(event("x.y"))
    LogSink(logging.getLogger("shop.other")).emit(event("x.y"))
    assert [each.name for each in log.records] == ["shop.retries", "shop.other"]


@pytest.mark.parametrize(
    ("levels", "error"), [(None, TypeError), ({"a": "LOUD"}, ValueError), ({"a": 1.5}, TypeError)]
)
def test_levels_of_wrong_type_are_rejected(levels, error):
    with pytest.raises(error, match="levels"):
        LogSink(levels=levels)


# -- equal to LoggingListener ----------------------------------------------------------------------


class ToSink(RetryListener):
    """Gives the events of the hooks to a sink."""

    def emit(self, context, made):
        if made is not None:
            kind, data = made
            assert data.keys() <= {*EVENT_TYPES[kind].keys}
            LogSink("sink").emit(event(kind, context.name or context.operation, data=data))

    def on_backoff(self, context, delay):
        self.emit(context, retry_event(context, delay))

    def on_overrun(self, context, limit, elapsed):
        self.emit(context, overrun_event(context, limit, elapsed))

    def on_store_error(self, context, exception):
        self.emit(context, store_error_event(context, exception))

    def on_end(self, context, exception):
        self.emit(context, end_event(context, exception))


OPEN = CircuitOpenError("open", name="billing", retry_after=28.0)
SCENARIOS = {
    "failures": ([OSError("reset")], {}),
    "recovery": ([OSError("reset")], {"recovery": lambda context: None}),
    "rejected": ([OPEN], {}),
    "rejected after a failure": ([OSError(), OPEN], {}),
    "guard": (
        [OSError()],
        {"guards": [Stopping(1, KillSwitchActiveError("no", name="orders"))]},
    ),
    "not retryable": ([KeyError("x")], {}),
    "deferred": ([OSError()], {"state": RetryState("m-9")}),
    "last deferred": (
        [OSError()],
        {"state": RetryState(("m", 9)), "policy": SimpleRetryPolicy(1)},
    ),
    "store error": (
        [OSError()],
        {
            "state": RetryState("order-17", rollback_for=()),
            "cache": Down(lambda called, record: called == "begin", on_store_error="run_unguarded"),
        },
    ),
    "no attempt": (
        [OSError()],
        {"guards": [Stopping(0, KillSwitchActiveError("no", name="orders"))]},
    ),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_lines_and_fields_equal_those_of_the_listener(log, scenario):
    errors, settings = SCENARIOS[scenario]
    bound = {name: settings[name] for name in ("recovery", "state") if name in settings}
    settings = {name: value for name, value in settings.items() if name not in bound}
    clock = VirtualClock()
    template = RetryTemplate(
        **{
            "policy": SimpleRetryPolicy(3, retry_on=(OSError, CircuitOpenError)),
            "backoff": FixedBackoff(0.25),
            "name": "charge",
            "listeners": [LoggingListener("listener"), ToSink()],
            "clock": clock,
            **settings,
        }
    )
    template.bind(**bound).outcome(raising(*errors))
    own, added = (
        [each for each in log.records if each.name == name] for name in ("listener", "sink")
    )
    assert own
    assert [each.getMessage() for each in own] == [each.getMessage() for each in added]
    assert [fields(each) for each in own] == [fields(each) for each in added]


def fields(record):
    plain = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
    return {name: value for name, value in vars(record).items() if name not in plain}
