from datetime import timedelta
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import ExponentialBackoff
from retrytemplate.testing import ScriptedRandom
from tests.backoff.driving import delays

JITTERS = ("full", "equal", "decorrelated", "spring")

seconds = st.floats(0, 1e12)
factors = st.floats(1, 1e6)
caps = st.one_of(seconds, st.just(float("inf")))
draws = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=40)


def exponential(jitter=None, **settings):
    return ExponentialBackoff(
        **{"initial": 1, "multiplier": 2, "maximum": 8} | settings, jitter=jitter
    )


@pytest.mark.statement("S2-31")
def test_delays_grow_by_the_multiplier_up_to_the_maximum():
    backoff = ExponentialBackoff(initial=0.5, multiplier=3, maximum=10)
    assert delays(backoff, 6) == [0.5, 1.5, 4.5, 10, 10, 10]


@pytest.mark.statement("S3-03")
def test_delays_double_until_they_reach_the_cap():
    backoff = ExponentialBackoff(initial=1, maximum=30)
    assert delays(backoff, 7) == [1, 2, 4, 8, 16, 30, 30]


def test_defaults_equal_those_of_the_reference_in_seconds():
    assert ExponentialBackoff() == ExponentialBackoff(0.1, 2.0, 30.0, None)


def test_delays_are_not_truncated_to_milliseconds():
    backoff = ExponentialBackoff(initial=0.001, multiplier=1.5)
    assert delays(backoff, 3) == [0.001, 0.0015, 0.0022500000000000003]


def test_initial_delay_above_maximum_waits_the_maximum():
    assert delays(exponential(initial=100), 3) == [8, 8, 8]


def test_multiplier_of_one_never_grows():
    assert delays(exponential(multiplier=1), 3) == [1, 1, 1]


def test_cap_raised_between_deliveries_lets_delays_continue_to_grow():
    state = 16.0
    assert exponential().next(state, ValueError(), None) == (8, 16.0)
    assert exponential(maximum=100).next(state, ValueError(), None) == (16, 32.0)
    assert exponential().next(8.0, ValueError(), None) == (8, 16.0)


@pytest.mark.parametrize("jitter", [None, *JITTERS])
def test_huge_factors_do_not_overflow(jitter):
    endless = ExponentialBackoff(1e300, 1e300, float("inf"), jitter)
    assert all(0 <= delay < float("inf") for delay in delays(endless, 9))
    capped = ExponentialBackoff(1e300, 1e300, 30, jitter)
    assert all(0 <= delay <= 30 for delay in delays(capped, 9))


@pytest.mark.parametrize("jitter", [None, *JITTERS])
def test_maximum_of_zero_never_waits(jitter):
    assert exponential(jitter, initial=0).never_waits
    assert exponential(jitter, maximum=0).never_waits
    assert delays(exponential(jitter, initial=0), 3) == [0, 0, 0]
    assert delays(exponential(jitter, maximum=0), 3) == [0, 0, 0]
    assert not exponential(jitter).never_waits
    assert not exponential(jitter, initial=lambda: 0).never_waits


@pytest.mark.statement("S3-02")
def test_full_jitter_draws_from_zero_to_the_capped_delay():
    backoff = ExponentialBackoff(initial=0.2, maximum=30, jitter="full")
    for attempt, delay in enumerate(delays(backoff, 12, ScriptedRandom([0.3], cycle=True))):
        assert delay == pytest.approx(0.3 * min(30, 0.2 * 2**attempt))


def test_equal_jitter_draws_from_half_the_capped_delay():
    assert delays(exponential("equal"), 5, ScriptedRandom([0.5] * 5)) == [0.75, 1.5, 3, 6, 6]
    assert delays(exponential("equal"), 5, ScriptedRandom([0] * 5)) == [0.5, 1, 2, 4, 4]


def test_spring_jitter_draws_below_the_capped_next_step():
    assert delays(exponential("spring"), 5, ScriptedRandom([0] * 5)) == [1, 2, 4, 4, 4]
    assert delays(exponential("spring"), 5, ScriptedRandom([0.5] * 5)) == [1.5, 3, 6, 6, 6]


def test_decorrelated_jitter_draws_up_to_three_times_the_previous_delay():
    backoff = exponential("decorrelated", maximum=100)
    assert delays(backoff, 4, ScriptedRandom([0.5] * 4)) == [2, 3.5, 5.75, 9.125]
    assert delays(backoff, 3, ScriptedRandom([0.0] * 3)) == [1, 1, 1]


def test_decorrelated_jitter_with_low_cap_starts_at_a_third_of_the_cap():
    backoff = exponential("decorrelated", initial=50, maximum=9)
    assert delays(backoff, 3, ScriptedRandom([0.0, 0.5, 0.0])) == [3, 6, 3]


@pytest.mark.statement("S0-42")
@given(seconds, factors, caps, st.sampled_from([None, *JITTERS]), draws)
def test_delay_is_never_negative_or_above_the_cap(initial, multiplier, cap, jitter, drawn):
    backoff = ExponentialBackoff(initial, multiplier, cap, jitter)
    for delay in delays(backoff, len(drawn), ScriptedRandom(drawn)):
        assert 0 <= delay <= cap
        assert delay < float("inf")


@pytest.mark.statement("S0-42")
@given(st.floats(1e-3, 1e6), st.floats(1.1, 1e3), st.floats(1e-3, 1e6), st.sampled_from(JITTERS))
def test_delays_at_the_cap_still_differ(initial, multiplier, cap, jitter):
    """There are as many different delays as draws, long after the cap is reached."""
    backoff = ExponentialBackoff(initial, multiplier, cap, jitter)
    state = backoff.start()
    for _ in range(250):
        _, state = backoff.next(state, ValueError(), ScriptedRandom([0.9]))
    drawn = [number / 64 for number in range(64)]
    drawn_delays = {backoff.next(state, ValueError(), ScriptedRandom([each]))[0] for each in drawn}
    assert len(drawn_delays) == len(drawn)
    assert max(drawn_delays) <= cap


