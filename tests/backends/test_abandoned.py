"""Executions that the garbage collector closes: no call of the store there, no key stays held."""

import gc
import types

import pytest

from retrytemplate import CacheUnavailableError, RetryState, RetryTemplate, SimpleRetryPolicy
from retrytemplate.testing import VirtualClock
from tests.backends.test_renewal import pass_time, until

STATE = RetryState("m1", rollback_for=())
KEY = "work/s:m1"


def made(cache):
    return RetryTemplate(SimpleRetryPolicy(3), cache=cache, name="work")


def first_turn(template):
    """A loop that is suspended before its second attempt."""
    attempts = template.attempts(state=STATE)
    for attempt in attempts:
        if attempt.attempt == 2:
            return attempts
        with attempt:
            raise ValueError
    return None


def untaken(template):
    """A loop whose first attempt has not started."""
    attempts = template.attempts(state=STATE)
    next(attempts)
    return attempts


def in_generator(template):
    """A generator that is suspended in a block."""

    def items():
        for attempt in template.attempts(state=STATE):
            with attempt:
                yield 1

    suspended = items()
    next(suspended)
    return suspended


@pytest.mark.parametrize("abandon", [first_turn, untaken, in_generator])
def test_collector_calls_no_store_and_next_use_frees_the_key(cache, abandon, monkeypatch):
    template, calls = made(cache), []
    left = abandon(template)
    with monkeypatch.context() as patched:
        patched.setattr(cache, "_perform", lambda *step: calls.append(step))
        del left
        gc.collect()
    assert calls == []
    claim = cache.begin(KEY, worker="next")
    assert claim.lost is None
    assert (claim.record is not None) == (abandon is first_turn)


def test_renewing_thread_frees_the_key_of_an_abandoned_loop(store):
    clock = VirtualClock()
    cache = store.cache(clock=clock)
    left = untaken(made(cache))
    del left
    gc.collect()
    assert store.row(KEY)["worker"] is not None
    pass_time(cache._renewer, clock, 10)
    until(lambda: store.row(KEY) is None)


def test_closing_the_cache_frees_the_key_of_an_abandoned_loop(store):
    cache = store.cache()
    left = first_turn(made(cache))
    del left
    gc.collect()
    cache.close()
    assert store.row(KEY)["worker"] is None


def test_key_of_abandoned_loop_is_freed_when_the_store_is_back(cache, monkeypatch):
    left = untaken(made(cache))
    del left
    gc.collect()

    def away(*_):
        raise CacheUnavailableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(cache, "_perform", away)
        with pytest.raises(CacheUnavailableError):
            cache.begin("other", worker="one")
    cache.begin("other", worker="one")
    assert cache.begin(KEY, worker="next").lost is None


class Forever:
    """Waits until its coroutine is closed."""

    def __await__(self):
        yield self


@types.coroutine
def until_it_waits(coroutine):
    while not isinstance(waits := coroutine.send(None), Forever):
        yield waits


async def in_callback(template):
    async def wait(context):
        await Forever()

    await template.execute_async(wait, state=STATE)


async def in_block(template):
    async for attempt in template.attempts(state=STATE):
        async with attempt:
            await Forever()


@pytest.mark.parametrize("execution", [in_callback, in_block])
async def test_closed_coroutine_leaves_its_key_to_the_next_use(store, execution):
    async with store.async_cache() as cache:
        coroutine = execution(made(cache))
        await until_it_waits(coroutine)
        coroutine.close()
        assert store.row(KEY)["worker"] is not None
        assert (await cache.begin(KEY, worker="next")).lost is None


async def test_abandoned_async_loop_leaves_its_key_to_the_next_use(store):
    async with store.async_cache() as cache:
        attempts = made(cache).attempts(state=STATE)
        await anext(aiter(attempts))
        del attempts
        gc.collect()
        assert store.row(KEY)["worker"] is not None
        assert (await cache.begin(KEY, worker="next")).lost is None


async def test_renewing_task_frees_the_key_of_a_closed_coroutine(store):
    clock = VirtualClock()
    async with store.async_cache(clock=clock) as cache:
        coroutine = in_callback(made(cache))
        await until_it_waits(coroutine)
        coroutine.close()
        pass_time(cache._renewer, clock, 10)
        await cache.peek("any")
        while store.row(KEY) is not None:
            await cache.peek("any")
