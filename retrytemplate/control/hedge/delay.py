"""A learned delay: a quantile of the durations of recent calls."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil
from typing import Any

from attrs import field, frozen
from attrs.validators import optional

from retrytemplate._internal.locks import Monitor
from retrytemplate._internal.validation import (
    check_at_least,
    check_at_least_one,
    check_delay,
    check_number,
    checked_by,
    to_seconds,
)


def _between(name: str, value: Any) -> None:
    check_number(name, value, "a number between 0 and 1", lambda share: 0.0 < share < 1.0)


@frozen(eq=False)
class Quantile:
    """The time within which this share of the calls has answered, of the last ones that did.

    :param q: the share: with 0.95, five calls of a hundred take longer.
    :param initial: seconds, as long as too few calls are known; None: no hedge until then.
    :param minimum: calls that have to be known; default 20.
    :param window: the number of the last calls that are kept.
    :param floor: seconds; it is never less, so that calls that take no time are not all made twice.
    :raises ValueError: a number is out of its range.

    One object may serve several hedges, of the same thing, in threads and tasks.

    >>> p50 = Quantile(0.5, minimum=3)
    >>> for seconds in (0.1, 0.2, 0.9):
    ...     print(p50.value())
    ...     p50.record(seconds)
    None
    None
    None
    >>> p50.value()
    0.2
    """

    q: float = field(validator=checked_by(_between))
    initial: float | None = field(
        default=None,
        kw_only=True,
        converter=to_seconds,
        validator=optional(checked_by(check_delay)),
    )
    minimum: int = field(default=20, kw_only=True, validator=checked_by(check_at_least_one))
    window: int = field(default=1000, kw_only=True, validator=checked_by(check_at_least_one))
    floor: float = field(
        default=0.001, kw_only=True, converter=to_seconds, validator=checked_by(check_delay)
    )
    _last: deque[float] = field(init=False, factory=deque, repr=False)
    _sorted: list[float] = field(init=False, factory=list, repr=False)
    _monitor: Monitor = field(init=False, factory=Monitor, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.minimum > self.window:
            raise ValueError(
                f"minimum must be at most the window of {self.window}, got {self.minimum!r}"
            )

    def record(self, seconds: float) -> None:
        """Record the duration of a call."""
        check_at_least("seconds", seconds, 0.0, finite=True)
        self._monitor.post(self._add, seconds)

    def _add(self, seconds: float) -> None:
        if len(self._last) == self.window:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]
        self._last.append(seconds)
        insort(self._sorted, seconds)

    def value(self) -> float | None:
        """The present delay in seconds; None: too few calls are known."""
        return self._monitor.read(self._found)

    def _found(self) -> float | None:
        known = len(self._sorted)
        if known < self.minimum:
            return self.initial
        return max(self.floor, self._sorted[ceil(self.q * known) - 1])
