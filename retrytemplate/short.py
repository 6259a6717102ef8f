"""The rules after a failure where only the policy has to be asked: pure steps on plain state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate.context import CONTEXT, OWNER
from retrytemplate.endings import conclusion, leave, terminated
from retrytemplate.verdicts import ORDINARY, judge, leaves_as_it_is, reason_to_pass, stop_reason

if TYPE_CHECKING:
    from retrytemplate.context import Cell, RetryContext
    from retrytemplate.policies.base import RetryPolicy

__all__ = ["RECOVER", "after_failure"]

RECOVER = object()


def after_failure(cell: Cell, policy: RetryPolicy, failure: BaseException) -> Any:
    """The rules after a failure where only the policy has to be asked: stateless, untold, no waits.

    What ``Execution._after`` does in such an execution, as one step on plain state: nearly every
    failing call is one.  Returns None when another attempt is due, RECOVER when it is the
    recovery's turn, else the exception that leaves.
    """
    context: RetryContext = cell[CONTEXT]
    plan = context._plan
    error: BaseException | None = None
    if type(failure) not in ORDINARY and leaves_as_it_is(policy, failure):
        error = failure
        context._stop = reason_to_pass(failure)
    else:
        started = None if context._last is None else context._last_stamp[2]
        context._fail(failure, started, plan.monotonic())
        try:
            if judge(policy, context, failure) and not context.gave_up:
                context.attempt += 1
                return None
        except Exception as exc:
            error = terminated(exc, failure)
            context._stop = "terminated"
    if error is None:
        recovery = context._recovery
        if recovery is None:
            recovery = cell[OWNER].recovery
        if recovery is not None and not context.no_recovery:
            return RECOVER
        context.exhausted = True
        if context._shared or context.retry_count > 1:  # else nothing shows it
            context._stop = stop_reason(policy, context, plan.monotonic)
        error = conclusion(context)
    context.closed = True
    leave(context, error, for_good=error is not failure or context.exhausted)
    return error
