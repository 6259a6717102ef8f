"""A shared circuit in asyncio and trio: asked in threads; no permit is lost to a cancellation."""

import asyncio
import os
import signal
import types
from random import Random

import pytest

from retrytemplate import CircuitOpenError
from retrytemplate.control import Consecutive, RedisCircuitStore
from tests.control.circuits.shared import Down, failing, fine
from tests.control.loops import LOOPS
from tests.stores import valkey

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
@pytest.mark.parametrize("way", ["call", "wrap", "permit", "outcome"])
def test_each_way_in_asks_and_reports(sharing, half_open, loop, mode, way):
    breaker = half_open(mode, required_successes=2)

    async def fine():
        await loop.checkpoint()
        return "fine"

    async def once():
        if way == "call":
            return await breaker.call_async(fine)
        if way == "wrap":
            return await breaker.wrap(fine)()
        if way == "outcome":
            return (await breaker.outcome_async(fine)).value
        async with breaker.permit():
            return await fine()

    async def main():
        return [await once(), await once(), await once()]

    assert loop.run(main) == ["fine"] * 3
    assert breaker.state == "closed"


@loops
@modes
def test_half_open_lets_three_of_sixty_tasks_in(half_open, loop, mode):
    """Pain 21: half-open lets everybody in."""
    breaker = half_open(mode, required_successes=100)
    inside, refused = [], []

    async def enter():
        inside.append(1)
        while len(refused) < 57:
            await loop.checkpoint()

    async def work():
        try:
            await breaker.call_async(enter)
        except CircuitOpenError as error:
            refused.append(error)

    loop.run(lambda: loop.together(*[work] * 60))
    assert (len(inside), len(refused), breaker.snapshot().successes) == (3, 57, 3)


@loops
@modes
@pytest.mark.parametrize("seed", range(3))
def test_tasks_cancelled_anywhere_leave_no_permit_taken(sharing, half_open, loop, mode, seed):
    breaker = half_open(mode, required_successes=10**6)
    random = Random(seed)

    async def enter():
        for _ in range(random.randrange(4)):
            await loop.checkpoint()

    async def work():
        while True:
            try:
                await (breaker.call_async(enter) if random.random() < 0.5 else permit())
            except CircuitOpenError:
                await loop.checkpoint()

    async def permit():
        async with breaker.permit():
            await enter()

    async def stop():
        for _ in range(random.randrange(30, 200)):
            await loop.checkpoint()
        raise Down

    with pytest.raises(ExceptionGroup):
        loop.run(lambda: loop.together(*[work] * 10, stop))
    assert sharing.permits() == 0
    assert breaker.state == "half-open"


@loops
def test_a_cancellation_during_the_question_gives_the_permit_back(half_open, sharing, loop):
    breaker = half_open()
    called = []

    async def work():
        await breaker.call_async(called.append, 1)

    loop.run(lambda: loop.cancelled(work, lambda: sharing.permits() == 1))
    assert sharing.permits() == 0
    assert not called


@loops
def test_a_cancellation_during_the_call_gives_the_permit_back(half_open, sharing, loop):
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


@pytest.mark.parametrize("way", ["call", "wrap", "permit"])
def test_a_coroutine_that_is_closed_gives_the_permit_back(half_open, sharing, way):
    breaker = half_open()

    @types.coroutine
    def forever():
        yield "inside"

    async def work():
        if way == "permit":
            async with breaker.permit():
                await forever()
        await (breaker.call_async(forever) if way == "call" else breaker.wrap(forever_async)())

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


@loops
def test_the_loop_goes_on_while_the_store_hangs(valkey_binary, tmp_path, sharing, loop):
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        store = RedisCircuitStore(server.url, timeout=0.2, stale_after=3600)
        breaker = sharing.breaker(store=store)
        assert breaker.outcome(fine).exception is None
        steps, over = [], []

        async def call():
            assert await breaker.call_async(fine) == "fine"
            over.append(1)

        async def others():
            while not over:
                steps.append(1)
                await loop.checkpoint()

        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            loop.run(lambda: loop.together(call, others))
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        assert len(steps) > 100
        store.close()
