"""A worker that is killed between its work and the acknowledgement: number of repetitions."""

import pytest

from tests.support.acknowledging_worker import deliver
from tests.support.event_log import EventLog
from tests.support.fork_server import processes


@pytest.fixture
def event_log(tmp_path):
    made = EventLog(tmp_path / "events")
    yield made
    made.close()


@pytest.fixture
def redelivered(event_log):
    """Deliver to a worker that is killed, and again; the number of calls, and the output."""

    def run(store, place, remember, transactional=False):
        arguments = ((store.url, store.prefix), event_log, place, remember, transactional)
        codes = []
        for _ in range(2):
            process = processes.Process(target=deliver, args=arguments, daemon=True)
            process.start()
            process.join()
            codes.append(process.exitcode)
        assert codes == [-9, 0]
        (acknowledged,) = event_log.rows("acknowledged")
        return [row["lost"] for row in event_log.rows("callback")], acknowledged["result"]

    return run


@pytest.fixture
def work(database):
    """The number of rows that callbacks wrote in their transactions."""
    database.sql("CREATE TABLE {0}_work (id integer)")
    yield lambda: len(database.sql("SELECT id FROM {0}_work"))
    database.sql("DROP TABLE {0}_work")


AFTER = pytest.mark.parametrize("place", ["after the commit", "before the acknowledgement"])


@AFTER
def test_work_committed_with_a_remembered_success_is_done_once(redelivered, database, work, place):
    assert redelivered(database, place, 3600, True) == ([0], "completed before")
    assert work() == 1


@AFTER
def test_work_committed_without_remembered_success_is_repeated(redelivered, database, work, place):
    """At least once: the first delivery left no record and no count."""
    assert redelivered(database, place, None, True) == ([0, 0], "handled")
    assert work() == 2


@pytest.mark.parametrize("remember", [None, 3600])
def test_uncommitted_work_is_repeated_and_its_attempt_counts_as_lost(
    redelivered, database, work, remember
):
    assert redelivered(database, "before the commit", remember, True) == ([0, 1], "handled")
    assert work() == 1


def test_remembered_success_is_not_repeated_on_redelivery(redelivered, store):
    result = redelivered(store, "before the acknowledgement", 3600)
    assert result == ([0], "completed before")


def test_success_that_is_not_remembered_is_repeated_on_redelivery(redelivered, store):
    assert redelivered(store, "before the acknowledgement", None) == ([0, 0], "handled")


@pytest.mark.parametrize("remember", [None, 3600])
def test_work_done_outside_a_transaction_is_a_lost_attempt(redelivered, store, remember):
    assert redelivered(store, "after the commit", remember) == ([0, 1], "handled")
