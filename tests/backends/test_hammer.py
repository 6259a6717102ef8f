"""Stress test: many workers fail, are killed or stall past their leases on a few keys.

Every attempt is counted, and counted once; no two calls of a key overlap but where a lease was
lost; no key has two results; each ends.  ``event_log_checks.py`` has the exact rules.

``RETRYTEMPLATE_HAMMER`` is the number of attempts, ``RETRYTEMPLATE_HAMMER_SEED`` repeats a seed.
"""

import os
from random import randrange

import pytest

from tests.backends.conftest import opened
from tests.support.stress_worker import WORKERS
from tests.support.supervisor import Supervisor

SIZE = int(os.environ.get("RETRYTEMPLATE_HAMMER", "3000"))
SEED = os.environ.get("RETRYTEMPLATE_HAMMER_SEED")
KILLS = SIZE // 150


@pytest.fixture(params=["postgresql", "valkey"])
def store(request):
    made = opened(request.param, request)
    yield made
    made.close()


@pytest.mark.stress
@pytest.mark.timeout(60 + SIZE / 50)
def test_attempts_are_counted_once_without_overlap_under_kills(store, tmp_path):
    supervisor = Supervisor(store.url, store.prefix, tmp_path, int(SEED or randrange(2**32)))
    half = WORKERS // 2
    supervisor.hammer(SIZE * 3, [supervisor.kill] * KILLS, stalling=half, mortal=half)
    supervisor.check()
    assert list(store.cache()) == []
