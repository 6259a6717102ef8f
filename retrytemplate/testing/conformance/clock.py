"""The kit for clocks."""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from retrytemplate._internal.awaitables import in_trio
from retrytemplate.clock import Clock
from retrytemplate.testing.clock import checkpoint
from retrytemplate.testing.conformance.base import Conformance, in_threads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["ClockConformance"]

MAX_SLEEPS = 100
"""Sleeps within which another task must have run: trio shuffles the order of tasks."""


class ClockConformance(Conformance):
    """Tests for a ``Clock``, real or virtual: it never goes back, its sleeps let other tasks run.

    ``delay`` is the length of a sleep in seconds, which a real clock does wait.  If trio is
    installed, the asynchronous tests also run under trio.

    >>> from retrytemplate.testing import VirtualClock
    >>> class TestMine(ClockConformance):
    ...     def make(self):
    ...         return VirtualClock()
    >>> TestMine().run_all()
    {}
    """

    delay: ClassVar[float] = 0.01
    tolerance: ClassVar[float] = 0.001
    """Seconds by which a sleep may be too short: event loops round to the clock's resolution."""

    @abstractmethod
    def make(self) -> Clock:
        """A clock."""

    def test_it_is_a_clock(self) -> None:
        assert isinstance(self.make(), Clock), "a clock has monotonic, time, sleep, sleep_async"

    def test_both_times_are_finite_numbers_of_seconds(self) -> None:
        clock = self.make()
        for seconds in (clock.monotonic(), clock.time()):
            assert isinstance(seconds, float | int), f"got {seconds!r}"
            assert math.isfinite(seconds), f"got {seconds!r}"

    def test_the_monotonic_time_never_goes_back(self) -> None:
        clock = self.make()
        seen = [clock.monotonic() for _ in range(100)]
        clock.sleep(self.delay)
        seen += [clock.monotonic() for _ in range(100)]
        assert seen == sorted(seen), "monotonic() went back"

    def test_a_sleep_takes_its_time(self) -> None:
        clock = self.make()
        before = clock.monotonic()
        clock.sleep(self.delay)
        self._check_passed(clock.monotonic() - before)

    def test_an_asynchronous_sleep_takes_its_time(self) -> None:
        clock = self.make()

        async def main() -> float:
            before = clock.monotonic()
            await clock.sleep_async(self.delay)
            return clock.monotonic() - before

        for passed in self._under_each(main):
            self._check_passed(passed)

    def _check_passed(self, passed: float) -> None:
        assert passed >= self.delay - self.tolerance, f"slept {self.delay}, but {passed} passed"

    def test_a_sleep_of_nothing_returns(self) -> None:
        clock = self.make()
        clock.sleep(0.0)
        self._under_each(lambda: clock.sleep_async(0.0))

    def test_other_tasks_run_during_an_asynchronous_sleep(self) -> None:
        for order in self._under_each(self._two_tasks):
            assert order == ["begun", "other", "ended"], "sleep_async does not let others run"

    async def _two_tasks(self) -> list[str]:
        clock = self.make()
        order: list[str] = []

        async def sleeper() -> None:
            order.append("begun")
            for _ in range(MAX_SLEEPS):
                if len(order) == 1:
                    await clock.sleep_async(self.delay)
            order.append("ended")

        async def other() -> None:
            while not order:
                await checkpoint()
            order.append("other")

        await _together(sleeper, other)
        return order

    def test_a_cancellation_is_delivered_in_an_asynchronous_sleep(self) -> None:
        clock = self.make()

        async def under_asyncio() -> bool:
            task = asyncio.ensure_future(clock.sleep_async(self.delay))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            return task.cancelled()

        async def under_trio() -> bool:
            import trio

            with trio.CancelScope() as scope:
                scope.cancel()
                await clock.sleep_async(self.delay)
            return scope.cancelled_caught

        assert asyncio.run(under_asyncio()), "asyncio's cancellation did not come through"
        if _trio() is not None:
            assert _trio().run(under_trio), "trio's cancellation did not come through"

    def test_threads_share_it(self) -> None:
        clock = self.make()

        def use(thread: int) -> bool:
            seen = []
            for _ in range(50):
                seen.append(clock.monotonic())
                clock.sleep(0.0)
                clock.time()
            return seen == sorted(seen)

        assert all(in_threads(use)), "in one of several threads the time went back"

    def _under_each(self, function: Callable[[], Awaitable[Any]]) -> list[Any]:
        async def main() -> Any:
            return await function()

        trio = _trio()
        return [asyncio.run(main()), *([] if trio is None else [trio.run(main)])]


def _trio() -> Any:
    try:
        import trio
    except ImportError:
        return None
    return trio


async def _together(*functions: Callable[[], Awaitable[None]]) -> None:
    if in_trio():
        async with _trio().open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)
    else:
        await asyncio.gather(*(function() for function in functions))
