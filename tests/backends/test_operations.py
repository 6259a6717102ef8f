"""Operations in a store: processes with the same key, a crash, lost claims."""

import asyncio
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from retrytemplate import (
    AlreadyCompletedError,
    AttemptInProgressError,
    CacheUnavailableError,
    IdempotencyKeyReusedError,
    LeaseLostError,
    MisuseError,
)
from retrytemplate.caches import Record
from retrytemplate.caches.record import to_text
from retrytemplate.control import OperationResult, Operations
from tests.support import forked_python
from tests.support.cache_kinds import blocking

KEY = "order-17/charge"
LEASE = 30.0


class Lost(Exception):
    """The outcome of the request is unknown."""


@pytest.fixture
def operations(cache):
    return Operations(cache)


def child(store, what):
    """A process that starts the operation when it reads a line."""
    return forked_python.Popen(
        [sys.executable, "-m", __name__, what, store.url, store.prefix],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.statement("S4-26")
def test_one_of_two_processes_with_one_key_has_the_effect(sqlite):
    sqlite.cache().peek("any")  # the tables are there
    children = [child(sqlite, "effect") for _ in range(2)]
    for each in children:
        assert each.stdout.readline() == "ready\n"
    for each in children:
        each.stdin.write("go\n")
        each.stdin.flush()
    outputs = [each.communicate()[0].split() for each in children]
    assert [each.returncode for each in children] == [0, 0]
    assert sum(words.count("effect") for words in outputs) == 1
    assert {words[-1] for words in outputs} <= {"17", "AttemptInProgressError"}


@pytest.mark.statement("S4-26")
def test_one_of_many_threads_with_one_key_has_the_effect(store):
    barrier, made = threading.Barrier(6), []

    def deliver(cache):
        barrier.wait(60)
        with suppress(AttemptInProgressError):
            return Operations(cache).call(KEY, lambda: made.append(1) or len(made))

    caches = [store.cache(timeout=20.0) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(deliver, caches))
    assert made == [1]
    assert set(answers) - {None} == {1}


@pytest.mark.statement("S4-26")
@pytest.mark.statement("S1-83")
def test_crash_before_completion_is_reported_as_unknown_outcome(
    sqlite,
):
    """The effect was started and has no stored result: neither repeated silently nor lost."""
    died = child(sqlite, "crash")
    assert died.communicate("go\n")[0].split() == ["ready", "effect"]
    assert died.returncode == 9
    operations = Operations(sqlite.cache())
    with operations.start_once(KEY) as operation:
        assert (operation.attempt, operation.outcome_unknown) == (2, True)
        operation.complete("looked up")
    assert operations.call(KEY, int) == "looked up"


def test_each_crash_is_counted(store, cache, operations):
    for attempt in (1, 2, 3):
        operation = operations.start_once(KEY)
        assert (operation.attempt, operation.outcome_unknown) == (attempt, attempt > 1)
        cache._renewer.drop(operation._reservation._claim)  # as in a crashed process
        store.age(LEASE + 1)


def test_operation_begun_after_a_crash_is_found_lost_again(store, operations):
    operations.start_once(KEY)
    store.age(LEASE + 1)
    operations.start_once(KEY)
    with pytest.raises(AttemptInProgressError):
        operations.start_once(KEY)


@pytest.mark.statement("S4-25")
def test_result_is_remembered_by_the_clock_of_the_store(store, cache):
    made = []
    operations = Operations(cache)

    def effect():
        made.append(1)
        return len(made)

    assert operations.call(KEY, effect) == 1
    store.age(86_399)
    assert operations.call(KEY, effect) == 1
    store.age(2)
    assert operations.call(KEY, effect) == 2


def test_result_is_found_by_another_cache_on_the_store(store, operations):
    operations.call(KEY, lambda: {"receipt": "ä", "lines": [1, 2.5, None]})
    assert Operations(store.cache()).call(KEY, int) == {"receipt": "ä", "lines": [1, 2.5, None]}


def test_failure_is_found_by_another_process(store, operations):
    def fails():
        raise Lost

    with pytest.raises(Lost):
        operations.call(KEY, fails)
    other = Operations(store.cache(), lookup=lambda key: OperationResult(f"found {key}"))
    assert other.call(KEY, int) == "found order-17/charge"


@pytest.mark.statement("S1-81")
def test_late_holder_completes_nothing(store, operations):
    late = operations.start_once(KEY)
    store.age(LEASE + 1)
    assert Operations(store.cache()).call(KEY, lambda: "the other's") == "the other's"
    with pytest.raises(LeaseLostError):
        late.complete("the late one's")
    assert operations.call(KEY, int) == "the other's"


def test_reservation_uses_its_own_lease(store, cache):
    before = store.now()
    operation = Operations(cache, lease=700).start_once(KEY)
    assert store.row(operation._reservation.key)["lease_until"] >= before + 700


def test_fingerprint_is_kept_after_a_crash(store, operations):
    operations.start_once(KEY, fingerprint=[30, "kim"])
    store.age(LEASE + 1)
    with pytest.raises(IdempotencyKeyReusedError):
        operations.start_once(KEY, fingerprint=[31, "kim"])
    operation = operations.start_once(KEY, fingerprint=[30, "kim"])
    assert (operation.attempt, operation.outcome_unknown) == (2, True)


def test_result_beyond_the_limit_is_rejected(store):
    operations = Operations(store.cache(record_limit=8192))
    with pytest.raises(ValueError, match=r"operation '.*' cannot be kept: .* record_limit is 8192"):
        operations.call(KEY, lambda: "x" * 9000)
    assert operations.start_once(KEY).outcome_unknown


def test_function_is_not_called_when_the_store_is_unavailable(store, operations):
    operations.call("another", int)
    called = []
    store.spoil(operations.scoped_key(KEY))
    with pytest.raises(CacheUnavailableError):
        operations.call(KEY, called.append, 1)
    assert called == []


def test_asynchronous_stores_pass_the_same_steps(store):
    async def effect():
        await asyncio.sleep(0)
        return {"receipt": 1}

    async def fails():
        await asyncio.sleep(0)
        raise Lost

    async def main():
        async with store.async_cache() as cache:
            operations = Operations(cache)
            assert await operations.call_async(KEY, effect) == {"receipt": 1}
            assert await operations.call_async(KEY, fails) == {"receipt": 1}
            with pytest.raises(Lost):
                await operations.call_async("b", fails)
            async with await operations.start_once_async("b", fingerprint=1) as operation:
                assert (operation.attempt, operation.outcome_unknown) == (2, True)
                with pytest.raises(AttemptInProgressError):
                    await operations.start_once_async("b")
                await operation.complete_async(17)
            with pytest.raises(IdempotencyKeyReusedError):
                await operations.start_once_async("b", fingerprint=2)
            with pytest.raises(MisuseError, match="awaitable in synchronous use"):
                operations.start_once(KEY)

    asyncio.run(main())


@pytest.mark.parametrize("moment", range(1, 8))
def test_whenever_a_task_is_cancelled_the_key_is_free_or_done_afterwards(sqlite, moment):
    """Cancelled at each await from the reservation to the completion."""
    made = []

    async def effect():
        await asyncio.sleep(0)
        made.append(1)
        await asyncio.sleep(0)
        return len(made)

    async def main():
        async with sqlite.async_cache() as cache:
            await cache.peek("any")
            operations = Operations(cache)
            task = asyncio.create_task(operations.call_async(KEY, effect))
            for _ in range(moment**2):
                await asyncio.sleep(0.0005)  # lets the thread of aiosqlite advance
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            operation = await operations.start_once_async(KEY)
            assert operation.result is not None or operation.outcome_unknown or not made
            if not isinstance(ended, asyncio.CancelledError):
                assert operation.result.value == ended == 1

    asyncio.run(main())


def test_version_that_no_column_holds_is_rejected_before_the_call(store, operations):
    """Otherwise the effect would exist without a stored result."""
    operations.start_once(KEY, fingerprint=1).fail()
    key, called = operations.scoped_key(KEY), []
    rubbish = Record(version=2**62 + 1, attributes={"outcome_unknown": False})
    store.change(key, record=to_text(rubbish))
    with pytest.raises(CacheUnavailableError, match="version must be an int from 0 to"):
        operations.call(KEY, called.append, 1)
    assert called == []


@pytest.mark.parametrize("by_hand", [False, True])
def test_closed_coroutine_of_operation_leaves_key_to_next_use(sqlite, by_hand):
    """A closed coroutine cannot await anything."""

    class Forever:
        def __await__(self):
            yield self

    async def block(operations):
        async with await operations.start_once_async(KEY):
            await Forever()

    @types.coroutine
    def until_it_waits(coroutine):
        while not isinstance(waits := coroutine.send(None), Forever):
            yield waits

    async def main():
        async with sqlite.async_cache() as cache:
            operations = Operations(cache)
            coroutine = block(operations) if by_hand else operations.call_async(KEY, Forever)
            await until_it_waits(coroutine)
            coroutine.close()
            operation = await operations.start_once_async(KEY)
            assert (operation.attempt, operation.outcome_unknown) == (2, True)

    asyncio.run(main())


# -- in the caller's own transaction ---------------------------------------------------------------


@pytest.fixture
def orders(database):
    database.sql("CREATE TABLE {0}_orders (id integer)")
    yield lambda: len(database.sql("SELECT * FROM {0}_orders"))
    database.sql("DROP TABLE {0}_orders")


def insert(database, connection):
    from sqlalchemy import text

    connection.execute(text(f"INSERT INTO {database.prefix}_orders VALUES (17)"))


def test_result_commits_with_the_effect(database, orders):
    operations = Operations(database.cache())
    for _ in range(2):
        with operations.start_once(KEY) as operation:
            if operation.result is None:
                with database.engine.begin() as connection:
                    insert(database, connection)
                    operation.complete("inserted", connection=connection)
            assert operation.result.value == "inserted"
    assert orders() == 1


def test_result_rolls_back_with_the_effect(database, orders):
    operations = Operations(database.cache())
    with (
        pytest.raises(Lost),
        operations.start_once(KEY) as operation,
        database.engine.begin() as connection,
    ):
        insert(database, connection)
        operation.complete("inserted", connection=connection)
        raise Lost
    assert orders() == 0
    again = operations.start_once(KEY)
    assert (again.result, again.attempt) == (None, 2)


def test_silently_rolled_back_result_is_not_kept(database, orders):
    operations = Operations(database.cache())
    with (
        pytest.raises(MisuseError, match="was rolled back"),
        operations.start_once(KEY) as operation,
        database.engine.connect() as connection,
    ):
        insert(database, connection)
        operation.complete("inserted", connection=connection)
    assert operation.result is None
    assert operations.start_once(KEY).result is None


def test_operation_can_be_completed_again_after_a_rollback(database, orders):
    operations = Operations(database.cache())
    with operations.start_once(KEY) as operation:
        with database.engine.connect() as connection:
            operation.complete("first", connection=connection)
        with database.engine.begin() as connection:
            insert(database, connection)
            operation.complete("second", connection=connection)
        with pytest.raises(AlreadyCompletedError):
            operation.complete("third")
    assert operations.call(KEY, int) == "second"


def test_store_without_transactions_rejects_one_and_continues(valkey):
    operations = Operations(valkey.cache())
    with operations.start_once(KEY) as operation:
        with pytest.raises(MisuseError):
            operation.complete(17, connection=object())
        operation.complete(17)
    assert operations.call(KEY, int) == 17


# -- what the other processes do -------------------------------------------------------------------


def effect(operations):
    def work():
        print("effect")
        return 17

    try:
        print(operations.call(KEY, work))
    except AttemptInProgressError as error:
        print(type(error).__name__)


def crash(operations):
    import os

    def work():
        print("effect", flush=True)
        os._exit(9)

    operations.call(KEY, work)


if __name__ == "__main__":
    what, url, prefix = sys.argv[1:]
    with blocking(url, prefix=prefix, timeout=20.0) as cache:
        print("ready", flush=True)
        sys.stdin.readline()
        globals()[what](Operations(cache))
