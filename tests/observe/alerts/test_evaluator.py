"""Alerts of this process: burn rates, error rates and rules, raised once and cleared once."""

import logging
import os
import threading

import pytest

from retrytemplate.control import CircuitBreaker, KillSwitch
from retrytemplate.observe import (
    DEFAULT_RULES,
    EVENT_TYPES,
    SLO,
    AlertEvaluator,
    AlertRule,
    BurnRule,
    BurnRules,
    CallbackSink,
    FilteredSink,
    InMemoryMetrics,
    Latency,
    MemorySink,
    Observer,
    Selection,
)
from tests.observe.alerts.support import DAY, HOUR, MINUTE, Shop, shown
from tests.support.polling import wait_until

BILLING = SLO("billing", availability=0.999)
PAGE, TICKET = "availability.page", "availability.ticket"


def burning(**settings):
    return Shop(SLO("billing", **{"availability": 0.99, **settings}), rules=())


# Burn rates.


@pytest.mark.statement("S4-82")
def test_burn_above_14_in_an_hour_pages():
    shop = burning()
    alerts = shop.steady(60, good=85, bad=15)
    assert ("raised", PAGE, "billing") in shown(alerts)
    page = next(each for each in alerts if each.data["rule"] == PAGE)
    assert (page.severity, page.data["limit"], page.data["window"]) == (logging.CRITICAL, 14, HOUR)
    assert page.data["value"] == pytest.approx(15)


@pytest.mark.statement("S4-82")
def test_burn_of_14_in_an_hour_does_not_page():
    shop = burning()
    assert PAGE not in [each.data["rule"] for each in shop.steady(60, good=86, bad=14)]


@pytest.mark.statement("S4-82")
def test_burn_above_6_in_six_hours_opens_a_ticket_and_does_not_page():
    shop = burning()
    alerts = shop.steady(360, good=93, bad=7)
    assert shown(alerts) == [("raised", TICKET, "billing")]
    assert alerts[0].severity == logging.WARNING


@pytest.mark.statement("S4-82")
def test_burn_of_6_in_six_hours_opens_no_ticket():
    assert burning().steady(360, good=94, bad=6) == []


def test_page_needs_the_long_window_too():
    shop = burning()
    shop.steady(60, good=100, bad=0)
    assert shown(shop.steady(6, good=0, bad=100)) == [("raised", TICKET, "billing")]
    assert shown(shop.steady(4, good=0, bad=100)) == [("raised", PAGE, "billing")]


def test_page_needs_the_short_window_too():
    shop = burning()
    shop.calls(800)
    shop.calls(200, "failed")
    shop.clock.advance(10 * MINUTE)
    shop.calls(100)
    assert [each.data["rule"] for each in shop.evaluator.evaluate()] == [TICKET]


def test_page_ends_five_minutes_after_the_short_window():
    shop = burning()
    shop.steady(5, good=0, bad=100)
    assert shop.steady(8, good=100, bad=0) == []
    cleared = shop.steady(1, good=100, bad=0)
    assert shown(cleared) == [("cleared", PAGE, "billing")]
    assert cleared[0].severity == logging.INFO


def test_burn_with_fewer_calls_than_min_calls_raises_no_alert():
    shop = burning()
    shop.calls(99, "failed")
    assert shop.evaluator.evaluate() == ()
    shop.calls(1, "failed")
    assert shown(shop.evaluator.evaluate()) == [
        ("raised", PAGE, "billing"),
        ("raised", TICKET, "billing"),
    ]


def test_burn_rules_of_the_slo_are_used():
    rule = BurnRule(2 * MINUTE, MINUTE, 2)
    shop = burning(burn=BurnRules(rule, rule), min_calls=10)
    shop.calls(97)
    shop.calls(3, "failed")
    assert {each.data["limit"] for each in shop.evaluator.evaluate()} == {2}


@pytest.mark.parametrize(
    "outcome, bad, valid",
    [
        ("success", 0, 1),
        ("success_after_retry", 0, 1),
        ("recovered", 0, 1),
        ("failed", 1, 1),
        ("rejected", 1, 1),
        ("redelivered", 0, 0),
        ("cancelled", 0, 0),
    ],
)
def test_outcome_is_bad_good_or_not_valid(outcome, bad, valid):
    shop = burning()
    shop.calls(1, outcome)
    (found,) = shop.evaluator.report().objectives
    assert (found.total.bad, found.total.valid) == (bad, valid)


