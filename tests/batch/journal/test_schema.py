"""The tables are created on first use, also after an interruption, and on any engine."""

import asyncio
import threading
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine, event, inspect
from sqlalchemy.ext.asyncio import create_async_engine

from retrytemplate.batch import ChunkStep, JobRepository, JobRepositoryError, Runs


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/jobs.db"


@contextmanager
def engine(url):
    """An engine of the caller that starts no transaction for DDL statements."""
    made = create_engine(url, connect_args={"timeout": 60})
    yield made
    made.dispose()


def step(repository, name="count"):
    return ChunkStep(name, reader=[1], writer=lambda items, tx: None, repository=repository)


class Cut(Exception):
    """Interrupts the first use."""


def cut_off_at(engine, number):
    """Whether the first use reached the n-th writing statement."""
    wrote = []

    def count(*arguments):
        if arguments[2].lstrip().startswith(("CREATE", "INSERT")):
            wrote.append(arguments[2])
        if len(wrote) > number:
            raise Cut

    event.listen(engine, "before_cursor_execute", count)
    try:
        with JobRepository(engine).transaction():
            return False
    except Cut:
        return True


def test_repository_works_after_an_interrupted_first_use(tmp_path):
    number = 0
    while True:
        url = f"sqlite:///{tmp_path}/{number}.db"
        with engine(url) as first:
            cut = cut_off_at(first, number)
        with engine(url) as second:
            assert step(JobRepository(second)).run().status == "completed"
            indexes = [index["name"] for index in inspect(second).get_indexes("batch_letters")]
            assert {"batch_letters_key", "batch_letters_state"} <= set(indexes)
        with JobRepository(url) as third:
            assert len(Runs(third).page()) == 1
        if not cut:
            break
        number += 1
    assert number > 5


def test_incomplete_tables_are_not_read(url):
    with engine(url) as first:
        assert cut_off_at(first, 2)
    with JobRepository(url) as jobs, pytest.raises(JobRepositoryError, match="has no tables"):
        Runs(jobs).page()


def test_threads_with_engines_of_their_own_may_be_first_at_once(url):
    start, came = threading.Barrier(4), []

    def first(number):
        with engine(url) as mine:
            start.wait(30)
            came.append(step(JobRepository(mine), f"count{number}").run().status)

    threads = [threading.Thread(target=first, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert came == ["completed"] * 4


async def test_tasks_on_an_engine_of_the_callers_may_be_first_at_once(url):
    mine = create_async_engine(
        url.replace("sqlite:", "sqlite+aiosqlite:"), connect_args={"timeout": 60}
    )
    jobs = JobRepository(mine)
    reports = await asyncio.gather(*(step(jobs, f"count{n}").run_async() for n in range(4)))
    await mine.dispose()
    assert [report.status for report in reports] == ["completed"] * 4


def test_tables_of_a_newer_version_are_left_alone(world):
    meta = world.jobs.tables.meta
    with world.jobs.transaction() as transaction:
        transaction.execute(meta.update().values(value=99))
    try:
        with JobRepository(world.url, prefix=world.prefix) as jobs:
            for use in (step(jobs).run, Runs(jobs).page):
                with pytest.raises(JobRepositoryError, match="have version 99, this library"):
                    use()
    finally:
        with world.jobs.transaction() as transaction:
            transaction.execute(meta.update().values(value=1))
