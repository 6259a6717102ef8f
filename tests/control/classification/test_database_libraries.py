"""The presets for PostgreSQL and Redis: errors of real servers, and their classification."""

import asyncio
import re
import socketserver
import threading
from contextlib import closing

import psycopg
import pytest
import redis
import sqlalchemy as sa
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from retrytemplate import RetryListener, current_context
from retrytemplate.control import POSTGRESQL, REDIS, AuthenticationAlert
from retrytemplate.testing import VirtualClock
from tests.support.accounts_db import bank, driven
from tests.support.postgres import free_port


def template(made, **settings):
    return made.with_(idempotent=True).template(clock=VirtualClock(), **settings)


class Before(RetryListener):
    """Does something before the second attempt."""

    def __init__(self, mend):
        self.mend = mend

    def on_backoff(self, context, delay):
        self.mend()


# PostgreSQL.


@pytest.fixture(scope="module")
def url(postgres_url):
    return driven(postgres_url)


@pytest.fixture(scope="module")
def postgresql(postgres_url):
    with bank(postgres_url, "presets") as made:
        yield made


def failed_with(outcome):
    """The server's code of the failed attempt, or the driver's message."""
    assert outcome.exception is None
    assert outcome.attempts == 2
    return outcome.history[0].message


def test_serialization_failure_is_retried_and_counts_once(postgresql):
    before = postgresql.cents()
    outcome = template(POSTGRESQL).outcome(postgresql.overtaken)
    assert "could not serialize" in failed_with(outcome)
    assert postgresql.cents() == before + 2  # one of them was the other's


def test_deadlock_victim_is_retried(postgresql):
    survivor, victim = postgresql.deadlock(template(POSTGRESQL))
    assert (survivor.exception, survivor.attempts) == (None, 1)
    assert "deadlock detected" in failed_with(victim)


def test_lock_timeout_is_retried(postgresql):
    with postgresql.engine.connect() as holder:
        transaction = holder.begin()
        postgresql.add(holder)

        def work():
            with postgresql.engine.begin() as connection:
                connection.execute(sa.text("SET LOCAL lock_timeout = '10ms'"))
                postgresql.add(connection)

        mended = template(POSTGRESQL, listeners=[Before(transaction.rollback)])
        assert "lock timeout" in failed_with(mended.outcome(work))


def test_lost_connection_is_opened_again(postgresql):
    outcome = template(POSTGRESQL).outcome(postgresql.cut_off)
    assert "terminating connection" in failed_with(outcome)


def test_asynchronous_engine_is_retried(url):
    async def main():
        engine = create_async_engine(url, poolclass=NullPool)

        async def work():
            async with engine.connect() as connection:
                if current_context().attempt == 1:
                    own = await connection.scalar(sa.text("SELECT pg_backend_pid()"))
                    async with engine.connect() as other:
                        await other.execute(sa.text(f"SELECT pg_terminate_backend({own}, 5000)"))
                return await connection.scalar(sa.text("SELECT 17"))

        try:
            return await template(POSTGRESQL).outcome_async(work)
        finally:
            await engine.dispose()

    assert "terminating connection" in failed_with(asyncio.run(main()))


@pytest.mark.parametrize("by_sqlalchemy", [True, False], ids=["SQLAlchemy", "psycopg"])
def test_unreachable_server_is_retried(url, by_sqlalchemy):
    away = url.set(port=free_port())
    outcome = template(POSTGRESQL).outcome(connect, away, by_sqlalchemy)
    assert (outcome.attempts, "refused" in str(outcome.exception)) == (4, True)


def connect(url, by_sqlalchemy):
    if by_sqlalchemy:
        sa.create_engine(url, poolclass=NullPool).connect().close()
    else:
        with closing(psycopg.connect(url.set(drivername="postgresql").render_as_string(False))):
            pass


@pytest.mark.parametrize("by_sqlalchemy", [True, False], ids=["SQLAlchemy", "psycopg"])
@pytest.mark.parametrize("change", [{"username": "unknown"}, {"database": "nothing"}], ids=str)
def test_unknown_user_or_database_is_not_retried(url, change, by_sqlalchemy):
    outcome = template(POSTGRESQL).outcome(connect, url.set(**change), by_sqlalchemy)
    assert (outcome.attempts, "does not exist" in str(outcome.exception)) == (1, True)


