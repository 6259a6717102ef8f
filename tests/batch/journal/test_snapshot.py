"""The snapshot of a job repository: progress and open dead letters by step."""

import gc
import json
import os
from pathlib import Path

import pytest
from sqlalchemy import create_engine, func, inspect, select
from sqlalchemy.ext.asyncio import create_async_engine

from retrytemplate.batch import DeadLetters, JobRepository, JobRepositoryError
from retrytemplate.listeners.defaults import live_components
from retrytemplate.testing import VirtualClock
from tests.batch.test_scenarios import always, skipping

EMPTY = {"progress": {}, "backlog": {}}


def shown(jobs):
    snapshot = jobs.snapshot()
    return {"progress": snapshot.progress, "backlog": snapshot.backlog}


def reader_of(world, **settings):
    """Another repository on the database of a world."""
    return JobRepository(world.url, prefix=world.prefix, **settings)


def lose_item(world, name="copy", number=1, parameters=None):
    """Run a step of four items, of which one has a dead letter."""
    items = range(number, number + 4)
    world.step(items, name=name, process=always(number), **skipping()).run(parameters or {})


def test_snapshot_has_the_progress_and_open_letters_of_each_step(world):
    lose_item(world)
    lose_item(world, "copy", 11, {"day": 2})
    world.step(range(20, 23), name="clean").run()
    assert shown(reader_of(world)) == {
        "progress": {"copy": 1.0, "clean": 1.0},
        "backlog": {"copy": 2, "clean": 0},
    }


def test_progress_is_that_of_the_newest_run(sqlite):
    sqlite.step(range(6)).run({"day": 1})
    report = sqlite.step(range(10, 16), process=always(11)).run({"day": 2})
    assert report.status == "failed"
    assert shown(reader_of(sqlite))["progress"] == {"copy": 0.5}


def test_unknown_progress_is_left_out_and_the_backlog_is_shown(sqlite):
    lose_item(sqlite)
    with sqlite.jobs.transaction() as transaction:
        transaction.execute(sqlite.jobs.tables.runs.update().values(progress=None))
    assert shown(reader_of(sqlite)) == {"progress": {}, "backlog": {"copy": 1}}


def test_backlog_is_zero_after_the_last_letter_is_discarded(sqlite):
    lose_item(sqlite)
    [letter] = DeadLetters(sqlite.jobs).page()
    DeadLetters(sqlite.jobs).discard([letter.id], by="ada", reason="test data")
    assert shown(reader_of(sqlite))["backlog"] == {"copy": 0}


# Readings.


def test_snapshot_is_read_again_after_15_seconds(sqlite):
    clock = VirtualClock()
    jobs = reader_of(sqlite, clock=clock)
    assert shown(jobs) == EMPTY
    lose_item(sqlite)
    clock.advance(14.9)
    assert shown(jobs) == EMPTY
    clock.advance(0.2)
    assert shown(jobs)["backlog"] == {"copy": 1}


def test_failed_reading_raises_for_15_seconds_without_another_one(sqlite, monkeypatch):
    clock, readings = VirtualClock(), []
    jobs = reader_of(sqlite, clock=clock)
    read = jobs._read_snapshot

    def fail():
        readings.append(clock.time())
        raise JobRepositoryError("the job repository cannot be used: no answer")

    monkeypatch.setattr(jobs, "_read_snapshot", fail)
    for _ in range(3):
        with pytest.raises(JobRepositoryError, match="no answer"):
            jobs.snapshot()
    assert len(readings) == 1
    monkeypatch.setattr(jobs, "_read_snapshot", read)
    clock.advance(15.0)
    assert shown(jobs) == EMPTY


def test_snapshot_in_another_thread_meanwhile_is_the_last_one(sqlite, monkeypatch):
    clock = VirtualClock()
    jobs = reader_of(sqlite, clock=clock)
    lose_item(sqlite)
    before = jobs.snapshot()
    clock.advance(15.0)
    read, meanwhile = jobs._read_snapshot, []

    def read_slowly():
        meanwhile.append(jobs.snapshot())
        return read()

    monkeypatch.setattr(jobs, "_read_snapshot", read_slowly)
    assert jobs.snapshot() is not before
    assert meanwhile == [before]
    assert meanwhile[0] is before


