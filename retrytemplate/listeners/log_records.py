"""Log records of events: the line, the fields, loggers and levels.

An event is a type, a subject and data.  The line names the template and function of an execution,
or the component; then what happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import execution_name, one_line, printable, with_text
from retrytemplate.history import STOP_REASON_TEXTS

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping

__all__ = ["FIELDS", "LOGGER", "check_level", "record_fields", "record_line"]
__all__ += ["to_level", "to_logger"]

LOGGER = "retrytemplate"

FIELDS = (
    *("event", "subject", "template", "operation", "key", "execution_id", "root_id", "trace_id"),
    *("attempt", "max_attempts", "elapsed", "delay", "reason", "error_type", "error_message"),
    *("component", "component_name", "retry_after", "deadline", "remaining"),
)
"""The fields that every record has; None if the event has no such value."""
OF_TASKS = ("owner", "limit", "cancel_reason", "cleanup", "message_id")
"""The further fields of the record of a task."""

EMPTY: dict[str, Any] = dict.fromkeys(FIELDS)
# Attributes of a ``LogRecord``, which no field may replace, and the event of structlog.
RESERVED = frozenset(
    "args asctime created exc_info exc_text filename funcName levelname levelno lineno message "
    "module msecs msg name pathname process processName relativeCreated stack_info taskName thread "
    "threadName self".split()
)
OF_EXECUTIONS = ("retry.", "call.", "attempt.")


def record_line(kind: str, subject: str, data: Mapping[str, Any]) -> str:
    """The text of a record, in one line.

    :param kind: the type of the event.

    >>> change = {"before": "closed", "after": "open"}
    >>> record_line("circuit_breaker.state_changed", "billing", change)
    'circuit breaker billing: closed -> open'
    """
    text = LINES[kind](data) if kind in LINES else _details(kind, data)
    count = data.get("count")
    if count is not None and "interval" in data:
        text += f" {count} times in {_digits(data['interval'])} s"
    return printable(f"{_prefix(kind, subject, data)}: {text}")


def record_fields(
    kind: str,
    subject: str,
    data: Mapping[str, Any],
    *,
    correlation: Mapping[str, str] | None = None,
    **ids: str | None,
) -> dict[str, Any]:
    """The fields of a record: those of ``FIELDS``, the other data and the correlation.

    :param ids: ``execution_id``, ``root_id`` and ``trace_id``.
    """
    fields = EMPTY.copy()
    for values in (correlation, data) if correlation else (data,):
        for name, value in values.items():
            shown = printable(value) if type(value) is str else value
            fields[f"{name}_" if name in RESERVED else name] = shown
    if "name_" in fields:
        fields["component_name"] = fields.pop("name_")
    if "attempts" in fields:
        fields["attempt"] = fields.pop("attempts")
    fields.update(ids)
    fields["event"], fields["subject"] = kind, printable(subject)
    if kind.startswith("task."):
        fields = dict.fromkeys(OF_TASKS) | fields | {"cancel_reason": fields["reason"]}
    elif fields["operation"] not in (None, subject):
        fields["template"] = fields["subject"]
    return fields


def _prefix(kind: str, subject: str, data: Mapping[str, Any]) -> str:
    """The template, the function and the key of an execution; or the component."""
    operation = data.get("operation")
    if operation is None or not (kind.startswith(OF_EXECUTIONS) or kind in LINES):
        return f"{kind.partition('.')[0].replace('_', ' ')} {subject}"
    return execution_name(subject, operation, data.get("key"))


def _details(kind: str, data: Mapping[str, Any]) -> str:
    """The event in words, with its data."""
    words = (kind.partition(".")[2] or kind).replace("_", " ").replace(".", " ")
    shown = [
        f"{name.replace('_', ' ')}: {_value(value)}"
        for name, value in data.items()
        if value is not None and name not in ("count", "interval")
    ]
    return "; ".join([words, *shown])


def _value(value: Any) -> str:
    return _digits(value) if isinstance(value, float) else one_line(str(value))


def _attempt(data: Mapping[str, Any]) -> str:
    number = data.get("attempt", data.get("attempts"))
    most = data.get("max_attempts")
    return f"attempt {number}" if most is None else f"attempt {number} of {most}"


def _error(data: Mapping[str, Any]) -> str:
    """The error in one line: its class without the module, the first line of its text."""
    name = data.get("error_type")
    if name is None:
        return ""
    return with_text(one_line(name.rpartition(".")[2]), one_line(data.get("error_message") or ""))


def _component(data: Mapping[str, Any], message: str = "") -> str:
    """The component that rejected the call, with its message if it has no name."""
    name = data.get("name")
    if name is not None:
        return f"{data['component']} {name}"
    return with_text(data["component"], one_line(message))


def _failed_attempt(data: Mapping[str, Any]) -> str:
    """The failure of an attempt, or the component that rejected it."""
    if data.get("component") is not None:
        return f"{_attempt(data)} rejected by {_component(data, data['error_message'] or '')}"
    return f"{_attempt(data)} failed: {_error(data)}"


def _scheduled(data: Mapping[str, Any]) -> str:
    return f"{_failed_attempt(data)}; next attempt in {_digits(data['delay'])} s"


def _deferred(data: Mapping[str, Any]) -> str:
    delay = data["delay"]
    if delay is not None:
        then = "next attempt at the next delivery"
        then += f", in {_digits(delay)} s or later" if delay > 0 else ""
    elif data["recovery_next"]:
        then = "the next delivery runs the recovery"
    else:
        then = "the next delivery fails without an attempt"
    return f"{_failed_attempt(data)}; {then}"


def _lost(data: Mapping[str, Any]) -> str:
    return f"attempt {data['attempt']} was lost with its process: worker {data['worker']}"


def _overrun(data: Mapping[str, Any]) -> str:
    return (
        f"attempt {data['attempt']} returned after {_digits(data['elapsed'])} s, "
        f"over its limit of {_digits(data['limit'])} s; its value is used"
    )


def _late_success(data: Mapping[str, Any]) -> str:
    return f"succeeded {_when(data)}"


def _recovered(data: Mapping[str, Any]) -> str:
    return f"recovered {_end(data)}"


def _gave_up(data: Mapping[str, Any]) -> str:
    return f"gave up {_end(data)}"


def _when(data: Mapping[str, Any]) -> str:
    if not data["attempts"]:
        return "before the first attempt"
    elapsed = data["elapsed"]
    return f"after {_attempt(data)}" + ("" if elapsed is None else f" in {_digits(elapsed)} s")


def _end(data: Mapping[str, Any]) -> str:
    """After which attempt, with which failure, and why."""
    error, reason = _error(data), data["reason"]
    text = _when(data) + (f": {error}" if error else "")
    if reason is not None:
        text += f"; reason: {STOP_REASON_TEXTS.get(reason, reason)}"
        if reason in ("guard", "budget_exhausted") and data.get("component") is not None:
            text += f" ({_component(data)})"
    return text


def _rejected(data: Mapping[str, Any]) -> str:
    text = f"rejected by {_component(data, data['error_message'] or '')}"
    return text if "count" in data else text + _retry_after(data)


def _component_rejected(data: Mapping[str, Any]) -> str:
    return "rejected" if "count" in data else f"rejected{_retry_after(data)}"


def _retry_after(data: Mapping[str, Any]) -> str:
    after = data.get("retry_after")
    return f"; retry after {_digits(after)} s" if isinstance(after, int | float) else ""


def _cancelled(data: Mapping[str, Any]) -> str:
    return f"cancelled in attempt {data['attempt']}: {data['reason']}"


def _state_changed(data: Mapping[str, Any]) -> str:
    text = f"{data['before']} -> {data['after']}"
    if data.get("by") is not None:
        text += f"; by {one_line(data['by'])}"
    return with_text(text, one_line(data.get("reason") or ""))


def _store_unavailable(data: Mapping[str, Any]) -> str:
    """A failure of the context cache of an execution; of other stores the details."""
    if data.get("operation") is None:
        return _details("store.unavailable", data)
    when = _attempt(data) if data["attempt"] else "before the first attempt"
    if data["without_claim"]:
        then = "the execution continues without a claim"
    else:
        then = "its record of this execution may be incomplete"
    return f"{when}: the context cache failed: {_error(data)}; {then}"


LINES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "attempt.lost": _lost,
    "attempt.overrun": _overrun,
    "call.cancelled": _cancelled,
    "call.failed": _gave_up,
    "call.recovered": _recovered,
    "call.rejected": _rejected,
    "call.succeeded_after_retry": _late_success,
    "circuit_breaker.state_changed": _state_changed,
    "retry.deferred": _deferred,
    "retry.scheduled": _scheduled,
    "store.unavailable": _store_unavailable,
}
LINES |= dict.fromkeys(
    (
        "bulkhead.rejected",
        "circuit_breaker.rejected",
        "idempotency.rejected",
        "kill_switch.rejected",
        "rate_limiter.rejected",
        "task_supervisor.rejected",
    ),
    _component_rejected,
)


def _digits(seconds: float) -> str:
    """Seconds without an exponent, with three significant digits below 100."""
    if 0.001 <= seconds < 100:
        return f"{seconds:.3g}"
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.6f}".rstrip("0").rstrip(".")


def to_logger(value: logging.Logger | str | None) -> logging.Logger:
    """The logger of this name; None: ``retrytemplate``."""
    import logging

    if value is None or isinstance(value, str):
        return logging.getLogger(value or LOGGER)
    if isinstance(value, logging.Logger):
        return value
    raise TypeError(f"logger must be a logging.Logger, its name or None, got {value!r}")


def to_level(value: int | str | None) -> int | None:
    """The number of a level given by name; other values unchanged, for the validator."""
    import logging

    names: dict[Any, Any] = logging.getLevelNamesMapping()
    return names.get(value, value) if isinstance(value, str) else value


def check_level(name: str, value: Any) -> None:
    """Raise unless *value* is the number of a level, or None."""
    import logging

    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return
    names = ", ".join(logging.getLevelNamesMapping())
    allowed = f"{name} must be a number, None or one of {names}"
    kind = ValueError if isinstance(value, str) else TypeError
    raise kind(f"{allowed}, got {value!r}")
