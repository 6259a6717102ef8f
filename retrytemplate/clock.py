"""Clocks: the protocol, and the clock of the system."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import field, frozen

from retrytemplate._internal.awaitables import in_trio
from retrytemplate._internal.validation import check_methods
from retrytemplate._internal.values import Value

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

__all__ = ["Clock", "SystemClock", "check_clock", "fast_monotonic", "given_or_system"]


# Seconds between two checks of the stop event in an asynchronous sleep.
STOP_POLL = 0.05
STOPPED = "the stop event was set"

# The clock that replaces every SystemClock of the process, see retrytemplate.testing; and the
# seconds by which earlier ones advanced the monotonic time, which must never decrease.
_override: Clock | None = None
_offset = 0.0


def _moved_on() -> float:
    return time.monotonic() + _offset


# Reads the monotonic time: time.monotonic itself unless another clock is installed.
now: Callable[[], float] = time.monotonic


def install_override(clock: Clock | None) -> None:
    """Replace every ``SystemClock`` by a clock; None ends the replacement."""
    global _override, now
    _override = clock
    system = _moved_on if _offset else time.monotonic
    now = system if clock is None else clock.monotonic


@runtime_checkable
class Clock(Protocol):
    """Time and sleep of a template.  All values are seconds.

    ``monotonic`` measures durations, ``time`` returns the seconds since the epoch, ``sleep`` and
    ``sleep_async`` wait.  An ``Exception`` raised by a sleep ends the execution with
    ``BackoffInterruptedError``.

    >>> from retrytemplate import FixedBackoff, RetryTemplate
    >>> class Hurried(SystemClock):
    ...     def sleep(self, delay):
    ...         print("not waiting", delay)
    >>> isinstance(Hurried(), Clock)
    True
    >>> RetryTemplate(backoff=FixedBackoff(60), clock=Hurried()).outcome(int, "x").attempts
    not waiting 60.0
    not waiting 60.0
    3
    """

    def monotonic(self) -> float: ...

    def time(self) -> float: ...

    def sleep(self, delay: float) -> None: ...

    async def sleep_async(self, delay: float) -> None: ...


def check_clock(name: str, value: Any) -> None:
    """Raise unless the value is a clock."""
    check_methods(name, value, "monotonic", "time", "sleep", "sleep_async")


class StoppedError(Exception):
    """The clock's stop event ended a sleep: the cause of a ``BackoffInterruptedError``."""


def _event_or_none(instance: Any, attribute: Any, value: Any) -> None:
    if value is not None:
        check_methods("stop", value, "is_set", "wait")


@frozen(eq=False, repr=False)
class SystemClock(Value):
    """The clock of the system.

    :param stop: an event that ends sleeps when it is set, for a shutdown: the execution then ends
        with ``BackoffInterruptedError``.  Default None: sleeps last their full time.

    >>> clock = SystemClock()
    >>> clock.sleep(0.0)
    >>> clock.monotonic() <= clock.monotonic()
    True
    """

    stop: threading.Event | None = field(default=None, kw_only=True, validator=_event_or_none)

    def monotonic(self) -> float:
        """Seconds on a clock that never decreases."""
        return now()

    def time(self) -> float:
        """Seconds since the epoch."""
        other = _override
        return time.time() if other is None else other.time()

    def sleep(self, delay: float) -> None:
        """Wait *delay* seconds in this thread, or until the stop event is set."""
        other = _override
        if other is not None:
            self._go_on()
            other.sleep(delay)
        elif self.stop is None:
            time.sleep(delay)
        elif self.stop.wait(delay):
            raise StoppedError(STOPPED)

    async def sleep_async(self, delay: float) -> None:
        """Wait *delay* seconds in this task (asyncio or trio), or until the stop event is set."""
        other = _override
        self._go_on()
        if other is not None:
            await other.sleep_async(delay)
        elif self.stop is None:
            await _sleep(delay)
        else:
            await self._sleep_in_steps(delay)

    async def _sleep_in_steps(self, delay: float) -> None:
        until = time.monotonic() + delay
        rest = delay
        while True:
            await _sleep(max(0.0, min(rest, STOP_POLL)))
            self._go_on()
            if rest <= STOP_POLL:
                return
            rest = until - time.monotonic()

    def _go_on(self) -> None:
        if self.stop is not None and self.stop.is_set():
            raise StoppedError(STOPPED)


def given_or_system(clock: Clock | None) -> Clock:
    """The given clock, checked; the clock of the system for None."""
    if clock is None:
        return SystemClock()
    check_clock("clock", clock)
    return clock


def fast_monotonic(clock: Clock) -> Any:
    """An object whose ``now()`` returns this clock's monotonic time with the least overhead."""
    if type(clock) is SystemClock:
        return sys.modules[__name__]
    return SimpleNamespace(now=clock.monotonic)


async def _sleep(delay: float) -> None:
    if in_trio():
        import trio

        await trio.sleep(delay)
    else:
        import asyncio

        await asyncio.sleep(delay)
