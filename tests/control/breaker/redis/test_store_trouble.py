"""Calls while the store is unavailable, hangs, or holds a record that is not a circuit."""

import os
import signal
import threading
import time

import pytest

from retrytemplate import CircuitOpenError, CircuitStoreError
from retrytemplate.control import (
    Calls,
    CircuitBreaker,
    CircuitChanged,
    CircuitStoreLost,
    CircuitStoreRecovered,
    Consecutive,
    RedisCircuitStore,
)
from retrytemplate.testing import ScriptedRandom, VirtualClock
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.control.breaker.redis.shared import Down, Recorded, failing, fine
from tests.support import valkey
from tests.support.postgres import free_port
from tests.support.proxy import Proxy

MODES = ("strict", "cached")
modes = pytest.mark.parametrize("mode", MODES)


def until(condition):
    end = time.monotonic() + JOIN_TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def call(breaker, *functions):
    return [breaker.outcome(function) for function in functions]


def away(**settings):
    return RedisCircuitStore(f"redis://127.0.0.1:{free_port()}", timeout=0.5, **settings)


breakers = []


def made(store, **settings):
    usual = {"window": Consecutive(3), "reset_jitter": 0.0, "clock": VirtualClock()}
    breakers.append(CircuitBreaker("billing", store=store, **usual | settings))
    return breakers[-1]


@pytest.fixture(autouse=True)
def none_is_left():
    yield
    while breakers:
        breakers.pop().close()


@modes
def test_without_the_store_each_process_judges_for_itself(mode):
    told = Recorded()
    breaker = made(away(mode=mode), listeners=[told])
    for _ in range(3):
        with pytest.raises(Down):
            breaker.call(failing)
    with pytest.raises(CircuitOpenError, match="for 30 more seconds"):
        breaker.call(fine)
    breaker.clock.advance(30)
    call(breaker, fine, fine, fine)
    assert breaker.state == "closed"
    (lost,) = told.of(CircuitStoreLost)
    assert (lost.name, type(lost.error)) == ("billing", CircuitStoreError)
    changes = [event.after for event in told.of(CircuitChanged)]
    assert changes == ["open", "half_open", "closed"]


@modes
def test_without_the_store_no_call_is_made_where_that_is_wanted(mode):
    breaker = made(away(mode=mode, on_store_error="raise"))
    called = []
    for _ in range(2):
        with pytest.raises(CircuitStoreError, match="call of 'billing' failed in the store of the"):
            breaker.call(called.append, 1)
    with pytest.raises(CircuitStoreError):
        breaker.snapshot()
    assert not called


def test_what_is_done_by_hand_without_the_store_is_an_error():
    breaker = made(away())
    with pytest.raises(CircuitStoreError):
        breaker.force_open(by="kim", reason="they asked us to")
    with pytest.raises(CircuitStoreError):
        breaker.reset()


@modes
@pytest.mark.parametrize("on_store_error", ["local", "raise"])
def test_a_store_that_goes_during_a_call_does_not_change_how_it_ends(
    valkey_binary, tmp_path, mode, on_store_error
):
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        store = RedisCircuitStore(server.url, mode=mode, on_store_error=on_store_error)
        breaker = made(store)
        assert breaker.call(fine) == "fine"

        def goes():
            server.kill()
            raise Down

        with pytest.raises(Down):
            breaker.call(goes)
        store.close()


def test_a_failure_that_the_store_does_not_hear_of_opens_nothing_where_it_must_not_be_lost(
    valkey_binary, tmp_path
):
    told = Recorded()
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        store = RedisCircuitStore(server.url, on_store_error="raise")
        breaker = made(store, window=Consecutive(1), listeners=[told])

        def goes():
            server.kill()
            raise Down

        with pytest.raises(Down):
            breaker.call(goes)
        assert [type(event) for event in told.events] == [CircuitStoreLost]
        breaker.close()
        store.close()


