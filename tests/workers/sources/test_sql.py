"""The source over a job queue: claims, fences, leases, settlements."""

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from uuid import uuid4

import pytest

from retrytemplate import LeaseLostError, MisuseError
from retrytemplate._storage import process_liveness
from retrytemplate.history import AttemptRecord
from retrytemplate.testing import VirtualClock
from retrytemplate.workers import DeadLetter, JobQueue, JobQueueError, Source, SQLSource
from retrytemplate.workers import job_statements as sql
from retrytemplate.workers.testing import SourceConformance

RUNNING_JOBS = """
INSERT INTO ${prefix}_jobs (
    id, queue, key, body, state, priority, fence, deliveries, crashes, enqueued_at, available_at,
    replays
) SELECT CAST(n AS text), :queue, CAST(n AS text), '1', 'running', 0, 1, 1, 0, 0, 0, '[]'
FROM generate_series(1, 5000) AS n"""


class TestConformance(SourceConformance):
    @pytest.fixture(autouse=True)
    def _store(self, store):
        self.store = store

    async def create_queue(self):
        self.store.clear()

    def make(self):
        return SQLSource(self.store.queue())

    async def put(self, body):
        async with self.store.queue() as jobs:
            await jobs.enqueue(int(body), uuid4().hex)

    async def end_visibility(self, source):
        self.store.age(source.visibility_timeout)


def letter(message, letter_id="l-1"):
    failed = AttemptRecord(5, 10.0, 11.0, "ValueError", "bad row")
    return DeadLetter(
        letter_id, "s:" + message.id, "bad \0 row", "handler", 5, 1, (failed,), 10.0, 12.0, message
    )


async def register(jobs, number, **settings):
    return [await jobs.enqueue(i, f"k{i}", **settings) for i in range(number)]


def ids(messages):
    return [message.id for message in messages]


async def receive_one(source):
    [message] = await source.receive(1, 0.0)
    return message


async def states(jobs):
    return [job.state for job in await jobs.page()]


async def test_message_has_the_fields_of_its_job(store):
    async with store.queue() as jobs:
        job_id = await jobs.enqueue({"a": "ü"}, "one")
        source = SQLSource(jobs)
        assert isinstance(source, Source)
        message = await receive_one(source)
        job = await jobs.status(job_id)
    assert (message.id, message.body, message.queue) == (job_id, b'{"a":"\\u00fc"}', "jobs")
    assert (message.delivery_count, message.redelivered, message.headers) == (1, False, {})
    assert (job.state, job.attempts, job.crashes) == ("running", 1, 0)
    assert f":{os.getpid()}:" in job.worker
    assert message.enqueued_at == job.enqueued_at


async def test_jobs_are_received_by_priority_then_in_order(store):
    async with store.queue() as jobs:
        low = await register(jobs, 3)
        high = await jobs.enqueue(1, "high", priority=1)
        source = SQLSource(jobs)
        assert ids(await source.receive(2, 0.0)) == [high, low[0]]
        assert ids(await source.receive(9, 0.0)) == low[1:]
        assert await source.receive(9, 0.0) == []


async def test_jobs_of_other_queues_are_not_received(store):
    async with store.queue() as jobs, store.queue("mails") as mails:
        await jobs.enqueue(1, "one")
        assert await SQLSource(mails).receive(9, 0.0) == []


async def test_concurrent_workers_never_hold_one_job(store):
    queues = [store.queue() for _ in range(4)]
    registered = await register(queues[0], 40)
    taken = []

    async def work(source):
        while messages := await source.receive(3, 0.0):
            taken.extend(messages)
            await source.acknowledge(messages[:2])

    await asyncio.gather(*(work(SQLSource(queue)) for queue in queues))
    assert sorted(ids(taken)) == sorted(registered)
    for queue in queues:
        await queue.close()


async def test_delayed_job_is_received_when_its_delay_ends(store):
    async with store.queue() as jobs:
        await jobs.enqueue(1, "one", delay=60)
        source = SQLSource(jobs)
        assert await source.receive(1, 0.0) == []
        store.age(60)
        assert len(await source.receive(1, 0.0)) == 1


async def test_job_is_delivered_again_when_its_lease_ends(store):
    async with store.queue() as jobs:
        source = SQLSource(jobs, lease=10)
        first = await _expired(store, jobs, source)
        again = await receive_one(source)
        job = await jobs.status(again.id)
    assert again.id == first.id
    assert (again.delivery_count, again.redelivered) == (2, True)
    assert (job.attempts, job.crashes) == (2, 1)


