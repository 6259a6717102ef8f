"""Failures of the infrastructure during a run."""

from operator import itemgetter

import pytest
from sqlalchemy import create_engine, event, text

from retrytemplate import LeaseLostError, SimpleRetryPolicy
from retrytemplate.batch import (
    ChunkStep,
    JobRepository,
    JobRepositoryError,
    JsonLinesReader,
    QueryReader,
    RunLostError,
    SkipPolicy,
)
from tests.batch.test_scenarios import always
from tests.support.step_fixture import accounted, run


class Disk:
    """Number of pages of the database: a full disk, and one with free space again."""

    def __init__(self, engine):
        self.engine = engine
        with engine.connect() as connection:
            self.used = connection.exec_driver_sql("PRAGMA page_count").scalar()
        self.pages = 0
        event.listen(engine, "begin", self.limit)

    def limit(self, connection):
        if self.pages:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {self.pages}")


def test_full_disk_ends_the_run_which_is_resumed_later(sqlite):
    disk = Disk(sqlite.jobs.engine)
    disk.pages = disk.used + 2
    big = "x" * 3000

    def write(items, transaction):
        rows = [{"id": item, "text": big} for item in items]
        transaction.execute(sqlite.out.insert(), rows)

    step = sqlite.step(range(1, 31), writer=write, retry=SimpleRetryPolicy(1))
    report = step.run()
    assert report.status == "failed"
    assert "full" in str(report.error)
    assert accounted(report)
    assert len(sqlite.rows()) == report.written < 30
    disk.pages = 1_000_000
    report = step.run()
    assert (report.status, report.written) == ("completed", 30)
    assert sqlite.rows() == list(range(1, 31))


def test_truncated_file_ends_the_resumed_run(world, mode, tmp_path):
    path = tmp_path / "numbers.jsonl"
    path.write_text("".join(f"{n}\n" for n in range(1, 8)))

    def process(item):
        if item == 5:
            raise OSError("not now")
        return item

    assert run(world.step(reader=JsonLinesReader(path), process=process), mode).written == 3
    path.write_text("1\n")
    report = run(world.step(reader=JsonLinesReader(path)), mode)
    assert report.status == "failed"
    assert "numbers.jsonl" in str(report.error)
    assert world.rows() == [1, 2, 3]


@pytest.mark.parametrize("attempts", [1, 2])
def test_source_without_items_of_the_chunk_in_progress_ends_the_run(sqlite, mode, attempts):
    retry = SimpleRetryPolicy(attempts)
    report = run(sqlite.step([1, 2, 3], process=always(3), retry=retry), mode)
    assert (report.status, report.read, report.pending) == ("failed", 3, 3)
    report = run(sqlite.step([1]), mode)
    assert (report.status, sqlite.rows()) == ("failed", [])
    assert "has 1 items, but the chunk in progress had 3" in str(report.error)


@pytest.fixture
def partly_written(sqlite):
    """A step over a query; its run failed after the first two of the four items of a chunk."""
    with sqlite.jobs.engine.begin() as transaction:
        transaction.execute(text("CREATE TABLE numbers (id INTEGER PRIMARY KEY)"))
        for number in range(1, 10):
            transaction.execute(text("INSERT INTO numbers VALUES (:id)"), {"id": number})
    failures = [ValueError("of four"), ValueError("of two"), KeyError("a defect")]

    def write(item, number):
        if item == 3 and failures:
            raise failures.pop(0)

    step = sqlite.step(
        reader=QueryReader("SELECT id FROM numbers", engine=sqlite.jobs.engine),
        processor=itemgetter("id"),
        write=write,
        skip=SkipPolicy(on=ValueError),
        retry=SimpleRetryPolicy(1),
        chunk_size=4,
    )
    assert step.run().pending == 2
    assert sqlite.rows() == [1, 2]
    return step


@pytest.mark.parametrize("added", [(), (-1, 0)], ids=["only lost", "lost and added"])
def test_query_that_has_lost_written_items_of_the_chunk_in_progress_ends_the_run(
    sqlite, partly_written, added
):
    with sqlite.jobs.engine.begin() as transaction:
        transaction.execute(text("DELETE FROM numbers WHERE id <= 2"))
        for number in added:
            transaction.execute(text("INSERT INTO numbers VALUES (:id)"), {"id": number})
    report = partly_written.run()
    assert (report.status, sqlite.rows()) == ("failed", [1, 2])
    assert "query has other items than the chunk in progress, of which some" in str(report.error)


