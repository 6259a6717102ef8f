"""Metrics in memory: values, history, label limit, threads, forks."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from retrytemplate.observe import Distribution, History, InMemoryMetrics, Metrics, Total
from retrytemplate.testing import VirtualClock

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
BILLING = {"template": "billing"}


def count(metrics, name="call.duration"):
    return sum(each.count for each in metrics.snapshot()[name].values())


def test_metrics_in_memory_follow_the_protocol():
    assert isinstance(InMemoryMetrics(), Metrics)


def test_counter_adds_amounts_by_labels():
    metrics = InMemoryMetrics()
    metrics.add("retries", {"template": "a", "error.type": "OSError"})
    metrics.add("retries", {"error.type": "OSError", "template": "a"})
    metrics.add("retries", {"template": "b", "error.type": "OSError"}, 5)
    assert metrics.snapshot() == {"retries": {("a", "OSError"): 2.0, ("b", "OSError"): 5.0}}


def test_gauge_adds_negative_amounts():
    metrics, labels = InMemoryMetrics(), {"owner": "shop", "operation": "pay"}
    metrics.add("task.active", labels, 2)
    metrics.add("task.active", labels, -1)
    assert metrics.snapshot()["task.active"] == {("shop", "pay"): 1.0}


def test_histogram_bucket_includes_its_upper_bound():
    metrics = InMemoryMetrics()
    for value in (0.005, 0.0051, 30.0, 30.1):
        metrics.record("rate_limiter.wait.duration", {"name": "x"}, value)
    shown = metrics.snapshot()["rate_limiter.wait.duration"]["x",]
    assert shown.counts == (1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1)
    assert (shown.count, round(shown.sum, 4)) == (4, 60.1101)


def test_first_success_counts_for_call_and_attempt():
    metrics = InMemoryMetrics()
    metrics.first_success("billing", 0.25)
    metrics.record("call.duration", BILLING | {"outcome": "failed"}, 2)
    shown = metrics.snapshot()
    assert {key: each.sum for key, each in shown["call.duration"].items()} == {
        ("billing", "success"): 0.25,
        ("billing", "failed"): 2.0,
    }
    assert {key: each.count for key, each in shown["attempt.duration"].items()} == {
        ("billing", "success"): 1
    }


def test_first_successes_fill_the_buckets_as_recorded_durations_do():
    metrics = InMemoryMetrics()
    for number in range(1700):
        duration = number * 37 % 100 / 20
        metrics.first_success("billing", duration)
        metrics.record("rate_limiter.wait.duration", {"name": "x"}, duration)
    shown = metrics.snapshot()
    expected = shown["rate_limiter.wait.duration"]["x",]
    for name in ("call.duration", "attempt.duration"):
        found = shown[name]["billing", "success"]
        assert found.counts == expected.counts
        assert found.sum == pytest.approx(expected.sum)


def test_first_success_belongs_to_the_minute_in_which_it_is_recorded():
    clock = VirtualClock()
    clock.advance(MINUTE - clock.time() % MINUTE)
    metrics, start = InMemoryMetrics(clock=clock), clock.time()
    for name in "aab":
        metrics.first_success(name, 0.0)
        metrics.add("backoff.time", {"template": name})
        clock.advance(30)
    metrics.first_success("a", 0.0)
    history = metrics.history("call.duration", {"template": "a", "outcome": "success"})
    assert [(each.time - start, each.value.count) for each in history.minutes] == [
        (0.0, 2),
        (MINUTE, 1),
    ]
    history = metrics.history("backoff.time", {"template": "b"})
    assert [each.time - start for each in history.minutes] == [MINUTE]


def test_threshold_becomes_a_bucket_of_histograms():
    metrics = InMemoryMetrics(thresholds=[3, 0.5])
    metrics.first_success("billing", 3.0)
    shown = metrics.snapshot()["call.duration"]["billing", "success"]
    assert shown.counts[shown.bounds.index(3.0)] == 1
    assert len(shown.bounds) == 13


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.add("retrys", {}), "did you mean 'retries'"),
        (lambda m: m.add("call.duration", {}), "must be a counter or gauge"),
        (lambda m: m.record("retries", {}, 1), "must be a histogram"),
        (lambda m: m.add("retries", BILLING), "must be template, error.type"),
        (lambda m: m.add("backoff.time", BILLING | {"key": "1"}), "must be template, got"),
        (lambda m: m.history("task.active", {}), "must be a counter or histogram"),
    ],
)
def test_unknown_metric_or_label_raises_value_error(call, message):
    with pytest.raises(ValueError, match=message):
        call(InMemoryMetrics())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.add("backoff.time", {"template": ["x"]}), TypeError, "str values"),
        (lambda m: m.add("backoff.time", BILLING, "1"), TypeError, "amount must be"),
        (lambda m: m.add("backoff.time", BILLING, -1), ValueError, "amount must be"),
        (
            lambda m: m.record("rate_limiter.wait.duration", {"name": "x"}, None),
            TypeError,
            "a number, got",
        ),
    ],
)
def test_invalid_measurement_raises_where_it_is_recorded(call, error, message):
    metrics = InMemoryMetrics()
    with pytest.raises(error, match=message):
        call(metrics)
    assert metrics.snapshot() == {}


@pytest.mark.parametrize("settings", [{"max_label_values": 0}, {"thresholds": [-1]}])
def test_setting_out_of_range_raises_value_error(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))}.* must be"):
        InMemoryMetrics(**settings)


# History.


def test_history_has_a_total_for_each_minute_and_hour():
    clock = VirtualClock()
    metrics, start = InMemoryMetrics(clock=clock), clock.time()
    for wait in (0, 59, 2, HOUR):
        clock.advance(wait)
        metrics.add("backoff.time", BILLING, 2)
    assert metrics.history("backoff.time", BILLING) == History(
        (
            Total(start, 4.0),
            Total(start + MINUTE, 2.0),
            Total(start + HOUR + MINUTE, 2.0),
        ),
        (Total(start, 6.0), Total(start + HOUR, 2.0)),
    )


def test_history_keeps_minutes_for_six_hours_and_hours_for_a_month():
    clock = VirtualClock()
    metrics = InMemoryMetrics(clock=clock)
    for _ in range(31 * 24 * 4):
        metrics.first_success("billing", 1.0)
        clock.advance(15 * MINUTE)
    shown = metrics.history("call.duration", BILLING | {"outcome": "success"})
    assert len(shown.minutes) == 6 * 4 - 1
    assert len(shown.hours) == 30 * 24 - 1
    assert {each.value.count for each in shown.hours} == {4}
    assert count(metrics) == 31 * 24 * 4


def test_history_adds_up_to_the_snapshot_when_each_minute_is_used():
    clock = VirtualClock()
    metrics = InMemoryMetrics(clock=clock)
    for number in range(3 * 359):
        metrics.first_success("billing", number % 7)
        clock.advance(20)
    shown = metrics.history("attempt.duration", BILLING | {"outcome": "success"})
    total = metrics.snapshot()["attempt.duration"]["billing", "success"]
    for each in (shown.minutes, shown.hours):
        assert sum(minute.value.sum for minute in each) == total.sum
        rows = [minute.value.counts for minute in each]
        assert tuple(map(sum, zip(*rows, strict=True))) == total.counts


def test_history_is_empty_after_a_long_pause():
    clock = VirtualClock()
    metrics = InMemoryMetrics(clock=clock)
    metrics.add("backoff.time", BILLING)
    clock.advance(7 * HOUR)
    shown = metrics.history("backoff.time", BILLING)
    assert (shown.minutes, len(shown.hours)) == ((), 1)
    clock.advance(30 * DAY)
    assert metrics.history("backoff.time", BILLING) == History((), ())


def test_history_of_unused_labels_is_empty():
    assert InMemoryMetrics().history("backoff.time", BILLING) == History((), ())


# The limit of label values.


def test_ten_thousand_names_give_two_hundred_and_one_values(caplog):
    metrics = InMemoryMetrics()
    for number in range(10_000):
        metrics.first_success(f"template {number}", 0.1)
        metrics.add("retries", {"template": f"template {number}", "error.type": "OSError"})
    shown = metrics.snapshot()
    for name in ("call.duration", "attempt.duration", "retries"):
        assert len(shown[name]) == 201
    assert shown["retries"]["_other", "OSError"] == 9800
    assert shown["call.duration"]["_other", "success"].count == 9800
    assert shown["label.overflows"] == dict.fromkeys(
        [("call.duration",), ("attempt.duration",), ("retries",)], 9800
    )
    assert sorted(each.args[:2] for each in caplog.records) == [
        ("call.duration", "template"),
        ("retries", "template"),
    ]


def test_label_limit_of_one_counts_its_overflows():
    metrics = InMemoryMetrics(max_label_values=1)
    for name in "abc":
        metrics.add("backoff.time", {"template": name})
        metrics.add("sink.errors", {"sink": name})
    assert metrics.snapshot() == {
        "backoff.time": {("a",): 1.0, ("_other",): 2.0},
        "sink.errors": {("a",): 1.0, ("_other",): 2.0},
        "label.overflows": {("backoff.time",): 2.0, ("sink.errors",): 2.0},
    }


# Threads and processes.


def test_no_count_is_lost_when_threads_record_and_read():
    metrics, number = InMemoryMetrics(), 5000

    def work(template):
        for _ in range(number):
            metrics.first_success(template, 0.01)
            metrics.add("backoff.time", BILLING, 2)
        metrics.snapshot()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, "aabbccdd"))
    shown = metrics.snapshot()
    assert {key[0]: each.count for key, each in shown["call.duration"].items()} == dict.fromkeys(
        "abcd", 2 * number
    )
    assert shown["backoff.time"]["billing",] == 16 * number


def test_metrics_of_a_forked_child_begin_at_zero():
    metrics = InMemoryMetrics()
    metrics.first_success("billing", 0.1)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        metrics.first_success("billing", 0.1)
        os.write(write, str(count(metrics)).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as result:
        assert (result.read(), count(metrics)) == ("1", 1)


def test_distribution_counts_its_durations():
    assert Distribution(3.0, (1, 2), (1.0,)).count == 3


# Increase in a window.


def test_increase_covers_at_least_the_whole_window():
    clock = VirtualClock()
    metrics = InMemoryMetrics(clock=clock)
    clock.advance(MINUTE - clock.time() % MINUTE)
    for _ in range(10):
        metrics.add("backoff.time", BILLING, 1)
        clock.advance(MINUTE)
    assert metrics.increase("backoff.time", 5 * MINUTE) == {("billing",): 5.0}
    clock.advance(30)
    assert metrics.increase("backoff.time", 5 * MINUTE) == {("billing",): 5.0}
    clock.advance(30)
    assert metrics.increase("backoff.time", 5 * MINUTE) == {("billing",): 4.0}


@pytest.mark.parametrize("hours", [1, 5.9, 7, 48, 700])
def test_increase_equals_the_sum_of_the_history(hours):
    clock = VirtualClock()
    metrics = InMemoryMetrics(clock=clock)
    clock.advance(HOUR - clock.time() % HOUR)
    for number in range(1, 80):
        metrics.add("backoff.time", BILLING, number)
        clock.advance(HOUR * number / 3)
        metrics.add("backoff.time", BILLING, number)
    history = metrics.history("backoff.time", BILLING)
    rows, length = (history.minutes, MINUTE) if hours <= 6 else (history.hours, HOUR)
    expected = sum(each.value for each in rows if each.time + length > clock.time() - hours * HOUR)
    found = metrics.increase("backoff.time", hours * HOUR)
    assert found == ({("billing",): expected} if expected else {})


def test_increase_leaves_out_series_that_did_not_change():
    clock = VirtualClock()
    metrics = InMemoryMetrics(clock=clock)
    metrics.first_success("old", 0.1)
    clock.advance(10 * MINUTE)
    metrics.first_success("new", 0.1)
    found = metrics.increase("call.duration", 5 * MINUTE)
    assert {key: each.count for key, each in found.items()} == {("new", "success"): 1}


@pytest.mark.parametrize(
    "name, window, message",
    [
        ("retrys", 60, "name must be a metric of INSTRUMENTS, got 'retrys'; did you mean"),
        ("bulkhead.usage", 60, "name must be a counter or histogram, got the gauge"),
        ("retries", 0, "window must be"),
        ("retries", 31 * DAY, "window must be at most 30 days"),
    ],
)
def test_increase_with_invalid_arguments_raises(name, window, message):
    with pytest.raises(ValueError, match=message):
        InMemoryMetrics().increase(name, window)
