"""Runs taken over by another process, commits with lost responses, unavailable servers."""

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from urllib.parse import urlsplit

import pytest
from attrs import evolve
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.exc import IntegrityError

from retrytemplate import (
    FixedBackoff,
    MaxAttemptsRetryPolicy,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate._storage import sql_engine as engines
from retrytemplate._storage.process_liveness import register_active_worker
from retrytemplate.batch import JobRepository, JobRepositoryError, RunInProgressError, SkipPolicy
from retrytemplate.batch.journal import runs
from retrytemplate.batch.journal.repository import JOB_REPOSITORY
from retrytemplate.testing import VirtualClock
from tests.batch.test_events import Recorder
from tests.support import postgres
from tests.support.crash_worker import Mill, Plan, say
from tests.support.event_log import EventLog
from tests.support.process_pool import processes
from tests.support.proxy import Proxy
from tests.support.step_fixture import World, accounted, run

LEASE = 0.5
turns = count(1)
worlds = count(1)


@pytest.fixture
def event_log(tmp_path):
    made = EventLog(tmp_path / "events")
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def mill(request, tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    made = Mill(url, f"taken{next(worlds)}", "sync", str(tmp_path))
    made.prepare()
    yield made
    made.clear()


@pytest.fixture
def on_postgresql(postgres_url, tmp_path):
    made = Mill(postgres_url, f"taken{next(worlds)}", "sync", str(tmp_path), LEASE)
    made.prepare()
    yield made
    made.clear()


@pytest.fixture
def stalled(event_log):
    """Let a process run a plan until it stops; returns a function that resumes it."""
    holders = []

    def start(mill, plan, turn):
        holder = processes.Process(target=say, args=(mill, plan, turn, event_log), daemon=True)
        holders.append(holder)
        holder.start()
        while state(holder.pid) != "T":
            assert holder.exitcode is None
            time.sleep(0.005)  # only the parent of a process is notified of a stop

        def go_on():
            os.kill(holder.pid, signal.SIGCONT)
            holder.join()
            (row,) = event_log.rows("ended")
            return row["how"]

        return go_on

    yield start
    for each in holders:
        each.kill()
        each.join()


def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def take_over(mill, plan, turn):
    """The report of the next process, after the lease of the stopped one has expired."""
    runs, run_id = mill.looking.tables.runs, mill.row(turn).id
    with mill.looking.transaction() as transaction:
        # Waits for an open transaction of the stopped process until the server ends it.
        expired = runs.update().where(runs.c.id == run_id).values(lease_until=0.0)
        transaction.execute(expired)
    return mill.run(plan, turn)


ALL = [list(range(1, 9)), []]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("place", ["process", "write", "commit"])
def test_process_stopped_past_its_lease_loses_the_run(on_postgresql, stalled, mode, place):
    mill, turn = evolve(on_postgresql, mode=mode), next(turns)
    plan = Plan(stall=6, place=place)
    go_on = stalled(mill, plan, turn)
    report = take_over(mill, plan, turn)
    assert (report.status, report.written, report.crashes) == ("completed", 8, 1)
    assert go_on() == "RunLostError"
    assert mill.result(turn) == ALL


def test_second_process_gets_the_holder_of_the_run(mill, stalled):
    turn = next(turns)
    go_on = stalled(mill, Plan(stall=6), turn)
    with pytest.raises(RunInProgressError, match="is in progress in") as raised:
        mill.run(Plan(), turn)
    assert raised.value.worker == mill.row(turn).worker
    assert go_on() == "completed"
    assert (mill.result(turn), mill.row(turn).crashes) == (ALL, 0)


@pytest.mark.parametrize("on_existing", ["resume", "restart"])
def test_second_concurrent_restart_gets_run_in_progress(postgresql, on_existing):
    jobs, tables = postgresql.jobs, postgresql.jobs.tables
    postgresql.step([1, 2, 3]).run()

    def begin(on_existing):
        request = postgresql.step()._request({}, on_existing)
        working.enter_context(register_active_worker(request.worker))
        with jobs.transaction() as transaction:
            run = runs.begin(transaction, tables, request)
            if not second:
                second.append(pool.submit(begin, second_one))
                wait_for_lock(jobs)
        return run

    second, second_one = [], on_existing
    with ExitStack() as working, ThreadPoolExecutor(1) as pool:
        first = begin("restart")
        with pytest.raises(RunInProgressError) as raised:
            second[0].result()
    assert raised.value.worker == first.request.worker


def wait_for_lock(jobs):
    """Until a transaction waits for a lock of another one."""
    query = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    with jobs.engine.connect() as connection:
        while not connection.execute(query).scalar():
            connection.rollback()
            time.sleep(0.01)  # the server does not notify of a lock wait


# Commits whose answer is lost.


@pytest.fixture
def proxied(postgres_url):
    """A world behind a proxy."""
    place = urlsplit(postgres_url)
    with Proxy(place.port, place.hostname) as proxy:
        user, at, _ = place.netloc.rpartition("@")
        url = place._replace(netloc=f"{user}{at}127.0.0.1:{proxy.port}").geturl()
        world = World(url, f"cut{next(worlds)}")
        yield world, proxy
        world.close()


def once(does, *arguments):
    """A processor that calls a function for the first item 2."""
    left = [1]

    def process(item, _=None):
        if item == 2 and left:
            left.pop()
            does(*arguments)
        return item

    return process


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize(("when", "rollbacks"), [("before", 1), ("after", 0)])
def test_items_of_an_unanswered_commit_are_written_once(proxied, mode, when, rollbacks, attempts):
    world, proxy = proxied
    retry = MaxAttemptsRetryPolicy(attempts)
    cutting = once(proxy.cut, when, b"COMMIT")
    first = run(world.step(range(1, 6), process=cutting, retry=retry), mode)
    assert proxy.cuts == 1
    assert accounted(first)
    if attempts == 1 and when == "before":
        assert (first.status, first.error.type_name) == (
            "failed",
            "sqlalchemy.exc.OperationalError",
        )
    else:
        assert first.status == "completed"
    report = run(world.step(range(1, 6), retry=retry), mode)
    assert (report.written, report.rollbacks, report.crashes) == (5, rollbacks, 0)
    assert world.rows() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("attempts", [1, 2])
def test_unanswered_commit_that_succeeded_has_no_rollback_event(proxied, mode, attempts):
    world, proxy = proxied
    recorder = Recorder()
    cutting = once(proxy.cut, "after", b"COMMIT")
    retry = MaxAttemptsRetryPolicy(attempts)
    run(world.step([1, 2], process=cutting, retry=retry, listeners=[recorder]), mode)
    assert [each for each in recorder.brief() if each[0] in ("rolled_back", "written")] == [
        ("written", 1, 2)
    ]


@pytest.mark.parametrize("when", ["before", "after"])
def test_run_begins_after_an_unanswered_begin(proxied, mode, when):
    world, proxy = proxied
    with world.jobs.transaction() as transaction:
        world.jobs.tables.metadata.drop_all(transaction)
    world.jobs.close()
    world.jobs = type(world.jobs)(world.url, prefix=world.prefix)
    proxy.cut(when, b"COMMIT")
    with pytest.raises(JobRepositoryError):
        run(world.step([1, 2, 3]), mode)
    report = run(world.step([1, 2, 3]), mode)
    assert (report.status, report.written, report.crashes) == ("completed", 3, 0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_run_interrupted_in_a_commit_has_no_suspect(postgresql, when):
    """The signal comes around the commit, which is applied or not."""
    step = postgresql.step(range(1, 6))

    def interrupt(*_):
        event.remove(engine, *query)
        raise KeyboardInterrupt

    engine = postgresql.jobs.engine
    query = ("commit", interrupt)
    if when == "after":
        original = engine.dialect.do_commit

        def do_commit(connection):
            original(connection)
            if postgresql.processed()[-1:] == [5]:
                del engine.dialect.do_commit
                raise KeyboardInterrupt

        engine.dialect.do_commit = do_commit
    else:
        step = postgresql.step(range(1, 6), process=once(event.listen, engine, *query))
    with pytest.raises(KeyboardInterrupt):
        step.run()
    report = postgresql.step(range(1, 6)).run()
    assert (report.status, report.written, report.crashes) == ("completed", 5, 0)
    assert postgresql.rows() == [1, 2, 3, 4, 5]


def test_run_cancelled_in_a_commit_has_no_suspect(world):
    async def cancelled():
        engine = engines.transaction_engine(
            engines.parse_url(world.url, JOB_REPOSITORY), 20.0, JOB_REPOSITORY, asynchronous=True
        )
        jobs = JobRepository(engine, prefix=world.prefix)

        def cancel(*_):
            event.remove(engine.sync_engine, "commit", cancel)
            task.cancel()

        process = once(event.listen, engine.sync_engine, "commit", cancel)
        step = world.step(range(1, 6), process=process, repository=jobs)
        task = asyncio.create_task(step.run_async())
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.dispose()

    asyncio.run(cancelled())
    report = world.step(range(1, 6)).run()
    assert (report.status, report.written, report.crashes) == ("completed", 5, 0)
    assert world.rows() == [1, 2, 3, 4, 5]


DEFERRED = "UNIQUE (text) DEFERRABLE INITIALLY DEFERRED"


def test_item_that_fails_the_commit_is_found_and_given_up(postgresql, mode):
    table = postgresql.out
    with postgresql.jobs.transaction() as transaction:
        transaction.execute(text(f"ALTER TABLE {table.name} ADD {DEFERRED}"))
        transaction.execute(table.insert().values(id=100, text="same"))

    def write(items, transaction):
        for item in items:
            transaction.execute(table.insert().values(id=item, text=str(item)))
            if item == 2:
                transaction.execute(table.update().where(table.c.id == 2).values(text="same"))

    step = postgresql.step(
        range(1, 6), writer=write, skip=SkipPolicy(on=IntegrityError), chunk_size=5
    )
    report = run(step, mode)
    assert (report.status, report.written, report.dead_lettered) == ("completed", 4, 1)
    assert (postgresql.rows(), postgresql.letters()) == ([1, 3, 4, 5, 100], [2])


# A server that crashes.


@pytest.fixture(scope="module")
def server(postgres_binaries, tmp_path_factory):
    """A server that the test may kill."""
    with postgres.started(postgres_binaries, tmp_path_factory.mktemp("batch") / "server") as made:
        yield made


@pytest.fixture
def mortal(server):
    """A step fixture on a server that the test may kill."""
    world = World(server.url, f"mortal{next(worlds)}")
    yield world
    world.close()


def restart(server):
    server.kill()
    server.start()


def test_server_crash_costs_an_attempt(mortal, server, mode):
    step = mortal.step(range(1, 6), process=once(restart, server), retry=MaxAttemptsRetryPolicy(3))
    report = run(step, mode)
    assert (report.status, report.written, report.dead_lettered) == ("completed", 5, 0)
    mortal.jobs.close()  # its connections are dead
    assert mortal.rows() == [1, 2, 3, 4, 5]


def test_unavailable_server_skips_no_item_and_the_run_resumes(mortal, server, mode):
    settings = {"retry": MaxAttemptsRetryPolicy(2), "skip": SkipPolicy(on=Exception)}
    with pytest.raises(JobRepositoryError):
        run(mortal.step(range(1, 6), process=once(server.kill), **settings), mode)
    server.start()
    mortal.jobs.close()  # its connections are dead
    report = run(mortal.step(range(1, 6), **settings), mode)
    assert (report.status, report.written, report.dead_lettered) == ("completed", 5, 0)
    assert report.crashes == 0
    assert mortal.rows() == [1, 2, 3, 4, 5]


async def disposing(running, engine):
    try:
        return await running
    finally:
        await engine.dispose()


def test_unavailable_database_of_the_items_skips_no_item(postgresql, server, mortal, mode):
    """The journal is elsewhere, and can be written."""
    url = engines.parse_url(server.url, JOB_REPOSITORY)
    table = mortal.out

    def write(items, transaction):
        transaction.execute(table.insert(), [{"id": item, "text": ""} for item in items])

    def begun(**process):
        asynchronous = mode == "async"
        database = engines.transaction_engine(url, 5.0, JOB_REPOSITORY, asynchronous=asynchronous)
        step = postgresql.step(
            range(1, 6),
            writer=write,
            database=database,
            retry=MaxAttemptsRetryPolicy(2),
            skip=SkipPolicy(on=Exception),
            **process,
        )
        if mode == "sync":
            try:
                return step.run()
            finally:
                database.dispose()
        return asyncio.run(disposing(step.run_async(), database))

    with pytest.raises(JobRepositoryError, match="the database of the items cannot be used"):
        begun(process=once(server.kill))
    server.start()
    mortal.jobs.close()  # its connections are dead
    report = begun()
    assert (report.status, report.written, report.dead_lettered, report.crashes) == (
        "completed",
        5,
        0,
        0,
    )
    assert mortal.rows() == [1, 2, 3, 4, 5]


# Between two attempts.


class Watching(VirtualClock):
    """Counts, at each sleep, the transactions that are open and idle on the server."""

    def __init__(self, world):
        super().__init__()
        self.engine = create_engine(make_url(world.url).set(drivername="postgresql+psycopg"))
        self.found = []

    def look(self):
        query = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
        with self.engine.connect() as connection:
            self.found.append(connection.execute(text(query)).scalar())

    def sleep(self, delay):
        self.look()
        super().sleep(delay)

    async def sleep_async(self, delay):
        self.look()
        await super().sleep_async(delay)


@pytest.mark.parametrize("rollback", ["transaction", "savepoint", "none"])
def test_no_transaction_is_open_during_a_backoff(postgresql, mode, rollback):
    left = [1, 2]

    def failing(item, _):
        if item == 3 and left:
            raise ValueError(left.pop())

    clock = Watching(postgresql)
    template = RetryTemplate(SimpleRetryPolicy(3), FixedBackoff(0.5), clock=clock)
    report = run(postgresql.step([1, 2, 3], write=failing, retry=template, rollback=rollback), mode)
    clock.engine.dispose()
    assert (report.status, clock.sleeps, clock.found) == ("completed", [0.5, 0.5], [0, 0])
    assert postgresql.rows() == [1, 2, 3]
