"""The tables: created on first use, and unchanged when they exist."""

import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from retrytemplate import CacheUnavailableError, RetryState, RetryTemplate, SQLRetryContextCache
from tests.support import forked_python
from tests.support.child import command

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 3


@pytest.fixture
def store(database):
    return database


def test_several_processes_may_make_the_tables_at_once(store):
    processes = [
        forked_python.Popen(
            command("begin_together", store),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.communicate()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate(timeout=30) for process in processes] == [("", "")] * PROCESSES
    assert len(store.sql("SELECT key FROM {0}_contexts")) == PROCESSES
    assert store.sql("SELECT value FROM {0}_meta WHERE name = 'schema'")[0]["value"] == 1


def test_cache_creates_nothing_before_its_first_use(sqlite, tmp_path):
    sqlite.cache()
    assert list(tmp_path.iterdir()) == []


def test_tables_that_were_half_made_are_made_whole(store, cache):
    cache.peek("any")
    store.sql("DELETE FROM {0}_meta WHERE name = 'schema'")
    store.sql("DROP TABLE {0}_contexts")
    assert store.cache().peek("any") is None


def test_tables_of_a_newer_version_are_rejected(made, store):
    made().peek("any")
    store.sql("UPDATE {0}_meta SET value = 2 WHERE name = 'schema'")
    expected = f"the tables {store.prefix}_* have version 2, this version of the library knows up"
    with pytest.raises(CacheUnavailableError) as caught:
        made().begin("any", worker="one")
    assert str(caught.value).startswith(expected)


def test_caches_of_other_prefixes_are_other_caches(store):
    one, two = store.cache(), store.cache(prefix=f"{store.prefix}_b")
    one.begin("any", worker="one")
    two.begin("any", worker="two")
    for table in ("contexts", "meta"):
        store.sql("DROP TABLE {0}_b_" + table)


def test_sqlite_file_uses_write_ahead_logging(sqlite):
    sqlite.cache().peek("any")
    assert sqlite.sql("PRAGMA journal_mode")[0]["journal_mode"] == "wal"


WRITES = "INSERT INTO orders VALUES (1)"
READS = "SELECT * FROM orders"


@pytest.mark.parametrize("statement", [WRITES, READS])
def test_first_use_waits_for_another_transaction_on_the_file(sqlite, statement):
    sqlite.sql("CREATE TABLE orders (id integer)")
    cache = sqlite.cache(timeout=20.0)
    first_use = threading.Thread(target=cache.begin, args=("any",), kwargs={"worker": "one"})
    path = sqlite.engine.url.database
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute(statement).fetchall()
        first_use.start()
        first_use.join(0.1)
        other.execute("COMMIT")
    first_use.join()
    assert sqlite.row("any")["worker"] == "one"


@pytest.mark.parametrize("statement", [WRITES, READS])
def test_first_use_is_rejected_after_its_timeout(sqlite, statement):
    sqlite.sql("CREATE TABLE orders (id integer)")
    with sqlite.engine.begin() as other:
        other.execute(text("BEGIN"))
        other.execute(text(statement))
        with pytest.raises(CacheUnavailableError, match="a transaction is open on this file"):
            sqlite.cache(timeout=0.05).begin("any", worker="one")


@pytest.fixture
def reader_and_writer(postgresql):
    """The URL of a role that may only read and write the tables."""
    postgresql.cache().peek("any")
    role = f"worker_{postgresql.prefix}"
    postgresql.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    postgresql.sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    postgresql.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {{0}}_contexts, {{0}}_meta TO {role}")
    url = make_url(postgresql.url).set(username=role, password="secret")
    yield url.render_as_string(hide_password=False)
    with postgresql.engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))


def test_role_with_read_and_write_rights_can_use_caches(postgresql, reader_and_writer):
    with SQLRetryContextCache(reader_and_writer, prefix=postgresql.prefix) as cache:
        template = RetryTemplate(cache=cache, name="work")
        with pytest.raises(ZeroDivisionError):
            template.execute(lambda context: 1 / 0, state=RetryState("m1"))
        assert template.execute(lambda context: context.attempt, state=RetryState("m1")) == 2
        assert cache.purge() == 0


def test_role_that_cannot_create_tables_gets_an_error(postgresql, reader_and_writer):
    with (
        SQLRetryContextCache(reader_and_writer, prefix=f"{postgresql.prefix}_new") as cache,
        pytest.raises(CacheUnavailableError, match="permission denied for schema"),
    ):
        cache.peek("any")