async def _expired(store, jobs, source):
    """A message whose lease of 10 s has ended."""
    await jobs.enqueue(1, "one")
    message = await receive_one(source)
    store.age(10)
    return message


async def test_acknowledgement_can_be_repeated(store):
    async with store.queue() as jobs:
        await register(jobs, 2)
        source = SQLSource(jobs)
        messages = await source.receive(2, 0.0)
        assert await source.acknowledge(messages[:1]) == []
        finished = store.row(messages[0].id)["finished_at"]
        assert await source.acknowledge(messages) == []
        assert store.row(messages[0].id)["finished_at"] == finished
        assert await source.acknowledge([]) == []


async def test_requeued_job_waits_and_shows_its_failure(store):
    async with store.queue() as jobs:
        await jobs.enqueue(1, "one")
        source = SQLSource(jobs)
        message = await receive_one(source)
        await source.requeue(message, 60.0, "bank \0 down" + "x" * 2000)
        assert await source.acknowledge([message]) == [message]
        job = await jobs.status(message.id)
        assert (job.state, job.attempts, job.crashes, job.worker) == ("delayed", 1, 0, None)
        assert job.last_failure.startswith("bank \0 down")
        assert len(job.last_failure) < 1000
        store.age(60)
        assert (await receive_one(source)).delivery_count == 2


async def test_released_job_is_received_first_and_not_counted(store):
    async with store.queue() as jobs:
        registered = await register(jobs, 3)
        source = SQLSource(jobs)
        await source.release([await receive_one(source)])
        again = await receive_one(source)
        assert (again.id, again.delivery_count) == (registered[0], 1)


async def test_dead_letter_is_kept_with_the_job(store):
    async with store.queue() as jobs:
        await jobs.enqueue(1, "one")
        source = SQLSource(jobs)
        message = await receive_one(source)
        for _ in range(2):  # the second time after a lost answer
            await source.dead_letter(message, letter(message))
        job = await jobs.status(message.id)
        assert await source.receive(1, 0.0) == []
    assert (job.state, job.attempts, job.crashes) == ("dead_lettered", 5, 1)
    assert (job.last_failure, job.letter["id"]) == ("bad \0 row", "l-1")
    assert "message" not in job.letter
    assert [attempt.message for attempt in job.history] == ["bad row"]


async def test_replayed_job_is_delivered_with_the_same_id(store):
    async with store.queue() as jobs:
        await jobs.enqueue(1, "one")
        source = SQLSource(jobs)
        message = await receive_one(source)
        await source.dead_letter(message, letter(message))
        assert await jobs.replay(message.id, by="ada", reason="fixed")
        assert await source.acknowledge([message]) == [message]
        again = await receive_one(source)
        assert (again.id, again.delivery_count) == (message.id, 1)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_message_is_acknowledged_with_the_callers_work(store, commits):
    async with store.caller() as engine, store.queue() as jobs:
        await jobs.enqueue(1, "one")
        source = SQLSource(jobs)
        message = await receive_one(source)
        async with engine.connect() as connection:
            await message.acknowledge_in(connection)
            await (connection.commit() if commits else connection.rollback())
        assert await states(jobs) == ["completed" if commits else "running"]
        assert await source.extend([message]) == []
        assert await source.acknowledge([message]) == []
        assert await states(jobs) == ["completed"]


async def test_lost_message_is_not_acknowledged_in_a_transaction(store):
    async with store.caller() as engine, store.queue() as jobs:
        source = SQLSource(jobs, lease=10)
        former = await _expired(store, jobs, source)
        await receive_one(source)
        with pytest.raises(LeaseLostError, match="was delivered to another worker"):
            async with engine.begin() as connection:
                await former.acknowledge_in(connection)
        assert await states(jobs) == ["running"]


async def test_acknowledgement_without_a_transaction_is_rejected(store):
    autocommit = {"isolation_level": "AUTOCOMMIT"}
    async with store.caller(execution_options=autocommit) as engine, store.queue() as jobs:
        await jobs.enqueue(1, "one")
        message = await receive_one(SQLSource(jobs))
        with pytest.raises(MisuseError, match="got None"):
            await message.acknowledge_in(None)
        async with engine.connect() as connection:
            with pytest.raises(MisuseError, match="autocommit"):
                await message.acknowledge_in(connection)


