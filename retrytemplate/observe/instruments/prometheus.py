"""Exporters for Prometheus."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.imports import extra
from retrytemplate._internal.locks import Monitor
from retrytemplate._internal.validation import check_at_least_one
from retrytemplate._storage.fork_safety import register
from retrytemplate.control._poller import BackgroundPoller
from retrytemplate.errors import MisuseError
from retrytemplate.observe.instruments.base import (
    MAX_LABEL_VALUES,
    LabelLimit,
    bucket_bounds,
    exported,
    resolve,
)
from retrytemplate.observe.instruments.memory import InMemoryMetrics, given_metrics
from retrytemplate.observe.instruments.registry import Registry, given_registry
from retrytemplate.observe.instruments.table import INSTRUMENTS, Instrument
from retrytemplate.observe.instruments.totals import Distribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

GAUGE_INTERVAL = 5.0
"""Seconds between two writes of the gauges."""
MULTIPROCESS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")


class PrometheusCollector:
    """Shows the metrics of this process to ``prometheus_client``.

    It reads them when Prometheus scrapes the process; a call pays nothing for it.  Needs the extra
    ``prometheus``.

    :param metrics: the values; None: a new ``InMemoryMetrics``, the attribute ``metrics``.
    :param registry: the components whose snapshots give the gauges; None: one of all live
        components, the attribute ``registry``.
    :param target: the registry of ``prometheus_client`` that it is added to; None: ``REGISTRY``.
    :raises MisuseError: the environment has ``PROMETHEUS_MULTIPROC_DIR``; use
        ``PrometheusMetrics``.
    :raises MissingExtraError: ``prometheus_client`` is not installed.

    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> from retrytemplate.observe import PrometheusCollector
    >>> target = CollectorRegistry()
    >>> collector = PrometheusCollector(target=target)
    >>> collector.metrics.add("retries", {"template": "billing", "error.type": "TimeoutError"})
    >>> lines = generate_latest(target).decode().splitlines()
    >>> [line for line in lines if line.startswith("retrytemplate_retries")]
    ['retrytemplate_retries_total{error_type="TimeoutError",template="billing"} 1.0']
    """

    def __init__(
        self,
        metrics: InMemoryMetrics | None = None,
        registry: Registry | None = None,
        *,
        target: CollectorRegistry | None = None,
    ) -> None:
        if any(os.environ.get(each) for each in MULTIPROCESS):
            raise MisuseError(
                "PROMETHEUS_MULTIPROC_DIR is set: a collector shows one process; "
                "use PrometheusMetrics"
            )
        with extra("prometheus", "a PrometheusCollector"):
            from prometheus_client import REGISTRY
        self.metrics = given_metrics(metrics)
        self.registry = given_registry(registry)
        self._target = REGISTRY if target is None else target
        self._target.register(self)

    def close(self) -> None:
        """Remove it from the target."""
        self._target.unregister(self)

    def describe(self) -> Iterator[Metric]:
        """The families without values."""
        return map(_family, INSTRUMENTS.values())

    def collect(self) -> Iterator[Metric]:
        """The families with their present values."""
        values, gauges = self.metrics.snapshot(), self.metrics.gauges(self.registry)
        for name, instrument in INSTRUMENTS.items():
            family = _family(instrument)
            found = gauges if instrument.kind == "gauge" else values
            for labels, value in found.get(name, {}).items():
                if isinstance(value, Distribution):
                    family.add_metric(exported(labels), _buckets(value), value.sum)
                else:
                    family.add_metric(exported(labels), value)
            yield family


class PrometheusMetrics:
    """Metrics of several processes that share ``PROMETHEUS_MULTIPROC_DIR``.

    Native instruments of ``prometheus_client``, whose ``MultiProcessCollector`` adds up the
    processes.  Needs the extra ``prometheus``.

    A background thread writes the gauges of the components every 5 s.  They are added up over the
    live processes; of a ratio and of ``dead_letter_backlog`` the largest value is shown, of
    ``store_up`` the smallest.  The locks of ``prometheus_client`` cannot be entered twice: let no
    signal handler record in it.

    :param registry: the components whose snapshots give the gauges; None: one of all live
        components, the attribute ``registry``.
    :param target: the registry of ``prometheus_client`` that it is added to; None: ``REGISTRY``.
    :param thresholds: further upper bounds of the buckets of every histogram, in seconds; default
        none.
    :param max_label_values: different values of one label of one metric, at least 1; default 200.
        Further ones are recorded as ``_other``.
    :raises MissingExtraError: ``prometheus_client`` is not installed.
    :raises ValueError: a number is out of its range, or the target has these metrics already.

    >>> from prometheus_client import CollectorRegistry
    >>> from retrytemplate.observe import PrometheusMetrics
    >>> target = CollectorRegistry()
    >>> metrics = PrometheusMetrics(target=target)
    >>> metrics.add("sink.errors", {"sink": "log"})
    >>> target.get_sample_value("retrytemplate_sink_errors_total", {"sink": "log"})
    1.0
    >>> metrics.close()
    """

    limits_labels = True
    """Whether it limits the values of labels itself."""

    def __init__(
        self,
        registry: Registry | None = None,
        *,
        target: CollectorRegistry | None = None,
        thresholds: Iterable[float] = (),
        max_label_values: int = MAX_LABEL_VALUES,
    ) -> None:
        check_at_least_one("max_label_values", max_label_values)
        bounds = bucket_bounds(thresholds)
        with extra("prometheus", "PrometheusMetrics"):
            from prometheus_client import REGISTRY
        self.registry = given_registry(registry)
        self._target = REGISTRY if target is None else target
        self._metrics = {
            name: _native(instrument, self._target, bounds)
            for name, instrument in INSTRUMENTS.items()
        }
        self._limit, self._monitor = LabelLimit(max_label_values), Monitor()
        self._first: dict[str, tuple[Any, Any]] = {}  # the histograms of call and attempt
        self._written: set[tuple[str, tuple[str, ...]]] = set()
        self._poller = BackgroundPoller(
            self._poll, GAUGE_INTERVAL, name="retrytemplate-prometheus-gauges"
        )
        register(self)
        self._poller.ensure_running()

    def _forked(self) -> None:
        self._first.clear()  # so that the first call of a template starts the thread
        self._poller.forked()

    def close(self) -> None:
        """Stop the background thread, and remove the metrics from the target."""
        self._poller.close()
        for each in self._metrics.values():
            self._target.unregister(each)

    def add(self, name: str, labels: Mapping[str, str], amount: float = 1.0) -> None:
        """Add to a counter; or to a gauge, where the amount may be negative.

        :raises ValueError: there is no such counter or gauge, it has other labels, or the amount of
            a counter is negative.
        """
        self._child(*resolve(name, labels, "counter", "gauge", amount=amount)).inc(amount)

    def record(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Record a duration in a histogram, in seconds.

        :raises ValueError: there is no such histogram, or it has other labels.
        """
        self._child(*resolve(name, labels, "histogram", amount=value)).observe(value)

    def first_success(self, template: str, elapsed: float) -> None:
        """Record a call that succeeded at its first attempt, with its duration in seconds."""
        call, attempt = self._first.get(template) or self._first_children(template)
        call.observe(elapsed)
        attempt.observe(elapsed)

    def _first_children(self, template: str) -> tuple[Any, Any]:
        key, names = (template, "success"), ("call.duration", "attempt.duration")
        shown = [self._limited(INSTRUMENTS[name], key) for name in names]
        call, attempt = (self._series(name, shown[0]) for name in names)
        if shown[0] == key:
            self._first[template] = (call, attempt)
        return call, attempt

    def _child(self, instrument: Instrument, values: tuple[str, ...]) -> Any:
        return self._series(instrument.name, self._limited(instrument, values))

    def _series(self, name: str, values: tuple[str, ...]) -> Any:
        return self._metrics[name].labels(*exported(values))

    def _limited(self, instrument: Instrument, values: tuple[str, ...]) -> tuple[str, ...]:
        self._poller.ensure_running()
        shown = self._monitor.read(self._limit.apply, instrument, values)
        if shown != values:
            self._limit.log()
            self._metrics["label.overflows"].labels(instrument.name).inc()
        return shown

    def _poll(self) -> bool:
        self.write_gauges()
        return True

    def write_gauges(self) -> None:
        """Write the gauges of the components now, without waiting for the background thread."""
        measured = list(self.registry.gauges())
        shown = self._monitor.read(self._limit.apply_to_gauges, measured)
        self._limit.log()
        written = {(name, values) for name, series in shown.items() for values in series}
        for name, values in self._written - written:
            if name != "store.up":  # its component is gone, and its store may be reachable
                self._series(name, values).set(0)
        for name, values in written:
            self._series(name, values).set(shown[name][values])
        self._written = written


