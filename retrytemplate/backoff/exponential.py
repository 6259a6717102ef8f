"""Exponential backoff with a cap and jitter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attrs import field, frozen

from retrytemplate._internal import validation
from retrytemplate._internal.validation import number_field
from retrytemplate.backoff import base
from retrytemplate.backoff.base import JSON, MAX_DELAY, NumbersBackoff

if TYPE_CHECKING:
    from retrytemplate.backoff.base import RandomSource

__all__ = ["JITTERS", "ExponentialBackoff"]

JITTERS = (None, "full", "equal", "decorrelated", "spring")

Jitter = Literal["full", "equal", "decorrelated", "spring"]


def _known_jitter(instance: Any, attribute: Any, value: Any) -> None:
    if not (value is None or isinstance(value, str)) or value not in JITTERS:
        raise ValueError(f"jitter must be one of {', '.join(map(repr, JITTERS))}, got {value!r}")


@frozen(eq=False, repr=False)
class ExponentialBackoff(NumbersBackoff):
    """Delays of *initial*, *initial* times *multiplier*, ..., at most *maximum*.

    Delays are seconds or a ``timedelta``.  Each number may be a callable that returns it, called
    once per execution.  With jitter the delay is capped first, then drawn from a range below the
    capped delay, so that delays differ also at the cap:

    - ``"full"``: from 0 to the capped delay
    - ``"equal"``: from half the capped delay to the capped delay
    - ``"decorrelated"``: from *initial* to three times the previous delay, at most the cap; the
      multiplier is not used.  If *initial* is not below the cap: from a third of the cap.
    - ``"spring"``: from the capped next delay divided by the multiplier to the capped next delay

    :param initial: the first delay, default 0.1, at least 0.
    :param multiplier: the factor, default 2, at least 1.
    :param maximum: the cap, default 30, at least 0; ``float("inf")`` for no cap.  It may be below
        *initial*.
    :param jitter: one of the above; default None, no jitter.
    :raises ValueError: if a number is out of its range, or ``jitter`` is unknown.

    Source: ``ExponentialBackOffPolicy`` and ``ExponentialRandomBackOffPolicy`` of
    ``org.springframework.retry.backoff``; M. Brooker, "Exponential Backoff And Jitter" (AWS
    Architecture Blog, 2015).

    >>> backoff = ExponentialBackoff(initial=1.0, multiplier=2.0, maximum=5.0)
    >>> state, delays = backoff.start(), []
    >>> for _ in range(5):
    ...     delay, state = backoff.next(state, ValueError(), None)
    ...     delays.append(delay)
    >>> delays
    [1.0, 2.0, 4.0, 5.0, 5.0]
    """

    initial: Any = number_field(0.1, validation.check_delay, base.as_float)
    multiplier: Any = number_field(2.0, base.check_factor, base.as_float)
    maximum: Any = number_field(30.0, validation.check_limit, base.as_float)
    jitter: Jitter | None = field(default=None, validator=_known_jitter)

    def __attrs_post_init__(self) -> None:
        dynamic = any(map(callable, (self.initial, self.multiplier, self.maximum)))
        object.__setattr__(self, "_dynamic", dynamic)
        object.__setattr__(self, "never_waits", 0 in (self.initial, self.maximum))

    def start(self) -> JSON:
        """The next delay before the cap, in seconds; for "decorrelated" the previous delay."""
        return float(validation.read_number("initial", self.initial, validation.check_delay))

    def next(
        self, state: JSON, failure: BaseException, random: RandomSource
    ) -> tuple[float | None, JSON]:
        if self._dynamic:
            return self.resolved().next(state, failure, random)
        if self.jitter == "decorrelated":
            delay = self._decorrelated(state, random)
            return delay, delay
        if state > self.maximum:
            return self._delay(state, random), state
        return self._delay(state, random), min(state * self.multiplier, MAX_DELAY)

    def _delay(self, step: float, random: RandomSource) -> float:
        high: float = min(step, self.maximum)
        if self.jitter is None:
            return high
        low = 0.0
        if self.jitter == "equal":
            low = high / 2
        elif self.jitter == "spring":
            high = min(step * self.multiplier, self.maximum, MAX_DELAY)
            low = high / self.multiplier
        return _between(low, high, random)

    def _decorrelated(self, previous: float, random: RandomSource) -> float:
        high: float = min(previous * 3, self.maximum, MAX_DELAY)
        low: float = self.initial if self.initial < high else high / 3
        return _between(low, high, random)


def _between(low: float, high: float, random: RandomSource) -> float:
    # Rounding may lift the sum above high.
    return min(low + (high - low) * random.random(), high)
