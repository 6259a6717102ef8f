"""A delay function for manual retry loops."""

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import FixedBackoff, RetryTemplate, SimpleRetryPolicy
from retrytemplate.control import backoff_delay
from retrytemplate.testing import ScriptedRandom, VirtualClock


@pytest.mark.statement("S4-22")
def test_delay_doubles_with_a_jitter_up_to_a_quarter():
    def delays(drawn):
        return [backoff_delay(each, random=ScriptedRandom([drawn])) for each in (1, 2, 3, 4)]

    assert delays(0.0) == [1.0, 2.0, 4.0, 8.0]
    assert delays(0.5) == [1.125, 2.25, 4.5, 9.0]


@pytest.mark.statement("S4-22")
@given(st.integers(1, 5000), st.floats(0, 1e300), st.floats(0, 1e300), st.integers())
def test_delay_never_exceeds_the_maximum(attempt, base, maximum, seed):
    assert 0.0 <= backoff_delay(attempt, base, maximum, random=Random(seed)) <= maximum


@pytest.mark.statement("S4-23")
@pytest.mark.parametrize("attempt", [6, 7, 40, 5000])
def test_long_waits_still_differ(attempt):
    chance = Random(attempt)
    waits = [backoff_delay(attempt, base=1, maximum=30, random=chance) for _ in range(1000)]
    assert 24.0 <= min(waits) < 24.1
    assert 29.9 < max(waits) <= 30.0
    assert len(set(waits)) == 1000


def test_default_random_source_is_the_module():
    assert 24.0 <= backoff_delay(9, timedelta(seconds=1), timedelta(seconds=30)) <= 30.0


def test_backoff_delay_serves_as_a_backoff():
    clock, drawn = VirtualClock(), ScriptedRandom([0.0], cycle=True)
    backoff = FixedBackoff(lambda failures, error: backoff_delay(failures, random=drawn))
    RetryTemplate(SimpleRetryPolicy(4), backoff, clock=clock).outcome(int, "x")
    assert clock.sleeps == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0,), ValueError, "attempt must be an int >= 1, got 0"),
        ((1.5,), TypeError, "attempt must be an int >= 1, got 1.5"),
        ((1, -1), ValueError, "base must be a number of seconds"),
        ((1, 1, float("inf")), ValueError, "maximum must be a number of seconds"),
        ((1, "1"), TypeError, "base must be a number of seconds"),
    ],
)
def test_wrong_arguments_are_rejected(arguments, error, message):
    with pytest.raises(error, match=message):
        backoff_delay(*arguments)
