"""Exporters for Prometheus."""

import subprocess
import sys

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from retrytemplate import MissingExtraError, MisuseError
from retrytemplate.control import Bulkhead
from retrytemplate.observe import (
    INSTRUMENTS,
    InMemoryMetrics,
    PrometheusCollector,
    PrometheusMetrics,
    Registry,
)
from retrytemplate.observe.instruments import prometheus
from tests.observe.instruments.support import feed
from tests.support.polling import wait_until


@pytest.fixture
def fed():
    metrics, bulkhead, target = InMemoryMetrics(), Bulkhead("llm", limit=7), CollectorRegistry()
    feed(metrics)
    PrometheusCollector(metrics, Registry(bulkhead), target=target)
    yield target
    assert bulkhead.limit == 7


def test_collector_output_is_read_by_the_openmetrics_parser(fed):
    text = exposition.generate_latest(fed).decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert families.keys() == {row.prometheus_family for row in INSTRUMENTS.values()}
    for row in INSTRUMENTS.values():
        family = families[row.prometheus_family]
        assert (family.type, family.documentation) == (row.kind, row.description)
        assert family.unit == ("seconds" if row.unit == "s" else "")
        if row.kind != "gauge":
            assert {*family.samples[0].labels} - {"le"} == {*row.prometheus_labels}


def test_collector_output_has_the_full_names_of_the_table(fed):
    text = generate_latest(fed).decode()
    for row in INSTRUMENTS.values():
        assert f"\n# TYPE {row.prometheus_name} {row.kind}\n" in f"\n{text}"


def test_collector_shows_counters_and_gauges(fed):
    labels = {"template": "template of backoff.time"}
    assert fed.get_sample_value("retrytemplate_backoff_time_seconds_total", labels) == 2
    assert fed.get_sample_value("retrytemplate_bulkhead_limit", {"name": "llm"}) == 7
    labels = {"owner": "owner of task.active", "operation": "operation of task.active"}
    assert fed.get_sample_value("retrytemplate_task_active", labels) == 2


def test_collector_buckets_are_cumulative(fed):
    labels = {"template": "billing", "outcome": "success"}
    name = "retrytemplate_attempt_duration_seconds"
    for le, number in (("0.01", 0), ("0.025", 1), ("30.0", 1), ("+Inf", 1)):
        assert fed.get_sample_value(f"{name}_bucket", labels | {"le": le}) == number
    assert fed.get_sample_value(f"{name}_count", labels) == 1
    assert fed.get_sample_value(f"{name}_sum", labels) == 0.02


def test_collector_uses_the_default_registry_until_it_is_closed():
    collector = PrometheusCollector()
    try:
        collector.metrics.add("sink.errors", {"sink": "log"})
        value = REGISTRY.get_sample_value("retrytemplate_sink_errors_total", {"sink": "log"})
        assert value == 1
        with pytest.raises(ValueError, match="Duplicated"):
            PrometheusCollector()
    finally:
        collector.close()
    assert REGISTRY.get_sample_value("retrytemplate_sink_errors_total", {"sink": "log"}) is None


def test_collector_in_multiprocess_mode_raises_misuse_error(monkeypatch, tmp_path):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    with pytest.raises(MisuseError, match="use PrometheusMetrics"):
        PrometheusCollector(target=CollectorRegistry())


@pytest.mark.parametrize("kind", [PrometheusCollector, PrometheusMetrics])
def test_missing_client_raises_error_that_names_the_extra(monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"install retrytemplate\[prometheus\]"):
        kind()


# Native instruments.


@pytest.fixture
def native():
    target = CollectorRegistry()
    metrics = PrometheusMetrics(target=target, max_label_values=3)
    yield metrics, target
    metrics.close()


def families(target):
    return {
        each.name: (each.type, each.documentation, tuple(sorted(names_of(each))))
        for each in target.collect()
    }


def names_of(family):
    return {name for sample in family.samples for name in sample.labels}


def test_native_families_equal_those_of_the_collector(native, fed):
    metrics, target = native
    feed(metrics)
    bulkhead = Bulkhead("llm")
    metrics.registry.add(bulkhead)
    metrics.write_gauges()
    assert families(target) == families(fed)


