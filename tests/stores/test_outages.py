"""The same hammering while the server dies and comes back, and while connections are cut.

No attempt is lost and none is counted twice, no call waits for ever, every key comes to its end.
"""

from random import randrange
from urllib.parse import urlsplit

import pytest

from tests.stores import postgres, valkey
from tests.stores.conftest import opened
from tests.stores.proxy import Proxy
from tests.stores.supervisor import Supervisor

ROWS = 1500
PREFIX = "outage"


@pytest.fixture(params=["postgresql", "valkey"])
def server(request, tmp_path):
    """A server that may be killed."""
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


def test_attempts_are_counted_once_while_the_server_dies_and_comes_back(server, tmp_path):
    def restart():
        server.kill()
        server.start()

    supervisor = Supervisor(server.url, PREFIX, tmp_path, randrange(2**32))
    supervisor.hammer(ROWS, [restart] * 3 + [supervisor.kill] * 3, stalling=0, mortal=4)
    hearing = supervisor.check()
    assert hearing.of("unavailable")


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
