"""The original library's stateful traces, played over a simple cache."""

import asyncio

import pytest

from retrytemplate import SimpleCacheAdapter
from tests.caches.test_simple import Store
from tests.golden import run
from tests.golden.lines import SCENARIOS, lines_of

# Some policies of the file never end, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::retrytemplate.UnboundedRetryWarning")

KEYED = [
    line
    for line in lines_of(SCENARIOS)
    if any(call.get("state", {}).get("key") is not None for call in line["scenario"]["calls"])
    and "cache_capacity" not in line["scenario"]  # a simple cache has a capacity of its own
]


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.mark.parametrize("line", KEYED, ids=lambda line: line["id"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_trace_of_the_original_holds(line, mode, loop, monkeypatch):
    stores = []

    def made():
        stores.append(Store())
        return SimpleCacheAdapter(stores[-1], blocking=False)

    monkeypatch.setattr(run, "MemoryRetryContextCache", made)
    found = run.check(line, run.MODES[mode], loop)

    assert not found, "\n".join(found)
    assert all(store.calls for store in stores)
