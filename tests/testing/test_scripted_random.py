"""Random numbers from a list."""

import itertools

import pytest

from retrytemplate.testing import ScriptedRandom
from retrytemplate.testing.conformance.base import in_threads


def test_numbers_are_returned_in_order():
    chance = ScriptedRandom([0.0, 0.5, 0.999])
    assert [chance.random() for _ in range(3)] == [0.0, 0.5, 0.999]
    assert chance.drawn == 3


def test_exhausted_script_fails_the_test():
    chance = ScriptedRandom([0.5])
    chance.random()
    with pytest.raises(AssertionError, match="all 1 numbers are used up"):
        chance.random()
    assert chance.drawn == 1


def test_cycle_starts_again():
    chance = ScriptedRandom(iter([0.25, 0.75]), cycle=True)
    assert [chance.random() for _ in range(5)] == [0.25, 0.75, 0.25, 0.75, 0.25]


@pytest.mark.parametrize("value", [1.0, 1, -0.1, float("nan"), "0.5", None])
def test_numbers_outside_the_range_are_rejected(value):
    with pytest.raises((TypeError, ValueError), match=r"values must be numbers in \[0, 1\)"):
        ScriptedRandom([0.5, value])


def test_cycle_without_values_is_rejected():
    with pytest.raises(ValueError, match="at least one number"):
        ScriptedRandom([], cycle=True)


def test_threads_get_each_number_once():
    chance = ScriptedRandom([number / 1000 for number in range(1000)])
    drawn = in_threads(lambda thread: [chance.random() for _ in range(125)], 8)
    assert sorted(itertools.chain(*drawn)) == list(chance.values)
