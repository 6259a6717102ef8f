"""The search for items at fault in one transaction, and where that is not possible."""

import asyncio

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DataError, IntegrityError

from retrytemplate import (
    Deadline,
    FixedBackoff,
    Guard,
    NeverRetryPolicy,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate._engine import attempt_timeout as limits
from retrytemplate._storage import sql_engine as engines
from retrytemplate.batch import (
    Cursor,
    JobRepository,
    JsonLinesReader,
    Outbox,
    ReaderError,
    SkipPolicy,
    StepListener,
)
from retrytemplate.batch.journal.repository import JOB_REPOSITORY
from retrytemplate.batch.runner import attempts
from retrytemplate.listeners import RetryListener
from retrytemplate.testing import VirtualClock
from tests.support.crash_worker import Bad
from tests.support.step_fixture import accounted, run


def fails(*at_fault):
    def write(item, _):
        if item in at_fault:
            raise Bad

    return write


def searching(**settings):
    """The settings of a step over eight items, of which some are given up."""
    skip = SkipPolicy(on=settings.pop("on", Bad), limit=settings.pop("limit", None))
    return {"chunk_size": 8, "retry": SimpleRetryPolicy(2), "skip": skip, **settings}


def test_search_commits_once_for_its_chunk(world):
    step = world.step(range(1, 9), write=fails(3, 7), **searching())
    commits = []
    event.listen(world.jobs.engine, "commit", commits.append)
    report = step.run()
    assert len(commits) == 3  # the run is taken, the chunk is searched, the run ends
    assert (world.rows(), world.letters()) == ([1, 2, 4, 5, 6, 8], [3, 7])
    assert accounted(report)


def test_search_uses_one_connection(sqlite):
    jobs, connections = JobRepository(sqlite.url, prefix=sqlite.prefix, timeout=0.1), []
    step = sqlite.step(range(1, 9), write=fails(3, 7), repository=jobs, **searching())
    event.listen(jobs.engine, "checkout", lambda *opened: connections.append(opened))
    step.run()
    jobs.close()
    # The run is taken, two attempts at the chunk, the search, the run ends.
    assert len(connections) == 5


def test_search_rolls_back_what_a_failed_part_did(world, mode):
    step = world.step(range(1, 9), write=fails(4), **searching())
    report = run(step, mode)
    assert world.rows() == [1, 2, 3, 5, 6, 7, 8]
    assert (report.retries, report.rollbacks) == (2, 6)


@pytest.mark.parametrize("rollback", ["savepoint", "none"])
def test_search_finds_the_same_items_with_other_isolation(world, mode, rollback):
    def writer(items, transaction):
        for item in items:
            fails(3, 7)(item, 0)
        rows = [{"id": item, "text": "x"} for item in items]
        transaction.execute(world.out.insert(), rows)

    step = world.step(range(1, 9), writer=writer, rollback=rollback, **searching())
    run(step, mode)
    assert (world.rows(), world.letters()) == ([1, 2, 4, 5, 6, 8], [3, 7])


def test_search_finds_the_item_that_the_database_rejects(world, mode):
    with world.jobs.transaction() as transaction:
        transaction.execute(world.out.insert().values(id=6, text="x"))
    report = run(world.step(range(1, 9), **searching(on=Exception)), mode)
    assert (world.rows(), world.letters()) == ([*range(1, 9)], [6])
    assert accounted(report)


def test_failure_that_ends_the_run_keeps_the_good_parts(world, mode):
    def write(item, _):
        if item == 3:
            raise KeyError(item)

    step = world.step(range(1, 9), write=write, **searching())
    report = run(step, mode)
    assert (report.status, world.rows(), report.pending) == ("failed", [1, 2], 6)
    assert accounted(report)
    assert run(world.step(range(1, 9)), mode).written == 8
    assert world.rows() == [1, 2, 3, 4, 5, 6, 7, 8]


class Waits(RetryListener):
    """Counts the connections that are in use during a wait."""

    def __init__(self, world):
        self.world, self.in_use = world, []

    def on_backoff(self, context, delay):
        self.in_use.append(self.world.jobs.engine.pool.checkedout())


@pytest.mark.parametrize("rollback", attempts.ROLLBACKS)
def test_no_transaction_is_open_while_an_item_waits(world, rollback):
    listener = Waits(world)
    template = RetryTemplate(
        policy=SimpleRetryPolicy(2), backoff=FixedBackoff(0.001), listeners=[listener]
    )
    settings = searching(retry=template, rollback=rollback)
    world.step(range(1, 9), write=fails(3), **settings).run()
    assert world.rows() == [1, 2, 4, 5, 6, 7, 8]
    assert listener.in_use == [0, 0]


def test_filtered_items_and_messages_are_those_of_the_search(sqlite, mode):
    sent = []
    outbox = Outbox(
        send=lambda message: sent.append(message.payload), message=lambda item: {"item": item}
    )
    step = sqlite.step(
        range(1, 9),
        process=lambda item: None if item == 2 else item,
        write=fails(3),
        outbox=outbox,
        **searching(),
    )
    report = run(step, mode)
    assert (report.filtered, report.written, report.dead_lettered) == (1, 6, 1)
    assert [each["item"] for each in sent] == [1, 4, 5, 6, 7, 8]


def test_source_that_changes_during_a_search_leaves_nothing_written(sqlite, mode, tmp_path):
    path = tmp_path / "numbers"
    path.write_text("".join(f"{number}\n" for number in range(1, 9)))

    def write(item, _):
        if [1, 2] in sqlite.writes():
            path.write_text("another file\n")
        fails(3)(item, 0)

    step = sqlite.step(reader=JsonLinesReader(path), write=write, **searching())
    report = run(step, mode)
    assert (report.status, type(report.exception)) == ("failed", ReaderError)
    assert (sqlite.rows(), sqlite.letters()) == ([], [])


# The transaction is lost in the middle.


def test_search_continues_apart_after_a_transaction_that_sqlite_ended(sqlite, mode):
    def writer(items, transaction):
        for item in items:
            fails(3)(item, 0)
            # A row with an existing key ends the whole transaction, not the statement.
            transaction.execute(
                text(f"INSERT OR ROLLBACK INTO {sqlite.out.name} VALUES (:id, 'x')"), {"id": item}
            )

    with sqlite.jobs.transaction() as transaction:
        transaction.execute(sqlite.out.insert().values(id=6, text="x"))
    step = sqlite.step(range(1, 9), writer=writer, **searching(on=Exception))
    report = run(step, mode)
    assert (sqlite.rows(), sqlite.letters()) == ([1, 2, 4, 5, 6, 7, 8], [3, 6])
    assert accounted(report)


def test_search_continues_apart_after_a_lost_connection(postgresql, mode):
    killed = []

    def writer(items, transaction):
        rows = [{"id": item, "text": "x"} for item in items]
        transaction.execute(postgresql.out.insert(), rows)
        if len(items) == 1 and not killed:
            killed.append(items)
            transaction.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        for item in items:
            fails(3)(item, 0)

    step = postgresql.step(range(1, 9), writer=writer, **searching())
    report = run(step, mode)
    assert (postgresql.rows(), postgresql.letters()) == ([1, 2, 4, 5, 6, 7, 8], [3])
    assert killed
    assert accounted(report)


def test_item_that_fails_at_the_commit_is_found(world, mode):
    table = world.out.name
    with world.jobs.transaction() as transaction:
        transaction.execute(
            text(
                f"ALTER TABLE {table} ADD COLUMN parent INTEGER REFERENCES {table} (id) "
                "DEFERRABLE INITIALLY DEFERRED"
            )
        )
    insert = text(f"INSERT INTO {table} (id, parent) VALUES (:id, :parent)")

    def writer(items, transaction):
        rows = [{"id": item, "parent": 99 if item == 6 else item} for item in items]
        transaction.execute(insert, rows)
        for item in items:
            fails(4)(item, 0)

    step = world.step(range(1, 9), writer=writer, **searching(on=Exception))
    report = run(step, mode)
    assert (world.rows(), world.letters()) == ([1, 2, 3, 5, 7, 8], [4, 6])
    assert accounted(report)


def test_commit_that_was_not_answered_is_looked_up(sqlite):
    step = sqlite.step(range(1, 9), write=fails(3), **searching())
    commits = []

    def committed(connection):
        commits.append(connection)
        if len(commits) == 2:  # that of the search: it came to pass, and its answer is lost
            connection.connection.driver_connection.commit()
            raise ConnectionResetError

    event.listen(sqlite.jobs.engine, "commit", committed)
    report = step.run()
    assert (report.status, report.written, report.dead_lettered) == ("completed", 7, 1)
    assert sqlite.rows() == [1, 2, 4, 5, 6, 7, 8]


def test_commit_that_failed_is_searched_apart(sqlite):
    step = sqlite.step(range(1, 9), write=fails(3), **searching())
    commits = []

    def committed(connection):
        commits.append(connection)
        if len(commits) == 2:
            raise ConnectionResetError

    event.listen(sqlite.jobs.engine, "commit", committed)
    report = step.run()
    assert (report.status, report.written, report.dead_lettered) == ("completed", 7, 1)
    assert sqlite.rows() == [1, 2, 4, 5, 6, 7, 8]
    assert len(commits) > 4


def test_commit_that_failed_is_looked_up_once(sqlite):
    begun, committed = [], []

    def commit(connection):
        committed.append(connection)
        if len(committed) == 2:  # that of the first attempt to write
            raise ConnectionResetError

    def write(item, _):
        if len(sqlite.writes()) == 2:
            raise Bad

    event.listen(sqlite.jobs.engine, "begin", begun.append)
    event.listen(sqlite.jobs.engine, "commit", commit)
    settings = searching(retry=SimpleRetryPolicy(3), rollback="none")
    report = sqlite.step([1], write=write, **settings).run()
    # The run is taken, the first attempt, the look-up, two attempts in one transaction, the end.
    assert len(begun) == 5
    assert (report.written, report.rollbacks, sqlite.rows()) == (1, 2, [1])


# A transaction cannot be begun.


def run_whose_write_begins_late(world, mode, **settings):
    """The report of a run whose first attempt to write cannot begin its transaction."""
    failures = []

    def process(item):
        failures.append(ConnectionResetError("no transaction"))
        return item

    def begin(connection):
        if failures:
            raise failures.pop()

    async def run_async():
        engine = engines.transaction_engine(
            engines.parse_url(world.url, JOB_REPOSITORY), 20.0, JOB_REPOSITORY, asynchronous=True
        )
        event.listen(engine.sync_engine, "begin", begin)
        jobs = JobRepository(engine, prefix=world.prefix)
        try:
            return await world.step([1], process=process, repository=jobs, **settings).run_async()
        finally:
            await engine.dispose()

    if mode == "async":
        return asyncio.run(run_async())
    event.listen(world.jobs.engine, "begin", begin)
    return world.step([1], process=process, **settings).run()


def test_transaction_that_cannot_begin_is_begun_by_the_next_attempt(sqlite, mode):
    report = run_whose_write_begins_late(sqlite, mode, retry=SimpleRetryPolicy(2))
    assert (report.status, report.rollbacks, sqlite.rows()) == ("completed", 1, [1])


def test_transaction_that_cannot_begin_fails_with_its_own_error(sqlite, mode):
    report = run_whose_write_begins_late(sqlite, mode, retry=NeverRetryPolicy())
    assert (report.status, str(report.exception)) == ("failed", "no transaction")


# A part is written, and its attempt fails afterwards.


class Listening(RetryListener):
    """Rejects the success of each first attempt to write, whose result is not empty."""

    def on_success(self, context, result):
        if result and context.retry_count == 0:
            raise ConnectionError


class Guarding(Guard):
    """The same as a guard."""

    on_success = Listening.on_success


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("observers", [{"listeners": [Listening()]}, {"guards": [Guarding()]}])
def test_part_whose_attempt_fails_afterwards_is_written_once(sqlite, mode, attempts, observers):
    sent = []
    template = RetryTemplate(policy=SimpleRetryPolicy(attempts), **observers)
    step = sqlite.step(
        range(1, 5),
        processor=None,
        write=fails(3),
        outbox=Outbox(send=lambda each: sent.append(each.payload), message=lambda item: item),
        **searching(retry=template, on=Exception),
    )
    report = run(step, mode)
    assert (sqlite.rows(), sqlite.letters(), sent) == ([1, 2, 4], [3], [1, 2, 4])
    assert (report.written, report.dead_lettered) == (3, 1)


@pytest.mark.parametrize("is_over", [False, True])
def test_part_that_a_deadline_cuts_at_its_end_is_written_once(sqlite, monkeypatch, is_over):
    scopes, cancel_after, emit = [], limits.cancel_after, attempts._emit

    def noted(seconds):
        scopes.append(cancel_after(seconds))
        return scopes[-1]

    def emitted(connection, statement):
        is_end = statement == attempts.RELEASE_SAVEPOINT and sqlite.writes()[-1] == [1, 2]
        if is_end and not is_over:  # while the statement is awaited
            scopes[-1]._expire()
        emit(connection, statement)
        if is_end and is_over:  # nothing is awaited after it
            scopes[-1]._expire()

    monkeypatch.setattr(limits, "cancel_after", noted)
    monkeypatch.setattr(attempts, "_emit", emitted)
    clock = VirtualClock()
    # A template with a guard makes every attempt itself.
    template = RetryTemplate(policy=SimpleRetryPolicy(2), guards=[Guard()], clock=clock)
    step = sqlite.step(range(1, 5), processor=None, write=fails(3), **searching(retry=template))
    with Deadline(30.0, clock=clock):
        report = run(step, "async")
    assert (sqlite.rows(), sqlite.letters()) == ([1, 2, 4], [3])
    assert (report.status, report.written, report.dead_lettered) == ("completed", 3, 1)
    assert sqlite.writes().count([1, 2]) == (1 if is_over else 2)


# An item is judged in a transaction that is lost afterwards.


class Recorder(StepListener):
    def __init__(self):
        self.decided = []

    def on_event(self, event):
        if event.kind in ("written", "dead_lettered"):
            self.decided += [(event.kind, number) for number in event.numbers]


def with_parents(world, items, *, exists=IntegrityError, **settings):
    """A step over pairs: an id, and a parent that must exist at the commit.

    :param exists: raised for an id that is in the table.
    """
    table = world.out.name
    with world.jobs.transaction() as transaction:
        transaction.execute(
            text(
                f"ALTER TABLE {table} ADD COLUMN parent INTEGER REFERENCES {table} (id) "
                "DEFERRABLE INITIALLY DEFERRED"
            )
        )
    insert = text(f"INSERT INTO {table} (id, parent) VALUES (:id, :parent)")

    def writer(items, transaction):
        for number, parent in items:
            try:
                transaction.execute(insert, {"id": number, "parent": parent})
            except IntegrityError as exc:
                raise exists("the id is in the table", None, exc) from None

    settings = searching(**settings)
    return world.step(items, writer=writer, processor=None, **settings)


def test_item_judged_in_a_transaction_that_fails_is_judged_again(sqlite, mode):
    recorder = Recorder()
    step = with_parents(
        sqlite,
        [[1, 99], [1, 1], [2, 2]],
        on=IntegrityError,
        listeners=[recorder],
    )
    report = run(step, mode)
    assert (sqlite.rows(), sqlite.letters()) == ([1, 2], [1])
    assert (report.written, report.dead_lettered, report.skipped) == (2, 1, 1)
    assert sorted(recorder.decided) == [("dead_lettered", 1), ("written", 2), ("written", 3)]


def test_letter_of_an_item_judged_twice_has_its_last_attempts(sqlite, mode):
    step = with_parents(sqlite, [[1, 1], [1, 1], [2, 99]], on=IntegrityError)
    report = run(step, mode)
    assert (sqlite.rows(), sqlite.letters()) == ([1], [2, 3])
    assert [len(sqlite.letter(number).attempts) for number in (2, 3)] == [2, 2]
    assert (report.dead_lettered, report.skipped) == (2, 2)


def test_skip_limit_counts_no_item_judged_in_a_lost_transaction(sqlite, mode):
    step = with_parents(sqlite, [[1, 99], [1, 1], [2, 2]], on=IntegrityError, limit=1)
    report = run(step, mode)
    assert (report.status, sqlite.rows(), sqlite.letters()) == ("completed", [1, 2], [1])


def test_failure_in_a_transaction_that_fails_does_not_end_the_run(sqlite, mode):
    items = [[1, 99], [1, 1], [2, 2]]
    step = with_parents(sqlite, items, exists=DataError, on=IntegrityError)
    report = run(step, mode)
    assert (report.status, sqlite.rows(), sqlite.letters()) == ("completed", [1, 2], [1])
    assert accounted(report)


def test_item_judged_before_the_source_fails_is_not_given_up(sqlite, mode, monkeypatch):
    failures = [ReaderError("the source cannot be read")]

    def verify(cursor):
        if failures:
            raise failures.pop()

    monkeypatch.setattr(Cursor, "verify", verify)
    report = run(sqlite.step(range(1, 5), write=fails(3), **searching()), mode)
    assert (report.status, sqlite.rows(), sqlite.letters()) == ("failed", [], [])
    assert (report.pending, report.skipped) == (4, 0)


# Engines of the caller, whose driver begins no transaction before a change.


class StopError(BaseException):
    """Ends the program in the middle of a search."""


@pytest.mark.parametrize("elsewhere", [False, True])
def test_part_of_a_search_is_not_committed_before_its_end(sqlite, elsewhere):
    engine = create_engine(sqlite.url)
    jobs = JobRepository(sqlite.url if elsewhere else engine, prefix=sqlite.prefix)

    def write(item, _):
        if [1, 2, 3, 4] in sqlite.writes() and item == 5:
            raise StopError
        fails(7)(item, 0)

    step = sqlite.step(
        range(1, 9),
        write=write,
        repository=jobs,
        database=engine if elsewhere else None,
        **searching(),
    )
    with pytest.raises(StopError):
        step.run()
    assert sqlite.rows() == []
    sqlite.calls.clear()
    report = sqlite.step(
        range(1, 9),
        write=fails(7),
        repository=jobs,
        database=engine if elsewhere else None,
        **searching(),
    ).run()
    assert (report.status, sqlite.rows()) == ("completed", [1, 2, 3, 4, 5, 6, 8])
    assert sqlite.letters() == [7]
    jobs.close()
    engine.dispose()