def test_call_that_a_fallback_answered_is_not_bad():
    shop = burning()
    shop.calls(10, "failed")
    for source, number in (("primary", 5), ("none", 3), ("cached", 7)):
        shop.fallback(number, source)
    shop.fallback(4, "cached", name="other")
    (found,) = shop.evaluator.report().objectives
    assert (found.total.bad, found.total.valid) == (3, 10)


def test_calls_of_another_template_do_not_count():
    shop = burning()
    shop.calls(1000, "failed", template="other")
    assert shop.evaluator.evaluate() == ()


# Latency and error rate.


def test_slow_successes_burn_the_latency_objective():
    shop = burning(latency=Latency(p95=3.0))
    shop.calls(200, duration=3.0)
    assert shop.evaluator.evaluate() == ()
    shop.calls(800, duration=3.1)
    assert shown(shop.evaluator.evaluate()) == [
        ("raised", "latency_p95.page", "billing"),
        ("raised", "latency_p95.ticket", "billing"),
    ]


def test_slow_failures_do_not_burn_the_latency_objective():
    shop = burning(latency=Latency(p95=3.0))
    shop.calls(100, "success_after_retry", duration=1)
    shop.calls(900, "failed", duration=10)
    latency = shop.evaluator.report().objectives[1]
    assert (latency.total.bad, latency.total.valid) == (0, 100)


def test_latency_without_a_bucket_raises():
    slo = SLO("billing", availability=0.999, latency=Latency(p95=3.0, p99=5.0))
    with pytest.raises(ValueError, match="bucket for each limit of latency, got none for 3 s"):
        AlertEvaluator(Observer(metrics=[InMemoryMetrics()]), [slo])


def test_error_rate_is_counted_over_five_minutes():
    shop = burning(availability=0.5, error_rate=0.01)
    assert shop.steady(4, good=99, bad=1) == []
    alerts = shop.steady(5, good=98, bad=2)
    assert shown(alerts) == [("raised", "error_rate", "billing")]
    assert (alerts[0].data["limit"], alerts[0].data["window"]) == (0.01, 300)


# Rules: for each a series that raises its alert, and one that does not.


def timed_out(shop, number):
    labels = {"operation": "f", "timeout_type": "request", "retryable": "true"}
    shop.metrics.add("timeouts", labels, number)


def retried(shop, number):
    shop.metrics.add("retries", {"template": "billing", "error.type": "OSError"}, number)


def opened(shop, to):
    labels = {"name": "billing", "to": to, "manual": "false"}
    shop.metrics.add("circuit_breaker.transitions", labels)


RULES = {
    "slow_calls": (
        lambda shop: (shop.calls(94), shop.calls(6, duration=9)),
        lambda shop: (shop.calls(95), shop.calls(5, duration=9)),
        "template=billing",
    ),
    "timeouts": (
        lambda shop: (shop.calls(1000), timed_out(shop, 11)),
        lambda shop: (shop.calls(1000), timed_out(shop, 10)),
        "all",
    ),
    "retries": (
        lambda shop: (shop.calls(1000), retried(shop, 101)),
        lambda shop: (shop.calls(1000), retried(shop, 100)),
        "template=billing",
    ),
    "circuit_breaker_opened": (
        lambda shop: opened(shop, "open"),
        lambda shop: opened(shop, "half_open"),
        "name=billing",
    ),
    "fallback_answers": (
        lambda shop: (shop.fallback(940, "primary"), shop.fallback(60, "cached")),
        lambda shop: (shop.fallback(950, "primary"), shop.fallback(50, "cached")),
        "name=billing",
    ),
}


@pytest.mark.statement("S4-80")
@pytest.mark.parametrize("rule", RULES)
def test_rule_raises_above_its_limit_and_not_below(rule):
    above, below, subject = RULES[rule]
    for record, expected in ((above, [("raised", rule, subject)]), (below, [])):
        shop = Shop()
        record(shop)
        assert shown(shop.evaluator.evaluate()) == expected


