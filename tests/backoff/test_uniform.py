from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import UniformRandomBackoff
from retrytemplate.testing import ScriptedRandom
from tests.backoff.driving import delays

seconds = st.floats(0, 1e300)
draws = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20)


def test_delays_are_uniformly_distributed_between_the_bounds():
    chance = ScriptedRandom([0.0, 0.25, 0.5])
    assert delays(UniformRandomBackoff(1.0, 3.0), 3, chance) == [1.0, 1.5, 2.0]


def test_defaults_equal_those_of_the_reference():
    assert UniformRandomBackoff() == UniformRandomBackoff(0.5, 1.5)


@given(seconds, seconds, draws)
def test_delay_never_leaves_the_bounds(one, two, drawn):
    low, high = sorted([one, two])
    for delay in delays(UniformRandomBackoff(low, high), len(drawn), ScriptedRandom(drawn)):
        assert low <= delay <= high


@pytest.mark.statement("S0-41")
def test_jitter_spreads_clients_that_failed_together():
    clients = [delays(UniformRandomBackoff(1, 2), 1, Random(seed))[0] for seed in range(200)]
    assert len(set(clients)) == 200


def test_equal_bounds_are_a_fixed_delay():
    assert delays(UniformRandomBackoff(2, 2), 2) == [2.0, 2.0]
    assert UniformRandomBackoff(0, 0).never_waits
    assert not UniformRandomBackoff(0, 1).never_waits


def test_bounds_may_be_timedeltas_or_callables():
    assert UniformRandomBackoff(timedelta(seconds=1), timedelta(seconds=2)) == (
        UniformRandomBackoff(1, 2)
    )
    backoff = UniformRandomBackoff(lambda: 1, lambda: timedelta(seconds=2))
    assert backoff.dynamic
    assert backoff.resolved() == UniformRandomBackoff(1, 2)
    assert delays(backoff, 1, ScriptedRandom([0.5])) == [1.5]
    assert UniformRandomBackoff(lambda: 1, 2).resolved() == UniformRandomBackoff(1, 2)
    assert UniformRandomBackoff(1, lambda: 2).resolved() == UniformRandomBackoff(1, 2)
    steady = UniformRandomBackoff(1, 2)
    assert steady.resolved() is steady


@pytest.mark.statement("S0-66")
@pytest.mark.parametrize("field", ["minimum", "maximum"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_invalid_bounds_are_rejected(field, value):
    with pytest.raises(ValueError, match=f"{field} must be a number of seconds .* >= 0 and finite"):
        UniformRandomBackoff(**{field: value})


@pytest.mark.parametrize("bounds", [(2, 1), (lambda: 2, lambda: 1), (2, lambda: 1)])
def test_minimum_above_maximum_is_rejected(bounds):
    message = r"minimum must be a number of seconds from 0 to maximum \(1.0\), got 2.0"
    with pytest.raises(ValueError, match=message):
        UniformRandomBackoff(*bounds).resolved()
