"""Evaluation of objectives and rules in this process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import frozen

from retrytemplate._internal.locks import Monitor, Reentered
from retrytemplate._internal.validation import SECONDS, check_span, read_seconds, to_tuple
from retrytemplate._storage.fork_safety import register
from retrytemplate.clock import given_or_system
from retrytemplate.control._poller import BackgroundPoller
from retrytemplate.observe.alerts.reading import Reading
from retrytemplate.observe.alerts.report import SLOReport, process_report
from retrytemplate.observe.alerts.rules import CLEAR_AFTER, DEFAULT_RULES, WINDOW, AlertRule
from retrytemplate.observe.alerts.slo import SLO
from retrytemplate.observe.event_types import EVENT_TYPES
from retrytemplate.observe.instruments.memory import InMemoryMetrics
from retrytemplate.observe.instruments.registry import given_registry
from retrytemplate.observe.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import timedelta
    from types import TracebackType

    from retrytemplate.clock import Clock
    from retrytemplate.observe.event import Event
    from retrytemplate.observe.instruments.registry import Registry

    Change = tuple[str, "_Number"]

T = TypeVar("T")

LEVELS = {
    "info": logging.INFO,
    "warning": logging.WARNING,
    "ticket": logging.WARNING,
    "critical": logging.CRITICAL,
    "page": logging.CRITICAL,
}


@frozen
class _Number:
    """A number that may exceed its limit."""

    rule: str
    subject: str
    level: int
    value: float
    limit: float
    window: float
    clear_after: float
    exceeds: bool

    def event(self, kind: str, observer: Observer) -> Event:
        """The event of the alert that is raised or cleared."""
        level = self.level if kind == "alert.raised" else logging.INFO
        data = {name: getattr(self, name) for name in EVENT_TYPES[kind].keys}
        return observer._event(kind, self.subject, data, level, None)


class AlertEvaluator:
    """Raises alerts from the metrics of an observer, and reports on its SLOs.

    Each alert is raised once and cleared once, as an event for the observer's sinks.  It is cleared
    five minutes after its number exceeded the limit for the last time, or as the rule says.
    ``start`` evaluates in a background thread; without it, call ``evaluate``.  Any thread may use
    the object.

    :param observer: its first ``InMemoryMetrics`` have the counted calls, with a bucket for each
        limit of latency; its sinks receive ``alert.raised`` and ``alert.cleared``.
    :param slos: their burn rates and error rates raise alerts; default none.
    :param rules: further rules; default ``DEFAULT_RULES``.
    :param registry: the components whose snapshots give the gauges; None: one of all live
        components, the attribute ``registry``.
    :param every: seconds between two evaluations of the background thread, above 0; default 60.
    :param clock: measures when an alert is cleared.
    :raises TypeError: ``observer`` is no ``Observer``, or another argument has another type.
    :raises ValueError: the observer has no ``InMemoryMetrics``, they have no bucket for a limit of
        latency, or a number is out of its range.

    >>> from retrytemplate.observe import AlertEvaluator, InMemoryMetrics, Observer
    >>> metrics = InMemoryMetrics()
    >>> for _ in range(10):
    ...     metrics.first_success("billing", 7.0)
    >>> evaluator = AlertEvaluator(Observer(metrics=[metrics]))
    >>> [(event.data["rule"], event.subject) for event in evaluator.evaluate()]
    [('slow_calls', 'template=billing')]
    """

    def __init__(
        self,
        observer: Observer,
        slos: Iterable[SLO] = (),
        rules: Iterable[AlertRule] = DEFAULT_RULES,
        registry: Registry | None = None,
        *,
        every: float | timedelta = 60.0,
        clock: Clock | None = None,
    ) -> None:
        self.slos = _all_of("slos", slos, SLO)
        self.rules = _all_of("rules", rules, AlertRule)
        self.observer, self.metrics = observer, _metrics_of(observer)
        self.registry = given_registry(registry)
        missing = {each for slo in self.slos for each in slo.thresholds} - {*self.metrics.bounds}
        if missing:
            raise ValueError(
                f"metrics must have a bucket for each limit of latency, got none for "
                f"{min(missing):g} s; pass thresholds= to InMemoryMetrics"
            )
        period = read_seconds("every", every, _check_period)
        self._clock = given_or_system(clock)
        # The alerts in force, each with its last number, and when that exceeded the limit.
        self._raised: dict[tuple[str, str], tuple[_Number, float]] = {}
        self._monitor = Monitor()
        self._monitor.forked = self._raised.clear
        self._poller = BackgroundPoller(self._poll, period, name="retrytemplate-alerts")

    def start(self) -> None:
        """Evaluate in a background thread, also in child processes, until ``close``."""
        register(self)
        self._poller.ensure_running()

    def close(self) -> None:
        """Stop the background thread."""
        self._poller.close()

    def __enter__(self) -> AlertEvaluator:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _forked(self) -> None:
        self._poller.forked()
        self._poller.ensure_running()

    def _poll(self) -> bool:
        self.evaluate()
        return True

    def evaluate(self) -> tuple[Event, ...]:
        """Evaluate now; return the events of alerts that were raised and cleared."""
        numbers = tuple(self._numbers(Reading(self.metrics, self.registry)))
        try:
            changes = self._monitor.run(self._update, numbers, self._clock.monotonic())
        except Reentered:  # this thread was interrupted in an evaluation, which it will finish
            return ()
        events = tuple(number.event(kind, self.observer) for kind, number in changes)
        for event in events:
            self.observer._deliver(event)
        return events

    def report(self) -> SLOReport:
        """The burn rates and budgets of the SLOs, from the calls of this process."""
        return process_report(self.slos, self.metrics, self.registry)

    def _numbers(self, reading: Reading) -> Iterator[_Number]:
        for slo in self.slos:
            yield from _burn_rates(slo, reading)
            yield from _error_rate(slo, reading)
        for rule in self.rules:
            for group, value in reading.values(rule).items():
                subject = ", ".join(f"{k}={v}" for k, v in zip(rule.by, group, strict=True))
                yield _Number(
                    rule.name,
                    subject or "all",
                    LEVELS[rule.severity],
                    value,
                    rule.limit,
                    rule.window,
                    rule.clear_after,
                    value > rule.limit,
                )

    def _update(self, numbers: tuple[_Number, ...], now: float) -> tuple[Change, ...]:
        changes: list[Change] = []
        found = {(each.rule, each.subject): each for each in numbers}
        for key, number in found.items():
            if number.exceeds:
                if key not in self._raised:
                    changes.append(("alert.raised", number))
                self._raised[key] = number, now
        for key, (number, last) in tuple(self._raised.items()):
            if now > last and now - last >= number.clear_after:
                del self._raised[key]
                changes.append(("alert.cleared", found.get(key, number)))
        return tuple(changes)


def _all_of(name: str, given: Any, kind: type[T]) -> tuple[T, ...]:
    found = to_tuple(name, given)
    for each in found:
        if not isinstance(each, kind):
            raise TypeError(f"{name}: each must be of {kind.__name__}, got {each!r}")
    return found


def _metrics_of(observer: Any) -> InMemoryMetrics:
    if not isinstance(observer, Observer):
        raise TypeError(f"observer must be an Observer, got {observer!r}")
    found = next((each for each in observer.metrics if isinstance(each, InMemoryMetrics)), None)
    if found is None:
        raise ValueError(
            "observer must have InMemoryMetrics, as Observer(metrics=[InMemoryMetrics()]), "
            f"got {observer!r}"
        )
    return found


def _check_period(name: str, value: Any) -> None:
    check_span(name, value, f"{SECONDS} > 0")


def _burn_rates(slo: SLO, reading: Reading) -> Iterator[_Number]:
    for objective in slo.objectives:
        for severity, rule in slo.burn_rules:
            long = reading.burn_rate(objective, rule.long)
            short = reading.burn_rate(objective, rule.short)
            enough = long.valid >= slo.min_calls
            yield _Number(
                f"{objective.name}.{severity}",
                slo.name,
                LEVELS[severity],
                long.rate,
                rule.factor,
                rule.long,
                CLEAR_AFTER,
                enough and min(long.rate, short.rate) > rule.factor,
            )


def _error_rate(slo: SLO, reading: Reading) -> Iterator[_Number]:
    if slo.error_rate is None:
        return
    found = reading.burn_rate(slo.objectives[0], WINDOW)
    exceeds = found.valid >= slo.min_calls and found.ratio > slo.error_rate
    level = LEVELS["warning"]
    yield _Number(
        "error_rate", slo.name, level, found.ratio, slo.error_rate, WINDOW, CLEAR_AFTER, exceeds
    )
