"""``shielded``: a cleanup that a cancellation of its caller does not interrupt."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.cancel_reason import CancelReason
from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.formatting import format_limit, printable
from retrytemplate._internal.validation import (
    SECONDS,
    check_function,
    check_span,
    check_text,
    to_seconds,
)
from retrytemplate.clock import SystemClock
from retrytemplate.control.events import call_listener
from retrytemplate.workers.supervisor.cancellation import Cancellation
from retrytemplate.workers.supervisor.event_loops import TaskStarter, run_shielded, task_starter
from retrytemplate.workers.supervisor.handles import (
    LOG,
    STUCK_AFTER,
    TaskHandle,
    close_work,
    coroutine_of,
    log_stuck,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from retrytemplate._internal.validation import Seconds

LONGEST = 60.0


async def shielded(
    cleanup: Callable[..., Coroutine[Any, Any, object]] | Coroutine[Any, Any, object],
    /,
    *args: Any,
    timeout: Seconds = 5.0,
    resource: str,
    operation: str = "cleanup",
    on_failed: Callable[[str, BaseException], object] | None = None,
) -> bool:
    """Run a short cleanup to its end, however often the caller is cancelled meanwhile.

    A cancellation of the caller is raised after the end of the cleanup.  A failure of the cleanup
    is not raised: it is logged, counted by the supervisor of the task, published as
    ``TaskCleanupFailed``, and passed to *on_failed*.  For work use a task of a ``TaskSupervisor``:
    the result of the cleanup is dropped.

    :param cleanup: a coroutine function, called with *args*, or a coroutine.
    :param timeout: seconds after which the cleanup is cancelled, above 0, at most 60; default 5.
        One second later the caller continues, and the supervisor owns the task that is stuck.
    :param resource: the resource that may be left in use after a failure, for logs and events.
    :param operation: for logs and events.
    :param on_failed: called with *resource* and the exception; a ``TimeoutError`` at the limit.
    :returns: whether the cleanup succeeded.

    In trio the caller waits for a stuck cleanup if no supervisor started its task.

    >>> import asyncio
    >>> from retrytemplate.workers import shielded
    >>> async def rollback():
    ...     await asyncio.sleep(0)
    ...     print("rolled back")
    >>> async def transaction():
    ...     try:
    ...         await asyncio.sleep(60)
    ...     finally:
    ...         await shielded(rollback, resource="connection 4")
    >>> async def main():
    ...     task = asyncio.create_task(transaction())
    ...     await asyncio.sleep(0)
    ...     task.cancel()
    ...     await asyncio.wait([task])
    ...     print(task.cancelled())
    >>> asyncio.run(main())
    rolled back
    True
    """
    try:
        run = _Cleanup(timeout, resource, operation, on_failed)
    except BaseException:
        close_work(cleanup)
        raise
    error, cancelled = await run_shielded(run.run(coroutine_of(cleanup, args, {})))
    try:
        if cancelled is not None:
            raise cancelled
        if error is not None and not isinstance(error, Exception):
            raise error
        return error is None
    finally:
        del error, cancelled  # their tracebacks hold this frame


class _Owner:
    """The owner of the task of a cleanup: it keeps a reference to the task until its end."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def _on_end(self, task: TaskHandle) -> None:
        _running.discard(task)


_running: set[TaskHandle] = set()


class _Cleanup:
    def __init__(self, timeout: Any, resource: Any, operation: Any, on_failed: Any) -> None:
        self.timeout: float = to_seconds(timeout)
        check_span("timeout", self.timeout, f"{SECONDS} > 0 and <= {LONGEST:g}")
        if self.timeout > LONGEST:
            raise ValueError(
                f"timeout must be {SECONDS} > 0 and <= {LONGEST:g}, got {timeout!r}; work that "
                "takes longer belongs into a task of its own"
            )
        check_text("resource", resource)
        check_text("operation", operation)
        if on_failed is not None:
            check_function("on_failed", on_failed)
        self.resource: str = resource
        self.operation: str = operation
        self.on_failed = on_failed
        self.caller = caller = Cancellation.current()
        self.supervisor = None if caller is None else caller.supervisor
        self.starter = None if self.supervisor is None else self.supervisor._usable_starter()

    async def run(self, coroutine: Coroutine[Any, Any, object]) -> BaseException | None:
        """Run the cleanup in a task of its own; return its failure."""
        if self.starter is not None and self.supervisor is not None:
            error, task = await self._run(self.starter, coroutine)
            if not task.done:
                self.supervisor._adopt(task)
            return error
        error = None
        async with task_starter() as starter:
            error, task = await self._run(starter, coroutine)
            if not task.done:
                log_stuck(task)
        return error

    async def _run(
        self, starter: TaskStarter, coroutine: Coroutine[Any, Any, object]
    ) -> tuple[BaseException | None, TaskHandle]:
        clock = SystemClock() if self.supervisor is None else self.supervisor.clock
        task = TaskHandle(
            _Owner(clock.monotonic),
            starter,
            coroutine,
            Cancellation(self.supervisor, self.caller),
            self.operation,
            f"cleanup of {self.resource}",
            shielded=True,
        )
        _running.add(task)
        await task._wait_at_most(self.timeout)
        if task.done:
            error = _failure_of(task)
        else:
            task.cancel(CancelReason.DEADLINE_EXCEEDED)
            await task._wait_at_most(STUCK_AFTER)
            error = TimeoutError(f"longer than {format_limit(self.timeout)}")
            error.__cause__ = _failure_of(task)
        if error is not None:
            self._report(task, error)
        return error, task

    def _report(self, task: TaskHandle, error: BaseException) -> None:
        LOG.error(
            "cleanup of %s (%s) failed: %s",
            *(printable(self.resource), printable(self.operation), summary(error)),
            exc_info=error,
        )
        if self.caller is not None:
            self.caller.cleanup = False
        if self.supervisor is not None:
            self.supervisor._on_cleanup_failed(task, self.resource, error)
        if self.on_failed is not None:
            call_listener(partial(self.on_failed, self.resource), error)


def _failure_of(task: TaskHandle) -> BaseException | None:
    from concurrent.futures import CancelledError

    try:
        return task.exception() if task.done else None
    except CancelledError as error:  # its own task was cancelled, not that of the caller
        return error
