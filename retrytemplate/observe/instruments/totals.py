"""The values of a metric, and their history per minute and hour."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.validation import check_span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Rows = list[tuple[int, Sequence[float]]]

MINUTES = 6 * 60
HOURS = 30 * 24


def check_window(name: str, value: Any) -> None:
    """Raise unless the value is a number of seconds for which the history has totals."""
    check_span(name, value)
    if value > HOURS * 3600:
        raise ValueError(f"{name} must be at most 30 days, got {value!r} s")


@frozen
class Distribution:
    """The value of a histogram.

    :param sum: of all durations, in seconds.
    :param counts: durations in each bucket, the last one above all bounds; not cumulative.
    :param bounds: upper bounds of the buckets in seconds, each included.
    """

    sum: float
    counts: tuple[int, ...]
    bounds: tuple[float, ...] = field(repr=False)

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)


@frozen
class Total:
    """The increase of a counter or a histogram in one minute or hour.

    :param time: the start of the minute or hour, in seconds since the epoch.
    :param value: a number, or a ``Distribution``.
    """

    time: float
    value: float | Distribution


@frozen
class History:
    """Totals of a counter or a histogram, the oldest first, without those that are zero.

    :param minutes: of the last 6 hours, that in progress included.
    :param hours: of the last 30 days, that in progress included.
    """

    minutes: tuple[Total, ...]
    hours: tuple[Total, ...]


class Ring:
    """Rows of numbers by time; the newest ones are kept.

    :param size: number of rows.
    """

    __slots__ = ("_last", "_rows", "_size", "_times")

    def __init__(self, size: int) -> None:
        self._size = size
        self._times = array("q")
        self._rows = array("d")
        self._last = -1

    def add(self, time: int, row: Sequence[float]) -> None:
        """Add a row; add its numbers to the last row if that one has the same time."""
        width = len(row)
        if self._last >= 0 and self._times[self._last] == time:
            start = self._last * width
            for index, value in enumerate(row, start):
                self._rows[index] += value
        elif len(self._times) < self._size:
            self._times.append(time)
            self._rows.extend(row)
            self._last += 1
        else:
            self._last = (self._last + 1) % self._size
            self._times[self._last] = time
            self._rows[self._last * width : (self._last + 1) * width] = array("d", row)

    def read(self, after: int) -> Iterator[tuple[int, Sequence[float]]]:
        """The rows after a time, the oldest first."""
        number = len(self._times)
        width = len(self._rows) // number if number else 0
        for offset in range(number):
            index = (self._last + 1 + offset) % number
            if self._times[index] > after:
                yield self._times[index], self._rows[index * width : (index + 1) * width]

    def add_since(self, time: int, total: list[float]) -> None:
        """Add the rows of this time and later ones to a row."""
        width, end = len(total), self._last + 1
        for low, high in ((end, len(self._times)), (0, end)):  # each in the order of time
            start = bisect_left(self._times, time, low, high)
            rows = self._rows[start * width : high * width]
            for place in range(width if rows else 0):
                total[place] += sum(rows[place::width])


class Totals:
    """The values of one label set: since the start, per minute and per hour.

    ``values`` is changed in place: of a counter its total; of a histogram the sum, then the number
    of values in each bucket.  Before a change in a later ``minute``, call ``advance``.
    """

    __slots__ = ("_before", "_hours", "_minutes", "minute", "values")

    def __init__(self, width: int, minute: int) -> None:
        self.values = [0.0] * width
        self.minute = minute
        self._before = self.values.copy()  # at the start of the minute
        self._minutes = Ring(MINUTES)
        self._hours = Ring(HOURS)

    def advance(self, minute: int) -> None:
        """End the minute in progress, and begin a later one."""
        increase = self._increase()
        if any(increase):
            self._minutes.add(self.minute, increase)
            self._hours.add(self.minute // 60, increase)
            self._before = self.values.copy()
        self.minute = minute

    def _increase(self) -> list[float]:
        return [now - before for now, before in zip(self.values, self._before, strict=True)]

    def since(self, minute: int | None, hour: int) -> list[float]:
        """The increase since the start of a minute; None: since the start of an hour."""
        if minute is None:
            total = self._increase() if self.minute // 60 >= hour else [0.0] * len(self.values)
            self._hours.add_since(hour, total)
        else:
            total = self._increase() if self.minute >= minute else [0.0] * len(self.values)
            self._minutes.add_since(minute, total)
        return total

    def read(self, now: int) -> tuple[Rows, Rows]:
        """The increase in each minute of the last 6 hours, and in each hour of the last 30 days.

        :param now: the present minute.
        """
        minutes = list(self._minutes.read(now - MINUTES))
        hours = list(self._hours.read(now // 60 - HOURS))
        latest = self._increase()
        if any(latest):
            hour = self.minute // 60
            if self.minute > now - MINUTES:
                minutes.append((self.minute, latest))
            if hours and hours[-1][0] == hour:
                _, earlier = hours.pop()
                latest = [one + other for one, other in zip(earlier, latest, strict=True)]
            if hour > now // 60 - HOURS:
                hours.append((hour, latest))
        return minutes, hours
