"""The job: the outcome of a line.  HTTP and database are real, only the waits are virtual."""

import itertools
import json
import sqlite3
import threading
from contextlib import closing

import pytest

from retrytemplate.batch import DeadLetters, UpsertWriter
from retrytemplate.demo.client import PricingClient
from retrytemplate.demo.flaky_service import CATALOGUE, MAX_FAULTS, PricingService, faults
from retrytemplate.demo.job import (
    ATTEMPTS,
    WORTH_RETRYING,
    DatabaseRefused,
    Job,
    StopWatch,
    differences,
    unaccounted,
)
from retrytemplate.demo.orders import Line
from retrytemplate.testing import VirtualClock

SEED = 7


def numbers():
    """Line numbers by the faults of their requests; more than MAX_FAULTS: they always fail."""
    found = {}
    for number in range(2, 3000):
        met = itertools.islice(faults(SEED, f"line-{number}"), MAX_FAULTS + 1)
        found.setdefault(tuple(fault.kind for fault in met), []).append(number)
    return found


NUMBERS = numbers()
SERVED = NUMBERS[()]
UNAVAILABLE = NUMBERS[("unavailable",)]
RESET_TWICE = NUMBERS[("reset", "reset")][0]
SLOW = NUMBERS[("slow",)][0]
POISONED = NUMBERS[("unavailable", "reset", "unavailable", "reset")][0]


def line(number, order="O-1", sku="SKU-0042", quantity="3"):
    return Line(number, f"{order},2026-11-20,Sato Ltd,{sku},{quantity}".encode())


@pytest.fixture
def database(tmp_path):
    return tmp_path / "job.db"


class Clients:
    """The client of the delayed response has a short timeout, others a long one."""

    def __init__(self, host, port, timeout):
        self.hasty = PricingClient(host, port, timeout=0.05)
        self.patient = PricingClient(host, port, timeout)
        self.held_back = [f"line-{SLOW}"]

    def price(self, order, key):
        if key not in self.held_back:
            return self.patient.price(order, key)
        self.held_back.remove(key)
        return self.hasty.price(order, key)

    def close(self):
        self.hasty.close()
        self.patient.close()


@pytest.fixture
def job_for(database, monkeypatch):
    monkeypatch.setattr("retrytemplate.demo.job.PricingClient", Clients)
    jobs = []

    def job_for(*lines):
        service, clock = PricingService(seed=SEED), StopWatch(VirtualClock())
        jobs.append(Job(lines, service, database, timeout=30.0, clock=clock))
        return jobs[-1]

    yield job_for
    for job in jobs:
        job.close()


@pytest.fixture
def rows(database):
    """Queries the file on a connection of its own."""

    def rows(query):
        with closing(sqlite3.connect(database)) as reader:
            return reader.execute(query).fetchall()

    return rows


def dead_letters(job):
    return list(DeadLetters(job.repository).each())


def test_priced_line_is_written_at_the_first_attempt(job_for, rows):
    report = job_for(line(SERVED[0])).run()
    cents = 3 * CATALOGUE["SKU-0042"]
    assert rows("SELECT * FROM written") == [
        (SERVED[0], "O-1", "2026-11-20", "Sato Ltd", "SKU-0042", 3, cents, 1)
    ]
    assert (report.read, report.written, report.retried, report.dead_lettered) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("number", "attempts"),
    [(UNAVAILABLE[0], 2), (RESET_TWICE, 3), (SLOW, 2)],
    ids=["unavailable", "reset twice", "slow"],
)
def test_failed_line_is_retried_until_it_is_written(job_for, rows, number, attempts):
    report = job_for(line(number)).run()
    assert rows("SELECT line, attempts FROM written") == [(number, attempts)]
    assert (report.written, report.retried, report.retries) == (1, 1, attempts - 1)
    assert report.problems == ()


def test_other_lines_continue_while_a_failed_one_waits(job_for, rows, monkeypatch):
    """The wait of one line ends only after another line has ended."""
    over = threading.Event()
    job = job_for(line(UNAVAILABLE[0]), line(SERVED[0]))

    def watch(tally):
        if tally.over:
            over.set()

    sleep = job.clock.sleep
    monkeypatch.setattr(job.clock, "sleep", lambda delay: (over.wait(30), sleep(delay)))
    report = job.run(watch)
    assert over.is_set()
    assert (report.written, report.retried) == (2, 1)


def test_poison_line_is_dead_lettered_with_its_history(job_for):
    job = job_for(line(POISONED))
    report = job.run()
    [letter] = dead_letters(job)
    content = json.loads(letter.payload)["text"]
    assert (letter.key, content, letter.attempts) == (
        str(POISONED),
        line(POISONED).text,
        ATTEMPTS,
    )
    error = "retrytemplate.demo.client.ServiceUnavailable"
    assert (letter.error_type, letter.error_message) == (error, "503: overloaded")
    assert [record.number for record in letter.history] == [1, 2, 3, 4, 5]
    assert [record.type_name.rpartition(".")[2] for record in letter.history] == [
        "ServiceUnavailable",
        "ConnectionResetError",
        "ServiceUnavailable",
        "ConnectionResetError",
        "ServiceUnavailable",
    ]
    assert report.problems == ()
    assert (report.dead_lettered, report.dead_letters_by_error) == (1, {error: 1})


