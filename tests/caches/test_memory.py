"""The cache in memory: capacity, time to live, order of eviction."""

from collections import Counter, OrderedDict
from contextlib import suppress
from datetime import timedelta

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    AlreadyCompletedError,
    AlwaysRetryPolicy,
    AttemptInProgressError,
    FixedBackoff,
    LeaseLostError,
    MemoryRetryContextCache,
    MisuseError,
    RetryContextCacheFullError,
    RetryState,
    RetryTemplate,
)
from retrytemplate.caches import Record
from retrytemplate.testing import VirtualClock
from retrytemplate.testing.conformance.base import in_threads


def begun(cache, key, worker="one", **options):
    return cache.begin(key, worker=worker, **options)


def write(cache, claim, failures=1, *, held=False):
    """Store the record of a failed attempt."""
    record = Record(
        failures=failures,
        version=claim.version + 1,
        fence=claim.fence,
        worker=claim.worker if held else None,
    )
    cache.fail(claim, record)
    return record


def fail(cache, *keys):
    for key in keys:
        write(cache, begun(cache, key))


def kept(cache, keys="abcdefgh"):
    return "".join(key for key in keys if key in cache)


def made(capacity=3, **settings):
    return MemoryRetryContextCache(capacity, **settings)


def rejected(cache, key):
    """A failure when the cache is full; its claim is released, as a template does."""
    claim = begun(cache, key)
    with pytest.raises(RetryContextCacheFullError) as caught:
        write(cache, claim)
    cache.release(claim)
    return str(caught.value)


# -- capacity ------------------------------------------------------------------------------------


def test_success_does_not_count_against_capacity():
    cache = made(1)
    for key in "abc":
        cache.succeed(begun(cache, key))
    assert len(cache) == 0
    fail(cache, "d")
    assert len(cache) == 1


def test_full_cache_rejects_a_new_key_and_names_it():
    cache = made(3)
    fail(cache, "a", "b", "c")

    assert rejected(cache, "d") == "the context cache is full: 3 keys; cannot keep 'd'"
    assert kept(cache) == "abc"


def test_full_cache_still_writes_its_keys():
    cache = made(2)
    fail(cache, "a", "b")
    claim = begun(cache, "a")
    write(cache, claim, failures=claim.record.failures + 1)

    assert cache.peek("a").failures == 2


def test_success_frees_capacity():
    cache = made(2)
    fail(cache, "a", "b")
    cache.succeed(begun(cache, "a"))
    fail(cache, "c")

    assert kept(cache) == "bc"


def test_forget_frees_capacity():
    cache = made(2)
    fail(cache, "a", "b")
    cache.forget("b")
    fail(cache, "c")

    assert kept(cache) == "ac"


def test_remembered_successes_do_not_count():
    cache = made(1)
    for key in "abc":
        cache.succeed(begun(cache, key), remember=60)
    fail(cache, "d")

    assert len(cache) == 1
    assert kept(cache) == "d"


def test_shared_record_counts_against_capacity():
    cache = made(1)
    assert cache.swap("a", Record(), 0)
    with pytest.raises(RetryContextCacheFullError):
        cache.swap("b", Record(), 0)
    assert cache.swap("a", Record(version=2), 1)


def test_claim_does_not_count_against_capacity():
    cache = made(1)
    for number in range(1000):
        cache.release(begun(cache, str(number)))
    assert cache._claims == {}
    assert len(cache) == 0


# -- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [10, 10.0, timedelta(seconds=10)])
def test_key_is_forgotten_when_ttl_expires(ttl):
    clock = VirtualClock()
    cache = made(ttl=ttl, clock=clock)
    fail(cache, "a")
    clock.advance(9.5)
    assert kept(cache) == "a"
    assert cache.peek("a").failures == 1
    clock.advance(0.5)
    assert kept(cache) == ""
    assert cache.peek("a") is None
    assert begun(cache, "a").record is None
    assert len(cache) == 0


def test_ttl_starts_at_the_last_write():
    clock = VirtualClock()
    cache = made(ttl=10, clock=clock)
    fail(cache, "a", "b")
    clock.advance(8)
    fail(cache, "a")
    clock.advance(8)

    assert kept(cache) == "a"


def test_looking_and_giving_back_do_not_lengthen_the_time():
    clock = VirtualClock()
    cache = made(ttl=10, clock=clock)
    fail(cache, "a")
    clock.advance(8)
    cache.peek("a")
    cache.release(begun(cache, "a"))
    clock.advance(2)

    assert kept(cache) == ""


def test_being_passed_over_does_not_lengthen_the_time():
    clock = VirtualClock()
    cache = made(2, ttl=10, clock=clock, when_full="evict")
    fail(cache, "a", "b")
    claim = begun(cache, "a")
    begun(cache, "b", "two")
    cache.release(begun(cache, "b", "two"))
    clock.advance(8)
    fail(cache, "c")
    cache.release(claim)
    assert kept(cache) == "ac"
    clock.advance(2)

    assert kept(cache) == "c"


