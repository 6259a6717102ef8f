"""Inspection of a store: every key with its record and its holder, page by page."""

import json
import re

import pytest
from sqlalchemy import inspect

from retrytemplate import AttemptRecord, CacheUnavailableError, RedisRetryContextCache
from retrytemplate.backends.redis.inspection import RedisEntries
from retrytemplate.backends.sql.inspection import SQLEntries
from retrytemplate.cli import main
from tests.backends.conftest import failing
from tests.support.postgres import free_port


def looking(store):
    """A reader of the entries that the caches of the test write."""
    kind = RedisEntries if store.kind == "valkey" else SQLEntries
    return kind(store.url, store.prefix)


@pytest.fixture
def entries(store):
    opened = looking(store)
    yield opened
    opened.close()


def fail(cache, key, failures=1, **settings):
    claim = cache.begin(key, worker="one", **settings)
    cache.fail(claim, failing(claim, failures))


def keys(page):
    return [entry.key for entry in page]


def test_failed_key_has_a_record_and_no_holder(cache, entries):
    fail(cache, "a", failures=3)
    [entry] = entries.page(limit=9)

    assert (entry.key, entry.phase, entry.record.failures) == ("a", "idle", 3)
    assert (entry.worker, entry.lease_until, entry.held, entry.lost) == (None, None, False, False)
    assert entry.updated is None or entry.now - 60 < entry.updated <= entry.now
    assert entries.find("a").record == entry.record


def test_key_held_for_the_first_time_is_shown_with_its_holder(cache, entries):
    claim = cache.begin("a", worker="host:17:1", lease=30)
    entry = entries.find("a")

    assert (entry.phase, entry.worker, entry.fence) == ("attempting", "host:17:1", claim.fence)
    assert entry.lease_until == pytest.approx(claim.lease_until)
    assert (entry.held, entry.lost, entry.record.failures) == (True, False, 0)


def test_attempt_with_expired_lease_is_shown_as_lost(store, cache, entries):
    fail(cache, "a")
    cache.begin("a", worker="one", lease=30)
    store.age(31)
    entry = entries.find("a")

    assert (entry.held, entry.lost, entry.worker) == (False, True, "one")
    assert (entry.phase, entry.record.phase, entry.record.failures) == ("attempting", "idle", 1)


def test_remembered_success_is_shown_until_it_expires(store, cache, entries):
    cache.succeed(cache.begin("a", worker="one"), remember=60)
    entry = entries.find("a")
    assert (entry.phase, entry.held) == ("done", False)
    assert entry.expires == pytest.approx(entry.now + 60, abs=10)

    store.age(61)
    assert entries.find("a") is None
    assert entries.page(limit=9) == []


def test_success_remembered_permanently_has_no_end(database):
    cache, entries = database.cache(), looking(database)
    cache.succeed(cache.begin("a", worker="one"), remember=float("inf"))

    assert (entries.find("a").phase, entries.find("a").expires) == ("done", None)
    entries.close()


def test_entry_with_expired_ttl_is_not_shown(store, entries):
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
        ("", ["a", "a%", "a*", "a/1", "a/\U0010ffff", "a?", "a[b]", "a\\", "a_", "b"]),
        ("a/", ["a/1", "a/\U0010ffff"]),
        ("a%", ["a%"]),
        ("a_", ["a_"]),
        ("a*", ["a*"]),
        ("a?", ["a?"]),
        ("a[b", ["a[b]"]),
        ("a\\", ["a\\"]),
        ("c", []),
        ("a" * 2000, []),
    ],
)
def test_only_keys_that_begin_with_the_prefix_are_listed(cache, entries, prefix, expected):
    for key in ("a", "b", "a/1", "a%", "a_", "a*", "a?", "a[b]", "a\\", "a/\U0010ffff"):
        fail(cache, key)

    assert keys(entries.page(prefix=prefix, limit=20)) == expected
    assert keys(entries.page(prefix=prefix, after="a/1", limit=20)) == [
        key for key in expected if key > "a/1"
    ]


@pytest.mark.parametrize("key", ["nul\0", "back\\slash", "\udc80", "k" * 3000])
def test_key_that_no_column_takes_is_found_and_forgotten(cache, entries, key):
    fail(cache, key)
    [listed] = keys(entries.page(limit=9))
    assert entries.find(key).key == entries.find(listed).key == listed

    entries.forget(listed)
    assert (entries.find(key), cache.peek(key)) == (None, None)


