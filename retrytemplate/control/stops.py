"""The guards of what is around a call: they are asked before whatever is made in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field

import retrytemplate.context as _context
from retrytemplate._checks import is_awaitable
from retrytemplate.context import CURRENT, DEADLINE, current_context, entered, leave
from retrytemplate.deadline import guarded
from retrytemplate.plan import awaited_admit

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Around", "ask", "ask_async"]


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


@define(eq=False)
class Around:
    """A guard in force in a block, as that of a template around it is."""

    _guard: Any
    _cell: Any = field(init=False)
    _token: Any = field(init=False)

    def __enter__(self) -> None:
        outer = entered()
        _context.deadlines = True  # there is something to look for, as where a deadline is entered
        deadline = guarded(None if outer is None else outer[DEADLINE], (self._guard,))
        self._cell = [None, None, deadline, outer, None]
        self._token = CURRENT.set(self._cell)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        cell, token = self._cell, self._token
        self._cell = self._token = None
        leave(cell, token)
