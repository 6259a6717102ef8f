"""A kill switch's store that is unavailable, loses responses, or holds invalid data."""

import socket
import sqlite3
from contextlib import closing

import pytest
from redis import Redis, RedisError
from redis.crc import key_slot
from sqlalchemy import create_engine, event, make_url
from sqlalchemy.exc import DBAPIError

from retrytemplate import SQLRetryContextCache
from retrytemplate.control import KillSwitch, RedisSwitchStore, SQLSwitchStore
from retrytemplate.control.switch.store.redis import CLAIM, COMMIT, MARK_NOTIFIED
from retrytemplate.errors import SwitchStoreError
from tests.control.switch.conftest import opened
from tests.control.switch.shared import stopped
from tests.support import postgres
from tests.support.proxy import Proxy

SERVER = "redis://localhost"
FILE = "sqlite:////srv/switch.db"
LEASE = 60.0


def texts(records):
    return [each.text for each in records]


# -- an answer that is lost ----------------------------------------------------------------------


@pytest.fixture(params=["postgresql", "valkey"])
def served(request):
    """A place with a server."""
    return opened(request.param, request)


@pytest.fixture
def proxy(served):
    url = make_url(served.url)
    with Proxy(url.port or 6379, url.host) as proxy:
        yield proxy


@pytest.fixture
def distant(served, proxy):
    """A store behind the proxy; other stores of the place are not behind it."""
    url = make_url(served.url).set(port=proxy.port)
    made = served.kept_in(url.render_as_string(hide_password=False), prefix=served.prefix)
    made.commit(0, "first", ["a"])
    yield made
    made.close()


# What is in the requests that write.
WRITES = {
    "postgresql": [b"UPDATE", b"INSERT", b"COMMIT\0"],
    "valkey": [COMMIT.sha.encode()],
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_change_with_a_lost_response_is_made_once(served, distant, proxy, when, at):
    words = WRITES[served.kind]
    proxy.cut(when, words[at % len(words)])
    assert distant.commit(1, "second", ["b", "c"]) is True
    assert proxy.cuts == 1
    assert served.open().load(None) == (2, "second")
    assert texts(served.open().records()) == ["c", "b", "a"]


def test_change_is_recognised_after_a_later_change(served, distant, proxy):
    again = distant._confirm_commit

    def later(*arguments):
        assert served.open().commit(2, "third", ["d"])
        return again(*arguments)

    distant._confirm_commit = later
    proxy.cut("after", WRITES[served.kind][-1])
    assert distant.commit(1, "second", ["b", "c"]) is True
    assert texts(served.open().records()) == ["d", "c", "b", "a"]


def test_lost_change_is_not_confused_with_another(served, distant, proxy):
    again = distant._confirm_commit

    def later(*arguments):
        assert served.open().commit(1, "another", ["x"])
        return again(*arguments)

    distant._confirm_commit = later
    proxy.cut("before", WRITES[served.kind][0])
    assert distant.commit(1, "second", ["b"]) is False
    assert texts(served.open().records()) == ["x", "a"]


def test_change_without_records_is_recognised_by_its_document(served, distant, proxy):
    proxy.cut("after", WRITES[served.kind][-1])
    assert distant.commit(1, "second", []) is True
    assert distant.load(None) == (2, "second")


def test_second_lost_response_is_an_error(served, distant, proxy):
    for _ in range(2):
        proxy.cut("after", WRITES[served.kind][-1])
    with pytest.raises(SwitchStoreError, match="commit failed in the store of the kill switch"):
        distant.commit(1, "second", ["b"])
    assert texts(served.open().records()) == ["b", "a"]


def test_claim_with_a_lost_response_belongs_to_its_worker(served, distant, proxy):
    word = CLAIM.sha.encode() if served.kind == "valkey" else b"UPDATE"
    proxy.cut("after", word)
    assert texts(distant.claim_pending_notifications("one", LEASE, 10)) == ["a"]


def test_notified_record_with_a_lost_response_stays_notified(served, distant, proxy):
    distant.claim_pending_notifications("one", LEASE, 10)
    proxy.cut("after", MARK_NOTIFIED.sha.encode() if served.kind == "valkey" else b"COMMIT\0")
    distant.mark_notified([1], "one")
    assert [each.notified for each in distant.records()] == [True]


def test_load_takes_one_round_trip(distant, proxy):
    distant.load(None)
    before = proxy.requests
    distant.load(1)
    assert proxy.requests == before + 1


# -- no server, or a silent one ------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def nowhere(request, tmp_path):
    """A store in a missing folder, or on a closed port."""
    if request.param == "sqlite":
        made = SQLSwitchStore(f"sqlite:///{tmp_path}/absent/switch.db")
    else:
        url = f"{request.param}://me:secret@127.0.0.1:{postgres.free_port()}/1"
        made = (RedisSwitchStore if request.param == "redis" else SQLSwitchStore)(url)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("load", (None,)),
        ("commit", (0, "stopped", ["record"])),
        ("records", ()),
        ("claim_pending_notifications", ("one", LEASE, 10)),
        ("mark_notified", ([1], "one")),
    ],
)
def test_unreachable_store_is_reported_without_its_password(nowhere, method, arguments):
    with pytest.raises(SwitchStoreError, match="failed in the store of the kill switch") as caught:
        getattr(nowhere, method)(*arguments)
    assert isinstance(caught.value.__cause__, (DBAPIError, RedisError))
    assert "secret" not in str(caught.value) + repr(nowhere)


