"""The rows of the runs."""

import random
from contextlib import ExitStack

import pytest
from sqlalchemy import event
from sqlalchemy import text as sql

from retrytemplate._storage.process_liveness import register_active_worker
from retrytemplate.batch.journal import runs
from tests.support.step_fixture import run


@pytest.fixture(scope="module")
def text():
    """A long string that does not compress."""
    return "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=100_000))


def test_run_is_identified_by_parameters_of_any_length(world, mode, text):
    first = run(world.step([1]), mode, {"text": text})
    assert run(world.step([2]), mode, {"text": text}) == first
    assert run(world.step([3]), mode, {"text": f"{text}b"}).run_id != first.run_id
    assert world.rows() == [1, 3]


def test_step_name_of_500_characters_is_accepted_and_501_rejected(world, mode, text):
    assert run(world.step([1], name=text[:500]), mode).status == "completed"
    with pytest.raises(ValueError, match="name must have 500 characters at most, got 501"):
        world.step(name=text[:501])


def test_renewal_on_postgresql_bounds_the_time_without_a_commit(postgresql):
    jobs, tables = postgresql.jobs, postgresql.jobs.tables
    request = postgresql.step()._request({}, "resume")
    with register_active_worker(request.worker):
        with jobs.transaction() as transaction:
            begun = runs.begin(transaction, tables, request)
        with jobs.transaction() as transaction:
            runs.renew(transaction, tables, begun)
            bound = transaction.execute(sql("SHOW idle_in_transaction_session_timeout")).scalar()
    assert bound == "30s"


def test_each_lock_on_a_run_on_postgresql_bounds_the_time_without_a_commit(postgresql):
    jobs, tables = postgresql.jobs, postgresql.jobs.tables
    limits = []

    def record_limit(connection, cursor, statement, *_):
        locks = "FOR UPDATE" in statement or statement.startswith(("INSERT", "UPDATE"))
        if locks and cursor.rowcount:
            driver = connection.connection.driver_connection
            (limit,) = driver.execute("SHOW idle_in_transaction_session_timeout").fetchone()
            limits.append((statement.split()[0], limit))

    def begin(on_existing):
        request = postgresql.step()._request({}, on_existing)
        active.enter_context(register_active_worker(request.worker))
        with jobs.transaction() as transaction:
            return runs.begin(transaction, tables, request)

    with ExitStack() as active:
        event.listen(jobs.engine, "after_cursor_execute", record_limit)
        active.callback(event.remove, jobs.engine, "after_cursor_execute", record_limit)
        first = begin("resume")
        with jobs.transaction() as transaction:
            runs.is_applied(transaction, tables, first)
        with jobs.transaction() as transaction:
            runs.end(transaction, tables, first, "stopped")
        begin("restart")
    assert {statement for statement, _ in limits} == {"INSERT", "SELECT", "UPDATE"}
    assert {limit for _, limit in limits} == {"30s"}
