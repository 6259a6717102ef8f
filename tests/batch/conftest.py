"""Worlds to run steps in."""

from itertools import count

import pytest

from tests.support.process_pool import nursery
from tests.support.step_fixture import World

_worlds = count(1)


@pytest.fixture(scope="module")
def forked():
    """Makes processes that may die."""
    with nursery() as made:
        yield made


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def place_of_mills(request, tmp_path_factory):
    """The URL of a database of each kind, and a folder."""
    folder = tmp_path_factory.mktemp("mill")
    url = f"sqlite:///{folder}/jobs.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    return url, str(folder)


def a_world(kind, request):
    if kind == "sqlite":
        folder = request.getfixturevalue("tmp_path_factory").mktemp("batch")
        url = f"sqlite:///{folder}/jobs.db"
    else:
        url = request.getfixturevalue("postgres_url")
    return World(url, f"b{next(_worlds)}")


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request):
    """A world on each kind of database."""
    made = a_world(request.param, request)
    yield made
    made.close()


@pytest.fixture
def sqlite(request):
    """A world on SQLite, for behaviour that does not depend on the database."""
    made = a_world("sqlite", request)
    yield made
    made.close()


@pytest.fixture
def postgresql(request):
    made = a_world("postgresql", request)
    yield made
    made.close()


@pytest.fixture(params=["sync", "async"])
def way(request):
    return request.param
