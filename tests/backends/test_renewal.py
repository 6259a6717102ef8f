"""Leases are renewed while the process lives: a thread or a task for a cache, on a given clock."""

import asyncio
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from retrytemplate import CacheUnavailableError, LeaseLostError
from retrytemplate.backends import leases as leases_module
from retrytemplate.backends.leases import LeasedClaim, Leases, RenewingTask, RenewingThread
from retrytemplate.caches import Claim
from retrytemplate.testing import VirtualClock

PATIENCE = 20.0
KEY = "charge/s:order-17"


def held(key=KEY, lease=30.0):
    claim = LeasedClaim(key, "one", None, 1)
    claim.lease = lease
    return claim


# -- when ------------------------------------------------------------------------------------------


def test_lease_is_due_after_a_third_of_its_length():
    leases = Leases()
    claim = held()
    assert leases.add(claim, 100.0) == 110.0
    assert leases.due_for_renewal(109.9) == []
    assert leases.due_for_renewal(110.0) == [claim]


def test_next_due_lease_is_the_earliest():
    leases = Leases()
    assert leases.next() is None
    leases.add(held("a", 30.0), 0.0)
    leases.add(held("b", 3.0), 0.0)
    assert leases.next() == 1.0


def test_next_wakeup_follows_the_present_claims():
    leases, claim = Leases(), held()
    assert leases.next_wakeup(0.0) is None
    leases.add(claim, 0.0)
    leases.drop(claim)
    assert leases.next_wakeup(5.0) == 15.0
    leases.add(claim, 6.0)
    assert leases.next_wakeup(15.0) == 16.0
    leases.drop(claim)
    leases.add(claim, 17.0)
    leases.drop(claim)
    assert leases.next_wakeup(18.0) == 28.0
    assert leases.next_wakeup(28.0) is None


def test_failed_renewal_is_repeated_until_the_lease_ends():
    leases, claim = Leases(), held()
    leases.add(claim, 0.0)
    tried = []
    while leases.has(claim):
        now = leases.next()
        tried.append(now)
        leases.failed(claim, now)
    assert tried == [10.0, 13.0, 16.0, 19.0, 22.0, 25.0, 28.0]


def test_later_claim_of_the_same_key_is_not_dropped_with_the_earlier():
    leases, first, second = Leases(), held(), held()
    leases.add(first, 0.0)
    leases.add(second, 0.0)
    leases.drop(first)
    assert leases.has(second)


def test_collected_claim_is_not_renewed():
    leases, kept = Leases(), held("kept")
    for claim in (kept, held("left behind")):
        leases.add(claim, 0.0)
    del claim
    assert leases.due_for_renewal(10.0) == [kept]
    leases.drop(kept)
    assert leases.next() is None


# -- the thread ------------------------------------------------------------------------------------


