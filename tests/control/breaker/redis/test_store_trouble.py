"""Calls while the store is unavailable, hangs, or holds a record that is not a circuit."""

import os
import signal
import threading

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
from retrytemplate.control.breaker.redis.strict import StrictRedisBackend
from retrytemplate.testing import ScriptedRandom, VirtualClock
from tests.control.breaker.redis.shared import Down, Recorded, failing, fine
from tests.support import valkey
from tests.support.polling import wait_until
from tests.support.postgres import free_port
from tests.support.proxy import Proxy

MODES = ("strict", "cached")
modes = pytest.mark.parametrize("mode", MODES)


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
def test_each_process_decides_alone_without_the_store(mode):
    listener = Recorded()
    breaker = made(away(mode=mode), listeners=[listener])
    for _ in range(3):
        with pytest.raises(Down):
            breaker.call(failing)
    with pytest.raises(CircuitOpenError, match="for 30 more seconds"):
        breaker.call(fine)
    breaker.clock.advance(30)
    call(breaker, fine, fine, fine)
    assert breaker.state == "closed"
    (lost,) = listener.of(CircuitStoreLost)
    assert (lost.name, type(lost.error)) == ("billing", CircuitStoreError)
    changes = [event.after for event in listener.of(CircuitChanged)]
    assert changes == ["open", "half_open", "closed"]


@modes
def test_unavailable_store_rejects_calls_with_on_store_error_raise(mode):
    breaker = made(away(mode=mode, on_store_error="raise"))
    called = []
    for _ in range(2):
        with pytest.raises(CircuitStoreError, match="call of 'billing' failed in the store of the"):
            breaker.call(called.append, 1)
    with pytest.raises(CircuitStoreError):
        breaker.snapshot()
    assert not called


def test_manual_change_without_the_store_is_an_error():
    breaker = made(away())
    with pytest.raises(CircuitStoreError):
        breaker.force_open(by="kim", reason="they asked us to")
    with pytest.raises(CircuitStoreError):
        breaker.reset()


