"""Objectives and burn rates."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate.observe import SLO, BurnRate, BurnRule, BurnRules, Latency
from tests.observe.alerts.support import DAY, HOUR, MINUTE


@pytest.mark.statement("S4-84")
@pytest.mark.parametrize(
    "availability, minutes", [(0.99, 432), (0.999, 43.2), (0.9999, 4.32), (0.5, 21_600)]
)
def test_allowed_downtime_follows_from_availability_and_window(availability, minutes):
    slo = SLO("billing", availability=availability)
    assert slo.downtime_allowed / MINUTE == pytest.approx(minutes)
    month = BurnRate(slo.window, 0, 0, availability)
    assert month.downtime_allowed == slo.downtime_allowed


def test_burn_rate_is_the_ratio_divided_by_the_allowed_ratio():
    burn = BurnRate(HOUR, bad=30, valid=2000, target=0.999)
    assert (burn.ratio, burn.rate) == (pytest.approx(0.015), pytest.approx(15))
    assert burn.budget_left == pytest.approx(-14)
    assert burn.downtime_used == pytest.approx(54)


def test_burn_rate_without_calls_is_zero():
    burn = BurnRate(HOUR, 0, 0, 0.999)
    assert (burn.ratio, burn.rate, burn.budget_left, burn.downtime_used) == (0, 0, 1, 0)


@given(st.integers(0, 1000), st.integers(1, 1000), st.floats(0.5, 0.9999))
def test_budget_left_is_the_share_of_allowed_errors(bad, others, availability):
    burn = BurnRate(30 * DAY, bad, bad + others, availability)
    allowed = burn.valid * (1 - availability)
    assert burn.budget_left == pytest.approx(1 - bad / allowed)
    used = burn.downtime_used / burn.downtime_allowed
    assert burn.budget_left == pytest.approx(1 - used)


def test_objectives_are_availability_and_limits_of_latency():
    slo = SLO("billing", availability=0.999, latency=Latency(p99=8, p95=timedelta(seconds=3)))
    assert [(each.name, each.target, each.threshold) for each in slo.objectives] == [
        ("availability", 0.999, None),
        ("latency_p95", 0.95, 3),
        ("latency_p99", 0.99, 8),
    ]
    assert slo.thresholds == (3, 8)


def test_default_windows_and_factors():
    burn = SLO("billing", availability=0.999).burn
    assert burn.page == BurnRule(long=HOUR, short=5 * MINUTE, factor=14)
    assert burn.ticket == BurnRule(long=6 * HOUR, short=30 * MINUTE, factor=6)


def test_burn_windows_are_sorted_without_duplicates():
    page = BurnRule(long=timedelta(hours=2), short=600, factor=10)
    slo = SLO("x", availability=0.9, burn=BurnRules(page, BurnRule(3 * HOUR, 2 * HOUR, 2)))
    assert slo.burn_windows == (600, 2 * HOUR, 3 * HOUR)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"availability": 1}, ValueError, "availability must be a number > 0 and < 1, got 1"),
        ({"availability": 99.9}, ValueError, "availability must be"),
        ({"availability": "99.9%"}, TypeError, "availability must be"),
        ({"error_rate": 0}, ValueError, "error_rate must be"),
        ({"window": 31 * DAY}, ValueError, "window must be at most 30 days"),
        ({"min_calls": 0}, ValueError, "min_calls must be"),
        ({"latency": 3}, TypeError, "latency must be a Latency or None, got 3"),
        ({"burn": 14}, TypeError, "burn must be a BurnRules, got 14"),
        ({"name": " "}, TypeError, "name must be"),
    ],
)
def test_slo_with_an_invalid_setting_raises(change, error, message):
    with pytest.raises(error, match=message):
        SLO(**{"name": "billing", "availability": 0.999, **change})


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: BurnRule(300, 300, 1), "short must be below long"),
        (lambda: BurnRule(31 * DAY, 300, 1), "long must be at most 30 days"),
        (lambda: BurnRule(300, 60, 0), "factor must be a number > 0"),
        (lambda: Latency(p95=0), "p95 must be"),
    ],
)
def test_burn_rule_or_latency_with_an_invalid_number_raises(make, message):
    with pytest.raises(ValueError, match=message):
        make()
