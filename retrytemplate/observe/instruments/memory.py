"""Metrics in the memory of this process, with their history."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from math import inf
from operator import add, sub
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.locks import Monitor, Reentered
from retrytemplate._internal.validation import check_at_least_one, read_seconds
from retrytemplate.clock import fast_monotonic, given_or_system
from retrytemplate.observe.instruments.base import (
    MAX_LABEL_VALUES,
    LabelLimit,
    bucket_bounds,
    check_instrument,
    resolve,
)
from retrytemplate.observe.instruments.table import INSTRUMENTS
from retrytemplate.observe.instruments.totals import (
    MINUTES,
    Distribution,
    History,
    Total,
    Totals,
    check_window,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from retrytemplate.clock import Clock
    from retrytemplate.observe.instruments.base import Gauges
    from retrytemplate.observe.instruments.registry import Registry
    from retrytemplate.observe.instruments.table import Instrument


BATCH = 500
"""Measurements that are applied together."""
MAX_TEMPLATES = 1000
"""Templates whose first successes are collected by template."""
CALL, ATTEMPT = INSTRUMENTS["call.duration"], INSTRUMENTS["attempt.duration"]
OVERFLOWS = INSTRUMENTS["label.overflows"]


class InMemoryMetrics:
    """Counts and durations of this process since the object was made, and their history.

    Counters and histograms have totals per minute for 6 hours, and per hour for 30 days.  Any
    thread may use the object.  In a child process all values begin at zero.

    :param thresholds: further upper bounds of the buckets of every histogram, in seconds, such as
        the limits of an SLO; default none.
    :param max_label_values: different values of one label of one metric, at least 1; default 200.
        Further ones are recorded as ``_other``, which is logged once and counted in
        ``label.overflows``.
    :param clock: measures minutes and hours.
    :raises ValueError: a number is out of its range.

    >>> from retrytemplate.observe import InMemoryMetrics
    >>> metrics = InMemoryMetrics()
    >>> metrics.add("retries", {"template": "billing", "error.type": "TimeoutError"})
    >>> metrics.first_success("billing", 0.02)
    >>> metrics.snapshot()["retries"]
    {('billing', 'TimeoutError'): 1.0}
    >>> metrics.snapshot()["call.duration"]["billing", "success"].count
    1
    """

    limits_labels = True
    """Whether it limits the values of labels itself."""

    def __init__(
        self,
        *,
        thresholds: Iterable[float] = (),
        max_label_values: int = MAX_LABEL_VALUES,
        clock: Clock | None = None,
    ) -> None:
        check_at_least_one("max_label_values", max_label_values)
        clock = given_or_system(clock)
        self.bounds = bucket_bounds(thresholds)
        self._max_label_values = max_label_values
        self._monotonic = fast_monotonic(clock)
        self._to_epoch = clock.time() - clock.monotonic()
        # Measurements are appended without the monitor, which costs more than the append.  First
        # successes of the minute are collected by template, and sorted into the buckets together.
        self._pending: deque[tuple[Instrument, tuple[str, ...], float, float]] = deque()
        self._monitor = Monitor()
        self._monitor.forked = self._clear
        self._clear()

    def _clear(self) -> None:
        self._pending.clear()
        self._limit = LabelLimit(self._max_label_values)
        self._series: dict[str, dict[tuple[str, ...], Totals]] = {name: {} for name in INSTRUMENTS}
        self._successes: dict[str, list[float]] = {}
        self._minute, self._minute_end = 0, -inf

    # Recording.

    def add(self, name: str, labels: Mapping[str, str], amount: float = 1.0) -> None:
        """Add to a counter; or to a gauge, where the amount may be negative.

        :raises ValueError: there is no such counter or gauge, it has other labels, or the amount of
            a counter is negative.
        """
        instrument, values = resolve(name, labels, "counter", "gauge", amount=amount)
        self._append(instrument, values, amount, self._monotonic.now())

    def record(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Record a duration in a histogram, in seconds.

        :raises ValueError: there is no such histogram, or it has other labels.
        """
        instrument, values = resolve(name, labels, "histogram", amount=value)
        self._append(instrument, values, value, self._monotonic.now())

    def first_success(self, template: str, elapsed: float) -> None:
        """Record a call that succeeded at its first attempt, with its duration in seconds."""
        now = self._monotonic.now()
        try:
            successes: list[float] | None = self._successes[template]
        except KeyError:
            successes = None
        if successes is None or now >= self._minute_end:
            self._first_success_in_order(template, elapsed, now)
            return
        successes.append(elapsed)
        if len(successes) >= BATCH:
            self._run(self._fold)

    def _first_success_in_order(self, template: str, elapsed: float, now: float) -> None:
        """Record the first of a minute or of a template, after all earlier measurements."""
        for instrument in (CALL, ATTEMPT):
            self._append(instrument, (template, "success"), elapsed, now)
        self._run(self._collect, template)

    def _append(
        self, instrument: Instrument, values: tuple[str, ...], amount: float, now: float
    ) -> None:
        self._pending.append((instrument, values, amount, now))
        if len(self._pending) >= BATCH:
            self._run(self._drain)

    def _run(self, step: Callable[..., None], *args: Any) -> None:
        try:
            self._monitor.run(step, *args)
        except Reentered:
            return  # the next call does it
        self._limit.log()

    def _drain(self) -> None:
        pending = self._pending
        for _ in range(len(pending)):
            instrument, key, amount, now = pending.popleft()
            if now >= self._minute_end:
                self._fold()
                self._minute = self._minute_of(now)
                self._minute_end = (self._minute + 1) * 60.0 - self._to_epoch
            values = self._totals(instrument, key, self._minute, 1.0).values
            values[0] += amount
            if instrument.kind == "histogram":
                values[bisect_left(self.bounds, amount) + 1] += 1.0

    def _collect(self, template: str) -> None:
        self._drain()
        if len(self._successes) < MAX_TEMPLATES:
            self._successes.setdefault(template, [])

    def _fold(self) -> None:
        """Add the collected first successes to both metrics."""
        for template, successes in self._successes.items():
            number = len(successes)  # another thread may append more
            if not number:
                continue
            durations = sorted(successes[:number])
            del successes[:number]
            below = [bisect_right(durations, bound) for bound in self.bounds]
            row = [sum(durations), *map(sub, [*below, number], [0, *below])]
            for instrument in (CALL, ATTEMPT):
                totals = self._totals(instrument, (template, "success"), self._minute, number)
                totals.values[:] = map(add, totals.values, row)

    def _settle(self) -> None:
        self._drain()
        self._fold()

    def _minute_of(self, now: float) -> int:
        return int((now + self._to_epoch) // 60)

    def _totals(
        self, instrument: Instrument, key: tuple[str, ...], minute: int, number: float
    ) -> Totals:
        """The totals of a label set, for a number of measurements in a minute."""
        series = self._series[instrument.name]
        if key not in series and instrument is not OVERFLOWS:
            shown = self._limit.apply(instrument, key)
            if shown != key:
                name = (instrument.name,)
                self._totals(OVERFLOWS, name, minute, number).values[0] += number
            key = shown
        totals = series.get(key)
        if totals is None:
            width = len(self.bounds) + 2 if instrument.kind == "histogram" else 1
            totals = series[key] = Totals(width, minute)
        if minute > totals.minute:
            totals.advance(minute)
        return totals

    # Reading.

    def snapshot(self) -> Mapping[str, Mapping[tuple[str, ...], float | Distribution]]:
        """The present values: by metric, then by the values of its labels.

        Of a counter or gauge the value is a number, of a histogram a ``Distribution``.  Metrics
        without values are left out.
        """
        shown = {name: self.read(name) for name in INSTRUMENTS}
        return {name: values for name, values in shown.items() if values}

    def read(self, name: str) -> Mapping[tuple[str, ...], float | Distribution]:
        """The present values of one metric, by the values of its labels."""
        self._run(self._settle)
        rows = self._monitor.read(self._copied, name)
        return {key: self._value(INSTRUMENTS[name], row) for key, row in rows}

    def gauges(self, registry: Registry, *names: str) -> Gauges:
        """The present gauges: those of this object, and those of the components of a registry.

        The names of the components are limited as other label values are; of several values that
        become ``_other`` the largest is shown.

        :param names: the metrics; none: all gauges.
        """
        measured = list(registry.gauges(*names))
        wanted = names or [each.name for each in INSTRUMENTS.values() if each.kind == "gauge"]
        found: dict[str, Any] = {name: own for name in wanted if (own := self.read(name))}
        shown = self._monitor.read(self._limit.apply_to_gauges, measured)
        self._limit.log()
        return {name: {**found.get(name, {}), **shown.get(name, {})} for name in {**found, **shown}}

    def limited(self, instrument: Instrument, values: tuple[str, ...]) -> tuple[str, ...]:
        """The label values of a metric, with ``_other`` for those beyond the limit."""
        shown = self._monitor.read(self._limit.apply, instrument, values)
        self._limit.log()
        return shown

    def history(self, name: str, labels: Mapping[str, str]) -> History:
        """The totals of one label set, per minute for 6 hours and per hour for 30 days.

        :raises ValueError: there is no such counter or histogram, or it has other labels.

        >>> from retrytemplate.observe import InMemoryMetrics
        >>> metrics = InMemoryMetrics()
        >>> metrics.add("backoff.time", {"template": "billing"}, 1.5)
        >>> [each.value for each in metrics.history("backoff.time", {"template": "billing"}).hours]
        [1.5]
        """
        instrument, key = resolve(name, labels, "counter", "histogram")
        self._run(self._settle)
        totals = self._series[name].get(key)
        if totals is None:
            return History((), ())
        minute = self._minute_of(self._monotonic.now())
        minutes, hours = self._monitor.read(totals.read, minute)
        return History(
            tuple(Total(time * 60.0, self._value(instrument, row)) for time, row in minutes),
            tuple(Total(time * 3600.0, self._value(instrument, row)) for time, row in hours),
        )

    def increase(self, name: str, window: float) -> Mapping[tuple[str, ...], float | Distribution]:
        """The increase of a counter or histogram in the last seconds, by the values of its labels.

        The first minute is counted as a whole, for more than 6 hours the first hour.  Series
        without an increase are left out.

        :param window: seconds, above 0, at most 30 days; also a ``timedelta``.
        :raises ValueError: there is no such counter or histogram, or the window is out of range.

        >>> from retrytemplate.observe import InMemoryMetrics
        >>> metrics = InMemoryMetrics()
        >>> metrics.add("backoff.time", {"template": "billing"}, 1.5)
        >>> metrics.increase("backoff.time", 300)
        {('billing',): 1.5}
        """
        check_instrument("name", name)
        instrument = INSTRUMENTS[name]
        if instrument.kind == "gauge":
            raise ValueError(f"name must be a counter or histogram, got the gauge {name!r}")
        window = read_seconds("window", window, check_window)
        self._run(self._settle)
        start = self._monotonic.now() - window
        minute = self._minute_of(start)
        first = None if window > MINUTES * 60 else minute
        rows = self._monitor.read(self._increases, name, first, minute // 60)
        return {key: self._value(instrument, row) for key, row in rows if any(row)}

    def _increases(
        self, name: str, minute: int | None, hour: int
    ) -> list[tuple[tuple[str, ...], list[float]]]:
        series = list(self._series[name].items())
        return [(key, totals.since(minute, hour)) for key, totals in series]

    def _copied(self, name: str) -> list[tuple[tuple[str, ...], list[float]]]:
        return [(key, each.values.copy()) for key, each in list(self._series[name].items())]

    def _value(self, instrument: Instrument, row: Sequence[float]) -> float | Distribution:
        if instrument.kind != "histogram":
            return row[0]
        return Distribution(row[0], tuple(map(int, row[1:])), self.bounds)


def given_metrics(metrics: Any) -> InMemoryMetrics:
    """The metrics of an argument, checked; None: new ones."""
    if metrics is None:
        return InMemoryMetrics()
    if not isinstance(metrics, InMemoryMetrics):
        raise TypeError(f"metrics must be InMemoryMetrics or None, got {metrics!r}")
    return metrics
