"""The backoff phase between two attempts: choose the delay, reserve it, sleep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._engine.failure_rules import guard_reason
from retrytemplate._engine.final_error import (
    RELEASED,
    RETAINED,
    interruption_error,
    unusable_state_error,
    with_cause,
    with_context,
)
from retrytemplate.errors import NestedRetryError, Rejected, RetryLater

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retrytemplate._engine.execution_state import ExecutionState, Steps

__all__ = ["release_reservations", "run_backoff", "wait_remaining_delay"]


def wait_remaining_delay(execution: ExecutionState, rest: float) -> Steps:
    """Wait for the rest of a deferred wait, or raise ``RetryLater`` with it."""
    if rest <= 0:
        return
    state: Any = execution.context._state  # which deferred it
    deadline = execution.deadline
    if state.defer_backoff == "raise":
        execution.disposition = RELEASED
        execution.error = RetryLater(
            f"the next attempt is due in {rest:g} seconds", retry_after=rest
        )
    elif deadline is not None and not deadline.fits(rest):
        execution.disposition, execution.reason = RELEASED, "deadline"
        execution.error = deadline.error(
            f"the next attempt is due in {rest:g} seconds, after the deadline"
        )
    else:
        _, error = yield execution.driver.sleep(execution.plan), (rest,)
        if error is not None:
            execution.disposition, execution.error = RELEASED, interruption_error(error)


def run_backoff(execution: ExecutionState, failure: BaseException, rethrown: bool) -> Steps:
    """Wait before the next attempt, or end the retries.

    :param rethrown: the failure leaves, so that the wait may be left to its redelivery.
    """
    plan, context = execution.plan, execution.context
    delay = _delay(execution, failure)
    if delay is None:
        context._retry_allowed = False
        return
    state: Any = context._state
    if rethrown and state.defer_backoff is not None:
        context._not_before = plan.clock.time() + delay
        error = yield from execution.call_hooks(plan.backoff_hooks(), context, delay)
        if error is not None:
            execution.disposition, execution.error = RETAINED, error
        return
    deadline = execution.deadline
    if deadline is not None and not deadline.fits(delay):
        message = f"{delay:g} seconds of backoff do not fit before the deadline"
        execution.stop_retrying(with_cause(deadline.error(message), failure), "deadline")
        return
    error = yield from _reserve(execution, delay)
    if error is None:
        yield from _sleep(execution, delay)
    elif isinstance(error, NestedRetryError):
        # Itself: the layer outside is to judge it, not this error.
        execution.stop_retrying(failure, guard_reason(error))
    elif isinstance(error, Rejected):
        execution.stop_retrying(with_cause(error, failure), guard_reason(error))
    else:
        execution.disposition, execution.error = RETAINED, error


def _delay(execution: ExecutionState, failure: BaseException) -> float | None:
    plan, context, backoff = execution.plan, execution.context, execution.backoff
    if not plan.has_backoff:
        return 0.0
    if not context._backoff_started:
        context._backoff_started = True
        context._backoff_state = backoff.start()
    try:
        delay, context._backoff_state = backoff.next(context._backoff_state, failure, plan.random)
    except Exception as exc:
        if not execution.is_state_restored:
            raise
        raise unusable_state_error(context, exc) from exc
    return delay


def _reserve(execution: ExecutionState, delay: float) -> Steps:
    """Reserve the wait at the guards in order; a rejection releases the earlier reservations."""
    granted: list[Callable[..., Any]] = []
    for reserve, release in execution.plan.reserve:
        _, error = yield reserve, (execution.context, delay)
        if error is not None:
            return (yield from _release_granted(execution, granted, error))
        granted.append(release)
    return None


def _release_granted(
    execution: ExecutionState, granted: Iterable[Callable[..., Any]], error: BaseException
) -> Steps:
    """Release the reservations of a wait; an exception of a guard replaces the error."""
    raised = yield from execution.call_all_hooks(granted, execution.context)
    return (
        error
        if raised is None
        else with_context(with_context(execution.last_failure, error), raised)
    )


def _sleep(execution: ExecutionState, delay: float) -> Steps:
    plan, context = execution.plan, execution.context
    error = yield from execution.call_hooks(plan.backoff_hooks(), context, delay)
    if error is None and delay > 0:
        _, error = yield execution.driver.sleep(plan), (delay,)
        if error is not None:
            error = interruption_error(error)
    if error is not None:
        granted = [release for _, release in plan.reserve]
        execution.disposition, execution.error = (
            RETAINED,
            (yield from _release_granted(execution, granted, error)),
        )
    else:
        execution.has_reservation = bool(plan.reserve)


def release_reservations(execution: ExecutionState) -> Steps:
    """Release the reservations of a wait that no attempt follows."""
    execution.has_reservation = False
    granted = [release for _, release in execution.plan.reserve]
    raised = yield from execution.call_all_hooks(granted, execution.context)
    if raised is not None:
        before = execution.error
        execution.error = raised if before is None else with_context(before, raised)
        execution.disposition = RETAINED
