"""The observer of the process."""

import logging
import sys
from datetime import timedelta

import pytest

from retrytemplate import MissingExtraError, MisuseError, RetryTemplate, SimpleRetryPolicy
from retrytemplate.control import CircuitBreaker
from retrytemplate.listeners import default_listeners
from retrytemplate.observe import (
    BufferedSink,
    CallbackSink,
    FilteredSink,
    MemorySink,
    SpanSink,
    install,
    installed,
    uninstall,
)
from retrytemplate.testing import VirtualClock


def failing():
    raise OSError("down")


@pytest.fixture(autouse=True)
def removed():
    yield
    uninstall()


def test_installed_observer_logs_objects_created_before(caplog):
    caplog.set_level("INFO")
    template = RetryTemplate(SimpleRetryPolicy(2), name="charge", clock=VirtualClock())
    breaker = CircuitBreaker("billing")
    install()
    template.outcome(failing)
    breaker.force_open(by="ada", reason="incident")
    lines = [f"{each.levelname} {each.message}" for each in caplog.records]
    assert lines == [
        f"WARNING charge ({failing.__module__}.failing): attempt 1 of 2 failed: OSError: down; "
        "next attempt in 0 s",
        f"WARNING charge ({failing.__module__}.failing): gave up after attempt 2 of 2 in 0 s: "
        "OSError: down; reason: attempts exhausted",
        "WARNING circuit breaker billing: closed -> forced_open; by ada: incident",
    ]


def test_repeated_rejections_are_one_line(caplog):
    caplog.set_level("INFO")
    install()
    breaker = CircuitBreaker("billing")
    breaker.force_open(by="ada", reason="incident")
    template = RetryTemplate(name="charge")
    for _ in range(100):
        template.outcome(breaker.call, len, "abc")
    uninstall()
    lines = [each.message for each in caplog.records if each.event == "call.rejected"]
    assert len(lines) == 2
    assert lines[1].endswith("rejected by circuit breaker billing 99 times in 10 s")


def test_second_installation_needs_replace():
    first = install(logs=None)
    with pytest.raises(MisuseError, match="installed already"):
        install(logs=None)
    second = install(logs=None, replace=True)
    assert installed() is second is not first
    assert first not in default_listeners()


def test_removed_observer_gets_no_events():
    kept = MemorySink()
    install(logs=None, sinks=[kept])
    assert uninstall()
    RetryTemplate().outcome(failing)
    assert kept.events == ()
    assert installed() is None


def test_sink_with_io_is_written_by_a_thread_until_uninstall():
    kept = []
    install(logs=None, sinks=[CallbackSink(kept.append)])
    RetryTemplate(SimpleRetryPolicy(2)).outcome(failing)
    assert uninstall()
    assert [event.type for event in kept] == ["retry.scheduled", "call.failed"]


@pytest.mark.parametrize("types", [None, ("call.*",)])
def test_sink_of_spans_gets_every_rejection_in_its_call(spans, types):
    sink = SpanSink() if types is None else FilteredSink(SpanSink(), types)
    install(logs=None, sinks=[sink])
    breaker = CircuitBreaker("billing")
    breaker.force_open(by="ada", reason="incident")
    for _ in range(30):
        with spans.span():
            RetryTemplate(name="charge").outcome(breaker.call, len, "abc")
    outcomes = [each.attributes["retrytemplate.outcome"] for each in spans.named("request")]
    assert outcomes == ["rejected"] * 30


def test_installation_without_logs_replaces_the_built_in_log(caplog):
    caplog.set_level(logging.DEBUG)
    install(logs=None)
    RetryTemplate().outcome(failing)
    assert caplog.records == []


@pytest.mark.parametrize("logs", ["syslog", 17])
def test_unknown_logs_are_rejected(logs):
    with pytest.raises((ValueError, TypeError), match="logs"):
        install(logs=logs)
    assert installed() is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"keys": "clear"},
        {"metrics": 17},
        {"metrics": [17]},
        {"sinks": 17},
        {"sinks": [17]},
        {"max_label_values": 0},
        {"prometheus": "no"},
        {"otel": 1},
        {"registry": 17},
        {"unknown": 17},
    ],
)
def test_wrong_argument_of_a_replacement_keeps_the_observer(wrong):
    kept = install(logs=None)
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        install(logs=None, replace=True, **wrong)
    assert installed() is kept
    assert kept in default_listeners()


@pytest.mark.parametrize(("missing", "wanted"), [("prometheus_client", "prometheus")])
def test_missing_extra_of_a_replacement_keeps_the_observer(monkeypatch, missing, wanted):
    kept = install(logs=None)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError):
        install(logs=None, replace=True, **{wanted: True})
    assert installed() is kept


@pytest.mark.parametrize("timeout", [None, "5", -1, float("nan")])
def test_wrong_timeout_of_uninstall_removes_nothing(timeout):
    kept = install(logs=None, sinks=[MemorySink()])
    with pytest.raises((TypeError, ValueError), match="timeout must be"):
        uninstall(timeout)
    assert installed() is kept
    with pytest.raises((TypeError, ValueError), match="timeout must be"):
        kept.shutdown(timeout)


def test_timeout_of_uninstall_and_shutdown_may_be_a_timedelta():
    kept = install(logs=None, sinks=[BufferedSink(MemorySink())])
    assert uninstall(timedelta(seconds=5))
    assert kept.shutdown(timedelta(seconds=5))


def test_installation_during_another_leaves_one_observer():
    first = []

    def metrics():  # read after the check, as another thread may come in
        first.append(install(logs=None))
        yield from ()

    with pytest.raises(MisuseError, match="installed already"):
        install(logs=None, metrics=metrics())
    assert [installed()] == first
    assert default_listeners()[1:] == tuple(first)
