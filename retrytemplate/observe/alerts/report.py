"""Reports of service level objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.formatting import format_count, format_span
from retrytemplate.observe.alerts.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retrytemplate.observe.alerts.slo import SLO, BurnRate, Objective
    from retrytemplate.observe.instruments.memory import InMemoryMetrics
    from retrytemplate.observe.instruments.registry import Registry

SOURCE = "calls of this process since its start"


@frozen
class ObjectiveReport:
    """The burn rates of one objective.

    :param slo: name of the SLO.
    :param objective: ``availability``, ``latency_p95`` or ``latency_p99``.
    :param threshold: of a latency, in seconds.
    :param total: the burn rate in the window of the SLO.
    :param rates: the burn rates in the windows of the alerts, the shortest first.
    """

    slo: str
    objective: str
    threshold: float | None
    total: BurnRate
    rates: tuple[BurnRate, ...]

    def as_json(self) -> dict[str, Any]:
        """The report as values of JSON; durations are seconds."""
        return {
            "slo": self.slo,
            "objective": self.objective,
            "target": self.total.target,
            "threshold": self.threshold,
            "window": self.total.window,
            "bad": self.total.bad,
            "valid": self.total.valid,
            "budget_left": self.total.budget_left,
            "downtime_allowed": self.total.downtime_allowed,
            "downtime_used": self.total.downtime_used,
            "burn_rates": [{"window": each.window, "rate": each.rate} for each in self.rates],
        }


@frozen
class SLOReport:
    """The burn rates and the budgets left of SLOs; ``str()`` has one line per objective.

    :param source: the calls that were counted.
    """

    source: str
    objectives: tuple[ObjectiveReport, ...]

    def as_json(self) -> dict[str, Any]:
        """The report as values of JSON; durations are seconds."""
        return {
            "source": self.source,
            "objectives": [each.as_json() for each in self.objectives],
        }

    def __str__(self) -> str:
        return "\n".join([f"Counted: {self.source}.", *map(_line, self.objectives)])


def _line(report: ObjectiveReport) -> str:
    total = report.total
    target = target_text(report.slo, report.objective, report.threshold, total)
    rates = ", ".join(f"{format_span(each.window)}: {each.rate:.3g}" for each in report.rates)
    used = f"{total.downtime_used / 60:.1f} of {total.downtime_allowed / 60:.1f} min"
    downtime = f", downtime {used}" if report.threshold is None else ""
    return (
        f"{target}: {total.bad:.0f} of {format_count(total.valid, 'call')} bad, "
        f"budget left {total.budget_left:.1%}{downtime}; burn rates {rates}"
    )


def target_text(slo: str, objective: str, threshold: float | None, total: BurnRate) -> str:
    """An objective in words: its share of calls, the limit of latency, the window."""
    within = "" if threshold is None else f" within {threshold:g} s"
    share = f"{100 * total.target:.7g} %"
    return f"{slo}: {objective} {share}{within} in {format_span(total.window)}"


def make_report(
    slos: Iterable[SLO], burn_rate: Callable[[Objective, float], BurnRate], source: str
) -> SLOReport:
    """The report of SLOs.

    :param burn_rate: counts the calls of an objective in a window.
    """
    return SLOReport(
        source,
        tuple(
            ObjectiveReport(
                slo.name,
                objective.name,
                objective.threshold,
                burn_rate(objective, slo.window),
                tuple(burn_rate(objective, each) for each in slo.burn_windows),
            )
            for slo in slos
            for objective in slo.objectives
        ),
    )


def process_report(slos: Iterable[SLO], metrics: InMemoryMetrics, registry: Registry) -> SLOReport:
    """The report of SLOs from the calls of this process."""
    return make_report(slos, Reading(metrics, registry).burn_rate, SOURCE)
