"""Claims in a store: leases that run out, attempts that are lost, late holders, fences."""

import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from retrytemplate import AlreadyCompletedError, AttemptInProgressError, LeaseLostError
from tests.backends.conftest import failing

KEY = "charge/s:order-17"
LEASE = 30.0


def begun(cache, worker="one", **options):
    return cache.begin(KEY, worker=worker, **options)


def later(cache, store, worker="two", **options):
    """Take the key over after the lease of its holder."""
    store.age(LEASE + 1)
    return begun(cache, worker, **options)


# -- leases ----------------------------------------------------------------------------------------


def test_held_key_is_rejected_by_another_cache_with_holder_and_lease(made):
    claim = begun(made())
    with pytest.raises(AttemptInProgressError, match=r"worked on by one$") as caught:
        begun(made(), "two")
    assert caught.value.worker == "one"
    assert caught.value.lease_until == claim.lease_until


def test_lease_has_the_requested_length_by_the_store_clock(made, store):
    before = store.now()
    claim = begun(made(), lease=700)
    assert before <= claim.lease_until - 700 <= store.now()


def test_renewed_lease_has_its_full_length_again(made, store):
    cache = made()
    claim = begun(cache)
    store.age(LEASE - 1)
    cache.renew(claim)
    assert claim.lease_until == store.row(KEY)["lease_until"]
    store.age(LEASE - 1)
    assert cache.holds(claim)


def test_claim_is_not_held_after_its_lease(made, store):
    cache = made()
    claim = begun(cache)
    store.age(LEASE + 1)
    assert not cache.holds(claim)


def test_late_holder_writes_when_its_key_was_not_taken(made, store):
    cache = made()
    claim = begun(cache)
    store.age(LEASE + 1)
    cache.fail(claim, failing(claim))
    assert cache.peek(KEY).failures == 1


def test_write_of_a_holder_renews_its_lease(made, store):
    cache = made()
    claim = begun(cache)
    store.age(LEASE - 1)
    cache.fail(claim, failing(claim, held=True))
    store.age(LEASE - 1)
    assert cache.holds(claim)


# -- lost attempts ---------------------------------------------------------------------------------


def test_attempt_with_expired_lease_is_lost_and_frees_its_key(made, store):
    begun(made())
    claim = later(made(), store)
    assert (claim.lost, claim.record) == ("one", None)


@pytest.mark.parametrize("worker", ["a b", "two\nlines", "{}", "ä"])
def test_any_worker_name_is_returned_unchanged(made, store, worker):
    cache = made()
    first = begun(cache)
    cache.fail(first, failing(first, 2))
    begun(cache, worker)
    with pytest.raises(AttemptInProgressError) as caught:
        begun(cache)
    assert caught.value.worker == worker
    claim = later(made(), store)
    assert (claim.lost, claim.record.failures) == (worker, 2)


def test_lost_attempt_is_found_with_the_earlier_record(made, store):
    cache = made()
    first = begun(cache)
    cache.fail(first, failing(first, 2))
    begun(cache)
    claim = later(made(), store)
    assert claim.lost == "one"
    assert claim.record.failures == 2


def test_lost_attempt_is_reported_until_it_is_recorded(made, store):
    cache = made()
    begun(cache)
    later(cache, store)
    claim = later(cache, store, "three")
    assert claim.lost == "one"
    cache.fail(claim, failing(claim))
    assert begun(cache, "four").lost is None


@pytest.mark.parametrize("failures", [0, 2])
def test_release_after_a_takeover_keeps_the_lost_attempt(made, store, failures):
    cache = made()
    claim = begun(cache)
    if failures:
        cache.fail(claim, failing(claim, failures))
        begun(cache)
    cache.release(later(cache, store))
    before = cache.peek(KEY)
    for worker in ("three", "four"):  # also more than once, and without a lease to wait for
        claim = begun(cache, worker)
        assert claim.lost == "one"
        cache.release(claim)
    assert cache.peek(KEY) == before
    assert begun(cache, "five").lost == "one"


def test_attempt_with_stored_failure_is_not_lost(made, store):
    """The worker crashed after the failure, during the wait: no attempt was in progress."""
    cache = made()
    claim = begun(cache)
    cache.fail(claim, failing(claim, held=True))
    claim = later(cache, store)
    assert claim.lost is None
    assert claim.record.failures == 1


