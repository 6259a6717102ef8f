"""Windows of a circuit breaker: the last calls, the last seconds, consecutive failures."""

from __future__ import annotations

from collections import deque
from copy import copy
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from retrytemplate._internal.validation import (
    check_at_least_one,
    check_span,
    checked_by,
    to_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

FAILED, SLOW = 1, 2
"""The result of a call as bits; 0: a success that was not slow."""


@frozen
class Calls:
    """The last *number* calls.

    :param number: how many.
    :raises ValueError: for a number below 1.

    >>> counter = Calls(3).counter()
    >>> for code in (FAILED, 0, 0, 0):
    ...     counter.add(code, now=0.0)
    >>> counter.calls, counter.failures
    (3, 0)
    """

    number: int = field(validator=checked_by(check_at_least_one))

    def counter(self) -> Counter:
        """An empty window."""
        return _CountWindow(self.number)


@frozen
class Seconds:
    """The calls that ended in the last *seconds*, in ten steps.

    A call leaves the window with its step: between nine and ten tenths of the time after it ended.

    :param seconds: a number or a ``timedelta``.
    :raises ValueError: for a time that is not above 0.

    >>> counter = Seconds(10).counter()
    >>> counter.add(FAILED, now=0.0)
    >>> counter.evict(9.9), counter.failures
    (None, 1)
    >>> counter.evict(10.0), counter.failures
    (None, 0)
    """

    seconds: float = field(converter=to_seconds, validator=checked_by(check_span))

    def counter(self) -> Counter:
        """An empty window."""
        return _TimeWindow(self.seconds / STEPS)


@frozen
class Consecutive:
    """Consecutive failures: *number* of them open the circuit; a slow call counts as a failure.

    :param number: how many.
    :raises ValueError: for a number below 1.

    >>> counter = Consecutive(3).counter()
    >>> for code in (FAILED, 0, FAILED, SLOW):
    ...     counter.add(code, now=0.0)
    >>> counter.failures
    2
    """

    number: int = field(validator=checked_by(check_at_least_one))

    def counter(self) -> Counter:
        """An empty row."""
        return _ConsecutiveCounter()


@define
class Counter:
    """Counts the failed and the slow calls of a window.

    One thread at a time is here, but for the *fast_successes*: ``next`` of a ``count`` is one step
    for all threads, and costs a sixth of a lock.

    :param generation: the number of the state that it counts in.
    :param fast_path_until: until when a success in time changes nothing but the number of calls.
    :param fast_successes: whose ``next`` counts such a success, in any thread at any time.
    """

    generation: int = field(default=0, init=False)
    failures: int = field(default=0, init=False)
    slow: int = field(default=0, init=False)
    fast_path_until: float = field(default=inf, init=False)
    fast_successes: Iterator[int] = field(factory=count, init=False)
    _added: int = field(default=0, init=False)
    _fast_reads: int = field(default=0, init=False)
    _known: int = field(default=0, init=False)  # the total when it was last counted

    @property
    def total(self) -> int:
        """All calls, those that were ticked and those that were added."""
        looks, self._fast_reads = self._fast_reads, self._fast_reads + 1
        self._known = total = next(self.fast_successes) - looks + self._added
        return total

    @property
    def calls(self) -> int:
        """Number of calls in the window."""
        return self._within(self.total)

    @property
    def known_calls(self) -> int:
        """Number of calls at the last count; changes nothing."""
        return self._within(self._known)

    def copied(self) -> Self:
        """A copy that counts on its own."""
        made = copy(self)
        made._added, made._fast_reads, made.fast_successes = self.total, 0, count()
        return made

    def add(self, code: int, now: float) -> None:
        """Count a call that ended."""
        raise NotImplementedError

    def evict(self, now: float) -> None:
        """Remove the calls that have left the window by now."""
        raise NotImplementedError

    def _within(self, total: int) -> int:
        """Number of all calls that are in the window."""
        raise NotImplementedError

    def _count(self, failures: int, slow: int) -> None:
        self.failures += failures
        self.slow += slow


@define
class _CountWindow(Counter):
    """Counts the last *number* calls; stores only those that failed or were slow."""

    size: int
    bad: deque[tuple[int, int]] = field(factory=deque, init=False)  # which call it was, and what

    def copied(self) -> Self:
        made = super().copied()
        made.bad = self.bad.copy()
        return made

    def _within(self, total: int) -> int:
        return min(total, self.size)

    def add(self, code: int, now: float) -> None:
        self._added += 1
        if code:
            self.bad.append((self.total, code))
            self._count(code & FAILED, code >> 1)
        self.evict(now)

    def evict(self, now: float) -> None:
        gone = self.total - self.size
        while self.bad and self.bad[0][0] <= gone:
            _, code = self.bad.popleft()
            self._count(-(code & FAILED), -(code >> 1))
        self.fast_path_until = -inf if self.bad else inf


STEPS = 10


@define
class _TimeWindow(Counter):
    """A ring of steps, each with its calls, failures and slow calls; the calls of the last step
    follow from the total."""

    length: float
    step: int | None = field(default=None, init=False)  # which one it is, of all that ever were
    buckets: list[list[int]] = field(factory=lambda: [[0, 0, 0] for _ in range(STEPS)], init=False)
    before: int = field(default=0, init=False)  # the total when the step began
    full: int = field(default=0, init=False)  # the calls of the other steps

    def __attrs_post_init__(self) -> None:
        self.fast_path_until = -inf

    def copied(self) -> Self:
        made = super().copied()
        made.buckets = [each.copy() for each in self.buckets]
        return made

    def _within(self, total: int) -> int:
        return self.full + total - self.before

    def add(self, code: int, now: float) -> None:
        self.evict(now)
        self._added += 1
        if code:
            assert self.step is not None
            self._mark(self.buckets[self.step % STEPS], code & FAILED, code >> 1)
            self.fast_path_until = -inf

    def _mark(self, step: list[int], failures: int, slow: int) -> None:
        self._count(failures, slow)
        step[1] += failures
        step[2] += slow

    def evict(self, now: float) -> None:
        step, last = int(now // self.length), self.step
        if last is None or step > last:  # else another thread read its clock a moment later
            self._begin(step)

    def _begin(self, step: int) -> None:
        if self.step is not None:
            total = self.total
            mine = total - self.before
            self.buckets[self.step % STEPS][0] = mine
            self.full, self.before = self.full + mine, total
            for gone in range(self.step + 1, min(step, self.step + STEPS) + 1):
                old = self.buckets[gone % STEPS]
                self.full -= old[0]
                self._mark(old, -old[1], -old[2])
                old[0] = 0
        self.step = step
        self.fast_path_until = -inf if self.failures or self.slow else (step + 1) * self.length


@define
class _ConsecutiveCounter(Counter):
    def _within(self, total: int) -> int:
        return self.failures

    def add(self, code: int, now: float) -> None:
        if code:
            self._count(1, code >> 1)
        else:
            self.failures = self.slow = 0
        self.fast_path_until = -inf if code else inf

    def evict(self, now: float) -> None:
        """Do nothing: consecutive failures do not expire."""
