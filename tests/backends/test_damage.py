"""Stored records with a damaged field: a typed error or no harm, and forget() always works."""

import json
import math

import pytest
from sqlalchemy.exc import SQLAlchemyError

from retrytemplate import AlreadyCompletedError, CacheUnavailableError, RetryError
from retrytemplate.backends.redis.inspection import RedisEntries
from retrytemplate.backends.sql.inspection import SQLEntries
from retrytemplate.caches.record import to_json
from retrytemplate.testing.conformance.cache import rich_record
from tests.backends.conftest import failing, opened

KEY, OTHER = "work/s:m1", "work/s:m2"
MISSING = object()
MOST = 2**62

TEXTS = ("", "null", "abc", "-1", "nan", "inf", "1e400", "9" * 400, "1.5", b"\xff", "a\nb")
COLUMNS = (None, "abc", b"\xff", -1, 1.5, 1e300, math.inf, math.nan, 2**63 - 1)
VALUES = (MISSING, None, "abc", -1, 1.5, math.nan, math.inf, 10**400, 2**63, True, [17], {"a": {}})


def idle(cache):
    claim = cache.begin(KEY, worker="one")
    cache.fail(claim, failing(claim))


def held(cache):
    cache.begin(KEY, worker="one", lease=60)


def lost(cache):
    cache.begin(KEY, worker="one", lease=0.01)


def done(cache):
    cache.succeed(cache.begin(KEY, worker="one"), remember=60)


def damaged(store):
    """Damage each field of the key in turn, in each way."""
    if store.kind == "valkey":
        name, fields = store.name(KEY), store.client.hgetall(store.name(KEY))
        for field in fields:
            for value in (MISSING, *TEXTS):
                if value is MISSING:
                    store.client.hdel(name, field)
                else:
                    store.client.hset(name, field, value)
                yield field, value
                store.client.hset(name, mapping=fields)
        return
    row = dict(store.row(KEY))
    for column in row.keys() - {"key"}:
        for value in COLUMNS:
            try:
                store.change(KEY, **{column: value})
            except SQLAlchemyError:  # the column does not hold it
                continue
            yield column, value
            store.sql("DELETE FROM {0}_contexts")
            names = ", ".join(row)
            values = ", ".join(f":{name}" for name in row)
            store.sql(f"INSERT INTO {{0}}_contexts ({names}) VALUES ({values})", **row)


def found(entries):
    return filter(None, [entries.find(KEY)])


def looking(store):
    if store.kind == "valkey":
        return RedisEntries(store.url, store.prefix)
    return SQLEntries(store.url, store.prefix)


@pytest.mark.parametrize("leave", [idle, held])
def test_damaged_field_is_a_typed_error_or_harmless(store, leave):
    check_each_field(store, leave)


@pytest.mark.parametrize("leave", [lost, done])
def test_damaged_field_of_an_ended_attempt_is_an_error_or_harmless(quick_store, leave):
    check_each_field(quick_store, leave)


@pytest.fixture(params=["sqlite", "valkey"])
def quick_store(request):
    made = opened(request.param, request)
    yield made
    made.close()


def check_each_field(store, leave):
    cache, entries = store.cache(), looking(store)
    leave(cache)
    for field, value in damaged(store):
        where = f"{field}={value!r}"
        for step in (
            lambda: cache.peek(KEY),
            lambda: [json.dumps(each.as_json(), allow_nan=False) for each in found(entries)],
            lambda: entries.page(limit=10),
            lambda: cache.begin(KEY, worker="next"),
        ):
            try:
                made = step()
            except RetryError as error:
                lease_until = getattr(error, "lease_until", None)
                assert lease_until is None or math.isfinite(lease_until), where
                assert isinstance(getattr(error, "worker", None), str | None), where
            except Exception as error:
                raise AssertionError(f"{where}: {error!r}") from error
        if not isinstance(made, list):
            assert type(made.fence) is int and 0 < made.fence < MOST, where
            assert isinstance(made.lost, str | None), where
        cache.forget(KEY)
        assert cache.peek(KEY) is None, where
        fresh = cache.begin(KEY, worker="fresh")
        assert (fresh.record, fresh.lost) == (None, None), where
        assert type(fresh.fence) is int and fresh.fence < MOST, where
        cache.forget(KEY)
        assert type(cache.begin(OTHER, worker="one").fence) is int, where
        cache.forget(OTHER)
    entries.close()


@pytest.mark.parametrize("fence", ["nan", "inf", "1e400", "-inf", "4.6e300"])
def test_damaged_fence_is_a_typed_error_that_takes_no_key(valkey, fence):
    cache = valkey.cache()
    idle(cache)
    valkey.change(KEY, fence=fence)
    with pytest.raises(CacheUnavailableError, match="fence"):
        cache.begin(KEY, worker="next")
    assert valkey.row(KEY)["worker"] is None
    assert cache.peek(KEY).failures == 1
    cache.forget(KEY)
    assert cache.begin(KEY, worker="next").record is None


def test_infinite_fence_in_a_file_is_a_typed_error_that_leaves_the_key(sqlite):
    cache = sqlite.cache()
    idle(cache)
    sqlite.change(KEY, fence=math.inf)
    with pytest.raises(CacheUnavailableError, match="fence"):
        cache.begin(KEY, worker="next")
    assert sqlite.row(KEY)["worker"] is None
    assert cache.peek(KEY).failures == 1
    cache.forget(KEY)
    fences = [cache.begin(each, worker="next").fence for each in (KEY, OTHER)]
    assert all(type(fence) is int for fence in fences)


def variants():
    """The JSON of records with one damaged field each."""
    whole = to_json(rich_record())
    places = [("", whole), ("last", whole["last"]), ("history", whole["history"][1])]
    for place, fields in places:
        for field in fields:
            for value in VALUES:
                changed = {name: each for name, each in fields.items() if name != field}
                if value is not MISSING:
                    changed[field] = value
                if place == "last":
                    changed = whole | {"last": changed}
                elif place == "history":
                    changed = whole | {"history": [changed]}
                yield f"{place}.{field}={value!r}", json.dumps(changed)
    yield "a number beyond all", json.dumps(whole).replace("1.5", "1e999", 1)
    yield "reordered", json.dumps(dict(reversed(whole.items())), indent=1)
    yield "reversed history", json.dumps(whole | {"history": whole["history"][::-1]})


def test_damaged_record_is_a_typed_error_or_can_be_written_again(quick_store):
    store, cache = quick_store, quick_store.cache()
    idle(cache)
    readable = 0
    for what, text in variants():
        store.change(KEY, record=text)
        try:
            record = cache.peek(KEY)
            claim = cache.begin(KEY, worker="next")
        except (CacheUnavailableError, AlreadyCompletedError):
            assert store.row(KEY)["worker"] is None, what
            continue
        readable += 1
        assert to_json(claim.record) == to_json(record), what
        cache.fail(claim, failing(claim, attributes=record.attributes))
        assert cache.peek(KEY).failures == 1, what
    assert readable > 10
    store.change(KEY, record=json.dumps(to_json(rich_record()), indent=1) + "\n")
    claim = cache.begin(KEY, worker="next")
    assert (claim.record.failures, claim.lost) == (2, None)
