"""The timers of asyncio and trio on virtual time: timeouts fire in order, without waiting."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

from retrytemplate._internal.validation import check_at_least
from retrytemplate.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    Arguments = TypeVarTuple("Arguments")

__all__ = ["VirtualLoop", "run", "run_trio", "virtual_loop"]

T = TypeVar("T")

LOOK_EACH = 64
"""Calls of the selector of a loop without sockets for each look at its pipe."""


class JumpingSelector(selectors.DefaultSelector):
    """The system's selector, which moves the clock on instead of waiting for a timer.

    A loop without sockets has a pipe only, through which signals arrive: most calls do not ask the
    system for it.
    """

    def __init__(self, clock: VirtualClock, grace: float) -> None:
        super().__init__()
        self._clock = clock
        self._grace = grace
        self._files = self.get_map()
        self._calls = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = []
        self._calls += 1
        if timeout is None:  # only a thread or socket can make progress, in real time
            ready = super().select()
        elif self._grace or len(self._files) > 1 or self._calls % LOOK_EACH == 0:
            ready = super().select(min(timeout, self._grace))
        if timeout and not ready:
            self._clock._jump(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a ``VirtualClock``; made by ``virtual_loop``."""

    def __init__(self, clock: VirtualClock, grace: float) -> None:
        self.virtual_clock = clock
        super().__init__(JumpingSelector(clock, grace))

    def time(self) -> float:
        return self.virtual_clock.monotonic()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        # The virtual time limit would expire at once; the threads need real time to end.
        await super().shutdown_default_executor()


def virtual_loop(clock: VirtualClock | None = None, *, grace: float = 0.0) -> VirtualLoop:
    """Make an asyncio event loop on virtual time.

    When every task waits, the clock jumps to the next timer: ``asyncio.sleep``,
    ``asyncio.timeout`` and ``loop.call_later`` take no real time and fire in order.

    :param clock: the clock that the loop reads and moves on; a new one by default.
    :param grace: real seconds to wait for threads and sockets before the clock jumps.  With 0,
        the default, a response in progress arrives after every timeout.

    >>> import asyncio
    >>> clock = VirtualClock()
    >>> with asyncio.Runner(loop_factory=lambda: virtual_loop(clock)) as runner:
    ...     runner.run(asyncio.sleep(3600))
    >>> clock.monotonic()
    3600.0
    """
    check_at_least("grace", grace, 0, finite=True)
    return VirtualLoop(VirtualClock() if clock is None else clock, grace)


def run(
    coroutine: Coroutine[Any, Any, T], *, clock: VirtualClock | None = None, grace: float = 0.0
) -> T:
    """Run a coroutine like ``asyncio.run``, with the loop's timers on virtual time.

    :param clock: the clock; the same that the templates in it use.
    :param grace: as in ``virtual_loop``.

    >>> import asyncio
    >>> async def too_slow(clock):
    ...     async with asyncio.timeout(5.0):
    ...         await clock.sleep_async(60.0)
    >>> clock = VirtualClock()
    >>> try:
    ...     run(too_slow(clock), clock=clock)
    ... except TimeoutError:
    ...     print("cut after", clock.monotonic())
    cut after 5.0
    """
    with asyncio.Runner(loop_factory=lambda: virtual_loop(clock, grace=grace)) as runner:
        return runner.run(coroutine)


def run_trio(
    function: Callable[[Unpack[Arguments]], Awaitable[T]],
    *args: *Arguments,
    clock: VirtualClock | None = None,
    grace: float = 0.0,
) -> T:
    """Run an async function like ``trio.run``, with trio's timers on virtual time.

    Built on ``trio.testing.MockClock``, which jumps when every task waits.

    :param clock: the clock; the same that the templates in it use.  It follows trio's until the
        function has returned.
    :param grace: as in ``virtual_loop``.

    >>> import trio
    >>> async def too_slow(clock):
    ...     with trio.move_on_after(5.0):
    ...         await clock.sleep_async(60.0)
    >>> clock = VirtualClock()
    >>> run_trio(too_slow, clock, clock=clock)
    >>> clock.monotonic()
    5.0
    """
    import trio
    import trio.testing

    check_at_least("grace", grace, 0, finite=True)
    followed = trio.testing.MockClock(autojump_threshold=grace)
    if clock is None:
        return trio.run(function, *args, clock=followed)
    with clock.following(followed):
        return trio.run(function, *args, clock=followed)