class Renewals:
    """Queues the renewals of a renewer; each raises the next of the given errors, if any."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.requests = queue.Queue()

    def __call__(self, claim):
        self.requests.put(claim)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    async def later(self, claim):
        self(claim)


def nothing():
    """No claim was left by a finalizer."""


async def nothing_awaited():
    """The same for a task: no claim was left by a finalizer."""


def pass_time(renewer, clock, seconds):
    clock.advance(seconds)
    if isinstance(renewer, RenewingTask):
        renewer._changed.set()
        return
    with renewer._lock:
        renewer._changed.notify()


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def threads():
    before = set(threading.enumerate())
    yield lambda: [each for each in threading.enumerate() if each not in before]
    assert set(threading.enumerate()) <= before


def test_held_claim_is_renewed_repeatedly(clock, threads):
    renewals = Renewals()
    renewer = RenewingThread(renewals, clock.monotonic, nothing)
    claim = held()
    renewer.add(claim)
    for _ in range(3):
        pass_time(renewer, clock, 10)
        assert renewals.requests.get(timeout=PATIENCE) is claim
        until(lambda: renewer._leases.next() == clock.monotonic() + 10)
    renewer.stop()
    assert renewals.requests.empty()


def until(condition):
    """Wait until the condition holds."""
    pause = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        pause.wait(0.002)
    raise AssertionError("it does not come")


def test_lost_claim_is_not_renewed(clock, threads):
    renewer = RenewingThread(Renewals(LeaseLostError("gone")), clock.monotonic, nothing)
    renewer.add(claim := held())
    pass_time(renewer, clock, 10)
    until(lambda: renewer._leases.next() is None)
    assert not renewer._leases.has(claim)
    renewer.stop()


def test_failed_renewal_is_repeated_sooner(clock, threads):
    renewals = Renewals(CacheUnavailableError("down"), RuntimeError("worse"))
    renewer = RenewingThread(renewals, clock.monotonic, nothing)
    renewer.add(claim := held())
    for seconds in (10, 3, 3):
        pass_time(renewer, clock, seconds)
        renewals.requests.get(timeout=PATIENCE)
        until(lambda: renewer._leases.next() > clock.monotonic())
    assert renewer._leases.next() == clock.monotonic() + 10
    assert renewer._leases.has(claim)
    renewer.stop()


def test_ended_claim_is_not_renewed(clock, threads):
    renewals = Renewals()
    renewer = RenewingThread(renewals, clock.monotonic, nothing)
    ended, other = held("ended"), held("other")
    renewer.add(ended)
    renewer.add(other)
    renewer.drop(ended)
    pass_time(renewer, clock, 10)
    assert renewals.requests.get(timeout=PATIENCE) is other
    renewer.stop()
    assert renewals.requests.empty()


def test_shorter_lease_is_renewed_before_an_earlier_longer_one(clock, threads):
    renewals = Renewals()
    renewer = RenewingThread(renewals, clock.monotonic, nothing)
    renewer.add(held("long", 3000.0))
    renewer.add(short := held("short", 0.03))
    clock.advance(0.02)
    assert renewals.requests.get(timeout=PATIENCE) is short
    renewer.stop()


def test_finalizer_in_the_starting_thread_does_not_wait_for_the_starter(
    clock, threads, monkeypatch
):
    """The garbage collector runs in a new thread, too, before ``Thread.start`` returns."""
    renewer = RenewingThread(Renewals(), clock.monotonic, nothing)
    claim = held()

    class Starting(threading.Thread):
        def start(self):
            finalizer = RealThread(target=renewer.drop, args=(claim,), daemon=True)
            finalizer.start()
            finalizer.join(PATIENCE)
            assert not finalizer.is_alive()
            super().start()

    RealThread = threading.Thread
    monkeypatch.setattr(threading, "Thread", Starting)
    renewer.add(claim)
    assert not renewer._leases.has(claim)
    renewer.stop()


def test_claim_is_not_lost_with_a_thread_that_cannot_start(clock, threads, monkeypatch, caplog):
    renewals = Renewals()
    renewer = RenewingThread(renewals, clock.monotonic, nothing)
    first, second = held("first"), held("second")

    def fails(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        renewer.add(first)
    assert "cannot start the thread that renews leases" in caplog.text
    renewer.add(second)  # the next claim starts it
    pass_time(renewer, clock, 10)
    assert {renewals.requests.get(timeout=PATIENCE) for _ in range(2)} == {first, second}
    renewer.stop()


def test_claims_during_and_after_a_stop_are_dropped_or_renewed(clock, threads, monkeypatch):
    renewals = Renewals()
    renewer = RenewingThread(renewals, clock.monotonic, nothing)
    renewer.add(held("first"))

    def interrupted():
        monkeypatch.undo()
        renewer.add(held("of a signal handler"))
        return Leases()

    monkeypatch.setattr(leases_module, "Leases", interrupted)
    renewer.stop()
    renewer.add(later := held("later"))
    pass_time(renewer, clock, 10)
    assert renewals.requests.get(timeout=PATIENCE) is later
    renewer.stop()
    until(lambda: threads() == [])


def test_stop_inside_an_interrupted_step_does_not_wait_for_the_thread(clock, threads):
    renewer = RenewingThread(Renewals(), clock.monotonic, nothing)
    renewer.add(held())
    with renewer._lock:  # a signal handler closes the cache
        renewer.stop()
    until(lambda: threads() == [])


def test_first_claim_inside_an_interrupted_step_waits_for_no_thread(clock, threads, monkeypatch):
    renewer = RenewingThread(Renewals(), clock.monotonic, nothing)
    start = threading.Thread.start

    def start_another_first(thread):
        monkeypatch.setattr(threading.Thread, "start", start)
        renewer.add(held("of a nested handler"))
        thread.start()

    monkeypatch.setattr(threading.Thread, "start", start_another_first)
    with renewer._lock:
        renewer.add(held())
    until(lambda: len(threads()) == 1)
    renewer.stop()


def test_claims_of_several_threads_start_one_thread(clock, threads):
    renewer = RenewingThread(Renewals(), clock.monotonic, nothing)
    claims = [held(number) for number in range(16)]
    together = threading.Barrier(16)

    def add(claim):
        together.wait(PATIENCE)
        renewer.add(claim)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(add, claims))
    assert [each.name for each in threads()] == ["retrytemplate-leases"]
    assert all(renewer._leases.has(claim) for claim in claims)
    renewer.stop()


def test_renewing_thread_runs_from_first_claim_until_close(store, threads):
    cache = store.cache()
    cache.peek(KEY)
    assert threads() == []
    for number in range(3):
        cache.begin(f"{KEY}/{number}", worker="one")
    assert [each.name for each in threads()] == ["retrytemplate-leases"]
    assert threads()[0].daemon
    cache.close()
    assert threads() == []


def test_closed_cache_can_be_used_again(store, threads):
    cache = store.cache()
    with cache:
        cache.begin(KEY, worker="one")
    cache.begin(KEY, worker="one")
    assert len(threads()) == 1
    cache.close()
    cache.close()


def test_cache_renews_its_leases_in_the_store(store, clock):
    cache = store.cache(clock=clock)
    claim = cache.begin(KEY, worker="one")
    store.age(29)
    before = store.row(KEY)["lease_until"]
    pass_time(cache._renewer, clock, 10)
    until(lambda: store.row(KEY)["lease_until"] > before + 28)
    assert cache.holds(claim)


def test_cache_does_not_renew_claims_taken_over(store, clock):
    cache = store.cache(clock=clock)
    cache.begin(KEY, worker="one")
    store.age(31)
    taken = store.cache().begin(KEY, worker="two")
    pass_time(cache._renewer, clock, 10)
    until(lambda: cache._renewer._leases.next() is None)
    assert store.row(KEY)["lease_until"] == taken.lease_until


def test_real_lease_is_kept_by_a_living_holder(store):
    """Other workers are rejected for several times the lease."""
    cache = store.cache(lease=0.05)
    claim = cache.begin(KEY, worker="one")
    first = claim.lease_until
    until(lambda: claim.lease_until > first + 0.2)
    assert cache.holds(claim)
    cache.succeed(claim)


def test_short_lease_is_renewed_beside_an_unlimited_one(store):
    cache = store.cache(lease=timedelta.max)
    assert cache.holds(cache.begin("long", worker="one"))
    claim = cache.begin(KEY, worker="one", lease=0.05)
    first = claim.lease_until
    until(lambda: claim.lease_until > first)


# -- the task --------------------------------------------------------------------------------------


async def next_request(renewals):
    async with asyncio.timeout(PATIENCE):
        while renewals.requests.empty():
            await asyncio.sleep(0)
    return renewals.requests.get_nowait()


async def test_task_renews_due_claims_and_continues_after_an_error(clock):
    renewals = Renewals(None, CacheUnavailableError("down"))
    renewer = RenewingTask(renewals.later, clock.monotonic, nothing_awaited)
    renewer.add(claim := held())
    for seconds in (10, 10, 3, 10):
        pass_time(renewer, clock, seconds)
        assert await next_request(renewals) is claim
    await renewer.stop()


async def test_task_does_not_renew_lost_or_ended_claims(clock):
    renewals = Renewals(LeaseLostError("gone"))
    renewer = RenewingTask(renewals.later, clock.monotonic, nothing_awaited)
    renewer.add(lost := held("lost"))
    pass_time(renewer, clock, 10)
    await next_request(renewals)
    renewer.add(ended := held("ended"))
    renewer.add(other := held("other"))
    renewer.drop(ended)
    pass_time(renewer, clock, 10)
    assert await next_request(renewals) is other
    assert not renewer._leases.has(lost)
    await renewer.stop()


async def test_renewing_task_runs_from_first_claim_until_close(store):
    before = asyncio.all_tasks()
    async with store.async_cache() as cache:
        await cache.begin(KEY, worker="one")
        await cache.begin(KEY + "0", worker="one")
        (task,) = asyncio.all_tasks() - before
        assert task.get_name() == "retrytemplate-leases"
    assert task.done()
    assert asyncio.all_tasks() == before


async def test_asynchronous_cache_renews_its_leases_in_the_store(store, clock):
    async with store.async_cache(clock=clock) as cache:
        claim = await cache.begin(KEY, worker="one")
        store.age(29)
        aged = store.row(KEY)["lease_until"]
        pass_time(cache._renewer, clock, 10)
        async with asyncio.timeout(PATIENCE):
            while store.row(KEY)["lease_until"] < aged + 28:
                await asyncio.sleep(0.002)  # a renewal in the server gives no event
        assert await cache.holds(claim)


async def test_asynchronous_cache_renews_short_leases_beside_unlimited_ones(store):
    async with store.async_cache(lease=timedelta.max) as cache:
        await cache.begin("long", worker="one")
        claim = await cache.begin(KEY, worker="one", lease=0.05)
        first = claim.lease_until
        async with asyncio.timeout(PATIENCE):
            while claim.lease_until == first:
                await asyncio.sleep(0.002)  # a renewal in the server gives no event


def test_claim_of_another_cache_is_rejected(store):
    with pytest.raises(TypeError, match=r"claim must be a (SQL|Leased)Claim, got"):
        store.cache().renew(Claim(KEY, "one", None, 1))
