"""Entry points of the engine: argument checks, preparation, and runs from the beginning."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any
from warnings import warn

from retrytemplate._engine.context import RetryContext
from retrytemplate._engine.drivers import ASYNC, SYNC, perform, perform_async
from retrytemplate._engine.execution import Execution
from retrytemplate._engine.frames import CURRENT, DEADLINE, OUTER, exit_frame, reset_frame
from retrytemplate._engine.settings import check_recovery, check_state
from retrytemplate._internal.imports import is_library_module
from retrytemplate.errors import MisuseError, UnboundedRetryWarning
from retrytemplate.history import Outcome
from retrytemplate.state import RetryState

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.execution_state import Driver
    from retrytemplate._engine.frames import ExecutionFrame
    from retrytemplate._engine.plan import ExecutionPlan

__all__ = [
    "check_call",
    "outcome",
    "outcome_async",
    "prepare",
    "reject_blocking_cache",
    "run_from_start",
    "run_from_start_async",
    "warn_unbounded",
    "without_keywords",
]


_get, _set = CURRENT.get, CURRENT.set


def prepare(
    owner: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...] | None,
    recovery: Callable[[RetryContext], Any] | None,
    state: RetryState | None,
    driver: Driver,
) -> tuple[Execution, ExecutionFrame]:
    """An execution that has not begun, and the frame to make current while it runs.

    :param arguments: what the function is called with; None: the context.
    """
    check_call(function, recovery)
    plan = owner._plan
    outer = _get()
    context = RetryContext(owner, outer, plan)
    context._function = function
    deadline = None if outer is None else outer[DEADLINE]
    context._is_exposed = arguments is None or plan.measured or not plan.inline_first_attempt
    limit = None if deadline is None or deadline.guards_only else deadline
    if plan.unbounded and limit is None:
        warn_unbounded(plan)
    execution = Execution(
        plan,
        context,
        function,
        (context,) if arguments is None else arguments,
        recovery,
        driver,
    )
    execution.deadline = limit
    if deadline is not None:
        execution.inherited_guards = deadline.inherited_guards
    if state is None:
        state = owner.state
    if state is not None:
        _attach_state(plan, execution, state)
    if deadline is None:
        deadline = plan.guard_scope
    elif plan.inheritable_guards:
        from retrytemplate._engine.deadline import with_inherited_guards

        deadline = with_inherited_guards(deadline, plan.inheritable_guards)
    return execution, [context, owner, deadline, outer, plan]


def check_call(function: Any, recovery: Any) -> None:
    if not callable(function):
        raise TypeError(f"the callback must be callable, got {function!r}")
    if recovery is not None:
        check_recovery(recovery)


def _attach_state(plan: ExecutionPlan, execution: Execution, state: Any) -> None:
    if type(state) is not RetryState:
        state = _state_of(state, execution)
    if state.tracked:
        execution.cache = plan.cache
        if execution.driver.awaits:
            reject_blocking_cache(plan.cache)
    execution.context._state = state


def reject_blocking_cache(cache: Any) -> None:
    """Raise where a cache would stop the event loop."""
    if getattr(cache, "blocking", False):
        raise MisuseError(
            f"{type(cache).__name__} blocks: with execute_async() and call_async() use "
            f"{getattr(cache, 'asynchronous_twin', None) or 'a cache whose steps are awaited'}"
        )


def _state_of(state: Any, execution: Execution) -> RetryState:
    check_state(state)
    if not isinstance(state, RetryState):  # the key is made of the call's arguments
        state = state.for_call(execution.function, execution.arguments)
    made: RetryState = state
    return made


def warn_unbounded(plan: Any) -> None:
    """Warn once per template that its retries have no limit and no delay."""
    plan.unbounded = False
    here, level = sys._getframe(1), 2
    while here.f_back is not None and is_library_module(here.f_globals.get("__name__")):
        here, level = here.f_back, level + 1
    warn(
        f"{type(plan.policy).__name__} never ends and nothing waits between its attempts: "
        "give a limit, a backoff or a Deadline",
        UnboundedRetryWarning,
        stacklevel=level,
    )


def run_from_start(prepared: tuple[Execution, ExecutionFrame]) -> Any:
    execution, frame = prepared
    token = None
    try:
        token = _set(frame)
        return perform(execution.run())
    finally:
        reset_frame(token, frame[OUTER])


async def run_from_start_async(prepared: tuple[Execution, ExecutionFrame]) -> Any:
    execution, frame = prepared
    token = _set(frame)
    try:
        return await perform_async(execution.run())
    finally:
        exit_frame(frame, token)


def without_keywords(
    function: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[Callable[..., Any], Any]:
    """The function and its positional arguments; keywords are bound by a partial."""
    return (partial(function, *args, **kwargs), ()) if kwargs else (function, args)


def outcome(owner: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Outcome[Any]:
    """Call a function with retry and return the outcome."""
    context = value = error = None
    try:
        function, args = without_keywords(function, args, kwargs)
        execution, frame = prepare(owner, function, args, None, None, SYNC)
        context = _expose_context(execution)
        value = run_from_start((execution, frame))
    except Exception as exc:
        error = exc
    try:
        return _outcome(context, value, error)
    finally:
        del error  # its traceback holds this frame: left here, that would be a cycle


async def outcome_async(
    owner: Any, function: Callable[..., Any], args: Any, kwargs: Any
) -> Outcome[Any]:
    """The same in a task."""
    context = value = error = None
    try:
        function, args = without_keywords(function, args, kwargs)
        execution, frame = prepare(owner, function, args, None, None, ASYNC)
        context = _expose_context(execution)
        value = await run_from_start_async((execution, frame))
    except Exception as exc:
        error = exc
    try:
        return _outcome(context, value, error)
    finally:
        del error


def _expose_context(execution: Execution) -> RetryContext:
    context = execution.context
    context._is_exposed = True
    context._started_at = execution.plan.clock.monotonic()
    return context


def _outcome(context: RetryContext | None, value: Any, error: BaseException | None) -> Outcome[Any]:
    if context is None:  # rejected before it began
        return Outcome(None, error, 0, (), 0.0, "not_retryable")
    return Outcome(
        value, error, context.attempt, context.history, context.elapsed, context.stop_reason
    )
