"""The context cache in memory that has leases."""

import pytest

from retrytemplate.caches.base import METHODS
from retrytemplate.errors import AttemptInProgressError, LeaseLostError
from retrytemplate.testing import AsyncCacheConformance, VirtualClock
from retrytemplate.workers.testing import LeasedMemoryCache


def awaited(name):
    async def method(self, *args, **kwargs):
        return getattr(self.cache, name)(*args, **kwargs)

    return method


class TestConformance(AsyncCacheConformance):
    def make(self):
        methods = {name: awaited(name) for name in METHODS}
        return type("Awaited", (), {"cache": LeasedMemoryCache(), **methods})()


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def cache(clock):
    return LeasedMemoryCache(lease=10.0, clock=clock)


async def test_attempt_of_a_crashed_worker_is_lost_when_its_lease_ends(cache, clock):
    cache.begin("k", worker="one")
    other = cache.connect()
    with pytest.raises(AttemptInProgressError) as raised:
        other.begin("k", worker="two")
    assert raised.value.lease_until == clock.time() + 10.0
    clock.advance(10.0)
    assert (other.begin("k", worker="two")).lost == "one"
    await cache.close()
    await other.close()


async def test_release_leaves_a_lost_attempt_to_the_next_claim(cache, clock):
    cache.begin("k", worker="one")
    clock.advance(10.0)
    cache.release(cache.begin("k", worker="two"))
    assert (cache.begin("k", worker="three")).lost == "one"
    await cache.close()


async def test_write_of_a_claim_that_was_taken_over_is_rejected(cache, clock):
    first = cache.begin("k", worker="one")
    clock.advance(10.0)
    cache.begin("k", worker="two")
    with pytest.raises(LeaseLostError):
        cache.succeed(first)
    await cache.close()


async def test_success_is_deleted_when_it_is_no_longer_remembered(cache, clock):
    cache.succeed(cache.begin("old", worker="one"), remember=5.0)
    clock.advance(5.0)
    other = cache.connect()
    other.succeed(other.begin("new", worker="two"), remember=5.0)
    assert len(cache) == 1
    await cache.close()
    await other.close()
