"""``install`` with Prometheus, OpenTelemetry and metrics of the program."""

import gc
import subprocess
import sys

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import _internal as otel_metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from retrytemplate import RetryTemplate, SimpleRetryPolicy
from retrytemplate.control import Bulkhead, CircuitBreaker
from retrytemplate.observe import (
    InMemoryMetrics,
    PrometheusMetrics,
    Registry,
    install,
    installed,
    uninstall,
)
from tests.support import forked_python

PREFIX = "retrytemplate_"
FORKS = "ignore::DeprecationWarning"  # since 3.12: a fork beside threads, which these tests try


@pytest.fixture(autouse=True)
def removed():
    yield
    uninstall()


@pytest.fixture
def reader(monkeypatch):
    """A reader of the global meter provider of OpenTelemetry."""
    made = InMemoryMetricReader()
    provider = MeterProvider([made])
    monkeypatch.setattr(otel_metrics, "_METER_PROVIDER", provider)
    yield made
    provider.shutdown()


def read(reader):
    """Sums and numbers of durations by name and label values."""
    data = reader.get_metrics_data()
    return {
        (metric.name, *point.attributes.values()): getattr(point, "value", None)
        or getattr(point, "count", 0)
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def families(target):
    """The families that have a value."""
    text = generate_latest(target).decode()
    found = text_string_to_metric_families(text)
    return {each.name for each in found if each.name.startswith(PREFIX) and each.samples}


def value(metric, /, **labels):
    return REGISTRY.get_sample_value(PREFIX + metric, labels)


def calls(template, *outcomes):
    """Call a function that succeeds or fails."""
    for ok in outcomes:
        template.outcome(int, "17" if ok else "x")


def template(name="parse"):
    return RetryTemplate(SimpleRetryPolicy(2), name=name)


def test_prometheus_shows_calls_of_earlier_templates():
    made = template()
    install(logs=None, prometheus=True)
    calls(made, True, True, False)
    count = "call_duration_seconds_count"
    assert value(count, template="parse", outcome="success") == 2
    assert value(count, template="parse", outcome="failed") == 1
    assert value("retries_total", template="parse", error_type="ValueError") == 1


def test_prometheus_shows_gauges_of_all_live_components():
    earlier = Bulkhead("db", limit=3)
    install(logs=None, prometheus=True)
    later = Bulkhead("llm", limit=4)
    assert value("bulkhead_limit", name="db") == earlier.limit
    assert value("bulkhead_limit", name="llm") == later.limit
    del later
    gc.collect()
    assert value("bulkhead_limit", name="llm") is None


def test_given_registry_limits_the_gauges_to_its_components():
    shown, other = Bulkhead("db"), Bulkhead("llm")
    install(logs=None, prometheus=True, registry=Registry(shown))
    assert value("bulkhead_limit", name="db") == 50
    assert value("bulkhead_limit", name=other.name) is None


def test_queue_of_the_program_is_a_gauge():
    observer = install(logs=None, prometheus=True)
    observer.watch_queue("orders", lambda: 17)
    assert value("queue_depth", queue_name="orders") == 17


def test_depth_that_cannot_be_read_is_left_out_and_logged(caplog):
    observer = install(logs=None, prometheus=True)
    observer.watch_queue("orders", lambda: 17)
    observer.watch_queue("down", lambda: 1 // 0)
    for _ in range(3):
        assert value("queue_depth", queue_name="orders") == 17
    assert value("queue_depth", queue_name="down") is None
    assert sum("depth of a queue" in each.message for each in caplog.records) == 1


def test_second_installation_after_uninstall_begins_at_zero():
    made = template()
    for _ in range(2):
        install(logs=None, prometheus=True)
        calls(made, True)
        assert value("call_duration_seconds_count", template="parse", outcome="success") == 1
        uninstall()
        assert value("call_duration_seconds_count", template="parse", outcome="success") is None


def test_replaced_installation_leaves_no_collector():
    install(logs=None, prometheus=True)
    install(logs=None, prometheus=True, replace=True)
    calls(template(), True)
    assert value("call_duration_seconds_count", template="parse", outcome="success") == 1


def test_installation_that_fails_registers_nothing():
    with pytest.raises(TypeError, match="colour"):
        install(logs=None, prometheus=True, colour="red")
    assert installed() is None
    assert families(REGISTRY) == set()


def test_registry_of_another_type_is_rejected():
    with pytest.raises(TypeError, match="registry must be a Registry or None"):
        install(logs=None, registry=CollectorRegistry())


def test_names_beyond_the_given_limit_become_other():
    install(logs=None, prometheus=True, max_label_values=2)
    for name in "abcd":
        calls(template(name), True)
    assert value("call_duration_seconds_count", template="_other", outcome="success") == 2


def test_metrics_of_the_program_are_read_by_the_exporters():
    metrics = InMemoryMetrics(thresholds=[3.0])
    observer = install(logs=None, prometheus=True, metrics=[metrics])
    calls(template(), True)
    name = "call_duration_seconds_bucket"
    assert value(name, template="parse", outcome="success", le="3.0") == 1
    assert observer.metrics == (metrics,)


def test_several_processes_choose_native_metrics(monkeypatch, tmp_path):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for _ in range(2):
        observer = install(logs=None, prometheus=True)
        assert [type(each) for each in observer.metrics] == [PrometheusMetrics]
        uninstall()


@pytest.mark.parametrize("times", [1, 2])
def test_opentelemetry_gets_metrics_and_span_events(reader, spans, times):
    for _ in range(times):
        uninstall()
        install(logs=None, otel=True)
    with spans.span():
        calls(template(), True, False)
    shown = read(reader)
    assert shown["retrytemplate.call.duration", "parse", "success"] == 1
    assert shown["retrytemplate.retries", "parse", "ValueError"] == 1.0
    [span] = spans.named("request")
    names = [each.name.removeprefix("retrytemplate.") for each in span.events]
    assert names == ["retry.scheduled", "call.failed"]


def test_removed_installation_exports_no_counter_to_opentelemetry(reader):
    install(logs=None, otel=True)
    calls(template(), False)
    assert ("retrytemplate.retries", "parse", "ValueError") in read(reader)
    uninstall()
    assert ("retrytemplate.retries", "parse", "ValueError") not in read(reader)


def test_both_exporters_have_equal_families(monkeypatch):
    theirs = CollectorRegistry()
    reader = PrometheusMetricReader(registry=theirs, scope_info_enabled=False)
    provider = MeterProvider([reader])
    monkeypatch.setattr(otel_metrics, "_METER_PROVIDER", provider)
    breaker = CircuitBreaker("billing")
    install(logs=None, prometheus=True, otel=True)
    calls(template(), True, False)
    breaker.force_open(by="ada", reason="incident")
    shown = families(REGISTRY)
    assert shown >= {f"{PREFIX}retries", f"{PREFIX}circuit_breaker_state"}
    assert shown == families(theirs)
    provider.shutdown()


PROGRAM = """
import logging, sys
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import generate_latest
from retrytemplate import FixedBackoff, RetryTemplate, SimpleRetryPolicy
from retrytemplate.control import CircuitBreaker

reader = InMemoryMetricReader()
set_meter_provider(MeterProvider([reader]))
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", level="INFO")
charge = RetryTemplate(SimpleRetryPolicy(3), FixedBackoff(0.001), name="charge")
billing = CircuitBreaker("billing")

from retrytemplate import observe
observe.install()                    # logs of every template, breaker, bulkhead, step
observe.uninstall()
observe.install(prometheus=True)     # and all metrics in prometheus_client.REGISTRY
observe.uninstall()
observe.install(otel=True, prometheus=True)

answers = iter([ConnectionError("down"), ConnectionError("down"), "paid"])
def pay_invoice():
    answer = next(answers)
    if isinstance(answer, Exception):
        raise answer
    return answer
charge.call(pay_invoice)
billing.force_open(by="ada", reason="incident")
print(generate_latest().decode())
for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
    print("otel", metric.name, [each.attributes for each in metric.data.data_points][0])
"""


@pytest.mark.statement("S3-26")
@pytest.mark.statement("S0-51")
def test_program_of_a_user_has_logs_and_metrics_of_everything():
    ended = forked_python.run(
        [sys.executable, "-c", PROGRAM],
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    retries = "charge (__main__.pay_invoice): attempt {} of 3 failed: ConnectionError: down; "
    assert [line for line in lines if line.startswith(("WARNING", "INFO"))] == [
        f"WARNING {retries.format(1)}next attempt in 0.001 s",
        f"WARNING {retries.format(2)}next attempt in 0.001 s",
        next(line for line in lines if "succeeded after attempt 3 of 3" in line),
        "WARNING circuit breaker billing: closed -> forced_open; by ada: incident",
    ]
    for expected in (
        'retrytemplate_retries_total{error_type="ConnectionError",template="charge"} 2.0',
        'retrytemplate_call_duration_seconds_count{outcome="success_after_retry",'
        'template="charge"} 1.0',
        'retrytemplate_circuit_breaker_state{name="billing",state="forced_open"} 1.0',
        "otel retrytemplate.retries {'template': 'charge', 'error.type': 'ConnectionError'}",
    ):
        assert expected in lines


WORKER = """
import os, sys
from retrytemplate import RetryTemplate, SimpleRetryPolicy
from retrytemplate.observe import install, uninstall

install(logs=None, prometheus=True)
template = RetryTemplate(SimpleRetryPolicy(2), name="parse")
template.call(int, "1")
for number in range(2):
    if os.fork() == 0:
        for _ in range(300):
            template.call(int, "17")
            template.outcome(int, "x")
        os._exit(0)
for number in range(2):
    os.wait()
template.call(int, "1")
uninstall()

from prometheus_client import CollectorRegistry, multiprocess
target = CollectorRegistry()
multiprocess.MultiProcessCollector(target)
for outcome in ("success", "failed"):
    labels = {"template": "parse", "outcome": outcome}
    print(target.get_sample_value("retrytemplate_call_duration_seconds_count", labels))
labels = {"template": "parse", "error_type": "ValueError"}
print(target.get_sample_value("retrytemplate_retries_total", labels))
"""


def test_forked_workers_of_several_processes_are_added_up(tmp_path):
    # A real interpreter: prometheus_client chooses its values by the environment at its import.
    ended = subprocess.run(
        [sys.executable, "-W", FORKS, "-c", WORKER],
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (ended.stdout.split(), ended.stderr) == (["602.0", "600.0", "600.0"], "")


FORKED = """
import os, sys
from threading import Event, Thread
from retrytemplate import RetryTemplate, SimpleRetryPolicy
from retrytemplate.observe import InMemoryMetrics, install

metrics = InMemoryMetrics()
install(logs=None, metrics=[metrics])
template, stop, counts = RetryTemplate(SimpleRetryPolicy(2), name="parse"), Event(), [0, 0]
def work(place):
    while not stop.is_set():
        template.call(int, "17")
        counts[place] += 1
def count():
    return metrics.read("call.duration")["parse", "success"].count
threads = [Thread(target=work, args=[place]) for place in range(2)]
for each in threads:
    each.start()
children = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        for _ in range(700):
            template.call(int, "17")
        os._exit(0 if count() == 700 else 1)
    children.append(child)
codes = {os.waitpid(child, 0)[1] for child in children}
stop.set()
for each in threads:
    each.join()
print(codes, count() - sum(counts))
"""


def test_child_forked_under_load_counts_its_own_calls():
    ended = forked_python.run(
        [sys.executable, "-W", FORKS, "-c", FORKED],
    )
    assert (ended.stdout, ended.stderr) == ("{0} 0\n", "")
