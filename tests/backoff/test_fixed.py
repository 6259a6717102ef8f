from datetime import timedelta

import pytest

from retrytemplate import FixedBackoff, NoBackoff
from tests.backoff.driving import delays


def test_no_backoff_never_waits():
    assert delays(NoBackoff(), 3) == [0, 0, 0]
    assert NoBackoff().never_waits
    assert not NoBackoff().dynamic


def test_delay_is_always_the_same():
    assert delays(FixedBackoff(1.5), 3) == [1.5, 1.5, 1.5]
    assert delays(FixedBackoff(2), 2) == [2.0, 2.0]


def test_delay_may_be_a_timedelta():
    assert FixedBackoff(timedelta(milliseconds=250)) == FixedBackoff(0.25)


def test_delay_of_zero_never_waits():
    assert FixedBackoff(0).never_waits
    assert not FixedBackoff(0.001).never_waits
    assert not FixedBackoff(lambda: 0).never_waits


def test_callable_without_parameters_is_called_once_per_execution():
    values = iter([1, timedelta(seconds=2)])
    backoff = FixedBackoff(values.__next__)
    assert backoff.dynamic
    assert delays(backoff.resolved(), 2) == [1.0, 1.0]
    assert delays(backoff.resolved(), 2) == [2.0, 2.0]


def test_unresolved_callable_is_called_for_each_delay():
    assert delays(FixedBackoff(iter([1, 2, 3]).__next__), 3) == [1.0, 2.0, 3.0]


def test_delay_may_depend_on_the_failure():
    backoff = FixedBackoff(lambda failures, error: 30 if "slow down" in str(error) else 0)
    assert not backoff.dynamic
    assert backoff.resolved() is backoff
    assert delays(backoff, 2, failure=OSError("slow down")) == [30.0, 30.0]
    assert delays(backoff, 2, failure=OSError("connection reset")) == [0.0, 0.0]


def test_delay_may_depend_on_the_number_of_failures():
    assert delays(FixedBackoff(lambda failures, error: failures * 10), 3) == [10.0, 20.0, 30.0]


def test_delay_callable_may_be_a_method_or_return_a_timedelta():
    class Slow:
        def delay(self, failures, error):
            return timedelta(minutes=failures)

        def __call__(self, failures=0, error=None):
            return 7

    assert delays(FixedBackoff(Slow().delay), 2) == [60.0, 120.0]
    assert delays(FixedBackoff(Slow()), 1) == [7.0]
    assert delays(FixedBackoff(lambda *args: len(args)), 1) == [2.0]


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), timedelta(seconds=-1), 10**400])
@pytest.mark.parametrize("how", ["number", "read once", "per failure"])
@pytest.mark.statement("S0-66")
def test_delay_out_of_range_is_rejected_from_every_source(value, how):
    with pytest.raises(ValueError, match=r"delay must be a number of seconds .* >= 0 and finite"):
        if how == "number":
            FixedBackoff(value)
        elif how == "read once":
            FixedBackoff(lambda: value).resolved()
        else:
            delays(FixedBackoff(lambda failures, error: value), 1)


@pytest.mark.parametrize("value", [None, "1s", True, [1]])
def test_delay_of_wrong_type_is_rejected(value):
    with pytest.raises(TypeError, match="delay must be a number of seconds"):
        FixedBackoff(value)
    with pytest.raises(TypeError, match="delay must be a number of seconds"):
        FixedBackoff(lambda: value).resolved()
    with pytest.raises(TypeError, match="delay must be a number of seconds"):
        delays(FixedBackoff(lambda failures, error: value), 1)


@pytest.mark.parametrize("function", [lambda one: 1, lambda a, b, c: 1, lambda *, key: 1])
def test_callable_with_other_parameters_is_rejected(function):
    with pytest.raises(TypeError, match=r"takes nothing or \(failures, exception\)"):
        FixedBackoff(function)


def test_coroutine_function_is_rejected():
    async def later(failures, error):
        return 1

    with pytest.raises(TypeError, match="delay must be a plain function, got the coroutine"):
        FixedBackoff(later)


def test_backoffs_are_frozen():
    with pytest.raises(AttributeError):
        FixedBackoff(1).delay = 2
