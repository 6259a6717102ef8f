"""What one sees who looks into a store: every key with its record and its holder, page by page."""

import pytest
from sqlalchemy import inspect

from retrytemplate import CacheUnavailableError
from retrytemplate.stores.sql_entries import SQLEntries
from tests.stores.conftest import failing, opened


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request):
    made = opened(request.param, request)
    yield made
    made.close()


@pytest.fixture
def entries(store):
    """Who looks into the tables that the caches of the test write."""
    opened = SQLEntries(store.engine.url.render_as_string(hide_password=False), store.prefix)
    yield opened
    opened.close()


def fail(cache, key, failures=1, **settings):
    claim = cache.begin(key, worker="one", **settings)
    cache.fail(claim, failing(claim, failures))


def keys(page):
    return [entry.key for entry in page]


def test_a_key_that_failed_has_its_record_and_nobody_who_holds_it(cache, entries):
    fail(cache, "a", failures=3)
    [entry] = entries.page(limit=9)

    assert (entry.key, entry.phase, entry.record.failures) == ("a", "idle", 3)
    assert (entry.worker, entry.lease_until, entry.held, entry.lost) == (None, None, False, False)
    assert entry.now - 60 < entry.updated <= entry.now
    assert entries.find("a").record == entry.record


def test_a_key_that_is_held_for_the_first_time_is_seen_with_its_holder(cache, entries):
    claim = cache.begin("a", worker="host:17:1", lease=30)
    entry = entries.find("a")

    assert (entry.phase, entry.worker, entry.fence) == ("attempting", "host:17:1", claim.fence)
    assert entry.lease_until == pytest.approx(claim.lease_until)
    assert (entry.held, entry.lost, entry.record.failures) == (True, False, 0)


def test_an_attempt_whose_lease_is_over_is_seen_as_lost(store, cache, entries):
    fail(cache, "a")
    cache.begin("a", worker="one", lease=30)
    store.age(31)
    entry = entries.find("a")

    assert (entry.held, entry.lost, entry.worker) == (False, True, "one")
    assert (entry.phase, entry.record.phase, entry.record.failures) == ("attempting", "idle", 1)


def test_a_remembered_success_is_seen_until_it_is_over(store, cache, entries):
    cache.succeed(cache.begin("a", worker="one"), remember=60)
    entry = entries.find("a")
    assert (entry.phase, entry.held) == ("done", False)
    assert entry.expires == pytest.approx(entry.now + 60, abs=10)

    store.age(61)
    assert entries.find("a") is None
    assert entries.page(limit=9) == []


def test_what_its_time_to_live_is_over_for_is_not_seen(store, entries):
    fail(store.cache(ttl=60), "a")
    assert keys(entries.page(limit=9)) == ["a"]

    store.age(61)
    assert entries.page(limit=9) == []


def test_pages_follow_each_other_in_order(cache, entries):
    for key in ("c", "a", "é", "b", "Z", "𝄞"):
        fail(cache, key)
    first = keys(entries.page(limit=4))
    second = keys(entries.page(after=first[-1], limit=4))

    assert first + second == ["Z", "a", "b", "c", "é", "𝄞"]


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", ["a", "a%", "a/1", "a/\U0010ffff", "a_", "b"]),
        ("a/", ["a/1", "a/\U0010ffff"]),
        ("a%", ["a%"]),
        ("a_", ["a_"]),
        ("c", []),
        ("a" * 2000, []),
    ],
)
def test_only_keys_that_begin_with_the_prefix_are_listed(cache, entries, prefix, expected):
    for key in ("a", "b", "a/1", "a%", "a_", "a/\U0010ffff"):
        fail(cache, key)

    assert keys(entries.page(prefix=prefix, limit=9)) == expected
    assert keys(entries.page(prefix=prefix, after="a/1", limit=9)) == [
        key for key in expected if key > "a/1"
    ]


@pytest.mark.parametrize("key", ["nul\0", "back\\slash", "\udc80", "k" * 3000])
def test_a_key_that_no_column_takes_is_found_and_forgotten(cache, entries, key):
    fail(cache, key)
    [listed] = keys(entries.page(limit=9))
    assert entries.find(key).key == entries.find(listed).key == listed

    entries.forget(listed)
    assert (entries.find(key), cache.peek(key)) == (None, None)


def test_what_is_forgotten_begins_anew(cache, entries):
    fail(cache, "a")
    held = cache.begin("b", worker="one")
    for key in ("a", "b"):
        entries.forget(key)

    assert entries.page(limit=9) == []
    assert not cache.holds(held)


def test_a_record_that_cannot_be_read_hides_no_other(store, cache, entries):
    for key in ("a", "b"):
        fail(cache, key)
    store.sql("UPDATE {0}_contexts SET record = 'x' WHERE key = 'a'")
    broken, whole = entries.page(limit=9)

    assert broken.problem.startswith("the record under 'a' cannot be read: ")
    assert (broken.record.failures, broken.as_json()["problem"]) == (0, broken.problem)
    assert (whole.problem, whole.record.failures) == (None, 1)


def test_looking_makes_no_table(store, entries):
    store.sql("CREATE TABLE {0}_other (id int)")  # there is a database
    for look in ("find", "forget"):
        with pytest.raises(CacheUnavailableError, match=f"has no tables {store.prefix}_"):
            getattr(entries, look)("a")
    with pytest.raises(CacheUnavailableError, match=f"has no tables {store.prefix}_"):
        entries.page(limit=9)
    store.sql("DROP TABLE {0}_other")

    assert not inspect(store.engine).has_table(f"{store.prefix}_meta")


def test_looking_makes_no_file(tmp_path):
    for url in (f"sqlite:///{tmp_path}/none.db", f"sqlite:///file:{tmp_path}/none.db?uri=true"):
        with pytest.raises(CacheUnavailableError, match=r"there is no file .*none\.db"):
            SQLEntries(url).page(limit=9)
    assert list(tmp_path.iterdir()) == []


def test_tables_of_a_newer_version_are_refused(store, cache, entries):
    fail(cache, "a")
    store.sql("UPDATE {0}_meta SET value = 99 WHERE name = 'schema'")

    with pytest.raises(CacheUnavailableError, match="have version 99"):
        entries.page(limit=9)


def test_the_json_of_an_entry_is_its_record_with_what_lies_beside_it(cache, entries):
    fail(cache, "a", failures=2)
    claim = cache.begin("a", worker="two", lease=30)
    data = entries.find("a").as_json()

    assert (data["key"], data["format"], data["failures"], data["history"]) == ("a", 1, 2, [])
    assert (data["phase"], data["worker"], data["fence"]) == ("attempting", "two", claim.fence)
    assert (data["held"], data["lost"]) == (True, False)
    assert data["lease_until"] == pytest.approx(claim.lease_until)
