"""Rate limiters that share a limit on a server."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from retrytemplate import InconsistentKeyError, RateLimitedError, RateLimitStoreError
from retrytemplate.control import (
    CallDelayed,
    ControlListener,
    RateLimiter,
    RateLimitStoreLost,
    RateLimitStoreRecovered,
    RedisRateLimitStore,
)
from tests.support import valkey
from tests.support.event_loops import LOOPS
from tests.support.polling import wait_until
from tests.support.postgres import free_port
from tests.support.proxy import Proxy

HOUR = 3600.0
loops = pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])


class Recording(ControlListener):
    """Collects the events."""

    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)


def retry_after(limiter, *args, **settings):
    with pytest.raises(RateLimitedError) as raised:
        limiter.acquire(*args, **settings)
    return raised.value.retry_after


def test_limiters_of_one_name_share_one_limit(sharing):
    first, second = (sharing.limiter(permits=3) for _ in range(2))
    assert [first.try_acquire(), second.try_acquire(), first.try_acquire()] == [True] * 3
    assert second.try_acquire() is False
    assert retry_after(second) == pytest.approx(1200, abs=30)
    assert (first.snapshot().available, first.snapshot().admitted) == (0, 2)
    other = RateLimiter("search", permits=3, per=HOUR, store=first.store)
    assert other.snapshot().available == 3


@pytest.mark.parametrize("permits", [3, 7, 50, 1000])
def test_whole_burst_is_granted_at_once(sharing, permits):
    limiter = sharing.limiter(permits=permits)
    limiter.acquire(permits - 2)
    assert [limiter.try_acquire() for _ in range(3)] == [True, True, False]


def test_limit_is_one_key_that_expires_when_all_permits_are_free(sharing):
    limiter = sharing.limiter(permits=10, per=100.0)
    limiter.acquire(4)
    tat, interval, burst = sharing.client.get(sharing.key()).split()
    seconds, microseconds = sharing.client.time()
    now = seconds * 1_000_000 + microseconds
    assert int(tat) - now == pytest.approx(40_000_000, abs=5_000_000)
    assert (float(interval), int(burst)) == (10_000_000, 10)
    assert sharing.client.pttl(sharing.key()) == pytest.approx(40_000, abs=5000)


@loops
def test_task_waits_for_its_permit(sharing, loop):
    listener = Recording()
    limiter = sharing.limiter(per=0.05, max_wait=60.0, listeners=[listener])

    async def main():
        for _ in range(3):
            await limiter.acquire_async()
        await limiter.store.close_async()

    loop.run(main)
    shown = limiter.snapshot()
    assert (shown.admitted, shown.waiting) == (3, 0)
    assert shown.delayed == len(listener.events) >= 1
    assert {type(each) for each in listener.events} == {CallDelayed}


def test_thread_waits_for_its_permit(sharing):
    limiter = sharing.limiter(per=0.05, max_wait=60.0)
    wrapped = limiter.wrap(lambda: 17)
    assert [wrapped() for _ in range(3)] == [17] * 3
    assert limiter.snapshot().delayed >= 1


def test_task_of_a_store_with_a_client_waits_in_a_thread(sharing):
    import redis

    with redis.Redis.from_url(sharing.url) as client:
        limiter = sharing.limiter(sharing.store(client))

        async def main():
            await limiter.acquire_async()
            with pytest.raises(RateLimitedError):
                await limiter.acquire_async()

        asyncio.run(main())


def waiting(limiter):
    return limiter.snapshot().waiting


@loops
def test_cancelled_task_returns_the_latest_reservation(sharing, loop):
    limiter = sharing.limiter(max_wait=9 * HOUR)
    limiter.acquire()

    async def main():
        await loop.cancelled(limiter.acquire_async, lambda: waiting(limiter) == 1)
        await limiter.store.close_async()

    loop.run(main)
    assert waiting(limiter) == 0
    short = sharing.limiter(limiter.store)
    assert retry_after(short) == pytest.approx(HOUR, abs=60)


@loops
def test_cancelled_task_forfeits_a_permit_that_others_wait_behind(sharing, loop):
    limiter = sharing.limiter(max_wait=9 * HOUR)
    other = sharing.limiter(limiter.store, max_wait=9 * HOUR)
    limiter.acquire()

    async def behind():
        await loop.cancelled(other.acquire_async, lambda: False)

    async def main():
        import trio

        first = loop.cancelled(limiter.acquire_async, lambda: waiting(other) == 1)
        if loop is LOOPS[0]:
            task = asyncio.ensure_future(first)
            wait = asyncio.ensure_future(after_first())
            await task
            wait.cancel()
            await asyncio.wait([wait])
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(after_first)
                await first
                await trio.to_thread.run_sync(lambda: seen.append(retry_after(short)))
                nursery.cancel_scope.cancel()
        await limiter.store.close_async()

    async def after_first():
        while waiting(limiter) == 0:
            await loop.checkpoint()
        await other.acquire_async()

    short, seen = sharing.limiter(limiter.store), []
    loop.run(main)
    if seen:
        assert seen[0] == pytest.approx(3 * HOUR, abs=60)
    # The latest one was returned, that of the first one was not.
    assert retry_after(short) == pytest.approx(2 * HOUR, abs=60)


def test_closed_coroutine_leaves_no_waiting_call(sharing):
    limiter = sharing.limiter(max_wait=9 * HOUR)
    limiter.acquire()

    async def main():
        coroutine = limiter.acquire_async()
        task = asyncio.ensure_future(coroutine)
        while waiting(limiter) == 0:
            await asyncio.sleep(0)
        task._log_destroy_pending = False
        coroutine.close()
        assert waiting(limiter) == 0
        task.cancel()
        await asyncio.wait([task])
        await limiter.store.close_async()

    asyncio.run(main())


def test_each_key_has_a_limit_in_all_processes(sharing):
    first, second = (sharing.limiter(per_key=True) for _ in range(2))
    for key in ("kim", ("eu", 7), None):
        first.acquire(key=key)
        assert not second.try_acquire(key=key)
    assert second.try_acquire(key="lee")
    with pytest.raises(InconsistentKeyError):
        first.acquire(key=1.5)


def test_pause_holds_back_all_keys_of_all_processes(sharing):
    first, second = (sharing.limiter(per_key=True, permits=60) for _ in range(2))
    second.acquire(key="kim")
    first.pause(600.0)
    first.pause(6.0)
    for key in ("kim", "lee", None):
        assert retry_after(second, key=key) == pytest.approx(660, abs=30)
    assert second.snapshot().available == 0


def test_pause_ends_without_a_burst(sharing):
    limiter = sharing.limiter(permits=60)
    limiter.pause(0.001)
    wait_until(lambda: limiter.store.fetch("billing").paused == 0.0)
    assert retry_after(limiter) == pytest.approx(60, abs=30)


def test_another_rate_keeps_the_free_permits(sharing):
    limiter = sharing.limiter(permits=10)
    limiter.acquire(6)
    limiter.resize(permits=20)
    assert limiter.snapshot().available == 4
    limiter.acquire(4)
    assert retry_after(limiter) == pytest.approx(180, abs=30)
    limiter.resize(permits=5)
    assert retry_after(limiter) == pytest.approx(720, abs=60)


def test_threads_take_exactly_the_permits_of_the_burst(sharing):
    limiter = sharing.limiter(permits=100)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: limiter.try_acquire(), range(150)))
    assert (sum(taken), limiter.snapshot().admitted) == (100, 100)


def test_tasks_of_two_loops_use_connections_of_their_own(sharing):
    limiter = sharing.limiter(permits=100)

    async def main():
        await asyncio.gather(*(limiter.acquire_async() for _ in range(20)))
        await limiter.store.close_async()

    for _ in range(2):
        asyncio.run(main())
    assert limiter.snapshot().available == 60


def test_names_are_those_of_limits_in_use(sharing):
    store = sharing.store()
    assert store.names() == []
    for name in ("a}:b", "search"):
        RateLimiter(name, permits=1, per=HOUR, per_key=True, store=store).acquire(key="kim")
    sharing.limiter(store).pause(60.0)
    assert store.names() == ["a}:b", "billing", "search"]
    record = store.fetch("search", "kim")
    assert (record.interval, record.burst, record.paused) == (HOUR, 1, 0.0)
    assert record.debt == pytest.approx(HOUR, abs=60)
    assert store.fetch("nothing").available(1.0, 5) == 5


# -- trouble ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["", "17", "x y z", "9" * 30 + " 1.0 1", "1 0 1", "1 1.1.1 1", "-5 1.0 1", ["a"]]
)
def test_hostile_value_in_the_store_is_a_typed_error(sharing, value):
    limiter = sharing.limiter()
    if isinstance(value, list):
        sharing.client.rpush(sharing.key(), *value)
    else:
        sharing.client.set(sharing.key(), value)
    for call in (limiter.acquire, limiter.try_acquire):
        with pytest.raises(RateLimitStoreError):
            call()


def test_hostile_pause_in_the_store_is_a_typed_error(sharing):
    limiter = sharing.limiter()
    sharing.client.set(sharing.key("pause"), "x")
    for call in (limiter.acquire, limiter.snapshot, lambda: limiter.pause(1.0)):
        with pytest.raises(RateLimitStoreError, match="is not a rate limit"):
            call()


def away(sharing, **settings):
    store = sharing.store(f"redis://127.0.0.1:{free_port()}", timeout=0.5)
    return sharing.limiter(store, **settings)


def test_unavailable_store_rejects_calls_with_raise(sharing):
    limiter = away(sharing)
    for call in (limiter.acquire, limiter.try_acquire, limiter.snapshot, lambda: limiter.pause(1)):
        with pytest.raises(RateLimitStoreError, match=r"^call of .* failed in the store"):
            call()
    with pytest.raises(RateLimitStoreError):
        asyncio.run(limiter.acquire_async())


@loops
def test_each_process_applies_the_limit_alone_without_the_store(sharing, loop):
    listener = Recording()
    limiter = away(sharing, on_store_error="local", permits=2, listeners=[listener])
    limiter.acquire()
    loop.run(limiter.acquire_async)
    with pytest.raises(RateLimitedError):
        limiter.acquire()
    assert limiter.snapshot().available == 0
    lost = listener.events[0]
    assert (type(lost), type(lost.error)) == (RateLimitStoreLost, RateLimitStoreError)


def test_pause_holds_without_the_store(sharing):
    limiter = away(sharing, on_store_error="local")
    limiter.pause(60.0)
    assert retry_after(limiter) == pytest.approx(60 + HOUR, abs=30)


def test_store_that_answers_again_is_used_again(sharing):
    listener = Recording()
    with Proxy(free_port()) as proxy:
        store = sharing.store(f"redis://127.0.0.1:{proxy.port}", timeout=0.5)
        limiter = sharing.limiter(store, on_store_error="local", listeners=[listener])
        limiter.acquire()
        proxy.redirect(sharing.port)
        wait_until(lambda: len(listener.events) == 2)
        assert type(listener.events[1]) is RateLimitStoreRecovered
        assert not sharing.client.exists(sharing.key())
        limiter.acquire()  # of the shared limit
        assert sharing.client.exists(sharing.key())
        limiter.close()
        store.close()


def test_lost_reply_takes_a_permit_more_at_most(sharing):
    with Proxy(sharing.port) as proxy:
        store = sharing.store(f"redis://127.0.0.1:{proxy.port}")
        limiter = sharing.limiter(store, permits=10)
        limiter.acquire()
        proxy.cut("after", b"EVALSHA")
        limiter.acquire()
        assert 7 <= limiter.snapshot().available <= 8
        store.close()


@pytest.mark.stress
@pytest.mark.parametrize("on_store_error", ["local", "raise"])
def test_killed_and_restarted_server_is_used_again(
    sharing, valkey_binary, tmp_path, on_store_error
):
    with valkey.started(valkey_binary, tmp_path / "valkey") as server:
        limiter = sharing.limiter(
            sharing.store(server.url, timeout=0.5), on_store_error=on_store_error, permits=10
        )
        limiter.acquire(4)
        server.kill()
        if on_store_error == "raise":
            with pytest.raises(RateLimitStoreError):
                limiter.acquire()
        else:
            limiter.acquire(10)
        server.start()
        wait_until(lambda: usable(limiter))
        assert limiter.snapshot().available == 6
        limiter.close()
        limiter.store.close()


def usable(limiter):
    try:
        limiter.store.fetch("billing")
        return limiter.snapshot().available == 6
    except RateLimitStoreError:
        return False


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"store": "redis://localhost"}, "store must be a RedisRateLimitStore or None"),
        ({"on_store_error": "ignore"}, "on_store_error must be 'local' or 'raise'"),
    ],
)
def test_wrong_store_settings_are_rejected(given, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        RateLimiter("billing", **given)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"url": "http://localhost"}, "url must be redis://"),
        ({"url": 17}, "url must be a Redis URL"),
        ({"prefix": "{"}, "prefix must be"),
        ({"timeout": 0}, "timeout must be"),
    ],
)
def test_store_with_wrong_settings_is_rejected(given, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        RedisRateLimitStore(**{"url": "redis://localhost"} | given)


def test_forked_child_uses_connections_of_its_own(sharing):
    from tests.control.rate_limiter.redis.hammering import in_child

    limiter = sharing.limiter(permits=10)
    limiter.acquire()
    assert in_child(limiter.acquire) == 0
    limiter.acquire()
    assert limiter.snapshot().available == 7
