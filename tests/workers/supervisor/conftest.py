"""Both event loops, virtual time, and the errors that were logged."""

import logging

import pytest

from retrytemplate.testing import VirtualClock
from tests.support.event_loops import LOOPS


@pytest.fixture(params=LOOPS, ids=repr)
def loop(request):
    return request.param


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def sleep(clock):
    return clock.sleep_async


@pytest.fixture
def errors(caplog):
    """Returns the ERROR records of tasks."""
    caplog.set_level(logging.ERROR, "retrytemplate.workers")
    return lambda: [record.getMessage() for record in caplog.records]