async def test_lease_is_extended_beside_a_transaction_that_acknowledges(shared_postgresql):
    async with shared_postgresql.caller() as engine, shared_postgresql.queue() as jobs:
        await register(jobs, 2)
        source = SQLSource(jobs)
        messages = await source.receive(2, 0.0)
        async with engine.connect() as connection:
            await messages[0].acknowledge_in(connection)
            assert await source.extend(messages) == []
    shared_postgresql.clear()


async def cancel_at(point, work):
    """Run a coroutine in a task, and cancel it after some iterations of the loop."""
    task = asyncio.create_task(work)
    for _ in range(point):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task


async def test_waiting_receive_returns_a_job_that_arrives(store):
    class Arrival(VirtualClock):
        async def sleep_async(self, delay):
            await super().sleep_async(delay)
            if self.monotonic() - began >= 0.5:
                await jobs.enqueue(1, "one")

    async with store.queue() as jobs:
        clock = Arrival()
        began = clock.monotonic()
        source = SQLSource(jobs, clock=clock)
        [message] = await source.receive(1, 3.0)
        assert 0.5 <= clock.monotonic() - began <= 1.0
        await source.acknowledge([message])
        assert await source.receive(1, 0.4) == []
        assert clock.monotonic() - began <= 1.5


def fingerprint(pid, start):
    namespace, boot, *_ = process_liveness.process_fingerprint().rsplit(" ", 3)
    return f"{namespace} {boot} {pid} {start}"


async def test_message_of_an_ended_process_is_received_at_once(store):
    async with store.queue() as jobs:
        await register(jobs, 2)
        gone, alive = await SQLSource(jobs).receive(2, 0.0)
        _, start = process_liveness._process(str(parent := os.getppid()))
        store.change(gone.id, process=fingerprint(os.getpid(), 1))
        store.change(alive.id, process=fingerprint(parent, start))
        again = await SQLSource(jobs).receive(2, 0.0)
        assert ids(again) == [gone.id]
        assert (await jobs.status(gone.id)).crashes == 1


WORKER = """
import asyncio, sys
from retrytemplate.workers import JobQueue, SQLSource

async def work():
    source = SQLSource(JobQueue(sys.argv[1], prefix=sys.argv[2]))
    first, _ = await source.receive(2, 0.0)
    await source.acknowledge([first])
    print("one of two is acknowledged", flush=True)
    await asyncio.Event().wait()

asyncio.run(work())
"""


async def test_message_of_a_killed_process_is_received_at_once(store):
    async with store.queue() as jobs:
        registered = await register(jobs, 2)
        command = [sys.executable, "-c", WORKER, store.url, store.prefix]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
            worker.stdout.readline()
            worker.kill()
        [message] = await SQLSource(jobs).receive(2, 0.0)
        assert (message.id, message.delivery_count) == (registered[1], 2)


async def test_ended_processes_are_looked_for_once_in_a_third_of_the_lease(store):
    clock = VirtualClock()
    async with store.queue() as jobs:
        source = SQLSource(jobs, lease=30, clock=clock)
        await jobs.enqueue(1, "one")
        message = await receive_one(source)
        assert await source.receive(1, 0.0) == []
        store.change(message.id, process=fingerprint(os.getpid(), 1))
        assert await source.receive(1, 0.0) == []
        clock.advance(10)
        assert ids(await source.receive(1, 0.0)) == [message.id]


async def test_default_cache_is_in_the_database_of_the_queue(store):
    async with store.queue() as jobs:
        source = SQLSource(jobs, lease=12)
        cache = source.default_cache()
        claim = await cache.begin("work/s:1", worker="one")
        assert store.sql("SELECT key FROM {0}_contexts")[0]["key"] == "work/s:1"
        assert (cache.lease, claim.lease) == (12.0, 12.0)
        await cache.release(claim)
        await cache.close()
        await source.close()
        await source.close()


@pytest.mark.parametrize(
    "error, message, settings",
    [
        (TypeError, "queue must be a JobQueue, got 'jobs'", {"queue": "jobs"}),
        (ValueError, "lease must be a number of seconds .* from 0.01", {"lease": 0}),
        (TypeError, "clock must be an object with the methods", {"clock": 17}),
    ],
)
def test_invalid_setting_is_named(tmp_path, error, message, settings):
    settings = {"queue": JobQueue(f"sqlite:///{tmp_path}/jobs.db")} | settings
    with pytest.raises(error, match=message):
        SQLSource(**settings)


