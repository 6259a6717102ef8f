"""Simulated results of a policy and a backoff, without waiting."""

from __future__ import annotations

from datetime import timedelta
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    AlwaysRetryPolicy,
    Backoff,
    CompositeRetryPolicy,
    ExceptionClassifierRetryPolicy,
    ExponentialBackoff,
    FixedBackoff,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    NoBackoff,
    PredicateRetryPolicy,
    ResultRetryPolicy,
    RetryAfterBackoff,
    RetryPolicy,
    RetryTemplate,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    UniformRandomBackoff,
)
from retrytemplate.backoff.exponential import JITTERS
from retrytemplate.errors import CircuitOpenError
from retrytemplate.simulation import Simulation, WorstCase, interpolated, simulate, worst_case
from retrytemplate.testing import VirtualClock

delays = st.floats(0, 1e6)
shares = st.floats(0, 1)


@st.composite
def backoffs(draw):
    low, more = draw(st.floats(0, 100)), draw(st.floats(0, 100))
    exponential = ExponentialBackoff(
        initial=low,
        multiplier=draw(st.floats(1, 5)),
        maximum=draw(st.floats(0, 200)),
        jitter=draw(st.sampled_from(JITTERS)),
    )
    others = NoBackoff(), FixedBackoff(low), UniformRandomBackoff(low, low + more)
    return draw(st.sampled_from((exponential, *others)))


bounded = st.recursive(
    st.builds(MaxAttemptsRetryPolicy, st.integers(1, 8))
    | st.builds(
        lambda seconds, limit: TimeoutRetryPolicy(seconds) & MaxAttemptsRetryPolicy(limit),
        st.floats(0, 50),
        st.integers(1, 8),
    ),
    lambda members: st.builds(
        CompositeRetryPolicy, st.lists(members, min_size=1, max_size=3), st.booleans()
    ),
    max_leaves=4,
)


# -- recorded delays ------------------------------------------------------------------------------


def test_every_delay_of_every_run_is_kept_in_order():
    simulation = simulate(SimpleRetryPolicy(4), ExponentialBackoff(initial=1.0), runs=2)

    assert simulation.sequences == ((1.0, 2.0, 4.0), (1.0, 2.0, 4.0))


@given(backoffs(), bounded, st.integers(0, 2**32))
def test_simulated_run_has_the_delays_of_a_template(backoff, policy, seed):
    clock = VirtualClock()
    template = RetryTemplate(policy=policy, backoff=backoff, clock=clock, random=Random(seed))
    template.outcome(int, "seventeen")
    simulated = simulate(policy, backoff, 1, Random(seed)).longest_sequence

    # A template leaves a wait of nothing out.
    assert [delay for delay in simulated if delay] == [delay for delay in clock.sleeps if delay]


def test_same_seed_gives_the_same_delays():
    jittered = ExponentialBackoff(jitter="full")
    first, again, other = (
        simulate(SimpleRetryPolicy(5), jittered, 20, Random(seed)) for seed in (1, 1, 2)
    )

    assert first == again
    assert first != other


def test_simulations_without_a_seed_differ():
    jittered = UniformRandomBackoff(0.0, 1.0)

    assert simulate(SimpleRetryPolicy(5), jittered, 20) != simulate(
        SimpleRetryPolicy(5), jittered, 20
    )


def test_attempt_duration_counts_against_a_timeout():
    policy = TimeoutRetryPolicy(10.0)
    quick = simulate(policy, FixedBackoff(2.0), 1)
    slow = simulate(policy, FixedBackoff(2.0), 1, attempt_duration=timedelta(seconds=3))

    # At 0, 2, .. 10 an attempt begins; its failure at 10 is still in time for one more wait.
    assert len(quick.longest_sequence) == 6
    # Failures at 3 and 8 are in time, the one at 13 is not.
    assert len(slow.longest_sequence) == 2


