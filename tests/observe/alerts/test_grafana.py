"""The dashboard for Grafana, from the table of metrics."""

import json

from retrytemplate.observe import INSTRUMENTS, SLO, Latency, grafana_dashboard

BILLING = SLO("billing", availability=0.999, latency=Latency(p95=3.0))


def panels_of(dashboard, kind=None):
    return [each for each in dashboard["panels"] if each["type"] in {kind or each["type"]}]


def expressions_of(panel):
    return [each["expr"] for each in panel["targets"]]


def test_each_metric_has_a_panel_with_its_name_and_labels():
    panels = {each["title"]: each for each in panels_of(grafana_dashboard(), "timeseries")}
    assert panels.keys() == INSTRUMENTS.keys()
    for name, row in INSTRUMENTS.items():
        assert panels[name]["description"] == row.description
        for target in panels[name]["targets"]:
            assert row.prometheus_name in target["expr"]
            for label in row.prometheus_labels:
                assert f"{{{{{label}}}}}" in target["legendFormat"]


def test_counter_gauge_and_histogram_have_their_expressions():
    panels = {each["title"]: each for each in panels_of(grafana_dashboard())}
    assert expressions_of(panels["retries"]) == [
        "sum by (template, error_type) (rate(retrytemplate_retries_total[$__rate_interval]))"
    ]
    assert expressions_of(panels["bulkhead.usage"]) == [
        "sum by (name) (retrytemplate_bulkhead_usage)"
    ]
    assert expressions_of(panels["store.up"]) == ["min by (kind, name) (retrytemplate_store_up)"]
    assert expressions_of(panels["kill_switch.stopped_ratio"])[0].startswith("max by")
    median, p95 = expressions_of(panels["call.duration"])
    assert median.startswith("histogram_quantile(0.5, sum by (le, template, outcome) (rate(")
    assert p95 == median.replace("0.5", "0.95")


def test_units_are_those_of_the_table():
    panels = {each["title"]: each for each in panels_of(grafana_dashboard())}
    units = {
        name: each["fieldConfig"]["defaults"]["unit"]
        for name, each in panels.items()
        if "fieldConfig" in each
    }
    assert units["call.duration"] == "s"
    assert units["step.progress_ratio"] == "percentunit"
    assert units["retries"] == "ops"
    assert units["bulkhead.usage"] == "short"


def test_panels_have_different_numbers_and_do_not_overlap():
    panels = grafana_dashboard([BILLING])["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    taken = set()
    for each in panels:
        place = each["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells


def test_slo_has_panels_of_burn_rates_and_budget():
    burning, budget = (
        each for each in panels_of(grafana_dashboard([BILLING])) if "billing" in each["title"]
    )
    assert len(burning["targets"]) == 8  # two objectives in four windows
    assert expressions_of(burning)[0] == (
        'retrytemplate:slo_errors:ratio_rate5m{slo="billing",objective="availability"}'
        " / (1 - 0.999)"
    )
    steps = burning["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [each["value"] for each in steps] == [None, 6.0, 14.0]
    assert budget["title"] == "billing: budget left in 30d"
    assert all("[30d]" in each for each in expressions_of(budget))


def test_dashboard_has_title_uid_and_a_choice_of_the_source():
    made = grafana_dashboard(title="Shop", uid="shop")
    assert (made["title"], made["uid"]) == ("Shop", "shop")
    assert made["templating"]["list"][0]["type"] == "datasource"
    assert json.loads(json.dumps(made)) == made
