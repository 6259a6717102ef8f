"""``retrytemplate config`` as a user runs it."""

from __future__ import annotations

import json

import pytest
from jsonschema import validate

from retrytemplate.cli import main
from retrytemplate.config import json_schema
from tests.support.configs import EXAMPLE

MARK = "geheim-4711"
TEXT = """\
presets:
  partner: {base: httpx, max_attempts: 3}
retry:
  endpoints:
    billing: {preset: partner, initial: 200ms, maximum: 500ms, attempt_timeout: 1s}
timeout:
  endpoints:
    billing: {seconds: "${BILLING_TIMEOUT:-5s}"}
bulkhead:
  endpoints:
    search: {limit: 3, queue: 0}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(TEXT)
    (tmp_path / "bad.yaml").write_text(TEXT.replace("limit: 3", "limits: 3").replace("200ms", "x"))
    (tmp_path / "clean.yaml").write_text("bulkhead: {endpoints: {search: {limit: 3}}}")
    return tmp_path


@pytest.fixture
def command(folder, capsys):
    def run(*args):
        try:
            code = main(["config", *args])
        except SystemExit as ended:
            code = ended.code
        return (code, *capsys.readouterr())

    return run


def test_check_without_problems_exits_with_0(command):
    assert command("check", "clean.yaml") == (0, "no problems, no findings\n", "")


def test_check_lists_all_problems_and_exits_with_1(command):
    assert command("check", "bad.yaml", "clean.yaml") == (
        1,
        "bad.yaml:5:32: retry.endpoints.billing.initial: must be a duration such as 500ms or 2s, "
        "or a number of seconds, got 'x'\n"
        "bad.yaml:11:14: bulkhead.endpoints.search.limits: unknown setting; did you mean limit?\n",
        "",
    )


def test_check_lists_findings_and_exits_with_0(command):
    code, out, err = command("check", "good.yaml")
    assert (code, err) == (0, "")
    assert out == (
        "good.yaml: billing: worst-case-exceeds-timeout: the layers inside may take 135 s, and "
        "Timeout 'request' is over after 5 s: the last attempts may never be made. Make fewer "
        "attempts, shorter ones or shorter waits, or give it more time.\n"
    )


def test_strict_check_exits_with_1_for_findings(command):
    assert command("check", "good.yaml", "--strict")[0] == 1
    assert command("check", "clean.yaml", "--strict")[0] == 0


def test_check_of_a_missing_file_is_a_problem(command):
    assert command("check", "none.yaml")[:2] == (
        1,
        "none.yaml: cannot be read: No such file or directory\n",
    )


def test_check_json_has_problems_and_findings(command):
    code, out, _ = command("check", "bad.yaml", "good.yaml", "--json")
    found = json.loads(out)
    text = {"type": ["string", "null"]}
    number = {"type": ["integer", "null"]}
    validate(
        found,
        {
            "required": ["problems", "findings"],
            "properties": {
                "problems": {
                    "minItems": 2,
                    "items": {
                        "properties": {
                            **{key: {"type": "string"} for key in ("path", "message", "file")},
                            "suggestion": text,
                            **dict.fromkeys(("line", "column"), number),
                        },
                        "minProperties": 6,
                        "additionalProperties": False,
                    },
                },
                "findings": {"minItems": 1, "items": {"minProperties": 5}},
            },
        },
    )
    assert code == 1
    assert found["findings"][0]["rule"] == "worst-case-exceeds-timeout"


def test_show_prints_the_settings_of_all_endpoints(command):
    code, out, _ = command("show", "good.yaml")
    assert code == 0
    assert [line for line in out.splitlines() if line[:1] != " "] == ["billing", "", "search"]
    assert "  bulkhead.max_wait  1s" in out.splitlines()


def test_show_with_sources_names_file_and_line(command):
    _, out, _ = command("show", "good.yaml", "search", "--sources")
    assert out == (
        "search\n"
        "  bulkhead.limit     3   good.yaml:11\n"
        "  bulkhead.queue     0   good.yaml:11\n"
        "  bulkhead.max_wait  1s  default\n"
    )


def test_show_json_has_values_and_sources(command):
    _, out, _ = command("show", "good.yaml", "billing", "--json")
    billing = json.loads(out)["endpoints"]["billing"]
    assert billing["retry.max_attempts"] == {"value": 3, "source": "good.yaml:2"}
    assert billing["timeout.seconds"] == {"value": "5s", "source": "good.yaml:8"}


def test_show_has_section_observe_unless_an_endpoint_is_named(command, folder):
    (folder / "x.yaml").write_text("timeout: {endpoints: {x: {seconds: 1}}}\nobserve: {otel: true}")
    _, out, _ = command("show", "x.yaml", "--sources")
    assert "section observe\n" in out
    assert "  otel        true     x.yaml:2\n" in out
    _, out, _ = command("show", "x.yaml", "--json")
    assert json.loads(out)["observe"]["otel"] == {"value": True, "source": "x.yaml:2"}
    _, out, _ = command("show", "x.yaml", "x")
    assert "observe" not in out


@pytest.mark.statement("S0-40")
def test_explain_prints_raw_capped_and_random_delays(command):
    code, out, _ = command("explain", "good.yaml", "billing", "--attempt-duration", "0.5")
    assert code == 0
    assert out.startswith("Pipeline 'billing', the outermost first:\n  1. Timeout 'request'")
    assert out.endswith(
        "Delays before the retries, unless a server requests a longer one:\n"
        "  retry  raw    capped  range\n"
        "  1      0.2 s  0.2 s   0 s to 0.2 s\n"
        "  2      0.4 s  0.4 s   0 s to 0.4 s\n"
    )


@pytest.mark.statement("S0-40")
def test_explain_json_has_delays_and_worst_case(command):
    _, out, _ = command("explain", "good.yaml", "billing", "--json", "--attempt-duration", "0.5")
    found = json.loads(out)
    assert found["layers"] == ["Timeout", "RetryTemplate"]
    second = {"retry": 2, "raw": 0.4, "capped": 0.4, "shortest": 0.0, "longest": 0.4}
    assert found["delays"][1] == second
    assert found["worst_case"] == {"asynchronous": 5.0, "synchronous": 5.5}
    assert found["warnings"][0]["rule"] == "worst-case-exceeds-timeout"


def test_explain_of_an_endpoint_without_retry_has_no_delays(command):
    assert "Delays" not in command("explain", "good.yaml", "search")[1]


@pytest.mark.parametrize("verb", ["show", "explain"])
def test_unknown_endpoint_exits_with_2(command, verb):
    code, out, err = command(verb, "good.yaml", "biling")
    assert (code, out) == (2, "")
    assert "did you mean 'billing'?" in err


@pytest.mark.parametrize("verb", ["show", "explain"])
def test_invalid_file_exits_with_1(command, verb):
    code, out, err = command(verb, "bad.yaml", "billing")
    assert (code, out, len(err.splitlines())) == (1, "", 2)


def test_schema_prints_the_schema(command):
    code, out, _ = command("schema")
    assert (code, json.loads(out)) == (0, json_schema())


@pytest.mark.parametrize(
    "args",
    [
        ("check", "x.yaml"),
        ("check", "x.yaml", "--json"),
        ("show", "x.yaml", "--sources"),
        ("show", "x.yaml", "--json"),
        ("explain", "x.yaml", "billing"),
        ("explain", "x.yaml", "billing", "--json"),
    ],
)
def test_values_of_variables_are_in_no_output(command, folder, monkeypatch, args):
    text = EXAMPLE.read_text()
    text = text.replace("${REDIS_URL}", "redis://:${PASSWORD}@${HOST}/0")
    text = text.replace("partner call", '"${CALL}"').replace("prefix: limits", 'prefix: "${NAME}"')
    text = text.replace("switch.db", f"{MARK}.db").replace("[finance,", '["${CALL}", finance,')
    text = text.replace("{segment: finance}", '{segment: "${CALL}"}')
    (folder / "x.yaml").write_text(text)
    for name in ("PASSWORD", "HOST", "CALL", "NAME", "SWITCH_FILE"):
        monkeypatch.setenv(name, MARK)
    code, out, err = command(*args)
    assert (code, err) == (0, "")
    assert MARK not in out
    monkeypatch.setenv("NAME", f"{MARK} {{}}")
    monkeypatch.delenv("HOST")
    code, out, err = command(*args)
    assert code == 1
    assert MARK not in out + err
