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
from tests.support.fork_server import processes
from tests.support.stalling_worker import STATE, WAYS, stall
from tests.support.witness import Witness

PATIENCE = 50.0


@pytest.fixture
def witness(tmp_path):
    made = Witness(tmp_path / "witness")
    yield made
    made.close()


@pytest.fixture
def overtaken(witness):
    """Let a holder be overtaken by another that ends well; what the holder says at last."""

    def run(store, way, target):
        arguments = ((store.url, store.prefix), witness, way, target)
        late = processes.Process(target=stall, args=arguments, daemon=True)
        late.start()
        while not witness.rows("in the callback"):  # polled: the process stops itself after it
            assert late.exitcode is None
            time.sleep(0.005)
        assert overtake(store, way, target) == 1
        while late.exitcode is None:
            os.kill(late.pid, signal.SIGCONT)
            late.join(0.1)
        late.join()  # closes its pipes, where exitcode was the first to see its end
        (row,) = witness.rows("out")
        return row["result"]

    return run


def overtake(store, way, target):
    """Take the key as soon as the store gives it; how many attempts were lost before."""
    template = RetryTemplate(SimpleRetryPolicy(3), cache=store.cache(), name="w")

    def handle(context):
        WAYS[way](target, context, "the other one")
        return context.retry_count

    while True:
        try:
            return template.execute(handle, state=STATE)
        except AttemptInProgressError:  # until the real lease ends in the store
            time.sleep(0.01)


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


@pytest.mark.parametrize("way", ["comparing_the_fence", "asking"])
def test_a_late_holder_writes_nothing_where_it_compares_the_fence_or_asks(
    store, overtaken, tmp_path, way
):
    target = tmp_path / "target.db"
    with sqlite3.connect(target) as connection:
        connection.execute("CREATE TABLE written (who text, fence bigint)")
        connection.execute("INSERT INTO written VALUES ('none', 0)")
    assert overtaken(store, way, str(target)) == "LeaseLostError"
    assert connection.execute("SELECT who FROM written").fetchall() == [("the other one",)]
    connection.close()
    assert is_remembered(store)
