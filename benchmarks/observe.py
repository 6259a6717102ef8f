"""Time that logs and metrics add to calls, and the time of a scrape.

python benchmarks/observe.py
python benchmarks/observe.py --update docs/guide/metrics.md

Native instruments of prometheus_client and those of OpenTelemetry are measured beside.  That the
import of the library and calls that fail cost the same as before is measured by bench.py.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # the checkout that this file is in is measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attrs import field, frozen
from cells import fail_twice, succeed, succeed_async
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pages import INTERPRETER, options, show
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from retrytemplate import LoggingListener, Rejected, RetryTemplate
from retrytemplate.control import CircuitBreaker
from retrytemplate.observe import (
    InMemoryMetrics,
    Observer,
    OTelMetrics,
    PrometheusCollector,
    PrometheusMetrics,
    install,
    uninstall,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 500
"""Calls of one round."""
TEMPLATES, TOTAL = 200, 100_000
FAMILY = "retrytemplate_call_duration_seconds_count"
SUCCESS = "decorated success, without listeners"
RETRIES = "two retries, `LoggingListener`"
REJECTION = "rejection by an open breaker, without listeners"
NATIVE = "scrape, native histograms"


@frozen
class Cell:
    """One row of the table.

    :param call: the measured call.
    :param counted: returns the number of calls that were counted, if any are.
    :param installed: the arguments of ``install``, in force during each round; None: no observer.
    """

    call: Callable[[], Any]
    counted: Callable[[], float] | None = None
    installed: dict[str, Any] | None = field(default=None, kw_only=True)
    asynchronous: bool = field(default=False, kw_only=True)

    def round(self, calls: int, runner: asyncio.Runner) -> float:
        """Nanoseconds of a call, by one round."""
        with ExitStack() as stack:
            if self.installed is not None:
                install(**self.installed)
                stack.callback(uninstall)
            times = range(calls)
            if self.asynchronous:
                return runner.run(repeat_async(self.call, times)) / calls
            return repeat(self.call, times) / calls


def repeat(call: Callable[[], Any], times: range) -> int:
    began = perf_counter_ns()
    for _ in times:
        try:
            call()
        except Rejected:
            continue
    return perf_counter_ns() - began


async def repeat_async(call: Callable[[], Any], times: range) -> int:
    began = perf_counter_ns()
    for _ in times:
        await call()
    return perf_counter_ns() - began


def shortest(cells: dict[str, Cell], rounds: int, calls: int = CALLS) -> dict[str, float]:
    """Nanoseconds of a call of each cell, by its fastest round; each call was counted."""
    best = dict.fromkeys(cells, float("inf"))
    with asyncio.Runner() as runner:
        gc.collect()
        for _ in range(rounds):
            for name, cell in cells.items():
                best[name] = min(best[name], cell.round(calls, runner))
    for name, cell in cells.items():
        if cell.counted is not None and cell.counted() != rounds * calls:
            raise AssertionError(f"{name}: {cell.counted()} of {rounds * calls} were counted")
    return best


def successes(metrics: InMemoryMetrics) -> int:
    """The successful calls that were recorded."""
    calls: dict[Any, Any] = dict(metrics.read("call.duration"))
    return sum(each.count for each in calls.values())


def sample(target: CollectorRegistry, template: str) -> float:
    """The successful calls of a template in a registry of prometheus_client."""
    labels = {"template": template, "outcome": "success"}
    return target.get_sample_value(FAMILY, labels) or 0.0


# The groups of the table: the other cells of a group are relative to its first cell.


def observed_successes(rounds: int, *, asynchronous: bool) -> dict[str, float]:
    """A decorated success without and with an observer of the process."""
    function = succeed_async if asynchronous else succeed

    def cell(*metrics: InMemoryMetrics | OTelMetrics, observed: bool = True, **to: Any) -> Cell:
        counted = [each if isinstance(each, InMemoryMetrics) else each.metrics for each in metrics]
        return Cell(
            RetryTemplate().wrap(function),
            (lambda: successes(counted[0])) if counted else None,
            installed={"metrics": metrics, **to} if observed else None,
            asynchronous=asynchronous,
        )

    provider = MeterProvider([InMemoryMetricReader()])
    bound = 2.2 if asynchronous else 2.6
    cells = {
        SUCCESS: cell(observed=False),
        "`install()` (bound 1.05)": cell(),
        "`install(metrics=[InMemoryMetrics()])`": cell(InMemoryMetrics()),
        f"`install(prometheus=True)` (bound {bound})": cell(InMemoryMetrics(), prometheus=True),
        "`install(metrics=[OTelMetrics()])`": cell(OTelMetrics(meter_provider=provider)),
    }
    end = ", async" if asynchronous else ""
    figures = shortest({name + end: each for name, each in cells.items()}, rounds)
    provider.shutdown()
    return figures


def recording(rounds: int) -> dict[str, float]:
    """A decorated success, and the recording of one in each kind of metrics."""
    memory, target, reader = InMemoryMetrics(), CollectorRegistry(), InMemoryMetricReader()
    provider, plain = MeterProvider([reader]), CollectorRegistry()
    native, otel = PrometheusMetrics(target=target), OTelMetrics(meter_provider=provider)
    guarded = RetryTemplate().wrap(succeed)
    histogram = Histogram("call", "Time of a call.", ["template", "outcome"], registry=plain)
    other = provider.get_meter("direct").create_histogram("call")
    attributes = {"template": "x", "outcome": "success"}

    def with_prometheus() -> None:
        began = perf_counter()
        guarded()
        histogram.labels("x", "success").observe(perf_counter() - began)

    def with_otel() -> None:
        began = perf_counter()
        guarded()
        other.record(perf_counter() - began, attributes)

    def direct() -> float:
        return plain.get_sample_value("call_count", attributes) or 0.0

    figures = shortest(
        {
            SUCCESS: Cell(guarded),
            "success and a `Histogram` of prometheus_client": Cell(with_prometheus, direct),
            "success and a histogram of OpenTelemetry": Cell(with_otel),
            "`InMemoryMetrics.first_success`": Cell(
                partial(memory.first_success, "x", 0.01), lambda: successes(memory)
            ),
            "`PrometheusMetrics.first_success`": Cell(
                partial(native.first_success, "x", 0.01), lambda: sample(target, "x")
            ),
            "`OTelMetrics.first_success`": Cell(
                partial(otel.first_success, "x", 0.01), lambda: successes(otel.metrics)
            ),
        },
        rounds,
    )
    native.close()
    provider.shutdown()
    return figures


class Records(logging.Handler):
    """Formats and counts records."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)
        self.count += 1