def test_next_attempt_in_place_is_lost_with_its_worker(made, store):
    cache = made()
    claim = begun(cache)
    cache.fail(claim, failing(claim, held=True))
    begun(cache)
    assert later(cache, store).lost == "one"


def test_crashed_recovery_is_resumed_and_is_no_lost_attempt(made, store):
    cache = made()
    claim = begun(cache)
    cache.fail(claim, failing(claim, held=True, phase="recovering"))
    for worker in ("two", "three"):
        claim = later(cache, store, worker)
        assert (claim.lost, claim.record.phase) == (None, "recovering")
    cache.release(claim)
    assert begun(cache).record.phase == "recovering"


def test_same_worker_finds_no_lost_attempt_of_its_own(made, store):
    cache = made()
    begun(cache)
    assert later(cache, store, "one").lost is None


# -- late holders ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["renew", "fail", "succeed", "remember"])
def test_late_holder_writes_nothing(made, store, step):
    cache = made()
    late = begun(cache)
    claim = later(made(), store)
    steps = {
        "renew": lambda: cache.renew(late),
        "fail": lambda: cache.fail(late, failing(late, 99)),
        "succeed": lambda: cache.succeed(late),
        "remember": lambda: cache.succeed(late, remember=60),
    }
    with pytest.raises(LeaseLostError, match="is no longer held by one"):
        steps[step]()
    assert cache.holds(claim)
    assert not cache.holds(late)


def test_late_release_does_not_free_the_key_of_another_worker(made, store):
    cache = made()
    late = begun(cache)
    claim = later(made(), store)
    cache.release(late)
    assert cache.holds(claim)


# -- fences ----------------------------------------------------------------------------------------


def test_fence_of_a_deleted_key_grows(made):
    cache = made()
    fences = []
    for _ in range(30):
        claim = begun(cache)
        fences.append(claim.fence)
        cache.succeed(claim)
    assert fences == sorted(set(fences))


AHEAD = 2**52


def test_fence_grows_when_the_clock_was_set_back(made, store):
    cache = made()
    begun(cache)
    store.change(KEY, fence=AHEAD)
    assert later(cache, store).fence == AHEAD + 1


@pytest.mark.parametrize("end", ["forget", "succeed", "release"])
@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
def test_fence_of_a_deleted_key_grows_when_the_clock_was_set_back(kind, end, request):
    store = request.getfixturevalue(kind)
    cache = store.cache()
    store.change(KEY, fence=begun(cache).fence + AHEAD)
    claim = begun(cache)
    getattr(cache, end)(KEY if end == "forget" else claim)
    assert store.row(KEY) is None
    assert begun(cache, "two").fence == claim.fence + 1


STANDING = """
CREATE FUNCTION {0}_stand() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.worker = 'slow' THEN PERFORM pg_advisory_xact_lock(17, 17); END IF; RETURN NEW;
END $$"""
BEFORE = """
CREATE TRIGGER stand BEFORE INSERT ON {0}_contexts FOR EACH ROW EXECUTE FUNCTION {0}_stand()"""


def test_fence_grows_when_a_claim_stalls_before_its_row_is_written(postgresql):
    slow, quick = postgresql.cache(), postgresql.cache()
    quick.peek(KEY)  # the tables are there
    postgresql.sql(STANDING)
    postgresql.sql(BEFORE)
    claims = []

    def come_and_go(cache, worker):
        claim = begun(cache, worker)
        claims.append(claim)
        cache.succeed(claim)

    def waiting():
        return postgresql.sql("SELECT count(*) AS n FROM pg_locks WHERE NOT granted")[0]["n"]

    with ThreadPoolExecutor() as pool:
        with postgresql.engine.begin() as connection:
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(17, 17)")
            first = pool.submit(come_and_go, slow, "slow")
            while not waiting():  # for a lock in the server, which has no event for it
                time.sleep(0.005)  # the interval of the polls
            second = pool.submit(come_and_go, quick, "quick")
            while not (second.done() or waiting() > 1):
                time.sleep(0.005)  # as above
        wait([first, second])
    first.result()
    if second.exception() is None:
        assert [claim.fence for claim in claims] == sorted(claim.fence for claim in claims)
    else:
        assert isinstance(second.exception(), AttemptInProgressError)


