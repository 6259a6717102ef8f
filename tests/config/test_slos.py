"""Objectives in files."""

import pytest

from retrytemplate.config import ConfigError, load_slos
from retrytemplate.observe import SLO, BurnRule, BurnRules, Latency
from tests.support.configs import ENVIRON, EXAMPLE, load_text

TEXT = """\
slo:
  defaults: {availability: 99%}
  endpoints:
    billing: {availability: 99.9%, latency: {p95: 3s, p99: 8s}, error_rate: 1%}
    search: {}
"""


@pytest.mark.statement("S4-81")
def test_slos_of_a_file_have_its_settings_and_the_defaults(tmp_path):
    file = tmp_path / "slo.yaml"
    file.write_text(TEXT)
    assert load_slos(file) == (
        SLO("billing", availability=0.999, latency=Latency(p95=3.0, p99=8.0), error_rate=0.01),
        SLO("search", availability=0.99),
    )


def test_slos_of_a_folder_are_in_the_file_of_the_section(tmp_path):
    (tmp_path / "slo.toml").write_text("[endpoints.billing]\navailability = 0.999")
    (tmp_path / "bulkhead.toml").write_text("[endpoints.billing]\nlimit = 'many'")
    assert load_slos(tmp_path) == (SLO("billing", availability=0.999),)


def test_burn_rules_of_a_file_are_read():
    search = load_slos(EXAMPLE, environ=ENVIRON)[1]
    assert search.burn == BurnRules(
        page=BurnRule(7200, 600, 10), ticket=BurnRule(12 * 3600, 3600, 4)
    )


def test_config_has_the_slos_of_its_file(tmp_path):
    text = EXAMPLE.read_text(encoding="utf-8")
    config = load_text(tmp_path, text)
    assert config.slos == load_slos(EXAMPLE, environ=ENVIRON)
    assert load_text(tmp_path, "bulkhead: {endpoints: {x: {}}}").slos == ()


def test_slo_needs_no_other_section_with_its_endpoint(tmp_path):
    config = load_text(tmp_path, TEXT)
    assert (config.names, len(config.slos)) == ((), 2)


@pytest.mark.statement("S4-81")
@pytest.mark.parametrize(
    "old, new, problem",
    [
        ("99.9%", "999%", "4:15: slo.endpoints.billing.availability: availability must be a "),
        ("p95: 3s", "p90: 3s", "4:46: slo.endpoints.billing.latency.p90: unknown setting; did you"),
        ("p95: 3s", "p95: 0s", "4:46: slo.endpoints.billing.latency.p95: p95 must be "),
        ("error_rate", "errors", "4:65: slo.endpoints.billing.errors: unknown setting"),
        ("error_rate: 1%", "min_calls: 0", "4:65: slo.endpoints.billing.min_calls: min_calls must"),
        ("endpoints", "endpoint", "3:3: slo.endpoint: unknown setting; did you mean endpoints?"),
        ("99%", "110%", "2:14: slo.defaults.availability: availability must be a number > 0"),
        ("slo:", "sloo:", "1:1: sloo: unknown section; did you mean slo?"),
        ("{}", "{burn: {page: {long: 1m, short: 1h, factor: 2}}}", "short must be below long"),
    ],
)
def test_mistake_is_reported_with_its_place(tmp_path, old, new, problem):
    file = tmp_path / "x.yaml"
    file.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_slos(file)
    assert problem in str(caught.value.problems[0])


def test_all_mistakes_are_reported(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(TEXT.replace("p95: 3s", "p95: x").replace("1%", "x").replace("{}", "{x: 1}"))
    with pytest.raises(ConfigError) as caught:
        load_slos(file)
    assert len(caught.value.problems) == 3


def test_missing_availability_is_reported(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("slo: {endpoints: {billing: {error_rate: 1%}}}")
    with pytest.raises(ConfigError, match="required setting availability is missing"):
        load_slos(file)
