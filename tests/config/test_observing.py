"""Section observe of a file: the observer that load installs, and the end of a configuration."""

import logging
import threading

import pytest
from prometheus_client import REGISTRY

from retrytemplate import SystemClock
from retrytemplate.config import load
from retrytemplate.control import CircuitBreaker
from retrytemplate.observe import Registry, SQLEventSink, install, installed, uninstall
from retrytemplate.testing import VirtualClock
from tests.support.configs import load_text

TEXT = """
retry: {endpoints: {billing: {max_attempts: 1}}}
breaker: {endpoints: {billing: {window: {consecutive: 1}}}}
slo: {endpoints: {billing: {availability: 99.9%%, latency: {p95: 3s}}}}
observe: %s
"""


@pytest.fixture(autouse=True)
def none_installed():
    yield
    uninstall()


def configured(tmp_path, observe, clock=None):
    return load_text(tmp_path, TEXT % observe, install=True, clock=clock or VirtualClock())


def fail(config):
    assert not config.endpoint("billing").outcome(int, "x").ok


def test_levels_of_the_file_are_those_of_the_log(tmp_path, caplog):
    with configured(tmp_path, "{logs: {logger: shop, levels: {call.failed: CRITICAL}}}") as config:
        fail(config)
    assert [each.levelno for each in caplog.records if each.event == "call.failed"] == [50]


def test_events_are_written_to_the_database_of_the_file(tmp_path):
    url = f"sqlite:///{tmp_path}/events.db"
    with configured(
        tmp_path, f"{{logs: null, events: {{url: '{url}', keep: 30d}}}}", SystemClock()
    ) as config:
        fail(config)
    sink = SQLEventSink(url)
    assert "call.failed" in [each.type for each in sink.page()]
    sink.close()


@pytest.mark.parametrize("folder", ["", "processes"])
def test_every_limit_of_an_objective_is_a_bucket(tmp_path, monkeypatch, folder):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", folder and str(tmp_path))
    labels = {"template": "billing", "outcome": "success", "le": "3.0"}
    with configured(tmp_path, "{prometheus: true}") as config:
        config.endpoint("billing").call(int, "17")
        name = "retrytemplate_call_duration_seconds_bucket"
        assert REGISTRY.get_sample_value(name, labels) == 1.0
    assert REGISTRY.get_sample_value(name, labels) is None


def test_otel_of_the_file_is_passed_to_install(tmp_path, monkeypatch):
    given = {}

    def instead(**settings):
        given.update(settings)
        return install(logs=None)

    monkeypatch.setattr("retrytemplate.config.observing.install", instead)
    with configured(tmp_path, "{logs: structlog, otel: true}"):
        pass
    assert (given["logs"], given["otel"], len(given["metrics"])) == ("structlog", True, 1)


def test_alerts_of_the_file_are_events_of_the_observer(tmp_path, caplog):
    caplog.set_level(logging.INFO, "retrytemplate")
    with configured(tmp_path, "{alerts: {every: 1h}}") as config:
        fail(config)
        (observing,) = config._observing
        observing.alerts.evaluate()
    raised = [each.rule for each in caplog.records if each.event == "alert.raised"]
    assert raised == ["circuit_breaker_opened"]


def test_load_replaces_no_observer_and_close_leaves_it(tmp_path):
    own = install(logs=None)
    with configured(tmp_path, "{logs: logging}"):
        assert installed() is own
    assert installed() is own


def test_observer_that_replaced_that_of_the_file_stays_after_close(tmp_path):
    with configured(tmp_path, "{}"):
        own = install(logs=None, replace=True)
    assert installed() is own


@pytest.mark.parametrize("text", ["observe: {}", "timeout: {endpoints: {x: {seconds: 1}}}"])
def test_nothing_is_installed_without_section_or_with_install_false(tmp_path, text):
    load_text(tmp_path, text, install="observe" not in text)
    assert installed() is None


def test_section_may_be_a_file_of_a_folder(tmp_path):
    (tmp_path / "observe.yaml").write_text("logs: structlog")
    config = load(tmp_path, install=False)
    assert {name: each.value for name, each in config.effective_observe().items()} == {
        "logs": "structlog",
        "prometheus": False,
        "otel": False,
        "events": None,
        "alerts": False,
    }


@pytest.mark.parametrize(
    "old, new, place",
    [("alerts: true", "alerts: false", "observe"), ("p95: 3s", "p95: 4s", "slo")],
)
def test_changes_that_need_a_restart_are_reported(tmp_path, old, new, place):
    config = load_text(tmp_path, TEXT % "{alerts: true}")
    (tmp_path / "resilience.yaml").write_text((TEXT % "{alerts: true}").replace(old, new))
    assert config.reload().restart_required == (place,)
    assert config.effective_observe()["alerts"].value is True


def test_registry_of_load_limits_the_gauges(tmp_path):
    other = CircuitBreaker("other")
    registry = Registry(other)
    text = TEXT % "{prometheus: true}"
    with load_text(tmp_path, text, install=True, registry=registry) as config:
        assert config.registry is registry
        names = {
            sample.labels["name"]
            for family in REGISTRY.collect()
            for sample in family.samples
            if family.name == "retrytemplate_circuit_breaker_state"
        }
    assert names == {"other"}


def test_close_ends_switch_and_stores_and_may_be_repeated(tmp_path):
    text = """
stores: {{db: {{kind: sql, url: "sqlite:///{}/switch.db"}}}}
switch: {{store: db, stale_after: 1h, endpoints: {{billing: {{feature: export}}}}}}
"""
    earlier = set(threading.enumerate())
    config = load_text(tmp_path, text.format(tmp_path))
    assert config.endpoint("billing").call(int, "17") == 17
    started = set(threading.enumerate()) - earlier
    config.close()
    config.close()
    assert any("switch" in each.name for each in started)
    assert not started & set(threading.enumerate())
    assert config.endpoint("billing").call(int, "17") == 17
    config.close()
