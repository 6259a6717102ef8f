"""The cut: a task that takes too long is cancelled, in asyncio and in trio.

``asyncio.timeout`` does the same; but a deadline is entered for nearly every call, and coroutines
that never wait would cost as much as all the rest.
"""

from __future__ import annotations

import sys
from math import inf
from typing import TYPE_CHECKING, Any

from retrytemplate.clock import in_trio

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["Cut", "cut_after"]


def cut_after(seconds: float) -> Cut:
    """Around a part of this task, as ``with``: cancel it after so many seconds.

    ``fired`` tells afterwards whether it did; a cancellation from outside wins and passes.

    :raises RuntimeError: outside of a task.
    """
    return _TrioCut(seconds) if "trio" in sys.modules and in_trio() else _AsyncioCut(seconds)


class Cut:
    """What is left in time for a part of a task.

    :param task: the one that entered it; None again when it is left: the task may come to hold
        an exception that leads back here.
    """

    fired = False
    task: Any = None
    current_task: Callable[[], Any]

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def is_here(self) -> bool:
        """Whether it is this task that entered it."""
        try:
            return self.task is not None and self.current_task() is self.task
        except RuntimeError:  # no task, or one of another kind
            return False

    def __enter__(self) -> None:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        raise NotImplementedError


class _AsyncioCut(Cut):
    _over = False
    _handle: Any = None

    def __enter__(self) -> None:
        asyncio = sys.modules["asyncio"]  # loaded: this is a task of it
        self.current_task = asyncio.current_task
        self.task = task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a limit that cuts needs a task: this is a callback of the loop")
        self._cancelling: int = task.cancelling()
        loop = task.get_loop()
        if self.seconds <= 0:
            self._handle = loop.call_soon(self._cut)
        elif self.seconds < inf:
            self._handle = loop.call_at(loop.time() + self.seconds, self._cut)

    def _cut(self) -> None:
        self._over = True
        self.task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None  # its context leads back here
        if self._over:
            others = self.task.uncancel() > self._cancelling
            if kind is None:  # the body has swallowed it: it is over all the same
                self.fired = True
            elif not others:
                self.fired = issubclass(kind, sys.modules["asyncio"].CancelledError)
        self.task = None
        return self.fired


class _TrioCut(Cut):
    def __enter__(self) -> None:
        import trio

        self.current_task = trio.lowlevel.current_task
        self.task = self.current_task()
        self._scope = trio.move_on_after(self.seconds)
        self._scope.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        swallowed = bool(self._scope.__exit__(kind, exception, traceback))
        self.fired = self._scope.cancelled_caught
        self.task = None
        return swallowed
