"""Decisions of a breaker on recorded calls."""

from random import Random

import pytest

from retrytemplate.control import Calls, CircuitBreaker, Consecutive, Seconds
from retrytemplate.control.breaker.replay import RecordedCall, replay


def breaker(window, **settings):
    usual = {"reset_timeout": 10, "reset_jitter": 0, "half_open_calls": 1, "required_successes": 1}
    return CircuitBreaker("billing", window=window, **(usual | settings))


def a_second(failures, until=60):
    """A call per second of 0.1 seconds; the calls of the given seconds fail."""
    return [
        RecordedCall(float(second), 0.1, "failure" if second in failures else "success")
        for second in range(until)
    ]


@pytest.mark.statement("S4-35")
def test_consecutive_window_opens_on_noise_where_a_rate_does_not():
    chance = Random(1)
    noise = [
        (n / 10, 0.05, "failure" if chance.random() < 0.02 else "success") for n in range(9000)
    ]
    nervous, calm = replay(breaker(Consecutive(2)), noise), replay(breaker(Calls(50)), noise)
    assert (nervous.calls, nervous.recorded_failures) == (calm.calls, calm.recorded_failures)
    assert nervous.opened >= 3
    assert nervous.rejected_successes > 0.9 * nervous.rejected > 250
    assert (calm.opened, calm.rejected, calm.failures) == (0, 0, calm.recorded_failures)


def test_replay_reports_open_times_and_rejected_calls():
    seen = replay(breaker(Consecutive(3)), a_second(range(10, 30)))
    # Opens at 12.1, looks at 23 and fails, looks at 34 and closes.
    assert (seen.opened, seen.reopened, seen.seconds) == (1, 1, pytest.approx(34.1 - 12.1))
    assert (seen.calls, seen.recorded_failures, seen.failures) == (60, 20, 4)
    assert (seen.rejected, seen.rejected_failures, seen.rejected_successes) == (20, 16, 4)


def test_circuit_opens_again_after_it_has_closed():
    seen = replay(breaker(Consecutive(1)), a_second([10, 40]))
    assert (seen.opened, seen.reopened, seen.seconds) == (2, 0, pytest.approx(2 * 11))


def test_circuit_open_at_the_end_counts_until_the_end():
    seen = replay(breaker(Consecutive(1)), a_second([50]))
    assert seen.seconds == pytest.approx(59 - 50.1)


def test_calls_count_at_their_end_in_any_order_of_the_recording():
    calls = [(0, 5.0, "failure"), (1, 1.0, "failure"), (2.0, 0.0, "success"), (3, 0.5, "failure")]
    for recording in (calls, calls[::-1]):
        assert replay(breaker(Consecutive(2)), recording).opened == 1  # those that end at 3.5 and 5
        assert replay(breaker(Consecutive(3)), recording).opened == 0  # a success comes between


def test_call_that_begins_when_another_ends_comes_after_it():
    assert replay(breaker(Consecutive(1)), [(0, 1, "failure"), (1, 1, "success")]).rejected == 1


def test_call_in_progress_at_the_opening_is_not_counted():
    calls = [(0, 30.0, "success"), (1, 1.0, "failure"), (13, 20.0, "success"), (14, 1, "success")]
    seen = replay(breaker(Consecutive(1)), calls)
    assert (seen.opened, seen.rejected) == (
        1,
        1,
    )  # the third looks until 33, the fourth may not
    assert seen.seconds == 31.0


def test_replay_counts_slow_and_ignored_calls_as_the_breaker_does():
    slow = [(float(n), 2.0, "success") for n in range(0, 30, 3)]
    assert replay(breaker(Calls(10)), slow).opened == 0
    assert replay(breaker(Calls(10), slow_call=2.0), slow).opened == 1
    for outcome in ("ignored", "cancelled"):
        seen = replay(breaker(Consecutive(1)), [(0.0, 0.1, outcome)])
        assert (seen.calls, seen.opened, seen.recorded_failures) == (1, 0, 0)


def test_times_may_be_those_of_a_calendar_or_below_zero():
    for begin in (1_795_273_756.25, -1000.0):
        calls = [(begin + n, 0.1, "failure" if n < 20 else "success") for n in range(60)]
        seen = replay(breaker(Seconds(10), minimum_calls=5), calls)
        assert (seen.opened, seen.reopened) == (1, 1)


def test_replay_changes_neither_breaker_nor_listeners():
    class Listens:
        def on_event(self, event):
            raise AssertionError

    mine = breaker(Consecutive(1), listeners=[Listens()])
    mine.outcome(int)
    before = mine.snapshot()
    assert replay(mine, a_second([1])).opened == 1
    assert mine.snapshot() == before


def test_replay_without_calls_is_empty():
    seen = replay(breaker(Consecutive(1)), [])
    assert (seen.calls, seen.opened, seen.seconds, seen.failures) == (0, 0, 0.0, 0)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (("0", 1, "success"), "time must be"),
        ((float("inf"), 1, "success"), "time must be"),
        ((float("nan"), 1, "success"), "time must be"),
        ((1e308, 1e308, "success"), r"time must be a number of seconds from -1e\+15 to"),
        ((-1e16, 1, "success"), "time must be"),
        ((0, -1, "success"), "duration must be"),
        ((0, float("inf"), "success"), "duration must be"),
        (
            (0, 1, "ok"),
            "outcome must be 'success' or 'failure' or 'ignored' or 'cancelled', got 'ok'",
        ),
        ((0, 1, []), "outcome must be"),
        ((0, 1), "calls: each must be"),
        ("abc", "calls: each must be"),
    ],
)
def test_wrong_type_of_call_is_rejected(call, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        replay(breaker(Consecutive(1)), [call])


def test_wrong_type_of_breaker_is_rejected():
    with pytest.raises(TypeError, match="breaker must be a CircuitBreaker, got 'calls:50'"):
        replay("calls:50", [])
