"""Cancellation in asyncio and trio: after a timeout, and deferred until a step has ended.

Not ``asyncio.timeout``: a deadline is entered for nearly every call, and the coroutines of
``asyncio.timeout`` would double the cost of a call.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.awaitables import close_unawaited, in_trio
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from asyncio import CancelledError, Task, TimerHandle
    from collections.abc import Awaitable, Callable, Collection, Generator

    Effect = tuple[Callable[..., Any], tuple[Any, ...]]

__all__ = [
    "CancelScope",
    "Shielded",
    "UnfinishedStepError",
    "cancel_after",
    "deferred_step",
    "wait_shielded",
]


def cancel_after(seconds: float) -> CancelScope:
    """A context manager that cancels its block after *seconds* seconds.

    ``expired`` is then True.  A cancellation by other code takes precedence and is not caught.

    :raises RuntimeError: outside of a task.
    """
    return (
        _TrioCancelScope(seconds)
        if "trio" in sys.modules and in_trio()
        else _AsyncioCancelScope(seconds)
    )


class CancelScope(ABC):
    """A time limit for a block of code in a task.

    ``task`` is the task that entered the block.  It is None after the exit, to avoid a reference
    cycle through an exception of the task.
    """

    expired = False
    task: Any = None
    current_task: Callable[[], Any]

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def is_current_task(self) -> bool:
        """Whether the current task entered the block."""
        try:
            return self.task is not None and self.current_task() is self.task
        except RuntimeError:  # no task, or a task of another library
            return False

    @abstractmethod
    def __enter__(self) -> None: ...

    @abstractmethod
    def __exit__(self, kind: Any, /, *rest: Any) -> bool: ...


class _AsyncioCancelScope(CancelScope):
    _is_over = False
    _handle: Any = None

    def __enter__(self) -> None:
        asyncio = sys.modules["asyncio"]  # loaded, since this is one of its tasks
        self.current_task = asyncio.current_task
        self.task = task = asyncio.current_task()
        if task is None:
            raise RuntimeError(
                "a cancelling timeout needs a running asyncio task; called from an event-loop "
                "callback"
            )
        self._cancelling: int = task.cancelling()
        loop = task.get_loop()
        if self.seconds <= 0:
            self._handle = loop.call_soon(self._expire)
        elif self.seconds < inf:
            self._handle = loop.call_at(loop.time() + self.seconds, self._expire)

    def _expire(self) -> None:
        from retrytemplate._internal.cancel_reason import CancelReason

        self._is_over = True
        self.task.cancel(CancelReason.DEADLINE_EXCEEDED)

    def __exit__(self, kind: Any, /, *rest: Any) -> bool:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None  # its context refers to this object
        if self._is_over:
            others = self.task.uncancel() > self._cancelling
            if kind is None:  # the block suppressed the cancellation, but the time has expired
                self.expired = True
            elif not others:
                self.expired = issubclass(kind, sys.modules["asyncio"].CancelledError)
        self.task = None
        return self.expired


class _TrioCancelScope(CancelScope):
    def __enter__(self) -> None:
        import trio

        self.current_task = trio.lowlevel.current_task
        self.task = self.current_task()
        self._scope = trio.move_on_after(self.seconds)
        self._scope.__enter__()

    def __exit__(self, *exc: Any) -> bool:
        try:
            swallowed = bool(self._scope.__exit__(*exc))
        finally:  # it raises the other members of a group with its cancellation
            self.task = None
        self.expired = self._scope.cancelled_caught
        return swallowed


async def wait_shielded(
    tasks: Collection[Task[Any]],
    *,
    grace: float = inf,
    cancel: Callable[[Collection[Task[Any]]], None] | None = None,
) -> None:
    """Wait for the end of the tasks, also if this task is cancelled; then raise the cancellation.

    :param grace: seconds from the first cancellation until the tasks are cancelled, once; default:
        never.
    :param cancel: cancels the tasks; default: ``Task.cancel``.
    """
    import asyncio

    cancel = cancel or _cancel
    cancelled: CancelledError | None = None
    timer: TimerHandle | None = None
    try:
        # Not "while True": asyncio.wait() takes an iteration of the loop also for ended tasks, and
        # a cancellation in each iteration would keep it from returning.
        while not all(task.done() for task in tasks):
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError as exc:
                if cancelled is None and grace <= 0:
                    cancel(tasks)
                elif cancelled is None and grace < inf:
                    timer = asyncio.get_running_loop().call_later(grace, cancel, tasks)
                cancelled = exc
        if cancelled is not None:
            raise cancelled
    finally:
        if timer is not None:
            timer.cancel()
        del cancelled  # its traceback refers to this frame


def _cancel(tasks: Collection[Task[Any]]) -> None:
    for task in tasks:
        task.cancel()


class UnfinishedStepError(CacheUnavailableError):
    """A step was cancelled after its grace period: its effect is unknown."""


class Shielded:
    """A step that runs to its end, also if the task is cancelled.

    :param waiter: gets a cancellation during the step as ``cancellation``, to be raised later.
    :param grace: seconds from the first cancellation until the step is cancelled.
    :param leave: called if the step is left before its end: after the grace period, or when the
        awaiting coroutine is closed.
    """

    __slots__ = ("grace", "leave", "step", "waiter")

    def __init__(
        self, step: Awaitable[Any], waiter: Any, grace: float, leave: Callable[[], object]
    ) -> None:
        self.step = step
        self.waiter = waiter
        self.grace = grace
        self.leave = leave

    def __await__(self) -> Generator[Any, Any, Any]:
        return (self._in_trio() if in_trio() else self._in_asyncio()).__await__()

    def close(self) -> None:
        """Close the step, which has not started."""
        close_unawaited(self.step)
        self.leave()

    async def _in_asyncio(self) -> Any:
        import asyncio

        running = asyncio.ensure_future(self.step)
        try:
            await wait_shielded([running], grace=self.grace)
        except asyncio.CancelledError as exc:
            self.waiter.cancellation = exc
            if running.cancelled():
                raise self._unfinished() from None
        except GeneratorExit:
            self.leave()
            raise
        try:
            return running.result()
        finally:
            del running  # its exception refers to this frame

    async def _in_trio(self) -> Any:
        import trio

        value: Any = None
        error: BaseException | None = None
        shield: Any = trio.CancelScope()
        shield.shield = True

        async def bound() -> None:
            with suppress(trio.Cancelled):  # by an enclosing scope: it is raised again below
                await trio.sleep_forever()
            shield.deadline = trio.current_time() + self.grace

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bound)
            with shield:
                try:
                    value = await self.step
                except trio.Cancelled:
                    raise
                except GeneratorExit:
                    self.leave()
                    raise
                except BaseException as exc:  # no cancellation; a nursery would put it into a group
                    error = exc
            nursery.cancel_scope.shield = True
            nursery.cancel_scope.cancel()
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled as exc:
            self.waiter.cancellation = exc
        try:
            if shield.cancelled_caught:
                raise self._unfinished()
            if error is not None:
                raise error
        finally:
            del error
        return value

    def _unfinished(self) -> UnfinishedStepError:
        self.leave()
        return UnfinishedStepError(
            f"a step did not end within {self.grace:g} seconds after a cancellation"
        )


def deferred_step(cache: Any, step: Effect) -> Effect:
    """The step, or its deferral if the cache can run it later.

    For an execution that the garbage collector may be closing: nothing can be awaited there, and a
    blocking step would stall the interrupted code.
    """
    end_later = getattr(cache, "end_later", None)
    return step if end_later is None else (end_later, step)
