"""Guards of the enclosing strategies, checked before hedges, fallbacks and queued calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._engine import frames as _frames
from retrytemplate._engine.context import current_context
from retrytemplate._engine.deadline import with_inherited_guards
from retrytemplate._engine.frames import (
    CURRENT,
    DEADLINE,
    OUTER,
    enclosing_frame,
    exit_frame,
    reset_frame,
)
from retrytemplate._engine.plan import admit_hook
from retrytemplate._internal.awaitables import is_awaitable

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.frames import ExecutionFrame


def check_enclosing_guards() -> None:
    """Check the enclosing guards before a call.

    :raises Rejected: one does not let it pass.
    """
    for guard in _enclosing_guards():
        guard.admit(current_context())


async def check_enclosing_guards_async() -> None:
    """Check the enclosing guards before an asynchronous call."""
    for guard in _enclosing_guards():
        answer = admit_hook(guard)(current_context())
        if is_awaitable(answer):
            await answer


def _enclosing_guards() -> tuple[Any, ...]:
    frame = CURRENT.get()
    deadline = None if frame is None else frame[DEADLINE]
    return () if deadline is None else deadline.inherited_guards


def run_under_guard(guard: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call the function with this guard around it, as that of a template is."""
    frame, token = _frame(guard), None
    outer = None if frame[OUTER] is None else frame[OUTER][DEADLINE]
    try:
        try:
            token = CURRENT.set(frame)
            return fn(*args, **kwargs)
        finally:
            _leave(frame, token)
    except BaseException:  # a signal, maybe, before it was left
        frame[DEADLINE] = outer
        raise


async def run_under_guard_async(guard: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The same for a function that may be asynchronous."""
    frame, token = _frame(guard), None
    outer = None if frame[OUTER] is None else frame[OUTER][DEADLINE]
    try:
        try:
            token = CURRENT.set(frame)
            value = fn(*args, **kwargs)
            return await value if is_awaitable(value) else value
        finally:
            _leave(frame, token)
    except BaseException:
        frame[DEADLINE] = outer
        raise


def _frame(guard: Any) -> ExecutionFrame:
    # There is something to look for, as where a deadline is entered.
    _frames.any_deadline_entered = True
    outer = enclosing_frame()
    deadline = with_inherited_guards(None if outer is None else outer[DEADLINE], (guard,))
    return [None, None, deadline, outer, None]


def _leave(frame: ExecutionFrame, token: Any) -> None:
    if token is None:
        reset_frame(token, frame[OUTER])
    else:
        exit_frame(frame, token)
