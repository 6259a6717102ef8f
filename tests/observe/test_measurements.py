"""The metrics of an observer: which hooks they need, limits of labels, exceptions."""

import logging
from threading import Thread

import pytest

from retrytemplate import RetryTemplate, SimpleRetryPolicy
from retrytemplate._engine.plan import overridden
from retrytemplate.listeners import add_default, remove_default
from retrytemplate.listeners.base import HOOKS, RetryListener
from retrytemplate.observe import InMemoryMetrics, MemorySink, Observer
from retrytemplate.testing import VirtualClock


class Broken:
    """Metrics whose methods raise."""

    def add(self, name, labels, amount=1.0):
        raise OSError("no space")

    def record(self, name, labels, value):
        raise OSError("no space")

    def first_success(self, template, elapsed):
        raise OSError("no space")


class Recorded:
    """Metrics of the program, without a limit of label values."""

    def __init__(self):
        self.templates, self.added = [], []

    def add(self, name, labels, amount=1.0):
        self.added.append((name, dict(labels)))

    def record(self, name, labels, value):
        pass

    def first_success(self, template, elapsed):
        self.templates.append(template)


def fail_once(seen):
    seen.append(None)
    if len(seen) % 2:
        raise OSError("down")


def hooks(observer):
    names = (*HOOKS, "on_first_success")
    return {name for name in names if [*overridden([observer], name, RetryListener)]}


def test_observer_without_metrics_has_no_hook_of_a_success():
    observer = Observer(sinks=[MemorySink()], deadlines=True)
    assert hooks(observer).isdisjoint({"on_first_success", "before_attempt", "on_success", "open"})
    plan = RetryTemplate(listeners=[observer])._plan
    assert plan.is_unobserved is False
    assert plan.untimed_first_attempt


def test_observer_with_metrics_gives_first_successes_to_them_directly():
    metrics = InMemoryMetrics()
    observer = Observer(metrics=[metrics])
    assert observer.on_first_success == metrics.first_success
    plan = RetryTemplate(listeners=[observer])._plan
    assert plan.times_first_attempt
    assert hooks(observer).isdisjoint({"before_attempt", "on_success", "open", "close"})


def test_every_metrics_object_gets_the_measurements():
    first, second = InMemoryMetrics(), InMemoryMetrics()
    template = RetryTemplate(name="x", listeners=[Observer(metrics=[first, second])])
    template.call(int)
    template.outcome(int, "x")
    assert first.snapshot().keys() == second.snapshot().keys() > {"retries"}
    assert first.snapshot()["call.duration"]["x", "success"].count == 1


def test_exception_of_metrics_changes_no_call_and_is_logged_once(caplog):
    caplog.set_level(logging.ERROR, "retrytemplate")
    metrics = InMemoryMetrics()
    observer = Observer(metrics=[Broken(), metrics])
    template = RetryTemplate(SimpleRetryPolicy(2), name="x", listeners=[observer])
    seen = []
    for _ in range(5):
        template.call(fail_once, seen)
        template.call(int)
    records = [each for each in caplog.records if "the metrics" in each.message]
    assert len(records) == 1
    assert metrics.read("retries") == {("x", "OSError"): 5.0}
    assert metrics.read("call.duration")["x", "success"].count == 5


def test_exception_of_correlation_is_logged_once(caplog):
    def correlation():
        raise KeyError("request")

    kept = MemorySink()
    observer = Observer(sinks=[kept], correlation=correlation)
    RetryTemplate(SimpleRetryPolicy(5), listeners=[observer]).outcome(int, "x")
    assert [event.correlation for event in kept.events] == [{}] * 5
    assert sum("correlation" in each.message for each in caplog.records) == 1


def test_ten_thousand_names_give_201_values():
    metrics = InMemoryMetrics()
    observer = Observer(metrics=[metrics])
    for number in range(10_000):
        observer.on_first_success(f"template {number}", 0.1)
    values = metrics.read("call.duration")
    assert len(values) == 201
    assert sum(each.count for each in values.values()) == 10_000
    assert metrics.read("label.overflows")["call.duration",] == 9_800.0


def test_names_are_limited_for_metrics_without_a_limit():
    metrics = Recorded()
    observer = Observer(metrics=[metrics], max_label_values=2)
    for name in "abcd":
        template = RetryTemplate(SimpleRetryPolicy(2), name=name, listeners=[observer])
        template.call(int)
        template.outcome(int, "x")
    assert metrics.templates == ["a", "b", "_other", "_other"]
    shown = [labels["template"] for name, labels in metrics.added if name == "retries"]
    assert shown == ["a", "b", "_other", "_other"]
    assert ("label.overflows", {"metric": "retries"}) in metrics.added


def test_no_count_is_lost_under_threads():
    metrics = InMemoryMetrics()
    template = RetryTemplate(
        SimpleRetryPolicy(2), name="x", listeners=[Observer(metrics=[metrics])]
    )

    def work():
        seen = []
        for _ in range(500):
            template.call(fail_once, seen)
            template.call(int)

    threads = [Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    calls = metrics.read("call.duration")
    assert {outcome: each.count for (_, outcome), each in calls.items()} == {
        "success": 2000,
        "success_after_retry": 2000,
    }
    assert metrics.read("retries") == {("x", "OSError"): 2000.0}


def test_default_observer_with_metrics_reaches_earlier_templates():
    template = RetryTemplate(name="x", clock=VirtualClock())
    metrics = InMemoryMetrics()
    observer = Observer(metrics=[metrics])
    add_default(observer)
    try:
        template.call(int)
    finally:
        remove_default(observer)
    template.call(int)
    assert metrics.read("call.duration")["x", "success"].count == 1


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"metrics": [17]}, TypeError),
        ({"max_label_values": 0}, ValueError),
        ({"deadlines": 1}, TypeError),
    ],
)
def test_unusable_settings_are_rejected(settings, error):
    with pytest.raises(error, match=next(iter(settings))):
        Observer(**settings)


class RaisingHandler(logging.Handler):
    """Has no protection of its own, unlike the handlers of the standard library."""

    def emit(self, record):
        raise RuntimeError("the log server is down")


@pytest.fixture
def broken_log():
    handler = RaisingHandler()
    logging.getLogger("retrytemplate").addHandler(handler)
    yield
    logging.getLogger("retrytemplate").removeHandler(handler)


@pytest.mark.parametrize("metrics", [Broken(), InMemoryMetrics(max_label_values=1)])
def test_handler_of_the_log_that_raises_changes_no_call(broken_log, metrics):
    observer = Observer(metrics=[metrics])
    for name in ("first", "second"):
        template = RetryTemplate(SimpleRetryPolicy(2), name=name, listeners=[observer])
        assert template.call(int, "17") == 17
        assert isinstance(template.outcome(int, "x").exception, ValueError)
