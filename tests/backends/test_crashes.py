"""A message that crashes its worker among other messages, with a supervisor.

Leases are real and short.  Workers report to a file, which they write before they crash.
"""

import pytest

from retrytemplate import SimpleRetryPolicy
from tests.support.crashing_worker import CRASHES, POISON, consume
from tests.support.event_log import EventLog
from tests.support.fork_server import processes

ATTEMPTS = 3
HEALTHY = [f"healthy {number}" for number in range(20)]
MOST_SECONDS = 50.0
MOST_STARTS = 10

POLICIES = {
    "retrying everything": {"policy": SimpleRetryPolicy(ATTEMPTS)},
    "retrying connection errors": {"policy": SimpleRetryPolicy(ATTEMPTS, retry_on=ConnectionError)},
}
# One is enough to see the rule; the others are other ends of the same process.
SOME_DEATHS = [
    "is killed",
    *(pytest.param(each, marks=pytest.mark.stress) for each in CRASHES if each != "is killed"),
]
LOST = "retrytemplate.errors.AttemptLostError"


@pytest.fixture
def event_log(tmp_path):
    made = EventLog(tmp_path / "events")
    yield made
    made.close()


@pytest.fixture
def supervise(store, event_log):
    """Restart a worker after each crash; return the exit codes."""

    def run(keys, crash, place, policy):
        codes = []
        while codes[-1:] != [0] and len(codes) < MOST_STARTS:
            arguments = ((store.url, store.prefix), POLICIES[policy], event_log, keys, crash, place)
            process = processes.Process(target=consume, args=arguments, daemon=True)
            process.start()
            process.join(MOST_SECONDS)
            assert process.exitcode is not None
            codes.append(process.exitcode)
        return codes

    return run


def rows_of(event_log, what, key=POISON):
    return [row for row in event_log.rows(what) if row["key"] == key]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("crash", SOME_DEATHS)
def test_message_that_kills_its_worker_is_recovered_at_the_limit(
    supervise, event_log, store, crash, policy
):
    middle = len(HEALTHY) // 2
    keys = [*HEALTHY[:middle], POISON, *HEALTHY[middle:]]
    codes = supervise(keys, crash, "callback", policy)
    assert [code != 0 for code in codes] == [True] * ATTEMPTS + [False]
    begun = rows_of(event_log, "callback")
    assert len(begun) == ATTEMPTS
    assert len({row["pid"] for row in begun}) == ATTEMPTS
    assert [(row["kind"], row["message"]) for row in rows_of(event_log, "history")] == [
        (LOST, f"the attempt of {row['worker']} was lost") for row in begun
    ]
    assert len(rows_of(event_log, "recovered")) == 1
    others = [row["key"] for row in event_log.rows("callback") if row["key"] != POISON]
    assert sorted(others) == sorted(HEALTHY)
    assert sorted(row["key"] for row in event_log.rows("handled")) == sorted(HEALTHY)
    assert store.keys() == []


@pytest.mark.parametrize("crash", SOME_DEATHS)
def test_recovery_that_kills_its_worker_is_repeated_without_callback(
    supervise, event_log, store, crash
):
    codes = supervise([POISON], crash, "recovery", "retrying everything")
    assert [code != 0 for code in codes] == [True, True, False]
    assert len(rows_of(event_log, "callback")) == ATTEMPTS
    recoveries = rows_of(event_log, "recovery")
    assert len({row["pid"] for row in recoveries}) == 3
    assert event_log.rows("callback", "recovery")[ATTEMPTS:] == recoveries
    assert [row["kind"] for row in rows_of(event_log, "history")] == ["ConnectionError"] * 3
    assert store.keys() == []
