"""The original library's stateful traces on every store."""

import asyncio
import os
from functools import cache

import pytest

from tests.backends.conftest import KINDS, opened
from tests.golden import run
from tests.golden.lines import SCENARIOS, lines_of

# Some policies of the file never end, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::retrytemplate.UnboundedRetryWarning")

KEYED = [
    line
    for line in lines_of(SCENARIOS)
    if any(call.get("state", {}).get("key") is not None for call in line["scenario"]["calls"])
    and "cache_capacity" not in line["scenario"]  # a store has no capacity
]
EXHAUSTIVE = os.environ.get("RETRYTEMPLATE_TEST_EXHAUSTIVE")
DRIVERS = [(kind, mode) for kind in KINDS for mode in ("sync", "async")]


def played():
    """Each scenario on one entry point in turn; with the variable set, on every one."""
    return [
        pytest.param(line, kind, mode, id=f"{line['id']}-{kind}-{mode}")
        for number, line in enumerate(KEYED)
        for kind, mode in (DRIVERS if EXHAUSTIVE else [DRIVERS[number % len(DRIVERS)]])
    ]


class LookedAt:
    """An asynchronous cache with the synchronous inspection that the scenario runner needs."""

    def __init__(self, awaited, blocking):
        self.awaited = awaited
        self.peek = blocking.peek

    def __getattr__(self, name):
        return getattr(self.awaited, name)


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def caches(request, runner):
    """One store of a kind for all scenarios, with a cache for each mode."""

    @cache
    def of(kind):
        store = opened(kind, request)
        request.addfinalizer(store.close)
        one, two = store.cache(), store.async_cache()
        request.addfinalizer(lambda: runner.run(two.close()))
        one.peek("any")  # the tables are there
        return store, {"sync": one, "async": LookedAt(two, one)}

    return of


@pytest.mark.parametrize(("line", "kind", "mode"), played())
def test_trace_of_the_original_holds_on_stores(line, kind, mode, caches, runner, monkeypatch):
    store, by_mode = caches(kind)
    store.clear()
    monkeypatch.setattr(run, "MemoryRetryContextCache", lambda: by_mode[mode])
    found = run.check(line, run.MODES[mode], runner.get_loop())

    assert not found, "\n".join(found)
