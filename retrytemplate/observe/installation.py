"""The observer of a process."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from retrytemplate._internal.imports import extra
from retrytemplate._internal.validation import check_flag, read_seconds, to_tuple
from retrytemplate.errors import MisuseError
from retrytemplate.listeners.defaults import add_default, remove_default
from retrytemplate.observe.instruments.base import MAX_LABEL_VALUES
from retrytemplate.observe.instruments.memory import InMemoryMetrics
from retrytemplate.observe.instruments.otel import OTelMetrics
from retrytemplate.observe.instruments.prometheus import (
    MULTIPROCESS,
    PrometheusCollector,
    PrometheusMetrics,
)
from retrytemplate.observe.instruments.registry import Registry, given_registry
from retrytemplate.observe.observer import Observer
from retrytemplate.observe.sinks.base import Sink, blocks, check_sink, needs_call
from retrytemplate.observe.sinks.buffered import BufferedSink
from retrytemplate.observe.sinks.log import LogSink
from retrytemplate.observe.sinks.rate_limited import RateLimitedSink
from retrytemplate.observe.sinks.span import SpanSink
from retrytemplate.observe.sinks.structured_log import StructlogSink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.observe.instruments.base import Metrics

TIMEOUT = 5.0  # seconds to wait for the sinks


@frozen
class _Installation:
    """An observer, and the exporters that end with it."""

    observer: Observer
    exporters: tuple[Any, ...]


_present: dict[None, _Installation] = {}  # at most one; each change is one atomic step


def install(
    *,
    logs: Literal["logging", "structlog"] | Sink | None = "logging",
    prometheus: bool = False,
    otel: bool = False,
    sinks: Iterable[Sink] = (),
    metrics: Iterable[Metrics] = (),
    registry: Registry | None = None,
    replace: bool = False,
    **options: Any,
) -> Observer:
    """Observe every template, control object, step and worker of the process.

    It also reaches objects that were created before, replaces the built-in log, and closes the
    sinks at the end of the program.

    :param logs: ``"logging"``: a ``LogSink``; ``"structlog"``: a ``StructlogSink``; a sink; or
        None: no log.
    :param prometheus: whether all metrics are in ``prometheus_client.REGISTRY``; default False.
        With ``PROMETHEUS_MULTIPROC_DIR`` in the environment by ``PrometheusMetrics``, else by a
        ``PrometheusCollector``.
    :param otel: whether spans get the events, and the global meter provider of OpenTelemetry the
        metrics; default False.
    :param sinks: further sinks.
    :param metrics: further receivers of measurements.  The exporters read an ``InMemoryMetrics``
        among them, if there is one.
    :param registry: of the components whose snapshots give the gauges; default None: all live
        components of the process.
    :param replace: True: an observer that is installed is replaced.
    :param options: further parameters of the ``Observer``.
    :raises MisuseError: an observer is installed, and ``replace`` is False.
    :raises MissingExtraError: the extra ``prometheus`` or ``otel`` is not installed.
    :raises TypeError: an argument has another type.  The installed observer stays.

    Repeated rejections become one line per 10 s; other sinks get at most 20 of one kind in 10 s.  A
    sink that does I/O gets its events from a background thread.  A ``SpanSink`` gets all, in the
    call.

    >>> from retrytemplate.observe import MemorySink, install, installed, uninstall
    >>> observer = install(sinks=[MemorySink()])
    >>> installed() is observer, uninstall(), installed()
    (True, True, None)
    """
    for name, flag in {"prometheus": prometheus, "otel": otel, "replace": replace}.items():
        check_flag(name, flag)
    if _present and not replace:
        raise _already_installed()
    log = _log_sink(logs)
    given, metrics = to_tuple("sinks", sinks), to_tuple("metrics", metrics)
    for sink in given:
        check_sink("sinks: each", sink)
    _check_before_replacement(metrics, registry, options, prometheus)
    wrapped: list[Any] = [] if log is None else [RateLimitedSink(_buffered(log), limit=1)]
    if otel:
        given += (SpanSink(),)
    if replace:
        uninstall()  # before the new exporters, which have the names of the old ones
    exporters = _Exporters(metrics, registry, options.get("max_label_values", MAX_LABEL_VALUES))
    try:
        if prometheus:
            exporters.add_prometheus()
        if otel:
            exporters.add_otel()
        wrapped += [
            each if needs_call(each) else RateLimitedSink(_buffered(each)) for each in given
        ]
        observer = Observer(sinks=wrapped, metrics=exporters.metrics, **options)
    except BaseException:
        _close(exporters.made)
        raise
    observer.writes_log = True  # the built-in log is replaced, also by no log
    exporters.registry.add(observer)  # its queues and tasks
    made = _Installation(observer, tuple(exporters.made))
    add_default(observer)
    atexit.register(observer.shutdown)
    while _present.setdefault(None, made) is not made:  # another thread has installed one
        if not replace:
            _end(made, TIMEOUT)
            raise _already_installed()
        uninstall()
    return observer


def _check_before_replacement(
    metrics: tuple[Metrics, ...], registry: Any, options: dict[str, Any], prometheus: bool
) -> None:
    """Raise what the later steps would raise when the old observer has ended."""
    Observer(metrics=metrics, **options)
    given_registry(registry)
    if prometheus:
        with extra("prometheus", "install(prometheus=True)"):
            import prometheus_client  # noqa: F401


def _already_installed() -> MisuseError:
    return MisuseError("an observer is installed already; use install(replace=True)")


def installed() -> Observer | None:
    """The observer that ``install`` has made, or None."""
    found = _present.get(None)
    return None if found is None else found.observer


def uninstall(timeout: Seconds = TIMEOUT) -> bool:
    """Remove the observer of the process and its exporters, and close its sinks.

    :param timeout: seconds, or a ``timedelta``, to wait for the sinks, at least 0; default 5.
    :returns: False: events may be lost.
    """
    limit = read_seconds("timeout", timeout)
    ended = _present.pop(None, None)
    return True if ended is None else _end(ended, limit)


def _end(ended: _Installation, timeout: float) -> bool:
    remove_default(ended.observer)
    atexit.unregister(ended.observer.shutdown)
    try:
        return ended.observer.shutdown(timeout)
    finally:
        _close(ended.exporters)


class _Exporters:
    """The metrics of an installation.  ``made`` are those that it closes."""

    def __init__(
        self, metrics: Iterable[Metrics], registry: Registry | None, max_label_values: int
    ) -> None:
        self.metrics: list[Any] = list(metrics)
        self.made: list[Any] = []
        self.registry = given_registry(registry)
        self._max_label_values = max_label_values

    def add_prometheus(self) -> None:
        """Show the metrics in ``prometheus_client.REGISTRY``."""
        made: Any
        if any(os.environ.get(each) for each in MULTIPROCESS):
            in_memory = [each for each in self.metrics if isinstance(each, InMemoryMetrics)]
            made = PrometheusMetrics(
                self.registry,
                thresholds=[bound for each in in_memory for bound in each.bounds],
                max_label_values=self._max_label_values,
            )
            self.metrics.append(made)
        else:
            made = PrometheusCollector(self._in_memory(), self.registry)
        self.made.append(made)

    def add_otel(self) -> None:
        """Export the metrics through the global meter provider of OpenTelemetry."""
        made = OTelMetrics(self._in_memory(), registry=self.registry)
        self.metrics.append(made)
        self.made.append(made)

    def _in_memory(self) -> InMemoryMetrics:
        """The values that the exporters read; they share them."""
        for each in self.metrics:
            if isinstance(each, InMemoryMetrics):
                return each
        made = InMemoryMetrics(max_label_values=self._max_label_values)
        self.metrics.append(made)
        return made


def _close(exporters: Iterable[Any]) -> None:
    for each in exporters:
        each.close()


def _log_sink(logs: Any) -> Any:
    if logs is None:
        return None
    if isinstance(logs, str):
        if logs not in ("logging", "structlog"):
            raise ValueError(f"logs must be 'logging', 'structlog', a sink or None, got {logs!r}")
        return LogSink() if logs == "logging" else StructlogSink()
    check_sink("logs", logs)
    return logs


def _buffered(sink: Sink) -> Sink:
    return BufferedSink(sink) if blocks(sink) else sink
