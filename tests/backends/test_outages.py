"""The stress test while the server restarts, while connections are closed, and while it is silent.

No attempt is lost and none is counted twice, no call waits for ever, every key ends.
"""

import os
import signal
from contextlib import suppress
from random import randrange
from urllib.parse import urlsplit

import pytest
from sqlalchemy import create_engine, make_url, text

from retrytemplate import (
    AsyncSQLRetryContextCache,
    CacheUnavailableError,
    SQLRetryContextCache,
)
from tests.backends.conftest import opened
from tests.support import postgres, valkey
from tests.support.proxy import Proxy
from tests.support.supervisor import Supervisor

ROWS = 1500
PREFIX = "outage"


@pytest.fixture(params=["postgresql", "valkey"])
def server(request, tmp_path):
    """A server that the test may kill."""
    kind, path = (
        (postgres, request.getfixturevalue("postgres_binaries"))
        if request.param == "postgresql"
        else (valkey, request.getfixturevalue("valkey_binary"))
    )
    with kind.started(path, tmp_path / "server") as made:
        yield made


@pytest.fixture(params=["postgresql", "valkey"])
def store(request):
    made = opened(request.param, request)
    yield made
    made.close()


@pytest.fixture
def falls_silent(postgres_binaries, tmp_path):
    """A server, and a function that stops the server processes of a cache."""
    with postgres.started(postgres_binaries, tmp_path / "server") as server:
        engine = create_engine(make_url(server.url).set(drivername="postgresql+psycopg"))
        stopped = []

        def stop():
            idle = "SELECT pid FROM pg_stat_activity WHERE state = 'idle'"
            with engine.connect() as connection:
                pids = connection.execute(text(idle)).scalars().all()
            stopped.extend(pids)
            send(signal.SIGSTOP, pids)

        yield server.url, stop
        send(signal.SIGCONT, stopped)
        engine.dispose()


def send(number, pids):
    for pid in pids:
        with suppress(ProcessLookupError):  # of a connection that was closed meanwhile
            os.kill(pid, number)


def test_silent_server_is_given_up(falls_silent):
    url, stop = falls_silent
    with SQLRetryContextCache(url, timeout=0.05) as cache:
        cache.peek("any")
        stop()
        assert cache.peek("any") is None  # by another connection
        stop()
        with pytest.raises(CacheUnavailableError, match="the server did not answer in time"):
            cache.forget("any")


async def test_silent_server_is_given_up_by_the_asynchronous_cache(falls_silent):
    url, stop = falls_silent
    async with AsyncSQLRetryContextCache(url, timeout=0.05) as cache:
        await cache.peek("any")
        stop()
        assert await cache.peek("any") is None
        stop()
        with pytest.raises(CacheUnavailableError, match="the server did not answer in time"):
            await cache.forget("any")


@pytest.mark.stress
def test_attempts_are_counted_once_while_the_server_restarts(server, tmp_path):
    def restart():
        server.kill()
        server.start()

    supervisor = Supervisor(server.url, PREFIX, tmp_path, randrange(2**32))
    supervisor.hammer(ROWS, [restart] * 3 + [supervisor.kill] * 3, stalling=0, mortal=4)
    checks = supervisor.check()
    assert checks.of("unavailable")


@pytest.mark.stress
def test_attempts_are_counted_once_while_connections_are_cut(store, tmp_path):
    place = urlsplit(store.url)
    with Proxy(place.port, place.hostname) as proxy:
        user, at, _ = place.netloc.rpartition("@")
        url = place._replace(netloc=f"{user}{at}127.0.0.1:{proxy.port}").geturl()
        supervisor = Supervisor(url, store.prefix, tmp_path, randrange(2**32))

        def cut():
            proxy.cut(supervisor.random.choice(["before", "after"]))

        supervisor.hammer(ROWS, [cut] * 60, stalling=0, mortal=4)
        supervisor.check()
        assert proxy.cuts == 60
