"""The reason of a task's cancellation, kept with the task.

A message given to ``task.cancel()`` is lost in groups, and trio cancels scopes, not tasks. So the
reason is kept in an object in the task's context, which the tasks that it starts inherit.
"""

from __future__ import annotations

import sys
from contextvars import Context, ContextVar, copy_context
from typing import Any

from retrytemplate._internal.cancel_reason import CancelReason


class Cancellation:
    """The cancellation of one task.

    :param supervisor: the ``TaskSupervisor`` of the task, or None.
    :param outer: of the task that started this one as a part of its own work, and cancels it with
        itself.
    """

    __slots__ = ("cleanup", "outer", "reason", "supervisor")

    def __init__(self, supervisor: Any = None, outer: Cancellation | None = None) -> None:
        self.supervisor = supervisor
        self.outer = outer
        self.reason: CancelReason | None = None
        self.cleanup = True  # False: a shielded cleanup of the task failed

    @staticmethod
    def current() -> Cancellation | None:
        """Of the present task; None if it was not started by this package."""
        return _current.get()

    def context(self) -> Context:
        """A copy of the present context, for the task."""
        context = copy_context()
        context.run(_current.set, self)
        return context


_current: ContextVar[Cancellation | None] = ContextVar("retrytemplate.cancellation", default=None)


def cancel_reason() -> CancelReason:
    """The reason of the cancellation in progress in this task.

    Call it where the cancellation is handled: in ``except`` or ``finally``.  The tasks that a task
    starts see its reason, too, but those that ``TaskSupervisor.start`` starts.  A ``Deadline``,
    a ``Timeout`` and an attempt timeout cancel with ``CancelReason.DEADLINE_EXCEEDED``, also in a
    task that no ``TaskSupervisor`` started; so does a deadline of trio 0.31 or later.
    ``CancelReason.MANUAL`` if no reason is known, as for a plain ``task.cancel()``.

    >>> import asyncio
    >>> from retrytemplate.workers import TaskSupervisor
    >>> async def work():
    ...     try:
    ...         await asyncio.sleep(60)
    ...     finally:
    ...         print(cancel_reason())
    >>> async def main():
    ...     async with TaskSupervisor() as supervisor:
    ...         task = supervisor.start(work)
    ...         await asyncio.sleep(0)
    ...         task.cancel(CancelReason.CLIENT_DISCONNECTED)
    >>> asyncio.run(main())
    client_disconnected
    """
    return known_reason() or CancelReason.MANUAL


def known_reason() -> CancelReason | None:
    """The reason of the cancellation in progress in this task; None if it is not known."""
    cancellation = _current.get()
    while cancellation is not None:
        if cancellation.reason is not None:
            return cancellation.reason
        cancellation = cancellation.outer
    return _reason_of(sys.exception())


def _reason_of(error: BaseException | None) -> CancelReason | None:
    """The reason of a time limit: of this library in asyncio, or a deadline of trio."""
    arguments = getattr(error, "args", ())
    if arguments and isinstance(arguments[0], CancelReason):
        return arguments[0]
    if getattr(error, "source", None) == "deadline":
        return CancelReason.DEADLINE_EXCEEDED
    return None
