"""Simulation of a policy and a backoff whose attempts all fail: delays, percentiles, worst case."""

from __future__ import annotations

from math import floor, inf
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal import validation
from retrytemplate.backoff.base import Backoff
from retrytemplate.backoff.retry_after import RetryAfterBackoff
from retrytemplate.errors import AttemptLostError
from retrytemplate.policies.base import RetryPolicy, as_stateful
from retrytemplate.policies.basic import TimeoutRetryPolicy
from retrytemplate.policies.composite import CompositeRetryPolicy
from retrytemplate.policies.result import ResultRetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from retrytemplate.backoff.base import RandomSource

__all__ = ["Simulation", "WorstCase", "interpolated", "simulate", "worst_case"]

DECILES = tuple(tenth / 10 for tenth in range(1, 10))

# Steps after which the longest delay so far counts as the longest delay of a backoff.
MAX_DELAY_STEPS = 10_000

# Steps after which the sum of the delays of a backoff that still changes counts as infinite.
MAX_SUMMED_STEPS = 100_000


def interpolated(ordered: Sequence[float], p: float) -> float:
    """The value at *p* (0 to 1) of an ordered sequence, linear between its neighbours.

    :raises ValueError: if the sequence is empty, or *p* out of range.

    >>> interpolated([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must be a number from 0 to 1, got {p!r}")
    if not ordered:
        raise ValueError("cannot compute a percentile: no delays were recorded")
    place = p * (len(ordered) - 1)
    below = floor(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    if place == below or low == high:  # inf - inf is not a number
        return low
    return min(low + (place - below) * (high - low), high)


def _sequences(value: Iterable[Iterable[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, value))


def _delays_only(instance: Any, attribute: Any, value: tuple[tuple[float, ...], ...]) -> None:
    for sequence in value:
        for delay in sequence:
            validation.check_at_least("a delay of sequences", delay, 0)


@frozen
class Simulation:
    """The delays of many runs in which every attempt failed.  All values are seconds.

    :param sequences: the delays of each run, in order.
    :param cut: the number of runs that were stopped although the policy allowed another attempt.

    >>> simulation = Simulation([[1.0, 2.0], [1.0, 4.0]])
    >>> simulation.percentile(0.5), simulation.longest_sequence, simulation.longest_total
    (1.5, (1.0, 4.0), 5.0)

    Source: ``RetrySimulation`` of Spring Retry.
    """

    sequences: tuple[tuple[float, ...], ...] = field(
        converter=_sequences, validator=_delays_only, repr=False
    )
    cut: int = field(default=0, kw_only=True)
    delays: tuple[float, ...] = field(init=False, eq=False, repr=False)
    """Every delay of every run, in ascending order."""

    totals: tuple[float, ...] = field(init=False, eq=False, repr=False)
    """The sum of the delays of each run, in ascending order."""

    def __attrs_post_init__(self) -> None:
        every = (delay for sequence in self.sequences for delay in sequence)
        object.__setattr__(self, "delays", tuple(sorted(every)))
        object.__setattr__(self, "totals", tuple(sorted(map(sum, self.sequences))))

    def percentile(self, p: float) -> float:
        """The delay at *p*, from 0 (the shortest) to 1 (the longest), over all delays of all runs.

        :raises ValueError: if there is no delay, or *p* is out of range.
        """
        return interpolated(self.delays, p)

    @property
    def percentiles(self) -> tuple[float, ...]:
        """The delays at 10, 20, ... 90 %; empty if there is no delay."""
        return tuple(map(self.percentile, DECILES)) if self.delays else ()

    @property
    def longest_sequence(self) -> tuple[float, ...]:
        """The delays of the run with the largest sum; the first one if several are equal."""
        return max(self.sequences, key=sum, default=())

    @property
    def longest_total(self) -> float:
        """The largest sum of the delays of a run."""
        return sum(self.longest_sequence)

    @property
    def retries(self) -> int:
        """The largest number of retries of a run."""
        return max(map(len, self.sequences), default=0)

    def before_retry(self, number: int) -> tuple[float, ...]:
        """The delays before one retry, in ascending order, of the runs that made this retry.

        :param number: the number of the retry, from 1.
        """
        validation.check_int("number", number, 1)
        runs = self.sequences
        return tuple(sorted(run[number - 1] for run in runs if len(run) >= number))


@frozen
class WorstCase:
    """The longest duration of one execution, without deadlines.

    Each figure is an upper bound of its own: ``attempts`` of the number of attempts (None: no
    limit), ``waiting`` of the sum of the delays, and ``duration`` of the whole execution, in
    seconds (infinite: no limit).  With a combined policy they may belong to different executions.

    >>> from retrytemplate import FixedBackoff, SimpleRetryPolicy
    >>> worst_case(SimpleRetryPolicy(3), FixedBackoff(2.0), attempt_duration=5.0)
    WorstCase(attempts=3, waiting=4.0, duration=19.0)
    """

    attempts: int | None
    waiting: float
    duration: float


def simulate(
    policy: RetryPolicy,
    backoff: Backoff,
    runs: int = 1000,
    random: RandomSource | None = None,
    *,
    failure: Exception | None = None,
    attempt_duration: validation.Seconds = 0.0,
    max_attempts_per_run: int = 1000,
) -> Simulation:
    """Simulate executions whose attempts all fail, and record the delays, without waiting.

    :param policy: decides whether another attempt is made.
    :param backoff: computes the delays.
    :param runs: the number of executions, default 1000, at least 1.
    :param random: the random source of the jitter; ``random.Random(1)`` gives the same delays each
        time.  Default None: a new ``random.Random``.
    :param failure: the exception of every attempt.  Default None: a failure that every policy of
        this library counts, whatever exceptions its rules name.
    :param attempt_duration: the duration of an attempt, in seconds or as a ``timedelta``, for
        policies that depend on the time; default 0.
    :param max_attempts_per_run: the number of attempts at which a run is stopped, default 1000, at
        least 1.
    :raises ValueError: if a number is out of its range.

    >>> from retrytemplate.backoff import ExponentialBackoff
    >>> from retrytemplate.policies import SimpleRetryPolicy
    >>> simulation = simulate(SimpleRetryPolicy(4), ExponentialBackoff(initial=1.0), runs=1)
    >>> simulation.longest_sequence
    (1.0, 2.0, 4.0)

    Source: ``RetrySimulator`` of Spring Retry.
    """
    _check_pair(policy, backoff)
    validation.check_int("runs", runs, 1)
    validation.check_int("max_attempts_per_run", max_attempts_per_run, 1)
    seconds = _attempt_seconds(attempt_duration)
    failure = _failure(failure)
    source = random if random is not None else _random_source()
    results = [
        _run(policy, backoff, source, failure, seconds, max_attempts_per_run) for _ in range(runs)
    ]
    return Simulation([delays for delays, _ in results], cut=sum(not ended for _, ended in results))


def _run(
    policy: RetryPolicy,
    backoff: Backoff,
    random: RandomSource,
    failure: Exception,
    attempt_duration: float,
    limit: int,
) -> tuple[list[float], bool]:
    """The delays of one run, and whether the policy or the backoff ended it."""
    member, backoff = as_stateful(policy.resolved()), backoff.resolved()
    now, delays = 0.0, list[float]()
    state, waited = member.start(now), backoff.start()
    for attempt in range(1, limit + 1):
        allowed, state = member.decide(state, now)
        if not allowed:
            return delays, True
        now += attempt_duration
        state = member.record(state, failure, now)
        allowed, state = member.decide(state, now)
        if not allowed:
            return delays, True
        if attempt == limit:
            break
        delay, waited = backoff.next(waited, failure, random)
        if delay is None:
            return delays, True
        delays.append(delay)
        now += delay
    return delays, False


def worst_case(
    policy: RetryPolicy,
    backoff: Backoff,
    *,
    attempt_duration: validation.Seconds = 0.0,
    failure: Exception | None = None,
) -> WorstCase:
    """Compute the longest duration of one execution from the limits of the policy and the backoff.

    The limits are numbers of attempts and ``TimeoutRetryPolicy``, also inside ``&`` and ``|``, and
    the longest delays of the backoff: those with the highest random numbers.  For a backoff of your
    own the result is right if a higher random number never gives a shorter delay.  Only
    ``give_up_above`` limits a server's ``Retry-After``.  Delays that still change after 100 000
    attempts count as unlimited.

    :param policy: decides whether another attempt is made.
    :param backoff: computes the delays.
    :param attempt_duration: the longest duration of an attempt, in seconds or as a ``timedelta``,
        such as the template's ``attempt_timeout``; default 0.
    :param failure: the exception that is passed to the backoff.  Default None: as for ``simulate``.
    :raises ValueError: if ``attempt_duration`` is negative.

    >>> from retrytemplate.backoff import ExponentialBackoff
    >>> from retrytemplate.policies import AlwaysRetryPolicy, SimpleRetryPolicy
    >>> backoff = ExponentialBackoff(initial=1.0, maximum=10.0)
    >>> worst_case(SimpleRetryPolicy(4), backoff, attempt_duration=2.0)
    WorstCase(attempts=4, waiting=7.0, duration=15.0)
    >>> worst_case(AlwaysRetryPolicy(), backoff).duration
    inf
    """
    _check_pair(policy, backoff)
    seconds = _attempt_seconds(attempt_duration)
    bounds = _Bounds(backoff.resolved(), _failure(failure))
    policy = policy.resolved()
    return WorstCase(
        attempts=policy.attempt_limit,
        waiting=bounds.of(policy, 0.0),
        duration=bounds.of(policy, seconds),
    )


class _Highest:
    """Random source that always returns the highest possible number."""

    def random(self) -> float:
        return 1 - 2**-53


@frozen
class _Bounds:
    backoff: Backoff
    failure: Exception

    def of(self, policy: RetryPolicy, attempt: float) -> float:
        """The longest duration of an execution whose attempts take *attempt* seconds."""
        if isinstance(policy, ResultRetryPolicy):
            return self.of(policy.policy, attempt)
        if isinstance(policy, CompositeRetryPolicy):
            # Ends with the first member that rejects; if optimistic, with the last.
            bounds = [self.of(member, attempt) for member in policy.policies]
            return max(bounds) if policy.optimistic else min(bounds)
        if isinstance(policy, TimeoutRetryPolicy):
            # It checks the time before an attempt and before a wait, and cancels neither.
            return float(policy.timeout) + max(attempt, self.waits(MAX_DELAY_STEPS)[1])
        limit = policy.attempt_limit
        return inf if limit is None else _times(limit, attempt) + self.waits(limit - 1)[0]

    def waits(self, count: int) -> tuple[float, float]:
        """The sum of the first *count* delays at their longest, and the longest of them."""
        state, total, longest = self.backoff.start(), 0.0, 0.0
        for done in range(1, min(count, MAX_SUMMED_STEPS) + 1):
            delay, after = self.longest_next(state)
            if delay is None:
                return total, longest
            total, longest = total + delay, max(longest, delay)
            if after == state:
                # The same state gives the same delay each time.
                return total + _times(count - done, delay), longest
            state = after
        return total if count <= MAX_SUMMED_STEPS else inf, longest

    def longest_next(self, state: Any) -> tuple[float | None, Any]:
        delay, after = self.backoff.next(state, self.failure, _Highest())
        if isinstance(self.backoff, RetryAfterBackoff):
            limit = self.backoff.give_up_above
            longest = inf if limit is None else limit * (1 + self.backoff.jitter)
            delay = max(delay or 0.0, longest)
        return delay, after


def _times(number: int, seconds: float) -> float:
    """The product; infinite if it is too large for a float."""
    try:
        return number * seconds if number and seconds else 0.0
    except OverflowError:
        return inf


def _check_pair(policy: Any, backoff: Any) -> None:
    if not isinstance(policy, RetryPolicy):
        raise TypeError(f"policy must be a RetryPolicy, got {policy!r}")
    if not isinstance(backoff, Backoff):
        raise TypeError(f"backoff must be a Backoff, got {backoff!r}")


def _attempt_seconds(value: validation.Seconds) -> float:
    return float(validation.read_seconds("attempt_duration", value))


def _failure(failure: Any) -> Exception:
    if failure is None:
        return AttemptLostError("every attempt of a simulation fails")
    if not isinstance(failure, Exception):
        raise TypeError(f"failure must be an Exception object, got {failure!r}")
    return failure


def _random_source() -> RandomSource:
    from random import Random

    return Random()
