"""The databases on which job queues are tested, and streams in Valkey."""

import asyncio

import pytest

from tests.support.job_queues import JobStore
from tests.support.queue_workers import queue_at
from tests.support.redis_streams import RedisStream

KINDS = ("sqlite", "postgresql")


def opened(kind, request):
    """A database without tables of the test's own."""
    if kind == "postgresql":
        return JobStore(kind, request.getfixturevalue("postgres_url"))
    folder = request.getfixturevalue("tmp_path_factory").mktemp("sqlite")
    return JobStore(kind, f"sqlite:///{folder}/jobs.db")


def shared(kind, request):
    made = opened(kind, request)
    asyncio.run(made.create())
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_sqlite(request):
    yield from shared("sqlite", request)


@pytest.fixture(scope="session")
def shared_postgresql(request, postgres_url):
    yield from shared("postgresql", request)


@pytest.fixture(params=KINDS)
def store(request):
    """A database of each kind, with tables and without jobs."""
    made = request.getfixturevalue(f"shared_{request.param}")
    yield made
    made.clear()


@pytest.fixture(params=KINDS)
def empty_store(request):
    """A database of each kind, without tables."""
    made = opened(request.param, request)
    yield made
    made.close()


@pytest.fixture
def stream(valkey_url):
    """A stream in Valkey that is not created yet."""
    made = RedisStream(valkey_url)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgresql", "valkey"])
def any_queue(request):
    """A queue of each kind that runs on a real server or file."""
    if request.param == "sqlite":
        folder = request.getfixturevalue("tmp_path_factory").mktemp("queue")
        url = f"sqlite:///{folder}/jobs.db"
    else:
        url = request.getfixturevalue(
            {"postgresql": "postgres_url"}.get(request.param, "valkey_url")
        )
    made = queue_at(url)
    yield made
    asyncio.run(made.drop())
