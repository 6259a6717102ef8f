"""Kinds of failures, and the measures for each."""

import asyncio
import errno
import http.client
import pickle
import re
import sqlite3
import ssl
import sys
import urllib.error
from pathlib import Path
from types import ModuleType

import aiohttp
import httpcore
import httpx
import psycopg
import pytest
import requests
import sqlalchemy.exc
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    AttemptTimeoutError,
    CircuitOpenError,
    Deadline,
    DeadlineExceededError,
    ExhaustedRetryError,
    FixedBackoff,
    KillSwitchActiveError,
    RetryTemplate,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
)
from retrytemplate.control import (
    TRANSIENT_ERRORS,
    CircuitBreaker,
    Consecutive,
    FailureKind,
    FailureKinds,
    RetryBudget,
    mapped,
    timeout_kind,
)
from retrytemplate.control.classification import failure_kind as tables
from retrytemplate.testing import ClassifierConformance, VirtualClock
from tests.control.classification.test_codes import DatabaseError, answered, calls_of, raising

TRANSIENT, PERSISTENT, CASCADING, CATASTROPHIC = FailureKind
KINDS = FailureKinds()


def system(name):
    return OSError(getattr(errno, name), name)


def sqlite(name):
    error = sqlite3.OperationalError(name)
    error.sqlite_errorname = name
    return error


# What the default classifier retries.


@pytest.mark.statement("S3-05")
@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(system("ECONNRESET"), id="reset"),
        pytest.param(system("ETIMEDOUT"), id="timed out"),
        pytest.param(TimeoutError("no answer"), id="a timeout of one's own"),
        pytest.param(AttemptTimeoutError(), id="the attempt's limit"),
        *(pytest.param(answered(status), id=str(status)) for status in (429, 500, 502, 503, 599)),
    ],
)
def test_transient_failure_is_retried(failure):
    assert calls_of(SimpleRetryPolicy(2, classifier=TRANSIENT_ERRORS), failure) == 2


