"""A circuit that is asked about before each call: what one process sees, all go by."""

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


def test_what_opens_in_one_is_open_in_the_other(sharing):
    first, second = sharing.breaker(), sharing.breaker()
    call(first, failing)
    call(second, failing)
    with pytest.raises(Down):
        first.call(failing)
    with pytest.raises(CircuitOpenError, match="'billing' is open, for 30 more seconds") as raised:
        second.call(fine)
    assert 29 < raised.value.retry_after <= 30


def test_a_new_process_does_not_close_it_and_changes_no_count(sharing):
    """Pain 20: a process that starts resets what the others have counted."""
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


def test_half_open_lets_no_more_in_than_may_be_in_all_processes_together(sharing):
    """Pain 21: half-open lets everybody in, and one success closes it."""
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
def test_what_decides_nothing_gives_its_permit_back(sharing, say):
    first, second = half_open(sharing, half_open_calls=1)
    permit = first.permit()
    assert permit.acquire() is None
    getattr(permit, say)()
    assert sharing.permits() == 0
    assert second.outcome(fine).exception is None


def test_a_result_of_another_time_moves_nothing(sharing):
    told = Recorded()
    first, second = sharing.breaker(listeners=[told]), sharing.breaker()
    slow = first.permit()
    assert slow.acquire() is None
    call(second, failing, failing, failing)
    sharing.advance(30)
    assert second.state == "half_open"
    slow.failure()
    assert second.state == "half_open"
    assert [each.verdict for each in told.of(LateResult)] == ["failure"]


@pytest.mark.statement("S4-41")
def test_every_process_notifies_its_listeners_of_a_change_once(sharing):
    heard = [Recorded(), Recorded()]
    first, second = (sharing.breaker(listeners=[each]) for each in heard)
    call(first, failing, failing, failing)
    call(second, fine, fine)
    call(first, fine)
    for each in heard:
        changes = [(event.before, event.after) for event in each.of(CircuitChanged)]
        assert changes == [("closed", "open")]


def test_what_is_done_by_hand_holds_for_all(sharing):
    told = Recorded()
    first, second = sharing.breaker(), sharing.breaker(listeners=[told])
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
    named = [(each.after, each.by) for each in told.of(CircuitChanged)]
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


def test_a_success_in_a_quiet_window_costs_one_round_trip(sharing, counted):
    proxy, store = counted
    breaker = sharing.breaker(store=store, window=Calls(50))
    call(breaker, fine, fine)
    before = proxy.requests
    call(breaker, *[fine] * 20)
    assert proxy.requests - before == 20
    breaker.close()
    assert int(sharing.fields()["total"]) == 22


def test_a_failure_costs_two_and_one_that_opens_it_three(sharing, counted):
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


def test_no_call_of_many_threads_is_lost_or_counted_twice(sharing, switching):
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


def test_a_late_failure_does_not_take_with_it_what_was_kept_back_since(sharing):
    breaker = sharing.breaker(window=Calls(50))
    late = breaker.permit()
    assert late.acquire() is None
    breaker.reset()
    call(breaker, fine, fine)
    late.failure()
    assert (breaker.snapshot().calls, breaker.snapshot().late) == (2, 1)
