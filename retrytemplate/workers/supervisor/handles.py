"""Handles of tasks, and the reports of their supervisor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping
from traceback import StackSummary
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, field, frozen

from retrytemplate._internal.awaitables import close_unawaited
from retrytemplate._internal.cancel_reason import CancelReason
from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.formatting import operation_of, printable, qualified_name
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from retrytemplate.workers.supervisor.cancellation import Cancellation
    from retrytemplate.workers.supervisor.event_loops import Event, State, TaskStarter

LOG = logging.getLogger("retrytemplate.workers")
STUCK_AFTER = 1.0
"""Seconds after its cancellation from which a task that has not ended is stuck."""


class Owner(Protocol):
    """The owner of a task: it is notified of the task's end, in the task's context."""

    def _now(self) -> float: ...

    def _on_end(self, task: TaskHandle) -> None: ...


@define(eq=False, repr=False)
class TaskHandle:
    """A task of a ``TaskSupervisor``; made by its ``start``.

    ``name`` and ``key`` are those given to ``start``.

    >>> import asyncio
    >>> from retrytemplate.workers import TaskSupervisor
    >>> async def double(number):
    ...     return 2 * number
    >>> async def main():
    ...     async with TaskSupervisor() as supervisor:
    ...         task = supervisor.start(double, 4, name="first")
    ...         await task.wait()
    ...         return task.name, task.done, task.result()
    >>> asyncio.run(main())
    ('first', True, 8)
    """

    _owner: Owner
    _starter: TaskStarter
    _coroutine: Any  # None after its end
    _cancellation: Cancellation
    _operation: str | Callable[..., Any]
    name: str
    key: Hashable = None
    _shielded: bool = field(default=False, kw_only=True, alias="shielded")
    _state: State = field(init=False, default="running")
    _event: Event | None = field(init=False, default=None)
    _cancelled_at: float | None = field(init=False, default=None)
    _result: Any = field(init=False, default=None)
    _started_at: float = field(init=False)
    _native: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._started_at = self._owner._now()
        context = self._cancellation.context()
        self._native = self._starter.start(
            self.name, self._coroutine, context, self._end, shielded=self._shielded
        )

    @property
    def operation(self) -> str:
        """The qualified name of the function; for a lambda its file and line."""
        operation = self._operation
        if not isinstance(operation, str):
            self._operation = operation = operation_of(operation)
        return operation

    @property
    def done(self) -> bool:
        """Whether the task has ended."""
        return self._state != "running"

    @property
    def cancelled(self) -> bool:
        """Whether the task has ended by a cancellation."""
        return self._state == "cancelled"

    def result(self) -> Any:
        """Return the value of the task, or raise its exception.

        :raises concurrent.futures.CancelledError: the task was cancelled.
        :raises MisuseError: the task has not ended; await ``wait()`` first.
        """
        error = self.exception()
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error, self  # the exception's traceback holds this frame

    def exception(self) -> BaseException | None:
        """Return the exception of the task; None if it returned a value.

        :raises concurrent.futures.CancelledError: the task was cancelled.
        :raises MisuseError: the task has not ended.
        """
        if self._state == "succeeded":
            return None
        if self._state == "failed":
            failure: Failure = self._result
            failure.observed = True
            return failure.error
        if self._state == "running":
            raise MisuseError(f"the task {self.name!r} has not ended; await wait() first")
        from concurrent.futures import CancelledError

        raise CancelledError(f"the task {self.name!r} was cancelled")

    def cancel(self, reason: CancelReason = CancelReason.MANUAL) -> None:
        """Request the end of the task; await ``wait()`` for its end.

        :param reason: for ``cancel_reason()`` in the task, and for events.  The reason of the first
            cancellation is kept.
        """
        reason = CancelReason(reason)
        if self.done:
            return
        self._check_loop()
        if self._cancelled_at is None:
            self._cancelled_at = self._owner._now()
            self._cancellation.reason = reason
        self._native.cancel()

    async def wait(self) -> None:
        """Wait for the end of the task; ``result`` and ``exception`` return how it ended.

        A cancellation of the caller does not cancel the task.
        """
        if not self.done:
            self._check_loop()
            if self._event is None:
                self._event = self._starter.event()
            await self._event.wait()

    def _check_loop(self) -> None:
        if not self._starter.is_current():
            raise MisuseError(
                f"the task {self.name!r} belongs to another event loop or thread; use its handle "
                "in the event loop of its supervisor"
            )

    async def _wait_at_most(self, seconds: float) -> None:
        """Wait for the end, as the only one that waits."""
        if not self.done:
            self._event = self._starter.event()
            await self._starter.wait(self._event, seconds)

    @property
    def _reason(self) -> CancelReason:
        """Of its cancellation."""
        return self._cancellation.reason or CancelReason.MANUAL

    def _overdue(self) -> float:
        """Seconds since the cancellation of a running task; else 0."""
        cancelled_at = self._cancelled_at
        return 0.0 if cancelled_at is None or self.done else self._owner._now() - cancelled_at

    def _is_stuck(self) -> bool:
        return self._overdue() >= STUCK_AFTER

    def _end(self, state: State, result: Any) -> None:
        if state == "failed":
            text = printable(f"task {self.name} ({self.operation}) failed: {summary(result)}")
            result = Failure(result, text)
        self._result = result
        self._state = state
        self._native = self._coroutine = None
        if self._event is not None:
            self._event.set()
        self._owner._on_end(self)

    def __repr__(self) -> str:
        return f"<TaskHandle {self.name!r} {self._state}>"


@frozen(kw_only=True)
class StopReport:
    """The result of a ``TaskSupervisor.stop``.

    :param ended: tasks that ended during the stop.
    :param failed: those of them that raised an exception.
    :param stuck: tasks that have not ended.
    :param elapsed: duration of the stop, in seconds.
    """

    ended: int
    failed: tuple[TaskHandle, ...]
    stuck: tuple[TaskHandle, ...]
    elapsed: float

    @property
    def clean(self) -> bool:
        """Whether all tasks have ended, and none failed."""
        return not self.failed and not self.stuck


@frozen(kw_only=True)
class SupervisorSnapshot:
    """The state of a ``TaskSupervisor`` at one moment.

    :param name: of the supervisor.
    :param active: running tasks by operation.
    :param oldest: seconds since the start of the oldest running task; None without tasks.
    :param started: tasks started so far; ``failed`` and ``cancelled``: those that ended so.
    :param stuck: tasks that were cancelled 1 s ago or earlier, and have not ended.
    :param cleanups_failed: shielded cleanups of its tasks that failed.
    """

    name: str
    active: Mapping[str, int]
    oldest: float | None
    started: int
    failed: int
    cancelled: int
    stuck: int
    cleanups_failed: int


class Failure:
    """The exception of a task; it is logged at the latest when the handle is deleted.

    ``observed``: it was returned to a caller, or logged, and is not logged any more.
    ``KeyboardInterrupt`` and ``SystemExit`` end the event loop and are not logged here.
    """

    __slots__ = ("__weakref__", "error", "message", "observed")

    def __init__(self, error: BaseException, message: str) -> None:
        self.error = error
        self.message = message
        self.observed = not isinstance(error, Exception)

    def log(self) -> None:
        """Log the failure, unless it is observed."""
        if not self.observed:
            self.observed = True
            LOG.error(self.message, exc_info=self.error)

    __del__ = log


def log_stuck(task: TaskHandle) -> str:
    """Log that a cancelled task has not ended; return its stack as text."""
    stack = "".join(StackSummary.extract(_frames(task._coroutine)).format())
    LOG.error(
        "task %s (%s) has not ended %g s after its cancellation (%s); stack:\n%s",
        *(printable(task.name), task.operation, task._overdue(), task._reason, stack),
    )
    return stack


def _frames(awaited: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of a suspended coroutine and of all that it awaits."""
    while awaited is not None:
        for kind, following in (("cr", "await"), ("gi", "yieldfrom"), ("ag", "await")):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                yield frame, frame.f_lineno
                awaited = getattr(awaited, f"{kind}_{following}", None)
                break
        else:
            return


def coroutine_of(
    work: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Coroutine[Any, Any, Any]:
    """The coroutine that the task runs."""
    if callable(work):
        coroutine = work(*args, **kwargs)
        if type(coroutine) is CoroutineType or isinstance(coroutine, Coroutine):
            return coroutine
        close_unawaited(coroutine)
        raise TypeError(
            f"work must be a coroutine function, got {work!r}, which returned no coroutine"
        )
    if not isinstance(work, Coroutine):
        raise TypeError(f"work must be a coroutine function or a coroutine, got {work!r}")
    if args or kwargs:
        work.close()
        raise TypeError("work must be a coroutine function to get arguments, got a coroutine")
    return work


def operation_of_coroutine(coroutine: Any) -> str:
    """The qualified name of its function."""
    frame = getattr(coroutine, "cr_frame", None)
    name = qualified_name(coroutine)
    return name if frame is None else f"{frame.f_globals.get('__name__')}.{name}"


def close_work(work: Any) -> None:
    """Close a coroutine that is not started, so that Python does not warn about it."""
    if isinstance(work, Coroutine):
        work.close()
