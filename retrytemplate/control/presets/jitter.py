"""Jitter added to a backoff, and the delay before one attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from retrytemplate._internal.validation import (
    check_at_least_one,
    check_delay,
    checked_by,
    instance_of,
    read_seconds,
)
from retrytemplate.backoff.base import JSON, Backoff

if TYPE_CHECKING:
    from retrytemplate._internal.validation import Seconds
    from retrytemplate.backoff.base import RandomSource


@frozen(eq=False, repr=False)
class AddedJitter(Backoff):
    """Each wait of another backoff, and up to *jitter* seconds more; never above *maximum*.

    The cap holds for the sum, and jitter is drawn below it, too.

    :param backoff: the waits without jitter.
    :param jitter: seconds.
    :param maximum: of a wait with its jitter; where the jitter alone is longer, that is cut.

    >>> from retrytemplate import ExponentialBackoff
    >>> from retrytemplate.testing import ScriptedRandom
    >>> backoff = AddedJitter(ExponentialBackoff(0.2), 0.1, 0.5)
    >>> state, waits = backoff.start(), []
    >>> for _ in range(3):
    ...     wait, state = backoff.next(state, OSError(), ScriptedRandom([0.5]))
    ...     waits.append(round(wait, 3))
    >>> waits
    [0.25, 0.45, 0.45]
    """

    backoff: Backoff = field(validator=instance_of(Backoff, "a Backoff"))
    jitter: float = field(validator=checked_by(check_delay))
    maximum: float = field(validator=checked_by(check_delay))

    def start(self) -> JSON:
        return self.backoff.start()

    def next(
        self, state: JSON, failure: BaseException, random: RandomSource
    ) -> tuple[float | None, JSON]:
        wait, state = self.backoff.next(state, failure, random)
        if wait is None:
            return None, state
        jitter = min(self.jitter, self.maximum)
        shortest = min(wait, self.maximum - jitter)
        return min(shortest + jitter * random.random(), self.maximum), state

    @property
    def dynamic(self) -> bool:
        return self.backoff.dynamic

    def resolved(self) -> AddedJitter:
        return evolve(self, backoff=self.backoff.resolved()) if self.dynamic else self


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
    :param maximum: the longest wait, in seconds.
    :param random: the random source: an object with ``random()``; None: the module.
    :raises ValueError: for an attempt below 1, a time below 0.

    In a template the same is an ``ExponentialBackoff`` with a jitter, or, to the letter,
    ``FixedBackoff(lambda failures, error: backoff_delay(failures))``.

    >>> 4.0 <= backoff_delay(3) <= 5.0
    True
    >>> 24.0 <= backoff_delay(20) <= 30.0
    True
    """
    check_at_least_one("attempt", attempt)
    first: float = read_seconds("base", base)
    most: float = read_seconds("maximum", maximum)
    if random is None:
        import random
    shortest: float = min(first * 2.0 ** min(attempt - 1, DOUBLED), most / (1 + SHARE))
    # Rounding could carry the sum past the end.
    wait: float = min(shortest + shortest * SHARE * random.random(), most)
    return wait