@pytest.mark.parametrize("by_sqlalchemy", [True, False], ids=["SQLAlchemy", "psycopg"])
@pytest.mark.parametrize("change, alerts", [({"username": "unknown"}, 1), ({"database": "no"}, 0)])
def test_unknown_user_of_a_server_sends_an_alert(url, change, alerts, by_sqlalchemy):
    received = []
    asking = template(POSTGRESQL, listeners=[AuthenticationAlert(received.append)])
    asking.outcome(connect, url.set(**change), by_sqlalchemy)
    assert len(received) == alerts


@pytest.mark.parametrize(
    "state",
    [
        "is starting up",
        "is shutting down",
        "is in recovery mode",
        "is not yet accepting connections",
    ],
)
def test_server_that_starts_up_is_retried(state):
    reported = (
        f'connection to server at "db", port 5432 failed: FATAL:  the database system {state}'
    )
    outcome = template(POSTGRESQL).outcome(raising, psycopg.OperationalError(reported))
    assert outcome.attempts == 4


def raising(failure):
    raise failure


@pytest.mark.statement("S0-33")
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO account VALUES (1, 0)",
        "INSERT INTO account VALUES (NULL, 0)",
        "INSERT INTO account VALUES (3, 'seventeen')",
        "SELEC 1",
        "SELECT * FROM no_such_table",
        "SELECT 1 / 0",
        "SET LOCAL statement_timeout = 1; SELECT pg_sleep(9)",
    ],
)
def test_statement_error_is_not_retried(postgresql, statement):
    def work():
        with postgresql.engine.begin() as connection:
            connection.exec_driver_sql(statement)

    outcome = template(POSTGRESQL).outcome(work)
    assert outcome.attempts == 1
    assert isinstance(outcome.exception, sa.exc.DBAPIError)


def test_pool_timeout_is_not_retried(url):
    engine = sa.create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    with engine.connect():
        outcome = template(POSTGRESQL).outcome(engine.connect)
    engine.dispose()
    assert (outcome.attempts, type(outcome.exception)) == (1, sa.exc.TimeoutError)


# Redis, that is Valkey.


def client_of(url, **settings):
    """A client as documented: its own retries disabled."""
    return redis.Redis.from_url(
        url, retry=Retry(NoBackoff(), 0), **{"socket_timeout": 20.0, **settings}
    )


@pytest.fixture
def client(valkey_url):
    with client_of(valkey_url) as made:
        yield made
        made.delete("presets")


def test_commands_to_an_unreachable_server_are_retried():
    with client_of(f"redis://127.0.0.1:{free_port()}") as client:
        outcome = template(REDIS).outcome(client.ping)
    assert (outcome.attempts, type(outcome.exception)) == (4, redis.ConnectionError)


def test_lost_connection_of_a_client_is_opened_again(client, valkey_url):
    with client_of(valkey_url, single_connection_client=True) as other:
        number = other.client_id()

        def work():
            if current_context().attempt == 1:
                client.client_kill_filter(_id=number)
            return other.ping()

        outcome = template(REDIS).outcome(work)
    assert (outcome.value, outcome.attempts) == (True, 2)


def test_response_timeout_is_retried(client, valkey_url):
    with client_of(valkey_url, socket_timeout=0.02) as hasty:

        def work():
            return hasty.execute_command("BLPOP", "presets", 20)

        mended = template(REDIS, listeners=[Before(lambda: client.rpush("presets", *range(9)))])
        outcome = mended.outcome(work)
    assert (outcome.exception, outcome.attempts) == (None, 2)
    assert outcome.history[0].type_name == "redis.exceptions.TimeoutError"


def test_replica_that_becomes_primary_is_retried(client):
    client.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
    mended = template(REDIS, listeners=[Before(lambda: client.replicaof("NO", "ONE"))])
    outcome = mended.outcome(client.set, "presets", 17)
    client.replicaof("NO", "ONE")
    assert (outcome.value, outcome.attempts) == (True, 2)
    assert outcome.history[0].type_name == "redis.exceptions.ReadOnlyError"


def test_replica_without_primary_is_retried(client):
    client.config_set("replica-serve-stale-data", "no")
    client.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
    mended = template(REDIS, listeners=[Before(lambda: client.replicaof("NO", "ONE"))])
    outcome = mended.outcome(client.get, "presets")
    client.replicaof("NO", "ONE")
    client.config_set("replica-serve-stale-data", "yes")
    assert (outcome.exception, outcome.attempts) == (None, 2)
    assert outcome.history[0].type_name == "redis.exceptions.MasterDownError"