def test_default_failure_counts_with_policies_that_name_exceptions():
    named = SimpleRetryPolicy(3, retry_on=(ConnectionError,))
    chosen = ExceptionClassifierRetryPolicy({TimeoutError: SimpleRetryPolicy(5)})

    assert simulate(named, FixedBackoff(1.0), 1).retries == 2
    assert simulate(chosen, FixedBackoff(1.0), 1).retries == 4


def test_given_failure_is_classified_by_the_policy():
    policy = SimpleRetryPolicy(3, retry_on=(ConnectionError,))
    predicate = PredicateRetryPolicy(lambda failure: "busy" in str(failure))

    assert simulate(policy, FixedBackoff(1.0), 1, failure=KeyError()).retries == 0
    assert simulate(policy, FixedBackoff(1.0), 1, failure=ConnectionError()).retries == 2
    assert simulate(predicate, NoBackoff(), 1, failure=OSError("gone")).retries == 0


def test_backoff_that_gives_up_ends_the_run():
    backoff = RetryAfterBackoff(FixedBackoff(1.0), give_up_above=60.0)
    simulation = simulate(
        SimpleRetryPolicy(5), backoff, 1, failure=CircuitOpenError(retry_after=3600.0)
    )

    assert (simulation.sequences, simulation.cut) == (((),), 0)


def test_run_time_numbers_are_read_once_per_run():
    numbers = iter(range(2, 5))
    policy = MaxAttemptsRetryPolicy(lambda: next(numbers))
    simulation = simulate(policy, FixedBackoff(1.0), 3)

    assert [len(sequence) for sequence in simulation.sequences] == [1, 2, 3]


def test_endless_policy_is_stopped_and_counted_as_cut():
    simulation = simulate(AlwaysRetryPolicy(), FixedBackoff(1.0), 3, max_attempts_per_run=10)

    assert (simulation.retries, simulation.cut) == (9, 3)


def test_policy_that_ends_at_the_limit_is_not_counted_as_cut():
    simulation = simulate(SimpleRetryPolicy(10), FixedBackoff(1.0), 3, max_attempts_per_run=10)

    assert (simulation.retries, simulation.cut) == (9, 0)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"policy": 3}, TypeError, "policy must be a RetryPolicy, got 3"),
        ({"backoff": 1.0}, TypeError, r"backoff must be a Backoff, got 1\.0"),
        ({"runs": 0}, ValueError, "runs must be an int >= 1, got 0"),
        ({"failure": KeyError}, TypeError, "failure must be an Exception object"),
        ({"failure": KeyboardInterrupt()}, TypeError, "failure must be an Exception object"),
        ({"attempt_duration": -1.0}, ValueError, "attempt_duration must be a number of seconds"),
        ({"attempt_duration": inf}, ValueError, "attempt_duration must be a number of seconds"),
        ({"max_attempts_per_run": 0}, ValueError, "max_attempts_per_run must be an int >= 1"),
    ],
)
def test_invalid_arguments_are_rejected(wrong, error, says):
    settings = {"policy": SimpleRetryPolicy(), "backoff": NoBackoff(), **wrong}
    with pytest.raises(error, match=says):
        simulate(**settings)


# -- percentiles ----------------------------------------------------------------------------------


def test_percentiles_cover_all_delays_of_all_runs():
    simulation = Simulation([[3.0, 1.0], [2.0], []])

    assert [simulation.percentile(p) for p in (0, 0.25, 0.5, 1)] == [1.0, 1.5, 2.0, 3.0]


def test_single_delay_is_every_percentile():
    simulation = Simulation([[7.0]])

    assert simulation.percentile(0.3) == 7.0
    assert simulation.percentiles == (7.0,) * 9


def test_percentile_without_a_delay_raises():
    simulation = simulate(NeverRetryPolicy(), FixedBackoff(1.0), 5)

    assert simulation.percentiles == ()
    assert (simulation.longest_sequence, simulation.longest_total) == ((), 0)
    with pytest.raises(ValueError, match="no delays were recorded"):
        simulation.percentile(0.5)


