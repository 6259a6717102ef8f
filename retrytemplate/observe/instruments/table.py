"""The table of all metrics; exporters, documentation and tests are made from it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["counter", "gauge", "histogram"]

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of a histogram, in seconds."""


@frozen
class Instrument:
    """One metric: a row of the table ``INSTRUMENTS``.

    :param name: without the namespace ``retrytemplate``.
    :param kind: ``"counter"``, ``"gauge"`` or ``"histogram"``.
    :param unit: as OpenTelemetry writes it: ``s``, ``1`` for a ratio, or ``{call}``.
    :param labels: names of the labels, in the order of their values.
    :param description: one sentence.
    :param buckets: upper bounds of the buckets of a histogram, in seconds.

    >>> from retrytemplate.observe import INSTRUMENTS
    >>> retries = INSTRUMENTS["retries"]
    >>> retries.prometheus_name, retries.otel_name
    ('retrytemplate_retries_total', 'retrytemplate.retries')
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    description: str
    buckets: tuple[float, ...] = ()

    @property
    def otel_name(self) -> str:
        """The name in OpenTelemetry."""
        return f"retrytemplate.{self.name}"

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus, with the suffixes of unit and kind."""
        total = "_total" if self.kind == "counter" else ""
        return self.prometheus_family + total

    @property
    def prometheus_family(self) -> str:
        """The name of the family: without the ``_total`` of a counter."""
        seconds = "_seconds" if self.unit == "s" else ""
        return "retrytemplate_" + self.name.replace(".", "_") + seconds

    @property
    def prometheus_labels(self) -> tuple[str, ...]:
        """The names of the labels in Prometheus."""
        return tuple(each.replace(".", "_") for each in self.labels)


def _counter(name: str, unit: str, labels: str, description: str) -> Instrument:
    return Instrument(name, "counter", unit, tuple(labels.split()), description)


def _gauge(name: str, unit: str, labels: str, description: str) -> Instrument:
    return Instrument(name, "gauge", unit, tuple(labels.split()), description)


def _histogram(name: str, labels: str, description: str) -> Instrument:
    return Instrument(name, "histogram", "s", tuple(labels.split()), description, BUCKETS)


_TABLE = (
    _histogram("call.duration", "template outcome", "Time of a call with all attempts and waits."),
    _histogram("attempt.duration", "template outcome", "Time of one attempt."),
    _counter("retries", "{retry}", "template error.type", "Retries, by the error before them."),
    _counter("call.failures", "{call}", "template reason error.type", "Calls that failed."),
    _counter("backoff.time", "s", "template", "Time waited between attempts."),
    _counter("attempt.lost", "{attempt}", "template", "Attempts lost with their process."),
    _counter("attempt.overruns", "{attempt}", "template", "Attempts that exceeded their limit."),
    _histogram(
        "deadline.remaining",
        "operation dependency",
        "Time left in the deadline at the start of an attempt.",
    ),
    _counter(
        "timeouts", "{timeout}", "operation timeout_type retryable", "Timeouts of a function."
    ),
    _counter("rejections", "{call}", "component name", "Calls rejected by a component."),
    _gauge("circuit_breaker.state", "", "name state", "1 for the current state, else 0."),
    _counter(
        "circuit_breaker.transitions", "{transition}", "name to manual", "Changes of the state."
    ),
    _gauge("circuit_breaker.failure_ratio", "1", "name", "Share of failures in the window."),
    _gauge("bulkhead.usage", "{call}", "name", "Calls that hold a slot."),
    _gauge("bulkhead.waiting", "{call}", "name", "Calls that wait for a slot."),
    _gauge("bulkhead.limit", "{call}", "name", "Current number of slots."),
    _gauge("rate_limiter.available", "{permit}", "name", "Permits available now."),
    _gauge("rate_limiter.waiting", "{call}", "name", "Calls that wait for a permit."),
    _histogram("rate_limiter.wait.duration", "name", "Time a call waited for its permits."),
    _gauge("retry_budget.available", "{retry}", "name", "Retries (or tokens) available now."),
    _counter("fallback.calls", "{call}", "name source", "Calls by the source of their result."),
    _counter("hedges", "{hedge}", "name result", "Hedges by their result."),
    _gauge(
        "kill_switch.stopped_ratio", "1", "name scope target", "Share of keys that the scope stops."
    ),
    _gauge("store.up", "", "kind name", "1 if the store is reachable, else 0."),
    _counter("step.items", "{item}", "step result", "Items of a step by their result."),
    _gauge("step.progress_ratio", "1", "step", "Share of the source that was read."),
    _gauge("dead_letter.backlog", "{letter}", "step", "Open dead letters."),
    _counter("task.started", "{task}", "owner operation", "Tasks that were started."),
    _gauge("task.active", "{task}", "owner operation", "Running tasks."),
    _counter("task.cancelled", "{task}", "reason operation", "Tasks that were cancelled."),
    _counter("task.timed_out", "{task}", "timeout_type operation", "Tasks that timed out."),
    _counter("task.cleanup_failed", "{task}", "resource operation", "Cleanups that failed."),
    _gauge("queue.depth", "{message}", "queue_name", "Messages in the queue."),
    _counter("queue.ack_failed", "{message}", "queue_name reason", "Acknowledgements that failed."),
    _counter("queue.receive_failed", "{message}", "queue_name reason", "Receives that failed."),
    _counter("message.settled", "{message}", "queue_name action", "Messages that were settled."),
    _gauge("message.suspects", "{message}", "queue_name", "Open messages with a lost attempt."),
    _histogram("message.exclusive.duration", "queue_name", "Time of an exclusive attempt."),
    _counter("config.reloads", "{reload}", "result", "Reloads of the configuration."),
    _counter("sink.dropped", "{event}", "sink", "Events that a sink dropped."),
    _counter("sink.errors", "{error}", "sink", "Exceptions raised by a sink."),
    _counter("label.overflows", "{value}", "metric", "Label values recorded as _other."),
)

INSTRUMENTS: Mapping[str, Instrument] = MappingProxyType({each.name: each for each in _TABLE})
"""All metrics by name."""
