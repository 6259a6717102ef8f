"""A learned delay."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate.control import Quantile

seconds = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=60)


def of(calls, q=0.95, **settings):
    made = Quantile(q, **{"minimum": 1, "floor": 0.0} | settings)
    for each in calls:
        made.record(each)
    return made


def test_five_calls_of_a_hundred_take_longer():
    assert of(range(1, 101)).value() == 95


@given(seconds, st.floats(0.01, 0.99))
def test_quantile_is_the_least_value_that_covers_the_share(calls, q):
    value = of(calls, q).value()
    within = sum(each <= value for each in calls)
    below = sum(each < value for each in calls)
    assert below < ceil(q * len(calls)) <= within


@given(seconds, st.integers(1, 20))
def test_quantile_uses_the_latest_calls_only(calls, window):
    assert of(calls, window=window).value() == of(calls[-window:]).value()


def test_delay_is_the_initial_one_until_enough_calls_are_known():
    assert of([5.0] * 19, minimum=20).value() is None
    assert of([5.0] * 19, minimum=20, initial=timedelta(seconds=2)).value() == 2.0
    assert of([5.0] * 20, minimum=20, initial=2.0).value() == 5.0


def test_calls_that_take_no_time_are_not_all_made_twice():
    assert of([0.0] * 20, floor=0.001).value() == 0.001
    assert Quantile(0.95).floor == 0.001


def test_concurrent_records_keep_the_window_consistent():
    shared, start = Quantile(0.5, window=50), threading.Barrier(4)

    def record(number):
        start.wait()
        for each in range(500):
            shared.record(float(each * number % 97))
            shared.value()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(record, range(4)))
    assert len(shared._last) == 50
    assert sorted(shared._last) == shared._sorted


@pytest.mark.parametrize(
    ("given_", "problem"),
    [
        ({"q": 0}, "q must be a number between 0 and 1, got 0"),
        ({"q": 1.0}, "q must be a number between 0 and 1, got 1.0"),
        ({"q": 95}, "q must be a number between 0 and 1, got 95"),
        ({"q": "0.95"}, "q must be a number between 0 and 1"),
        ({"q": float("nan")}, "q must be"),
        ({"q": 0.5, "initial": -1}, "initial must be"),
        ({"q": 0.5, "initial": float("inf")}, "initial must be"),
        ({"q": 0.5, "minimum": 0}, "minimum must be an int >= 1"),
        ({"q": 0.5, "window": 1.5}, "window must be an int >= 1"),
        ({"q": 0.5, "window": 10}, "minimum must be at most the window of 10, got 20"),
        ({"q": 0.5, "floor": -1}, "floor must be"),
    ],
)
def test_quantile_with_wrong_settings_is_rejected(given_, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        Quantile(**given_)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "0.1", True])
def test_wrong_duration_is_not_recorded(value):
    with pytest.raises((TypeError, ValueError), match="seconds must be"):
        Quantile(0.5).record(value)
