"""A context manager that removes all waiting."""

from __future__ import annotations

import time
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from retrytemplate import clock as system
from retrytemplate._internal.locks import Monitor
from retrytemplate.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["no_waiting"]

F = TypeVar("F", bound="Callable[..., Any]")

_monitor = Monitor()
_switched_on: list[VirtualClock] = []


class SkippingClock(VirtualClock):
    """The system's time plus the skipped delays."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = system.SystemClock().monotonic() - time.monotonic()

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead + super().monotonic()

    def time(self) -> float:
        return time.time() + super().monotonic()


class no_waiting:
    """Remove all waiting between attempts: from every template, in every thread, at once.

    It affects existing templates too, such as those of decorated functions: every ``SystemClock``
    of the process skips its sleeps inside the block.  Delays are still computed, passed to
    ``on_backoff``, and recorded.

    The time advances as if the delays had been slept, so that a ``TimeoutRetryPolicy`` ends as
    usual.  Other clocks of templates are not affected, nor are time limits (an attempt's timeout
    cancels after real seconds).

    :param clock: a ``VirtualClock`` to read all time from instead: then only sleeps move the time
        on, and ``interrupt_at`` limits them.

    ``as`` binds the clock: its ``sleeps`` are the delays, ``advance`` moves the time on.  Use it as
    a context manager, in async code with a plain ``with``, or as a decorator, also of coroutine
    functions.  Blocks nest; the innermost one applies.

    >>> from retrytemplate import FixedBackoff, RetryTemplate
    >>> @RetryTemplate(backoff=FixedBackoff(60.0)).wrap
    ... def read(text):
    ...     return int(text)
    >>> with no_waiting() as clock:
    ...     try:
    ...         read("seventeen")
    ...     except ValueError:
    ...         print(clock.sleeps)
    [60.0, 60.0]
    >>> @no_waiting()
    ... def test_that_it_gives_up():
    ...     ...
    """

    def __init__(self, clock: VirtualClock | None = None) -> None:
        if clock is not None and not isinstance(clock, VirtualClock):
            raise TypeError(f"clock must be a VirtualClock or None, got {clock!r}")
        self._clock = clock
        self._mine: list[VirtualClock] = []

    def __enter__(self) -> VirtualClock:
        clock = SkippingClock() if self._clock is None else self._clock
        _monitor.post(self._switch_on, clock)
        return clock

    def _switch_on(self, clock: VirtualClock) -> None:
        self._mine.append(clock)
        _switched_on.append(clock)
        system.install_override(clock)

    def __exit__(self, *_: object) -> None:
        _monitor.post(self._switch_off)

    def _switch_off(self) -> None:
        clock = self._mine.pop()
        _remove_last(_switched_on, clock)
        # A measurement across this point must not go backwards.
        system._offset = max(system._offset, clock.monotonic() - time.monotonic())
        system.install_override(_switched_on[-1] if _switched_on else None)

    def __call__(self, function: F) -> F:
        import inspect

        if isinstance(function, type) or _is_generator(function):
            raise TypeError(f"no_waiting() decorates functions; use `with` inside {function!r}")

        @wraps(function)
        def without_waiting(*args: Any, **kwargs: Any) -> Any:
            with no_waiting(self._clock):
                return function(*args, **kwargs)

        @wraps(function)
        async def without_waiting_async(*args: Any, **kwargs: Any) -> Any:
            with no_waiting(self._clock):
                return await function(*args, **kwargs)

        is_async = inspect.iscoroutinefunction(function)
        return cast("F", without_waiting_async if is_async else without_waiting)


def _is_generator(function: Any) -> bool:
    import inspect

    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _remove_last(clocks: list[VirtualClock], clock: VirtualClock) -> None:
    """Remove by identity, from the end: another thread may have added one since."""
    for place in reversed(range(len(clocks))):
        if clocks[place] is clock:
            del clocks[place]
            return