def test_silent_server_is_given_up_after_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = RedisSwitchStore(f"redis://127.0.0.1:{silent.getsockname()[1]}", timeout=0.05)
        with pytest.raises(SwitchStoreError, match=r"load failed .*: Timeout"):
            store.load(None)
        with pytest.raises(SwitchStoreError, match=r"commit failed .*: Timeout"):
            store.commit(0, "stopped", ["record"])
        store.close()


def test_busy_file_is_waited_for_and_then_rejected(sqlite):
    store = sqlite.open(timeout=0.05)
    with closing(sqlite3.connect(sqlite.engine.url.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SwitchStoreError, match="give the switch a file of its own"):
            store.commit(0, "stopped", ["record"])
        other.execute("COMMIT")
        assert store.commit(0, "stopped", ["record"])
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SwitchStoreError, match="database is locked"):
            store.commit(1, "stopped", ["record"])
        assert store.load(None) == (1, "stopped")
        other.execute("ROLLBACK")


def interrupted_in(engine):
    """Raise KeyboardInterrupt after the next statement on the engine."""

    def interrupt(*_):
        event.remove(engine, "after_cursor_execute", interrupt)
        raise KeyboardInterrupt

    event.listen(engine, "after_cursor_execute", interrupt)


@pytest.mark.parametrize("method", ["commit", "claim_pending_notifications", "mark_notified"])
def test_signal_in_a_statement_leaves_no_lock_and_no_partial_change(database, method):
    store, other = database.open(), database.open(timeout=0.2)
    store.commit(0, "first", ["a"])
    store.claim_pending_notifications("one", LEASE, 1)
    arguments = {"commit": (1, "second", ["b"]), "claim_pending_notifications": ("one", LEASE, 1)}
    interrupted_in(store._store.engine)
    # The error is held meanwhile, with all that its traceback holds.
    with pytest.raises(KeyboardInterrupt) as _caught:
        getattr(store, method)(*arguments.get(method, ([1], "one")))
    assert other.commit(1, "third", ["c"])
    assert other.load(None) == (2, "third")
    assert texts(store.records()) == ["c", "a"]


# -- something else in it ------------------------------------------------------------------------


def test_store_of_a_later_version_is_rejected(durable):
    durable.open().commit(0, "first", ["a"])
    durable.of_the_future()
    for method, *arguments in [("load", None), ("commit", 1, "second", ["b"]), ("records",)]:
        with pytest.raises(SwitchStoreError, match="have version 2, this version of the library"):
            getattr(durable.open(), method)(*arguments)
    assert durable.document() == "first"


def test_lost_document_is_an_error(durable):
    store = durable.open()
    store.commit(0, "first", ["a"])
    durable.lose()
    with pytest.raises(SwitchStoreError, match=r"cannot be read|is gone, and with it what is st"):
        store.load(1)


