"""What a circuit breaker looks back on: the last calls, those of the last seconds, or a row."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Protocol

from attrs import define, field, frozen

from retrytemplate._checks import at_least_one, checked_by, duration, span

__all__ = ["FAILED", "SLOW", "Calls", "Consecutive", "Counter", "Seconds"]

FAILED, SLOW = 1, 2
"""What a call was, as bits; 0: a success in time."""


class Counter(Protocol):
    """How many of the calls in the window failed, and how many were slow.

    :param total: all calls since it was cleared.
    :param quiet: until when a success in time changes nothing but the total: it may be counted
        there, without being added.
    """

    total: int
    failures: int
    slow: int
    quiet: float

    @property
    def calls(self) -> int:
        """How many are in the window."""
        ...

    def add(self, code: int, now: float) -> None:
        """Count a call that ended."""
        ...

    def look(self, now: float) -> None:
        """Forget what has left the window by now."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...


@frozen
class Calls:
    """The last so many calls.

    :param number: how many.
    :raises ValueError: for a number below 1.

    >>> counter = Calls(3).counter()
    >>> for code in (FAILED, 0, 0, 0):
    ...     counter.add(code, now=0.0)
    >>> counter.calls, counter.failures
    (3, 0)
    """

    number: int = field(validator=checked_by(at_least_one))

    def counter(self) -> Counter:
        """An empty window."""
        return _Last(self.number)


@frozen
class Seconds:
    """The calls that ended in the last so many seconds, in ten steps.

    A call leaves the window with its step: between nine and ten tenths of the time after it ended.

    :param seconds: a number or a ``timedelta``.
    :raises ValueError: for a time that is not above 0.

    >>> counter = Seconds(10).counter()
    >>> counter.add(FAILED, now=0.0)
    >>> counter.look(9.9), counter.failures
    (None, 1)
    >>> counter.look(10.0), counter.failures
    (None, 0)
    """

    seconds: float = field(converter=duration, validator=checked_by(span))

    def counter(self) -> Counter:
        """An empty window."""
        return _Steps(self.seconds / STEPS)


@frozen
class Consecutive:
    """The failures in a row: so many open the circuit; a slow call counts as one.

    :param number: how many.
    :raises ValueError: for a number below 1.

    >>> counter = Consecutive(3).counter()
    >>> for code in (FAILED, 0, FAILED, SLOW):
    ...     counter.add(code, now=0.0)
    >>> counter.failures
    2
    """

    number: int = field(validator=checked_by(at_least_one))

    def counter(self) -> Counter:
        """An empty row."""
        return _Row()


@define
class _Last:
    """Remembers of the last calls those that were not as they should be."""

    size: int
    total: int = 0
    failures: int = 0
    slow: int = 0
    quiet: float = inf
    bad: deque[tuple[int, int]] = field(factory=deque)  # which call it was, and what

    @property
    def calls(self) -> int:
        return min(self.total, self.size)

    def add(self, code: int, now: float) -> None:
        self.total += 1
        if code:
            self.bad.append((self.total, code))
            self._count(code, 1)
        self.look(now)

    def look(self, now: float) -> None:
        while self.bad and self.bad[0][0] <= self.total - self.size:
            self._count(self.bad.popleft()[1], -1)
        self.quiet = -inf if self.bad else inf

    def _count(self, code: int, by: int) -> None:
        self.failures += by * (code & FAILED)
        self.slow += by * (code >> 1)

    def clear(self) -> None:
        self.bad.clear()
        self.total = self.failures = self.slow = 0
        self.quiet = inf


STEPS = 10


@define
class _Steps:
    """A ring of steps, each with its calls, failures, slow ones; the last one's calls are told by
    the total."""

    length: float
    step: int | None = None  # which one it is, of all that ever were
    steps: list[list[int]] = field(factory=lambda: [[0, 0, 0] for _ in range(STEPS)])
    total: int = 0
    before: int = 0  # the total when the step began
    full: int = 0  # the calls of the other steps
    failures: int = 0
    slow: int = 0
    quiet: float = -inf

    @property
    def calls(self) -> int:
        return self.full + self.total - self.before

    def add(self, code: int, now: float) -> None:
        self.look(now)
        self.total += 1
        if code:
            assert self.step is not None
            mine = self.steps[self.step % STEPS]
            self._count(mine, code & FAILED, code >> 1)
            self.quiet = -inf

    def _count(self, step: list[int], failures: int, slow: int) -> None:
        self.failures += failures
        self.slow += slow
        step[1] += failures
        step[2] += slow

    def look(self, now: float) -> None:
        step, last = int(now // self.length), self.step
        if last is None or step > last:  # else another thread read its clock a moment later
            self._begin(step)

    def _begin(self, step: int) -> None:
        if self.step is not None:
            self.steps[self.step % STEPS][0] = self.total - self.before
            self.full, self.before = self.calls, self.total
            for gone in range(self.step + 1, min(step, self.step + STEPS) + 1):
                old = self.steps[gone % STEPS]
                self.full -= old[0]
                self._count(old, -old[1], -old[2])
                old[0] = 0
        self.step = step
        self.quiet = -inf if self.failures or self.slow else (step + 1) * self.length

    def clear(self) -> None:
        self.steps = [[0, 0, 0] for _ in range(STEPS)]
        self.step = None
        self.total = self.before = self.full = self.failures = self.slow = 0
        self.quiet = -inf


@define
class _Row:
    total: int = 0
    failures: int = 0
    slow: int = 0
    quiet: float = inf

    @property
    def calls(self) -> int:
        return self.failures

    def add(self, code: int, now: float) -> None:
        self.total += 1
        if code:
            self.failures += 1
            self.slow += code >> 1
        else:
            self.failures = self.slow = 0
        self.quiet = -inf if code else inf

    def look(self, now: float) -> None:
        """A row does not end by itself."""

    def clear(self) -> None:
        self.total = self.failures = self.slow = 0
        self.quiet = inf
