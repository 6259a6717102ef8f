"""Waiters of a thread or a task, woken from any thread or loop.

One may wait again and again, on the clock of its thread or loop.
"""

from __future__ import annotations

import time
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any

from retrytemplate import clock as system
from retrytemplate._internal.awaitables import in_trio
from retrytemplate.clock import SystemClock

if TYPE_CHECKING:
    import asyncio

    from retrytemplate.clock import Clock


class ThreadWaiter:
    """A thread that waits."""

    def __init__(self) -> None:
        # No event: a signal that interrupts its wait() may leave it locked; and the collector may
        # wake this thread inside of it, where its lock is held. SimpleQueue.put is reentrant.
        self._calls = SimpleQueue[None]()

    def wake(self) -> bool:
        """Wake it; False: its loop is closed."""
        self._calls.put(None)
        return True

    def now(self) -> float:
        """The time that it waits by."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Wait until it is woken, at most *seconds*."""
        with suppress(Empty):
            self._calls.get(timeout=max(0.0, min(seconds, TIMEOUT_MAX)))
            while True:
                self._calls.get_nowait()


def task_waiter() -> _AsyncioWaiter | _TrioWaiter:
    """The waiter of the current task."""
    return _TrioWaiter() if in_trio() else _AsyncioWaiter()


class _AsyncioWaiter:
    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:  # the loop is closed, and its tasks with it
            return False
        return True

    def _set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def now(self) -> float:
        return self._loop.time()

    async def wait(self, seconds: float) -> None:
        import asyncio

        await asyncio.wait([self._future], timeout=None if seconds == inf else seconds)
        if self._future.done():
            self._future = self._loop.create_future()


class _TrioWaiter:
    def __init__(self) -> None:
        import trio

        self._token = trio.lowlevel.current_trio_token()
        self._event = trio.Event()

    def wake(self) -> bool:
        import trio

        try:
            self._token.run_sync_soon(self._set)
        except trio.RunFinishedError:
            return False
        return True

    def _set(self) -> None:
        self._event.set()

    def now(self) -> float:
        import trio

        return trio.current_time()

    async def wait(self, seconds: float) -> None:
        import trio

        with trio.move_on_after(seconds):
            await self._event.wait()
        if self._event.is_set():
            self._event = trio.Event()


class _SleepingThread:
    """A thread that sleeps on a clock of its own, and cannot be woken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wake(self) -> bool:
        """It reads its moment again at the end of the sleep."""
        return True

    def now(self) -> float:
        return self._clock.monotonic()

    def wait(self, seconds: float) -> None:
        self._clock.sleep(seconds)


class _SleepingTask(_SleepingThread):
    """The same for a task."""

    async def wait(self, seconds: float) -> None:  # type: ignore[override]  # a task awaits it
        await self._clock.sleep_async(seconds)


def new_thread_waiter(clock: Clock) -> Any:
    """A waiter of this thread, which can be woken if the clock is that of the system."""
    return ThreadWaiter() if _is_real(clock) else _SleepingThread(clock)


def new_task_waiter(clock: Clock) -> Any:
    """A waiter of this task, which can be woken if the timers of its loop use the clock."""
    waiter = task_waiter()
    # A virtual loop and its clock show the same number; a real loop and a virtual clock do not.
    if _is_real(clock) or waiter.now() == clock.monotonic():
        return waiter
    return _SleepingTask(clock)


def _is_real(clock: Clock) -> bool:
    """Whether the time of the clock passes by itself, and no stop event ends its sleeps."""
    return type(clock) is SystemClock and clock.stop is None and system._override is None
