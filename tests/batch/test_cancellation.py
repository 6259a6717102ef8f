"""A step in the database ends before a cancellation, or a signal, is raised."""

import asyncio
import os
import signal
import threading
from itertools import count

import pytest
from sqlalchemy import event

from retrytemplate import NeverRetryPolicy
from retrytemplate._internal.cancel_scope import wait_shielded
from retrytemplate._internal.threads import Threads
from retrytemplate._storage import sql_engine as engines
from retrytemplate._storage.cancellation import run_to_completion, run_uninterrupted
from retrytemplate.batch import ForwardReader, JobRepository, JobRepositoryError, Runs, SkipPolicy
from retrytemplate.batch.journal import runs
from retrytemplate.batch.journal.repository import JOB_REPOSITORY
from tests.batch.readers.reading import Source
from tests.batch.test_scenarios import Bad, always
from tests.support.signal_injection import InterruptsOnly


async def cancelled(work, times=3):
    """Its task, after this number of cancellations, one in each iteration of the loop."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return task


async def test_step_on_the_database_finishes_despite_repeated_cancellation():
    go_on, ended = asyncio.Event(), []

    async def step():
        await go_on.wait()
        ended.append(1)

    task = await cancelled(run_to_completion(step()))
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [1]


async def test_cut_step_is_cancelled_once_and_awaited():
    go_on, seen = asyncio.Event(), []

    async def step():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await go_on.wait()
            seen.append(asyncio.current_task().cancelling())
            raise

    task = await cancelled(run_to_completion(step(), cut=True))
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [1]


async def test_cancellation_is_raised_if_the_cut_step_ignores_it():
    async def step():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done"

    with pytest.raises(asyncio.CancelledError):
        await (await cancelled(run_to_completion(step(), cut=True), times=1))


async def test_value_or_error_of_a_step_reaches_the_caller():
    async def gives():
        return 7

    assert await run_to_completion(gives()) == 7
    with pytest.raises(Bad):
        await run_to_completion(raises())


async def raises():
    raise Bad


async def test_error_of_a_cancelled_step_is_replaced_by_the_cancellation():
    go_on = asyncio.Event()

    async def step():
        await go_on.wait()
        raise Bad

    task = await cancelled(run_to_completion(step()))
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_step_cancelled_from_outside_is_cancelled():
    async def step():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await run_to_completion(step())


async def test_tasks_end_before_the_cancellation_is_raised():
    tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in range(3)]
    with pytest.raises(asyncio.CancelledError):
        await (await cancelled(wait_shielded(tasks)))
    assert all(task.done() for task in tasks)


def test_last_step_ends_before_the_interrupt_of_the_wait_is_raised():
    ended = []

    def work():
        interrupts.send()
        ended.append(1)

    with InterruptsOnly(Threads.wait) as interrupts, pytest.raises(KeyboardInterrupt):
        run_uninterrupted(work)
    assert ended == [1]


def test_unavailable_database_does_not_replace_an_earlier_failure():
    def work():
        raise JobRepositoryError("away")

    run_uninterrupted(work, ignored=(JobRepositoryError,))


# Runs.


@pytest.fixture
def shaken(world):
    """Runs it in a task that is cancelled at each statement from a certain one on."""

    async def main(first, begin):
        engine = engines.transaction_engine(
            engines.parse_url(world.url, JOB_REPOSITORY), 20.0, JOB_REPOSITORY, asynchronous=True
        )
        statements = count(1)

        def cancel(*_):
            if next(statements) >= first:
                task.cancel()

        event.listen(engine.sync_engine, "before_cursor_execute", cancel)
        task = asyncio.create_task(begin(JobRepository(engine, prefix=world.prefix)))
        try:
            return await task
        except asyncio.CancelledError:
            return None
        finally:
            await engine.dispose()

    return lambda first, begin: asyncio.run(main(first, begin))


def step(world, jobs, **settings):
    """One whose item 2 is given up, with a writer that is awaited."""

    async def write(items, transaction):
        for item in items:
            await transaction.execute(world.out.insert().values(id=item, text=""))

    settings = {
        "processor": always(2),
        "writer": write,
        "repository": jobs,
        "retry": NeverRetryPolicy(),
        "skip": SkipPolicy(on=Bad),
        **settings,
    }
    return world.step(range(1, 6), **settings)


@pytest.mark.parametrize("rollback", ["transaction", "savepoint"])
def test_run_cancelled_at_each_statement_loses_nothing(world, shaken, rollback):
    def begin(jobs):
        return step(world, jobs, rollback=rollback).run_async()

    first = count(1)
    while (report := shaken(next(first), begin)) is None:
        pass
    assert (report.status, report.written, report.dead_lettered, report.crashes) == (
        "completed",
        4,
        1,
        0,
    )
    assert (world.rows(), world.letters()) == ([1, 3, 4, 5], [2])


def test_replay_cancelled_at_each_statement_writes_once(world, shaken):
    asyncio.run(step(world, world.jobs).run_async())

    def begin(jobs):
        return step(world, jobs, processor=None).replay_async()

    first = count(1)
    while shaken(next(first), begin) is None:
        pass
    assert world.rows() == [1, 2, 3, 4, 5]


async def test_items_read_ahead_by_a_cancelled_run_are_kept(sqlite):
    source = Source(1, 2, 3, 4, 5)
    resumed = sqlite.step(ForwardReader(source))
    task = asyncio.create_task(resumed.run_async())
    while not source.empty:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    source.put(6, 7, None)
    report = await resumed.run_async()
    assert (report.status, report.read, sqlite.rows()) == ("completed", 7, [1, 2, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("times", [1, 2, 3])
def test_run_interrupted_at_a_statement_is_released(world, times):
    left = []

    def strike(*_):
        if left and threading.current_thread() is threading.main_thread():
            left[0] -= 1
            if left[0] < 1:
                left.pop(0)
                raise KeyboardInterrupt

    event.listen(world.jobs.engine, "after_cursor_execute", strike)
    interrupted = world.step(range(1, 6), process=always(2), skip=SkipPolicy(on=Bad))
    for first in count(1):
        left[:] = [first] + [1] * (times - 1)
        try:
            interrupted.run()
        except KeyboardInterrupt:
            left.clear()
            assert [run.state for run in Runs(world.jobs).page()] in ([], ["stopped"])
        else:
            break
    left.clear()
    report = interrupted.run()
    assert (report.status, report.written, report.dead_lettered, report.crashes) == (
        "completed",
        4,
        1,
        0,
    )
    assert (world.rows(), world.letters()) == ([1, 3, 4, 5], [2])


def test_interrupted_run_ends_after_the_calls_in_progress(sqlite, monkeypatch):
    interrupted, run_ended = threading.Event(), threading.Event()
    late, end = [], runs.end

    def interrupt(*_):
        interrupted.set()
        raise KeyboardInterrupt

    def process(item):
        if item == 1:
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.wait(10)
        late.append(run_ended.wait(0.1))
        return item

    def ends(*arguments):
        run_ended.set()
        return end(*arguments)

    monkeypatch.setattr(runs, "end", ends)
    former = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            sqlite.step(range(100), process=process, concurrency=2, chunk_size=100).run()
    finally:
        signal.signal(signal.SIGINT, former)
    assert True not in late
    assert len(late) < 100  # no further item is begun
