"""Executions under a deadline whose first attempt is made right here, without the engine.

Nothing is cut here: synchronous code cannot be, and the task is by the deadline that it entered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate.attempt_timeout import exceeded
from retrytemplate.context import CURRENT, DEADLINE, RetryContext, leave, restore
from retrytemplate.drivers import (
    ASYNC,
    PLAIN,
    SYNC,
    awaitable_error,
    is_awaitable,
    perform,
    perform_async,
)
from retrytemplate.engine import Execution

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.context import Cell
    from retrytemplate.engine import Steps, Ways
    from retrytemplate.plan import Plan

    Recovery = Callable[[RetryContext], Any] | None

__all__ = ["run_within", "run_within_async", "suits"]


def suits(plan: Plan, outer: Cell | None, *, cut: bool) -> bool:
    """Whether there is a deadline, all that has to be asked before the first attempt.

    :param cut: whether it has to be one that cuts the task that runs here.
    """
    if outer is None or not plan.inline:
        return False
    deadline = outer[DEADLINE]
    return deadline is not None and (not cut or deadline.cuts_here()) and deadline.fits()


def run_within(
    owner: Any,
    outer: Cell | None,
    function: Callable[..., Any],
    arguments: tuple[Any, ...] | None,
    recovery: Recovery,
) -> Any:
    """Run one execution in this thread; the first attempt is looked at when it ends."""
    context, arguments, cell = _begin(owner, outer, arguments)
    limit = cell[DEADLINE].remaining()
    failure: Exception | None = None
    token = None
    try:
        token = CURRENT.set(cell)
        try:
            value = function(*arguments)
        except Exception as exc:
            failure = exc
        except BaseException:
            context.closed = True
            raise
        else:
            if type(value) not in PLAIN and is_awaitable(value):
                context.closed = True
                raise awaitable_error(function, value)
            if _in_time(context, limit):
                return value
        steps = _rest(cell, function, arguments, recovery, limit, failure, SYNC)
        failure = None
        return perform(steps)
    finally:
        restore(token, outer)


async def run_within_async(
    owner: Any,
    outer: Cell | None,
    function: Callable[..., Any],
    arguments: tuple[Any, ...] | None,
    recovery: Recovery,
) -> Any:
    """The same in a task, which the deadline cuts by itself."""
    context, arguments, cell = _begin(owner, outer, arguments)
    limit = cell[DEADLINE].remaining()
    failure: Exception | None = None
    token = CURRENT.set(cell)
    try:
        try:
            value = function(*arguments)
            if type(value) not in PLAIN and is_awaitable(value):
                value = await value
        except Exception as exc:
            failure = exc
        except BaseException:
            context.closed = True
            raise
        else:
            if _in_time(context, limit):
                return value
        steps = _rest(cell, function, arguments, recovery, limit, failure, ASYNC)
        failure = None
        return await perform_async(steps)
    finally:
        leave(cell, token)


def _begin(
    owner: Any, outer: Any, arguments: tuple[Any, ...] | None
) -> tuple[RetryContext, tuple[Any, ...], Cell]:
    plan = owner._plan
    context = RetryContext(owner, outer, plan)
    context.attempt = 1
    context._started = plan.monotonic()
    if arguments is None:
        context._shared = True
        arguments = (context,)
    return context, arguments, [context, owner, outer[DEADLINE], outer, plan]


def _in_time(context: RetryContext, limit: float) -> bool:
    """Whether an attempt that succeeded did so in time: then it is over."""
    plan, started = context._plan, context._started
    if started is None or plan.monotonic() - started > limit:
        return False
    context.closed = True
    if context._shared:
        context._finish()
    return True


def _rest(
    cell: Cell,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    recovery: Recovery,
    limit: float,
    failure: Exception | None,
    ways: Ways,
) -> Steps:
    """What the engine does after a first attempt that failed, or came too late."""
    context, owner, deadline, _, plan = cell
    if recovery is None:
        recovery = owner.recovery
    execution = Execution(plan, context, function, arguments, recovery, ways)
    execution.deadline, execution.started = deadline, context._started
    return execution.run(exceeded(execution, limit, True) if failure is None else failure)
