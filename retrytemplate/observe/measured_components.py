"""Measurements of control objects, steps and workers, from their events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._internal.failure_text import type_name
from retrytemplate._internal.imports import is_library_module
from retrytemplate.control.classification.timeouts import timeout_kind
from retrytemplate.observe.component_events import component_of, is_safe_to_repeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.observe.measurements import Measurements

NO_SOURCE = "none"
STEP_RESULTS = "read processed filtered written failed rolled_back dead_lettered".split()


def measure_event(to: Measurements, event: Any) -> None:
    """Count an event of a control object or a worker."""
    kind = type(event)
    measure = MEASURES.get(kind.__name__) if is_library_module(kind.__module__) else None
    if measure is not None:
        measure(to, event)


def measure_step_event(to: Measurements, event: Any) -> None:
    """Count the items of an event of a chunk step."""
    if event.kind in STEP_RESULTS:
        to.add("step.items", event.step, event.kind, amount=len(event.numbers))


def _rejected(to: Measurements, event: Any) -> None:
    to.add("rejections", component_of(event.error), event.name)


def _circuit_changed(to: Measurements, event: Any) -> None:
    manual = _truth(event.by is not None)
    to.add("circuit_breaker.transitions", event.name, event.after, manual)


def _timed_out(to: Measurements, event: Any) -> None:
    retryable = _truth(is_safe_to_repeat(event.error))
    to.add("timeouts", event.operation, event.kind or "", retryable)


def _fallback_used(to: Measurements, event: Any) -> None:
    to.add("fallback.calls", event.name, event.source or NO_SOURCE)


def _primary_answered(to: Measurements, event: Any) -> None:
    to.add("fallback.calls", event.name, "primary")


def _hedge(result: str) -> Callable[[Measurements, Any], None]:
    def measure(to: Measurements, event: Any) -> None:
        to.add("hedges", event.name, result)

    return measure


def _delayed(to: Measurements, event: Any) -> None:
    to.record("rate_limiter.wait.duration", event.name, seconds=event.wait)


def _task_started(to: Measurements, event: Any) -> None:
    to.add("task.started", event.name, event.operation)


def _task_cancelled(to: Measurements, event: Any) -> None:
    to.add("task.cancelled", str(event.reason), event.operation)


def _task_failed(to: Measurements, event: Any) -> None:
    kind = timeout_kind(event.error)
    if kind is not None:
        to.add("task.timed_out", kind, event.operation)


def _cleanup_failed(to: Measurements, event: Any) -> None:
    # A task that ignores its cancellation is a resource itself.
    to.add("task.cleanup_failed", getattr(event, "resource", "task"), event.operation)


def _settled(to: Measurements, event: Any) -> None:
    to.add("message.settled", event.queue_name, event.action)


def _exclusive(to: Measurements, event: Any) -> None:
    to.record("message.exclusive.duration", event.queue_name, seconds=event.ran)


def _ack_failed(to: Measurements, event: Any) -> None:
    to.add("queue.ack_failed", event.queue_name, event.reason, amount=event.count)


def _receive_failed(to: Measurements, event: Any) -> None:
    to.add("queue.receive_failed", event.queue_name, type_name(event.error))


def _reload(result: str) -> Callable[[Measurements, Any], None]:
    def measure(to: Measurements, event: Any) -> None:
        to.add("config.reloads", result)

    return measure


def _truth(value: object) -> str:
    return "true" if value else "false"


# By the name of the class, as the converters of events are.
MEASURES: dict[str, Callable[[Measurements, Any], None]] = {
    "CallRejected": _rejected,
    "CircuitChanged": _circuit_changed,
    "TimedOut": _timed_out,
    "FallbackUsed": _fallback_used,
    "PrimaryAnswered": _primary_answered,
    "HedgeStarted": _hedge("started"),
    "HedgeWon": _hedge("won"),
    "HedgeRefused": _hedge("rejected"),
    "AttemptFailed": _hedge("attempt_failed"),
    "AttemptAbandoned": _hedge("attempt_abandoned"),
    "CallDelayed": _delayed,
    "TaskStarted": _task_started,
    "TaskCancelled": _task_cancelled,
    "TaskFailed": _task_failed,
    "TaskStuck": _cleanup_failed,
    "TaskCleanupFailed": _cleanup_failed,
    "MessageSettled": _settled,
    "MessageExclusive": _exclusive,
    "QueueAckFailed": _ack_failed,
    "QueueReceiveFailed": _receive_failed,
    "ConfigReloaded": _reload("loaded"),
    "ConfigRejected": _reload("rejected"),
}