def test_forgotten_key_begins_without_a_record(cache, entries):
    fail(cache, "a")
    held = cache.begin("b", worker="one")
    for key in ("a", "b"):
        entries.forget(key)

    assert entries.page(limit=9) == []
    assert not cache.holds(held)


def test_unreadable_record_hides_no_other_record(store, cache, entries):
    for key in ("a", "b"):
        fail(cache, key)
    store.change("a", record="x")
    broken, whole = entries.page(limit=9)

    assert broken.problem.startswith("the record under 'a' cannot be read: ")
    assert (broken.record.failures, broken.as_json()["problem"]) == (0, broken.problem)
    assert (whole.problem, whole.record.failures) == (None, 1)


def test_looking_makes_no_table(database):
    database.sql("CREATE TABLE {0}_other (id int)")  # there is a database
    entries = looking(database)
    for look in (entries.find, entries.forget, lambda key: entries.page(after=key, limit=9)):
        with pytest.raises(CacheUnavailableError, match=f"has no tables {database.prefix}_"):
            look("a")
    entries.close()
    database.sql("DROP TABLE {0}_other")

    assert not inspect(database.engine).has_table(f"{database.prefix}_meta")


def test_looking_makes_no_file(tmp_path):
    for url in (f"sqlite:///{tmp_path}/none.db", f"sqlite:///file:{tmp_path}/none.db?uri=true"):
        with pytest.raises(CacheUnavailableError, match=r"there is no file .*none\.db"):
            SQLEntries(url).page(limit=9)
    assert list(tmp_path.iterdir()) == []


def test_tables_of_a_newer_version_are_rejected(database):
    fail(database.cache(), "a")
    database.sql("UPDATE {0}_meta SET value = 99 WHERE name = 'schema'")
    entries = looking(database)

    with pytest.raises(CacheUnavailableError, match="have version 99"):
        entries.page(limit=9)
    entries.close()


def test_json_of_an_entry_has_its_record_and_claim(cache, entries):
    fail(cache, "a", failures=2)
    claim = cache.begin("a", worker="two", lease=30)
    data = entries.find("a").as_json()

    assert (data["key"], data["format"], data["failures"], data["history"]) == ("a", 1, 2, [])
    assert (data["phase"], data["worker"], data["fence"]) == ("attempting", "two", claim.fence)
    assert (data["held"], data["lost"]) == (True, False)
    assert data["lease_until"] == pytest.approx(claim.lease_until)


def test_time_of_the_last_failure_replaces_an_unknown_update_time(valkey):
    failed = AttemptRecord(1, None, 1795273756.25, "OSError", "x")
    cache, entries = valkey.cache(), looking(valkey)
    claim = cache.begin("a", worker="one")
    assert (entries.find("a").updated, entries.find("a").written) == (None, None)

    cache.fail(claim, failing(claim, history=(failed,)))
    assert (entries.find("a").updated, entries.find("a").written) == (None, 1795273756.25)
    entries.close()


def command(*args):
    return main(["context", *args, "--json"])


def test_context_command_reads_every_store(store, cache, capsys):
    fail(cache, "a", failures=3)
    where = ("--store", store.url, "--store-prefix", store.prefix)

    assert command("list", *where) == 0
    assert [each["key"] for each in json.loads(capsys.readouterr().out)["keys"]] == ["a"]
    assert command("show", "a", *where) == 0
    assert json.loads(capsys.readouterr().out)["failures"] == 3
    assert command("forget", "a", *where) == 0
    assert cache.peek("a") is None


def test_service_and_command_know_valkey_by_its_name(valkey, capsys):
    url = valkey.url.replace("redis://", "valkey://")
    with RedisRetryContextCache(url, prefix=valkey.prefix) as cache:
        fail(cache, "a")

    assert command("list", "--store", url.upper(), "--store-prefix", valkey.prefix) == 0
    assert '"a"' in capsys.readouterr().out


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "valkeys"])
def test_unreachable_server_is_reported_without_its_password(scheme, capsys):
    url = f"{scheme}://me:s3cret@127.0.0.1:{free_port()}/0"

    assert command("list", "--store", url) == 1
    message = capsys.readouterr().err
    assert "listing failed in the store of the context cache" in message
    assert "s3cret" not in message


def test_invalid_redis_url_is_wrong_use(capsys):
    assert command("list", "--store", "redis://me:s3cret@host:port/0") == 2
    assert re.search(r"--store must be redis://, .*\n$", capsys.readouterr().err)
