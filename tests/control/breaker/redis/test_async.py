"""A shared circuit in asyncio and trio: queries run in threads, cancellations lose no permit."""

import asyncio
import os
import signal
import types
from contextlib import suppress
from random import Random

import pytest

from retrytemplate.control import Consecutive, ControlListener, RedisCircuitStore
from tests.control.breaker.redis.shared import Down, failing, fine
from tests.support import valkey
from tests.support.event_loops import LOOPS
from tests.support.thread_crowd import cancelled_anywhere, tasks_at_once

loops = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])
modes = pytest.mark.parametrize("mode", ["strict", "cached"])


@pytest.fixture
def half_open(sharing):
    def make(mode="strict", **settings):
        store = sharing.store(mode=mode, stale_after=3600)
        breaker = sharing.breaker(store=store, window=Consecutive(1), **settings)
        assert type(breaker.outcome(failing).exception) is Down
        while breaker.state != "open":  # the thread of the cached one reports it
            pass
        sharing.advance(30)
        return breaker

    return make


@loops
@modes
@pytest.mark.parametrize("driver", ["call", "wrap", "permit", "outcome"])
def test_entry_point_acquires_and_reports(sharing, half_open, loop, mode, driver):
    breaker = half_open(mode, required_successes=2)

    async def fine():
        await loop.checkpoint()
        return "fine"

    async def once():
        if driver == "call":
            return await breaker.call_async(fine)
        if driver == "wrap":
            return await breaker.wrap(fine)()
        if driver == "outcome":
            return (await breaker.outcome_async(fine)).value
        async with breaker.permit():
            return await fine()

    async def main():
        return [await once(), await once(), await once()]

    assert loop.run(main) == ["fine"] * 3
    assert breaker.state == "closed"


@loops
@modes
def test_half_open_admits_three_of_sixty_tasks(half_open, loop, mode):
    """Pain 21: a half-open circuit admits every call."""
    breaker = half_open(mode, required_successes=100)
    assert tasks_at_once(loop, breaker, 60, places=3) == (3, 57)
    assert breaker.snapshot().successes == 3


@loops
@modes
@pytest.mark.parametrize("seed", range(3))
def test_tasks_cancelled_anywhere_leave_no_permit_taken(sharing, half_open, loop, mode, seed):
    breaker, random = half_open(mode, required_successes=10**6), Random(seed)
    cancelled_anywhere(loop, breaker, random, 10, random.randrange(30, 200))
    assert sharing.permits() == 0
    assert breaker.state == "half_open"


@loops
def test_cancellation_during_acquire_releases_the_permit(half_open, sharing, loop):
    breaker = half_open()
    called = []

    async def work():
        await breaker.call_async(called.append, 1)

    loop.run(lambda: loop.cancelled(work, lambda: sharing.permits() == 1))
    assert sharing.permits() == 0
    assert not called


class Ends(ControlListener):
    """A listener that raises a base exception once it is enabled."""

    on = False

    def on_event(self, event):
        if self.on:
            self.on = False
            raise KeyboardInterrupt


@loops
@pytest.mark.parametrize("driver", ["call", "call_async", "permit"])
def test_base_exception_of_a_listener_releases_the_permit(half_open, sharing, loop, driver):
    ends = Ends()
    breaker = half_open(listeners=[ends])

    async def main():
        if driver == "call":
            breaker.call(fine)
        elif driver == "call_async":
            await breaker.call_async(fine)
        else:
            async with breaker.permit():
                fine()

    async def interrupted():
        ends.on = True
        with pytest.raises(KeyboardInterrupt):
            await main()

    loop.run(interrupted)
    assert (breaker.state, sharing.permits()) == ("half_open", 0)


@loops
def test_cancellation_during_the_call_releases_the_permit(half_open, sharing, loop):
    breaker = half_open()
    began = []

    async def call():
        began.append(1)
        await loop.forever()

    async def work():
        await breaker.call_async(call)

    loop.run(lambda: loop.cancelled(work, lambda: began))
    assert sharing.permits() == 0
    assert breaker.snapshot().successes == 0


@pytest.mark.parametrize("driver", ["call", "wrap", "permit"])
def test_closed_coroutine_releases_the_permit(half_open, sharing, driver):
    breaker = half_open()

    @types.coroutine
    def forever():
        yield "inside"

    async def work():
        if driver == "permit":
            async with breaker.permit():
                await forever()
        await (breaker.call_async(forever) if driver == "call" else breaker.wrap(forever_async)())

    async def forever_async():
        await forever()

    async def main():
        coroutine = work()
        step = coroutine.send(None)
        while step != "inside":
            await asyncio.wait([step])  # as a task would, which could not be closed
            step._asyncio_future_blocking = False
            step = coroutine.send(None)
        assert sharing.permits() == 1
        coroutine.close()

    asyncio.run(main())
    assert sharing.permits() == 0


@pytest.mark.parametrize("answered", [False, True])
def test_coroutine_closed_during_acquire_releases_the_permit(half_open, sharing, answered):
    breaker = half_open()
    if not answered:
        sharing.client.client_pause(60_000, all=False)

    async def main():
        coroutine = breaker.call_async(fine)
        step = coroutine.send(None)
        if answered:
            await asyncio.wait([step])
        coroutine.close()
        sharing.client.client_unpause()

    asyncio.run(main())  # its end waits for the threads
    assert breaker.state == "half_open"
    assert sharing.permits() == 0


@pytest.mark.parametrize("end", ["end", "error", "close"])
def test_verdict_inside_a_block_is_reported_at_its_end(half_open, end):
    breaker = half_open()

    @types.coroutine
    def inside():
        yield "inside"

    async def work():
        async with breaker.permit() as permit:
            permit.failure()
            permit.success()
            if end == "error":
                raise ValueError
            if end == "close":
                await inside()

    async def main():
        coroutine = work()
        with suppress(StopIteration, ValueError):
            step = coroutine.send(None)
            while step != "inside":
                await asyncio.wait([step])
                step._asyncio_future_blocking = False
                step = coroutine.send(None)
            coroutine.close()

    asyncio.run(main())
    assert breaker.state == "open"


@loops
@pytest.mark.parametrize("reported", ["at the end", "inside"])
def test_event_loop_runs_while_the_store_hangs(valkey_binary, tmp_path, sharing, loop, reported):
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        store = RedisCircuitStore(server.url, timeout=0.2, stale_after=3600)
        breaker = sharing.breaker(store=store)
        assert breaker.outcome(fine).exception is None
        steps, over = [], []

        async def call():
            if reported == "inside":
                async with breaker.permit() as permit:
                    os.kill(server.process.pid, signal.SIGSTOP)
                    steps.clear()
                    permit.failure()
            else:
                os.kill(server.process.pid, signal.SIGSTOP)
                assert await breaker.call_async(fine) == "fine"
            over.append(1)

        async def others():
            while not over:
                steps.append(1)
                await loop.checkpoint()

        try:
            loop.run(lambda: loop.together(call, others))
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        assert len(steps) > 100
        store.close()
