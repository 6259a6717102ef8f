"""A clock whose sleeps take no time."""

from __future__ import annotations

import math
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.awaitables import in_trio
from retrytemplate._internal.validation import check_at_least, check_int, to_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from trio.testing import MockClock

__all__ = ["NEW_YEAR", "Interrupted", "VirtualClock", "checkpoint"]

NEW_YEAR = 1_767_225_600.0
"""2026-01-01T00:00:00Z, where the virtual calendar begins."""


class Interrupted(Exception):
    """Raised by a ``VirtualClock`` from the sleep that it interrupts."""


class VirtualClock:
    """A clock that only sleeps and ``advance`` move on.

    A sleep moves the time on by its length and returns at once.  Pass the clock to a template
    instead of the system's; threads and tasks may share it.

    :param start: the first ``monotonic()``, in seconds; default 0.
    :param epoch: the first ``time()``, in seconds since 1970; default: the start of 2026.
    :param interrupt_at: the number of the sleep, from 1, that is interrupted; default: none.
    :param interrupt_with: the exception that it raises.

    ``sleeps`` lists all delays so far, including that of an interrupted sleep.  Under asyncio and
    trio ``sleep_async`` is a real checkpoint: other tasks run, a cancellation is delivered.  The
    sleeps of several tasks or threads add up.  With ``run`` and ``run_trio`` they overlap like real
    ones, and the loop's timers (``asyncio.timeout``, ``trio.move_on_after``) use this clock too.

    >>> from retrytemplate import FixedBackoff, RetryTemplate
    >>> clock = VirtualClock()
    >>> template = RetryTemplate(backoff=FixedBackoff(60.0), clock=clock)
    >>> template.outcome(int, "seventeen").attempts
    3
    >>> clock.sleeps, clock.monotonic()
    ([60.0, 60.0], 120.0)
    """

    def __init__(
        self,
        start: float = 0.0,
        *,
        epoch: float = NEW_YEAR,
        interrupt_at: int | None = None,
        interrupt_with: BaseException | type[BaseException] = Interrupted,
    ) -> None:
        self.sleeps: list[float] = []
        self._now = _length("start", start)
        self._to_epoch = _length("epoch", epoch) - self._now
        if interrupt_at is not None:
            check_int("interrupt_at", interrupt_at, 1)
        self._interrupt_at = interrupt_at
        self._interrupt_with = interrupt_with
        self._lock = threading.RLock()
        self._trio: MockClock | None = None  # the clock of the trio run that this one follows

    def monotonic(self) -> float:
        """Monotonic time in seconds."""
        return self._now if self._trio is None else self._trio.current_time()

    def time(self) -> float:
        """Seconds since the epoch."""
        return self.monotonic() + self._to_epoch

    def sleep(self, delay: float) -> None:
        """Record the delay and move the time on by it."""
        self._record(delay)
        self.advance(delay)

    async def sleep_async(self, delay: float) -> None:
        """Record the delay, let other tasks run, and move the time on by it."""
        self._record(delay)
        if self._trio is not None and in_trio():
            import trio

            await trio.sleep(delay)
        elif _loop_clock() is self:
            import asyncio

            await asyncio.sleep(delay)
        else:
            await checkpoint()
            self.advance(delay)

    def advance(self, seconds: float | timedelta) -> None:
        """Move the time on without a sleep, as a slow call does.

        >>> clock = VirtualClock()
        >>> clock.advance(1.5)
        >>> clock.monotonic(), clock.sleeps
        (1.5, [])
        """
        self._jump(_length("seconds", to_seconds(seconds)))

    def _jump(self, step: float) -> None:
        """``advance`` without checks, for a loop that moves the clock on."""
        with self._lock:
            if self._trio is None:
                self._now += step
            else:
                self._trio.jump(step)

    @contextmanager
    def following(self, trio_clock: MockClock) -> Iterator[None]:
        """Take the time from a run of trio that is about to begin, until it has ended."""
        trio_clock.jump(self._now)
        self._trio = trio_clock
        try:
            yield
        finally:
            self._now = trio_clock.current_time()
            self._trio = None

    @property
    def slept(self) -> float:
        """The sum of all delays, in seconds."""
        return math.fsum(self.sleeps)

    def _record(self, delay: float) -> None:
        _length("delay", delay)
        with self._lock:
            self.sleeps.append(delay)
            interrupted = len(self.sleeps) == self._interrupt_at
        if interrupted:
            raise self._interrupt_with

    def __repr__(self) -> str:
        return f"<VirtualClock at {self.monotonic()!r}, sleeps={self.sleeps!r}>"


async def checkpoint() -> None:
    """Let other tasks of this loop run once, and deliver a cancellation."""
    if in_trio():
        import trio

        await trio.lowlevel.checkpoint()
    else:
        import asyncio

        await asyncio.sleep(0)


def _loop_clock() -> Any:
    """The clock of the running virtual loop, or None."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or in_trio():
        return None
    return getattr(asyncio.get_running_loop(), "virtual_clock", None)


def _length(name: str, value: Any) -> float:
    check_at_least(name, value, 0, finite=True)
    return float(value)
