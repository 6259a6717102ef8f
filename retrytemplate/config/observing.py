"""The observer that section ``observe`` describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate.config.kinds import Alerts
from retrytemplate.observe.alerts.evaluator import AlertEvaluator
from retrytemplate.observe.installation import install, installed, uninstall
from retrytemplate.observe.instruments.memory import InMemoryMetrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrytemplate.clock import Clock
    from retrytemplate.observe.alerts.slo import SLO
    from retrytemplate.observe.instruments.registry import Registry
    from retrytemplate.observe.observer import Observer


@frozen(eq=False)
class Observing:
    """The observer of the process, and the alerts of a configuration.

    :param alerts: None: section ``observe`` has none.
    """

    observer: Observer
    alerts: AlertEvaluator | None

    def close(self) -> None:
        """End the alerts, and remove the observer unless another one has replaced it."""
        if self.alerts is not None:
            self.alerts.close()
        if installed() is self.observer:
            uninstall()


def install_observer(
    settings: Mapping[str, Any],
    slos: tuple[SLO, ...],
    registry: Registry,
    clock: Clock | None,
) -> Observing:
    """Install the observer of the settings."""
    given: dict[str, Any] = {} if clock is None else {"clock": clock}
    settings = dict(settings)
    events, alerts = settings.pop("events", None), settings.pop("alerts", False)
    metrics = []
    if alerts or settings.get("prometheus") or settings.get("otel"):
        # Alerts and exporters read the same numbers; each limit of an SLO is a bucket.
        thresholds = {each for slo in slos for each in slo.thresholds}
        metrics = [InMemoryMetrics(thresholds=thresholds, **given)]
    sinks = [] if events is None else [events]
    observer = install(**settings, sinks=sinks, metrics=metrics, registry=registry, **given)
    if not alerts:
        return Observing(observer, None)

    every = alerts.every if isinstance(alerts, Alerts) else Alerts().every
    evaluator = AlertEvaluator(observer, slos, registry=registry, every=every, **given)
    evaluator.start()
    return Observing(observer, evaluator)