def test_server_busy_with_a_script_is_retried(client, valkey_url):
    client.config_set("busy-reply-threshold", 1)
    with client_of(valkey_url) as other:

        def endless():
            with pytest.raises(redis.ResponseError, match="killed"):
                other.eval("while true do end", 0)

        thread = threading.Thread(target=endless)
        thread.start()
        while not is_busy(client):
            pass

        def kill():
            client.script_kill()
            while is_busy(client):
                pass

        outcome = template(REDIS, listeners=[Before(kill)]).outcome(client.ping)
        thread.join()
    client.config_set("busy-reply-threshold", 5000)
    assert (outcome.value, outcome.attempts) == (True, 2)
    assert outcome.history[0].message.startswith("BUSY ")


def is_busy(client):
    try:
        client.ping()
    except redis.ResponseError as error:
        return str(error).startswith("BUSY ")
    return False


def test_transaction_after_a_conflict_is_repeated(client):
    def work():
        with client.pipeline() as pipeline:
            pipeline.watch("presets")
            if current_context().attempt == 1:
                client.set("presets", 1)
            pipeline.multi()
            pipeline.incr("presets")
            return pipeline.execute()

    outcome = template(REDIS).outcome(work)
    assert (outcome.value, outcome.attempts) == ([2], 2)


def test_asynchronous_client_is_retried(valkey_url):
    async def main():
        retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
        async with redis.asyncio.Redis.from_url(valkey_url, retry=retry) as client:

            async def work():
                await client.set("presets", "text")
                if current_context().attempt == 1:
                    raise redis.ConnectionError("lost")
                await client.rpush("presets", 1)

            outcome = await template(REDIS).outcome_async(work)
            await client.delete("presets")
            return outcome

    outcome = asyncio.run(main())
    assert outcome.attempts == 2
    assert "WRONGTYPE" in str(outcome.exception)


@pytest.mark.parametrize(
    "command",
    [("RPUSH", "presets", 1), ("NONSENSE",), ("INCR", "presets"), ("EVAL", "nonsense", 0)],
    ids=lambda command: command[0],
)
def test_command_error_is_not_retried(client, command):
    client.set("presets", "text")
    outcome = template(REDIS).outcome(client.execute_command, *command)
    assert outcome.attempts == 1
    assert isinstance(outcome.exception, redis.ResponseError)


@pytest.mark.statement("S4-76")
def test_wrong_password_is_tried_once_and_reported(valkey_url):
    alerts = []
    wrong = re.sub("//", "//kim:wrong@", valkey_url)
    with client_of(wrong) as client:
        alert = AuthenticationAlert(alerts.append)
        outcome = template(REDIS, name="cart", listeners=[alert]).outcome(client.ping)
        assert template(REDIS).outcome(client.ping).attempts == 1
    assert (outcome.attempts, type(outcome.exception)) == (1, redis.AuthenticationError)
    assert [each.name for each in alerts] == ["cart"]


def test_exhausted_client_pool_is_not_retried(valkey_url):
    pool = redis.ConnectionPool.from_url(valkey_url, max_connections=1)
    held = pool.get_connection()
    with redis.Redis(connection_pool=pool) as client:
        outcome = template(REDIS).outcome(client.ping)
    pool.release(held)
    pool.disconnect()
    assert (outcome.attempts, type(outcome.exception)) == (1, redis.exceptions.MaxConnectionsError)


class Terse(socketserver.StreamRequestHandler):
    """A server that answers PING with one given error, for states that are hard to reproduce."""

    def handle(self):
        while line := self.rfile.readline():
            words = [self.word() for _ in range(int(line[1:]))]
            self.wfile.write(self.server.says if words[0] == b"PING" else b"+OK\r\n")

    def word(self):
        length = int(self.rfile.readline()[1:])
        return self.rfile.read(length + 2)[:-2]


@pytest.fixture(scope="module")
def terse():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Terse) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("says", "attempts"),
    [
        ("LOADING Valkey is loading the dataset in memory", 4),
        ("CLUSTERDOWN The cluster is down", 4),
        ("TRYAGAIN Multiple keys request during rehashing of slot", 4),
        ("OOM command not allowed when used memory > 'maxmemory'.", 1),
        ("NOPERM User kim has no permissions to run the 'ping' command", 1),
    ],
    ids=lambda value: str(value).partition(" ")[0],
)
def test_server_state_decides_on_retry(terse, says, attempts):
    terse.says = f"-{says}\r\n".encode()
    with client_of(f"redis://127.0.0.1:{terse.server_address[1]}", protocol=2) as client:
        outcome = template(REDIS).outcome(client.ping)
    assert outcome.attempts == attempts
    assert isinstance(outcome.exception, redis.RedisError)
