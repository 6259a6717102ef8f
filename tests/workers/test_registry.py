"""The registry of runtimes in a real database, and in Valkey."""

import asyncio
import logging
import sys

import pytest

from retrytemplate.backends.redis.inspection import RedisEntries
from retrytemplate.backends.sql.inspection import SQLEntries
from retrytemplate.caches.record import Record
from retrytemplate.control import ProcessGate
from retrytemplate.errors import CacheUnavailableError
from retrytemplate.testing import VirtualClock
from retrytemplate.workers import CrashLoopError, WorkerRuntime
from retrytemplate.workers.registry import EXPIRY, Registry, running_workers
from retrytemplate.workers.testing import MemorySource
from tests.support import forked_python
from tests.support.redis_caches import ValkeyStore
from tests.support.sql_caches import SQLStore

KEY = "@workers/billing"
PRINT_FINGERPRINT = """
from retrytemplate._storage.process_liveness import process_fingerprint
print(process_fingerprint())
"""


@pytest.fixture(scope="session")
def gone():
    """The fingerprint of a process that has ended."""
    return forked_python.run([sys.executable, "-c", PRINT_FINGERPRINT]).stdout.strip()


@pytest.fixture(params=["sqlite", "postgresql", "valkey"])
def store(request, tmp_path):
    """A store of each kind, without keys."""
    if request.param == "valkey":
        made = ValkeyStore(request.getfixturevalue("valkey_url"))
    elif request.param == "postgresql":
        made = SQLStore("postgresql", request.getfixturevalue("postgres_url"))
    else:
        made = SQLStore("sqlite", f"sqlite:///{tmp_path}/retry.db")
    yield made
    made.close()


@pytest.fixture
def cache(store):
    # As RedisStreamSource.default_cache() has it.
    return store.async_cache(**{"pipeline": True} if store.kind == "valkey" else {})


async def entries(cache):
    """The keys of the registry."""
    return [key for key in await cache.keys() if key.startswith(KEY)]


def runtime_on(cache, handle, *, messages=1, name="billing"):
    source = MemorySource()
    for _ in range(messages):
        source.queue.put(b"")
    return WorkerRuntime(
        source, handle, name=name, cache=cache, gate=ProcessGate(), receive_wait=0.01
    )


async def put(cache, **state):
    """Write the record of the name."""
    assert await cache.swap(KEY, Record(attributes={"idle": {}, "crashes": []} | state), 0)


def test_running_runtime_has_its_snapshot_in_the_registry(cache):
    seen = []

    async def handle(message, context):
        [key] = [key for key in await entries(cache) if key != KEY]
        seen.append((await cache.peek(key)).attributes)
        seen.append((await cache.peek(KEY)).attributes)
        runtime.stop()

    async def main():
        assert (await runtime.run()).clean
        left = await entries(cache)
        await cache.close()
        return left

    runtime = runtime_on(cache, handle)
    assert asyncio.run(main()) == [KEY]
    assert seen[0]["snapshot"]["name"] == "billing"
    assert seen[0]["worker"].count(":") == 2
    # Messages were received: a later crash does not count.
    assert seen[1] == {"idle": {}, "crashes": []}


def test_snapshot_expires_fifteen_seconds_after_a_write(cache, store):
    async def main():
        registry = Registry(cache, "billing", runtime_on(cache, print).snapshot, VirtualClock())
        before = store.now()
        await registry.enter()
        after = store.now()
        expires = store.row(f"{KEY}/{registry.worker}")["expires"]
        await registry.leave()
        await cache.close()
        return before, expires, after

    before, expires, after = asyncio.run(main())
    assert before + 14.99 <= expires <= after + 15.01


def listed(store, name=None):
    """The runtimes in the registry of a store."""
    kind = RedisEntries if store.kind == "valkey" else SQLEntries
    entries = kind(store.url, store.prefix)
    try:
        return list(running_workers(entries, name))
    finally:
        entries.close()