@pytest.mark.statement("S4-80")
def test_full_bulkhead_raises_until_its_calls_end():
    shop = Shop()
    bulkhead = shop.bulkhead(5)
    slots = [bulkhead.slot() for _ in range(5)]
    for slot in slots[:4]:
        slot.__enter__()
    assert shop.evaluator.evaluate() == ()
    slots[4].__enter__()
    raised = shop.evaluator.evaluate()
    assert shown(raised) == [("raised", "bulkhead_usage", "name=llm")]
    assert (raised[0].data["value"], raised[0].severity) == (1.0, logging.INFO)
    for slot in slots:
        slot.__exit__(None, None, None)
    shop.clock.advance(5 * MINUTE)
    assert shown(shop.evaluator.evaluate()) == [("cleared", "bulkhead_usage", "name=llm")]


@pytest.mark.statement("S4-80")
def test_active_kill_switch_raises_a_critical_alert():
    shop, switch = Shop(), KillSwitch(name="main")
    shop.registry.add(switch)
    assert shop.evaluator.evaluate() == ()
    switch.stop(segment="finance", reason="leak suspected, incident 4711", by="kim", expires_in=60)
    (alert,) = shop.evaluator.evaluate()
    assert (alert.data["rule"], alert.severity) == ("kill_switch_active", logging.CRITICAL)
    assert alert.subject == "name=main, scope=segment, target=finance"
    switch.close()


def test_severities_of_the_default_rules():
    assert {each.name: each.severity for each in DEFAULT_RULES} == {
        "slow_calls": "warning",
        "timeouts": "warning",
        "retries": "info",
        "circuit_breaker_opened": "warning",
        "kill_switch_active": "critical",
        "fallback_answers": "warning",
        "bulkhead_usage": "info",
    }


def test_gauge_of_a_live_breaker_is_read():
    rule = AlertRule(
        name="breaker_open",
        summary="A circuit breaker is open.",
        severity="warning",
        series=Selection("circuit_breaker.state", only={"state": ("open", "forced_open")}),
        limit=0,
        by=("name",),
    )
    shop, breaker = Shop(rules=[rule]), CircuitBreaker("billing")
    shop.registry.add(breaker)
    assert shop.evaluator.evaluate() == ()
    breaker.force_open(by="kim", reason="maintenance")
    assert shown(shop.evaluator.evaluate()) == [("raised", "breaker_open", "name=billing")]


# Raised once, cleared once.


def test_alert_is_raised_once_and_cleared_once():
    shop = Shop()
    opened(shop, "open")
    alerts = []
    for _ in range(30):
        alerts += shop.evaluator.evaluate()
        shop.clock.advance(MINUTE)
    rule = "circuit_breaker_opened"
    assert shown(alerts) == [(each, rule, "name=billing") for each in ("raised", "cleared")]


def test_alert_below_its_limit_for_less_than_five_minutes_stays():
    shop = Shop()
    shop.calls(100, duration=9)
    assert len(shop.evaluator.evaluate()) == 1
    for _ in range(3):
        shop.clock.advance(4 * MINUTE)
        shop.calls(1000)
        assert shop.evaluator.evaluate() == ()
        shop.calls(1000, duration=9)
        shop.evaluator.evaluate()


def test_alert_data_has_the_keys_of_the_event():
    shop = Shop()
    opened(shop, "open")
    (alert,) = shop.evaluator.evaluate()
    assert alert.data == {
        "rule": "circuit_breaker_opened",
        "value": 1.0,
        "limit": 0.0,
        "window": 300.0,
    }
    assert tuple(alert.data) == EVENT_TYPES[alert.type].keys


@pytest.mark.statement("S4-83")
def test_alerts_go_once_to_the_sinks_of_the_observer():
    shop = Shop()
    opened(shop, "open")
    raised = shop.evaluator.evaluate()
    assert shop.evaluator.evaluate() == ()
    shop.clock.advance(10 * MINUTE)
    cleared = shop.evaluator.evaluate()
    assert shop.kept.events == raised + cleared
    assert [each.type for each in shop.kept.events] == ["alert.raised", "alert.cleared"]


