"""The job: what becomes of a line.  HTTP and database are real, only the waits are virtual."""

import itertools
import json
import sqlite3
import threading

import pytest

from retrytemplate.demo import Job, Line, PricingClient, PricingService, StopWatch, Tables
from retrytemplate.demo.job import ATTEMPTS, WORTH_RETRYING, differences, unaccounted
from retrytemplate.demo.service import CATALOGUE, MOST_FAULTS, faults
from retrytemplate.testing import VirtualClock

SEED = 7


def numbers():
    """Line numbers by what their first requests meet; more than MOST_FAULTS: poisoned."""
    found = {}
    for number in range(2, 3000):
        met = itertools.islice(faults(SEED, f"line-{number}"), MOST_FAULTS + 1)
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
def tables(tmp_path):
    tables = Tables(tmp_path / "job.db")
    yield tables
    tables.close()


class Clients:
    """One loses patience with the answer that is held back, another waits long for any other."""

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
def job_for(tables, monkeypatch):
    monkeypatch.setattr("retrytemplate.demo.job.PricingClient", Clients)

    def job_for(*lines):
        service = PricingService(seed=SEED)
        return Job(lines, service, tables, timeout=30.0, clock=StopWatch(VirtualClock()))

    return job_for


@pytest.fixture
def rows(tables):
    """What another connection finds in the file."""
    reader = sqlite3.connect(tables.path)
    yield lambda query: reader.execute(query).fetchall()
    reader.close()


def test_a_line_that_is_served_is_written_at_the_first_attempt(job_for, rows):
    report = job_for(line(SERVED[0])).run()
    assert rows("SELECT * FROM written") == [(SERVED[0], "O-1", 3 * CATALOGUE["SKU-0042"], 1)]
    assert (report.read, report.written, report.retried, report.dead) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("number", "attempts"),
    [(UNAVAILABLE[0], 2), (RESET_TWICE, 3), (SLOW, 2)],
    ids=["unavailable", "reset twice", "slow"],
)
def test_a_line_that_fails_comes_again_until_it_is_written(job_for, rows, number, attempts):
    report = job_for(line(number)).run()
    assert rows("SELECT line, attempts FROM written") == [(number, attempts)]
    assert (report.written, report.retried, report.retries) == (1, 1, attempts - 1)
    assert report.problems == ()


def test_other_lines_go_on_while_a_failed_one_waits(job_for, rows, monkeypatch):
    """The wait of one ends only when another one is over."""
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


def test_a_poisoned_line_becomes_a_dead_letter_with_the_history_of_its_attempts(job_for, rows):
    report = job_for(line(POISONED)).run()
    [(number, content, attempts, error, message, history)] = rows("SELECT * FROM dead_letters")
    assert (number, content, attempts) == (POISONED, line(POISONED).text, ATTEMPTS)
    assert (error, message) == ("retrytemplate.demo.client.ServiceUnavailable", "503: overloaded")
    records = json.loads(history)
    assert [record["number"] for record in records] == [1, 2, 3, 4, 5]
    assert [record["type_name"].rpartition(".")[2] for record in records] == [
        "ServiceUnavailable",
        "ConnectionResetError",
        "ServiceUnavailable",
        "ConnectionResetError",
        "ServiceUnavailable",
    ]
    assert report.problems == ()
    assert (report.dead, report.dead_by_error) == (1, {error: 1})


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
def test_what_will_not_mend_is_given_up_after_one_attempt(job_for, rows, faulty, error, message):
    report = job_for(faulty).run()
    [(number, attempts, kind, text)] = rows(
        "SELECT line, attempts, error, message FROM dead_letters"
    )
    assert (number, attempts, kind.rpartition(".")[2]) == (faulty.number, 1, error)
    assert text.startswith(message)
    assert (report.dead, report.retried, report.problems) == (1, 0, ())


def test_a_failed_line_leaves_no_trace(job_for, rows):
    job_for(line(POISONED, order="O-poison"), line(SERVED[0], order="O-good")).run()
    assert rows("SELECT order_id FROM orders") == [("O-good",)]


@pytest.mark.parametrize("amended", [1, 2], ids=["both at once", "the first comes again, late"])
def test_of_two_lines_of_one_order_the_later_in_the_file_counts(job_for, rows, amended):
    first, second = (
        (SERVED[0], SERVED[1])
        if amended == 1
        else next((u, s) for u in UNAVAILABLE for s in SERVED if u < s)
    )
    job_for(line(first, quantity="1"), line(second, quantity="2")).run()
    assert rows("SELECT line, quantity FROM orders") == [(second, 2)]
    assert rows("SELECT line FROM written ORDER BY line") == [(first,), (second,)]


def test_every_line_is_in_exactly_one_place_and_both_counts_agree(job_for, rows):
    mixed = [line(number, order=f"O-{number}") for number in (*SERVED[:20], *UNAVAILABLE[:9])]
    mixed += [line(RESET_TWICE), line(SLOW), line(POISONED), Line(SERVED[30], b"what?")]
    report = job_for(*mixed).run()
    found = rows("SELECT line FROM written UNION ALL SELECT line FROM dead_letters")
    assert sorted(number for (number,) in found) == sorted(each.number for each in mixed)
    assert report.problems == ()
    assert (report.read, report.written, report.dead) == (33, 31, 2)
    assert report.attempts == {1: 21, 2: 10, 3: 1, ATTEMPTS: 1}
    assert report.sent == {"priced": 31, "unavailable": 12, "reset": 4, "slow": 1}
    assert report.seen == report.sent


def test_the_wait_that_a_503_asks_for_is_waited(job_for):
    number = next(
        number
        for number in UNAVAILABLE
        for fault in faults(SEED, f"line-{number}")
        if fault.retry_after == 1 and not fault.dated
    )
    report = job_for(line(number)).run()
    assert 1.0 <= report.asked <= 1.1
    assert report.waited == pytest.approx(report.asked)  # no other line could go on meanwhile


def fails(tables, monkeypatch, failure):
    def write(items, transaction):
        type(tables).write(tables, items, transaction)
        raise failure

    monkeypatch.setattr(tables, "write", write)


def test_a_failing_database_stops_the_job_and_nothing_is_written(
    job_for, rows, tables, monkeypatch
):
    fails(tables, monkeypatch, sqlite3.OperationalError("database or disk is full"))
    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        job_for(line(SERVED[0]), line(SERVED[1])).run()
    assert rows("SELECT * FROM orders") == []


def test_an_interrupted_transaction_is_rolled_back(job_for, rows, tables, monkeypatch):
    fails(tables, monkeypatch, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        job_for(line(SERVED[0])).run()
    assert rows("SELECT * FROM orders") == []


def test_the_nearest_class_says_what_is_worth_another_attempt():
    from retrytemplate.demo import InvalidOrder, PricingError, ServiceUnavailable

    worth = (ConnectionResetError(), BrokenPipeError(), TimeoutError())
    assert all(WORTH_RETRYING.classify(failure) for failure in worth)
    assert WORTH_RETRYING.classify(ServiceUnavailable("503", {}))
    futile = (PricingError(), ConnectionRefusedError(), InvalidOrder(), KeyError())
    assert not any(WORTH_RETRYING.classify(failure) for failure in futile)


def test_a_line_in_neither_or_both_places_is_a_problem():
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
