"""How long to wait, for loops that are written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._internal.validation import at_least_one, delay, duration

if TYPE_CHECKING:
    from retrytemplate._internal.validation import Seconds

__all__ = ["backoff_delay"]

SHARE = 0.25
DOUBLED = 1000
"""So often at most: a float holds no more."""


def backoff_delay(
    attempt: int, base: Seconds = 1.0, maximum: Seconds = 30.0, *, random: Any = None
) -> float:
    """The wait after an attempt, in seconds: doubled each time, and up to a quarter longer.

    It is never above the maximum.  There, too, the last fifth is drawn: a wait that was capped
    after its jitter would be the same for all.

    :param attempt: the one that failed, from 1.
    :param base: the wait after the first one.
    :param maximum: of what is waited.
    :param random: chance: an object with ``random()``; None: the module.
    :raises ValueError: for an attempt below 1, a time below 0.

    In a template the same is an ``ExponentialBackoff`` with a jitter, or, to the letter,
    ``FixedBackoff(lambda failures, error: backoff_delay(failures))``.

    >>> 4.0 <= backoff_delay(3) <= 5.0
    True
    >>> 24.0 <= backoff_delay(20) <= 30.0
    True
    """
    at_least_one("attempt", attempt)
    first: float = duration(base)
    most: float = duration(maximum)
    delay("base", first)
    delay("maximum", most)
    if random is None:
        import random
    shortest: float = min(first * 2.0 ** min(attempt - 1, DOUBLED), most / (1 + SHARE))
    # Rounding could carry the sum past the end.
    wait: float = min(shortest + shortest * SHARE * random.random(), most)
    return wait