def test_damaged_file_raises_job_repository_error(tmp_path):
    (tmp_path / "jobs.db").write_text("no database" * 100)
    with pytest.raises(JobRepositoryError, match="the job repository cannot be used"):
        JobRepository(f"sqlite:///{tmp_path}/jobs.db").snapshot()


def test_server_that_cannot_be_reached_raises_job_repository_error():
    jobs = JobRepository("postgresql://ada:secret@127.0.0.1:1/jobs", timeout=0.1)
    with pytest.raises(JobRepositoryError, match="the job repository cannot be used") as error:
        jobs.snapshot()
    assert "secret" not in str(error.value)


def test_statement_of_a_snapshot_has_the_limit_of_the_repository(postgresql, monkeypatch):
    limits = []

    def read(connection, tables):
        limits.append(connection.scalar(select(func.current_setting("statement_timeout"))))
        return {}

    monkeypatch.setattr("retrytemplate.batch.journal.runs.newest_progress", read)
    assert shown(reader_of(postgresql, timeout=3.0)) == EMPTY
    assert limits == ["6s"]


# Missing tables.


@pytest.mark.parametrize("given", [str, create_engine])
def test_missing_file_gives_no_values_and_is_not_created(tmp_path, given):
    jobs = JobRepository(given(f"sqlite:///{tmp_path}/jobs.db"))
    assert shown(jobs) == EMPTY
    assert [*tmp_path.iterdir()] == []


def test_missing_tables_give_no_values_and_are_not_created(world):
    jobs = JobRepository(world.url, prefix="missing")
    assert shown(jobs) == EMPTY
    names = inspect(world.jobs.engine).get_table_names()
    assert [name for name in names if name.startswith("missing")] == []


# Engines, and the life of a repository.


@pytest.mark.parametrize("kind", ["Engine", "AsyncEngine"])
async def test_snapshot_of_a_repository_on_an_engine_reads_its_database(sqlite, kind):
    lose_item(sqlite)
    if kind == "Engine":
        engine = create_engine(sqlite.url)
        assert shown(JobRepository(engine))["backlog"] == {"copy": 1}
        engine.dispose()
        return
    engine = create_async_engine(sqlite.url.replace("sqlite:", "sqlite+aiosqlite:"))
    assert shown(JobRepository(engine))["backlog"] == {"copy": 1}
    await engine.dispose()


def test_snapshot_leaves_no_open_connection(sqlite):
    jobs = reader_of(sqlite)
    lose_item(sqlite)
    sqlite.jobs.close()
    jobs.snapshot()
    files = {os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()}
    assert [each for each in files if each.startswith(sqlite.jobs._url.database)] == []


def test_snapshot_in_a_forked_child_is_read_from_the_database(sqlite):
    clock = VirtualClock()
    jobs = reader_of(sqlite, clock=clock)
    assert shown(jobs) == EMPTY
    lose_item(sqlite)
    sqlite.jobs.close()
    clock.advance(15.0)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, json.dumps(shown(jobs)).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as result:
        in_child = json.load(result)
    assert in_child == shown(jobs) == {"progress": {"copy": 1.0}, "backlog": {"copy": 1}}


def test_closed_repository_is_no_live_component_until_it_is_entered():
    jobs = JobRepository("sqlite:///jobs.db")
    assert jobs in live_components()
    jobs.close()
    assert jobs not in live_components()
    with jobs:
        assert jobs in live_components()
    assert jobs not in live_components()


def test_live_components_keep_no_repository_alive():
    JobRepository("sqlite:///jobs.db", prefix="alone")
    gc.collect()
    assert [each for each in live_components() if getattr(each, "prefix", "") == "alone"] == []


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:////data/jobs.db", "sqlite:////data/jobs.db batch"),
        ("sqlite+pysqlite:////data/jobs.db?timeout=5", "sqlite:////data/jobs.db batch"),
        ("postgresql://ada:secret@db:5433/shop", "postgresql://db:5433/shop batch"),
        (
            "postgresql+psycopg://ada@/shop?host=/run/pg&password=secret",
            "postgresql:///shop?host=%2Frun%2Fpg batch",
        ),
    ],
)
def test_name_is_the_database_without_user_and_password(url, name):
    assert JobRepository(url).name == name


def test_clock_without_its_methods_raises_type_error():
    with pytest.raises(TypeError, match="clock must be an object with the methods"):
        JobRepository("sqlite:///jobs.db", clock=17)