def test_expired_record_frees_capacity():
    clock = VirtualClock()
    cache = made(2, ttl=10, clock=clock)
    fail(cache, "a", "b")
    clock.advance(10)
    fail(cache, "c", "d")

    assert kept(cache) == "cd"


def test_expired_records_are_dropped_before_an_eviction():
    clock = VirtualClock()
    cache = made(2, ttl=10, clock=clock, when_full="evict")
    fail(cache, "a")
    clock.advance(5)
    fail(cache, "b")
    cache.release(begun(cache, "a"))  # b is the least recently used one now
    clock.advance(5)
    fail(cache, "c")

    assert kept(cache) == "bc"


def test_ttl_of_zero_keeps_nothing():
    cache = made(1, ttl=0, clock=VirtualClock())
    fail(cache, "a", "b", "a")

    assert len(cache) == 0


def test_key_that_expires_in_flight_is_kept_by_its_next_write():
    clock = VirtualClock()
    cache = made(1, ttl=10, clock=clock)
    fail(cache, "a")
    claim = begun(cache, "a")
    clock.advance(11)
    write(cache, claim, failures=2)

    assert cache.peek("a").failures == 2


class Hasty(VirtualClock):
    """A clock that advances at every reading."""

    def monotonic(self):
        self.advance(0.3)
        return super().monotonic()


def test_ttl_that_expires_between_two_clock_reads_breaks_nothing():
    cache = made(2, ttl=1, clock=Hasty(), when_full="evict")
    for number in range(200):
        key = "abc"[number % 3]
        claim = begun(cache, key, fresh=number % 2 == 1)
        if number % 5:
            write(cache, claim)
        else:
            cache.succeed(claim, remember=1)
        cache.peek(key)
        cache.forget("cab"[number % 3])
    assert len(cache) <= 2


# -- what goes first -----------------------------------------------------------------------------


def test_least_recently_written_key_is_evicted_first():
    cache = made(3, when_full="evict")
    fail(cache, "a", "b", "c", "a", "d", "e")

    assert kept(cache) == "ade"


def test_attempt_counts_as_use_of_its_key():
    cache = made(3, when_full="evict")
    fail(cache, "a", "b", "c")
    cache.release(begun(cache, "a"))
    fail(cache, "d")

    assert kept(cache) == "acd"


def test_key_in_flight_is_not_evicted():
    cache = made(2, when_full="evict")
    fail(cache, "a", "b")
    claim = begun(cache, "a")
    fail(cache, "b", "c", "d")

    assert kept(cache) == "ad"
    write(cache, claim, failures=2)
    assert cache.peek("a").failures == 2


def test_key_that_eviction_skipped_keeps_its_age():
    cache = made(3, when_full="evict")
    fail(cache, "a", "b", "c")
    claim = begun(cache, "a")
    for key in "bc":
        cache.release(begun(cache, key))
    fail(cache, "d")  # replaces b
    cache.release(claim)
    fail(cache, "e")

    assert kept(cache) == "cde"


def test_new_key_is_rejected_when_all_keys_are_in_flight():
    cache = made(2, when_full="evict")
    fail(cache, "a", "b")
    begun(cache, "a")
    claim = begun(cache, "b")

    assert "2 keys, all in flight" in rejected(cache, "c")
    assert kept(cache) == "ab"
    cache.release(claim)
    fail(cache, "c")
    assert kept(cache) == "ac"


STEPS = st.lists(
    st.tuples(st.sampled_from(["fail", "release", "succeed", "begin"]), st.sampled_from("abcdef")),
    max_size=60,
)


@given(steps=STEPS, capacity=st.integers(1, 4))
def test_any_sequence_of_attempts_keeps_the_keys_of_the_model(steps, capacity):
    cache = made(capacity, when_full="evict")
    model = OrderedDict()  # key -> failures, as they were used
    flying = {}
    for step, key in steps:
        claim = flying.pop(key, None)
        if claim is None:
            claim = begun(cache, key)
            assert (claim.record and claim.record.failures) == model.get(key)
            if key in model:
                model.move_to_end(key)
        if step == "begin":
            flying[key] = claim
        elif step == "release":
            cache.release(claim)
        elif step == "succeed":
            cache.succeed(claim)
            model.pop(key, None)
        else:
            others = [each for each in model if each not in flying]
            if key not in model and len(model) == capacity:
                if not others:
                    with pytest.raises(RetryContextCacheFullError):
                        write(cache, claim)
                    continue
                del model[others[0]]
            model[key] = model.get(key, 0) + 1
            model.move_to_end(key)
            write(cache, claim, failures=model[key])
        assert kept(cache) == "".join(sorted(model))
        assert len(cache) == len(model)


# -- remembered successes ------------------------------------------------------------------------


