"""Rules for Prometheus, from the objectives, the rules and the table of metrics."""

import json
import re

import pytest

from retrytemplate.observe import (
    DEFAULT_RULES,
    INSTRUMENTS,
    SLO,
    AlertRule,
    BurnRule,
    BurnRules,
    Latency,
    Selection,
    prometheus_rules,
)
from retrytemplate.observe.alerts.prometheus import range_text

BILLING = SLO("billing", availability=0.999, latency=Latency(p95=3.0, p99=0.25), error_rate=0.01)
SUFFIXES = {"histogram": ("_count", "_bucket"), "counter": ("",), "gauge": ("",)}


def rules_of(*slos, **settings):
    groups = prometheus_rules(slos, **settings)["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expression_of(name, *slos, **labels):
    """The expression of the only rule with this name and these labels."""
    (found,) = (
        each["expr"]
        for each in rules_of(*slos)
        if name in (each.get("record"), each.get("alert"))
        and each.get("labels", {}).items() >= labels.items()
    )
    return found


def names_in(expression):
    return {*re.findall(r"retrytemplate_\w+", expression)}


NAMES = {
    row.prometheus_name + suffix for row in INSTRUMENTS.values() for suffix in SUFFIXES[row.kind]
}


def test_expressions_have_only_names_of_the_table():
    for rule in rules_of(BILLING):
        assert names_in(rule["expr"]) <= NAMES


def test_expressions_have_only_recorded_ratios_and_counts():
    rules = rules_of(BILLING)
    recorded = {each["record"] for each in rules if "record" in each}
    used = {name for each in rules for name in re.findall(r"retrytemplate:[\w:]+", each["expr"])}
    assert used <= recorded
    assert {f"retrytemplate:slo_errors:ratio_rate{each}" for each in ("5m", "30m", "1h", "6h")} == {
        each for each in recorded if "slo_errors" in each
    }


def test_rules_with_one_name_have_different_labels():
    rules = rules_of(BILLING, SLO("search", availability=0.99))
    keys = [(each.get("record"), each.get("alert"), str(each["labels"])) for each in rules]
    assert len(keys) == len(set(keys))


@pytest.mark.statement("S4-82")
def test_burn_alert_compares_both_windows_and_the_calls():
    labels = '{slo="billing",objective="availability"}'
    found = expression_of(
        "RetrytemplateErrorBudgetBurn", BILLING, objective="availability", severity="page"
    )
    assert found == (
        f"retrytemplate:slo_errors:ratio_rate1h{labels} / (1 - 0.999) > 14 and "
        f"retrytemplate:slo_errors:ratio_rate5m{labels} / (1 - 0.999) > 14 and "
        f"retrytemplate:slo_calls:increase1h{labels} >= 100"
    )


def test_ratio_subtracts_fallback_answers_and_is_zero_without_calls():
    name = "retrytemplate_call_duration_seconds_count"
    found = expression_of(
        "retrytemplate:slo_errors:ratio_rate5m", BILLING, objective="availability"
    )
    assert found == (
        f'clamp_min((sum(increase({name}{{template="billing",outcome=~"failed|rejected"}}[5m]))'
        " or vector(0)) - (sum(increase(retrytemplate_fallback_calls_total"
        '{name="billing",source!~"primary|none"}[5m])) or vector(0)), 0) / '
        f'(sum(increase({name}{{template="billing",outcome!~"cancelled|redelivered"}}[5m])) > 0)'
        " or vector(0)"
    )


@pytest.mark.parametrize(
    "objective, bound", [("latency_p95", 'le=~"3([.]0)?"'), ("latency_p99", 'le="0.25"')]
)
def test_latency_counts_the_bucket_of_its_limit(objective, bound):
    found = expression_of("retrytemplate:slo_errors:ratio_rate5m", BILLING, objective=objective)
    assert found.count(bound) == found.count("_bucket{") == 1


def test_windows_and_factors_of_the_slo_are_used():
    burn = BurnRules(page=BurnRule(7200, 600, 10), ticket=BurnRule(12 * 3600, 5400, 4))
    slo = SLO("search", availability=0.99, burn=burn, min_calls=7)
    found = expression_of("RetrytemplateErrorBudgetBurn", slo, severity="ticket")
    for text in ("ratio_rate12h{", "ratio_rate90m{", "> 4 and", "increase12h{", ">= 7"):
        assert text in found


def test_error_rate_without_a_window_of_five_minutes_is_recorded():
    burn = BurnRules(page=BurnRule(7200, 600, 10), ticket=BurnRule(12 * 3600, 5400, 4))
    rules = rules_of(SLO("search", availability=0.99, error_rate=0.02, burn=burn))
    recorded = {each.get("record") for each in rules}
    assert {
        "retrytemplate:slo_errors:ratio_rate5m",
        "retrytemplate:slo_calls:increase5m",
    } <= recorded
    (alert,) = (each for each in rules if each.get("alert") == "RetrytemplateErrorRate")
    assert "ratio_rate5m{" in alert["expr"] and "> 0.02 and" in alert["expr"]


@pytest.mark.statement("S4-80")
@pytest.mark.parametrize(
    "name, expression",
    [
        (
            "SlowCalls",
            "histogram_quantile(0.95, sum by (le, template) "
            "(rate(retrytemplate_call_duration_seconds_bucket"
            '{outcome!~"cancelled|redelivered"}[5m]))) > 5',
        ),
        (
            "Retries",
            "sum by (template) (increase(retrytemplate_retries_total[5m])) / "
            "(sum by (template) (increase(retrytemplate_call_duration_seconds_count"
            '{outcome!~"cancelled|redelivered"}[5m])) > 0) > 0.1',
        ),
        (
            "KillSwitchActive",
            "max by (name, scope, target) (retrytemplate_kill_switch_stopped_ratio) > 0",
        ),
        (
            "BulkheadUsage",
            "max by (name) (retrytemplate_bulkhead_usage / (retrytemplate_bulkhead_limit > 0))"
            " > 0.8",
        ),
    ],
)
def test_default_rule_has_its_expression(name, expression):
    assert expression_of(f"Retrytemplate{name}") == expression


def test_count_without_a_ratio_includes_the_first_sample_of_a_series():
    series = 'retrytemplate_circuit_breaker_transitions_total{to="open"}'
    assert expression_of("RetrytemplateCircuitBreakerOpened") == (
        f"sum by (name) (increase({series}[5m])) > 0 or "
        f"sum by (name) ({series} unless {series} offset 5m) > 0"
    )


def test_alert_stays_for_the_time_of_its_rule():
    rule = AlertRule(
        name="attempts_lost",
        summary="Workers crash.",
        severity="critical",
        series=Selection("attempt.lost"),
        limit=0,
        clear_after=0,
    )
    (found,) = rules_of(rules=[rule])
    assert "keep_firing_for" not in found
    assert (found["alert"], found["labels"]) == (
        "RetrytemplateAttemptsLost",
        {"severity": "critical"},
    )
    assert {each.get("keep_firing_for") for each in rules_of(rules=DEFAULT_RULES)} == {"5m"}


def test_names_of_users_are_quoted():
    slo = SLO('a"b\\c', availability=0.9)
    found = expression_of("retrytemplate:slo_calls:increase1h", slo)
    assert 'template="a\\"b\\\\c"' in found


def test_two_slos_with_one_name_raise():
    with pytest.raises(ValueError, match="different names, got 'billing' twice"):
        prometheus_rules([BILLING, BILLING])


def test_rules_are_values_of_json():
    rules = prometheus_rules([BILLING])
    assert json.loads(json.dumps(rules)) == rules


@pytest.mark.parametrize(
    "seconds, text", [(90, "90s"), (3600, "1h"), (86_400 * 30, "30d"), (0.25, "250ms")]
)
def test_range_is_written_in_the_largest_whole_unit(seconds, text):
    assert range_text(seconds) == text
