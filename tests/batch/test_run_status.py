"""The status of runs in the journal."""

import sqlite3
import sys
from contextlib import closing

import attrs
import pytest
from sqlalchemy import URL, create_engine, text

from retrytemplate.batch import JobRepository, JobRepositoryError, Runs, RunStatus, SkipPolicy
from retrytemplate.batch.journal.run import Counts
from tests.support import forked_python

# A process that ends while an item is isolated.
DYING = """
import os, sys
from retrytemplate.batch import ChunkStep, JobRepository

def process(item):
    if item == 5:
        os._exit(9)
    return item

jobs = JobRepository(sys.argv[1], prefix=sys.argv[2])
step = ChunkStep(
    "copy", reader=range(9), processor=process, writer=lambda *_: None, chunk_size=3,
    repository=jobs, max_crashes=3,
)
step.run()
"""


def die(world):
    done = forked_python.run([sys.executable, "-c", DYING, world.url, world.prefix])
    assert done.returncode == 9


def fails_at(number):
    def process(item):
        if item == number:
            raise ValueError(f"item {item}")
        return item

    return process


def test_completed_run_has_the_counts_of_its_report(world):
    report = world.step(range(7)).run({"day": "2026-11-21"})
    [run] = Runs(world.jobs).page()

    assert (run.run_id, run.step, run.parameters) == (report.run_id, "copy", {"day": "2026-11-21"})
    assert (run.state, run.over, run.worker, run.progress) == ("completed", True, None, 1.0)
    assert {name: getattr(report, name) for name in attrs.asdict(run.counts)} == attrs.asdict(
        run.counts
    )
    assert run.started <= run.taken <= run.updated <= run.ended <= run.now
    assert run.rate == pytest.approx(7 / (run.ended - run.taken))
    assert run.remaining() is None


def test_failed_run_has_its_error_and_counts_since_the_resume(world):
    world.step(range(9), process=fails_at(5)).run()
    [run] = Runs(world.jobs).page()
    assert (run.state, run.error.type_name, run.error.message) == ("failed", "ValueError", "item 5")
    assert (run.counts.written, run.done_before) == (3, 0)

    world.step(range(9)).run()
    [run] = Runs(world.jobs).page()
    assert (run.state, run.error, run.done_before) == ("completed", None, 3)
    assert run.rate == pytest.approx(6 / (run.ended - run.taken))


def test_status_of_a_run_in_progress_has_its_holder_and_progress(world):
    seen = []

    def process(item):
        seen.extend(Runs(world.jobs).page())
        return item

    world.step(range(6), processor=process).run()

    first, last = seen[0], seen[-1]
    assert (first.state, first.over, first.counts.done, first.progress) == (
        "running",
        False,
        0,
        None,
    )
    assert first.remaining() is None
    assert first.worker == last.worker is not None
    assert first.lease_until > first.now
    assert (last.counts.written, last.progress) == (3, 0.5)
    assert last.remaining(rate=2.0) == pytest.approx(1.5)


def test_crashed_run_is_shown_before_its_lease_expires(world):
    die(world)
    [run] = Runs(world.jobs).page()
    assert (run.state, run.over) == ("crashed", False)
    assert run.lease_until > run.now


def test_suspects_are_the_pending_items_of_a_crashed_chunk(world):
    die(world)
    seen = []

    def process(item):
        seen.extend(Runs(world.jobs).page())
        return item

    world.step(range(9), processor=process).run()
    isolating = [
        (run.counts.written, run.suspects, run.isolated_item) for run in seen if run.isolating
    ]
    assert isolating == [(3, 3, 1), (4, 2, 2), (5, 1, 3)]
    assert [run.isolating for run in seen[-3:]] == [False] * 3
    assert seen[-1].suspects is None
    assert seen[-1].counts.crashes == 1


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ({"step": b"copy"}, "step must be a non-empty str or None, got b'copy'"),
        ({"step": ""}, "step must be a non-empty str or None, got ''"),
        ({"step": "\ud800"}, r"step must be a string that a database can store, got '\\ud800'"),
        (
            {"status": "crashed"},
            "status must be 'running' or 'completed' or .* or None, got 'crashed'",
        ),
        ({"status": 1}, "status must be 'running'"),
        ({"before": True}, "before must be an int or None, got True"),
        ({"before": "2"}, "before must be an int or None, got '2'"),
        ({"before": 10**30}, "before must be a signed 64-bit int or None, got 1000"),
        ({"limit": 10**30}, "limit must be a signed 64-bit int, got 1000"),
    ],
)
def test_unknown_filter_is_rejected_by_name(world, filters, says):
    with pytest.raises((TypeError, ValueError), match=says):
        Runs(world.jobs).page(**filters)


@pytest.mark.parametrize(
    ("number", "error"),
    [("1", TypeError), (True, TypeError), (1.0, TypeError), (None, TypeError), (2**63, ValueError)],
)
def test_value_that_is_not_a_run_number_is_rejected(world, number, error):
    for ask in (Runs(world.jobs).find, world.jobs.abandon):
        with pytest.raises(error, match=r"run_id must be (an|a signed 64-bit) int, got"):
            ask(number)


@pytest.mark.parametrize("number", [0, -1, 2**63 - 1])
def test_missing_run_is_not_found(world, number):
    assert Runs(world.jobs).find(number) is None
    assert not world.jobs.abandon(number)


