"""A cache with claims in this process: its methods run under the lock."""

from threading import Thread

import pytest

from retrytemplate import (
    AlreadyCompletedError,
    AttemptInProgressError,
    LeaseLostError,
    MemoryRetryContextCache,
)
from retrytemplate.caches.base import Claim
from retrytemplate.caches.in_process import InProcessClaims
from retrytemplate.caches.record import Record
from retrytemplate.testing import CacheConformance

DONE = Record(phase="done")


class Guarded(dict):
    """Every read and every change fails if the lock is not held."""

    def __init__(self, lock):
        super().__init__()
        self.lock = lock

    def _guarded(name):
        def method(self, *args):
            assert self.lock._is_owned(), f"{name} without the lock"
            return getattr(dict, name)(self, *args)

        return method

    get, pop = _guarded("get"), _guarded("pop")
    __getitem__, __setitem__, __delitem__ = map(
        _guarded, ("__getitem__", "__setitem__", "__delitem__")
    )


class Dictionary(InProcessClaims):
    """The records in a dictionary."""

    def __init__(self):
        super().__init__(None)
        self.records = Guarded(self._lock)

    def _load(self, key):
        return self.records.get(key)

    def _store(self, key, record):
        self.records[key] = record

    def _drop(self, key):
        self.records.pop(key, None)

    def _mark(self, claim, remember, record):
        self.records[claim.key] = record or DONE

    def __contains__(self, key):
        return self.peek(key) is not None


class TestADictionary(CacheConformance):
    def make(self):
        return Dictionary()


@pytest.fixture
def cache():
    """A dictionary whose claims are guarded, too; ``holds`` is a look and no more."""
    cache = Dictionary()
    cache._claims = Guarded(cache._lock)
    return cache


def test_cache_step_always_releases_the_lock(cache):
    claim = cache.begin("key", worker="one")
    with pytest.raises(AttemptInProgressError):
        cache.begin("key", worker="two")
    cache.renew(claim)
    cache.fail(claim, Record(version=1))
    with pytest.raises(LeaseLostError):
        cache.renew(claim)
    cache.succeed(cache.begin("key", worker="one"), remember=60.0)
    with pytest.raises(AlreadyCompletedError):
        cache.begin("key", worker="one")
    assert cache.peek("key") is None
    assert cache.swap("other", Record(version=1), 0)
    assert not cache.swap("other", Record(version=1), 0)
    cache.forget("other")
    assert not cache._lock._is_owned()


def test_release_while_another_thread_holds_the_lock_does_not_wait():
    cache = Dictionary()
    claim = cache.begin("key", worker="one")
    with cache._lock:
        thread = Thread(target=cache.release, args=(claim,), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
    assert not cache.holds(claim)


class Down(Dictionary):
    """A store that rejects writes and deletions."""

    def _store(self, key, record):
        raise OSError("down")

    def _drop(self, key):
        raise OSError("down")

    def _mark(self, claim, remember, record):
        raise OSError("down")


def fail(cache, claim):
    cache.fail(claim, Record(version=1))


def succeed(cache, claim):
    cache.succeed(claim)


def succeed_and_remember(cache, claim):
    cache.succeed(claim, remember=60.0)


@pytest.mark.parametrize("end", [fail, succeed, succeed_and_remember])
def test_claim_ends_when_store_is_down(end):
    cache = Down()
    claim = cache.begin("key", worker="one", fresh=True)
    with pytest.raises(OSError, match="down"):
        end(cache, claim)
    assert not cache.holds(claim)
    assert cache.begin("key", worker="two", fresh=True)


def test_failure_before_next_attempt_keeps_claim_when_store_is_down():
    cache = Down()
    claim = cache.begin("key", worker="one")
    with pytest.raises(OSError, match="down"):
        cache.fail(claim, Record(version=1, worker="one"))
    assert cache.holds(claim)
    assert claim.version == 0


def test_fences_grow_over_all_keys(cache):
    fences = [cache.begin(key, worker="one").fence for key in "abc"]
    assert fences == [1, 2, 3]


class Interrupted(MemoryRetryContextCache):
    """Another worker begins the key while its record is read."""

    met = None

    def _load(self, key):
        record = super()._load(key)
        other, self.met = Claim(key, "other", None, 0), None
        self.met = self.take(other)
        return record


@pytest.mark.parametrize("fresh", [False, True])
def test_key_begun_under_the_lock_is_not_taken_without_it(fresh):
    cache = Interrupted()
    claim = InProcessClaims.begin(cache, "k", worker="one", fresh=fresh)
    assert not cache.met
    assert cache.holds(claim)
    assert cache.begin("other", worker="one").fence > claim.fence


def test_remembered_success_keeps_the_claim_of_another_worker():
    class Ending(MemoryRetryContextCache):
        def _load(self, key):
            record = super()._load(key)
            self._marks.pop(key)  # its time is over
            self.met = self.take(Claim(key, "other", None, 0))
            return record

    cache = Ending()
    cache.succeed(cache.begin("k", worker="one"), remember=10)
    with pytest.raises(AlreadyCompletedError):
        InProcessClaims.begin(cache, "k", worker="two")
    assert not cache.met
    assert "k" not in cache._claims
