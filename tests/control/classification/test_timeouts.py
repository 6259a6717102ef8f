"""The timeouts of client libraries: named one by one, and distinguished."""

import asyncio
import sys

import aiohttp
import httpx
import httpx2
import psycopg
import pytest
import redis
import requests
import sqlalchemy.exc
import urllib3

from retrytemplate import (
    AttemptTimeoutError,
    DeadlineExceededError,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import timeout_kind, timeouts_of
from retrytemplate.control.classification.timeouts import TIMEOUTS as NAMED_TIMEOUTS

TIMEOUTS = {
    "httpx": {
        "partner connect": httpx.ConnectTimeout("slow"),
        "partner read": httpx.ReadTimeout("slow"),
        "partner write": httpx.WriteTimeout("slow"),
        "partner pool": httpx.PoolTimeout("slow"),
    },
    "httpx2": {
        "partner connect": httpx2.ConnectTimeout("slow"),
        "partner read": httpx2.ReadTimeout("slow"),
        "partner write": httpx2.WriteTimeout("slow"),
        "partner pool": httpx2.PoolTimeout("slow"),
    },
    "requests": {
        "partner connect": requests.ConnectTimeout("slow"),
        "partner read": requests.ReadTimeout("slow"),
        "partner total": requests.Timeout("slow"),
    },
    "urllib3": {
        "partner connect": urllib3.exceptions.ConnectTimeoutError("slow"),
        "partner read": urllib3.exceptions.ReadTimeoutError(None, "/", "slow"),
    },
    "aiohttp": {
        "partner connect": aiohttp.ConnectionTimeoutError("slow"),
        "partner read": aiohttp.SocketTimeoutError("slow"),
        "partner total": aiohttp.ServerTimeoutError("slow"),
    },
    "sqlalchemy": {"database pool": sqlalchemy.exc.TimeoutError("slow")},
    "psycopg": {
        "database connect": psycopg.errors.ConnectionTimeout("slow"),
        "database statement": psycopg.errors.QueryCanceled("slow"),
        "lock acquire": psycopg.errors.LockNotAvailable("slow"),
    },
    "redis": {"partner read": redis.TimeoutError("slow")},
}


def test_every_library_is_tested():
    assert TIMEOUTS.keys() == NAMED_TIMEOUTS.keys()


@pytest.mark.statement("S0-14")
@pytest.mark.parametrize("library", TIMEOUTS)
def test_policy_retries_every_timeout_class_of_a_library(library):
    policy = SimpleRetryPolicy(2, classifier=timeouts_of(library))
    for kind, error in TIMEOUTS[library].items():
        assert timeouts_of(library).classify(error) == kind
        assert timeout_kind(error) == kind
        assert policy.allows(1, error)
    assert not policy.allows(1, OSError("no timeout"))
    assert timeouts_of(library).classify(ConnectionError()) is None


@pytest.mark.statement("S0-14")
def test_some_timeouts_are_not_timeout_errors():
    strangers = [
        library
        for library, errors in TIMEOUTS.items()
        if not any(isinstance(each, TimeoutError) for each in errors.values())
    ]
    no_timeout_error = {"httpx", "httpx2", "requests", "urllib3", "sqlalchemy", "psycopg", "redis"}
    assert set(strangers) == no_timeout_error


def test_driver_error_wrapped_by_sqlalchemy_keeps_its_kind():
    driver = psycopg.errors.QueryCanceled("slow")
    wrapped = sqlalchemy.exc.OperationalError("SELECT", {}, driver)
    wrapped.__cause__ = driver
    assert timeout_kind(wrapped) == "database statement"
    assert timeouts_of("psycopg", "sqlalchemy").classify(wrapped) == "database statement"


def test_errors_of_this_library_keep_their_own_kind():
    error = DeadlineExceededError(kind="request")
    error.__cause__ = httpx.ReadTimeout("slow")
    assert timeouts_of("httpx").classify(error) is None
    assert timeout_kind(error) == "request"
    assert timeout_kind(DeadlineExceededError()) == "deadline"
    assert timeout_kind(AttemptTimeoutError()) == "attempt"
    assert timeout_kind(TimeoutError()) == "partner total"
    assert timeout_kind(OSError()) is None


def test_library_that_cannot_be_imported_hides_no_failure(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert timeout_kind(TimeoutError()) == "partner total"
    assert timeout_kind(OSError()) is None


@pytest.mark.statement("S0-13")
@pytest.mark.parametrize("listed", [TimeoutError, asyncio.TimeoutError], ids=["builtin", "asyncio"])
@pytest.mark.parametrize("raised", [TimeoutError, asyncio.TimeoutError], ids=["builtin", "asyncio"])
def test_both_names_of_the_timeout_error_are_retried(listed, raised):
    calls = []

    def fails():
        calls.append(1)
        raise raised

    RetryTemplate(SimpleRetryPolicy(3, retry_on=listed)).outcome(fails)
    assert len(calls) == 3


def test_unknown_library_is_rejected():
    with pytest.raises(ValueError, match=r"libraries must be among httpx, .*got curl"):
        timeouts_of("httpx", "curl")
    with pytest.raises(ValueError, match=r"libraries must be among httpx, .*got none"):
        timeouts_of()