@modes
def test_a_result_from_while_the_store_was_away_is_late_when_it_is_back(
    valkey_binary, tmp_path, mode
):
    told = Recorded()
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        store = RedisCircuitStore(server.url, mode=mode, stale_after=0.02, timeout=0.5)
        breaker = made(store, listeners=[told], window=Consecutive(1))
        server.kill()
        permit = breaker.permit()
        assert permit.acquire() is None
        server.start()
        until(lambda: told.of(CircuitStoreRecovered))
        permit.failure()
        assert (breaker.state, breaker.snapshot().late) == ("closed", 1)
        assert not told.of(CircuitChanged)
        breaker.close()
        store.close()


@modes
def test_when_the_store_is_back_it_is_used_again(valkey_binary, tmp_path, mode):
    told = Recorded()
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        store = RedisCircuitStore(server.url, mode=mode, stale_after=0.02, timeout=0.5)
        breaker = made(store, listeners=[told], clock=VirtualClock(), window=Calls(10))
        call(breaker, failing, fine)
        breaker.force_open(by="kim", reason="they asked us to")
        server.kill()
        breaker.clock.advance(1)
        assert type(breaker.outcome(fine).exception) is CircuitOpenError, "as was known last"
        until(lambda: told.of(CircuitStoreLost))
        shown = breaker.snapshot()
        assert (shown.state, shown.by) == ("forced_open", "kim")
        server.start()
        until(lambda: told.of(CircuitStoreRecovered))
        assert len(told.of(CircuitStoreLost)) == 1
        breaker.reset()
        assert breaker.outcome(fine).exception is None
        breaker.close()
        store.close()


def test_an_open_circuit_is_open_for_the_rest_of_its_time_when_the_store_goes(
    valkey_binary, tmp_path
):
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        store = RedisCircuitStore(server.url, stale_after=3600)
        breaker = made(store)
        call(breaker, failing, failing, failing)
        server.kill()
        breaker.clock.advance(29)
        assert type(breaker.outcome(fine).exception) is CircuitOpenError
        breaker.clock.advance(1)
        assert breaker.outcome(fine).exception is None
        breaker.close()


@pytest.fixture
def hanging(valkey_binary, tmp_path):
    """A server that can be made to hang, and what counts the requests to it."""
    with (
        valkey.started(valkey_binary, tmp_path / "server") as server,
        Proxy(server.port) as proxy,
    ):
        yield server.process.pid, proxy
        os.kill(server.process.pid, signal.SIGCONT)


@modes
def test_a_store_that_hangs_costs_one_call_its_timeout(hanging, mode):
    pid, proxy = hanging
    url = f"redis://127.0.0.1:{proxy.port}"
    store = RedisCircuitStore(url, mode=mode, timeout=0.2, stale_after=3600)
    breaker = made(store, window=Calls(5000))
    assert breaker.outcome(fine).exception is None
    breaker.clock.advance(3600)
    os.kill(pid, signal.SIGSTOP)
    before = proxy.requests
    call(breaker, *[fine] * 1000)
    assert breaker.snapshot().calls == 1000
    assert proxy.requests - before == 1
    os.kill(pid, signal.SIGCONT)
    breaker.close()
    store.close()


