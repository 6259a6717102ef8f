"""Fixtures that tests of several rooms share."""

import gc
import os
import sys

import pytest

from tests.stores import postgres, valkey


@pytest.fixture
def unraisable(monkeypatch):
    """What was raised where nobody could catch it, in a ``__del__`` or a generator's end."""
    gc.collect()  # what earlier tests left has its say before
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: caught.append(hook.exc_value))
    return caught


@pytest.fixture(scope="session")
def postgres_binaries():
    """The folder of a server that a test may kill; without one it is skipped."""
    found = postgres.binaries()
    if found is None:
        pytest.skip(postgres.ABSENT)
    return found


@pytest.fixture(scope="session")
def postgres_url(request, tmp_path_factory):
    """The URL of a PostgreSQL server; without one the tests that need it are skipped."""
    named = os.environ.get(postgres.NAMED)
    if named:
        yield named
        return
    found = request.getfixturevalue("postgres_binaries")
    with postgres.started(found, tmp_path_factory.mktemp("postgres") / "server") as server:
        yield server.url


@pytest.fixture(scope="session")
def valkey_binary():
    """The path of a server that a test may kill; without one it is skipped."""
    found = valkey.binary()
    if found is None:
        pytest.skip(valkey.ABSENT)
    return found


@pytest.fixture(scope="session")
def valkey_url(request, tmp_path_factory):
    """The URL of a Valkey server; without one the tests that need it are skipped."""
    named = os.environ.get(valkey.NAMED)
    if named:
        yield named
        return
    path = request.getfixturevalue("valkey_binary")
    with valkey.started(path, tmp_path_factory.mktemp("valkey") / "server") as server:
        yield server.url