def _native(instrument: Instrument, target: CollectorRegistry, bounds: tuple[float, ...]) -> Any:
    import prometheus_client

    settings: dict[str, Any] = {}
    if instrument.kind == "histogram":
        settings["buckets"] = bounds
    elif instrument.kind == "gauge":
        # The processes of one database have the same backlog.
        is_shared = instrument.unit == "1" or instrument.name == "dead_letter.backlog"
        mode = "livemax" if is_shared else "livesum"
        settings["multiprocess_mode"] = "livemin" if instrument.name == "store.up" else mode
    return getattr(prometheus_client, instrument.kind.capitalize())(
        instrument.prometheus_family,
        instrument.description,
        instrument.prometheus_labels,
        registry=target,
        **settings,
    )


def _family(instrument: Instrument) -> Any:
    from prometheus_client import core

    kind: Any = {
        "counter": core.CounterMetricFamily,
        "gauge": core.GaugeMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }[instrument.kind]
    return kind(
        instrument.prometheus_family,
        instrument.description,
        labels=instrument.prometheus_labels,
        unit="seconds" if instrument.unit == "s" else "",
    )


def _buckets(value: Distribution) -> list[tuple[str, int]]:
    """The upper bounds as text, with the number of durations up to each."""
    number, buckets = 0, []
    for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
        number += count
        buckets.append((_text(bound), number))
    return buckets


def _text(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(bound)
