"""A runtime whose queue and context cache are in one database, or in two."""

import signal
from functools import partial

import pytest
from sqlalchemy import event, make_url

from retrytemplate.backends import AsyncSQLRetryContextCache
from retrytemplate.workers import (
    JobQueue,
    JobQueueError,
    MessageSettled,
    QueueAckFailed,
    Reject,
    SQLSource,
    WorkerRuntime,
)
from retrytemplate.workers.testing import LeasedMemoryCache
from tests.support.fork_server import processes
from tests.support.polling import driver_has_ended
from tests.support.queue_worker import (
    acknowledge_with_the_work,
    run_until_settled,
    work_until_statement,
)

SETTLEMENTS = {
    "acknowledge": "state = 'completed'",
    "requeue": "last_failure =",
    "dead_letter": "state = 'dead_lettered'",
}


def run_process(target, *arguments):
    """The exit code of a process that calls a function."""
    worker = processes.Process(target=target, args=arguments)
    worker.start()
    worker.join()
    return worker.exitcode


def outcomes(events):
    return [(each.action, each.outcome) for each in events if type(each) is MessageSettled]


async def state(jobs, job_id):
    return (await jobs.status(job_id)).state


async def do_nothing(message, context):
    pass


class Watched(SQLSource):
    """``settle`` is called with each call that ends an attempt and settles its message."""

    async def run_in_transaction(self, work):
        return await self.settle(partial(super().run_in_transaction, work))

    async def end_and_acknowledge(self, *arguments, **marker):
        return await self.settle(partial(super().end_and_acknowledge, *arguments, **marker))


@pytest.mark.parametrize("outcome", SETTLEMENTS)
async def test_kill_between_end_and_settlement_undoes_both(store, outcome):
    async with store.queue() as jobs:
        job_id = await jobs.enqueue({"order": 17}, "order-17")
        arguments = (store.url, store.prefix, outcome, SETTLEMENTS[outcome])
        assert run_process(work_until_statement, *arguments) == -signal.SIGKILL
        assert await state(jobs, job_id) == "running"
    assert store.claim(f"billing/s:{job_id}")["worker"] is not None  # the attempt has not ended


@pytest.mark.parametrize(
    "outcome, states",
    [
        ("acknowledge", ("completed", "done")),
        ("requeue", ("delayed", "idle")),
        ("dead_letter", ("dead_lettered", None)),
    ],
)
async def test_end_and_settlement_are_committed_together(store, outcome, states):
    async def handle(message, context):
        if outcome == "requeue":
            raise ConnectionError("unreachable")
        if outcome == "dead_letter":
            raise Reject("no such order")

    seen = []

    class Source(Watched):
        async def settle(self, call):
            value = await call()
            claim = store.claim(f"billing/s:{job_id}")
            seen.append((store.row(job_id)["state"], claim and claim["phase"]))
            return value

    async with store.queue() as jobs:
        job_id = await jobs.enqueue(1, "one")
        events = await run_until_settled(Source(jobs), handle)
        job = await jobs.status(job_id)
    assert [action for action, _ in outcomes(events)] == [outcome]
    assert seen == [({"delayed": "waiting"}.get(states[0], states[0]), states[1])]
    assert job.state == states[0]
    failures = {"requeue": "unreachable", "dead_letter": "Reject: no such order"}
    assert job.last_failure == failures.get(outcome)


async def test_message_is_not_settled_without_its_claim(store):
    async def handle(message, context):
        store.sql("UPDATE {0}_contexts SET fence = fence + 1, worker = 'another'")

    async with store.queue() as jobs:
        job_id = await jobs.enqueue(1, "one")
        events = await run_until_settled(SQLSource(jobs), handle)
        assert await state(jobs, job_id) == "running"
    assert outcomes(events) == [("none", "lease_lost")]


async def test_success_is_recorded_if_another_worker_has_the_message(store):
    async def handle(message, context):
        store.age(30)
        assert [each.id for each in await SQLSource(jobs).receive(1, 0.0)] == [job_id]

    async with store.queue() as jobs:
        job_id = await jobs.enqueue(1, "one")
        events = await run_until_settled(SQLSource(jobs), handle, prefetch=1)
        assert await state(jobs, job_id) == "running"
    assert store.claim(f"billing/s:{job_id}")["phase"] == "done"
    [failed] = [each for each in events if type(each) is QueueAckFailed]
    assert (failed.reason, failed.count) == ("rejected", 1)


async def test_letter_is_left_to_the_worker_that_has_the_message(store):
    async def handle(message, context):
        store.age(30)
        await SQLSource(jobs).receive(1, 0.0)
        raise Reject("no such order")

    async with store.queue() as jobs:
        job_id = await jobs.enqueue(1, "one")
        events = await run_until_settled(SQLSource(jobs), handle, prefetch=1)
        assert await state(jobs, job_id) == "running"
    claim = store.claim(f"billing/s:{job_id}")
    assert (claim["phase"], claim["worker"]) == ("recovering", None)
    assert outcomes(events) == [("none", "lease_lost")]


