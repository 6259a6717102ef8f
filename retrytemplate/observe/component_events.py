"""The type, severity and data of the events of control objects, steps and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._engine.context import current_context
from retrytemplate._internal.cancel_reason import CancelReason
from retrytemplate._internal.failure_text import message_of, type_name
from retrytemplate._internal.formatting import key_text
from retrytemplate._internal.imports import is_library_module
from retrytemplate.control.classification.timeouts import timeout_kind
from retrytemplate.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable

    Converted = tuple[str, int | None, dict[str, Any]]
    """The type, the severity (None: that of the table) and the data."""

DEBUG, INFO, WARNING, ERROR, CRITICAL = 10, 20, 30, 40, 50  # of the logging module


def cancellation_level(reason: str) -> int:
    """The severity of a cancellation.

    >>> cancellation_level("manual"), cancellation_level("deadline_exceeded")
    (10, 30)
    """
    levels = {CancelReason.SERVER_SHUTDOWN: INFO, CancelReason.DEADLINE_EXCEEDED: WARNING}
    return levels.get(CancelReason(reason), DEBUG)


def convert(event: Any) -> Converted | None:
    """The event of a control object or of a worker; None for one that is only counted."""
    kind = type(event)
    make = CONVERTERS.get(kind.__name__) if is_library_module(kind.__module__) else None
    return None if make is None else make(event)


def convert_step_event(event: Any) -> Converted | None:
    """The event of a chunk step; None for one that is only counted."""
    kind = STEP_TYPES.get(event.kind)
    if kind is None:
        return None
    if kind.startswith("run."):
        return kind, None, {"run": event.run_id, **_fields(event, "status", "counts")}
    if kind.startswith("dead_letter."):
        return kind, None, _fields(event, "letter", "by", "reason")
    return (
        kind,
        None,
        {
            "run": event.run_id,
            "numbers": list(event.numbers),
            "phase": event.phase,
            "attempt": event.attempt,
            "error_type": None if event.error is None else event.error.type_name,
        },
    )


STEP_TYPES = {
    "started": "run.started",
    "ended": "run.ended",
    "crashed": "run.crashed",
    "failed": "item.failed",
    "rolled_back": "item.rolled_back",
    "dead_lettered": "item.dead_lettered",
    "not_sent": "outbox.not_sent",
    "replayed": "dead_letter.replayed",
    "discarded": "dead_letter.discarded",
}


def _type(error: BaseException | None) -> str | None:
    return None if error is None else type_name(error)


def component_of(error: Any) -> str:
    """The component that rejected a call, as a word."""
    component: str = getattr(error, "component", "guard")
    return component.removesuffix(" guard").replace(" ", "_")


def is_safe_to_repeat(error: Any) -> bool:
    """Whether a call that timed out was not begun."""
    return error is not None and not error.outcome_unknown


def _rejected(event: Any) -> Converted:
    error = event.error
    component = component_of(error)
    if component == "retry_budget":
        context = current_context()
        retry = None if context is None else context.retry_count
        return "retry_budget.rejected", None, {"available": error.available, "retry": retry}
    data = {"retry_after": error.retry_after, "error_type": type_name(error)}
    return f"{component}.rejected", INFO, data


def _nested(event: Any) -> Converted:
    return "nesting.rejected", None, _fields(event, "depth", "retry", "suppressed")


def _circuit_changed(event: Any) -> Converted:
    data = _fields(event, "before", "after", "generation", "by", "reason")
    level = WARNING if event.after in ("open", "forced_open") else INFO
    return "circuit_breaker.state_changed", level, data


def _late_result(event: Any) -> Converted:
    return "circuit_breaker.late_result", None, _fields(event, "verdict")


def _timed_out(event: Any) -> Converted:
    data = _fields(event, "operation", "limit", "elapsed", "abandoned", "retries")
    data["timeout_type"] = event.kind
    data["caused_by_retries"] = event.retries > 0
    data["retryable"] = is_safe_to_repeat(event.error)
    return "timeout.exceeded", None, data


def _fallback_used(event: Any) -> Converted:
    data = {"source": event.source, "error_type": type_name(event.error)}
    return "fallback.used", None, data


def _hedge(kind: str) -> Callable[[Any], Converted]:
    def convert(event: Any) -> Converted:
        error = getattr(event, "error", None)
        data = {"number": getattr(event, "number", None), "error_type": _type(error)}
        return f"hedge.{kind}", None, data

    return convert


def _switch_changed(event: Any) -> Converted:
    record = event.record
    data = _fields(record, "action", "by", "reason", "until", "override")
    data |= {"scope": record.scope.kind, "target": record.scope.name}
    data |= {"percentage": record.share, "record": record.id}
    return "kill_switch.changed", CRITICAL if record.action == "stopped" else INFO, data


def _operation(kind: str) -> Callable[[Any], Converted]:
    def convert(event: Any) -> Converted:
        data = {
            "key": key_text(event.key),
            "attempt": getattr(event, "attempt", None),
            "error_type": _type(getattr(event, "error", None)),
        }
        return f"operation.{kind}", None, data

    return convert


def _store(kind: str) -> Callable[[Any], Converted]:
    def convert(event: Any) -> Converted:
        if hasattr(event, "outage"):
            data = {"kind": kind, "unavailable_for": event.outage, "age": None}
            return "store.available", None, data
        error = {"error_type": _type(event.error), "error_message": message_of(event.error)}
        data = {"kind": kind, "unavailable_for": None, "age": getattr(event, "age", None)}
        return "store.unavailable", None, data | error

    return convert


def _task_data(event: Any, **about: Any) -> dict[str, Any]:
    return {"owner": event.name, **_fields(event, "operation", "message_id"), **about}


def _task_started(event: Any) -> Converted:
    return "task.started", None, _task_data(event)


def _task_cancelled(event: Any) -> Converted:
    reason = str(event.reason)
    data = _task_data(event, reason=reason, cleanup=event.cleanup)
    return "task.cancelled", cancellation_level(reason), data


def _task_failed(event: Any) -> Converted | None:
    """The event of a time limit; another failure has none."""
    timeout_type = timeout_kind(event.error)
    if timeout_type is None:
        return None
    data = _task_data(
        event,
        reason=str(CancelReason.DEADLINE_EXCEEDED),
        timeout_type=timeout_type,
        limit=event.error.limit if isinstance(event.error, DeadlineExceededError) else None,
        cleanup=event.cleanup,
        error_type=type_name(event.error),
    )
    return "task.timed_out", None, data


def _task_stuck(event: Any) -> Converted:
    """A cancellation that is swallowed, and blocks a shutdown."""
    return "task.cleanup_failed", ERROR, _task_data(event, reason=str(event.reason), cleanup=False)


def _cleanup_failed(event: Any) -> Converted:
    data = _task_data(
        event, resource=event.resource, cleanup=False, error_type=type_name(event.error)
    )
    return "task.cleanup_failed", WARNING if event.will_retry else ERROR, data


def _message(kind: str) -> Callable[[Any], Converted]:
    names = ("queue_name", "action", "attempt", "crashes", "waited", "ran", "reason", "error_type")

    def convert(event: Any) -> Converted:
        data = {name: getattr(event, name) for name in names if hasattr(event, name)}
        data["key"] = key_text(event.key)
        level = None
        if kind == "settled":
            from retrytemplate.workers.engine import OUTCOMES, Outcome

            level = OUTCOMES[Outcome(event.outcome)].level or DEBUG
        return f"message.{kind}", level, data

    return convert


def _queue(kind: str) -> Callable[[Any], Converted]:
    def convert(event: Any) -> Converted:
        error = getattr(event, "error", None)
        reason = getattr(event, "reason", None) if error is None else type_name(error)
        data = {"queue_name": event.queue_name, "reason": reason, "error_type": _type(error)}
        return f"queue.{kind}", None, data

    return convert


def _job_replayed(event: Any) -> Converted:
    return "dead_letter.replayed", None, {"letter": event.job_id, **_fields(event, "by", "reason")}


def _worker_stopping(event: Any) -> Converted:
    return "worker.stopping", INFO, {"reason": str(event.reason)}


def _worker_stopped(event: Any) -> Converted:
    report = event.report
    data = {each: report[each] for each in "settled released cancelled stuck elapsed".split()}
    level = INFO if report["clean"] else ERROR
    return "worker.stopped", level, {"reason": str(event.reason), **data}


def _config_loaded(event: Any) -> Converted:
    data = {name: list(getattr(event, name)) for name in ("changed", "rebuilt")}
    return (
        "config.loaded",
        None,
        data | {"problems": [f"{each}: needs a restart" for each in event.restart_required]},
    )


def _config_rejected(event: Any) -> Converted:
    return "config.rejected", None, {"problems": [str(each) for each in event.error.problems]}


def _fields(event: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(event, name) for name in names}


# By the name of the class, so that no strategy is imported for it.
CONVERTERS: dict[str, Callable[[Any], Converted | None]] = {
    "CallRejected": _rejected,
    "NestedRetry": _nested,
    "CircuitChanged": _circuit_changed,
    "LateResult": _late_result,
    "TimedOut": _timed_out,
    "FallbackUsed": _fallback_used,
    "HedgeStarted": _hedge("started"),
    "HedgeWon": _hedge("won"),
    "HedgeRefused": _hedge("rejected"),
    "AttemptFailed": _hedge("attempt_failed"),
    "AttemptAbandoned": _hedge("attempt_abandoned"),
    "SwitchChanged": _switch_changed,
    "OperationReplayed": _operation("replayed"),
    "OperationUnknown": _operation("outcome_unknown"),
    "OperationUnrecorded": _operation("not_recorded"),
    "TaskStarted": _task_started,
    "TaskCancelled": _task_cancelled,
    "TaskFailed": _task_failed,
    "TaskStuck": _task_stuck,
    "TaskCleanupFailed": _cleanup_failed,
    "MessageSettled": _message("settled"),
    "MessageSuspected": _message("suspected"),
    "MessageExclusive": _message("exclusive"),
    "MessageExclusiveTimedOut": _message("exclusive_timed_out"),
    "MessageCrashAttributed": _message("crash_attributed"),
    "QueuePaused": _queue("paused"),
    "QueueAckFailed": _queue("ack_failed"),
    "QueueReceiveFailed": _queue("receive_failed"),
    "JobReplayed": _job_replayed,
    "WorkerStopping": _worker_stopping,
    "WorkerStopped": _worker_stopped,
    "ConfigReloaded": _config_loaded,
    "ConfigRejected": _config_rejected,
}
for _class, _kind in (
    ("Circuit", "circuit_breaker"),
    ("Switch", "kill_switch"),
    ("RateLimit", "rate_limiter"),
):
    CONVERTERS[f"{_class}StoreLost"] = CONVERTERS[f"{_class}StoreRecovered"] = _store(_kind)