def test_query_with_the_same_items_resumes_a_chunk_that_is_partly_written(sqlite, partly_written):
    assert partly_written.run().status == "completed"
    assert sqlite.rows() == list(range(1, 10))


def test_query_may_lose_items_of_a_chunk_of_which_none_is_written(sqlite):
    with sqlite.jobs.engine.begin() as transaction:
        transaction.execute(text("CREATE TABLE numbers (id INTEGER PRIMARY KEY)"))
        transaction.execute(text("INSERT INTO numbers VALUES (1), (2), (3), (4)"))
    reader = QueryReader("SELECT id FROM numbers", engine=sqlite.jobs.engine)
    settings = {"reader": reader, "processor": itemgetter("id"), "chunk_size": 2}
    assert sqlite.step(write=always(1), **settings).run().status == "failed"
    with sqlite.jobs.engine.begin() as transaction:
        transaction.execute(text("DELETE FROM numbers WHERE id = 2"))
    assert sqlite.step(**settings).run().status == "completed"
    assert sqlite.rows() == [1, 3, 4]


def test_unreachable_repository_is_named(tmp_path):
    jobs = JobRepository(f"sqlite:///{tmp_path}/missing/jobs.db")
    step = ChunkStep("lost", reader=[1], writer=lambda items, tx: None, repository=jobs)
    with pytest.raises(JobRepositoryError, match="unable to open database file"):
        step.run()
    jobs.close()


def test_tables_of_a_newer_version_are_left_alone(sqlite):
    sqlite.step([1]).run()
    meta = sqlite.jobs.tables.meta
    with sqlite.jobs.transaction() as transaction:
        transaction.execute(meta.update().values(value=99))
    later = JobRepository(sqlite.url, prefix=sqlite.prefix)
    with pytest.raises(JobRepositoryError, match="version 99"), later.transaction():
        pass
    later.close()


def test_unreadable_marker_is_an_error_and_nothing_is_done(sqlite):
    runs = sqlite.jobs.tables.runs
    sqlite.step([1, 2], process=lambda item: 1 / 0, retry=SimpleRetryPolicy(1)).run()
    for checkpoint in ("no json", "[]", '{"format": 99}'):
        with sqlite.jobs.transaction() as transaction:
            transaction.execute(runs.update().values(checkpoint=checkpoint))
        with pytest.raises(JobRepositoryError):
            sqlite.step([1, 2]).run()
    assert sqlite.rows() == []


def test_engine_of_the_caller_is_used_and_stays_open(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/jobs.db")
    with JobRepository(engine) as jobs:
        step = ChunkStep("give", reader=[1], writer=lambda items, tx: None, repository=jobs)
        assert step.run().written == 1
    with engine.connect() as connection:  # it is not closed with the repository
        connection.exec_driver_sql("SELECT 1")
    engine.dispose()


def test_lease_lost_in_the_writer_is_a_failed_write(sqlite, mode):
    """For example the lease of a durable cache that the writer uses."""

    def write(items, transaction):
        raise LeaseLostError("the lease of a key")

    report = run(sqlite.step([1], writer=write, retry=SimpleRetryPolicy(2)), mode)
    assert (report.status, report.rollbacks) == ("failed", 1)


def test_run_that_is_taken_over_during_a_write_is_lost(sqlite, mode):
    def write(items, transaction):
        transaction.execute(sqlite.jobs.tables.runs.update().values(fence=17))

    step = sqlite.step([1], writer=write, skip=SkipPolicy(on=Exception))
    with pytest.raises(RunLostError):
        run(step, mode)


def test_postgresql_lock_wait_is_limited_by_the_timeout(postgresql):
    jobs = JobRepository(postgresql.url, prefix=postgresql.prefix, timeout=0.2)
    postgresql.step([1]).run()
    runs = postgresql.jobs.tables.runs
    with postgresql.jobs.transaction() as transaction:
        transaction.execute(runs.update().values(code_version="held"))
        step = postgresql.step([1], repository=jobs)
        with pytest.raises(JobRepositoryError, match="lock timeout"):
            step.run()
    jobs.close()
