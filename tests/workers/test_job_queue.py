"""The job queue: registration, idempotency keys, pages, replays."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from retrytemplate import MisuseError
from retrytemplate.testing import capture_events
from retrytemplate.workers import JobQueue, JobQueueError
from tests.observe.test_event_sources import checked

LETTER = '{"attempts": 5, "crashes": 1, "history": []}'


@pytest.mark.statement("S1-03")
@pytest.mark.parametrize("state", ["waiting", "running", "completed", "dead_lettered"])
async def test_same_key_returns_same_id_in_any_state(store, state):
    async with store.queue() as jobs:
        job_id = await jobs.enqueue({"report": 17}, "report-17")
        store.change(job_id, state=state)
        assert await jobs.enqueue({"report": 18}, "report-17") == job_id
        assert store.row(job_id)["body"] == '{"report":17}'


async def test_concurrent_calls_with_one_key_register_one_job(store):
    queues = [store.queue() for _ in range(3)]
    ids = await asyncio.gather(*(queues[i % 3].enqueue(i, "one") for i in range(12)))
    assert len(set(ids)) == 1
    assert len(await queues[0].page()) == 1
    for queue in queues:
        await queue.close()


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_concurrent_transactions_with_one_key_register_one_job(store, commits):
    async with store.caller() as engine, store.queue() as jobs:
        async with engine.connect() as connection:
            first = await jobs.enqueue(1, "one", connection=connection)
            waiting = asyncio.create_task(jobs.enqueue(2, "one"))
            await asyncio.wait([waiting], timeout=0.05)
            assert not waiting.done()
            await (connection.commit() if commits else connection.rollback())
            assert (await waiting == first) is commits
        assert len(await jobs.page()) == 1


async def test_job_in_rolled_back_transaction_is_not_registered(store):
    async with store.caller() as engine, store.queue() as jobs:
        async with engine.connect() as connection:
            job_id = await jobs.enqueue(1, "one", connection=connection)
            await connection.rollback()
            assert await jobs.status(job_id) is None
            again = await jobs.enqueue(1, "one", connection=connection)
            await connection.commit()
        assert again != job_id
        assert (await jobs.status(again)).state == "ready"


@pytest.mark.statement("S1-61")
async def test_cancelled_request_keeps_its_registered_job(store):
    async with store.queue() as jobs:
        registered = asyncio.Event()

        async def request():
            await jobs.enqueue({"report": 17}, "report-17")
            registered.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(request())
        await registered.wait()
        task.cancel()
        await asyncio.wait([task])
        assert [job.state for job in await jobs.page()] == ["ready"]


async def test_keys_of_different_queues_are_independent(store):
    async with store.queue() as jobs, store.queue("mails") as mails:
        assert await jobs.enqueue(1, "one") != await mails.enqueue(1, "one")
        assert len(await jobs.page()) == len(await mails.page()) == 1


async def test_job_is_shown_with_its_fields(store):
    async with store.queue() as jobs:
        key = "order \0 \ud800 17"
        job_id = await jobs.enqueue(["ü", None], key, delay=timedelta(hours=1), priority=-3)
        job = await jobs.status(job_id)
    assert (job.id, job.key, job.state, job.body) == (job_id, key, "delayed", ["ü", None])
    assert (job.attempts, job.crashes, job.priority) == (0, 0, -3)
    assert job.available_at - job.enqueued_at == pytest.approx(3600.0, abs=0.1)
    assert job.finished_at is job.worker is job.last_failure is job.letter is None
    assert job.as_json()["replays"] == job.history == ()


@pytest.mark.parametrize(
    "columns, shown",
    [
        ({"state": "waiting", "available_at": 0.0}, "ready"),
        ({"state": "waiting", "available_at": 1e10}, "delayed"),
        ({"state": "running", "available_at": 1e10}, "running"),
        ({"state": "running", "available_at": 0.0}, "ready"),
        ({"state": "completed", "finished_at": 1.0}, "completed"),
        ({"state": "dead_lettered", "finished_at": 1.0, "letter": LETTER}, "dead_lettered"),
    ],
)
async def test_page_filters_by_shown_state(store, columns, shown):
    async with store.queue() as jobs:
        job_id = await jobs.enqueue(1, "one")
        store.change(job_id, **columns)
        [job] = await jobs.page(state=shown)
        assert (job.id, job.state) == (job_id, shown)
        others = {"ready", "delayed", "running", "completed", "dead_lettered"} - {shown}
        assert [await jobs.page(state=each) for each in others] == [[]] * 4


async def test_page_continues_behind_a_number(store):
    async with store.queue() as jobs:
        ids = [await jobs.enqueue(i, f"k{i}") for i in range(5)]
        first = await jobs.page(limit=3)
        rest = await jobs.page(after=first[-1].number)
        assert [job.id for job in first + rest] == ids


async def test_counts_of_dead_lettered_job_are_those_of_its_letter(store):
    async with store.queue() as jobs:
        job_id = await jobs.enqueue(1, "one")
        store.change(job_id, state="dead_lettered", finished_at=1.0, letter=LETTER)
        job = await jobs.status(job_id)
    assert (job.attempts, job.crashes) == (5, 1)


async def test_replay_is_recorded_and_happens_once(store):
    async with store.queue() as jobs:
        job_id = await jobs.enqueue(1, "one")
        assert not await jobs.replay(job_id, by="ada", reason="too early")
        store.change(job_id, state="dead_lettered", letter=LETTER, finished_at=1.0, deliveries=9)
        calls = (jobs.replay(job_id, by="ada", reason="fixed") for _ in range(3))
        assert sorted(await asyncio.gather(*calls)) == [False, False, True]
        job = await jobs.status(job_id)
    assert (job.state, job.attempts, job.finished_at) == ("ready", 0, None)
    assert [(each.by, each.reason) for each in job.replays] == [("ada", "fixed")]
    assert job.replays[0].at == pytest.approx(job.available_at, abs=1.0)


async def test_replayed_job_has_one_event_with_the_operator(store):
    async with store.queue("mails") as jobs:
        job_id = await jobs.enqueue(1, "one")
        store.change(job_id, state="dead_lettered", letter=LETTER, finished_at=1.0)
        with capture_events() as captured:
            for _ in range(2):
                await jobs.replay(job_id, by="ada", reason="wrong token=17")
    [event] = checked(captured.events, "dead_letter.replayed")
    assert event.subject == "mails"
    assert event.data == {"letter": job_id, "by": "ada", "reason": "wrong token=***"}


async def test_purge_deletes_completed_jobs_of_the_queue_that_are_old(store):
    async with store.queue() as jobs, store.queue("mails") as mails:
        old, young, dead, ready = [await jobs.enqueue(i, f"k{i}") for i in range(4)]
        other = await mails.enqueue(1, "one")
        for job_id in (old, young, dead, other):
            store.change(job_id, state="completed", finished_at=store.now() - 100)
        store.change(dead, state="dead_lettered", letter=LETTER)
        store.change(young, finished_at=store.now())
        assert await jobs.purge(timedelta(seconds=60)) == 1
        assert [job.id for job in await jobs.page()] == [young, dead, ready]
        assert len(await mails.page()) == 1
        assert await jobs.enqueue(0, "k0") != old


@pytest.mark.parametrize(
    "columns",
    [
        {"body": "{"},
        {"replays": "[17]"},
        {"last_failure": "NaN"},
        {"letter": "{}"},
        {"letter": '{"history": [{}]}'},
        {"state": "dead_lettered", "letter": "[]"},
    ],
)
async def test_damaged_row_is_reported_with_its_id(store, columns):
    async with store.queue() as jobs:
        job_id = await jobs.enqueue(1, "one")
        store.change(job_id, **columns)
        with pytest.raises(JobQueueError, match=f"row of job '{job_id}' is damaged"):
            await jobs.status(job_id)


async def test_tables_are_created_once_by_concurrent_first_uses(empty_store):
    queues = [empty_store.queue() for _ in range(6)]
    pages = await asyncio.gather(*(queue.page() for queue in queues))
    assert pages == [[]] * 6
    for queue in queues:
        await queue.close()


async def test_tables_of_a_later_version_are_rejected(empty_store):
    async with empty_store.queue() as jobs:
        empty_store.sql("UPDATE {0}_meta SET value = 9 WHERE name = 'jobs'")
        await jobs.page()  # known already
    async with AsyncExitStack() as stack:
        later = empty_store.queue()
        stack.push_async_callback(later.close)
        with pytest.raises(JobQueueError, match="have version 9"):
            await later.page()


async def test_closed_queue_opens_new_connections(store):
    jobs = store.queue()
    for _ in range(2):
        await jobs.enqueue(1, "one")
        await jobs.close()


async def test_given_engine_is_not_closed(store):
    async with store.caller() as engine, JobQueue(engine, prefix=store.prefix) as jobs:
        await jobs.enqueue(1, "one")
        await jobs.close()
        assert engine.pool.checkedin() == 1


async def test_registration_cancelled_at_any_await_registers_at_most_one_job(store):
    async with store.queue() as jobs:
        for point in range(1, 12):
            key = f"k{point}"
            task = asyncio.create_task(jobs.enqueue(1, key))
            for _ in range(point):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await jobs.enqueue(1, key)
        assert len(await jobs.page()) == 11


@pytest.mark.parametrize(
    "error, message, arguments",
    [
        (TypeError, "job must be a JSON value: Object of type object", {"job": object()}),
        (TypeError, "job must be a JSON value: Out of range", {"job": float("nan")}),
        (TypeError, "idempotency_key must be a non-blank str, got 17", {"idempotency_key": 17}),
        (ValueError, "delay must be a number of seconds .* >= 0 and finite", {"delay": -1}),
        (TypeError, "priority must be an int", {"priority": "high"}),
        (ValueError, "priority must be an int up to", {"priority": 2**63}),
        (MisuseError, "connection must be a sqlalchemy AsyncConnection", {"connection": 17}),
    ],
)
async def test_invalid_argument_of_enqueue_is_named(tmp_path, error, message, arguments):
    jobs = JobQueue(f"sqlite:///{tmp_path}/jobs.db")
    with pytest.raises(error, match=message):
        await jobs.enqueue(**{"job": 1, "idempotency_key": "one"} | arguments)
    await jobs.close()


@pytest.mark.parametrize(
    "error, message, settings",
    [
        (TypeError, "name must be a non-blank str, got ' '", {"name": " "}),
        (ValueError, "prefix must be", {"prefix": "Q-"}),
        (ValueError, "in memory: jobs there are lost when the process", {"url": "sqlite://"}),
        (ValueError, "url must be a URL of SQLite or PostgreSQL", {"url": "mysql://x/y"}),
        (TypeError, "url must be a database URL or a sqlalchemy AsyncEngine", {"url": 17}),
    ],
)
def test_invalid_setting_is_named(error, message, settings):
    with pytest.raises(error, match=message):
        JobQueue(**{"url": "sqlite:///jobs.db"} | settings)


async def test_unreachable_database_raises_an_error_of_the_queue():
    with pytest.raises(JobQueueError, match="create the tables failed in the store of the job"):
        await JobQueue("postgresql://me@127.0.0.1:1/jobs").page()
