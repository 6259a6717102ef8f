"""Fixtures that tests of several packages share."""

import gc
import os
import sys

import pytest

import tests.support.unflushed  # noqa: F401
from tests.support import postgres, valkey


@pytest.fixture
def unraisable(monkeypatch):
    """Exceptions that cannot be caught, raised in a ``__del__`` or at a generator's end."""
    gc.collect()  # what earlier tests left has its say before
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: caught.append(hook.exc_value))
    return caught


def found(kind, look):
    """What a server of its own needs; without it the tests that may kill one are skipped."""
    there = look()
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
