"""A cancelling limit behaves like ``asyncio.timeout``, however the task reacts."""

import asyncio
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate._internal.cancel_scope import cancel_after
from retrytemplate.testing import VirtualClock, run, run_trio
from tests.support.gc_probe import left_by

moments = st.sampled_from([-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, inf])
# A wait, and the reaction to a cancellation during it.
waits = st.tuples(st.sampled_from([0.0, 1.0, 2.0, 3.0]), st.sampled_from(["pass", "hold", "raise"]))


class Task:
    """Waits under several limits and records the result of each."""

    def __init__(self, limits, body, cancelled_after):
        self.limits, self.body, self.cancelled_after = limits, body, cancelled_after
        self.clock, self.seen = VirtualClock(), []

    async def work(self):
        for seconds, then in self.body:
            try:
                await asyncio.sleep(seconds)  # virtual seconds
            except asyncio.CancelledError:
                self.seen.append(("cancelled", self.clock.monotonic()))
                if then == "raise":
                    raise ZeroDivisionError from None
                if then == "pass":
                    raise
        return "done"

    async def scope(self, limits):
        if not limits:
            return await self.work()
        ended = None
        scope = cancel_after(limits[0])
        with scope:
            ended = await self.scope(limits[1:])
        self.seen.append((len(limits), scope.expired, ended))
        return ended

    async def timeout(self, limits):
        if not limits:
            return await self.work()
        ended = None
        timeout = asyncio.timeout(None if limits[0] == inf else limits[0])
        try:
            async with timeout:
                ended = await self.timeout(limits[1:])
        except TimeoutError:
            self.seen.append((len(limits), True, ended))
        else:
            self.seen.append((len(limits), timeout.expired(), ended))
        return ended

    def run(self, under):
        async def main():
            task = asyncio.ensure_future(under(self.limits))
            if self.cancelled_after is not None:
                asyncio.get_running_loop().call_later(self.cancelled_after, task.cancel)
            await asyncio.wait([task])
            self.seen.append(task.cancelling())
            if task.cancelled():
                return "cancelled"
            return repr(task.exception() or task.result())

        ended = run(main(), clock=self.clock)
        return ended, self.clock.monotonic(), self.seen


@given(
    limits=st.lists(moments, min_size=1, max_size=3),
    body=st.lists(waits, min_size=1, max_size=3),
    cancelled_after=st.one_of(st.none(), st.sampled_from([0.0, 1.0, 2.0, 3.5])),
)
def test_cancel_after_behaves_like_asyncio_timeout(limits, body, cancelled_after):
    mine, theirs = Task(limits, body, cancelled_after), Task(limits, body, cancelled_after)
    assert mine.run(mine.scope) == theirs.run(theirs.timeout)


@pytest.mark.parametrize("runs", [run_trio, lambda main, clock: run(main(), clock=clock)])
def test_cancel_after_cancels_at_its_time_in_asyncio_and_trio(runs):
    clock = VirtualClock()

    async def main():
        scope = cancel_after(2.0)
        with scope:
            assert scope.is_current_task()
            await clock.sleep_async(60)
        return scope.expired, clock.monotonic()

    assert runs(main, clock=clock) == (True, 2.0)


def test_task_distinguishes_its_own_cancellation_from_another():
    async def main():
        scope = cancel_after(60.0)

        async def here():
            return scope.is_current_task()

        with scope:
            return scope.is_current_task(), await asyncio.ensure_future(here())

    assert run(main(), clock=VirtualClock()) == (True, False)


def test_cancel_after_outside_of_a_task_raises():
    async def main():
        rejected = asyncio.get_running_loop().create_future()

        def called_back():
            try:
                cancel_after(1.0).__enter__()
            except RuntimeError as error:
                rejected.set_result(str(error))

        asyncio.get_running_loop().call_soon(called_back)
        return await rejected

    assert "needs a running asyncio task" in run(main(), clock=VirtualClock())


@pytest.mark.parametrize("seconds", [0.001, 60.0])
def test_cancel_after_leaves_no_garbage(seconds):
    async def main():
        with cancel_after(seconds):
            await asyncio.sleep(0.002)  # beyond the first limit, so that it cancels

    with asyncio.Runner() as runner:
        assert left_by(lambda: runner.run(main()), times=5, looks=2) == 0