def test_pages_begin_with_the_newest_run(world):
    for day in range(5):
        world.step(range(2)).run({"day": day})
        with world.jobs.transaction() as transaction:
            transaction.execute(world.out.delete())
    world.step(process=fails_at(1), items=range(2), name="other").run()
    runs = Runs(world.jobs)

    assert [run.step for run in runs.page()] == ["other", *["copy"] * 5]
    assert [run.parameters["day"] for run in runs.page(step="copy", limit=2)] == [4, 3]
    newest = runs.page(step="copy", limit=2)[-1].run_id
    assert [run.parameters["day"] for run in runs.page(step="copy", before=newest)] == [2, 1, 0]
    assert [run.step for run in runs.page(status="failed")] == ["other"]


def test_run_is_found_by_its_number(world):
    report = world.step(range(2)).run()
    assert Runs(world.jobs).find(report.run_id).state == "completed"
    assert Runs(world.jobs).find(report.run_id + 1) is None


def test_unreadable_row_hides_no_other_run(world):
    for day in (1, 2):
        world.step([]).run({"day": day})
    with world.jobs.transaction() as transaction:
        runs = world.jobs.tables.runs
        transaction.execute(runs.update().where(runs.c.id == 1).values(checkpoint='{"format": 99}'))
    second, first = Runs(world.jobs).page()
    assert "newer version" in first.problem
    assert (first.state, second.problem) == ("completed", None)


def test_status_neither_waits_for_writers_nor_blocks_them(world):
    world.step(range(2)).run()
    with world.jobs.transaction() as transaction:
        runs = world.jobs.tables.runs
        transaction.execute(runs.update().values(progress=0.25))
        [run] = Runs(world.jobs).page()
        assert run.progress == 1.0


def test_looking_makes_no_file_and_no_table(tmp_path):
    path = tmp_path / "jobs.db"
    with JobRepository(f"sqlite:///{path}") as jobs:
        with pytest.raises(JobRepositoryError, match=f"there is no file {path}"):
            Runs(jobs).page()
        assert not path.exists()
        sqlite3.connect(path).close()
        path.touch()
        with pytest.raises(JobRepositoryError, match=r"the database has no tables batch_\*"):
            Runs(jobs).find(1)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []


def test_tables_of_a_newer_version_are_rejected(world):
    world.step([]).run()
    with world.jobs.transaction() as transaction:
        transaction.execute(world.jobs.tables.meta.update().values(value=99))
    with pytest.raises(JobRepositoryError, match="have version 99"):
        Runs(world.jobs).page()
    with world.jobs.transaction() as transaction:
        transaction.execute(world.jobs.tables.meta.update().values(value=1))


def test_url_object_is_accepted(tmp_path):
    path = tmp_path / "jobs of?2026#.db"  # characters of which no text of a URL is made
    with JobRepository(URL.create("sqlite", database=str(path))) as jobs:
        with jobs.transaction():
            pass
        assert Runs(jobs).page() == []
    assert path.exists()


def test_engine_argument_is_used_and_stays_open(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/jobs.db")
    with JobRepository(engine) as jobs:
        with jobs.transaction():
            pass
        assert Runs(jobs).page() == []
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM batch_runs")).scalar() == 0
    engine.dispose()


def test_run_is_abandoned_once_and_never_after_completion(world):
    completed = world.step(range(2)).run()
    stopped = world.step(range(9), process=fails_at(5), name="other", skip=SkipPolicy()).run()
    assert [world.jobs.abandon(stopped.run_id) for _ in range(2)] == [True, False]
    assert not world.jobs.abandon(completed.run_id)
    assert not world.jobs.abandon(99)
    assert [run.state for run in Runs(world.jobs).page()] == ["abandoned", "completed"]


def a_status(**fields):
    usual = {
        "run_id": 1,
        "step": "copy",
        "parameters": {},
        "generation": 1,
        "state": "running",
        "worker": "here:1:a-1",
        "lease_until": 130.0,
        "counts": Counts(read=60, written=40, filtered=15, dead_lettered=5, skipped=5),
        "pending": 0,
        "progress": 0.6,
        "isolating": False,
        "suspects": None,
        "isolated_item": None,
        "exactly_once": True,
        "error": None,
        "code_version": None,
        "started": 10.0,
        "taken": 80.0,
        "done_before": 20,
        "updated": 99.0,
        "ended": None,
        "now": 100.0,
    }
    return RunStatus(**usual | fields)


@pytest.mark.parametrize(
    ("fields", "rate"),
    [
        ({}, 2.0),
        ({"state": "crashed", "updated": 84.0}, 10.0),
        ({"state": "completed", "ended": 100.0}, 2.0),
        ({"taken": None}, None),
        ({"taken": 100.0}, None),
    ],
)
def test_rate_counts_items_since_the_run_was_taken(fields, rate):
    assert a_status(**fields).rate == rate


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, pytest.approx(20.0)),
        ({"progress": None}, None),
        ({"progress": 0.0}, None),
        ({"progress": 1.0}, 0.0),
        ({"counts": Counts()}, None),
        ({"state": "failed"}, None),
    ],
)
def test_remaining_time_assumes_the_rate_of_earlier_items(fields, seconds):
    assert a_status(**fields).remaining() == seconds


def test_status_as_json_has_counts_beside_the_other_fields():
    status = a_status(error=None)
    data = status.as_json()
    assert (data["run_id"], data["read"], data["written"], data["rate"]) == (1, 60, 40, 2.0)
    assert (data["claimed_at"], data["done_before_claim"]) == (status.taken, status.done_before)
    assert data["remaining_seconds"] == pytest.approx(20.0)
    assert data["error"] is None
    assert "counts" not in data
