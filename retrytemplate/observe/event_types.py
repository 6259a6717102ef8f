"""The table of event types: severity, keys of the data, source.

Sinks, pages and tests are made from it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class EventType(NamedTuple):
    """A type of events.

    :param severity: the name of a level; several, separated by a slash, where a value decides.
    :param keys: the keys of ``Event.data``.
    :param source: the hook or event that it is made from.
    :param in_call: also part of an execution, whose own events report the same rejection.
    """

    severity: str
    keys: tuple[str, ...]
    source: str
    in_call: bool = False


FAILURE = "error_type error_message"
# The end of the deadline, in seconds since the epoch, and the seconds left.
LIMITS = "deadline remaining"
ATTEMPT = "operation key attempt max_attempts"
# The component and its name, if the attempt or the call was rejected.
REJECTED_BY = "component name"
RETRY = f"{ATTEMPT} delay {FAILURE} {REJECTED_BY} {LIMITS}"
END = f"operation key attempts max_attempts elapsed reason {FAILURE} {REJECTED_BY} {LIMITS}"
HEDGES = "started won rejected attempt_failed attempt_abandoned"
REJECTIONS = "circuit_breaker bulkhead rate_limiter kill_switch idempotency task_supervisor"
STEP = "run status counts"
ITEM = "run numbers phase attempt error_type"
TASK = f"owner operation message_id reason timeout_type limit resource cleanup error_type {LIMITS}"
MESSAGE = "queue_name key action attempt crashes waited ran reason error_type"
QUEUE = "queue_name reason error_type"
WORKER = "reason settled released cancelled stuck elapsed"


def _types(names: Iterable[str], severity: str, keys: str, source: str) -> dict[str, EventType]:
    return {name: EventType(severity, tuple(keys.split()), source) for name in names}


def _under(first: str, names: str) -> list[str]:
    return [f"{first}.{each}" for each in names.split()]


EXECUTIONS = {
    **_types(["retry.scheduled"], "WARNING", RETRY, "on_backoff"),
    **_types(["retry.deferred"], "WARNING", f"{RETRY} recovery_next", "on_backoff, on_end"),
    **_types(
        ["attempt.lost"], "WARNING", f"operation key attempt worker {LIMITS}", "on_attempt_lost"
    ),
    **_types(
        ["attempt.overrun"],
        "WARNING",
        f"operation key attempt limit elapsed {LIMITS}",
        "on_overrun",
    ),
    **_types(
        ["call.succeeded_after_retry"],
        "INFO",
        f"operation key attempts max_attempts elapsed {LIMITS}",
        "on_end",
    ),
    **_types(["call.recovered", "call.failed"], "WARNING", END, "on_end"),
    **_types(
        ["call.rejected"],
        "INFO",
        f"operation key {REJECTED_BY} reason retry_after {FAILURE} {LIMITS}",
        "on_end",
    ),
    **_types(
        ["call.cancelled"],
        "DEBUG/INFO/WARNING",
        f"operation key reason attempt elapsed {LIMITS}",
        "on_end",
    ),
}
COMPONENTS = {
    **{
        f"{each}.rejected": EventType(
            "INFO", ("retry_after", "error_type"), "CallRejected", in_call=True
        )
        for each in REJECTIONS.split()
    },
    "retry_budget.rejected": EventType(
        "WARNING", ("available", "retry"), "CallRejected", in_call=True
    ),
    **_types(["nesting.rejected"], "WARNING", "depth retry suppressed", "NestedRetry"),
    **_types(
        ["circuit_breaker.state_changed"],
        "WARNING/INFO",
        "before after generation by reason",
        "CircuitChanged",
    ),
    **_types(["circuit_breaker.late_result"], "DEBUG", "verdict", "LateResult"),
    **_types(
        ["timeout.exceeded"],
        "WARNING",
        "operation timeout_type limit elapsed abandoned retries caused_by_retries retryable",
        "TimedOut",
    ),
    **_types(["fallback.used"], "WARNING", "source error_type", "FallbackUsed"),
    **_types(_under("hedge", HEDGES), "DEBUG", "number error_type", "events of a Hedge"),
    **_types(
        ["kill_switch.changed"],
        "CRITICAL/INFO",
        "action scope target by reason percentage until override record",
        "SwitchChanged",
    ),
    **_types(["operation.replayed"], "INFO", "key attempt error_type", "OperationReplayed"),
    **_types(
        ["operation.outcome_unknown"], "WARNING", "key attempt error_type", "OperationUnknown"
    ),
    **_types(["operation.not_recorded"], "ERROR", "key attempt error_type", "OperationUnrecorded"),
    **_types(
        ["store.unavailable"],
        "ERROR",
        f"kind unavailable_for age {FAILURE} {ATTEMPT} without_claim",
        "on_store_error, events of stores",
    ),
    **_types(["store.available"], "INFO", "kind unavailable_for age", "events of stores"),
}
BATCH = {
    **_types(_under("run", "started ended"), "INFO", STEP, "StepListener"),
    **_types(["run.crashed"], "ERROR", STEP, "StepListener"),
    **_types(_under("item", "failed rolled_back"), "INFO", ITEM, "StepListener"),
    **_types(["item.dead_lettered", "outbox.not_sent"], "WARNING", ITEM, "StepListener"),
    **_types(
        _under("dead_letter", "replayed discarded"), "INFO", "letter by reason", "dead letters"
    ),
    **_types(["job.started", "job.ended"], "INFO", "job status counts", "partitions"),
    **_types(_under("partition", "started ended"), "INFO", "partition worker", "partitions"),
    **_types(["partition.taken_over"], "WARNING", "partition worker", "partitions"),
}
WORKERS = {
    **_types(["task.started"], "DEBUG", TASK, "tasks"),
    **_types(["task.cancelled"], "DEBUG/INFO/WARNING", TASK, "tasks"),
    **_types(["task.timed_out"], "WARNING", TASK, "tasks"),
    **_types(["task.cleanup_failed"], "ERROR/WARNING", TASK, "tasks"),
    **_types(["queue.ack_failed"], "WARNING", QUEUE, "workers"),
    **_types(["message.settled"], "DEBUG/INFO/WARNING/ERROR", MESSAGE, "workers"),
    **_types(["message.suspected"], "WARNING", MESSAGE, "workers"),
    **_types(["message.exclusive"], "INFO", MESSAGE, "workers"),
    **_types(["message.exclusive_timed_out"], "WARNING", MESSAGE, "workers"),
    **_types(["message.crash_attributed"], "WARNING", MESSAGE, "workers"),
    **_types(_under("queue", "paused receive_failed"), "WARNING", QUEUE, "workers"),
    **_types(_under("worker", "stopping stopped"), "INFO/ERROR", WORKER, "workers"),
}
OPERATIONS = {
    **_types(["config.loaded"], "INFO", "changed rebuilt problems", "configuration"),
    **_types(["config.rejected"], "ERROR", "changed rebuilt problems", "configuration"),
    **_types(
        _under("alert", "raised cleared"),
        "INFO/WARNING/CRITICAL",
        "rule value limit window",
        "alerts",
    ),
    **_types(["operator.action"], "INFO", "action target by reason remote", "dashboard"),
}

EVENT_TYPES: Mapping[str, EventType] = MappingProxyType(
    EXECUTIONS | COMPONENTS | BATCH | WORKERS | OPERATIONS
)
"""The types of the events that the library makes, by name."""

OUTCOMES = {
    "call.succeeded_after_retry": "success_after_retry",
    "call.recovered": "recovered",
    "call.failed": "failed",
    "call.rejected": "rejected",
    "call.cancelled": "cancelled",
    "retry.deferred": "redelivered",
}
"""The outcome of an execution by the type of its last event; a first success has no event."""


def is_reported_by_call(kind: str, execution_id: str | None) -> bool:
    """Whether an event of the execution around it reports the same rejection."""
    return execution_id is not None and kind in EVENT_TYPES and EVENT_TYPES[kind].in_call
