"""Tasks of asyncio and of trio, started and cancelled in one form."""

from __future__ import annotations

from functools import cache, partial
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

from retrytemplate._internal.awaitables import in_trio
from retrytemplate._internal.cancel_scope import wait_shielded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

    State = Literal["running", "succeeded", "failed", "cancelled"]
    OnEnd = Callable[[State, Any], None]

T = TypeVar("T")


class Event(Protocol):
    """An event of asyncio or of trio."""

    def is_set(self) -> bool: ...

    def set(self) -> Any: ...

    async def wait(self) -> Any: ...


class _AsyncioStarter:
    """A context manager that starts tasks.

    A cancellation of its block does not reach the tasks.  The block of trio ends when they have
    ended; with asyncio they may run on.
    """

    def __init__(self) -> None:
        import asyncio

        self._running_loop = asyncio.get_running_loop
        self._loop = asyncio.get_running_loop()
        self.event = asyncio.Event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: Any) -> bool:
        return False

    def is_current(self) -> bool:
        """Whether the caller runs in the event loop of the block."""
        try:
            return self._running_loop() is self._loop
        except RuntimeError:  # no loop runs in this thread
            return False

    def start(
        self,
        name: str,
        coroutine: Coroutine[Any, Any, Any],
        context: Context,
        on_end: OnEnd,
        *,
        shielded: bool = False,
    ) -> Any:
        """Start a task, and return an object with ``cancel()``.

        :param on_end: called in the context at the end, with the state and the value or exception.
        :param shielded: only that ``cancel()`` cancels the task, not the end of the event loop.
        """
        create: Any = _shielded_task if shielded else self._loop.create_task
        task = create(coroutine, name=name, context=context)
        task.add_done_callback(partial(_ended, on_end), context=context)
        return task.owner if shielded else task

    async def wait(self, event: Event, seconds: float) -> None:
        """Wait for the event, but not longer than *seconds*; it may be set in both cases."""
        # Not a time limit that cancels: the task that waits may be shielded.
        timer = self._loop.call_later(seconds, event.set)
        try:
            await event.wait()
        finally:
            timer.cancel()


def _shielded_task(coroutine: Coroutine[Any, Any, Any], **options: Any) -> Any:
    """Start a task of asyncio that the end of the event loop, which cancels all tasks, leaves.

    ``owner.cancel()`` cancels it; after that it is a task like any other.
    """
    return _shielded_task_class()(coroutine, **options)


@cache
def _shielded_task_class() -> Any:
    from asyncio import Task  # loaded, since it has a task for the caller

    class ShieldedTask(Task[Any]):
        is_shielded = True

        def cancel(self, msg: Any = None) -> bool:
            return False if self.is_shielded else super().cancel(msg)

        @property
        def owner(self) -> Any:
            def cancel() -> None:
                self.is_shielded = False
                self.cancel()

            return SimpleNamespace(cancel=cancel)

    return ShieldedTask


def _ended(on_end: OnEnd, task: Any) -> None:
    if task.cancelled():
        on_end("cancelled", None)
        return
    error = task.exception()
    if error is None:
        on_end("succeeded", task.result())
    else:
        on_end("failed", error)


class _TrioStarter:
    """The same under trio."""

    def __init__(self) -> None:
        import trio

        self._trio: Any = trio
        self._manager = trio.open_nursery(strict_exception_groups=True)
        self._token = trio.lowlevel.current_trio_token()
        self.event = trio.Event

    async def __aenter__(self) -> Self:
        self._nursery = await self._manager.__aenter__()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        try:
            return bool(await self._manager.__aexit__(kind, error, trace))
        except BaseExceptionGroup as group:  # the nursery puts also a single exception into a group
            if len(group.exceptions) == 1 and group.exceptions[0] is error:
                return False
            raise

    def is_current(self) -> bool:
        return in_trio() and self._trio.lowlevel.current_trio_token() is self._token

    def start(
        self,
        name: str,
        coroutine: Coroutine[Any, Any, Any],
        context: Context,
        on_end: OnEnd,
        *,
        shielded: bool = False,
    ) -> Any:
        # The shield keeps out the cancellation of the enclosing scopes, as in a task of asyncio.
        scope = self._trio.CancelScope(shield=True)
        start = partial(self._nursery.start_soon, name=name)
        context.run(start, self._run, scope, coroutine, on_end)
        return scope

    async def wait(self, event: Event, seconds: float) -> None:
        with self._trio.move_on_after(seconds):
            await event.wait()

    async def _run(self, scope: Any, coroutine: Coroutine[Any, Any, Any], on_end: OnEnd) -> None:
        if scope.cancel_called:
            coroutine.close()
            on_end("cancelled", None)
            return
        state: State = "cancelled"
        result: Any = None
        try:
            with scope:
                result = await coroutine
                state = "succeeded"
        except BaseException as error:
            _drop_frame(error)
            on_end("failed", error)
            if not isinstance(error, Exception):  # an interrupt: it ends the block
                raise
        else:
            on_end(state, result)
        finally:
            del on_end, coroutine  # from Python 3.13 on, frames of the traceback lead to this one


TaskStarter = _AsyncioStarter | _TrioStarter


def task_starter() -> TaskStarter:
    """A starter of tasks in the present event loop."""
    return _TrioStarter() if in_trio() else _AsyncioStarter()


def _drop_frame(error: BaseException) -> None:
    """Remove the frame of ``_run`` from the traceback: it would be a reference cycle."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


async def run_shielded(step: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """Run the step to its end, however often this task, or each task of the loop, is cancelled.

    Returns its value and the cancellation, which the caller raises; None for those that are not.
    """
    if in_trio():
        return await _run_shielded_in_trio(step)
    import asyncio

    task = _shielded_task(step)
    cancelled: BaseException | None = None
    try:
        await wait_shielded([task])
    except asyncio.CancelledError as error:
        cancelled = error
    try:
        return task.result(), cancelled
    finally:
        del cancelled  # its traceback holds this frame


async def _run_shielded_in_trio(
    step: Coroutine[Any, Any, T],
) -> tuple[T | None, BaseException | None]:
    import trio

    was_cancelled = trio.current_effective_deadline() == -inf
    shield: Any = trio.CancelScope()
    shield.shield = True
    value = None
    with shield:
        value = await step
    if was_cancelled:  # as in asyncio, a cancellation is raised once; a further cleanup may follow
        return value, None
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled as error:
        return value, error
    return value, None
