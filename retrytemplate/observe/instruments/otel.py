"""Metrics of OpenTelemetry."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from retrytemplate._internal.imports import extra
from retrytemplate._internal.validation import check_methods
from retrytemplate.observe.instruments.base import exported, resolve
from retrytemplate.observe.instruments.memory import InMemoryMetrics, given_metrics
from retrytemplate.observe.instruments.registry import Registry, given_registry
from retrytemplate.observe.instruments.table import INSTRUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.metrics import MeterProvider, Observation

    from retrytemplate.observe.instruments.table import Instrument

# A meter keeps the callbacks of the first instrument with a name: they read the newest object.
_global_exporters: list[OTelMetrics] = []
_exporters: WeakKeyDictionary[Any, list[OTelMetrics]] = WeakKeyDictionary()  # by meter provider


class OTelMetrics:
    """Exports the metrics through a meter of OpenTelemetry.

    Counters and gauges are read when they are exported; durations are recorded at each call, since
    OpenTelemetry has no observable histogram.  Needs the extra ``otel``.

    :param metrics: the counters, which another object records in; this one then records durations
        only.  None: a new ``InMemoryMetrics``, the attribute ``metrics``, which this one records
        in.
    :param meter_provider: of OpenTelemetry; None: the global one.
    :param registry: the components whose snapshots give the gauges; None: one of all live
        components, the attribute ``registry``.
    :param durations: whether durations are exported; default True.
    :raises MissingExtraError: ``opentelemetry-api`` is not installed.

    >>> from opentelemetry.sdk.metrics import MeterProvider
    >>> from retrytemplate.observe import OTelMetrics
    >>> provider = MeterProvider()
    >>> metrics = OTelMetrics(meter_provider=provider)
    >>> metrics.first_success("billing", 0.02)
    >>> provider.shutdown()
    """

    limits_labels = True
    """Whether it limits the values of labels itself."""

    def __init__(
        self,
        metrics: InMemoryMetrics | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        registry: Registry | None = None,
        durations: bool = True,
    ) -> None:
        with extra("otel", "OTelMetrics"):
            from opentelemetry.metrics import get_meter
        self._records = metrics is None
        self.metrics = given_metrics(metrics)
        self.registry = given_registry(registry)
        if meter_provider is not None:
            check_methods("meter_provider", meter_provider, "get_meter")
        meter = get_meter("retrytemplate", meter_provider=meter_provider)
        self._exporters = _exporters_of(meter_provider)
        self._exporters.append(self)
        self._histograms: dict[str, Any] = {}
        for instrument in INSTRUMENTS.values():
            names = (instrument.otel_name, instrument.unit, instrument.description)
            if instrument.kind != "histogram":
                observe = partial(_observe, self._exporters, instrument)
                create: Any = getattr(meter, f"create_observable_{instrument.kind}")
                create(names[0], [observe], *names[1:])
            elif durations:
                self._histograms[instrument.name] = meter.create_histogram(
                    *names, explicit_bucket_boundaries_advisory=self.metrics.bounds
                )

    def add(self, name: str, labels: Mapping[str, str], amount: float = 1.0) -> None:
        """Add to a counter; or to a gauge, where the amount may be negative.

        :raises ValueError: there is no such counter or gauge, it has other labels, or the amount of
            a counter is negative.
        """
        if self._records:
            self.metrics.add(name, labels, amount)

    def record(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Record a duration in a histogram, in seconds.

        :raises ValueError: there is no such histogram, or it has other labels.
        """
        instrument, values = resolve(name, labels, "histogram", amount=value)
        if self._records:
            self.metrics.record(name, labels, value)
        self._export(instrument, values, value)

    def first_success(self, template: str, elapsed: float) -> None:
        """Record a call that succeeded at its first attempt, with its duration in seconds."""
        if self._records:
            self.metrics.first_success(template, elapsed)
        for name in ("call.duration", "attempt.duration"):
            self._export(INSTRUMENTS[name], (template, "success"), elapsed)

    def _export(self, instrument: Instrument, values: tuple[str, ...], value: float) -> None:
        histogram = self._histograms.get(instrument.name)
        if histogram is not None:
            shown = self.metrics.limited(instrument, values)
            histogram.record(value, dict(zip(instrument.labels, exported(shown), strict=True)))

    def close(self) -> None:
        """Export no counters and gauges any more."""
        if self in self._exporters:
            self._exporters.remove(self)

    def _observe(self, instrument: Instrument) -> Iterator[Observation]:
        from opentelemetry.metrics import Observation

        if instrument.kind == "gauge":
            gauges = self.metrics.gauges(self.registry, instrument.name)
            found: Any = gauges.get(instrument.name, {})
        else:
            found = self.metrics.read(instrument.name)
        for values, value in found.items():
            yield Observation(value, dict(zip(instrument.labels, exported(values), strict=True)))


def _exporters_of(meter_provider: Any) -> list[OTelMetrics]:
    from opentelemetry.metrics import get_meter_provider

    if meter_provider is None or meter_provider is get_meter_provider():
        return _global_exporters
    return _exporters.setdefault(meter_provider, [])


def _observe(exporters: list[OTelMetrics], instrument: Instrument, _: Any) -> Iterator[Observation]:
    """The present values of a counter or gauge, from the newest object."""
    for newest in exporters[-1:]:
        yield from newest._observe(instrument)
