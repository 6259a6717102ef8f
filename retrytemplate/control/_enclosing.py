"""The guards of what is around a call: they are asked before whatever is made in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import retrytemplate._engine.context as _context
from retrytemplate._engine.context import (
    CURRENT,
    DEADLINE,
    OUTER,
    current_context,
    entered,
    leave,
    restore,
)
from retrytemplate._engine.deadline import guarded
from retrytemplate._engine.plan import awaited_admit
from retrytemplate._internal.awaitables import is_awaitable

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.context import Cell

__all__ = ["ask", "ask_async", "under", "under_async"]


def ask() -> None:
    """Ask each of them about one more call.

    :raises Rejected: one does not let it pass.
    """
    for guard in _stops():
        guard.admit(current_context())


async def ask_async() -> None:
    """The same where nothing may block."""
    for guard in _stops():
        answer = awaited_admit(guard)(current_context())
        if is_awaitable(answer):
            await answer


def _stops() -> tuple[Any, ...]:
    cell = CURRENT.get()
    deadline = None if cell is None else cell[DEADLINE]
    return () if deadline is None else deadline.stops


def under(guard: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call the function with this guard around it, as that of a template is."""
    cell, token = _cell(guard), None
    outer = None if cell[OUTER] is None else cell[OUTER][DEADLINE]
    try:
        try:
            token = CURRENT.set(cell)
            return fn(*args, **kwargs)
        finally:
            _leave(cell, token)
    except BaseException:  # a signal, maybe, before it was left
        cell[DEADLINE] = outer
        raise


async def under_async(guard: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The same for a function that may be asynchronous."""
    cell, token = _cell(guard), None
    outer = None if cell[OUTER] is None else cell[OUTER][DEADLINE]
    try:
        try:
            token = CURRENT.set(cell)
            value = fn(*args, **kwargs)
            return await value if is_awaitable(value) else value
        finally:
            _leave(cell, token)
    except BaseException:
        cell[DEADLINE] = outer
        raise


def _cell(guard: Any) -> Cell:
    _context.deadlines = True  # there is something to look for, as where a deadline is entered
    outer = entered()
    deadline = guarded(None if outer is None else outer[DEADLINE], (guard,))
    return [None, None, deadline, outer, None]


def _leave(cell: Cell, token: Any) -> None:
    if token is None:
        restore(token, cell[OUTER])
    else:
        leave(cell, token)
