"""The places of the kill switch stores under test."""

import pytest

from tests.control.switch import places


def opened(kind, request):
    place = places.of(kind, request)
    request.addfinalizer(place.close)
    return place


@pytest.fixture(params=places.KINDS)
def place(request):
    """A place of each kind."""
    return opened(request.param, request)


@pytest.fixture(params=places.DURABLE)
def durable(request):
    """A place of each kind that outlives the process."""
    return opened(request.param, request)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    return opened(request.param, request)


@pytest.fixture
def sqlite(request):
    return opened("sqlite", request)


@pytest.fixture
def postgresql(request):
    return opened("postgresql", request)


@pytest.fixture(name="valkey")
def on_valkey(request):
    return opened("valkey", request)