# -- fresh starts ----------------------------------------------------------------------------------


def test_released_fresh_claim_changes_nothing(made):
    cache = made()
    claim = begun(cache)
    cache.fail(claim, failing(claim, 2))
    claim = begun(cache, fresh=True)
    assert (claim.record, claim.version) == (None, 0)
    cache.release(claim)
    assert begun(cache).record.failures == 2


def test_record_stays_until_first_write_of_fresh_claim(made):
    cache = made()
    claim = begun(cache)
    cache.fail(claim, failing(claim, 2))
    claim = begun(cache, fresh=True)
    assert cache.peek(KEY).failures == 2
    cache.fail(claim, failing(claim))
    assert cache.peek(KEY).failures == 1


def test_released_fresh_start_restores_the_remembered_success(made):
    cache = made()
    cache.succeed(begun(cache), remember=60)
    cache.release(begun(cache, fresh=True))
    with pytest.raises(AlreadyCompletedError):
        begun(cache)


def test_key_held_by_a_fresh_start_is_in_progress(made):
    cache = made()
    cache.succeed(begun(cache), remember=60)
    begun(cache, fresh=True)
    with pytest.raises(AttemptInProgressError):
        begun(cache, "two")


def test_fresh_claim_does_not_report_earlier_lost_attempt(made, store):
    cache = made()
    begun(cache)
    claim = later(cache, store, fresh=True)
    assert claim.lost is None
    cache.release(claim)
    assert begun(cache, "three").lost == "one"


# -- time to live ----------------------------------------------------------------------------------


def failed(cache, key=KEY):
    claim = cache.begin(key, worker="one")
    cache.fail(claim, failing(claim))


def test_key_is_forgotten_when_ttl_expires(made, store):
    cache = made(ttl=100)
    failed(cache)
    store.age(99)
    assert cache.peek(KEY).failures == 1
    store.age(2)
    assert cache.peek(KEY) is None
    assert cache.keys() == []
    claim = begun(cache)
    assert (claim.record, claim.version) == (None, 0)
    cache.release(claim)
    assert store.row(KEY) is None


def test_key_without_ttl_stays(database):
    cache = database.cache()
    failed(cache)
    database.age(1e9)
    assert cache.peek(KEY).failures == 1
    assert cache.purge() == 0


def test_valkey_key_lives_for_a_day_by_default(valkey):
    cache = valkey.cache()
    failed(cache)
    valkey.age(86_399)
    assert cache.peek(KEY).failures == 1
    valkey.age(2)
    assert cache.peek(KEY) is None


def test_ttl_starts_at_the_last_write(made, store):
    cache = made(ttl=100)
    failed(cache)
    store.age(99)
    failed(cache)
    store.age(99)
    assert cache.peek(KEY).failures == 1


def test_giving_back_does_not_lengthen_the_time(made, store):
    cache = made(ttl=100)
    failed(cache)
    store.age(99)
    cache.release(begun(cache))
    store.age(2)
    assert cache.peek(KEY) is None


def test_key_in_flight_does_not_expire(made, store):
    cache = made(ttl=100)
    failed(cache)
    store.age(99)
    claim = begun(cache)
    store.age(2)
    assert cache.peek(KEY).failures == 1
    assert cache.purge() == 0
    cache.fail(claim, failing(claim, 2))
    assert cache.peek(KEY).failures == 2


def test_lost_attempt_is_found_until_ttl_after_its_lease(made, store):
    cache = made(ttl=100)
    failed(cache)
    begun(cache)
    store.age(LEASE + 99)
    claim = begun(cache, "two")
    assert (claim.lost, claim.record.failures) == ("one", 1)
    store.age(LEASE + 101)
    claim = begun(cache, "three")
    assert (claim.lost, claim.record) == (None, None)


