"""Calls on a virtual clock, for tests of objectives and rules."""

from retrytemplate.control import Bulkhead
from retrytemplate.observe import AlertEvaluator, InMemoryMetrics, MemorySink, Observer, Registry
from retrytemplate.testing import VirtualClock

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


class Shop:
    """Metrics of calls, and an evaluator, on one virtual clock.

    The keyword arguments are those of the evaluator.
    """

    def __init__(self, *slos, **settings):
        self.clock = VirtualClock()
        self.clock.advance(HOUR - self.clock.time() % HOUR)
        thresholds = [each for slo in slos for each in slo.thresholds]
        self.metrics = InMemoryMetrics(clock=self.clock, thresholds=thresholds)
        self.registry = Registry()
        self.kept = MemorySink()
        observer = Observer(sinks=[self.kept], metrics=[self.metrics], clock=self.clock)
        self.evaluator = AlertEvaluator(
            observer, slos, registry=self.registry, clock=self.clock, **settings
        )

    def calls(self, number, outcome="success", duration=0.1, template="billing"):
        """Record calls of one outcome."""
        labels = {"template": template, "outcome": outcome}
        for _ in range(number):
            self.metrics.record("call.duration", labels, duration)

    def fallback(self, number, source, name="billing"):
        """Record calls of a fallback."""
        self.metrics.add("fallback.calls", {"name": name, "source": source}, number)

    def steady(self, minutes, good, bad):
        """Record calls in each of some minutes, and evaluate after each; return the alerts."""
        alerts = []
        for _ in range(minutes):
            self.calls(good)
            self.calls(bad, "failed")
            self.clock.advance(MINUTE)
            alerts += self.evaluator.evaluate()
        return alerts

    def bulkhead(self, limit):
        """A bulkhead whose gauges are read."""
        made = Bulkhead("llm", limit=limit)
        self.registry.add(made)
        return made


def shown(alerts):
    """The short form of alerts: type, rule and subject."""
    return [(each.type.removeprefix("alert."), each.data["rule"], each.subject) for each in alerts]