def test_running_runtimes_are_listed_until_they_leave(cache, store):
    async def main():
        clock = VirtualClock(epoch=100.0)
        registries = []
        for name in ("billing", "mails"):
            runtime = runtime_on(cache, print, name=name)
            registries.append(Registry(cache, name, runtime.snapshot, clock))
            await registries[-1].enter()
        found = listed(store), listed(store, "billing"), listed(store, "bill")
        for registry in registries:
            await registry.leave()
        await cache.close()
        return [each.worker for each in registries], found

    workers, (both, [billing], none) = asyncio.run(main())
    assert ([each.worker for each in both], none) == (workers, [])
    assert (billing.worker, billing.started) == (workers[0], 100.0)
    assert (billing.snapshot["name"], billing.snapshot["state"]) == ("billing", "starting")
    assert 0.0 <= billing.age <= EXPIRY
    assert listed(store) == []


async def start(cache, clock=None):
    """Enter and leave the registry; the record of the name in between."""
    runtime = runtime_on(cache, print)
    registry = Registry(cache, "billing", runtime.snapshot, clock or VirtualClock())
    try:
        await registry.enter()
        record = await cache.peek(KEY)
        await registry.leave()
    finally:
        await cache.close()
    return registry.worker, record.attributes


def test_crash_before_the_first_message_is_counted_at_the_next_start(cache, gone):
    async def main():
        await put(cache, idle={"host:1:a-1": [gone, 100.0]}, crashes=[50.0])
        return await start(cache, VirtualClock(epoch=200.0))

    worker, state = asyncio.run(main())
    assert state["crashes"] == [50.0, 100.0]
    assert list(state["idle"]) == [worker]


def test_runtime_of_another_machine_without_snapshot_has_crashed(cache):
    async def main():
        await put(cache, idle={"elsewhere:1:a-1": ["another machine 1 2", 100.0]})
        return await start(cache, VirtualClock(epoch=200.0))

    assert asyncio.run(main())[1]["crashes"] == [100.0]


def test_crashes_of_earlier_starts_are_dropped(cache, gone):
    async def main():
        old = {f"host:1:a-{number}": [gone, 100.0] for number in range(5)}
        await put(cache, idle=old, crashes=[90.0] * 5)
        return await start(cache, VirtualClock(epoch=701.0))

    assert asyncio.run(main())[1]["crashes"] == []


def test_fifth_crash_before_the_first_message_raises_at_start(cache, gone):
    async def main():
        runtime = runtime_on(cache, print, messages=0)
        now = runtime.clock.time()
        crashed = {f"host:1:a-{number}": [gone, now - number] for number in range(5)}
        await put(cache, idle=crashed)
        with pytest.raises(CrashLoopError, match="5 processes of the worker 'billing' crashed"):
            await runtime.run()
        left = await cache.peek(KEY)
        await cache.forget(KEY)
        task = asyncio.create_task(runtime.run())
        while runtime.snapshot().state != "running":
            await asyncio.sleep(0.001)
        runtime.stop()
        assert (await task).clean
        await cache.close()
        return left.attributes

    assert len(asyncio.run(main())["crashes"]) == 5


class Unavailable:
    """A cache whose server does not answer."""

    def __getattr__(self, name):
        async def fail(*args, **options):
            raise CacheUnavailableError("no answer")

        return fail


def test_unavailable_store_is_logged_once_and_delays_nothing(caplog):
    async def main():
        runtime = runtime_on(None, print)
        registry = Registry(Unavailable(), "billing", runtime.snapshot, VirtualClock())
        await registry.enter()
        await registry.received()
        await registry.leave()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "billing: the registry is not written: CacheUnavailableError: no answer"
    ]


def test_runtime_that_is_stopped_while_it_enters_does_not_count_as_crashed(cache):
    swap = cache.swap
    is_written = asyncio.Event()

    async def write(*args):
        done = await swap(*args)
        cache.swap = swap
        is_written.set()
        await asyncio.Event().wait()  # its answer never comes
        return done

    async def main():
        runtime = runtime_on(cache, print)
        cache.swap = write
        running = asyncio.create_task(runtime.run())
        await is_written.wait()
        runtime.stop()
        runtime.stop()
        report = await running
        idle = (await cache.peek(KEY)).attributes["idle"]
        await cache.close()
        return report.cleanups_failed, idle

    assert asyncio.run(main()) == ((), {})
