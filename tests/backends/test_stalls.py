"""A holder that stalls past its lease, while another worker takes its key and ends."""

import os
import signal
import sqlite3
import time

import pytest

from retrytemplate import (
    AlreadyCompletedError,
    AttemptInProgressError,
    RetryTemplate,
    SimpleRetryPolicy,
)
from tests.support.event_log import EventLog
from tests.support.fork_server import processes
from tests.support.stalling_worker import CHECKS, STATE, stall

PATIENCE = 50.0


@pytest.fixture
def event_log(tmp_path):
    made = EventLog(tmp_path / "events")
    yield made
    made.close()


@pytest.fixture
def overtaken(event_log):
    """Let another worker take the key of a stalled holder; return the holder's result."""

    def run(store, check, target):
        arguments = ((store.url, store.prefix), event_log, check, target)
        late = processes.Process(target=stall, args=arguments, daemon=True)
        late.start()
        while not event_log.rows("in the callback"):  # polled: the process stops itself after it
            assert late.exitcode is None
            time.sleep(0.005)  # the interval of the polls
        assert overtake(store, check, target) == 1
        while late.exitcode is None:
            os.kill(late.pid, signal.SIGCONT)
            late.join(0.1)
        late.join()  # closes its pipes, where exitcode was the first to see its end
        (row,) = event_log.rows("out")
        return row["result"]

    return run


def overtake(store, check, target):
    """Take the key as soon as it is free; return the number of lost attempts."""
    template = RetryTemplate(SimpleRetryPolicy(3), cache=store.cache(), name="w")

    def handle(context):
        CHECKS[check](target, context, "the other one")
        return context.retry_count

    while True:
        try:
            return template.execute(handle, state=STATE)
        except AttemptInProgressError:
            time.sleep(0.01)  # until the real lease ends in the store


def is_remembered(store):
    template = RetryTemplate(cache=store.cache(), name="w")
    with pytest.raises(AlreadyCompletedError):
        template.execute(pytest.fail, state=STATE)
    return True


def test_late_holders_transaction_is_rolled_back(database, overtaken):
    database.sql("CREATE TABLE written (who text, fence bigint)")
    try:
        assert overtaken(database, "in_its_transaction", database.url) == "LeaseLostError"
        assert [row["who"] for row in database.sql("SELECT who FROM written")] == ["the other one"]
        assert is_remembered(database)
    finally:
        database.sql("DROP TABLE written")


@pytest.mark.parametrize("check", ["comparing_the_fence", "asking"])
def test_late_holder_writes_nothing_with_fence_or_still_mine(store, overtaken, tmp_path, check):
    target = tmp_path / "target.db"
    with sqlite3.connect(target) as connection:
        connection.execute("CREATE TABLE written (who text, fence bigint)")
        connection.execute("INSERT INTO written VALUES ('none', 0)")
    assert overtaken(store, check, str(target)) == "LeaseLostError"
    assert connection.execute("SELECT who FROM written").fetchall() == [("the other one",)]
    connection.close()
    assert is_remembered(store)
