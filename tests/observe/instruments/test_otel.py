"""Metrics of OpenTelemetry."""

import sys

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from retrytemplate import MissingExtraError
from retrytemplate.control import Bulkhead
from retrytemplate.observe import (
    INSTRUMENTS,
    InMemoryMetrics,
    OTelMetrics,
    PrometheusCollector,
    Registry,
)
from tests.observe.instruments.support import feed


@pytest.fixture
def exported():
    """A function that makes metrics with a reader, and one that reads all of them."""
    providers = []

    def make(metrics=None, **settings):
        reader = InMemoryMetricReader()
        providers.append(MeterProvider([reader]))
        return OTelMetrics(metrics, providers[-1], **settings), lambda: by_name(reader)

    yield make
    for each in providers:
        each.shutdown()


def by_name(reader):
    data = reader.get_metrics_data()
    return {
        metric.name: metric
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def points(metric):
    return {tuple(each.attributes.items()): each for each in metric.data.data_points}


def test_reader_gets_each_metric_with_unit_and_description(exported):
    metrics, read = exported()
    feed(metrics)
    fed = {
        row.otel_name: row
        for row in INSTRUMENTS.values()
        if row.kind != "gauge" or row.name == "task.active"
    }
    shown = read()
    assert shown.keys() == fed.keys()
    for name, row in fed.items():
        assert (shown[name].unit, shown[name].description) == (row.unit, row.description)
        for attributes in points(shown[name]):
            assert tuple(key for key, _ in attributes) == row.labels


def test_durations_have_the_buckets_of_the_table(exported):
    metrics, read = exported(InMemoryMetrics(thresholds=[3]))
    metrics.first_success("billing", 2.9)
    (point,) = read()["retrytemplate.call.duration"].data.data_points
    assert point.explicit_bounds == metrics.metrics.bounds
    assert point.bucket_counts[point.explicit_bounds.index(3.0)] == 1
    assert dict(point.attributes) == {"template": "billing", "outcome": "success"}


def test_first_success_is_exported_for_call_and_attempt(exported):
    metrics, read = exported()
    metrics.first_success("billing", 0.02)
    for name in ("call", "attempt"):
        (point,) = read()[f"retrytemplate.{name}.duration"].data.data_points
        assert (point.count, point.sum) == (1, 0.02)
    shown = metrics.metrics.snapshot()
    assert shown["call.duration"]["billing", "success"].count == 1


def test_given_metrics_are_read_and_not_recorded_in(exported):
    memory = InMemoryMetrics()
    metrics, read = exported(memory)
    for each in (memory, metrics):
        each.add("sink.errors", {"sink": "log"}, 3)
        each.first_success("billing", 0.02)
    shown = read()
    assert points(shown["retrytemplate.sink.errors"])[(("sink", "log"),)].value == 3
    assert memory.snapshot()["call.duration"]["billing", "success"].count == 1
    (point,) = shown["retrytemplate.call.duration"].data.data_points
    assert point.count == 1


def test_durations_can_be_left_out(exported):
    metrics, read = exported(durations=False)
    feed(metrics)
    exported_names = {name.removeprefix("retrytemplate.") for name in read()}
    assert exported_names & {row.name for row in INSTRUMENTS.values() if row.buckets} == set()
    assert "retries" in exported_names


def test_gauges_are_read_from_components_at_the_export(exported):
    metrics, read = exported()
    bulkhead = Bulkhead("llm", limit=7)
    metrics.registry.add(bulkhead)
    with bulkhead.slot():
        shown = read()
    assert points(shown["retrytemplate.bulkhead.usage"])[(("name", "llm"),)].value == 1
    assert points(read()["retrytemplate.bulkhead.usage"])[(("name", "llm"),)].value == 0


def test_exported_labels_beyond_the_limit_become_other(exported):
    metrics, read = exported(InMemoryMetrics(max_label_values=2))
    for name in "abcd":
        metrics.record("rate_limiter.wait.duration", {"name": name}, 1)
    shown = points(read()["retrytemplate.rate_limiter.wait.duration"])
    assert {key[0][1]: each.count for key, each in shown.items()} == {"a": 1, "b": 1, "_other": 2}


def test_prometheus_exporter_gives_the_family_names_of_the_collector(exported):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    bulkhead = Bulkhead("llm")
    collector = PrometheusCollector(target=ours)
    reader = PrometheusMetricReader(
        disable_target_info=True, scope_info_enabled=False, registry=theirs
    )
    provider = MeterProvider([reader])
    metrics = OTelMetrics(meter_provider=provider)
    for each in (collector, metrics):
        each.registry.add(bulkhead)
    feed(collector.metrics)
    feed(metrics)
    try:
        assert sampled(theirs) == sampled(ours)
    finally:
        provider.shutdown()


def sampled(target):
    """The families that have samples, with their kind, labels and samples' names."""
    return {
        family.name: (
            family.type,
            family.documentation,
            {each.name for each in family.samples},
            {label for each in family.samples for label in each.labels},
        )
        for family in target.collect()
        if family.samples
    }


def test_missing_api_raises_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(MissingExtraError, match=r"install retrytemplate\[otel\]"):
        OTelMetrics()


def test_lone_surrogate_of_a_label_is_escaped(exported):
    metrics, read = exported(registry=Registry(Bulkhead("\udcff", limit=7)))
    metrics.first_success("\udcff", 0.02)
    metrics.add("sink.errors", {"sink": "\udcff"})
    values = [value for each in read().values() for point in points(each) for _, value in point]
    assert r"\udcff" in values
    assert "\udcff" not in values


@pytest.mark.parametrize("wrong", [{"metrics": 17}, {"meter_provider": 17}, {"registry": 17}])
def test_argument_of_otel_metrics_with_another_type_is_named(wrong):
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be"):
        OTelMetrics(**wrong)