async def test_attempt_and_message_end_in_one_transaction(store):
    async with store.queue() as jobs:
        await jobs.enqueue(1, "one")
        source = SQLSource(jobs)
        cache = source.default_cache()
        message = await receive_one(source)
        claim = await cache.begin("work/s:1", worker="one")
        for error in (ValueError, None):

            async def end(connection, error=error):
                await cache.succeed(claim, connection=connection)
                assert await source.acknowledge([message], connection=connection) == []
                if error is not None:
                    raise error

            with suppress(ValueError):
                await source.run_in_transaction(end)
            ended = error is None
            assert await states(jobs) == ["completed" if ended else "running"]
            assert await cache.holds(claim) is not ended
        await cache.close()


async def test_cancelled_transaction_leaves_no_lock(store):
    async with store.queue(timeout=0.5) as jobs:
        source = SQLSource(jobs)

        for point in range(0, 40, 3):
            await jobs.enqueue(1, f"k{point}")
            message = await receive_one(source)

            async def requeue(connection, message=message):
                await source.requeue(message, 60.0, "failed", connection=connection)

            await cancel_at(point, source.run_in_transaction(requeue))
            await source.acknowledge([message])
            assert (await jobs.status(message.id)).state in ("delayed", "completed")


async def test_failed_settlement_names_the_method(store):
    async with store.queue() as jobs, store.queue(timeout=1.0) as impatient:
        await jobs.enqueue(1, "one")
        message = await receive_one(SQLSource(jobs))
        async with store.caller() as engine, engine.connect() as connection:
            await message.acknowledge_in(connection)
            with pytest.raises(JobQueueError, match="acknowledge failed in the store of the job"):
                await SQLSource(impatient).acknowledge([message])


async def test_transactions_of_one_process_on_sqlite_wait_in_order(shared_sqlite):
    entered, end = [], asyncio.Event()

    async def first(connection):
        entered.append("first")
        await end.wait()

    async def second(connection):
        entered.append("second")

    async with shared_sqlite.queue() as jobs:
        source = SQLSource(jobs)
        tasks = [asyncio.create_task(source.run_in_transaction(each)) for each in (first, second)]
        while not entered:
            await asyncio.sleep(0)
        statement = asyncio.create_task(source.default_cache().forget("s:1"))
        done, _ = await asyncio.wait([*tasks, statement], timeout=0.1)  # they wait for the first
        assert (entered, done) == (["first"], set())
        end.set()
        await asyncio.gather(*tasks, statement)


@pytest.fixture
def postgresql_store(shared_postgresql):
    """A database of PostgreSQL with tables and without jobs."""
    yield shared_postgresql
    shared_postgresql.clear()


@pytest.mark.parametrize("name", ["ACKNOWLEDGE", "RELEASE", "EXTEND", "SETTLED"])
async def test_settlement_reads_no_other_jobs_of_postgresql(postgresql_store, name):
    async with postgresql_store.queue() as jobs:
        await jobs.ask("fill", RUNNING_JOBS)
        postgresql_store.sql("ANALYZE {0}_jobs")  # else the plan depends on when autovacuum ran
        values = {"pairs": "[[1, 1]]", "lease": 30.0}
        plan = await jobs.ask("explain", f"EXPLAIN {getattr(sql, name)}", **values)
    assert "Seq Scan" not in str(plan)


@pytest.fixture
def sqlite_store(shared_sqlite):
    """A file of SQLite with tables and without jobs."""
    yield shared_sqlite
    shared_sqlite.clear()


async def test_read_during_a_transaction_on_sqlite_does_not_wait(sqlite_store):
    async with sqlite_store.queue() as jobs:

        async def read(connection):
            await jobs.enqueue(1, "one", connection=connection)
            return await jobs.page()

        assert await SQLSource(jobs).run_in_transaction(read) == []
        assert len(await jobs.page()) == 1


async def test_write_during_a_transaction_on_sqlite_fails_at_its_timeout(shared_sqlite):
    async with shared_sqlite.queue(timeout=0.05) as jobs:

        async def write(_):
            await jobs.enqueue(1, "one")

        expected = "enqueue of 'one' failed in the store.*other tasks used the file for 0.05 s"
        with pytest.raises(JobQueueError, match=expected):
            await SQLSource(jobs).run_in_transaction(write)
