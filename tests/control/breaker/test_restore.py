"""A breaker that continues the state of another one."""

import pytest

from retrytemplate import MisuseError
from retrytemplate.control import (
    Calls,
    CircuitBreaker,
    Consecutive,
    ControlListener,
    RedisCircuitStore,
    Seconds,
)
from retrytemplate.testing import VirtualClock


class Keeps(ControlListener):
    def __init__(self):
        self.changes = []

    def on_event(self, event):
        self.changes.append((event.before, event.after, event.by))


@pytest.fixture
def clock():
    return VirtualClock()


def breaker(clock, window=None, **settings):
    settings = {"minimum_calls": 2, "reset_jitter": 0.0, "reset_timeout": 30.0} | settings
    if window is None:
        window = Calls(4)
    return CircuitBreaker("billing", window=window, clock=clock, **settings)


def fail(made, times=1):
    for _ in range(times):
        made.outcome(int, "x")


def test_open_state_is_continued_with_its_end(clock):
    old, new = breaker(clock), breaker(clock, reset_timeout=5.0)
    fail(old, 2)
    clock.advance(10.0)
    new.restore_state_from(old)
    assert (new.state, new.snapshot().retry_after) == ("open", 20.0)
    clock.advance(20.0)
    assert new.state == "half_open"
    assert old.state == "half_open"


def test_end_that_has_passed_is_applied(clock):
    old, new = breaker(clock), breaker(clock)
    fail(old, 2)
    clock.advance(30.0)
    new.restore_state_from(old)
    assert new.state == "half_open"
    assert [new.call(int, "17") for _ in range(3)] == [17] * 3
    assert new.state == "closed"


def test_forced_state_keeps_actor_reason_and_end(clock):
    old, new = breaker(clock), breaker(clock)
    old.force_open(by="kim", reason="they asked us to", seconds=60)
    new.restore_state_from(old)
    shown = new.snapshot()
    assert (shown.state, shown.by, shown.reason) == ("forced_open", "kim", "they asked us to")
    clock.advance(60.0)
    assert new.state == "closed"


def test_permanently_forced_state_stays(clock):
    old, new = breaker(clock), breaker(clock)
    old.disable(by="kim", reason="measured elsewhere")
    new.restore_state_from(old)
    clock.advance(1e9)
    assert new.state == "disabled"


@pytest.mark.parametrize("window", [Calls(4), Seconds(10), Consecutive(3)], ids=repr)
def test_equal_window_is_taken_over(clock, window):
    rates = {} if isinstance(window, Consecutive) else {"minimum_calls": 3}
    settings = {"minimum_calls": 10} | rates
    old, new = breaker(clock, window, **settings), breaker(clock, window, **settings)
    clock.advance(1.0)
    fail(old, 2)
    new.restore_state_from(old)
    assert new.snapshot().failures == 2
    fail(new)
    assert (new.state, old.state) == ("open", "closed")
    assert old.snapshot().failures == 2


def test_calls_of_a_window_that_was_taken_over_leave_it(clock):
    old, new = (breaker(clock, Seconds(10), minimum_calls=10) for _ in range(2))
    old.call(int, "17")
    fail(old)
    new.restore_state_from(old)
    assert new.snapshot().calls == 2
    clock.advance(11.0)
    assert new.snapshot().calls == 0


def test_successes_of_both_are_counted_apart(clock):
    old, new = breaker(clock), breaker(clock)
    old.call(int, "17")
    new.restore_state_from(old)
    for _ in range(2):
        new.call(int, "17")
    assert (old.snapshot().calls, new.snapshot().calls) == (1, 3)


@pytest.mark.parametrize("window", [Calls(5), Seconds(4), Consecutive(4)], ids=repr)
def test_other_window_starts_empty(clock, window):
    settings = {"minimum_calls": 10} if isinstance(window, Consecutive) else {}
    old, new = breaker(clock), breaker(clock, window, **settings)
    fail(old)
    new.restore_state_from(old)
    assert (new.state, new.snapshot().calls) == ("closed", 0)


def test_window_of_another_clock_starts_empty(clock):
    old, new = breaker(clock), breaker(VirtualClock())
    fail(old)
    new.restore_state_from(old)
    assert new.snapshot().calls == 0


def test_growth_of_the_open_time_continues(clock):
    settings = {"reset_growth": 2.0, "half_open_calls": 1}
    old, new = breaker(clock, **settings), breaker(clock, **settings)
    fail(old, 2)
    new.restore_state_from(old)
    clock.advance(30.0)
    fail(new)
    assert new.snapshot().retry_after == 60.0


def test_call_in_progress_is_late(clock):
    old, new = breaker(clock), breaker(clock)
    with new.permit():
        new.restore_state_from(old)
    assert (new.snapshot().late, new.snapshot().calls) == (1, 0)


def test_change_of_state_is_reported_once(clock):
    kept = Keeps()
    old, new = breaker(clock), breaker(clock, listeners=[kept])
    new.restore_state_from(old)
    old.force_open(by="kim", reason="they asked us to")
    new.restore_state_from(old)
    new.restore_state_from(new)
    assert kept.changes == [("closed", "forced_open", "kim")]


def test_wrapped_function_follows_the_restored_state(clock):
    old, new = breaker(clock), breaker(clock)
    read = new.wrap(lambda text: int(text))
    fail(old, 2)
    new.restore_state_from(old)
    assert new.outcome(read, "17").stop_reason == "rejected"


def test_other_object_than_a_breaker_is_rejected(clock):
    with pytest.raises(TypeError, match="other must be a CircuitBreaker"):
        breaker(clock).restore_state_from(object())


def test_breaker_with_a_store_is_rejected(clock):
    store = RedisCircuitStore("redis://localhost:1", timeout=0.1)
    with pytest.raises(MisuseError, match="in the store"):
        breaker(clock).restore_state_from(CircuitBreaker("billing", store=store))
