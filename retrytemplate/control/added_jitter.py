"""Waits of another backoff with some seconds of chance added, and still under one cap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve, field, frozen

from retrytemplate._internal.validation import checked_by, delay, instance_of
from retrytemplate.backoff.base import JSON, Backoff

if TYPE_CHECKING:
    from retrytemplate.backoff.base import RandomSource

__all__ = ["AddedJitter"]


@frozen(eq=False, repr=False)
class AddedJitter(Backoff):
    """Each wait of another backoff, and up to *jitter* seconds more; never above *maximum*.

    The cap holds for the sum: what is drawn differs there, too.

    :param backoff: the waits without chance.
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
    jitter: float = field(validator=checked_by(delay))
    maximum: float = field(validator=checked_by(delay))

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
