"""Expressions and rules for Prometheus, from the objectives, the rules and the table of metrics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from retrytemplate.observe.alerts.rules import CLEAR_AFTER, DEFAULT_RULES, WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from retrytemplate.observe.alerts.rules import AlertRule
    from retrytemplate.observe.alerts.selection import Selection
    from retrytemplate.observe.alerts.slo import SLO, Objective

PREFIX = "Retrytemplate"
UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
BURN_ALERT = f"{PREFIX}ErrorBudgetBurn"
VALUE = '{{ printf "%.4g" $value }}'  # of an alert, in a template of Prometheus


def range_text(seconds: float) -> str:
    """A duration in the largest whole unit of Prometheus.

    >>> range_text(300), range_text(5400), range_text(2_592_000), range_text(0.5)
    ('5m', '90m', '30d', '500ms')
    """
    number = max(1, round(seconds * 1000))
    unit, size = next(each for each in UNITS if number % each[1] == 0)
    return f"{number // size}{unit}"


def aggregated(function: str, expression: str, *by: str) -> str:
    """An expression that an operator aggregates, by some labels."""
    grouping = f" by ({', '.join(by)}) " if by else ""
    return f"{function}{grouping}({expression})"


def _series(selection: Selection, suffix: str = "") -> str:
    """The selector of the series of a selection."""
    instrument = selection.instrument
    matchers = [_matcher(label, each, "=") for label, each in selection.only.items()]
    matchers += [_matcher(label, each, "!") for label, each in selection.without.items()]
    if instrument.kind == "histogram" and not suffix:
        suffix = "_count" if selection.up_to is None else "_bucket"
    if selection.up_to is not None:
        matchers.append(_bound(selection.up_to))
    return f"{instrument.prometheus_name}{suffix}{{{','.join(matchers)}}}".removesuffix("{}")


def _matcher(label: str, values: tuple[str, ...], sign: str) -> str:
    name = label.replace(".", "_")
    if len(values) == 1:
        return f"{name}{'=' if sign == '=' else '!='}{_quoted(values[0])}"
    return f"{name}{sign}~{_quoted('|'.join(map(re.escape, values)))}"


def _bound(seconds: float) -> str:
    """The matcher of an upper bound: exporters write a whole number as ``3`` or ``3.0``."""
    text = repr(float(seconds))
    whole = text.removesuffix(".0")
    return f'le="{text}"' if whole == text else f'le=~"{whole}([.]0)?"'


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _increase(selection: Selection, window: float, *by: str) -> str:
    return aggregated("sum", f"increase({_series(selection)}[{range_text(window)}])", *by)


# Objectives.


def valid_calls(objective: Objective, window: float) -> str:
    """The number of calls that count in a window."""
    return f"{_increase(objective.valid, window)} or vector(0)"


def bad_calls(objective: Objective, window: float) -> str:
    """The number of calls in a window that do not meet the objective."""
    bad, excused = (_increase(each, window) for each in (objective.bad, objective.excused))
    return f"clamp_min(({bad} or vector(0)) - ({excused} or vector(0)), 0)"


def _error_ratio(objective: Objective, window: float) -> str:
    """The share of bad calls in a window; 0 without calls."""
    valid = _increase(objective.valid, window)
    return f"{bad_calls(objective, window)} / ({valid} > 0) or vector(0)"


def budget_left(objective: Objective, window: float) -> str:
    """The share of the allowed bad calls that has not occurred in a window."""
    return f"1 - ({_error_ratio(objective, window)}) / {_allowed(objective)}"


def burn_rate(objective: Objective, window: float) -> str:
    """The recorded ratio in a window, divided by the ratio that the objective allows."""
    return f"{_recorded_ratio(objective, window)} / {_allowed(objective)}"


def _recorded_ratio(objective: Objective, window: float) -> str:
    return _recorded(objective, f"slo_errors:ratio_rate{range_text(window)}")


def _labels(objective: Objective) -> dict[str, str]:
    return {"slo": objective.slo.name, "objective": objective.name}


def _recorded(objective: Objective, name: str) -> str:
    matchers = [f"{label}={_quoted(each)}" for label, each in _labels(objective).items()]
    return f"retrytemplate:{name}{{{','.join(matchers)}}}"


def _allowed(objective: Objective) -> str:
    return f"(1 - {objective.target:.12g})"


def _recordings(objective: Objective) -> Iterator[dict[str, Any]]:
    slo = objective.slo
    labels = _labels(objective)
    long = {rule.long for _, rule in slo.burn_rules}
    alone = {WINDOW} if slo.error_rate is not None and objective.name == "availability" else set()
    for window in sorted({*slo.burn_windows, *alone}):
        name = f"retrytemplate:slo_errors:ratio_rate{range_text(window)}"
        yield {"record": name, "expr": _error_ratio(objective, window), "labels": labels}
    for window in sorted(long | alone):
        name = f"retrytemplate:slo_calls:increase{range_text(window)}"
        yield {"record": name, "expr": valid_calls(objective, window), "labels": labels}


def _enough_calls(objective: Objective, window: float) -> str:
    calls = _recorded(objective, f"slo_calls:increase{range_text(window)}")
    return f"{calls} >= {objective.slo.min_calls}"


def _burn_alerts(objective: Objective) -> Iterator[dict[str, Any]]:
    slo = objective.slo
    for severity, rule in slo.burn_rules:
        limit = f"> {rule.factor:.12g}"
        expressions = [
            f"{burn_rate(objective, rule.long)} {limit}",
            f"{burn_rate(objective, rule.short)} {limit}",
            _enough_calls(objective, rule.long),
        ]
        summary = (
            f"{slo.name}: the errors of the objective {objective.name} use up the budget of "
            f"{range_text(slo.window)} more than {rule.factor:g} times too fast."
        )
        labels = {**_labels(objective), "severity": severity}
        yield _alert(BURN_ALERT, " and ".join(expressions), CLEAR_AFTER, labels, summary)


def _error_rate_alert(slo: SLO) -> Iterator[dict[str, Any]]:
    if slo.error_rate is None:
        return
    objective = slo.objectives[0]
    ratio = f"{_recorded_ratio(objective, WINDOW)} > {slo.error_rate:.12g}"
    yield _alert(
        f"{PREFIX}ErrorRate",
        f"{ratio} and {_enough_calls(objective, WINDOW)}",
        CLEAR_AFTER,
        {**_labels(objective), "severity": "warning"},
        f"{slo.name}: more than {100 * slo.error_rate:g} % of the calls are bad.",
    )


def _alert(
    name: str, expression: str, clear_after: float, labels: Mapping[str, str], summary: str
) -> dict[str, Any]:
    kept = {"keep_firing_for": range_text(clear_after)} if clear_after else {}
    return {
        "alert": name,
        "expr": expression,
        **kept,
        "labels": dict(labels),
        "annotations": {"summary": summary, "value": VALUE},
    }


# Rules.


def _rule_expression(rule: AlertRule) -> str:
    """The expression of a rule, with its limit."""
    window, by = range_text(rule.window), rule.by
    limit = f"> {rule.limit:.12g}"
    if rule.series.instrument.kind == "gauge":
        gauge = _series(rule.series)
        if rule.relative_to is not None:
            gauge = f"{gauge} / ({_series(rule.relative_to)} > 0)"
        return f"{aggregated('max', gauge, *by)} {limit}"
    if rule.quantile is not None:
        buckets = f"rate({_series(rule.series, '_bucket')}[{window}])"
        total = aggregated("sum", buckets, "le", *by)
        return f"histogram_quantile({rule.quantile:g}, {total}) {limit}"
    count = _increase(rule.series, rule.window, *by)
    if rule.relative_to is not None:
        return f"{count} / ({_increase(rule.relative_to, rule.window, *by)} > 0) {limit}"
    # increase() of a series is 0 at its first sample; a rare event is the first sample.
    series = _series(rule.series)
    first = aggregated("sum", f"{series} unless {series} offset {window}", *by)
    return f"{count} {limit} or {first} {limit}"


def _rule_alert(rule: AlertRule) -> dict[str, Any]:
    name = PREFIX + "".join(each.capitalize() for each in rule.name.split("_"))
    labels = {"severity": rule.severity}
    return _alert(name, _rule_expression(rule), rule.clear_after, labels, rule.summary)


def prometheus_rules(
    slos: Iterable[SLO] = (), rules: Iterable[AlertRule] = DEFAULT_RULES
) -> dict[str, Any]:
    """The content of a file of rules for Prometheus 2.42 or later.

    Recording rules: the ratio of bad calls of each objective in each window, and the number of
    calls in the long windows, with the labels ``slo`` and ``objective``.  Alerts: burn rates, error
    rates and the further rules, with the label ``severity``.

    :param slos: objectives with different names; default none.
    :param rules: further rules; default ``DEFAULT_RULES``.
    :raises ValueError: two SLOs have the same name.

    >>> from retrytemplate.observe import SLO, prometheus_rules
    >>> groups = prometheus_rules([SLO("billing", availability=0.999)])["groups"]
    >>> [each["name"] for each in groups]
    ['retrytemplate-slo', 'retrytemplate']
    >>> groups[0]["rules"][0]["record"]
    'retrytemplate:slo_errors:ratio_rate5m'
    """
    slos = tuple(slos)
    names = [each.name for each in slos]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"slos must have different names, got {name!r} twice")
    objectives = [objective for slo in slos for objective in slo.objectives]
    objective_rules = [rule for each in objectives for rule in _recordings(each)]
    objective_rules += [rule for each in objectives for rule in _burn_alerts(each)]
    objective_rules += [rule for slo in slos for rule in _error_rate_alert(slo)]
    groups = {"retrytemplate-slo": objective_rules, "retrytemplate": [*map(_rule_alert, rules)]}
    return {"groups": [{"name": name, "rules": each} for name, each in groups.items() if each]}
