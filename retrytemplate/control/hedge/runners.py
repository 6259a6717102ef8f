"""Runners of hedged calls: tasks of asyncio or trio, or threads of a pool.

No task runs after the end of the block.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate._engine.attempt_timeout import accepts_stop
from retrytemplate._internal.awaitables import in_trio
from retrytemplate._internal.locks import Monitor
from retrytemplate._internal.threads import uninterrupted
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor, Future
    from contextvars import Context
    from queue import SimpleQueue
    from typing import Self

    from retrytemplate.control.hedge.execution import HedgeAttempt, HedgedExecution

# Seconds that a pool may take to find a thread for a call.
POOL_START_GRACE = 0.1

in_order = attrgetter("number")


def task_runner() -> _AsyncioRunner | _TrioRunner:
    """The runner for the present event loop."""
    return _TrioRunner() if in_trio() else _AsyncioRunner()


class _AsyncioRunner:
    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], HedgeAttempt] = {}

    async def __aenter__(self) -> Self:
        return self

    def start(self, attempt: HedgeAttempt) -> None:
        import asyncio

        self._tasks[asyncio.create_task(attempt.run_async())] = attempt

    async def wait(self, seconds: float) -> list[HedgeAttempt]:
        """The attempts that have ended within *seconds*."""
        import asyncio

        done, _ = await asyncio.wait(
            self._tasks,
            timeout=None if seconds == inf else seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        ended = []
        for task in done:
            attempt = self._tasks.pop(task)
            if attempt.ended is None:  # it was cancelled from outside before it ran
                attempt.error = asyncio.CancelledError()
            ended.append(attempt)
        return sorted(ended, key=in_order)

    async def __aexit__(self, kind: Any, *_: object) -> None:
        from retrytemplate._internal.cancel_scope import wait_shielded

        closed = kind is not None and issubclass(kind, GeneratorExit)
        with suppress(RuntimeError) if closed else nullcontext():  # the loop may be closed, too
            for task in self._tasks:
                task.cancel()
        if self._tasks and not closed:  # else nothing can be awaited any more
            await wait_shielded(self._tasks)


class _TrioRunner:
    def __init__(self) -> None:
        import trio

        self._manager = trio.open_nursery(strict_exception_groups=True)
        self._scopes: list[trio.CancelScope] = []
        self._ended: list[HedgeAttempt] = []
        self._woken = trio.Event()

    async def __aenter__(self) -> Self:
        self._nursery = await self._manager.__aenter__()
        return self

    def start(self, attempt: HedgeAttempt) -> None:
        import trio

        self._scopes.append(trio.CancelScope())
        self._nursery.start_soon(self._run, attempt, self._scopes[-1])

    async def _run(self, attempt: HedgeAttempt, scope: Any) -> None:
        if not scope.cancel_called:
            with scope:
                await attempt.run_async()
            self._ended.append(attempt)
            self._woken.set()

    async def wait(self, seconds: float) -> list[HedgeAttempt]:
        """The attempts that have ended within *seconds*."""
        import trio

        with trio.move_on_after(seconds):
            await self._woken.wait()
        ended, self._ended, self._woken = self._ended, [], trio.Event()
        return sorted(ended, key=in_order)

    async def __aexit__(self, _: object, exception: BaseException | None, *__: object) -> None:
        import trio

        for scope in self._scopes:
            scope.cancel()
        try:
            # Without the exception: the nursery would put it into a group.
            await self._manager.__aexit__(None, None, None)
        except BaseExceptionGroup as group:  # Ctrl-C while it waited: runners raise nothing
            raise group.exceptions[0] from None
        if exception is None:
            await trio.lowlevel.checkpoint_if_cancelled()


@define(eq=False)
class _QueuedAttempt:
    """An attempt in a pool: queued until the pool or the waiting caller takes it."""

    attempt: HedgeAttempt
    context: Context
    future: Future[None] | None = None
    is_over: bool = False
    _taken: threading.Lock = field(factory=threading.Lock)

    def take(self) -> bool:
        return self._taken.acquire(blocking=False)

    @property
    def is_taken(self) -> bool:
        return self._taken.locked()


class ThreadPoolRunner:
    """Runs attempts in threads; those that still run at the end are abandoned.

    A pool whose threads are all taken, by the caller itself perhaps, blocks no call: where no call
    is being made, the caller makes one.
    """

    def __init__(self, pool: Executor, execution: HedgedExecution) -> None:
        from queue import SimpleQueue

        self._pool = pool
        self._execution = execution
        self._accepts_stop = accepts_stop(partial(execution.fn, **execution.kwargs), execution.args)
        self._queued: list[_QueuedAttempt] = []  # of those that have not reported
        self._ended: SimpleQueue[_QueuedAttempt] = SimpleQueue()
        self._monitor = Monitor()
        self._answered = self._closed = False
        self._idle = 0.0  # seconds for which no call was being made

    def __enter__(self) -> Self:
        return self

    def start(self, attempt: HedgeAttempt) -> None:
        if self._accepts_stop:
            attempt.stop = threading.Event()
        queued = _QueuedAttempt(attempt, copy_context())
        self._queued.append(queued)
        if self._execution.delay is None:  # no other will come: a thread of its own would be no use
            self._work(queued)
            return
        try:
            uninterrupted(self._submit, queued)
        except Exception as exc:
            # A pool that gets no new thread raises, and may have found an old one.
            if queued.take():
                self._queued.remove(queued)
                if isinstance(exc, RuntimeError) and "shutdown" in str(exc):
                    raise MisuseError(
                        f"the executor of the hedge {self._execution.recorder.name!r} is shut "
                        "down: shut it down after the last call, or make the hedge with another "
                        "executor"
                    ) from exc
                raise

    def wait(self, seconds: float) -> list[HedgeAttempt]:
        """The attempt that has ended within *seconds*."""
        if not any(queued.is_taken for queued in self._queued):
            left = max(0.0, POOL_START_GRACE - self._idle)
            short = min(seconds, left)
            self._idle += short
            ended = self._next(short)
            if ended or short < left:
                return ended
            seconds = inf if self._run_one_here() else seconds - short
        return self._next(seconds)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the calls that are left; once more does nothing."""
        self._monitor.post(self._close)
        if self._queued:
            uninterrupted(self._stop, self._queued)
        for queued in self._queued:
            if queued.attempt.abandoned:
                self._execution.recorder.on_abandoned(queued.attempt.number)
        self._queued.clear()  # one that was left behind holds the failure that it came after

    def _close(self) -> None:
        self._closed = True
        for queued in self._queued:
            queued.is_over = queued.take() or queued.is_over
            queued.attempt.abandoned = not queued.is_over

    def _next(self, seconds: float) -> list[HedgeAttempt]:
        from queue import Empty

        try:
            queued = self._ended.get(timeout=min(seconds, threading.TIMEOUT_MAX))
        except Empty:
            return []
        self._queued.remove(queued)
        queued.future = None  # its callback leads back here
        return [queued.attempt]

    def _run_one_here(self) -> bool:
        """Make the first call in this thread, unless one has begun meanwhile."""
        for queued in self._queued:
            if not queued.take():
                return False
            uninterrupted(self._stop, [queued])
            self._run_queued(queued)
            return True
        return False

    # What takes the locks of a future or an event.

    def _submit(self, queued: _QueuedAttempt) -> None:
        queued.future = self._pool.submit(self._work, queued)
        queued.future.add_done_callback(partial(self._on_future_done, queued))

    def _stop(self, queued_attempts: list[_QueuedAttempt]) -> None:
        """Take them out of the pool's queue, and stop those that run."""
        for queued in queued_attempts:
            if queued.future is not None:
                queued.future.cancel()
                queued.future = None
            if queued.attempt.abandoned and queued.attempt.stop is not None:
                queued.attempt.stop.set()

    # In the threads of the pool.

    def _work(self, queued: _QueuedAttempt) -> None:
        if not self._answered and queued.take():
            self._run_queued(queued)

    def _run_queued(self, queued: _QueuedAttempt) -> None:
        queued.context.run(queued.attempt.run)
        self._report(queued)

    def _on_future_done(self, queued: _QueuedAttempt, future: Future[None]) -> None:
        """The pool is through with it, perhaps without having made the call."""
        from concurrent.futures import CancelledError

        error = CancelledError() if future.cancelled() else future.exception()
        if error is not None and queued.take():
            queued.attempt.error = error
            self._report(queued)

    def _report(self, queued: _QueuedAttempt) -> None:
        self._monitor.post(self._end, queued)
        if queued.attempt.abandoned:
            self._execution.lost(queued.attempt)
            queued.attempt.error = None

    def _end(self, queued: _QueuedAttempt) -> None:
        queued.is_over = True
        self._answered |= queued.attempt.error is None
        if not self._closed:
            self._ended.put(queued)