@pytest.mark.parametrize(
    ("faulty", "error", "message"),
    [
        (line(SERVED[0], quantity="two"), "InvalidOrder", "quantity must be a whole number"),
        (line(SERVED[0], order=""), "InvalidOrder", "order_id is missing"),
        (Line(SERVED[0], b""), "InvalidOrder", "the line is blank"),
        (line(SERVED[0], sku="SKU-9999"), "PricingError", "404: no product SKU-9999"),
    ],
    ids=["bad number", "missing field", "blank", "unknown product"],
)
def test_permanent_failure_is_given_up_after_one_attempt(job_for, faulty, error, message):
    job = job_for(faulty)
    report = job.run()
    [letter] = dead_letters(job)
    kind = letter.error_type.rpartition(".")[2]
    assert (letter.key, letter.attempts, kind) == (str(faulty.number), 1, error)
    assert letter.error_message.startswith(message)
    assert (report.dead_lettered, report.retried, report.problems) == (1, 0, ())


def test_failed_line_leaves_nothing_in_the_database(job_for, rows):
    job_for(line(POISONED, order="O-poison"), line(SERVED[0], order="O-good")).run()
    assert rows("SELECT order_id FROM written") == [("O-good",)]


def test_every_line_is_in_exactly_one_place_and_both_counts_agree(job_for, rows):
    mixed = [line(number, order=f"O-{number}") for number in (*SERVED[:20], *UNAVAILABLE[:9])]
    mixed += [line(RESET_TWICE), line(SLOW), line(POISONED), Line(SERVED[30], b"what?")]
    report = job_for(*mixed).run()
    found = rows("SELECT line FROM written UNION ALL SELECT item_key FROM batch_letters")
    assert sorted(int(number) for (number,) in found) == sorted(each.number for each in mixed)
    assert report.problems == ()
    assert (report.read, report.written, report.dead_lettered) == (33, 31, 2)
    assert report.attempts == {1: 21, 2: 10, 3: 1, ATTEMPTS: 1}
    assert report.sent == {"priced": 31, "unavailable": 12, "reset": 4, "slow": 1}
    assert report.seen == report.sent


def test_retry_after_of_a_503_is_waited(job_for):
    number = next(
        number
        for number in UNAVAILABLE
        for fault in faults(SEED, f"line-{number}")
        if fault.retry_after == 1 and not fault.dated
    )
    report = job_for(line(number)).run()
    assert 1.0 <= report.planned_wait <= 1.1
    # No other line was processed meanwhile.
    assert report.waited == pytest.approx(report.planned_wait)


def fails(monkeypatch, failure):
    written = UpsertWriter.__call__

    def write(writer, items, transaction):
        written(writer, items, transaction)
        raise failure

    monkeypatch.setattr(UpsertWriter, "__call__", write)


def test_failing_database_stops_the_job_and_nothing_is_written(job_for, rows, monkeypatch):
    job = job_for(line(SERVED[0]), line(SERVED[1]))
    fails(monkeypatch, sqlite3.OperationalError("database or disk is full"))
    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        job.run()
    assert rows("SELECT * FROM written") == []


def test_interrupted_transaction_is_rolled_back(job_for, rows, monkeypatch):
    job = job_for(line(SERVED[0]))
    fails(monkeypatch, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        job.run()
    assert rows("SELECT * FROM written") == []


def test_database_file_that_exists_is_rejected_and_unchanged(database):
    database.write_text("notes")
    service = PricingService(seed=SEED)
    with closing(service), pytest.raises(DatabaseRefused, match="exists already"):
        Job([], service, database)
    assert database.read_text() == "notes"


def test_database_in_missing_directory_is_rejected(tmp_path):
    service = PricingService(seed=SEED)
    with closing(service), pytest.raises(DatabaseRefused, match="cannot write the database"):
        Job([], service, tmp_path / "missing" / "job.db")


def test_closed_job_leaves_one_database_file(job_for, database):
    job = job_for(line(SERVED[0]))
    job.run()
    job.close()
    assert list(database.parent.iterdir()) == [database]


def test_most_specific_class_decides_the_retry():
    from retrytemplate.demo.client import PricingError, ServiceUnavailable
    from retrytemplate.demo.orders import InvalidOrder

    worth = (ConnectionResetError(), BrokenPipeError(), TimeoutError())
    assert all(WORTH_RETRYING.classify(failure) for failure in worth)
    assert WORTH_RETRYING.classify(ServiceUnavailable("503", {}))
    futile = (PricingError(), ConnectionRefusedError(), InvalidOrder(), KeyError())
    assert not any(WORTH_RETRYING.classify(failure) for failure in futile)


def test_line_in_neither_or_both_places_is_a_problem():
    assert list(unaccounted([2, 3, 4], {2}, {3, 4})) == []
    assert list(unaccounted([2, 3, 4], {2, 3}, {3, 9})) == [
        "1 lines are neither written nor dead-lettered, the first is line 4",
        "1 lines are both written and dead-lettered, the first is line 3",
        "1 lines are written or dead-lettered, but not in the file, the first is line 9",
    ]


def test_counts_that_differ_are_a_problem():
    assert list(differences({"reset": 2, "slow": 0}, {"reset": 2})) == []
    assert list(differences({"reset": 2}, {"slow": 1})) == [
        "reset: the service sent 2, the client saw 0",
        "slow: the service sent 0, the client saw 1",
    ]
    assert len(list(differences({"slow": 1}, {"reset": 1}))) == 2


def test_response_that_arrives_while_its_client_gives_up_is_no_problem():
    assert list(differences({"reset": 2, "slow": 1}, {"reset": 1, "slow": 2})) == []