def test_percentiles_of_delays_with_an_infinite_sum_are_defined():
    simulation = Simulation([[1e308, 1e308], [1e308, 1e308], [1.0]])

    assert simulation.totals == (1.0, inf, inf)
    assert [interpolated(simulation.totals, p) for p in (0.0, 0.25, 0.5, 0.9)] == [1, inf, inf, inf]


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_p_outside_of_0_to_1_is_rejected(p):
    with pytest.raises(ValueError, match="p must be a number from 0 to 1"):
        Simulation([[1.0]]).percentile(p)


@given(st.lists(delays, min_size=1).map(sorted), shares, shares)
def test_percentile_is_monotonic_and_within_the_values(ordered, p, q):
    low, high = sorted((p, q))

    assert ordered[0] <= interpolated(ordered, low) <= interpolated(ordered, high) <= ordered[-1]


@given(st.lists(delays, min_size=1).map(sorted), st.data())
def test_percentile_at_an_index_is_the_value_there(ordered, data):
    place = data.draw(st.integers(0, len(ordered) - 1))
    p = place / max(len(ordered) - 1, 1)
    # The share may lie a rounding beside the place.
    near = ordered[max(place - 1, 0) : place + 2]

    assert interpolated(ordered, p) == pytest.approx(ordered[place], abs=1e-9 * max(near))


@given(st.lists(st.lists(delays, max_size=5), max_size=8))
def test_longest_run_is_the_first_one_with_the_largest_sum(sequences):
    simulation = Simulation(sequences)
    totals = [sum(sequence) for sequence in sequences]

    assert simulation.longest_total == max(totals, default=0)
    if sequences:
        assert simulation.longest_sequence == tuple(sequences[totals.index(max(totals))])


def test_delays_before_one_retry_are_those_of_runs_that_made_it():
    simulation = Simulation([[1.0, 4.0], [2.0], [0.5, 3.0]])

    assert simulation.before_retry(1) == (0.5, 1.0, 2.0)
    assert simulation.before_retry(2) == (3.0, 4.0)
    assert simulation.before_retry(3) == ()
    with pytest.raises(ValueError, match="number must be an int >= 1, got 0"):
        simulation.before_retry(0)


def test_negative_delay_is_rejected():
    with pytest.raises(ValueError, match="a delay of sequences must be a number >= 0"):
        Simulation([[1.0, -0.5]])


# -- the worst case -------------------------------------------------------------------------------


@given(bounded, backoffs(), st.floats(0, 10), st.integers(0, 2**32))
def test_no_simulated_run_exceeds_the_worst_case(policy, backoff, attempt, seed):
    worst = worst_case(policy, backoff, attempt_duration=attempt)
    simulation = simulate(policy, backoff, 10, Random(seed), attempt_duration=attempt)

    assert simulation.longest_total <= worst.waiting * (1 + 1e-12)
    for run in simulation.sequences:
        # An attempt that did not happen after the last wait is in the bound as well.
        assert sum(run) + attempt * len(run) <= worst.duration * (1 + 1e-12)
        assert len(run) < (worst.attempts or inf)


@given(backoffs(), st.integers(1, 8))
def test_worst_case_uses_the_highest_random_numbers(backoff, attempts):
    class Highest:
        def random(self):
            return 1 - 2**-53

    policy = MaxAttemptsRetryPolicy(attempts)
    longest = simulate(policy, backoff, 1, Highest()).longest_total

    assert worst_case(policy, backoff).waiting == pytest.approx(longest, rel=1e-12)


def test_attempts_and_waits_add_up():
    worst = worst_case(SimpleRetryPolicy(3), FixedBackoff(5.0), attempt_duration=2.0)

    assert worst == WorstCase(attempts=3, waiting=10.0, duration=16.0)


def test_timeout_shortens_neither_the_last_attempt_nor_the_last_wait():
    policy = TimeoutRetryPolicy(60.0)

    assert worst_case(policy, FixedBackoff(5.0), attempt_duration=2.0).duration == 65.0
    assert worst_case(policy, FixedBackoff(5.0), attempt_duration=9.0).duration == 69.0
    # Low draws can lead to the limit, and a high one past it.
    assert worst_case(policy, ExponentialBackoff(1.0, 2.0, 30.0, "full")).waiting == (
        pytest.approx(90.0)
    )


