"""Service level objectives, and the rate at which errors use up their budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.validation import (
    check_at_least_one,
    check_span,
    check_span_or_none,
    check_text,
    checked_by,
    instance_of,
    to_seconds,
)
from retrytemplate.observe.alerts.selection import Selection
from retrytemplate.observe.instruments.totals import check_window

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = 86_400.0
SUCCESSES = ("success", "success_after_retry", "recovered")
NO_RESULT = ("cancelled", "redelivered")


def _check_share(name: str, value: Any) -> None:
    allowed = "a number > 0 and < 1"
    check_span(name, value, allowed)
    if value >= 1:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def _check_share_or_none(name: str, value: Any) -> None:
    if value is not None:
        _check_share(name, value)


@frozen
class Latency:
    """Limits of the duration of successful calls.

    Each limit must be the upper bound of a bucket: pass ``SLO.thresholds`` to the metrics.

    :param p95: limit in seconds for 95 % of the calls; default None: no limit.
    :param p99: limit in seconds for 99 % of the calls; default None: no limit.
    """

    p95: float | None = field(
        default=None, converter=to_seconds, validator=checked_by(check_span_or_none)
    )
    p99: float | None = field(
        default=None, converter=to_seconds, validator=checked_by(check_span_or_none)
    )


@frozen
class BurnRule:
    """Raises an alert if the burn rate exceeds a factor in two windows.

    The long window shows that the errors matter, the short one that they continue.

    :param long: duration of the long window in seconds.
    :param short: duration of the short window in seconds, below ``long``.
    :param factor: the burn rate, above 0.
    """

    long: float = field(converter=to_seconds, validator=checked_by(check_window))
    short: float = field(converter=to_seconds, validator=checked_by(check_span))
    factor: float = field(validator=checked_by(check_span, "a number > 0"))

    def __attrs_post_init__(self) -> None:
        if self.short >= self.long:
            raise ValueError(f"short must be below long ({self.long:g} s), got {self.short:g} s")


@frozen
class BurnRules:
    """The burn rates that page an operator, or open a ticket.

    :param page: default: above 14 in 1 hour and in 5 minutes.
    :param ticket: default: above 6 in 6 hours and in 30 minutes.
    """

    page: BurnRule = field(
        default=BurnRule(3600.0, 300.0, 14.0), validator=instance_of(BurnRule, "a BurnRule")
    )
    ticket: BurnRule = field(
        default=BurnRule(21_600.0, 1800.0, 6.0), validator=instance_of(BurnRule, "a BurnRule")
    )


@frozen
class BurnRate:
    """How fast the errors of a window use up the budget of errors.

    :param window: seconds.
    :param bad: calls that do not meet the objective.
    :param valid: all calls that count.
    :param target: the share of calls that must meet the objective.

    >>> from retrytemplate.observe import BurnRate
    >>> burn = BurnRate(window=3600, bad=30, valid=2000, target=0.999)
    >>> round(burn.ratio, 4), round(burn.rate, 2)
    (0.015, 15.0)
    """

    window: float
    bad: float
    valid: float
    target: float

    @property
    def ratio(self) -> float:
        """Share of the calls that do not meet the objective; 0 without calls."""
        return self.bad / self.valid if self.valid else 0.0

    @property
    def rate(self) -> float:
        """The ratio, divided by the ratio that the objective allows."""
        return self.ratio / (1.0 - self.target)

    @property
    def budget_left(self) -> float:
        """Share of the allowed errors that has not occurred; negative if more have occurred."""
        return 1.0 - self.rate

    @property
    def downtime_allowed(self) -> float:
        """Seconds of a full outage that the objective allows in the window."""
        return (1.0 - self.target) * self.window

    @property
    def downtime_used(self) -> float:
        """The errors of the window, as seconds of a full outage with the same number of calls."""
        return self.ratio * self.window


@frozen
class Objective:
    """One objective of an SLO: a share of the valid calls must not be bad.

    :param name: ``availability``, ``latency_p95`` or ``latency_p99``.
    :param valid: the calls that count.
    :param bad: those that do not meet the objective, but for the ``excused`` ones.
    :param threshold: of a latency, in seconds.
    """

    slo: SLO
    name: str
    target: float
    valid: Selection
    bad: Selection
    excused: Selection
    threshold: float | None = None


@frozen
class SLO:
    """Service level objectives of the calls of a template or an endpoint.

    A bad call failed or was rejected, and no fallback of the same name answered it.  Recovered
    calls are good.  Cancelled calls, and failures that are re-raised for a redelivery, do not
    count.

    :param name: of the template, the endpoint and the fallback; shown in alerts.
    :param availability: share of calls that must be good, above 0, below 1.
    :param latency: limits of the duration of successful calls; default None: no limits.
    :param error_rate: share of bad calls in 5 minutes that raises an alert, above 0, below 1;
        default None: no alert.
    :param window: seconds for which the objectives hold, at most 30 days; default 30 days.
    :param burn: the burn rates that raise alerts.
    :param min_calls: calls in the long window below which no alert is raised; default 100, at
        least 1.
    :raises ValueError: a number is out of its range.

    >>> from retrytemplate.observe import SLO, Latency
    >>> billing = SLO("billing", availability=0.999, latency=Latency(p95=3.0), error_rate=0.01)
    >>> billing.thresholds, round(billing.downtime_allowed / 60, 1)
    ((3.0,), 43.2)
    """

    name: str = field(validator=checked_by(check_text))
    availability: float = field(kw_only=True, validator=checked_by(_check_share))
    latency: Latency | None = field(
        default=None,
        kw_only=True,
        validator=instance_of((Latency, type(None)), "a Latency or None"),
    )
    error_rate: float | None = field(
        default=None, kw_only=True, validator=checked_by(_check_share_or_none)
    )
    window: float = field(
        default=30 * DAY, kw_only=True, converter=to_seconds, validator=checked_by(check_window)
    )
    burn: BurnRules = field(
        default=BurnRules(), kw_only=True, validator=instance_of(BurnRules, "a BurnRules")
    )
    min_calls: int = field(default=100, kw_only=True, validator=checked_by(check_at_least_one))

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The availability, then the limits of latency."""
        return tuple(self._objectives())

    def _objectives(self) -> Iterator[Objective]:
        name, calls = self.name, "call.duration"
        yield Objective(
            self,
            "availability",
            self.availability,
            valid=Selection(calls, only={"template": name}, without={"outcome": NO_RESULT}),
            bad=Selection(calls, only={"template": name, "outcome": ("failed", "rejected")}),
            excused=Selection(
                "fallback.calls", only={"name": name}, without={"source": ("primary", "none")}
            ),
        )
        only: dict[str, str | tuple[str, ...]] = {"template": name, "outcome": SUCCESSES}
        for quantile, target in (("p95", 0.95), ("p99", 0.99)):
            limit = getattr(self.latency, quantile, None)
            if limit is not None:
                done = Selection(calls, only=only)
                within = Selection(calls, only=only, up_to=limit)
                yield Objective(self, f"latency_{quantile}", target, done, done, within, limit)

    @property
    def burn_rules(self) -> tuple[tuple[str, BurnRule], ...]:
        """The severity and the rule of each burn rate that raises an alert."""
        return (("page", self.burn.page), ("ticket", self.burn.ticket))

    @property
    def burn_windows(self) -> tuple[float, ...]:
        """The windows of the burn rates in seconds, the shortest first."""
        return tuple(
            sorted({each for _, rule in self.burn_rules for each in (rule.short, rule.long)})
        )

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The limits of latency in seconds: the upper bounds of buckets that the metrics need."""
        limits = (each.threshold for each in self.objectives)
        return tuple(each for each in limits if each is not None)

    @property
    def downtime_allowed(self) -> float:
        """Seconds of a full outage that the availability allows in the window."""
        return (1.0 - self.availability) * self.window
