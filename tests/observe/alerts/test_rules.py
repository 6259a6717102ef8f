"""Selections and rules."""

import pytest

from retrytemplate.observe import DEFAULT_RULES, INSTRUMENTS, AlertRule, Selection

CALLS = Selection("call.duration")
VALID = {
    "name": "x",
    "summary": "A sentence.",
    "severity": "info",
    "series": CALLS,
    "limit": 1,
}


def test_selection_matches_values_that_it_names():
    calls = Selection("call.duration", only={"template": "a"}, without={"outcome": ("x", "y")})
    assert calls.matches(("a", "success"))
    assert not calls.matches(("b", "success"))
    assert not calls.matches(("a", "y"))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"metric": "call.durations"}, "metric must be a metric of INSTRUMENTS"),
        ({"only": {"name": "x"}}, r"only must have labels of 'call.duration' \(template, outcome"),
        ({"without": {"name": "x"}}, "without must have labels of 'call.duration'"),
        ({"up_to": 0}, "up_to must be"),
        ({"metric": "retries", "up_to": 1}, "up_to must be None: 'retries' is a counter"),
    ],
)
def test_selection_with_an_invalid_argument_raises(arguments, message):
    with pytest.raises(ValueError, match=message):
        Selection(**{"metric": "call.duration", **arguments})


@pytest.mark.parametrize(
    "change, message",
    [
        ({"by": ("name",)}, "by must have labels of 'call.duration', got 'name'"),
        (
            {"by": ("outcome",), "relative_to": Selection("retries")},
            "by must have labels of 'retries', got 'outcome'",
        ),
        ({"severity": "page"}, "severity must be 'info' or 'warning' or 'critical'"),
        ({"quantile": 1.5}, "quantile must be from 0 to 1"),
        ({"series": Selection("retries"), "quantile": 0.5}, "quantile must be from 0 to 1"),
        ({"relative_to": CALLS, "quantile": 0.5}, "quantile must be from 0 to 1"),
        ({"relative_to": Selection("bulkhead.limit")}, "relative_to must be a gauge if"),
        ({"limit": -1}, "limit must be a number >= 0"),
        ({"window": 0}, "window must be"),
    ],
)
def test_rule_with_an_invalid_argument_raises(change, message):
    with pytest.raises(ValueError, match=message):
        AlertRule(**{**VALID, **change})


def test_default_rules_have_different_names_and_existing_metrics():
    assert len({each.name for each in DEFAULT_RULES}) == len(DEFAULT_RULES) == 7
    for rule in DEFAULT_RULES:
        assert rule.series.metric in INSTRUMENTS
        assert (rule.window, rule.clear_after) == (300, 300)
