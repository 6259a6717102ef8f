"""``retrytemplate slo`` as a user runs it."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from retrytemplate.cli import main
from retrytemplate.config import load_slos
from retrytemplate.observe import grafana_dashboard, prometheus_rules

TEXT = """\
slo:
  endpoints:
    billing: {availability: 99.9%, latency: {p95: 3s}}
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(TEXT)
    (tmp_path / "bad.yaml").write_text(TEXT.replace("99.9%", "999%").replace("p95", "p90"))

    def run(*args):
        try:
            code = main(["slo", *args])
        except SystemExit as ended:
            code = ended.code
        return (code, *capsys.readouterr())

    return run


class Answer(BaseHTTPRequestHandler):
    """Responds to every query with the numbers of its server, in their order."""

    def do_GET(self):
        self.server.queries.append(parse_qs(urlsplit(self.path).query)["query"][0])
        value = self.server.numbers.pop(0)
        found = [] if value is None else [{"metric": {}, "value": [0, str(value)]}]
        body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}})
        self.send_response(200 if value != "broken" else 500)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def prometheus():
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        server.queries, server.numbers = [], []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.url = f"http://user:geheim-4711@127.0.0.1:{server.server_port}"
        server.plain = f"http://127.0.0.1:{server.server_port}"
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.statement("S4-81")
def test_check_of_a_valid_file_exits_with_0(command):
    assert command("check", "good.yaml") == (0, "no problems, 1 SLO\n", "")
    code, out, _ = command("check", "good.yaml", "--json")
    assert (code, json.loads(out)) == (0, {"slos": ["billing"]})


@pytest.mark.statement("S4-81")
@pytest.mark.parametrize("verb", ["check", "report", "rules", "grafana"])
def test_every_verb_lists_the_problems_of_a_file_and_exits_with_1(command, verb):
    code, out, err = command(verb, "bad.yaml")
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "bad.yaml:3:15: slo.endpoints.billing.availability: availability must be a number > 0 "
        "and < 1, got 9.99",
        "bad.yaml:3:45: slo.endpoints.billing.latency.p90: unknown setting; did you mean p99?",
    ]


@pytest.mark.statement("S4-84")
def test_report_without_prometheus_shows_the_allowed_downtime(command):
    assert command("report", "good.yaml") == (
        0,
        "billing: availability 99.9 % in 30 d: downtime allowed 43.2 min\n"
        "billing: latency_p95 95 % within 3 s in 30 d\n",
        "",
    )
    objective = json.loads(command("report", "good.yaml", "--json")[1])["objectives"][0]
    assert objective["downtime_allowed"] == pytest.approx(2592)


@pytest.mark.statement("S4-84")
def test_report_with_prometheus_shows_burn_rates_and_downtime(command, prometheus):
    prometheus.numbers = [50, 100_000, 15, 1000, 0, 0, None, None, 7, 1000] * 2
    code, out, err = command("report", "good.yaml", "--prometheus", prometheus.plain)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"Counted: calls in Prometheus at {prometheus.plain}.",
        "billing: availability 99.9 % in 30 d: 50 of 100000 calls bad, budget left 50.0%, "
        "downtime 21.6 of 43.2 min; burn rates 5 min: 15, 30 min: 0, 1 h: 0, 6 h: 7",
        "billing: latency_p95 95 % within 3 s in 30 d: 50 of 100000 calls bad, budget left 99.0%; "
        "burn rates 5 min: 0.3, 30 min: 0, 1 h: 0, 6 h: 0.14",
    ]
    assert "[30d]" in prometheus.queries[0] and "[5m]" in prometheus.queries[2]


def test_report_as_json_has_the_source(command, prometheus):
    prometheus.numbers = [0] * 20
    code, out, _ = command("report", "good.yaml", "--json", "--prometheus", prometheus.plain)
    assert (code, json.loads(out)["source"]) == (0, f"calls in Prometheus at {prometheus.plain}")


@pytest.mark.parametrize("numbers", [["broken"], ["x"], []], ids=["error", "no number", "closed"])
def test_report_without_an_answer_exits_with_1_and_hides_the_password(command, prometheus, numbers):
    prometheus.numbers = numbers
    url = prometheus.url if numbers else "http://user:geheim-4711@127.0.0.1:1"
    code, out, err = command("report", "good.yaml", "--prometheus", url)
    assert (code, out) == (1, "")
    assert "no answer of Prometheus at http://" in err and "geheim" not in err


def test_rules_are_yaml_with_the_same_content_as_json(command):
    expected = prometheus_rules(load_slos("good.yaml"))
    code, out, err = command("rules", "good.yaml")
    assert (code, err, yaml.safe_load(out)) == (0, "", expected)
    assert "&id" not in out
    assert json.loads(command("rules", "good.yaml", "--json")[1]) == expected


def test_grafana_prints_the_dashboard(command):
    code, out, err = command("grafana", "good.yaml")
    assert (code, err) == (0, "")
    assert json.loads(out) == grafana_dashboard(load_slos("good.yaml"))