def logged_retries(rounds: int) -> dict[str, float]:
    """A call with two retries, whose log records are formatted."""
    logger = logging.getLogger("retrytemplate")
    logger.propagate = False

    def cell(listeners: list[Any], installed: dict[str, Any] | None) -> Cell:
        records = Records()
        logged = RetryTemplate(listeners=listeners).wrap(fail_twice())

        def call() -> None:
            logger.handlers = [records]
            logged()

        return Cell(call, lambda: records.count / 2, installed=installed)

    return shortest(
        {
            RETRIES: cell([LoggingListener()], None),
            "two retries, `install()` (bound 1.5)": cell([], {}),
        },
        rounds,
    )


def rejections(rounds: int) -> dict[str, float]:
    """A call that an open breaker rejects."""
    memory = InMemoryMetrics()

    def cell(*observers: Observer) -> Callable[[], Any]:
        breaker = CircuitBreaker(name="billing", listeners=observers)
        breaker.force_open(by="benchmark", reason="measured")
        return breaker.wrap(succeed)

    def rejected() -> float:
        counts: dict[Any, float] = dict(memory.read("rejections"))  # type: ignore[arg-type]  # counters have numbers
        return sum(counts.values())

    return shortest(
        {
            REJECTION: Cell(cell()),
            "rejection, `Observer()` (bound 3.0)": Cell(cell(Observer())),
            "rejection, `Observer(metrics=[InMemoryMetrics()])`": Cell(
                cell(Observer(metrics=[memory])), rejected
            ),
        },
        rounds,
    )


def scraping(rounds: int) -> dict[str, float]:
    """The cost of a scrape of 200 templates after 100,000 calls."""
    targets = CollectorRegistry(), CollectorRegistry()
    native = PrometheusMetrics(target=targets[0])
    collector = PrometheusCollector(target=targets[1])
    for number in range(TOTAL):
        for metrics in (native, collector.metrics):
            metrics.first_success(f"template {number % TEMPLATES}", number % 997 / 100)
    names = NATIVE, "scrape, `PrometheusCollector` (bound 1.5)"
    cells = [Cell(partial(generate_latest, each)) for each in targets]
    figures = shortest(dict(zip(names, cells, strict=True)), rounds, 1)
    for target in targets:
        assert sample(target, "template 7") == TOTAL / TEMPLATES
    assert successes(collector.metrics) == TOTAL
    native.close()
    return figures


def main() -> None:
    """Run the benchmark."""
    wanted = options(__doc__, figures="the nanoseconds").parse_args()
    rounds = 3 if wanted.quick else 200
    groups = [
        observed_successes(rounds, asynchronous=False),
        observed_successes(rounds, asynchronous=True),
        recording(rounds),
        logged_retries(rounds),
        rejections(rounds),
        scraping(2 if wanted.quick else 20),
    ]
    rows, figures = [], {}
    for group in groups:
        base = next(iter(group))
        for name, nanoseconds in group.items():
            if name not in figures:
                figures[name] = nanoseconds
                to = "" if name == base else base
                ratio = nanoseconds / group[base]
                rows.append(f"| {name} | {nanoseconds / 1000:,.2f} | {ratio:.2f} | {to} |")
    head = ["| case | µs | ratio | relative to |", "|---|---:|---:|---|"]
    show(wanted, "observe", "\n".join([*head, *rows, "", f"{INTERPRETER}."]), figures)


if __name__ == "__main__":
    main()
