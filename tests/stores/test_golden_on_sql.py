"""The original library's stateful traces, played over SQLite and PostgreSQL."""

import asyncio
import os
from functools import cache

import pytest

from retrytemplate import AsyncSQLRetryContextCache
from tests.caches.test_golden import KEYED
from tests.golden import run
from tests.stores.conftest import opened

# Some policies of the file never end, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::retrytemplate.UnboundedRetryWarning")

EVERY = "RETRYTEMPLATE_TEST_EVERY_WAY"
WAYS = [(kind, mode) for kind in ("sqlite", "postgresql") for mode in ("sync", "async")]


def played():
    """Each scenario in one way, all four in turn; with the variable, each in every way."""
    return [
        pytest.param(line, kind, mode, id=f"{line['id']}-{kind}-{mode}")
        for number, line in enumerate(KEYED)
        for kind, mode in (WAYS if os.environ.get(EVERY) else [WAYS[number % len(WAYS)]])
    ]


class LookedAt(AsyncSQLRetryContextCache):
    """An asynchronous cache that the runner of the scenarios can look into, as it is used to."""

    looked_at = None

    def peek(self, key):
        return self.looked_at.peek(key)


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def caches(request, runner):
    """One database of a kind for all scenarios, with a cache for each mode."""

    @cache
    def of(kind):
        store = opened(kind, request)
        request.addfinalizer(store.close)
        one = store.cache()
        two = LookedAt(store.url, prefix=store.prefix)
        two.looked_at = one
        store.hurry(two._engine.sync_engine.pool)
        request.addfinalizer(lambda: runner.run(two.close()))
        one.peek("any")  # the tables are there
        return store, {"sync": one, "async": two}

    return of


@pytest.mark.parametrize(("line", "kind", "mode"), played())
def test_the_trace_of_the_original_holds(line, kind, mode, caches, runner, monkeypatch):
    store, by_mode = caches(kind)
    store.sql("DELETE FROM {0}_contexts")
    monkeypatch.setattr(run, "MemoryRetryContextCache", lambda: by_mode[mode])
    found = run.check(line, run.MODES[mode], runner.get_loop())

    assert not found, "\n".join(found)
