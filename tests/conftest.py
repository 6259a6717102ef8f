"""Fixtures that tests of several packages share."""

import gc
import os
import sys
from contextlib import contextmanager
from itertools import count

import pytest

import tests.support.unflushed  # noqa: F401  # registers a hook
from tests.support import postgres, valkey
from tests.support.step_fixture import World


@pytest.fixture
def unraisable(monkeypatch):
    """Exceptions that cannot be caught, raised in a ``__del__`` or at a generator's end."""
    gc.collect()  # what earlier tests left has its say before
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: caught.append(hook.exc_value))
    return caught


def found(kind, look):
    """Require what a server needs; without it the tests that kill a server are skipped."""
    there = look()
    # Without its binary a server cannot be started; with CI set a skipped test fails the run.
    return pytest.skip(kind.ABSENT) if there is None else there


def running(kind, request, fixture, name):
    """The URL of a server: one that is named, or one of the tests' own."""
    named = os.environ.get(kind.NAMED)
    if named:
        if "PYTEST_XDIST_WORKER" in os.environ:
            pytest.fail(f"{kind.NAMED} names a server that workers cannot share: add -n 0")
        yield named
        return
    folder = request.getfixturevalue("tmp_path_factory").mktemp(name)
    with kind.started(request.getfixturevalue(fixture), folder / "server") as server:
        yield server.url


@pytest.fixture(scope="session")
def postgres_binaries():
    """The folder of a PostgreSQL that a test may kill."""
    return found(postgres, postgres.binaries)


@pytest.fixture(scope="session")
def postgres_url(request):
    yield from running(postgres, request, "postgres_binaries", "postgres")


@pytest.fixture(scope="session")
def valkey_binary():
    """The path of a Valkey that a test may kill."""
    return found(valkey, valkey.binary)


@pytest.fixture(scope="session")
def valkey_url(request):
    yield from running(valkey, request, "valkey_binary", "valkey")


@pytest.fixture(scope="session")
def world_file(tmp_path_factory):
    """SQLite with the tables of a world, which tests copy: that is faster than new tables."""
    file = tmp_path_factory.mktemp("tables") / "jobs.db"
    World(f"sqlite:///{file}", "batch").jobs.close()
    return file


@pytest.fixture(scope="session")
def postgres_worlds(postgres_url):
    """Makes worlds on PostgreSQL.  Tables that no test has altered are used again."""
    shapes, numbers = {}, count(1)

    @contextmanager
    def world():
        prefix, shape = shapes.popitem() if shapes else (f"world{next(numbers)}", None)
        made = World(postgres_url, prefix)
        shape = shape or made.shape()
        yield made
        if made.shape() == shape:
            made.clear()
            made.jobs.close()
            shapes[prefix] = shape
        else:
            made.close()

    yield world
    for prefix in shapes:
        World(postgres_url, prefix).close()
