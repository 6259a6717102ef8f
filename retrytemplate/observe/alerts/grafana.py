"""A dashboard for Grafana, from the table of metrics."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from retrytemplate.observe.alerts.prometheus import (
    aggregated,
    budget_left,
    burn_rate,
    range_text,
)
from retrytemplate.observe.instruments.table import INSTRUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from retrytemplate.observe.alerts.slo import SLO
    from retrytemplate.observe.instruments.table import Instrument

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 12, 8  # of a panel: the dashboard has 24 columns
UNITS = {"s": "s", "1": "percentunit"}
RANGE = "$__rate_interval"


def grafana_dashboard(
    slos: Iterable[SLO] = (), *, title: str = "retrytemplate", uid: str = "retrytemplate"
) -> dict[str, Any]:
    """The JSON model of a dashboard with a panel for each metric, to import into Grafana.

    :param slos: objectives, each with panels of burn rates and of the budget left, which need the
        recording rules of ``prometheus_rules``; default none.
    :param title: of the dashboard.
    :param uid: identifies the dashboard in Grafana.

    >>> from retrytemplate.observe import INSTRUMENTS, grafana_dashboard
    >>> panels = grafana_dashboard()["panels"]
    >>> len([each for each in panels if each["type"] != "row"]) == len(INSTRUMENTS)
    True
    """
    rows = [("Service level objectives", [panel for slo in slos for panel in _slo_panels(slo)])]
    for name, group in groupby(INSTRUMENTS.values(), lambda each: each.name.partition(".")[0]):
        title_of_row = name.replace("_", " ").capitalize()
        rows.append((title_of_row, [_panel_of(each) for each in group]))
    return {
        "title": title,
        "uid": uid,
        "tags": ["retrytemplate"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": list(_placed(rows)),
    }


def _placed(rows: Iterable[tuple[str, list[dict[str, Any]]]]) -> Iterator[dict[str, Any]]:
    """The rows and panels with their numbers and positions."""
    number = top = 0
    for title, panels in rows:
        if not panels:
            continue
        number += 1
        place = {"x": 0, "y": top, "w": 2 * WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place}
        top += 1
        for index, panel in enumerate(panels):
            number += 1
            left, line = WIDTH * (index % 2), top + HEIGHT * (index // 2)
            place = {"x": left, "y": line, "w": WIDTH, "h": HEIGHT}
            yield {"id": number, "gridPos": place, **panel}
        top += HEIGHT * ((len(panels) + 1) // 2)


def _panel(
    kind: str, title: str, description: str, unit: str, targets: Iterable[tuple[str, str]]
) -> dict[str, Any]:
    """A panel.

    :param targets: pairs of an expression and its legend.
    """
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [
            {"refId": f"Q{index}", "expr": expression, "legendFormat": legend, "datasource": SOURCE}
            for index, (expression, legend) in enumerate(targets)
        ],
    }


def _panel_of(instrument: Instrument) -> dict[str, Any]:
    name, labels = instrument.prometheus_name, instrument.prometheus_labels
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    unit = UNITS.get(instrument.unit, "short")
    if instrument.kind == "histogram":
        buckets = aggregated("sum", f"rate({name}_bucket[{RANGE}])", "le", *labels)
        targets = [
            (f"histogram_quantile({quantile}, {buckets})", f"{legend} p{100 * quantile:.0f}")
            for quantile in (0.5, 0.95)
        ]
    elif instrument.kind == "counter":
        targets = [(aggregated("sum", f"rate({name}[{RANGE}])", *labels), legend)]
        unit = "short" if instrument.unit == "s" else "ops"
    else:
        # As PrometheusMetrics adds up processes.
        function = {"1": "max", "": "max"}.get(instrument.unit, "sum")
        function = "min" if instrument.name == "store.up" else function
        targets = [(aggregated(function, name, *labels), legend)]
    return _panel("timeseries", instrument.name, instrument.description, unit, targets)


def _slo_panels(slo: SLO) -> Iterator[dict[str, Any]]:
    burning = _panel(
        "timeseries",
        f"{slo.name}: burn rates",
        "The ratio of bad calls, divided by the ratio that the objective allows.",
        "short",
        [
            (burn_rate(objective, window), f"{objective.name} {range_text(window)}")
            for objective in slo.objectives
            for window in slo.burn_windows
        ],
    )
    limits = sorted({rule.factor for _, rule in slo.burn_rules})
    colours = ["green", *["orange", "red"][-len(limits) :]]
    burning["fieldConfig"]["defaults"]["thresholds"] = {
        "mode": "absolute",
        "steps": [
            {"color": colour, "value": value}
            for colour, value in zip(colours, [None, *limits], strict=True)
        ],
    }
    yield burning
    yield _panel(
        "stat",
        f"{slo.name}: budget left in {range_text(slo.window)}",
        "The share of the allowed bad calls that has not occurred.",
        "percentunit",
        [(budget_left(each, slo.window), each.name) for each in slo.objectives],
    )
