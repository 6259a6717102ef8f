"""A number that grows a step at a time; the caller says what time it is."""

from __future__ import annotations

from bisect import bisect_right

from attrs import field, frozen

__all__ = ["Growth"]

# Whoever waits looks at each step: there are only so many, however far it grows.
MOST_STEPS = 100


@frozen
class Growth:
    """From one number to a higher one, evenly, by one at a time or in a hundred steps.

    >>> growth = Growth(2, 5, since=0.0, over=30.0)
    >>> [growth.at(now) for now in (0.0, 9.9, 10.0, 20.0, 30.0, 90.0)]
    [2, 2, 3, 4, 5, 5]
    >>> growth.wait(12.0)
    8.0
    """

    start: int
    to: int
    since: float
    over: float
    _steps: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_steps", min(self.to - self.start, MOST_STEPS))

    def at(self, now: float) -> int:
        """What it has come to."""
        return self.start + (self.to - self.start) * self._done(now) // self._steps

    def wait(self, now: float) -> float:
        """Seconds until the next step; 0: there is none."""
        done = self._done(now)
        return self._when(done + 1) - now if done < self._steps else 0.0

    def _done(self, now: float) -> int:
        return bisect_right(range(1, self._steps + 1), now, key=self._when)

    def _when(self, step: int) -> float:
        return self.since + self.over * step / self._steps
