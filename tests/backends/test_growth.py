"""Expired keys are deleted without ``purge()``."""

import pytest
from sqlalchemy import text

from retrytemplate._storage import sql_dialect
from retrytemplate.backends.sql import operations, statements
from tests.backends.conftest import failing

TTL = 60


@pytest.fixture
def store(database):
    return database


@pytest.fixture(autouse=True)
def _a_small_broom(monkeypatch):
    monkeypatch.setattr(operations, "SWEEP_EVERY", 5)
    monkeypatch.setattr(operations, "SWEPT", 10)


def fail_once(cache, keys):
    for key in keys:
        claim = cache.begin(key, worker="one")
        cache.fail(claim, failing(claim))


def named(name, number):
    return [f"{name}-{each:02}" for each in range(number)]


def test_failed_keys_without_redelivery_are_swept(made, store):
    cache = made(ttl=TTL)
    fail_once(cache, named("old", 25))
    store.age(TTL + 1)
    fail_once(cache, named("new", 15))
    assert store.keys() == named("new", 15)


def test_expired_remembered_successes_are_removed(made, store):
    cache = made()
    for key in named("old", 4):
        cache.succeed(cache.begin(key, worker="one"), remember=TTL)
    store.age(TTL + 1)
    cache.begin("new", worker="one")
    assert store.keys() == ["new"]


def test_unexpired_keys_are_not_swept(made, store):
    cache = made(ttl=TTL)
    fail_once(cache, ["failed"])
    store.age(TTL + 1)
    held = cache.begin("failed", worker="one")
    fail_once(cache, named("other", 7))
    store.age(TTL - 1)
    fail_once(cache, named("new", 5))
    assert {"failed", *named("other", 7)} <= set(store.keys())
    cache.fail(held, failing(held))


def test_entries_without_ttl_are_kept(made, store):
    cache = made()
    fail_once(cache, named("old", 4))
    store.age(1e6)
    fail_once(cache, named("new", 6))
    assert store.keys() == sorted(named("old", 4) + named("new", 6))


def test_failed_sweep_does_not_fail_begin(sqlite):
    cache = sqlite.cache(ttl=TTL)
    fail_once(cache, named("old", 4))
    sqlite.age(TTL + 1)
    sqlite.sql(
        "CREATE TRIGGER {0}_kept BEFORE DELETE ON {0}_contexts "
        "BEGIN SELECT raise(ABORT, 'not now'); END"
    )
    assert cache.begin("new", worker="one").record is None


def test_expired_keys_are_found_by_an_index(cache, store):
    cache.peek("any")
    order = sql_dialect.in_dialect(statements.SWEEP, store.kind, store.prefix)
    with store.engine.begin() as connection:
        if store.kind == "sqlite":
            explain = "EXPLAIN QUERY PLAN"
        else:  # of a table that is empty it would rather read all
            explain = "EXPLAIN"
            connection.execute(text("SET LOCAL enable_seqscan = off"))
        plan = connection.execute(text(f"{explain} {order}"), {"limit": 10, "ttl": TTL}).all()
    assert f"{store.prefix}_expires" in str(plan)
