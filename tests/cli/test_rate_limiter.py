"""``retrytemplate rate-limiter`` as a user runs it."""

from __future__ import annotations

import json
import os
from itertools import count

import pytest

from retrytemplate.cli import main
from retrytemplate.control import RateLimiter, RedisRateLimitStore
from tests.support import valkey

numbers = count(1)


@pytest.fixture
def store(valkey_url):
    made = RedisRateLimitStore(valkey_url, f"cli_r{os.getpid()}_{next(numbers)}", timeout=20.0)
    made.url = valkey_url
    yield made
    made.close()


def status(capsys, store, *args):
    try:
        code = main(
            ["rate-limiter", "status", "--store", store.url, "--store-prefix", store.prefix, *args]
        )
    except SystemExit as ended:
        code = ended.code
    return (code, *capsys.readouterr())


def test_status_shows_the_limits_in_use(store, capsys):
    assert status(capsys, store)[:2] == (0, "The store has no rate limits in use.\n")
    RateLimiter("billing", permits=50, per=3600, burst=10, store=store).acquire(4)
    RateLimiter("search", store=store).pause(600.0)
    code, out, _ = status(capsys, store)
    head, _, billing, search = out.splitlines()
    assert (code, head.split()) == (0, "limiter rate burst free paused".split())
    assert billing.split() == ["billing", "0.0139/s", "10", "6"]
    assert search.split()[:2] == ["search", "0"]


def test_status_json_has_every_figure(store, capsys):
    RateLimiter("billing", permits=60, per=3600, store=store).acquire(4)
    code, out, _ = status(capsys, store, "billing", "--json")
    (record,) = json.loads(out)
    assert code == 0
    assert record == {
        "name": "billing",
        "interval": 60.0,
        "burst": 60,
        "available": 56,
        "debt": pytest.approx(240, abs=30),
        "paused": 0.0,
    }


def test_status_of_a_damaged_record_fails(store, capsys):
    with valkey.opened(store.url) as client:
        client.set(f"{store.prefix}:rate:{{billing}}", "17")
    code, _, err = status(capsys, store)
    assert (code, "is not a rate limit" in err) == (1, True)


@pytest.mark.parametrize(
    ("url", "code", "problem"),
    [
        ("sqlite:///x.db", 2, "other stores have no rate limits"),
        ("redis://localhost?timeout=x", 2, "--store"),
        ("redis://:secret@127.0.0.1:1/0", 1, "failed in the store of the rate limiter"),
    ],
)
def test_wrong_store_is_reported_without_its_password(capsys, url, code, problem):
    assert main(["rate-limiter", "status", "--store", url]) == code
    error = capsys.readouterr().err
    assert problem in error
    assert "secret" not in error