def test_those_who_look_when_the_store_hangs_do_not_wait_one_after_the_other(hanging):
    pid, proxy = hanging
    url = f"redis://127.0.0.1:{proxy.port}"
    breaker = made(RedisCircuitStore(url, mode="cached", timeout=0.2, stale_after=3600))
    assert breaker.outcome(fine).exception is None
    os.kill(pid, signal.SIGSTOP)
    before = proxy.requests
    threads = [threading.Thread(target=breaker.snapshot) for _ in range(5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert proxy.requests - before == 1
    os.kill(pid, signal.SIGCONT)
    breaker.close()
    breaker.store.close()


def test_running_calls_do_not_all_wait_for_a_hanging_store(hanging):
    pid, proxy = hanging
    store = RedisCircuitStore(f"redis://127.0.0.1:{proxy.port}", timeout=0.2, stale_after=3600)
    breaker = made(store, window=Calls(50), minimum_calls=50)
    permits = [breaker.permit() for _ in range(30)]
    assert [permit.acquire() for permit in permits] == [None] * 30
    os.kill(pid, signal.SIGSTOP)
    before = proxy.requests
    for permit in permits:
        permit.failure()
    assert breaker.snapshot().failures == 30
    assert proxy.requests - before == 1
    os.kill(pid, signal.SIGCONT)
    breaker.close()
    store.close()


def spoil_kind(sharing):
    sharing.client.set(sharing.name(), "no circuit")


def spoil_window(sharing):
    sharing.client.set(sharing.name(of=":window"), "no window")


def spoil_permits(sharing):
    sharing.client.set(sharing.name(of=":permits"), "no permits")
    sharing.client.hset(sharing.name(), mapping={"state": "half_open", "limited": "1"})


RUBBISH = {
    "another kind of key": spoil_kind,
    "another window": spoil_window,
    "other permits": spoil_permits,
} | {
    f"{field}={value!r}": (
        lambda sharing, field=field, value=value: sharing.client.hset(sharing.name(), field, value)
    )
    for field, value in [
        ("format", "2"),
        ("state", "ajar"),
        ("until", "soon"),
        ("generation", "x"),
        ("touched", "x"),
        ("opened", "often"),
        ("opened", "-" + "9" * 400),
        ("since", "9" * 400),
        ("note", "{"),
        ("note", '{"by": 1}'),
        ("note", "[1, 2]"),
        ("note", "[" * 5000),
        ("total", "many"),
    ]
}


@modes
@pytest.mark.parametrize("spoil", list(RUBBISH))
@pytest.mark.parametrize("on_store_error", ["local", "raise"])
def test_record_that_is_not_a_circuit_does_not_break_calls(sharing, mode, spoil, on_store_error):
    store = sharing.store(mode=mode, on_store_error=on_store_error, stale_after=3600)
    breaker = sharing.breaker(store=store, window=Calls(5), minimum_calls=5)
    call(breaker, fine, failing)
    breaker.snapshot()
    RUBBISH[spoil](sharing)
    sharing.clock.advance(3600)
    for function in (failing, fine, failing):
        error = breaker.outcome(function).exception
        allowed = (Down, CircuitStoreError) if on_store_error == "raise" else (Down,)
        assert error is None or isinstance(error, allowed)
    sharing.clear()
    if on_store_error == "raise":
        assert breaker.outcome(fine).exception is None


def test_a_hash_of_something_else_is_left_as_it_is(sharing):
    sharing.client.hset(sharing.name(), "mine", "precious")
    breaker = sharing.breaker(store=sharing.store(on_store_error="raise"))
    with pytest.raises(CircuitStoreError, match="is of another version of this library, or of so"):
        breaker.call(fine)
    assert sharing.fields() == {"mine": "precious"}


def test_a_server_that_has_forgotten_everything_has_a_new_circuit(sharing):
    first, second = sharing.breaker(), sharing.breaker()
    call(first, failing, failing, failing)
    permit = second.permit()
    assert second.state == "open"
    sharing.clear()
    assert (first.state, second.state) == ("closed", "closed")
    assert permit.acquire() is None
    permit.success()


def test_a_result_from_before_the_server_forgot_is_late(sharing):
    breaker = sharing.breaker(window=Consecutive(1))
    permit = breaker.permit()
    assert permit.acquire() is None
    sharing.clear()
    assert breaker.state == "closed"
    permit.failure()
    assert (breaker.state, breaker.snapshot().late) == ("closed", 1)


@modes
def test_a_server_that_has_forgotten_the_latest_changes_counts_failures_again(sharing, mode):
    breaker = sharing.breaker(store=sharing.store(mode=mode, stale_after=3600))
    call(breaker, fine)
    before = sharing.client.dump(sharing.name())
    breaker.force_open(by="kim", reason="they asked us to")
    breaker.reset()
    sharing.client.restore(sharing.name(), 0, before, replace=True)
    sharing.clock.advance(3600)
    call(breaker, failing, failing, failing)
    shown = breaker.snapshot()
    assert (shown.state, shown.late) == ("open", 0)


class TestOtherRules:
    def test_circuits_with_other_rules_are_not_mixed_and_reported(self, sharing):
        told = Recorded()
        first = sharing.breaker(window=Consecutive(3))
        other = sharing.breaker(window=Consecutive(1), listeners=[told])
        call(first, failing)
        call(other, failing)
        assert (first.state, other.state) == ("closed", "open")
        (lost,) = told.of(CircuitStoreLost)
        assert "in use by breakers with other rules" in str(lost.error)
        assert first.snapshot().failures == 1

    def test_are_an_error_where_the_store_must_not_be_lost(self, sharing):
        call(sharing.breaker(reset_timeout=30), fine)
        store = sharing.store(on_store_error="raise")
        with pytest.raises(CircuitStoreError, match="in use by breakers with other rules"):
            sharing.breaker(store=store, reset_timeout=31).call(fine)
        assert sharing.breaker(store=store, reset_timeout=30.0).call(fine) == "fine"

    @pytest.mark.parametrize("setting", ["reset_timeout", "slow_call", "reset_growth"])
    def test_are_none_where_a_number_is_only_written_in_another_way(self, sharing, setting):
        store = sharing.store(on_store_error="raise")
        for value in (2, 2.0):
            assert sharing.breaker(store=store, **{setting: value}).call(fine) == "fine"

    def test_may_have_numbers_of_any_size(self, sharing):
        most = 10**400
        breaker = sharing.breaker(half_open_calls=most, required_successes=most)
        call(breaker, failing, failing, failing)
        assert breaker.state == "open"

    def test_take_over_a_circuit_that_is_unused(self, sharing):
        first = sharing.breaker(window=Consecutive(3))
        call(first, failing, failing)
        sharing.advance(61)
        store = sharing.store(on_store_error="raise")
        other = sharing.breaker(store=store, window=Consecutive(2))
        call(other, failing)
        assert (other.state, other.snapshot().failures) == ("closed", 1)
        call(other, failing)
        assert other.state == "open"

    def test_leave_what_was_done_by_hand(self, sharing):
        first = sharing.breaker(window=Consecutive(3))
        first.force_open(by="kim", reason="they asked us to")
        sharing.advance(61)
        other = sharing.breaker(window=Consecutive(2))
        assert (other.state, other.snapshot().by) == ("forced_open", "kim")

    def test_do_not_keep_anybody_from_forcing_it_open(self, sharing):
        first = sharing.breaker(window=Consecutive(3))
        call(first, fine)
        sharing.breaker(window=Consecutive(2)).force_open(by="kim", reason="they asked us to")
        assert type(first.outcome(fine).exception) is CircuitOpenError


def test_an_open_time_without_the_store_has_its_jitter():
    breaker = made(away(), reset_jitter=0.5, random=ScriptedRandom([0.2] * 9))
    call(breaker, failing, failing, failing)
    assert breaker.snapshot().retry_after == pytest.approx(33)


def test_rejections_without_the_store_are_counted_with_the_rest(valkey_binary, tmp_path):
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        told = Recorded()
        store = RedisCircuitStore(server.url, stale_after=0.02)
        breaker = made(store, listeners=[told])
        breaker.force_open(by="kim", reason="they asked us to")
        call(breaker, fine)
        server.kill()
        call(breaker, fine, fine)
        assert breaker.snapshot().rejected == 3
        server.start()
        until(lambda: told.of(CircuitStoreRecovered))
        call(breaker, fine)
        assert breaker.snapshot().rejected == 4
        breaker.close()
        store.close()
