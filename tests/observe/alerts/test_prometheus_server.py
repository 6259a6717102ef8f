"""Rules, dashboard and metrics in a real Prometheus."""

import json

import pytest
from prometheus_client import CollectorRegistry, generate_latest, start_http_server

from retrytemplate.cli import main
from retrytemplate.control import Bulkhead
from retrytemplate.observe import (
    SLO,
    InMemoryMetrics,
    Latency,
    PrometheusCollector,
    Registry,
    grafana_dashboard,
    prometheus_rules,
)
from tests.conftest import found
from tests.observe.instruments.support import feed
from tests.support import prometheus_server
from tests.support.polling import wait_until
from tests.support.prometheus_server import Server, promtool

pytestmark = pytest.mark.stress

BILLING = SLO("billing", availability=0.999, latency=Latency(p95=3.0, p99=8.0), error_rate=0.01)
CALLS = "retrytemplate_call_duration_seconds_count"
BUCKET = "retrytemplate_call_duration_seconds_bucket"


@pytest.fixture(scope="module")
def binaries():
    return found(prometheus_server, prometheus_server.binaries)


@pytest.fixture
def rule_file(tmp_path):
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps(prometheus_rules([BILLING])))
    return file


def test_promtool_accepts_the_rules(binaries, rule_file):
    code, out = promtool(binaries, "check", "rules", "--lint=all", "--lint-fatal", rule_file)
    assert code == 0, out


def test_promtool_accepts_the_metrics(binaries):
    metrics, target = InMemoryMetrics(), CollectorRegistry()
    feed(metrics)
    PrometheusCollector(metrics, target=target)
    code, out = promtool(binaries, "check", "metrics", text=generate_latest(target).decode())
    assert (code, out) == (0, "")


def series(name, values, **labels):
    shown = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return {"series": f"{name}{{{shown}}}", "values": values}


def burn_alert(severity):
    """The burn alert that promtool expects, with its annotations."""
    rules = [rule for group in prometheus_rules([BILLING])["groups"] for rule in group["rules"]]
    labels = {"slo": "billing", "objective": "availability", "severity": severity}
    (found,) = (each for each in rules if "alert" in each and each["labels"] == labels)
    summary = found["annotations"]["summary"]
    return lambda value: {
        "exp_labels": labels,
        "exp_annotations": {"summary": summary, "value": value},
    }


PAGE, TICKET = burn_alert("page"), burn_alert("ticket")
# Good and bad calls per minute, for some minutes; then the expected alerts at some minutes.
SCENARIOS = {
    "calm": ([(500, 997, 3)], {450: []}),
    "page": ([(120, 980, 20)], {90: [PAGE("20"), TICKET("20")]}),
    "ticket": ([(480, 991, 9)], {470: [TICKET("9")]}),
    "clear": (
        [(400, 1000, 0), (70, 950, 50), (60, 1000, 0)],
        {469: [PAGE("50"), TICKET("9.583")], 485: [TICKET("9.722")], 515: []},
    ),
    "few": ([(120, 0.5, 0.5)], {90: []}),
}


def samples(minutes, number):
    """Counts of a counter, one per minute."""
    total, counts = 0.0, ["0"]
    for length, increase in zip(minutes, number, strict=True):
        for _ in range(length):
            total += increase
            counts.append(f"{total:g}")
    return " ".join(counts)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_burn_alerts_of_promtool_are_raised_and_cleared(binaries, rule_file, scenario):
    phases, expected = SCENARIOS[scenario]
    minutes, good, bad = zip(*phases, strict=True)
    labels = {"template": "billing"}
    file = rule_file.with_name("test.json")
    test = {
        "interval": "1m",
        "input_series": [
            series(CALLS, samples(minutes, good), outcome="success", **labels),
            series(CALLS, samples(minutes, bad), outcome="failed", **labels),
            *(
                series(BUCKET, samples(minutes, good), outcome="success", le=each, **labels)
                for each in ("3.0", "8")  # as exporters of Python and of Go write it
            ),
        ],
        "alert_rule_test": [
            {
                "eval_time": f"{minute}m",
                "alertname": "RetrytemplateErrorBudgetBurn",
                "exp_alerts": alerts,
            }
            for minute, alerts in expected.items()
        ],
    }
    content = {"rule_files": [str(rule_file)], "evaluation_interval": "1m", "tests": [test]}
    file.write_text(json.dumps(content))
    code, out = promtool(binaries, "test", "rules", file)
    assert code == 0, out


@pytest.fixture
def server(binaries, rule_file, tmp_path):
    """A Prometheus that scrapes the metrics of this process."""
    target = CollectorRegistry()
    metrics, bulkhead = InMemoryMetrics(thresholds=BILLING.thresholds), Bulkhead("llm", limit=7)
    collector = PrometheusCollector(metrics, Registry(bulkhead), target=target)
    web, thread = start_http_server(0, "127.0.0.1", target)
    try:
        with Server(tmp_path / "server", web.server_port, rule_file).running(binaries) as made:
            made.metrics, made.bulkhead = metrics, bulkhead
            yield made
    finally:
        web.shutdown()
        web.server_close()
        thread.join()
        collector.close()


def firing(server):
    alerts = server.get("alerts")["alerts"]
    return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}


def test_prometheus_raises_the_alerts_of_a_process(server, tmp_path, capsys):
    metrics = server.metrics
    feed(metrics)
    labels = {"template": "billing", "outcome": "success"}
    metrics.record("call.duration", labels, 0.1)
    metrics.record("call.duration", labels | {"outcome": "failed"}, 0.1)
    assert wait_until(lambda: server.query(f'{CALLS}{{outcome="failed"}}'))
    metrics.add("circuit_breaker.transitions", {"name": "billing", "to": "open", "manual": "false"})
    for number in range(1000):
        metrics.record("call.duration", labels, 4.0 if number % 2 else 0.1)
        metrics.record("call.duration", labels | {"outcome": "failed"}, 9.0)
    expected = {
        f"Retrytemplate{each}"
        for each in ("ErrorBudgetBurn", "ErrorRate", "SlowCalls", "CircuitBreakerOpened")
    }
    assert wait_until(lambda: expected <= firing(server))
    health = [each["health"] for group in server.get("rules")["groups"] for each in group["rules"]]
    assert {*health} == {"ok"}
    burn = wait_until(lambda: server.query("retrytemplate:slo_errors:ratio_rate5m"))
    ratios = {each["metric"]["objective"]: float(each["value"][1]) for each in burn}
    assert ratios["availability"] == pytest.approx(0.5, abs=0.01)
    assert ratios["latency_p95"] == pytest.approx(0.5, abs=0.01)
    assert ratios["latency_p99"] == pytest.approx(0, abs=0.01)

    # Each panel of the dashboard is answered, with values for each metric that has been recorded.
    recorded = {*metrics.snapshot(), "bulkhead.usage", "bulkhead.waiting", "bulkhead.limit"}
    for panel in grafana_dashboard([BILLING])["panels"]:
        for expression in (each["expr"] for each in panel.get("targets", ())):
            answer = server.query(expression.replace("$__rate_interval", "1m"))
            assert answer or panel["title"] not in recorded, expression

    # The command counts the same calls.
    file = tmp_path / "slo.toml"
    file.write_text("[slo.endpoints.billing]\navailability = '99.9%'")
    assert main(["slo", "report", str(file), "--json", "--prometheus", server.url]) == 0
    (objective,) = json.loads(capsys.readouterr().out)["objectives"]
    assert objective["bad"] / objective["valid"] == pytest.approx(0.5, abs=0.01)
