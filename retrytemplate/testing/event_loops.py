"""The timers of asyncio and trio on virtual time: timeouts fire in order, without waiting."""

from __future__ import annotations

import asyncio
import math
import selectors
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from retrytemplate._internal.validation import check_at_least
from retrytemplate.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Awaitable, Callable, Coroutine
    from contextvars import Context
    from typing import TypeVarTuple, Unpack

    Arguments = TypeVarTuple("Arguments")

__all__ = ["VirtualLoop", "run", "run_trio", "virtual_loop"]

T = TypeVar("T")

LOOK_EACH = 64
"""Iterations of a loop without sockets for each look at its pipe."""
RESOLUTION = 1e-9
"""Seconds of virtual time within which timers fire together."""


class JumpingSelector(selectors.DefaultSelector):
    """The system's selector, which moves the clock on instead of waiting for a timer."""

    def __init__(self, clock: VirtualClock, grace: float) -> None:
        super().__init__()
        self.files = self.get_map()
        self._clock = clock
        self._grace = grace

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Without a timer, only a thread or socket can make progress, in real time.
        ready = super().select(None if timeout is None else min(timeout, self._grace))
        if timeout and not ready:
            self._clock._jump(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a ``VirtualClock``; made by ``virtual_loop``.

    Its timers are tuples: asyncio compares handles in Python, which takes more time than all the
    rest of a timer.  Timers of one moment fire in the order in which they were set.
    """

    _ready: deque[asyncio.Handle]  # of the base class, as the next two
    _selector: JumpingSelector
    _stopping: bool

    def __init__(self, clock: VirtualClock, grace: float) -> None:
        self.virtual_clock = clock
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._cancelled_timers = 0
        self._has_grace = grace > 0
        self._iterations = 0
        super().__init__(JumpingSelector(clock, grace))

    def time(self) -> float:
        return self.virtual_clock.monotonic()

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._check_closed()  # type: ignore[attr-defined]  # of the base class
        timer: Any = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # so that its cancellation is reported
        heappush(self._timers, (when, next(self._numbers), timer))
        return timer  # type: ignore[no-any-return]

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        self._cancelled_timers += 1

    def _run_once(self) -> None:
        """One iteration: move the clock on if no callback is ready, then run those that are."""
        timers, ready = self._timers, self._ready
        self._drop_cancelled_timers()
        now = self.virtual_clock.monotonic()
        timeout = 0.0
        if not ready and not self._stopping:
            timeout = max(0.0, timers[0][0] - now) if timers else math.inf
        if self._must_look(timeout):
            events = self._selector.select(None if timeout == math.inf else timeout)
            self._process_events(events)  # type: ignore[attr-defined]
            now = self.virtual_clock.monotonic()
        elif timeout:
            self.virtual_clock._jump(timeout)
            now = self.virtual_clock.monotonic()
        end = now + RESOLUTION
        while timers and timers[0][0] < end:
            timer: Any = heappop(timers)[2]
            timer._scheduled = False
            if timer._cancelled:
                self._cancelled_timers -= 1
            else:
                ready.append(timer)
        self._run_ready()

    def _run_ready(self) -> None:
        ready = self._ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _must_look(self, timeout: float) -> bool:
        """Whether to ask the system for events before the callbacks.

        A loop without sockets has a pipe only, through which signals arrive: most iterations
        need not look at it.
        """
        self._iterations += 1
        return (
            self._iterations % LOOK_EACH == 0
            or timeout == math.inf
            or self._has_grace
            or len(self._selector.files) > 1
        )

    def _drop_cancelled_timers(self) -> None:
        timers: Any = self._timers
        if self._cancelled_timers > 100 and 2 * self._cancelled_timers > len(timers):
            timers[:] = [entry for entry in timers if not entry[2]._cancelled]
            heapify(timers)
            self._cancelled_timers = 0
        while timers and timers[0][2]._cancelled:
            heappop(timers)
            self._cancelled_timers -= 1

    def close(self) -> None:
        super().close()
        self._timers.clear()

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
