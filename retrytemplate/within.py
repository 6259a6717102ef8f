"""Executions under a deadline whose first attempt is made right here, without the engine.

Nothing is cut here: synchronous code cannot be, and the task is by the deadline that it entered.
"""

from __future__ import annotations

from types import CoroutineType
from typing import TYPE_CHECKING, Any

from retrytemplate.attempt_timeout import warn_of_overrun
from retrytemplate.context import (
    CONTEXT,
    CURRENT,
    DEADLINE,
    OUTER,
    OWNER,
    PLAN,
    STARTED,
    RetryContext,
    close_context,
    context_of,
    first_context,
    leave,
    restore,
)
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
    from retrytemplate.deadline import Deadline
    from retrytemplate.engine import Steps, Ways
    from retrytemplate.plan import Plan

    Recovery = Callable[[RetryContext], Any] | None

__all__ = ["run_within", "run_within_async", "time_for"]


def time_for(plan: Plan, deadline: Deadline | None, *, cut: bool) -> float:
    """The seconds for a first attempt that nobody else has to be asked about; else 0.

    :param cut: whether the deadline has to be one that cuts the task that runs here.
    """
    if deadline is None or deadline.stops or not plan.inline:
        return 0.0
    if cut and (deadline.cut is None or not deadline.cut.is_here()):
        return 0.0
    return deadline.room()


def run_within(
    owner: Any,
    limit: float,
    function: Callable[..., Any],
    arguments: tuple[Any, ...] | None,
    recovery: Recovery,
) -> Any:
    """Run one execution in this thread."""
    cell = _begin(owner, function)
    if arguments is None:
        arguments = (context_of(cell),)
    failure: Exception | None = None
    token = None
    try:
        token = CURRENT.set(cell)
        try:
            value = function(*arguments)
        except Exception as exc:
            failure = exc
        except BaseException:
            _end(cell)
            raise
        else:
            if type(value) not in PLAIN and is_awaitable(value):
                _end(cell)
                raise awaitable_error(function, value)
            _succeed(cell, limit)
            return value
        steps = _rest(cell, function, arguments, recovery, failure, SYNC)
        failure = None
        return perform(steps)
    finally:
        restore(token, cell[OUTER])


async def run_within_async(
    owner: Any,
    limit: float,
    function: Callable[..., Any],
    arguments: tuple[Any, ...] | None,
    recovery: Recovery,
) -> Any:
    """The same in a task, which the deadline cuts by itself."""
    cell = _begin(owner, function)
    if arguments is None:
        arguments = (context_of(cell),)
    failure: Exception | None = None
    token = CURRENT.set(cell)
    try:
        try:
            value = function(*arguments)
            kind = type(value)
            if kind is CoroutineType or (kind not in PLAIN and is_awaitable(value)):
                value = await value
        except Exception as exc:
            failure = exc
        except BaseException:
            _end(cell)
            raise
        else:
            _succeed(cell, limit)
            return value
        steps = _rest(cell, function, arguments, recovery, failure, ASYNC)
        failure = None
        return await perform_async(steps)
    finally:
        try:
            CURRENT.reset(token)
        except ValueError:  # a suspended coroutine is closed from another context
            leave(cell, token)


def _begin(owner: Any, function: Callable[..., Any]) -> Cell:
    outer: Any = CURRENT.get()
    plan = owner._plan
    return [None, owner, outer[DEADLINE], outer, plan, function, plan.ticks.now()]


def _succeed(cell: Cell, limit: float) -> None:
    """End an execution whose first attempt returned, and report it if that was too late."""
    elapsed = cell[PLAN].ticks.now() - cell[STARTED]
    if elapsed > limit:
        warn_of_overrun(cell[CONTEXT] or first_context(cell), limit, elapsed)
    _end(cell)


def _end(cell: Cell) -> None:
    """The execution is over, and time stands still for whoever holds its context."""
    context = cell[CONTEXT]
    close_context(cell)
    if context is not None:
        context._finish()


def _rest(
    cell: Cell,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    recovery: Recovery,
    failure: Exception,
    ways: Ways,
) -> Steps:
    """The rules after a first attempt that failed."""
    context = cell[CONTEXT]
    if context is None:
        context = first_context(cell)
    if recovery is None:
        recovery = cell[OWNER].recovery
    execution = Execution(cell[PLAN], context, function, arguments, recovery, ways)
    execution.deadline, execution.started = cell[DEADLINE], cell[STARTED]
    return execution.run(failure)
