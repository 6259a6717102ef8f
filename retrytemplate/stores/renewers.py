"""Who renews the leases of the claims in hand: a thread, or a task of asyncio, one for a cache."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from retrytemplate.errors import LeaseLostError
from retrytemplate.stores.cancellation import over
from retrytemplate.stores.leases import Leases

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from retrytemplate.caches.base import Claim
    from retrytemplate.stores.leases import LeasedClaim

__all__ = ["RenewingTask", "RenewingThread"]


class RenewingThread:
    """Renews in a daemon thread, which the first claim starts.

    :param renew: the cache's step.
    :param monotonic: tells the time.
    :param end_left: ends the claims that finalizers have left, at each look.
    """

    def __init__(
        self,
        renew: Callable[[LeasedClaim], None],
        monotonic: Callable[[], float],
        end_left: Callable[[], None],
    ) -> None:
        self._renew = renew
        self._end_left = end_left
        self._monotonic = monotonic
        self._leases = Leases()
        # Entered by itself, not by the condition: that is written in Python, and a signal that
        # cuts in may leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._wakes = math.inf  # when the thread looks by itself

    def add(self, claim: LeasedClaim) -> None:
        """Renew this claim from now on."""
        with self._lock:
            due = self._leases.took(claim, self._monotonic())
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, name="retrytemplate-leases", daemon=True
                )
                thread.start()  # it waits for the lock
                self._thread = thread
            elif due < self._wakes:
                self._changed.notify()

    def drop(self, claim: Claim) -> None:
        """Renew this claim no more."""
        with self._lock:
            self._leases.drop(claim)

    def stop(self) -> None:
        """Let go of every claim; return when the thread has ended."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._leases = Leases()
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                due = self._wait()
            if due is None:
                return
            self._end_left()
            for claim in due:
                self._turn(claim)

    def _wait(self) -> list[LeasedClaim] | None:
        """The claims that are due, after a wait where none is; None when the thread is to end."""
        if self._thread is not threading.current_thread():
            return None
        now = self._monotonic()
        due = self._leases.due(now)
        if not due:
            at = self._leases.look(now)
            self._wakes = math.inf if at is None else at
            # A thread can wait for 292 years at most; then it looks again.
            self._changed.wait(None if at is None else min(at - now, threading.TIMEOUT_MAX))
            self._wakes = -math.inf
        return due

    def _turn(self, claim: LeasedClaim) -> None:
        with self._lock:
            if not self._leases.has(claim):
                return
        error: Exception | None = None
        try:
            self._renew(claim)
        except Exception as exc:  # whatever it is, the next one may go well
            error = exc
        with self._lock:
            _note(self._leases, claim, error, self._monotonic())


class RenewingTask:
    """Renews in a task of the loop in which the first claim is taken."""

    def __init__(
        self,
        renew: Callable[[LeasedClaim], Awaitable[None]],
        monotonic: Callable[[], float],
        end_left: Callable[[], Awaitable[None]],
    ) -> None:
        self._renew = renew
        self._end_left = end_left
        self._monotonic = monotonic
        self._leases = Leases()
        self._task: asyncio.Task[None] | None = None
        self._changed: asyncio.Event | None = None
        self._wakes = math.inf

    def add(self, claim: LeasedClaim) -> None:
        """Renew this claim from now on."""
        import asyncio
        from contextvars import Context

        due = self._leases.took(claim, self._monotonic())
        if self._task is None or self._changed is None or self._task.done():
            self._changed = asyncio.Event()
            loop = asyncio.get_running_loop()
            # In a context of its own: this execution's would live as long as the task.
            self._task = loop.create_task(
                self._run(self._changed), name="retrytemplate-leases", context=Context()
            )
        elif due < self._wakes:
            self._changed.set()

    def drop(self, claim: Claim) -> None:
        """Renew this claim no more."""
        self._leases.drop(claim)

    async def stop(self) -> None:
        """Let go of every claim; return when the task has ended.

        A renewal under way comes to its end: cut off, it would leave its connection in between.
        """
        task, self._task = self._task, None
        self._leases = Leases()
        if self._changed is not None:
            self._changed.set()
        if task is not None and not task.done():
            await over([task])

    async def _run(self, changed: asyncio.Event) -> None:
        import asyncio

        while self._task is asyncio.current_task():
            await self._end_left()
            for claim in self._leases.due(self._monotonic()):
                await self._turn(claim)
            now = self._monotonic()
            at = self._leases.look(now)
            self._wakes = math.inf if at is None else at
            rest = None if at is None else at - now
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await changed.wait()
            changed.clear()
            self._wakes = -math.inf

    async def _turn(self, claim: LeasedClaim) -> None:
        if not self._leases.has(claim):
            return
        error: Exception | None = None
        try:
            await self._renew(claim)
        except Exception as exc:  # the next one may go well; a cancellation ends the task
            error = exc
        _note(self._leases, claim, error, self._monotonic())


def _note(leases: Leases, claim: LeasedClaim, error: Exception | None, now: float) -> None:
    """Write down how a renewal went, where the claim has not ended meanwhile."""
    if not leases.has(claim):
        return
    if error is None:
        leases.took(claim, now)
    elif isinstance(error, LeaseLostError):
        leases.drop(claim)
    else:
        leases.failed(claim, now)
