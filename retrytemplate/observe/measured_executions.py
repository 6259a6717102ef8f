"""Measurements of executions, from the hooks of their templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._engine.deadline import Deadline
from retrytemplate._internal.failure_text import type_name
from retrytemplate.errors import AttemptTimeoutError, Rejected
from retrytemplate.history import RESTORED
from retrytemplate.observe.event_types import OUTCOMES

if TYPE_CHECKING:
    from retrytemplate._engine.context import RetryContext
    from retrytemplate.observe.measurements import Measurements

NEXT_START = "_measured_start"
"""The attribute of a context with the time at which the wait for its next attempt ends."""


def measure_attempt(to: Measurements, metric: str, context: RetryContext) -> None:
    """Count an attempt that was lost or an overrun."""
    to.add(metric, _template(context))


def measure_deadline(to: Measurements, context: RetryContext) -> None:
    """Record the time that is left at the start of an attempt."""
    deadline = Deadline.current()
    if deadline is not None:
        names = context.operation, _template(context)
        to.record("deadline.remaining", *names, seconds=deadline.remaining())


def measure_failure(to: Measurements, context: RetryContext, failure: BaseException) -> None:
    """Record an attempt whose failure was counted."""
    last = _last_counted(context)
    if last is not None and last[1] is not None:
        _record_attempt(to, context, failure, last[1])
    if isinstance(failure, AttemptTimeoutError) and _has_attempt_timeout(context):
        retryable = str(context._retry_allowed).lower()
        to.add("timeouts", context.operation, "attempt", retryable)


def measure_retry(to: Measurements, context: RetryContext, kind: str, delay: float) -> None:
    """Count a retry, and its wait unless it comes with the next delivery.

    :param kind: of its event.
    """
    if not to:
        return
    template, failure = _template(context), context.last_exception
    to.add("retries", template, "" if failure is None else type_name(failure))
    if kind == "retry.scheduled":
        vars(context)[NEXT_START] = _now(context) + delay
        to.add("backoff.time", template, amount=delay)


def measure_end(
    to: Measurements,
    context: RetryContext,
    exception: BaseException | None,
    event: tuple[str, Any] | None,
) -> None:
    """Record an execution that was no first success, and its last attempt.

    :param event: its type and data, if it has one.
    """
    if not to:
        return
    template, now = _template(context), _now(context)
    outcome = _outcome(context) if event is None else OUTCOMES[event[0]]
    started = context._started_at
    last = _last_counted(context)
    is_counted = not context.attempt if last is None else last[0] == context.attempt
    if started is not None and outcome != "cancelled" and not is_counted:
        start = vars(context).get(NEXT_START, started)
        _record_attempt(to, context, exception, now - start)
    duration = 0.0 if started is None else now - started
    to.record("call.duration", template, outcome, seconds=duration)
    if event is not None and event[0] == "call.failed":
        data = event[1]
        to.add("call.failures", template, data["reason"] or "", data["error_type"] or "")


def _outcome(context: RetryContext) -> str:
    """The outcome of an execution whose end has no event."""
    if not context.attempt:
        return "rejected"  # before its first attempt, such as a key in progress
    if context._state is not None:
        return "redelivered"
    return "cancelled"  # an interrupt of a graph, not a failure


def _last_counted(context: RetryContext) -> tuple[int, float | None] | None:
    """Number and duration of the last attempt whose failure was counted."""
    if context._last_failure is None:
        return None
    if context._last_stamp is RESTORED:  # the failures of a key are kept as records
        kept = context.history
        return (kept[-1].number, kept[-1].duration) if kept else None
    number, started, ended = context._last_stamp
    return number, None if started is None else ended - started


def _has_attempt_timeout(context: RetryContext) -> bool:
    plan: Any = context._plan
    return plan.attempt_timeout is not None


def _record_attempt(
    to: Measurements, context: RetryContext, failure: BaseException | None, seconds: float
) -> None:
    outcome = "success" if failure is None else "error"
    if isinstance(failure, Rejected):
        outcome = "rejected"
    to.record("attempt.duration", _template(context), outcome, seconds=seconds)


def _template(context: RetryContext) -> str:
    return context.name or context.operation


def _now(context: RetryContext) -> float:
    now: float = context._plan.monotonic_source.now()
    return now
