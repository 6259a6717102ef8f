"""Rules of alerts: a number of metrics, and its limit."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

from retrytemplate._internal.validation import (
    check_at_least,
    check_choice,
    check_limit,
    check_text,
    checked_by,
    instance_of,
    to_seconds,
)
from retrytemplate.observe.alerts.selection import Selection
from retrytemplate.observe.alerts.slo import NO_RESULT
from retrytemplate.observe.instruments.totals import check_window

AlertSeverity = Literal["info", "warning", "critical"]
WINDOW = 300.0
"""Seconds over which a rule counts."""
CLEAR_AFTER = 300.0
"""Seconds below its limit after which an alert ends."""
SELECTION = instance_of(Selection, "a Selection")


@frozen(kw_only=True)
class AlertRule:
    """Raises an alert for each group of series whose number exceeds a limit.

    The number of a counter is its increase in the window, of a histogram that of its count, of a
    gauge its present value, the largest of the group.

    :param name: words joined by underscores, such as ``slow_calls``.
    :param summary: one sentence for operators.
    :param severity: ``"info"``, ``"warning"`` or ``"critical"``.
    :param series: the series that are counted.
    :param limit: an alert is raised above it.
    :param relative_to: the series whose number divides that of ``series``; default None.  Gauges of
        both are divided series by series.
    :param quantile: of a histogram, from 0 to 1, instead of its count; default None.
    :param by: the labels of a group; default: one group.
    :param window: seconds; default 300.
    :param clear_after: seconds at or below the limit after which the alert ends; default 300.
    :raises ValueError: a label or a number is not valid.

    >>> from retrytemplate.observe import AlertRule, Selection
    >>> lost = AlertRule(
    ...     name="attempts_lost",
    ...     summary="Workers crash during attempts.",
    ...     severity="warning",
    ...     series=Selection("attempt.lost"),
    ...     limit=0,
    ...     by=("template",),
    ... )
    """

    name: str = field(validator=checked_by(check_text))
    summary: str = field(validator=checked_by(check_text))
    severity: AlertSeverity = field(
        validator=checked_by(check_choice, "info", "warning", "critical")
    )
    series: Selection = field(validator=SELECTION)
    limit: float = field(validator=checked_by(check_at_least, 0.0))
    relative_to: Selection | None = field(
        default=None, validator=instance_of((Selection, type(None)), "a Selection or None")
    )
    quantile: float | None = None
    by: tuple[str, ...] = ()
    window: float = field(default=WINDOW, converter=to_seconds, validator=checked_by(check_window))
    clear_after: float = field(
        default=CLEAR_AFTER, converter=to_seconds, validator=checked_by(check_limit)
    )

    def __attrs_post_init__(self) -> None:
        kind = self.series.instrument.kind
        for each in (self.series, self.relative_to):
            unknown = (
                [] if each is None else [x for x in self.by if x not in each.instrument.labels]
            )
            if each is not None and unknown:
                raise ValueError(f"by must have labels of {each.metric!r}, got {unknown[0]!r}")
        if self.quantile is not None:
            check_at_least("quantile", self.quantile, 0.0)
            if self.quantile > 1 or kind != "histogram" or self.relative_to is not None:
                raise ValueError(
                    "quantile must be from 0 to 1, of a histogram and without relative_to, "
                    f"got {self.quantile!r}"
                )
        other = kind if self.relative_to is None else self.relative_to.instrument.kind
        if (kind == "gauge") != (other == "gauge"):
            raise ValueError("relative_to must be a gauge if series is a gauge, and only then")


CALLS = Selection("call.duration", without={"outcome": NO_RESULT})

DEFAULT_RULES = (
    AlertRule(
        name="slow_calls",
        summary="The 95th percentile of the duration of calls is above 5 s.",
        severity="warning",
        series=CALLS,
        quantile=0.95,
        by=("template",),
        limit=5.0,
    ),
    AlertRule(
        name="timeouts",
        summary="More than 1 % of the calls time out.",
        severity="warning",
        series=Selection("timeouts"),
        relative_to=CALLS,
        limit=0.01,
    ),
    AlertRule(
        name="retries",
        summary="There is a retry for more than 10 % of the calls.",
        severity="info",
        series=Selection("retries"),
        relative_to=CALLS,
        by=("template",),
        limit=0.1,
    ),
    AlertRule(
        name="circuit_breaker_opened",
        summary="A circuit breaker opened.",
        severity="warning",
        series=Selection("circuit_breaker.transitions", only={"to": "open"}),
        by=("name",),
        limit=0.0,
    ),
    AlertRule(
        name="kill_switch_active",
        summary="A kill switch stops calls.",
        severity="critical",
        series=Selection("kill_switch.stopped_ratio"),
        by=("name", "scope", "target"),
        limit=0.0,
    ),
    AlertRule(
        name="fallback_answers",
        summary="Fallbacks answer more than 5 % of the calls.",
        severity="warning",
        series=Selection("fallback.calls", without={"source": ("primary", "none")}),
        relative_to=Selection("fallback.calls"),
        by=("name",),
        limit=0.05,
    ),
    AlertRule(
        name="bulkhead_usage",
        summary="Calls hold more than 80 % of the slots of a bulkhead.",
        severity="info",
        series=Selection("bulkhead.usage"),
        relative_to=Selection("bulkhead.limit"),
        by=("name",),
        limit=0.8,
    ),
)
"""The rules of an ``AlertEvaluator`` and of ``prometheus_rules`` unless others are given."""
