"""Where the calls of a race run: in tasks of asyncio or trio, or in the threads of a pool.

However the block around them is left, no task is running behind it.
"""

from __future__ import annotations

import threading
from contextlib import suppress
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
    from types import TracebackType
    from typing import Self

    from retrytemplate.control.hedge.execution import Race, Runner

__all__ = ["PoolLanes", "task_lanes"]

# So long a pool may take to find a thread for a call, in seconds.
GRACE = 0.1

in_order = attrgetter("number")


def task_lanes() -> _AsyncioLanes | _TrioLanes:
    """Of the loop that runs here."""
    return _TrioLanes() if in_trio() else _AsyncioLanes()


class _AsyncioLanes:
    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], Runner] = {}

    async def __aenter__(self) -> Self:
        return self

    def start(self, runner: Runner) -> None:
        import asyncio

        self._tasks[asyncio.create_task(runner.run_async())] = runner

    async def wait(self, seconds: float) -> list[Runner]:
        """Those that have ended within so long."""
        import asyncio

        done, _ = await asyncio.wait(
            self._tasks,
            timeout=None if seconds == inf else seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        ended = []
        for task in done:
            runner = self._tasks.pop(task)
            if runner.ended is None:  # it was cancelled from outside before it ran
                runner.error = asyncio.CancelledError()
            ended.append(runner)
        return sorted(ended, key=in_order)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from retrytemplate._storage.cancellation import wait_shielded

        closed = kind is not None and issubclass(kind, GeneratorExit)
        if closed:  # nothing can be awaited any more, and the loop may be closed, too
            with suppress(RuntimeError):
                for task in self._tasks:
                    task.cancel()
        elif self._tasks:
            for task in self._tasks:
                task.cancel()
            await wait_shielded(self._tasks)


class _TrioLanes:
    def __init__(self) -> None:
        import trio

        self._manager = trio.open_nursery(strict_exception_groups=True)
        self._scopes: list[trio.CancelScope] = []
        self._ended: list[Runner] = []
        self._woken = trio.Event()

    async def __aenter__(self) -> Self:
        self._nursery = await self._manager.__aenter__()
        return self

    def start(self, runner: Runner) -> None:
        import trio

        self._scopes.append(trio.CancelScope())
        self._nursery.start_soon(self._run, runner, self._scopes[-1])

    async def _run(self, runner: Runner, scope: Any) -> None:
        if not scope.cancel_called:
            with scope:
                await runner.run_async()
            self._ended.append(runner)
            self._woken.set()

    async def wait(self, seconds: float) -> list[Runner]:
        """Those that have ended within so long."""
        import trio

        with trio.move_on_after(seconds):
            await self._woken.wait()
        ended, self._ended, self._woken = self._ended, [], trio.Event()
        return sorted(ended, key=in_order)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        import trio

        for scope in self._scopes:
            scope.cancel()
        try:
            # Not told of the exception: it would put it into a group.
            await self._manager.__aexit__(None, None, None)
        except BaseExceptionGroup as group:  # Ctrl-C while it waited: runners raise nothing
            raise group.exceptions[0] from None
        if exception is None:
            await trio.lowlevel.checkpoint_if_cancelled()


@define(eq=False)
class _Place:
    """A runner in a pool: in the queue until somebody takes it, the pool or who waits for it."""

    runner: Runner
    context: Context
    future: Future[None] | None = None
    is_over: bool = False
    _taken: threading.Lock = field(factory=threading.Lock)

    def take(self) -> bool:
        return self._taken.acquire(blocking=False)

    @property
    def is_taken(self) -> bool:
        return self._taken.locked()


class PoolLanes:
    """Threads cannot be stopped: those that still run at the end are left behind.

    A pool whose threads are all taken, by the caller itself perhaps, holds nobody up: where no call
    is being made, the caller makes one.
    """

    def __init__(self, pool: Executor, race: Race) -> None:
        from queue import SimpleQueue

        self._pool = pool
        self._race = race
        self._stops = accepts_stop(partial(race.fn, **race.kwargs), race.args)
        self._places: list[_Place] = []  # of those that have not been heard of
        self._ended: SimpleQueue[_Place] = SimpleQueue()
        self._monitor = Monitor()
        self._answered = self._closed = False
        self._idle = 0.0  # seconds for which no call was being made

    def __enter__(self) -> Self:
        return self

    def start(self, runner: Runner) -> None:
        if self._stops:
            runner.stop = threading.Event()
        place = _Place(runner, copy_context())
        self._places.append(place)
        if self._race.delay is None:  # no other will come: a thread of its own would be no use
            self._work(place)
            return
        try:
            uninterrupted(self._submit, place)
        except Exception as exc:
            # A pool that gets no new thread raises, and may have found an old one.
            if place.take():
                self._places.remove(place)
                if isinstance(exc, RuntimeError) and "shutdown" in str(exc):
                    raise MisuseError(
                        f"the executor of the hedge {self._race.steward.name!r} is shut down: shut "
                        "it down after the last call, or make the hedge with another executor"
                    ) from exc
                raise

    def wait(self, seconds: float) -> list[Runner]:
        """The one that has ended within so long."""
        if self._is_idle():
            left = max(0.0, GRACE - self._idle)
            short = min(seconds, left)
            self._idle += short
            ended = self._next(short)
            if ended or short < left:
                return ended
            seconds = inf if self._make_one() else seconds - short
        return self._next(seconds)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the calls that are left; once more does nothing."""
        self._monitor.post(self._close)
        if self._places:
            uninterrupted(self._let_go, self._places)
        for place in self._places:
            if place.runner.abandoned:
                self._race.steward.abandoned(place.runner)
        self._places.clear()  # one that was left behind holds the failure that it came after

    def _close(self) -> None:
        self._closed = True
        for place in self._places:
            place.is_over = place.take() or place.is_over
            place.runner.abandoned = not place.is_over

    def _next(self, seconds: float) -> list[Runner]:
        from queue import Empty

        try:
            place = self._ended.get(timeout=min(seconds, threading.TIMEOUT_MAX))
        except Empty:
            return []
        self._places.remove(place)
        place.future = None  # its callback leads back here
        return [place.runner]

    def _is_idle(self) -> bool:
        return not any(place.is_taken for place in self._places)

    def _make_one(self) -> bool:
        """Make the first of the calls here, unless somebody has begun one meanwhile."""
        for place in self._places:
            if not place.take():
                return False
            uninterrupted(self._let_go, [place])
            self._make(place)
            return True
        return False

    # What takes the locks of a future or an event.

    def _submit(self, place: _Place) -> None:
        place.future = self._pool.submit(self._work, place)
        place.future.add_done_callback(partial(self._dropped, place))

    def _let_go(self, places: list[_Place]) -> None:
        """Take them out of the pool's queue, and stop those that run."""
        for place in places:
            if place.future is not None:
                place.future.cancel()
                place.future = None
            if place.runner.abandoned and place.runner.stop is not None:
                place.runner.stop.set()

    # In the threads of the pool.

    def _work(self, place: _Place) -> None:
        if not self._answered and place.take():
            self._make(place)

    def _make(self, place: _Place) -> None:
        place.context.run(place.runner.run)
        self._report(place)

    def _dropped(self, place: _Place, future: Future[None]) -> None:
        """The pool is through with it, perhaps without having made the call."""
        from concurrent.futures import CancelledError

        error = CancelledError() if future.cancelled() else future.exception()
        if error is not None and place.take():
            place.runner.error = error
            self._report(place)

    def _report(self, place: _Place) -> None:
        self._monitor.post(self._end, place)
        if place.runner.abandoned:
            self._race.lost(place.runner)
            place.runner.error = None

    def _end(self, place: _Place) -> None:
        place.is_over = True
        self._answered |= place.runner.error is None
        if not self._closed:
            self._ended.put(place)
