"""A circuit that is queried before each call: all processes see one state."""

import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from retrytemplate import CircuitOpenError
from retrytemplate.control import Calls, CircuitChanged, LateResult
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.control.breaker.redis.shared import Down, Recorded, failing, fine
from tests.support.thread_crowd import come_and_go


def call(breaker, *functions):
    return [breaker.outcome(function) for function in functions]


def opened(sharing, **settings):
    first, second = sharing.breaker(**settings), sharing.breaker(**settings)
    call(first, failing, failing, failing)
    return first, second


def half_open(sharing, **settings):
    both = opened(sharing, **settings)
    sharing.advance(30)
    return both


def test_circuit_opened_by_one_is_open_for_the_other(sharing):
    first, second = sharing.breaker(), sharing.breaker()
    call(first, failing)
    call(second, failing)
    with pytest.raises(Down):
        first.call(failing)
    with pytest.raises(CircuitOpenError, match="'billing' is open, for 30 more seconds") as raised:
        second.call(fine)
    assert 29 < raised.value.retry_after <= 30


def test_new_process_changes_neither_state_nor_counts(sharing):
    """Pain 20: a new process resets the counts of the others."""
    opened(sharing)
    before = sharing.fields()
    late = sharing.breaker()
    assert late.state == "open"
    assert sharing.fields() == before
    assert type(late.outcome(fine).exception) is CircuitOpenError


def test_two_names_are_two_circuits_on_one_store(sharing):
    """Pain 20: a second breaker shares the keys of the first."""
    store = sharing.store()
    first, second = sharing.breaker("one", store), sharing.breaker("two", store)
    call(first, failing, failing, failing)
    assert (first.state, second.state) == ("open", "closed")
    assert store.names() == ["one", "two"]


def test_half_open_permits_are_shared_by_all_processes(sharing):
    """Pain 21: a half-open circuit admits every call, and one success closes it."""
    first, second = half_open(sharing, required_successes=3)
    permits = [each.permit() for each in (first, second, first, second, second)]
    taken = [permit.acquire() is None for permit in permits]
    assert taken == [True, True, True, False, False]
    assert sharing.permits() == 3
    permits[0].success()
    assert second.state == "half_open"
    permits[1].success()
    permits[2].success()
    assert (first.state, second.state) == ("closed", "closed")


def test_permit_of_a_crashed_process_is_free_after_its_lease(sharing):
    first, second = half_open(sharing, half_open_calls=1, permit_timeout=7)
    assert first.permit().acquire() is None
    sharing.advance(6)
    assert type(second.outcome(fine).exception) is CircuitOpenError
    sharing.advance(1)
    assert second.outcome(fine).exception is None
    assert second.snapshot().expired == 1


@pytest.mark.parametrize("say", ["ignore", "cancel"])
def test_ignored_call_releases_its_permit(sharing, say):
    first, second = half_open(sharing, half_open_calls=1)
    permit = first.permit()
    assert permit.acquire() is None
    getattr(permit, say)()
    assert sharing.permits() == 0
    assert second.outcome(fine).exception is None


def test_late_result_changes_nothing(sharing):
    listener = Recorded()
    first, second = sharing.breaker(listeners=[listener]), sharing.breaker()
    slow = first.permit()
    assert slow.acquire() is None
    call(second, failing, failing, failing)
    sharing.advance(30)
    assert second.state == "half_open"
    slow.failure()
    assert second.state == "half_open"
    assert [each.verdict for each in listener.of(LateResult)] == ["failure"]


@pytest.mark.statement("S4-41")
def test_listeners_of_every_process_are_notified_once_per_change(sharing):
    recorders = [Recorded(), Recorded()]
    first, second = (sharing.breaker(listeners=[each]) for each in recorders)
    call(first, failing, failing, failing)
    call(second, fine, fine)
    call(first, fine)
    for each in recorders:
        changes = [(event.before, event.after) for event in each.of(CircuitChanged)]
        assert changes == [("closed", "open")]


def test_manual_change_applies_to_all_processes(sharing):
    listener = Recorded()
    first, second = sharing.breaker(), sharing.breaker(listeners=[listener])
    first.force_open(by="kim", reason="they asked us to", seconds=60)
    shown = second.snapshot()
    assert (shown.state, shown.by, shown.reason) == ("forced_open", "kim", "they asked us to")
    assert 59 < shown.retry_after <= 60
    assert type(second.outcome(fine).exception) is CircuitOpenError
    sharing.advance(60)
    assert second.outcome(fine).exception is None
    second.disable(by="kim", reason="to see", seconds=None)
    call(first, *[failing] * 5)
    assert first.state == "disabled"
    first.reset(by="lee", reason="seen")
    assert second.state == "closed"
    named = [(each.after, each.by) for each in listener.of(CircuitChanged)]
    assert named == [
        ("forced_open", "kim"),
        ("closed", None),
        ("disabled", "kim"),
        ("closed", "lee"),
    ]


def test_permanent_manual_state_has_no_end_in_the_store(sharing):
    first = sharing.breaker()
    assert first.state == "closed"
    assert sharing.client.ttl(sharing.name()) > 0
    first.force_open(by="kim", reason="permanently")
    assert sharing.client.ttl(sharing.name()) == -1
    first.reset()
    assert sharing.client.ttl(sharing.name()) > 0


@pytest.fixture
def counted(sharing):
    """A breaker whose requests to the server can be counted."""
    with sharing.counted() as made:
        yield made


def test_success_in_a_quiet_window_takes_one_round_trip(sharing, counted):
    proxy, store = counted
    breaker = sharing.breaker(store=store, window=Calls(50))
    call(breaker, fine, fine)
    before = proxy.requests
    call(breaker, *[fine] * 20)
    assert proxy.requests - before == 20
    breaker.close()
    assert int(sharing.fields()["total"]) == 22


def test_failure_takes_two_round_trips_and_an_opening_one_three(sharing, counted):
    proxy, store = counted
    breaker = sharing.breaker(store=store)
    call(breaker, failing)
    before = proxy.requests
    call(breaker, failing)
    assert proxy.requests - before == 2
    call(breaker, failing)
    assert proxy.requests - before == 5
    call(breaker, fine)
    assert proxy.requests - before == 6


def test_threads_that_come_and_go_in_half_open_are_never_more_than_may_be(sharing, switching):
    first, second = half_open(sharing, required_successes=10**9)
    most, admitted = come_and_go([first, second] * 4, 30)
    assert most <= 3
    assert (first.snapshot().successes, first.snapshot().probes) == (admitted, 0)
    assert first.snapshot().rejected + second.snapshot().rejected == 240 - admitted


def test_calls_of_many_threads_are_counted_exactly_once(sharing, switching):
    breaker = sharing.breaker(window=Calls(10**6), minimum_calls=10**6)

    def work():
        call(breaker, *[fine, fine, failing] * 20)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work) for _ in range(8)]:
            future.result(JOIN_TIMEOUT)
    shown = breaker.snapshot()
    assert (shown.calls, shown.failures, shown.late) == (480, 160, 0)


def test_unreferenced_breaker_is_collected(sharing):
    breaker = sharing.breaker()
    sharing.made.remove(breaker)
    call(breaker, fine, failing)
    gone = weakref.ref(breaker)
    del breaker
    assert gone() is None


def test_late_failure_keeps_the_buffered_results(sharing):
    breaker = sharing.breaker(window=Calls(50))
    late = breaker.permit()
    assert late.acquire() is None
    breaker.reset()
    call(breaker, fine, fine)
    late.failure()
    assert (breaker.snapshot().calls, breaker.snapshot().late) == (2, 1)
