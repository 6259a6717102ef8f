"""Fixtures: a database in which steps run."""

import pytest

from tests.support.process_pool import nursery
from tests.support.step_fixture import empty_world


@pytest.fixture(scope="module")
def forked():
    """Starts processes that may crash."""
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


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request):
    """A world on each kind of database."""
    with empty_world(request.param, request) as made:
        yield made


@pytest.fixture
def sqlite(request):
    """A world on SQLite, for behaviour that does not depend on the database."""
    with empty_world("sqlite", request) as made:
        yield made


@pytest.fixture
def postgresql(request):
    with empty_world("postgresql", request) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def mode(request):
    return request.param