@modes
@pytest.mark.parametrize("on_store_error", ["local", "raise"])
def test_store_lost_during_a_call_does_not_change_its_result(
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


def test_failure_the_store_misses_opens_nothing_with_raise(valkey_binary, tmp_path):
    listener = Recorded()
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        store = RedisCircuitStore(server.url, on_store_error="raise")
        breaker = made(store, window=Consecutive(1), listeners=[listener])

        def goes():
            server.kill()
            raise Down

        with pytest.raises(Down):
            breaker.call(goes)
        assert [type(event) for event in listener.events] == [CircuitStoreLost]
        breaker.close()
        store.close()


@modes
def test_result_from_before_the_store_recovered_is_late(valkey_binary, tmp_path, mode):
    listener = Recorded()
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        store = RedisCircuitStore(server.url, mode=mode, stale_after=0.02, timeout=0.5)
        breaker = made(store, listeners=[listener], window=Consecutive(1))
        server.kill()
        permit = breaker.permit()
        assert permit.acquire() is None
        server.start()
        wait_until(lambda: listener.of(CircuitStoreRecovered))
        permit.failure()
        assert (breaker.state, breaker.snapshot().late) == ("closed", 1)
        assert not listener.of(CircuitChanged)
        breaker.close()
        store.close()


@modes
def test_recovered_store_is_used_again(valkey_binary, tmp_path, mode):
    listener = Recorded()
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        store = RedisCircuitStore(server.url, mode=mode, stale_after=0.02, timeout=5.0)
        breaker = made(store, listeners=[listener], clock=VirtualClock(), window=Calls(10))
        call(breaker, failing, fine)
        breaker.force_open(by="kim", reason="they asked us to")
        server.kill()
        breaker.clock.advance(1)
        assert type(breaker.outcome(fine).exception) is CircuitOpenError, "as was known last"
        wait_until(lambda: listener.of(CircuitStoreLost))
        shown = breaker.snapshot()
        assert (shown.state, shown.by) == ("forced_open", "kim")
        server.start()
        # An answer from before the end of the server may be applied after the first failure.
        wait_until(
            lambda: len(listener.of(CircuitStoreRecovered)) == len(listener.of(CircuitStoreLost))
        )
        breaker.reset()
        assert breaker.outcome(fine).exception is None
        breaker.close()
        store.close()


def test_open_circuit_stays_open_when_the_store_is_lost(valkey_binary, tmp_path):
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
def test_hanging_store_delays_one_call_by_its_timeout(hanging, mode):
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


def test_concurrent_refreshes_of_a_hanging_store_wait_once(hanging):
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
def test_store_that_is_back_during_a_failed_call_raises_nothing_in_local_mode(
    sharing, mode, monkeypatch
):
    store = sharing.store(mode=mode, on_store_error="local", stale_after=3600)
    breaker = sharing.breaker(store=store, window=Calls(5), minimum_calls=5)
    call(breaker, fine)
    spoil_permits(sharing)
    sharing.clock.advance(3600)
    lost = StrictRedisBackend._on_store_lost

    def lost_and_back(self, error):
        lost(self, error)
        self._unavailable_since = None  # by a poll in another thread

    monkeypatch.setattr(StrictRedisBackend, "_on_store_lost", lost_and_back)
    assert breaker.outcome(fine).exception is None
    assert breaker.snapshot().state == "closed"


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


def test_hash_of_another_program_is_left_unchanged(sharing):
    sharing.client.hset(sharing.name(), "mine", "precious")
    breaker = sharing.breaker(store=sharing.store(on_store_error="raise"))
    with pytest.raises(CircuitStoreError, match="is of another version of this library, or of so"):
        breaker.call(fine)
    assert sharing.fields() == {"mine": "precious"}


def test_server_that_lost_its_data_starts_a_new_circuit(sharing):
    first, second = sharing.breaker(), sharing.breaker()
    call(first, failing, failing, failing)
    permit = second.permit()
    assert second.state == "open"
    sharing.clear()
    assert (first.state, second.state) == ("closed", "closed")
    assert permit.acquire() is None
    permit.success()


def test_result_from_before_the_data_loss_is_late(sharing):
    breaker = sharing.breaker(window=Consecutive(1))
    permit = breaker.permit()
    assert permit.acquire() is None
    sharing.clear()
    assert breaker.state == "closed"
    permit.failure()
    assert (breaker.state, breaker.snapshot().late) == ("closed", 1)


@modes
def test_server_that_lost_the_latest_changes_counts_failures_again(sharing, mode):
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
        listener = Recorded()
        first = sharing.breaker(window=Consecutive(3))
        other = sharing.breaker(window=Consecutive(1), listeners=[listener])
        call(first, failing)
        call(other, failing)
        assert (first.state, other.state) == ("closed", "open")
        (lost,) = listener.of(CircuitStoreLost)
        assert "in use by breakers with other rules" in str(lost.error)
        assert first.snapshot().failures == 1

    def test_are_an_error_where_the_store_must_not_be_lost(self, sharing):
        call(sharing.breaker(reset_timeout=30), fine)
        store = sharing.store(on_store_error="raise")
        with pytest.raises(CircuitStoreError, match="in use by breakers with other rules"):
            sharing.breaker(store=store, reset_timeout=31).call(fine)
        assert sharing.breaker(store=store, reset_timeout=30.0).call(fine) == "fine"

    @pytest.mark.parametrize("setting", ["reset_timeout", "slow_call", "reset_growth"])
    def test_equal_numbers_of_other_types_are_the_same_rules(self, sharing, setting):
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

    def test_other_rules_leave_a_forced_state(self, sharing):
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


def test_open_time_without_the_store_has_jitter():
    breaker = made(away(), reset_jitter=0.5, random=ScriptedRandom([0.2] * 9))
    call(breaker, failing, failing, failing)
    assert breaker.snapshot().retry_after == pytest.approx(33)


def test_rejections_without_the_store_are_counted_with_the_rest(valkey_binary, tmp_path):
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        listener = Recorded()
        store = RedisCircuitStore(server.url, stale_after=0.02)
        breaker = made(store, listeners=[listener])
        breaker.force_open(by="kim", reason="they asked us to")
        call(breaker, fine)
        server.kill()
        call(breaker, fine, fine)
        assert breaker.snapshot().rejected == 3
        server.start()
        wait_until(lambda: listener.of(CircuitStoreRecovered))
        call(breaker, fine)
        assert breaker.snapshot().rejected == 4
        breaker.close()
        store.close()
