"""A worker that is killed between its work and the acknowledgement: number of repetitions."""

import pytest

from tests.support.acknowledging_worker import deliver
from tests.support.fork_server import processes
from tests.support.witness import Witness


@pytest.fixture
def witness(tmp_path):
    made = Witness(tmp_path / "witness")
    yield made
    made.close()


@pytest.fixture
def redelivered(witness):
    """Deliver to a worker that is killed, and again; the number of calls, and the output."""

    def run(store, place, remember, transactional=False):
        arguments = ((store.url, store.prefix), witness, place, remember, transactional)
        codes = []
        for _ in range(2):
            process = processes.Process(target=deliver, args=arguments, daemon=True)
            process.start()
            process.join()
            codes.append(process.exitcode)
        assert codes == [-9, 0]
        (acknowledged,) = witness.rows("acknowledged")
        return [row["lost"] for row in witness.rows("callback")], acknowledged["said"]

    return run


@pytest.fixture
def work(database):
    """How many rows the callbacks have written in their transactions."""
    database.sql("CREATE TABLE {0}_work (id integer)")
    yield lambda: len(database.sql("SELECT id FROM {0}_work"))
    database.sql("DROP TABLE {0}_work")


AFTER = pytest.mark.parametrize("place", ["after the commit", "before the acknowledgement"])


@AFTER
def test_what_commits_with_a_success_that_is_remembered_is_done_once(
    redelivered, database, work, place
):
    assert redelivered(database, place, 3600, True) == ([0], "completed before")
    assert work() == 1


@AFTER
def test_what_commits_with_a_success_that_is_not_remembered_is_done_again(
    redelivered, database, work, place
):
    """At least once: of the first delivery nothing is known any more, and nothing counted."""
    assert redelivered(database, place, None, True) == ([0, 0], "handled")
    assert work() == 2


@pytest.mark.parametrize("remember", [None, 3600])
def test_uncommitted_work_is_repeated_and_its_attempt_counts_as_lost(
    redelivered, database, work, remember
):
    assert redelivered(database, "before the commit", remember, True) == ([0, 1], "handled")
    assert work() == 1


def test_a_success_that_is_remembered_is_not_worked_on_again(redelivered, store):
    said = redelivered(store, "before the acknowledgement", 3600)
    assert said == ([0], "completed before")


def test_a_success_that_is_not_remembered_is_worked_on_again(redelivered, store):
    assert redelivered(store, "before the acknowledgement", None) == ([0, 0], "handled")


@pytest.mark.parametrize("remember", [None, 3600])
def test_without_a_transaction_work_that_was_done_is_a_lost_attempt(redelivered, store, remember):
    assert redelivered(store, "after the commit", remember) == ([0, 1], "handled")