@pytest.mark.statement("S3-05", "S3-20")
@pytest.mark.parametrize(
    "failure",
    [
        ValueError("bug"),
        KeyError("bug"),
        RuntimeError("anything"),
        Exception("anything"),
        FileNotFoundError(errno.ENOENT, "no such file"),
        ExhaustedRetryError("another template's"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_permanent_failure_is_not_retried(failure):
    assert calls_of(SimpleRetryPolicy(2, classifier=TRANSIENT_ERRORS), failure) == 1


@pytest.mark.statement("S3-06")
@pytest.mark.parametrize(
    ("status", "worth"),
    [
        *((status, True) for status in (408, 429, 500, 501, 502, 503, 504)),
        *((status, False) for status in (400, 401, 403, 404, 409, 410, 422)),
    ],
)
def test_status_table_is_complete(status, worth):
    assert TRANSIENT_ERRORS.classify(answered(status)) is worth


@pytest.mark.statement("S3-06")
def test_cancelled_call_is_not_repeated():
    calls = []

    async def call():
        calls.append(1)
        raise asyncio.CancelledError

    template = RetryTemplate(SimpleRetryPolicy(3, classifier=TRANSIENT_ERRORS))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(template.call_async(call))
    assert calls == [1]


# Kinds.


@pytest.mark.statement("S4-75")
@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        (TRANSIENT, psycopg.errors.SerializationFailure()),
        (TRANSIENT, psycopg.errors.DeadlockDetected()),
        (TRANSIENT, psycopg.errors.LockNotAvailable()),
        (TRANSIENT, psycopg.errors.ConnectionFailure()),
        (TRANSIENT, psycopg.errors.AdminShutdown()),
        (TRANSIENT, psycopg.errors.CannotConnectNow()),
        (TRANSIENT, psycopg.OperationalError("server closed the connection unexpectedly")),
        (PERSISTENT, psycopg.errors.UniqueViolation()),
        (PERSISTENT, psycopg.errors.UndefinedTable()),
        (PERSISTENT, psycopg.errors.InFailedSqlTransaction()),
        (PERSISTENT, psycopg.errors.QueryCanceled()),
        (PERSISTENT, psycopg.errors.TransactionResolutionUnknown()),
        (PERSISTENT, psycopg.errors.DiskFull()),
        (CASCADING, psycopg.errors.TooManyConnections()),
        (CATASTROPHIC, psycopg.errors.DataCorrupted()),
        (TRANSIENT, sqlite("SQLITE_BUSY")),
        (TRANSIENT, sqlite("SQLITE_BUSY_SNAPSHOT")),
        (PERSISTENT, sqlite("SQLITE_CONSTRAINT_UNIQUE")),
        (PERSISTENT, sqlite("SQLITE_ERROR")),
        (CATASTROPHIC, sqlite("SQLITE_CORRUPT_INDEX")),
        (TRANSIENT, DatabaseError(1213, "deadlock")),
        (TRANSIENT, DatabaseError(2013, "lost connection")),
        (PERSISTENT, DatabaseError(1062, "duplicate")),
        (CASCADING, DatabaseError(1040, "too many connections")),
        (CASCADING, system("EMFILE")),
        (CATASTROPHIC, system("EIO")),
        (CASCADING, MemoryError()),
        (CASCADING, CircuitOpenError()),
        (CASCADING, DeadlineExceededError()),
        (CATASTROPHIC, KillSwitchActiveError()),
        (CASCADING, sqlalchemy.exc.TimeoutError("QueuePool limit")),
        (CASCADING, httpx.PoolTimeout("no connection")),
        (TRANSIENT, httpx.ReadTimeout("slow")),
        (TRANSIENT, httpx.RemoteProtocolError("closed")),
        (PERSISTENT, httpx.UnsupportedProtocol("ftp")),
        (TRANSIENT, requests.ReadTimeout("slow")),
        (PERSISTENT, requests.exceptions.SSLError("certificate")),
        (PERSISTENT, requests.exceptions.InvalidURL("htp:/")),
        (TRANSIENT, http.client.RemoteDisconnected("closed")),
        (TRANSIENT, urllib.error.URLError(system("ECONNREFUSED"))),
        (PERSISTENT, ZeroDivisionError()),
    ],
    ids=lambda value: value.value if isinstance(value, FailureKind) else type(value).__name__,
)
def test_failure_has_its_kind(kind, failure):
    assert KINDS.classify(failure) is kind


@pytest.mark.statement("S4-75")
def test_each_kind_has_its_measures():
    assert {kind: kind.measures for kind in FailureKind} == {
        TRANSIENT: ("retry",),
        PERSISTENT: ("circuit breaker", "alert"),
        CASCADING: ("bulkhead", "circuit breaker"),
        CATASTROPHIC: ("kill switch",),
    }


@pytest.mark.statement("S4-75")
def test_policy_retries_one_kind_and_breaker_counts_others():
    breaker = CircuitBreaker(
        "shop", window=Consecutive(2), failures=KINDS.among(PERSISTENT, CASCADING)
    )
    template = RetryTemplate(SimpleRetryPolicy(3, classifier=KINDS.among(TRANSIENT)))

    def call(failure):
        def fail():
            raise failure

        return template.outcome(breaker.wrap(fail)).attempts

    assert call(answered(503)) == 3
    assert breaker.snapshot().state == "closed"
    assert [call(answered(403)) for _ in range(2)] == [1, 1]
    assert breaker.snapshot().state == "open"


@pytest.mark.statement("S4-75")
def test_retry_costs_by_the_kind_of_its_failure():
    costs = {TRANSIENT: 5, PERSISTENT: 10, CASCADING: 25, CATASTROPHIC: 50}
    budget = RetryBudget.tokens(capacity=50, cost=mapped(KINDS, costs), refund=0)
    template = RetryTemplate(SimpleRetryPolicy(2), guards=[budget])
    left = []
    for failure in (answered(503), MemoryError(), ValueError()):
        template.outcome(raising, failure)
        left.append(budget.snapshot().available)
    assert left == [45, 20, 10]


class LedgerCorrupted(Exception):
    """Of a shop."""


@pytest.mark.statement("S4-75")
def test_user_rules_precede_the_default_kinds():
    kinds = FailureKinds(
        {LedgerCorrupted: CATASTROPHIC, ConnectionError: CASCADING},
        status={503: CASCADING},
        sqlstate={"53300": TRANSIENT},
        default=CASCADING,
    )
    assert kinds.classify(LedgerCorrupted()) is CATASTROPHIC
    assert kinds.classify(system("ECONNRESET")) is CASCADING
    assert kinds.classify(answered(503)) is CASCADING
    assert kinds.classify(answered(502)) is TRANSIENT
    assert kinds.classify(psycopg.errors.TooManyConnections()) is TRANSIENT
    assert kinds.classify(RuntimeError()) is CASCADING


@given(st.lists(st.sampled_from(FailureKind), min_size=1), st.booleans())
def test_group_has_the_worst_kind_of_its_members(kinds, nested):
    failures = {
        TRANSIENT: TimeoutError(),
        PERSISTENT: ValueError(),
        CASCADING: MemoryError(),
        CATASTROPHIC: system("EIO"),
    }
    group = ExceptionGroup("parts", [failures[kind] for kind in kinds])
    group = ExceptionGroup("more", [group]) if nested else group
    assert KINDS.classify(group) is max(kinds, key=list(FailureKind).index)


def test_client_timeout_as_cause_is_classified():
    failure = RuntimeError("no stock")
    failure.__cause__ = httpx.PoolTimeout("no connection")
    assert KINDS.classify(failure) is CASCADING


def test_untrusted_certificate_as_cause_is_persistent():
    distrusted = ssl.SSLCertVerificationError(1, "certificate verify failed")
    for kind, raised in ((PERSISTENT, distrusted), (TRANSIENT, system("ECONNREFUSED"))):
        failure = httpx.ConnectError(str(raised))
        failure.__cause__ = httpcore.ConnectError(raised)
        assert KINDS.classify(failure) is kind


def test_cause_classifies_an_unknown_failure():
    failure = RuntimeError("no stock")
    failure.__cause__ = system("ECONNRESET")
    assert KINDS.classify(failure) is TRANSIENT


def test_wrong_kind_is_rejected():
    with pytest.raises(TypeError, match="the kind of a failure must be a FailureKind, got True"):
        FailureKinds({LedgerCorrupted: True})
    with pytest.raises(TypeError, match="the kind of a failure must be a FailureKind, got None"):
        FailureKinds(default=None)
    with pytest.raises(ValueError, match=r"to must map FailureKind\.CASC"):
        mapped(KINDS, {TRANSIENT: 1, PERSISTENT: 1, CATASTROPHIC: 1})


@pytest.mark.parametrize("kinds", [(), ("transcient",), ([TRANSIENT],), (TRANSIENT, None)], ids=str)
def test_among_requires_failure_kinds(kinds):
    with pytest.raises(TypeError, match="kinds must be one FailureKind or more, got "):
        KINDS.among(*kinds)


def test_kinds_can_be_pickled_and_compared():
    again = pickle.loads(pickle.dumps(TRANSIENT_ERRORS))  # noqa: S301  # our own
    assert again == TRANSIENT_ERRORS
    assert FailureKinds(status={503: CASCADING}) != KINDS == FailureKinds()


class TestKinds(ClassifierConformance):
    def make(self):
        return FailureKinds({LedgerCorrupted: CATASTROPHIC})


@pytest.mark.parametrize("table", ["STATUS", "SQLSTATE", "VENDOR", "ERRNO", "ERRORS", "NAMED"])
def test_page_has_every_code_and_its_kind(table):
    page = (Path(__file__).parents[3] / "docs" / "control" / "failure-kinds.md").read_text(
        encoding="utf-8"
    )
    rows = re.search(rf"<!-- codes: {table} -->\n\|.*\n\|[-|]+\n((?:\|.*\n)+)", page)[1]
    listed = re.findall(r"^\| (`.*?`) \| (\w+) \|", rows, re.M)
    shown = {each: kind for codes, kind in listed for each in re.findall(r"`(.+?)`", codes)}
    assert shown == {name_of(code): kind.value for code, kind in getattr(tables, table).items()}


def name_of(code):
    return code.__name__ if isinstance(code, type) else str(code)


# One call's own budget: of attempts, and of time.


class Broken(VirtualClock):
    """A wall clock that is set back; the monotonic time continues."""

    def time(self):
        return 1e9 - super().time()


@pytest.mark.statement("S4-27")
@pytest.mark.parametrize(
    ("delay", "attempts"), [(1.0, 3), (25.0, 3), (29.0, 3), (31.0, 2), (61.0, 1)]
)
def test_call_has_a_budget_of_attempts_and_of_time(delay, attempts):
    clock = Broken()
    template = RetryTemplate(SimpleRetryPolicy(3), FixedBackoff(delay), clock=clock)
    with Deadline(60.0, clock=clock):
        assert template.outcome(int, "x").attempts == attempts
    assert clock.monotonic() < 60.0


@pytest.mark.statement("S4-27")
@pytest.mark.parametrize(("attempts", "seconds"), [(2, 59.0), (1, 61.0), (3, 0.0)])
def test_further_attempt_needs_attempts_and_time(attempts, seconds):
    policy = SimpleRetryPolicy(3) & TimeoutRetryPolicy(60.0)
    state = policy.start(0.0)
    for _ in range(attempts):
        state = policy.record(state, OSError(), seconds)
    assert policy.decide(state, seconds)[0] is (attempts < 3 and seconds < 60.0)


@pytest.mark.parametrize("library", ["httpx", "requests.exceptions", "redis", "psycopg"])
def test_module_without_the_expected_names_changes_nothing(monkeypatch, library):
    """Also a module that another thread is importing at the moment."""
    monkeypatch.setitem(sys.modules, library, ModuleType(library))
    assert TRANSIENT_ERRORS.classify(ConnectionResetError()) is True
    assert TRANSIENT_ERRORS.classify(ValueError()) is False
    assert timeout_kind(TimeoutError()) == "partner total"
    error = aiohttp.ServerDisconnectedError()
    assert TRANSIENT_ERRORS.classify(error) is True