@pytest.mark.statement("S4-83")
def test_one_sink_takes_the_alerts_out_of_all_events():
    received, metrics = [], InMemoryMetrics()
    pager = FilteredSink(CallbackSink(received.append), types=("alert.*",))
    observer = Observer(sinks=[pager], metrics=[metrics])
    metrics.first_success("billing", 9.0)
    observer.emit("shop.refund", "order-17")
    alerts = AlertEvaluator(observer).evaluate()
    assert received == [*alerts]


def test_sink_that_fails_changes_no_evaluation(caplog):
    class Raises:
        def emit(self, event):
            raise OSError("pager unavailable")

    metrics = InMemoryMetrics()
    metrics.first_success("billing", 9.0)
    evaluator = AlertEvaluator(Observer(sinks=[Raises()], metrics=[metrics]))
    assert shown(evaluator.evaluate()) == [("raised", "slow_calls", "template=billing")]
    assert "raised an exception" in caplog.text


def test_observer_without_sinks_raises_alerts():
    metrics = InMemoryMetrics()
    metrics.first_success("billing", 9.0)
    assert len(AlertEvaluator(Observer(metrics=[metrics])).evaluate()) == 1


@pytest.mark.parametrize(
    ("observer", "error"), [(InMemoryMetrics(), TypeError), (Observer(), ValueError)]
)
def test_observer_without_metrics_in_memory_is_named(observer, error):
    with pytest.raises(error, match="observer must"):
        AlertEvaluator(observer)


def test_background_thread_evaluates_until_it_is_closed():
    kept, metrics = MemorySink(), InMemoryMetrics()
    metrics.first_success("billing", 9.0)
    with AlertEvaluator(Observer(sinks=[kept], metrics=[metrics]), every=0.01):
        assert wait_until(lambda: kept.events)[0].data["rule"] == "slow_calls"
    assert "retrytemplate-alerts" not in [each.name for each in threading.enumerate()]


def test_thread_of_the_parent_is_started_in_a_child_process():
    kept, metrics = MemorySink(), InMemoryMetrics()
    with AlertEvaluator(Observer(sinks=[kept], metrics=[metrics]), every=0.01):
        child = os.fork()
        if not child:
            metrics.first_success("billing", 9.0)
            wait_until(lambda: kept.events)
            os._exit(0 if kept.events[0].data["rule"] == "slow_calls" else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("every", [0, -1])
def test_period_that_is_not_positive_raises(every):
    with pytest.raises(ValueError, match="every must be"):
        AlertEvaluator(Observer(metrics=[InMemoryMetrics()]), every=every)


# Report.


@pytest.mark.statement("S4-84")
def test_report_has_budget_burn_rates_and_downtime():
    shop = Shop(BILLING)
    shop.calls(19_900)
    shop.calls(10, "failed")
    shop.clock.advance(2 * DAY)
    shop.calls(90)
    assert str(shop.evaluator.report()) == (
        "Counted: calls of this process since its start.\n"
        "billing: availability 99.9 % in 30 d: 10 of 20000 calls bad, budget left 50.0%, "
        "downtime 21.6 of 43.2 min; burn rates 5 min: 0, 30 min: 0, 1 h: 0, 6 h: 0"
    )


def test_report_as_json_has_seconds_and_windows():
    shop = Shop(BILLING)
    shop.calls(985)
    shop.calls(15, "failed")
    (found,) = shop.evaluator.report().as_json()["objectives"]
    assert found["downtime_allowed"] == pytest.approx(2592)
    assert found["budget_left"] == pytest.approx(-14)
    assert [each["window"] for each in found["burn_rates"]] == [300, 1800, HOUR, 6 * HOUR]
    assert found["burn_rates"][0]["rate"] == pytest.approx(15)


@pytest.mark.parametrize(
    "wrong", [{"slos": BILLING}, {"slos": [17]}, {"rules": 17}, {"rules": [17]}, {"registry": 17}]
)
def test_argument_of_an_evaluator_with_another_type_is_named(wrong):
    observer = Observer(metrics=[InMemoryMetrics()])
    with pytest.raises(TypeError, match=f"{next(iter(wrong))}(: each)? must be"):
        AlertEvaluator(observer, **wrong)