def test_native_metrics_record_first_successes_for_call_and_attempt(native):
    metrics, target = native
    for _ in range(3):
        metrics.first_success("billing", 0.02)
    for name in ("call", "attempt"):
        family = f"retrytemplate_{name}_duration_seconds"
        labels = {"template": "billing", "outcome": "success"}
        assert target.get_sample_value(f"{family}_count", labels) == 3
        assert target.get_sample_value(f"{family}_bucket", labels | {"le": "0.025"}) == 3


def test_native_labels_beyond_the_limit_become_other(native, caplog):
    metrics, target = native
    for number in range(10):
        metrics.first_success(f"template {number}", 0.02)
    labels = {"template": "_other", "outcome": "success"}
    name = "retrytemplate_call_duration_seconds_count"
    assert target.get_sample_value(name, labels) == 7
    overflows = target.get_sample_value(
        "retrytemplate_label_overflows_total", {"metric": "call.duration"}
    )
    assert (overflows, len(caplog.records)) == (7, 1)


def test_native_gauges_of_a_closed_component_become_zero(native):
    metrics, target = native
    bulkhead = Bulkhead("llm", limit=7)
    metrics.registry.add(bulkhead)
    metrics.write_gauges()
    assert target.get_sample_value("retrytemplate_bulkhead_limit", {"name": "llm"}) == 7
    del bulkhead
    metrics.write_gauges()
    assert target.get_sample_value("retrytemplate_bulkhead_limit", {"name": "llm"}) == 0


def test_native_gauges_are_written_by_the_background_thread(monkeypatch):
    monkeypatch.setattr(prometheus, "GAUGE_INTERVAL", 0.01)
    bulkhead, target = Bulkhead("llm", limit=7), CollectorRegistry()
    metrics = PrometheusMetrics(Registry(bulkhead), target=target)
    try:
        name, labels = "retrytemplate_bulkhead_limit", {"name": "llm"}
        assert wait_until(lambda: target.get_sample_value(name, labels)) == 7
    finally:
        metrics.close()


WORKERS = """
import os, sys
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from retrytemplate.control import Bulkhead
from retrytemplate.observe import PrometheusMetrics

metrics, bulkhead = PrometheusMetrics(), Bulkhead("llm", limit=7)
metrics.registry.add(bulkhead)
metrics.first_success("billing", 0.02)
metrics.close()
children = []
for number in (1, 2):
    child = os.fork()
    if not child:
        for _ in range(1000 * number):
            metrics.first_success("billing", 0.02)
            metrics.add("retries", {"template": "billing", "error.type": "OSError"})
        metrics.write_gauges()
        metrics.add("dead_letter.backlog", {"step": "copy"}, 3)
        os._exit(0)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
target = CollectorRegistry()
MultiProcessCollector(target)
sys.stdout.write(generate_latest(target).decode())
"""


def test_two_forked_workers_are_counted_together(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", WORKERS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = set(done.stdout.splitlines())
    for line in (
        'retrytemplate_call_duration_seconds_count{outcome="success",template="billing"} 3001.0',
        'retrytemplate_attempt_duration_seconds_count{outcome="success",template="billing"} 3001.0',
        'retrytemplate_retries_total{error_type="OSError",template="billing"} 3000.0',
        'retrytemplate_bulkhead_limit{name="llm"} 14.0',
        'retrytemplate_dead_letter_backlog{step="copy"} 3.0',  # of one database
    ):
        assert line in lines, done.stdout


@pytest.mark.parametrize("in_memory", [True, False])
def test_lone_surrogate_of_a_label_does_not_fail_the_export(in_memory):
    target, bulkhead = CollectorRegistry(), Bulkhead("\udcff", limit=7)
    if in_memory:
        metrics = InMemoryMetrics()
        PrometheusCollector(metrics, Registry(bulkhead), target=target)
    else:
        metrics = PrometheusMetrics(Registry(bulkhead), target=target)
        metrics.write_gauges()
    metrics.first_success("\udcff", 0.02)
    metrics.add("sink.errors", {"sink": "\udcff"})
    text = generate_latest(target).decode()
    if not in_memory:
        metrics.close()
    for series in (
        r'bulkhead_limit{name="\\udcff"} 7.0',
        r'sink_errors_total{sink="\\udcff"} 1.0',
        r'call_duration_seconds_count{outcome="success",template="\\udcff"} 1.0',
    ):
        assert f"retrytemplate_{series}" in text


@pytest.mark.parametrize("wrong", [{"metrics": 17}, {"registry": 17}])
def test_argument_of_a_collector_with_another_type_is_named(wrong):
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be"):
        PrometheusCollector(**wrong, target=CollectorRegistry())
