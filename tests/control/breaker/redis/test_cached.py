"""A circuit with a cached state: no query while it is closed or open."""

import threading

import pytest

from retrytemplate import CircuitOpenError
from retrytemplate.control import Calls, CircuitChanged, Consecutive
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.control.breaker.redis.shared import Down, Recorded, failing, fine
from tests.support.polling import wait_until

# The threads look by themselves only where a test wants it: in real time, and these take none.
NEVER = 3600.0


def call(breaker, *functions):
    return [breaker.outcome(function) for function in functions]


@pytest.fixture
def cached(sharing):
    def make(**settings):
        store = sharing.store(mode="cached", stale_after=settings.pop("stale_after", NEVER))
        return sharing.breaker(store=store, **settings)

    return make


@pytest.fixture
def counted(sharing):
    """A store whose requests can be counted."""
    with sharing.counted(mode="cached", stale_after=NEVER) as made:
        yield made


@pytest.mark.parametrize("driver", ["outcome", "wrap"])
def test_closed_circuit_needs_no_round_trip(sharing, counted, driver):
    proxy, store = counted
    breaker = sharing.breaker(store=store, window=Calls(50))
    ask = breaker.wrap(fine) if driver == "wrap" else lambda: breaker.outcome(fine)
    ask()
    before = proxy.requests
    for _ in range(100):
        ask()
    assert proxy.requests == before
    breaker.close()
    assert int(sharing.fields()["total"]) == 101


def test_open_circuit_needs_no_round_trip(sharing, counted):
    proxy, store = counted
    breaker = sharing.breaker(store=store, window=Consecutive(1))
    call(breaker, failing)
    wait_until(lambda: sharing.fields()["state"] == "open")
    wait_until(lambda: type(breaker.outcome(fine).exception) is CircuitOpenError)
    before = proxy.requests
    refused = breaker.snapshot().rejected
    sent = proxy.requests - before
    call(breaker, *[fine] * 100)
    assert proxy.requests - before == sent
    assert breaker.snapshot().rejected == refused + 100


def test_failures_of_all_open_it_for_all(sharing, cached):
    rules = {"window": Calls(4), "minimum_calls": 4}
    first, second = cached(**rules), cached(stale_after=0.05, **rules)
    call(first, failing, failing)
    call(second, fine)
    wait_until(lambda: sharing.fields().get("total") == "3")  # the last report opens the circuit
    call(first, failing)
    wait_until(lambda: sharing.fields()["state"] == "open")  # more successes would lower the rate
    wait_until(lambda: type(second.outcome(fine).exception) is CircuitOpenError)
    wait_until(lambda: type(first.outcome(fine).exception) is CircuitOpenError)


def test_stale_state_is_refreshed_before_the_call(sharing, cached):
    first, second = cached(), cached()
    call(second, fine)
    first.force_open(by="kim", reason="they asked us to")
    sharing.clock.advance(NEVER / 2)
    assert second.outcome(fine).exception is None
    sharing.clock.advance(NEVER / 2)
    assert type(second.outcome(fine).exception) is CircuitOpenError


def test_wrapped_function_refreshes_a_stale_state(sharing, cached):
    first, second = cached(), cached()
    ask = second.wrap(fine)
    ask()
    first.force_open(by="kim", reason="they asked us to")
    assert ask() == "fine"
    sharing.clock.advance(NEVER)
    with pytest.raises(CircuitOpenError):
        ask()


def test_half_open_checks_the_store_for_each_permit(sharing, cached):
    """Pain 21: a half-open circuit admits every call."""
    first, second = cached(), cached()
    call(first, failing, failing, failing)
    wait_until(lambda: first.snapshot().state == "open")
    sharing.advance(30)
    permits = [each.permit() for each in (first, second, first, second, first)]
    assert [permit.acquire() is None for permit in permits] == [True, True, True, False, False]
    for permit in permits[:3]:
        permit.success()
    assert (first.state, second.state) == ("closed", "closed")


def test_success_between_two_failures_counts_between_them(sharing, cached):
    breaker = cached(window=Consecutive(2))
    ask = breaker.wrap(lambda happens: happens())
    for _ in range(20):
        with pytest.raises(Down):
            ask(failing)
        ask(fine)
    assert breaker.snapshot().state == "closed"
    with pytest.raises(Down):
        ask(failing)
    with pytest.raises(Down):
        ask(failing)
    assert breaker.snapshot().state == "open"


def test_thread_reports_changes_of_other_processes(cached):
    listener = Recorded()
    first, second = cached(), cached(stale_after=0.05, listeners=[listener])
    call(second, fine)
    first.force_open(by="kim", reason="they asked us to")
    wait_until(lambda: listener.of(CircuitChanged))
    (event,) = listener.of(CircuitChanged)
    assert (event.before, event.after, event.by) == ("closed", "forced_open", "kim")


def test_thread_ends_with_the_breaker(sharing):
    store = sharing.store(mode="cached", stale_after=NEVER)
    breaker = sharing.breaker("brief", store=store)
    sharing.made.remove(breaker)
    before = set(threading.enumerate())
    call(breaker, fine)
    (thread,) = [each for each in threading.enumerate() if each not in before]
    del breaker
    thread.join(JOIN_TIMEOUT)
    assert not thread.is_alive()


def test_state_with_a_long_stale_after_is_reported_to_the_store(sharing, cached):
    breaker = cached(stale_after=1e300)
    call(breaker, fine, failing, failing, failing)
    wait_until(lambda: sharing.fields()["state"] == "open")


def test_full_count_of_failures_is_kept_despite_an_unreported_success(sharing, cached):
    breaker = cached()
    call(breaker, fine)
    sharing.client.client_pause(60_000, all=False)
    call(breaker, failing, failing, failing, fine, failing)
    sharing.client.client_unpause()
    wait_until(lambda: sharing.fields()["state"] == "open")


def test_every_failure_is_reported_on_close(sharing, cached):
    breaker = cached(window=Calls(10**6), minimum_calls=10**6)
    call(breaker, fine, *[failing] * 3000)
    breaker.close()
    assert int(sharing.fields()["failures"]) == 3000


def test_closed_breaker_still_opens_when_it_is_used_again(cached):
    breaker = cached()
    call(breaker, fine)
    breaker.close()
    call(breaker, failing, failing, failing)
    assert type(breaker.outcome(fine).exception) is CircuitOpenError


@pytest.mark.parametrize("fails", [(), range(0, 500, 7)], ids=["never", "often"])
def test_calls_of_many_threads_are_counted_exactly_once(sharing, cached, fails, switching):
    breaker = cached(window=Calls(10**6), minimum_calls=10**6)

    @breaker.wrap
    def ask(number):
        if number in fails:
            failing()

    def work():
        for number in range(500):
            try:
                ask(number)
            except Down:
                continue

    ask(1)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    breaker.close()
    assert int(sharing.fields()["total"]) == 2001
    assert int(sharing.fields().get("failures", 0)) == 4 * len(fails)