@given(st.floats(1e-3, 1e3), factors, st.floats(1e-3, 1e6), draws)
def test_each_jitter_stays_in_its_range(initial, multiplier, cap, drawn):
    def jittered(jitter):
        backoff = ExponentialBackoff(initial, multiplier, cap, jitter)
        return delays(backoff, len(drawn), ScriptedRandom(drawn))

    plain = delays(ExponentialBackoff(initial, multiplier, cap), len(drawn))
    assert all(delay <= top for delay, top in zip(jittered("full"), plain, strict=True))
    assert all(top / 2 <= delay <= top for delay, top in zip(jittered("equal"), plain, strict=True))
    for delay, step in zip(jittered("spring"), plain, strict=True):
        high = min(step * multiplier, cap)
        assert high / multiplier * (1 - 1e-9) <= delay <= high
    if initial < cap:
        drawn_delays = [initial, *jittered("decorrelated")]
        assert all(initial <= new <= min(cap, 3 * old) for old, new in pairwise(drawn_delays))


@pytest.mark.statement("S0-41")
@pytest.mark.statement("S4-101")
@pytest.mark.parametrize("jitter", JITTERS)
@pytest.mark.parametrize("retry", [1, 2, 20])
def test_jitter_spreads_clients_that_failed_together(jitter, retry):
    backoff = ExponentialBackoff(0.2, 2.0, 2.0, jitter)
    clients = [delays(backoff, retry, Random(seed))[-1] for seed in range(200)]
    assert len(set(clients)) == 200
    # Of ten equal parts of the time none has more than half of all clients.
    width = max(clients) / 10
    crowds = [sum(part * width < c <= (part + 1) * width for c in clients) for part in range(10)]
    assert max(crowds) < 100


@given(factors, caps, draws)
def test_delays_without_jitter_never_shrink(multiplier, cap, drawn):
    plain = delays(ExponentialBackoff(0.1, multiplier, cap), len(drawn))
    assert plain == sorted(plain)


@given(seconds, factors, seconds, st.sampled_from([None, *JITTERS]), st.integers(0, 20))
def test_two_executions_of_one_backoff_are_independent(initial, multiplier, cap, jitter, before):
    backoff = ExponentialBackoff(initial, multiplier, cap, jitter)
    delays(backoff, before, Random(9))
    assert delays(backoff, 5, Random(1)) == delays(backoff, 5, Random(1))


def test_numbers_may_be_timedeltas_or_callables():
    assert ExponentialBackoff(timedelta(seconds=1), 2, timedelta(minutes=1)) == (
        ExponentialBackoff(1, 2, 60)
    )
    backoff = ExponentialBackoff(lambda: 1, lambda: 3, lambda: timedelta(seconds=5), "full")
    assert backoff.dynamic
    assert backoff.resolved() == ExponentialBackoff(1, 3, 5, "full")
    assert delays(backoff, 3, ScriptedRandom([0.5] * 3)) == [0.5, 1.5, 2.5]
    steady = ExponentialBackoff()
    assert steady.resolved() is steady


def test_number_callable_is_called_once_per_execution():
    growing = iter([2, 3])
    backoff = ExponentialBackoff(1, growing.__next__, 1000)
    assert delays(backoff.resolved(), 4) == [1, 2, 4, 8]
    assert delays(backoff.resolved(), 4) == [1, 3, 9, 27]


@pytest.mark.parametrize("field", ["initial", "multiplier", "maximum"])
def test_function_with_parameters_is_rejected_where_a_number_is_read(field):
    with pytest.raises(TypeError, match=f"^{field} must be a number, or a function without par"):
        ExponentialBackoff(**{field: lambda failures, error: 1.0})


@pytest.mark.statement("S0-66")
@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("initial", -1, "a number of seconds or a datetime.timedelta >= 0 and finite"),
        ("initial", float("inf"), "a number of seconds or a datetime.timedelta >= 0 and finite"),
        ("multiplier", 0.99, "a number >= 1 and finite"),
        ("multiplier", float("inf"), "a number >= 1 and finite"),
        ("multiplier", float("nan"), "a number >= 1 and finite"),
        ("multiplier", 10**400, "a number >= 1 and finite"),
        ("maximum", -1, "a number of seconds or a datetime.timedelta >= 0"),
    ],
)
def test_number_out_of_range_is_rejected(field, value, allowed):
    with pytest.raises(ValueError, match=f"{field} must be {allowed}, got "):
        ExponentialBackoff(**{field: value})
    with pytest.raises(ValueError, match=f"{field} must be {allowed}, got "):
        ExponentialBackoff(**{field: lambda: value}).resolved()


@pytest.mark.parametrize("field", ["initial", "multiplier", "maximum"])
@pytest.mark.parametrize("value", ["1", None, True])
def test_number_of_wrong_type_is_rejected(field, value):
    with pytest.raises(TypeError, match=f"{field} must be a number"):
        ExponentialBackoff(**{field: value})


@pytest.mark.parametrize("value", ["Full", "none", 0, True, ["full"]])
def test_unknown_jitter_is_rejected(value):
    message = "jitter must be one of None, 'full', 'equal', 'decorrelated', 'spring', got "
    with pytest.raises(ValueError, match=message):
        ExponentialBackoff(jitter=value)


def test_spring_jitter_with_multiplier_of_one_is_constant():
    assert delays(exponential("spring", multiplier=1), 3, Random(1)) == [1, 1, 1]