def test_and_ends_with_the_first_member_and_or_with_the_last():
    short, long = SimpleRetryPolicy(3), SimpleRetryPolicy(5)
    waits = FixedBackoff(1.0)

    assert worst_case(short & long, waits).duration == 2.0
    assert worst_case(short | long, waits).duration == 4.0
    assert worst_case(short & TimeoutRetryPolicy(1.0), waits).duration == 2.0
    assert worst_case(long & TimeoutRetryPolicy(1.0), waits).duration == 2.0


def test_unlimited_policy_has_an_infinite_worst_case():
    worst = worst_case(AlwaysRetryPolicy(), NoBackoff())

    assert (worst.attempts, worst.waiting, worst.duration) == (None, inf, inf)


def test_result_policy_has_the_worst_case_of_its_inner_policy():
    policy = ResultRetryPolicy(lambda result: result is None, TimeoutRetryPolicy(60.0))

    assert worst_case(policy, FixedBackoff(5.0)).duration == 65.0


def test_retry_after_is_unlimited_without_give_up_above():
    policy, fallback = SimpleRetryPolicy(3), FixedBackoff(1.0)
    limited = RetryAfterBackoff(fallback, give_up_above=60.0, jitter=0.5)

    assert worst_case(policy, RetryAfterBackoff(fallback)).waiting == inf
    assert worst_case(policy, limited).waiting == 180.0
    assert worst_case(NeverRetryPolicy(), RetryAfterBackoff(fallback)).waiting == 0.0


def test_backoff_that_gives_up_limits_the_waits():
    class Twice(Backoff):
        def start(self):
            return 2

        def next(self, state, failure, random):
            return (5.0, state - 1) if state else (None, state)

    assert worst_case(SimpleRetryPolicy(1_000_000), Twice()).waiting == 10.0


def test_million_capped_attempts_are_summed_at_once():
    worst = worst_case(SimpleRetryPolicy(10**9), ExponentialBackoff(1.0, 2.0, 4.0))

    assert worst.waiting == pytest.approx(1 + 2 + 4.0 * (10**9 - 3))


def test_backoff_that_never_stops_growing_ends_the_computation():
    backoff = ExponentialBackoff(1.0, 1.000_000_001, inf)

    assert worst_case(MaxAttemptsRetryPolicy(10**9), backoff).waiting == inf


@pytest.mark.parametrize(
    ("delay", "attempt", "waiting", "duration"),
    [
        (0.0, 0.0, 0.0, 0.0),
        (1.0, 0.0, inf, inf),
        (0.0, 1.0, 0.0, inf),
    ],
)
def test_attempts_beyond_a_float_have_a_worst_case(delay, attempt, waiting, duration):
    policy, backoff = MaxAttemptsRetryPolicy(10**400), FixedBackoff(delay)
    longest = worst_case(policy, backoff, attempt_duration=attempt)

    assert (longest.waiting, longest.duration) == (waiting, duration)


def test_custom_policy_is_limited_by_its_attempt_limit():
    class Thrice(RetryPolicy):
        attempt_limit = 3

        def allows(self, failures, failure):
            return failures < 3

    assert worst_case(Thrice(), FixedBackoff(1.0)).attempts == 3


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"policy": None}, "policy must be a RetryPolicy"),
        ({"backoff": None}, "backoff must be a Backoff"),
        ({"failure": "down"}, "failure must be an Exception object"),
        ({"attempt_duration": "2"}, "attempt_duration must be a number of seconds"),
    ],
)
def test_invalid_worst_case_arguments_are_rejected(wrong, says):
    settings = {"policy": SimpleRetryPolicy(), "backoff": NoBackoff(), **wrong}
    with pytest.raises(TypeError, match=says):
        worst_case(**settings)
