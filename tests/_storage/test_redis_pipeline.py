"""Commands of one turn of the event loop share a pipeline."""

import asyncio
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from redis.asyncio.connection import AbstractConnection

from retrytemplate import AttemptInProgressError, CacheUnavailableError, LeaseLostError
from tests.support.cache_kinds import awaited
from tests.support.proxy import Proxy
from tests.support.redis_caches import ValkeyStore


@pytest.fixture
def store(valkey_url):
    made = ValkeyStore(valkey_url)
    yield made
    made.close()


@pytest.fixture
def writes(monkeypatch):
    """The number of commands in each write to the server, but for those of a new connection."""
    seen, send, pack = [], AbstractConnection.send_packed_command, AbstractConnection.pack_commands

    def packed(self, commands):
        seen.append(len(list(commands)))
        return pack(self, commands)

    monkeypatch.setattr(AbstractConnection, "pack_commands", packed)
    monkeypatch.setattr(AbstractConnection, "send_packed_command", send)
    return seen


@asynccontextmanager
async def opened(store, **settings):
    async with store.async_cache(pipeline=True, **settings) as cache:
        claim = await cache.begin("load the scripts", worker="one")
        await cache.release(claim)
        await cache.forget("load the scripts")
        yield cache


def begin_all(cache, number, worker="one"):
    return asyncio.gather(*(cache.begin(f"key {each}", worker=worker) for each in range(number)))


async def test_commands_of_one_turn_are_one_write(store, writes):
    async with opened(store) as cache:
        writes.clear()
        claims = await begin_all(cache, 10)
        assert [claim.key for claim in claims] == [f"key {each}" for each in range(10)]
        assert writes == [10]
        await cache.release(claims[0])
        assert writes == [10]  # a single command is sent as without a pipeline


async def test_commands_about_a_key_keep_their_order(store):
    """Also in later turns, and while the connection of an earlier pipeline is slow."""
    async with opened(store) as cache:
        take, order = cache._store._take, []

        async def slow(again):
            if not order:
                order.append("slow")
                await asyncio.sleep(0.05)  # a pipeline that overtakes it has this time
            return await take(again)

        cache._store._take = slow
        first = asyncio.create_task(cache.begin("a", worker="one"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = [
            asyncio.create_task(cache.begin("a", worker="two")),
            asyncio.create_task(cache.forget("a")),
            asyncio.create_task(cache.begin("a", worker="three")),
        ]
        assert (await cache.begin("b", worker="one")).worker == "one"
        assert not first.done()  # another key does not wait
        results = await asyncio.gather(first, *others, return_exceptions=True)
        assert [type(each).__name__ for each in results] == [
            *("LeasedClaim", "AttemptInProgressError", "NoneType", "LeasedClaim")
        ]
        assert results[1].worker == "one"
        with pytest.raises(LeaseLostError):
            await cache.succeed(results[0])


async def test_error_of_one_command_is_not_one_of_the_others(store):
    async with opened(store) as cache:
        store.client.set(store.name("key 1"), "no context", ex=60)
        held = await cache.begin("key 2", worker="other")
        results = await asyncio.gather(
            *(cache.begin(f"key {each}", worker="one") for each in range(4)),
            return_exceptions=True,
        )
        assert [type(each) for each in results[1:3]] == [
            CacheUnavailableError,
            AttemptInProgressError,
        ]
        assert "begin of 'key 1' failed in the store" in str(results[1])
        assert (results[0].key, results[3].key) == ("key 0", "key 3")
        assert await cache.holds(held)


async def test_cancelled_command_leaves_the_others_alone(store):
    async with opened(store) as cache:
        tasks = [asyncio.create_task(cache.begin(f"key {each}", worker="one")) for each in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        assert await cache.holds(results[0])
        assert await cache.holds(results[2])
        assert store.row("key 1") is None  # it was not sent


async def test_command_cancelled_before_it_is_sent_leaves_the_others_alone(store):
    """The first command of a turn waits for the others of that turn."""
    async with opened(store) as cache:
        tasks = [asyncio.create_task(cache.peek(f"key {each}")) for each in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [None, None]
        assert not cache._store._keys_in_flight


@pytest.mark.parametrize("when", ["before", "after"])
async def test_commands_on_a_lost_connection_are_repeated(store, when):
    """Also those of which the server has answered the first time."""
    with Proxy(urlsplit(store.url).port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}"
        async with awaited(url, prefix=store.prefix, pipeline=True) as cache:
            claims = await begin_all(cache, 4)
            await cache.succeed(await cache.begin("load the script", worker="one"))
            proxy.cut(when, b"key 0", b"key 3")
            await asyncio.gather(*map(cache.succeed, claims))
        assert (proxy.cuts, store.keys()) == (1, [])


async def test_commands_that_are_not_answered_in_time_fail_each_by_its_name(store):
    async with opened(store, timeout=0.05) as cache:
        permits, cache._store._permits = cache._store._permits, asyncio.Semaphore(0)
        results = await asyncio.gather(
            *(cache.peek(f"key {each}") for each in range(3)), return_exceptions=True
        )
        assert [str(each) for each in results] == [
            f"peek of 'key {each}' failed in the store of the context cache: no answer in time"
            for each in range(3)
        ]
        cache._store._permits, cache._store._timeout = permits, 20.0
        assert await cache.peek("key 0") is None


def test_pipeline_of_another_type_than_bool_is_rejected(store):
    with pytest.raises(TypeError, match="pipeline must be True or False, got 16"):
        store.async_cache(pipeline=16)


async def test_close_waits_for_commands_that_are_not_answered(store):
    cache = store.async_cache(pipeline=True)
    begun = asyncio.gather(*(cache.begin("a", worker="one") for _ in range(3)))
    await asyncio.sleep(0)
    await cache.close()
    assert len({claim.fence for claim in await begun}) == 3
    assert not cache._store._pipelines


def test_closed_cache_with_a_pipeline_serves_a_second_event_loop(store):
    cache = store.async_cache(pipeline=True)

    async def use():
        async with cache:
            claims = await begin_all(cache, 3)
            await asyncio.gather(*map(cache.succeed, claims))

    asyncio.run(use())
    asyncio.run(use())