def test_success_is_remembered_for_the_time_given():
    clock = VirtualClock()
    cache = made(ttl=1, clock=clock)
    cache.succeed(begun(cache, "a"), remember=60)
    cache.succeed(begun(cache, "b"), remember=30)
    clock.advance(30)
    begun(cache, "b")
    with pytest.raises(AlreadyCompletedError, match="'a' was completed before"):
        begun(cache, "a")
    clock.advance(30)
    assert begun(cache, "a").record is None


def test_remembered_success_is_not_a_record():
    cache = made()
    fail(cache, "a")
    cache.succeed(begun(cache, "a"), remember=60)

    assert "a" not in cache
    assert cache.peek("a") is None
    assert cache.swap("a", Record(), 0)


def test_failure_after_fresh_start_replaces_remembered_success():
    cache = made()
    cache.succeed(begun(cache, "a"), remember=60)
    write(cache, begun(cache, "a", fresh=True))

    assert begun(cache, "a").record.failures == 1


def test_success_after_fresh_start_replaces_the_record():
    cache = made()
    fail(cache, "a")
    cache.succeed(begun(cache, "a", fresh=True))

    assert begun(cache, "a").record is None


def test_released_fresh_claim_changes_nothing():
    cache = made()
    fail(cache, "a")
    cache.succeed(begun(cache, "b"), remember=60)
    for key in "ab":
        cache.release(begun(cache, key, fresh=True))

    assert begun(cache, "a").record.failures == 1
    with pytest.raises(AlreadyCompletedError):
        begun(cache, "b")


def test_remembering_for_no_time_remembers_nothing():
    cache = made(clock=VirtualClock())
    fail(cache, "a")
    cache.succeed(begun(cache, "a"), remember=0)

    assert begun(cache, "a").record is None


# -- claims --------------------------------------------------------------------------------------


def test_claim_ends_when_the_cache_is_full_at_its_last_write():
    cache = made(1)
    fail(cache, "a")
    claim = begun(cache, "b")
    with pytest.raises(RetryContextCacheFullError):
        write(cache, claim)

    assert not cache.holds(claim)
    assert begun(cache, "b", "two").record is None


def test_claim_is_kept_when_the_cache_is_full_at_a_write_between():
    cache = made(1)
    fail(cache, "a")
    claim = begun(cache, "b")
    with pytest.raises(RetryContextCacheFullError):
        write(cache, claim, held=True)

    assert cache.holds(claim)


def test_claim_has_the_version_of_its_last_write():
    cache = made()
    claim = begun(cache, "a")
    write(cache, claim, held=True)
    assert (claim.version, cache.peek("a").version) == (1, 1)
    write(cache, claim)
    assert (claim.version, cache.peek("a").version) == (2, 2)


def test_error_of_a_lost_claim_names_its_worker():
    cache = made()
    claim = begun(cache, "a")
    cache.forget("a")
    with pytest.raises(LeaseLostError, match="'a' is no longer held by one"):
        cache.succeed(claim)


def test_completion_with_a_connection_is_rejected_in_memory():
    cache = made()
    claim = begun(cache, "a")
    with pytest.raises(MisuseError, match="MemoryRetryContextCache has no database"):
        cache.succeed(claim, connection=object())
    assert cache.holds(claim)


def test_peek_returns_the_record_that_was_written():
    cache = made()
    record = evolve(write(cache, begun(cache, "a")), failures=7)
    assert cache.peek("a").failures == 1
    assert cache.swap("a", record, record.version)
    assert cache.peek("a") is record


# -- threads -------------------------------------------------------------------------------------


def test_one_of_concurrent_deliveries_runs_when_success_is_remembered():
    template = RetryTemplate(name="threads")
    ran = Counter()

    def deliver(thread):
        for number in range(300):
            with suppress(AlreadyCompletedError, AttemptInProgressError):
                state = RetryState(number, remember=60)
                template.execute(lambda context: ran.update([context.key]), state=state)

    in_threads(deliver, 4)
    assert ran == Counter(range(300))


def test_threads_that_fail_one_key_in_turn_lose_no_count():
    template = RetryTemplate(AlwaysRetryPolicy(), FixedBackoff(1), clock=VirtualClock(), name="f")
    seen = []

    def fails(context):
        seen.append(context.retry_count)
        raise ValueError("again")

    def deliver(thread):
        for _ in range(200):
            with suppress(ValueError, AttemptInProgressError):
                template.execute(fails, state=RetryState("one"))

    in_threads(deliver, 4)
    assert seen == list(range(len(seen)))


@pytest.mark.parametrize("remember", [None, 60], ids=["dropped", "marked"])
def test_key_is_held_until_its_success_is_stored(remember):
    """Otherwise a concurrent delivery would find the key free and without a record."""

    class Watched(MemoryRetryContextCache):
        def _drop(self, key):
            held.append(self.holds(claim))

        def _mark(self, claim, remember, record):
            held.append(self.holds(claim))

    held = []
    cache = Watched()
    write(cache, begun(cache, "a"))
    claim = begun(cache, "a")
    cache.succeed(claim, remember=remember)
    assert held == [True]
    assert not cache.holds(claim)