def test_known_entries_are_restored_when_all_is_deleted(valkey):
    with KillSwitch(valkey.open(), stale_after=60) as switch:
        switch.stop(segment="finance", reason="charged twice", by="kim", permanent=True)
        valkey.lose()
        switch.refresh()
        assert switch.snapshot().lost
        assert not switch.check(segment="finance").allowed
        valkey.clear()
        switch.refresh()
        assert not switch.check(segment="finance").allowed
        assert [each.action for each in switch.audit()] == ["restored"]
        assert "finance" in valkey.document()


def emptied(place):
    """The steps of the runbook for an unreadable store."""
    if place.kind == "valkey":
        place.client.hset(place.name, mapping={"document": "", "version": 0})
    else:
        place.sql("UPDATE {0}_switch SET document = '', version = 0")


def broken(place):
    if place.kind == "valkey":
        place.client.hset(place.name, "document", "rubbish")
    else:
        place.sql("UPDATE {0}_switch SET document = 'rubbish'")


def test_known_entries_are_restored_when_a_corrupt_store_is_emptied(durable):
    with KillSwitch(durable.open()) as switch:
        stopped(switch)
        broken(durable)
        with KillSwitch(durable.open()) as other, pytest.raises(SwitchStoreError):
            stopped(other, segment="search")
        emptied(durable)
        switch.refresh()
        assert [each.action for each in switch.audit()] == ["restored", "stopped"]
    with KillSwitch(durable.open()) as other:
        assert not other.check(segment="billing")


@pytest.mark.statement("S4-63")
def test_rejected_records_prevent_the_change(durable):
    store = durable.open()
    store.commit(0, "first", ["a"])
    durable.refuse()
    with pytest.raises(SwitchStoreError, match="commit failed in the store of the kill switch"):
        store.commit(1, "second", ["b"])
    assert durable.document() == "first"


@pytest.mark.parametrize(
    ("statement", "method"),
    [
        ("UPDATE {0}_switch SET version = 'x'", "load"),
        ("UPDATE {0}_switch SET document = x'00ff'", "load"),
        ("UPDATE {0}_switch_audit SET number = 'x'", "records"),
    ],
)
def test_invalid_file_is_named_in_the_error(sqlite, statement, method):
    store = sqlite.open()
    store.commit(0, "first", ["a"])
    sqlite.sql(statement)
    with pytest.raises(SwitchStoreError, match="in the store of the kill switch cannot be read"):
        getattr(store, method)(*((None,) if method == "load" else ()))


@pytest.mark.parametrize(
    "command",
    [
        ("HSET", "{0}", "version", "x"),
        ("HSET", "{0}", "document", b"\xff"),
        ("HDEL", "{0}", "document"),
    ],
)
def test_invalid_valkey_data_is_named_in_the_error(valkey, command):
    store = valkey.open()
    store.commit(0, "first", ["a"])
    name, key, *rest = command
    valkey.client.execute_command(name, key.format(valkey.name), *rest)
    with pytest.raises(SwitchStoreError, match="in the store of the kill switch cannot be read"):
        store.load(None)


def test_binary_record_in_a_file_does_not_hide_the_others(sqlite):
    store = sqlite.open()
    store.commit(0, "first", ["a", "b"])
    sqlite.sql("UPDATE {0}_switch_audit SET record = x'00ff' WHERE number = 1")
    assert texts(store.records()) == ["b", ""]
    assert texts(store.claim_pending_notifications("one", LEASE, 10)) == ["", "b"]


@pytest.mark.parametrize("entry", ["no version", b"1\n\xff", b"\xff", ""])
def test_binary_record_on_valkey_does_not_hide_the_others(valkey, entry):
    store = valkey.open()
    store.commit(0, "first", ["a", "b"])
    valkey.client.lset(f"{valkey.name}:audit", 0, entry)
    assert texts(store.records()) == ["b", ""]
    assert texts(store.claim_pending_notifications("one", LEASE, 10)) == ["", "b"]