@pytest.mark.parametrize("step", ["begin", "renew", "fail", "swap"])
def test_key_in_flight_outlives_a_ttl_shorter_than_its_lease(valkey, step):
    cache = valkey.cache(ttl=10)
    failed(cache)
    claim = begun(cache)
    steps = {
        "begin": lambda: None,
        "renew": lambda: cache.renew(claim),
        "fail": lambda: cache.fail(claim, failing(claim, held=True)),
        "swap": lambda: cache.swap(KEY, failing(claim), claim.version),
    }
    steps[step]()
    valkey.age(LEASE - 1)
    assert cache.holds(claim)
    valkey.age(6)
    assert cache.peek(KEY).failures == 1
    valkey.age(6)
    assert cache.peek(KEY) is None


def test_success_is_remembered_for_the_time_given(made, store):
    cache = made(ttl=1)
    cache.succeed(begun(cache), remember=100)
    store.age(99)
    with pytest.raises(AlreadyCompletedError, match="was completed before"):
        begun(cache, "two")
    store.age(2)
    assert begun(cache, "two").record is None


def test_success_can_be_remembered_permanently(made, store):
    cache = made()
    cache.succeed(begun(cache), remember=float("inf"))
    store.age(1e9)
    with pytest.raises(AlreadyCompletedError):
        begun(cache)


def test_remembered_success_is_not_a_record(made):
    cache = made()
    failed(cache)
    cache.succeed(begun(cache), remember=60)
    assert cache.peek(KEY) is None
    assert cache.keys() == []
    assert cache.swap(KEY, failing(begun(cache, fresh=True)), 0)


def test_record_of_completion_marker_expires_with_the_marker(made, store):
    cache = made(ttl=1000)
    claim = begun(cache)
    kept = failing(claim, phase="done", attributes={"result": [17, "ä"]})
    cache.succeed(claim, remember=100, record=kept)
    assert cache.peek(KEY) == kept
    assert cache.keys() == [KEY]
    store.age(101)
    assert begun(cache, "two").record is None
    assert cache.peek(KEY) is None


def test_expired_record_is_not_found_after_a_longer_claim(made, store):
    cache = made(ttl=1000)
    claim = begun(cache)
    cache.succeed(claim, remember=20, record=failing(claim, phase="done", attributes={"a": 1}))
    begun(cache, "two", fresh=True)
    store.age(LEASE + 1)
    assert begun(cache, "three").record is None
    assert cache.peek(KEY) is None


def test_purge_deletes_expired_keys_and_returns_their_number(made, store, monkeypatch):
    monkeypatch.setattr("retrytemplate.backends.sql.operations.AT_ONCE", 2)
    cache = made(ttl=100)
    for number in range(5):
        failed(cache, f"old {number}")
    cache.succeed(cache.begin("done", worker="one"), remember=50)
    cache.begin("crashed", worker="one")
    store.age(LEASE + 101)
    failed(cache, "young")
    assert cache.purge() == (0 if store.kind == "valkey" else 7)  # whose server does it itself
    assert store.keys() == ["young"]
    assert cache.keys() == ["young"]


# -- stored records --------------------------------------------------------------------------------


def test_keys_come_in_order_and_in_pages(made):
    cache = made()
    for number in (3, 1, 5, 2, 4):
        failed(cache, f"key {number}")
    assert cache.keys(limit=2) == ["key 1", "key 2"]
    assert cache.keys(after="key 2", limit=2) == ["key 3", "key 4"]
    assert cache.keys(after="key 5") == []


def test_iteration_goes_through_every_page(store, monkeypatch):
    monkeypatch.setattr("retrytemplate.backends.sql.cache.PAGE", 2)
    monkeypatch.setattr("retrytemplate.backends.redis.operations.AT_ONCE", 2)
    cache = store.cache()
    cache.succeed(cache.begin("remembered", worker="one"), remember=60)
    for number in range(5):
        failed(cache, f"key {number}")
    cache.begin("held", worker="one")
    assert sorted(cache) == [f"key {number}" for number in range(5)]


@pytest.mark.parametrize("key", ["\0", "a\\u0000", "\ud800", "ä" * 2000, "\0" * 2000], ids=ascii)
def test_key_that_no_column_takes_is_stored_and_listed(made, key):
    cache = made()
    failed(cache, key)
    failed(cache, key + "x")
    assert cache.peek(key).failures == 1
    for listed in cache.keys(limit=9):
        cache.forget(listed)
    assert cache.keys() == []