@pytest.mark.statement("S1-72")
@pytest.mark.parametrize("is_committed", [True, False])
async def test_transaction_whose_answer_is_lost_is_repeated_once(store, is_committed):
    class Source(Watched):
        tries = 0

        async def settle(self, call):
            self.tries += 1
            value = await call() if is_committed or self.tries > 1 else None
            if self.tries == 1:
                raise JobQueueError("the answer is lost")
            return value

    calls = []

    async def handle(message, context):
        calls.append(context.attempt)

    async with store.queue() as jobs:
        job_id = await jobs.enqueue(1, "one")
        source = Source(jobs)
        events = await run_until_settled(source, handle)
        assert await state(jobs, job_id) == "completed"
    assert (calls, source.tries) == ([1], 2)
    assert outcomes(events) == [("acknowledge", "completed")]


@pytest.mark.statement("S1-72")
async def test_unsettled_success_is_redelivered_after_its_limit(store):
    class Source(Watched):
        async def settle(self, call):
            raise JobQueueError("the database is unavailable")

    async with store.queue() as jobs:
        job_id = await jobs.enqueue(1, "one")
        events = await run_until_settled(Source(jobs), do_nothing, settle_timeout=0.05)
        assert await state(jobs, job_id) == "ready"
    assert outcomes(events) == [("release", "store_unavailable")]
    assert [each.reason for each in events if type(each) is QueueAckFailed] == ["JobQueueError"]


@pytest.mark.parametrize("killed", ["before", "after"])
@pytest.mark.parametrize("method", ["acknowledge_in", "complete_in"])
async def test_work_in_the_transaction_of_the_end_is_done_once(store, method, killed):
    store.sql("CREATE TABLE {0}_work (job text)")
    try:
        async with store.queue() as jobs:
            job_id = await jobs.enqueue(1, "one")
            arguments = (store.url, store.prefix, method)
            assert run_process(acknowledge_with_the_work, *arguments, killed) == -signal.SIGKILL
            assert await state(jobs, job_id) == ("running" if killed == "before" else "completed")
            if killed == "before":
                assert run_process(acknowledge_with_the_work, *arguments, None) == 0
            assert await state(jobs, job_id) == "completed"
            assert await SQLSource(jobs).receive(1, 0.0) == []
        assert [row["job"] for row in store.sql("SELECT job FROM {0}_work")] == [job_id]
    finally:
        store.sql("DROP TABLE {0}_work")


async def test_cache_of_the_same_database_is_recognised(store):
    async with store.queue() as jobs:
        source = SQLSource(jobs)
        async with AsyncSQLRetryContextCache(store.url, prefix=store.prefix) as cache:
            assert await source.shares_database(cache)
        assert await source.shares_database(source.default_cache())
        assert not await source.shares_database(LeasedMemoryCache())


async def test_cache_of_another_database_is_recognised(store, tmp_path):
    if store.kind == "sqlite":
        other = f"sqlite:///{tmp_path}/other.db"
    else:  # the same names in another schema
        store.sql("CREATE SCHEMA {0}_other")
        search_path = {"options": f"-csearch_path={store.prefix}_other"}
        other = make_url(store.url).update_query_dict(search_path)
        other = other.render_as_string(hide_password=False)
    async with store.queue() as jobs:
        source = SQLSource(jobs)
        job_id = await jobs.enqueue(1, "one")
        async with AsyncSQLRetryContextCache(other, prefix=store.prefix) as cache:
            assert not await source.shares_database(cache)
            events = await run_until_settled(source, do_nothing, cache=cache)
        assert await state(jobs, job_id) == "completed"
    assert outcomes(events) == [("acknowledge", "completed")]
    if store.kind == "postgresql":
        store.sql("DROP SCHEMA {0}_other CASCADE")


async def test_unreachable_cache_is_in_no_common_database(shared_sqlite):
    async with shared_sqlite.queue() as jobs:
        url = "sqlite:////nowhere/retry.db"
        async with AsyncSQLRetryContextCache(url) as cache:
            assert not await SQLSource(jobs).shares_database(cache)
    await driver_has_ended()


async def test_run_leaves_no_connection_of_its_queue_open(tmp_path):
    jobs = JobQueue(f"sqlite:///{tmp_path}/jobs.db")
    await jobs.enqueue("a", "a")

    async def handle(message, context):
        runtime.stop()

    runtime = WorkerRuntime(SQLSource(jobs), handle, name="billing")
    await runtime.run()
    assert jobs.database.engine.pool.checkedin() == 0


async def test_success_is_one_statement_where_the_database_has_them(store):
    statements = []
    async with store.queue() as jobs:
        job_id = await jobs.enqueue(1, "one")
        event.listen(
            jobs.database.engine.sync_engine,
            "before_cursor_execute",
            lambda connection, cursor, statement, *_: statements.append(statement),
        )
        await run_until_settled(SQLSource(jobs), do_nothing)
        assert await state(jobs, job_id) == "completed"
    [acknowledgement] = [each for each in statements if SETTLEMENTS["acknowledge"] in each]
    is_one = "ended AS" in acknowledgement
    assert is_one == (store.kind == "postgresql")
    assert any(each.startswith("BEGIN") for each in statements) != is_one
