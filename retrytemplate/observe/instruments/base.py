"""The protocol of metrics, and the limit of label values."""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from retrytemplate._internal.suggestions import did_you_mean
from retrytemplate._internal.validation import check_at_least, check_span
from retrytemplate.observe.instruments.table import BUCKETS, INSTRUMENTS, Instrument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Gauge = tuple[str, tuple[str, ...], float]
    Gauges = Mapping[str, Mapping[tuple[str, ...], float]]

LOG = logging.getLogger("retrytemplate.observe")
MAX_LABEL_VALUES = 200
OTHER = "_other"
"""The label value that replaces those beyond the limit."""


@runtime_checkable
class Metrics(Protocol):
    """Receives the measurements of an observer.

    The names and labels are those of ``INSTRUMENTS``.  Any thread may call the methods.

    >>> from retrytemplate.observe import InMemoryMetrics, Metrics
    >>> isinstance(InMemoryMetrics(), Metrics)
    True
    """

    def add(self, name: str, labels: Mapping[str, str], amount: float = 1.0) -> None:
        """Add to a counter; or to a gauge, where the amount may be negative."""
        ...

    def record(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Record a duration in a histogram, in seconds."""
        ...

    def first_success(self, template: str, elapsed: float) -> None:
        """Record a call that succeeded at its first attempt, with its duration in seconds."""
        ...


def check_instrument(name: str, value: Any) -> None:
    """Raise unless the value is the name of a metric."""
    if value not in INSTRUMENTS:
        raise _unknown(name, value)


def _unknown(name: str, value: Any) -> ValueError:
    hint = did_you_mean(str(value), INSTRUMENTS)
    return ValueError(f"{name} must be a metric of INSTRUMENTS, got {value!r}{hint}")


def resolve(
    name: str, labels: Mapping[str, str], *kinds: str, amount: float = 0.0
) -> tuple[Instrument, tuple[str, ...]]:
    """The metric of a name, and the values of its labels in their order.

    :param kinds: those that the metric may have.
    :param amount: of a measurement; it is checked, too.
    :raises TypeError: a label is no str, or the amount no number.
    :raises ValueError: there is no such metric of these kinds, it has other labels, or the amount
        of a counter is negative.
    """
    instrument = INSTRUMENTS.get(name)
    if instrument is None:
        raise _unknown("name", name)
    if instrument.kind not in kinds:
        raise ValueError(f"name must be a {' or '.join(kinds)}, got the {instrument.kind} {name!r}")
    values = tuple([labels[each] for each in instrument.labels if each in labels])
    if len(labels) != len(instrument.labels) or len(values) != len(labels):
        raise ValueError(
            f"labels of {name!r} must be {', '.join(instrument.labels)}, got {dict(labels)!r}"
        )
    if not all(isinstance(each, str) for each in values):
        raise TypeError(f"labels of {name!r} must have str values, got {dict(labels)!r}")
    if instrument.kind == "counter":
        check_at_least("amount", amount, 0.0)
    else:
        check_at_least("amount", amount, -inf, allowed="a number")
    return instrument, values


def exported(values: Iterable[str]) -> tuple[str, ...]:
    """Label values without lone surrogates, one of which would fail the whole export."""
    return tuple([each.encode(errors="backslashreplace").decode() for each in values])


def bucket_bounds(thresholds: Iterable[float]) -> tuple[float, ...]:
    """The upper bounds of the buckets, with further ones, which are checked."""
    further = tuple(thresholds)
    for each in further:
        check_span("thresholds: each", each)
    return tuple(sorted({*BUCKETS, *map(float, further)}))


class LabelLimit:
    """Replaces label values beyond a number per label and metric by ``_other``.

    It has no lock: its owner calls ``apply`` in one thread at a time.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._known: dict[tuple[str, str], set[str]] = {}
        self._logged: set[tuple[str, str]] = set()
        self._unlogged: list[tuple[str, str]] = []

    def apply(self, instrument: Instrument, values: tuple[str, ...]) -> tuple[str, ...]:
        """The values, with ``_other`` for those beyond the limit."""
        shown = list(values)
        for index, label in enumerate(instrument.labels):
            # A first success counts for both metrics: they share the names of the templates.
            metric = "call.duration" if instrument.name == "attempt.duration" else instrument.name
            known = self._known.setdefault((metric, label), set())
            if values[index] in known:
                continue
            if len(known) < self._maximum:
                known.add(values[index])
            else:
                shown[index] = OTHER
                self._note(metric, label)
        return tuple(shown)

    def _note(self, metric: str, label: str) -> None:
        if (metric, label) not in self._logged:
            self._logged.add((metric, label))
            self._unlogged.append((metric, label))

    def log(self) -> None:
        """Log the labels that have exceeded the limit since the last call."""
        while self._unlogged:
            metric, label = self._unlogged.pop()
            LOG.warning(
                "metric %s: label %s has more than %d values; further ones are recorded as %s",
                metric,
                label,
                self._maximum,
                OTHER,
            )

    def apply_to_gauges(self, measured: Iterable[Gauge]) -> Gauges:
        """Gauges by name and label values; of several that become ``_other`` the largest."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for name, values, value in measured:
            shown, series = self.apply(INSTRUMENTS[name], values), found.setdefault(name, {})
            is_second = shown != values and shown in series
            series[shown] = max(value, series[shown]) if is_second else value
        return found
