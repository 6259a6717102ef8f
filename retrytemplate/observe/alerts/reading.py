"""The numbers of rules and objectives, from the metrics of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate.observe.alerts.slo import BurnRate, Objective
from retrytemplate.observe.instruments.totals import Distribution

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrytemplate.observe.alerts.rules import AlertRule
    from retrytemplate.observe.alerts.selection import Selection
    from retrytemplate.observe.instruments.memory import InMemoryMetrics
    from retrytemplate.observe.instruments.registry import Registry

    Groups = dict[tuple[str, ...], float]


class Reading:
    """Reads each metric once per window.  For one evaluation, in one thread."""

    def __init__(self, metrics: InMemoryMetrics, registry: Registry) -> None:
        self._metrics, self._registry = metrics, registry
        self._increases: dict[tuple[str, float], Mapping[tuple[str, ...], Any]] = {}

    def burn_rate(self, objective: Objective, window: float) -> BurnRate:
        """The burn rate of an objective in a window."""
        bad = self._count(objective.bad, window) - self._count(objective.excused, window)
        valid = self._count(objective.valid, window)
        return BurnRate(window, max(0.0, bad), valid, objective.target)

    def values(self, rule: AlertRule) -> Groups:
        """The number of each group of a rule; groups without calls are left out."""
        if rule.series.instrument.kind == "gauge":
            return self._gauges(rule)
        if rule.quantile is not None:
            return self._quantiles(rule, rule.quantile)
        counts = self._counts(rule.series, rule.window, rule.by)
        if rule.relative_to is None:
            return counts
        whole = self._counts(rule.relative_to, rule.window, rule.by)
        return {group: counts.get(group, 0.0) / each for group, each in whole.items() if each}

    def _increase(self, selection: Selection, window: float) -> list[tuple[tuple[str, ...], Any]]:
        key = selection.metric, window
        if key not in self._increases:
            self._increases[key] = self._metrics.increase(*key)
        series = self._increases[key].items()
        return [(labels, each) for labels, each in series if selection.matches(labels)]

    def _count(self, selection: Selection, window: float) -> float:
        return sum(_number(each, selection) for _, each in self._increase(selection, window))

    def _counts(self, selection: Selection, window: float, by: tuple[str, ...]) -> Groups:
        counts: Groups = {}
        for labels, each in self._increase(selection, window):
            group = selection.group(labels, by)
            counts[group] = counts.get(group, 0.0) + _number(each, selection)
        return counts

    def _quantiles(self, rule: AlertRule, quantile: float) -> Groups:
        found: dict[tuple[str, ...], list[int]] = {}
        for labels, each in self._increase(rule.series, rule.window):
            group = rule.series.group(labels, rule.by)
            counts = found.setdefault(group, [0] * len(each.counts))
            counts[:] = [one + other for one, other in zip(counts, each.counts, strict=True)]
        bounds = self._metrics.bounds
        return {group: _quantile(counts, bounds, quantile) for group, counts in found.items()}

    def _gauges(self, rule: AlertRule) -> Groups:
        present = self._present(rule.series)
        largest: Groups = {}
        if rule.relative_to is not None:
            whole = self._present(rule.relative_to)
            present = {key: each / whole[key] for key, each in present.items() if whole.get(key)}
        for labels, each in present.items():
            group = rule.series.group(labels, rule.by)
            largest[group] = max(each, largest.get(group, each))
        return largest

    def _present(self, selection: Selection) -> Groups:
        shown = self._metrics.gauges(self._registry, selection.metric)
        series = shown.get(selection.metric, {}).items()
        return {labels: each for labels, each in series if selection.matches(labels)}


def _number(value: float | Distribution, selection: Selection) -> float:
    """The increase of a counter, or the number of durations of a histogram."""
    if not isinstance(value, Distribution):
        return value
    if selection.up_to is None:
        return value.count
    return sum(value.counts[: value.bounds.index(selection.up_to) + 1])


def _quantile(counts: list[int], bounds: tuple[float, ...], quantile: float) -> float:
    """The quantile of durations by linear interpolation in its bucket, as Prometheus has it."""
    rank, below = quantile * sum(counts), 0
    for index, bound in enumerate(bounds):
        if counts[index] and below + counts[index] >= rank:
            start = bounds[index - 1] if index else 0.0
            return start + (bound - start) * (rank - below) / counts[index]
        below += counts[index]
    return bounds[-1]
