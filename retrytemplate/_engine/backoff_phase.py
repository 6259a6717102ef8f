"""What an execution does between two attempts: wait, be told that it may not, or leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._engine.failure_rules import guard_reason
from retrytemplate._engine.final_error import (
    KEPT,
    UNTOUCHED,
    from_cause,
    instead_of,
    interrupted,
    unusable,
)
from retrytemplate.errors import NestedRetryError, Rejected, RetryLater

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retrytemplate._engine.execution import Execution, Steps

__all__ = ["give_back", "pause", "wait_rest"]


def wait_rest(execution: Execution, rest: float) -> Steps:
    """Wait for what is left of a deferred wait, or say when to come again."""
    if rest <= 0:
        return
    state: Any = execution.context._state  # which deferred it
    deadline = execution.deadline
    if state.defer_backoff == "raise":
        execution.end = UNTOUCHED
        execution.error = RetryLater(
            f"the next attempt is due in {rest:g} seconds", retry_after=rest
        )
    elif deadline is not None and not deadline.fits(rest):
        execution.end, execution.reason = UNTOUCHED, "deadline"
        execution.error = deadline.error(
            f"the next attempt is due in {rest:g} seconds, after the deadline"
        )
    else:
        _, error = yield execution.ways.sleep(execution.plan), (rest,)
        if error is not None:
            execution.end, execution.error = UNTOUCHED, interrupted(error)


def pause(execution: Execution, failure: BaseException, rethrown: bool) -> Steps:
    """Wait before the next attempt, or find that there is none to wait for.

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
        error = yield from execution.tell(plan.on_backoff, context, delay)
        if error is not None:
            execution.end, execution.error = KEPT, error
        return
    deadline = execution.deadline
    if deadline is not None and not deadline.fits(delay):
        message = f"{delay:g} seconds of backoff do not fit before the deadline"
        execution.refuse(from_cause(deadline.error(message), failure), "deadline")
        return
    error = yield from _reserve(execution, delay)
    if error is None:
        yield from _sleep(execution, delay)
    elif isinstance(error, NestedRetryError):
        # Itself: the layer outside is to judge it, not this error.
        execution.refuse(failure, guard_reason(error))
    elif isinstance(error, Rejected):
        execution.refuse(from_cause(error, failure), guard_reason(error))
    else:
        execution.end, execution.error = KEPT, error


def _delay(execution: Execution, failure: BaseException) -> float | None:
    plan, context, backoff = execution.plan, execution.context, execution.backoff
    if not plan.waits:
        return 0.0
    if not context._backoff_started:
        context._backoff_started = True
        context._backoff_state = backoff.start()
    try:
        delay, context._backoff_state = backoff.next(context._backoff_state, failure, plan.random)
    except Exception as exc:
        if not execution.resumed:
            raise
        raise unusable(context, exc) from exc
    return delay


def _reserve(execution: Execution, delay: float) -> Steps:
    """Ask the guards in order; what was granted is given back when a later one refuses."""
    granted: list[Callable[..., Any]] = []
    for reserve, give_back in execution.plan.reserve:
        _, error = yield reserve, (execution.context, delay)
        if error is not None:
            return (yield from _give_back(execution, granted, error))
        granted.append(give_back)
    return None


def _give_back(
    execution: Execution, granted: Iterable[Callable[..., Any]], error: BaseException
) -> Steps:
    """The wait that was granted comes to nothing; what a guard raises now, leaves instead."""
    raised = yield from execution.tell_all(granted, execution.context)
    return error if raised is None else instead_of(instead_of(execution.last, error), raised)


def _sleep(execution: Execution, delay: float) -> Steps:
    plan, context = execution.plan, execution.context
    error = yield from execution.tell(plan.on_backoff, context, delay)
    if error is None and delay > 0:
        _, error = yield execution.ways.sleep(plan), (delay,)
        if error is not None:
            error = interrupted(error)
    if error is not None:
        granted = [give_back for _, give_back in plan.reserve]
        execution.end, execution.error = KEPT, (yield from _give_back(execution, granted, error))
    else:
        execution.lent = bool(plan.reserve)


def give_back(execution: Execution) -> Steps:
    """No attempt follows the wait that was granted: the guards get back what they lent for it."""
    execution.lent = False
    granted = [give_back for _, give_back in execution.plan.reserve]
    raised = yield from execution.tell_all(granted, execution.context)
    if raised is not None:
        before = execution.error
        execution.error = raised if before is None else instead_of(before, raised)
        execution.end = KEPT