@pytest.mark.parametrize("name", ["", ":audit", ":pending", ":claims"])
@pytest.mark.parametrize(
    "method", ["load", "commit", "records", "claim_pending_notifications", "mark_notified"]
)
def test_key_of_another_type_is_rejected_by_every_step(valkey, name, method):
    store = valkey.open()
    valkey.client.set(f"{valkey.name}{name}", "no switch")
    arguments = {
        "load": (None,),
        "commit": (0, "first", ["a"]),
        "records": (),
        "claim_pending_notifications": ("one", LEASE, 10),
        "mark_notified": ([1], "one"),
    }
    with pytest.raises(SwitchStoreError, match="WRONGTYPE"):
        getattr(store, method)(*arguments[method])
    assert valkey.names() == [f"{valkey.name}{name}"]


# -- the names, and whose they are ---------------------------------------------------------------


def test_keys_have_no_expiry_and_share_one_slot(valkey):
    store = valkey.open()
    store.commit(0, "first", ["a", "b"])
    store.claim_pending_notifications("one", LEASE, 1)
    names = valkey.names()
    assert len(names) == 4
    assert {valkey.client.ttl(name) for name in names} == {-1}
    assert len({key_slot(name.encode()) for name in names}) == 1


def test_switch_and_context_cache_can_share_database_and_prefix(database):
    with SQLRetryContextCache(database.url, prefix=database.prefix) as cache:
        assert cache.peek("any") is None
        assert database.open().commit(0, "first", ["a"])
        assert cache.peek("any") is None
    if database.kind == "postgresql":
        database.sql("DROP TABLE {0}_contexts")


def test_switches_of_other_prefixes_are_other_switches(durable):
    one = durable.open()
    one.commit(0, "first", ["a"])
    durable.prefix += "_b"
    other = durable.open()
    assert other.load(None) == (0, "")
    if durable.kind == "postgresql":
        for table in ("switch", "switch_audit", "meta"):
            durable.sql("DROP TABLE {0}_" + table)
        durable.prefix = durable.prefix.removesuffix("_b")
    assert one.load(None) == (1, "first")


def test_engine_of_the_caller_is_used_and_stays_open(sqlite):
    engine = create_engine(sqlite.url)
    store = SQLSwitchStore(engine, sqlite.prefix)
    store.commit(0, "first", ["a"])
    pool = engine.pool
    store.close()
    assert (engine.pool is pool, pool.checkedin()) == (True, 1)
    engine.dispose()


def test_client_of_the_caller_is_used_and_stays_open(valkey):
    with Redis.from_url(valkey.url, decode_responses=True, encoding="latin-1") as client:
        store = RedisSwitchStore(client, valkey.prefix)
        store.commit(0, "grün \U0001f6d1", ["a"])
        assert store.load(None) == (1, "grün \U0001f6d1")
        store.close()
        assert client.ping()


@pytest.mark.parametrize(
    ("kind", "url", "settings", "error", "message"),
    [
        (SQLSwitchStore, FILE, {"prefix": "1a"}, ValueError, "prefix must be 1 to 40 of a-z"),
        (SQLSwitchStore, FILE, {"prefix": None}, ValueError, "prefix must be .* got None"),
        (RedisSwitchStore, SERVER, {"prefix": "{a}"}, ValueError, "prefix must be 1 to 100 of let"),
        (RedisSwitchStore, SERVER, {"timeout": 0}, ValueError, "timeout must be .* got 0"),
        (SQLSwitchStore, FILE, {"timeout": "1"}, TypeError, "must be a number of seconds|seconds"),
        (SQLSwitchStore, "sqlite://", {}, ValueError, "in one process use MemorySwitchStore"),
        (SQLSwitchStore, "mysql://localhost", {}, ValueError, "must be a URL of SQLite or Postgr"),
        (SQLSwitchStore, "switch.db", {}, TypeError, "got an invalid URL"),
        (RedisSwitchStore, FILE, {}, ValueError, "url must be redis://"),
        (RedisSwitchStore, None, {}, TypeError, "url must be a Redis URL or a redis.Redis, got N"),
    ],
)
def test_wrong_arguments_are_rejected_at_once(kind, url, settings, error, message):
    with pytest.raises(error, match=message):
        kind(url, **settings)
