"""Notations of values, variables of the environment, and their masks."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from retrytemplate.config import ConfigError
from retrytemplate.config.nodes import Node, Problems
from retrytemplate.config.readers import DURATION, SHARE
from tests.support.configs import load_text, problems_of

TIMEOUT = "timeout: {endpoints: {search: {seconds: %s}}}"
MARK = "geheim-4711"


class Context:
    problems = Problems()


def read(reader, value):
    return reader.read(Node(value, "path", "file"), Context())


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("500ms", 0.5),
        ("2s", 2),
        ("5m", 300),
        ("1h", 3600),
        ("30d", 2_592_000),
        ("1.5s", 1.5),
        ("99ms", 0.099),
        (7, 7),
        (0.25, 0.25),
    ],
)
def test_duration_is_read_in_seconds(text, seconds):
    assert read(DURATION, text) == seconds


@pytest.mark.parametrize("text, share", [("30%", 0.3), ("99.9%", 0.999), (0.5, 0.5), ("0%", 0)])
def test_share_is_read_as_a_number(text, share):
    assert read(SHARE, text) == share


@given(st.floats(0, 1e7).map(lambda value: float(f"{value:.6g}")))
def test_written_duration_is_read_as_the_same_seconds(seconds):
    assert read(DURATION, DURATION.write(seconds)) == pytest.approx(seconds, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("text", ["2 s", "s", "-2s", "2", "2S", "1h30m", "1e3s", "٢s", "2s\n", "%"])
def test_other_text_is_no_duration(tmp_path, text):
    (problem,) = problems_of(tmp_path, TIMEOUT % repr(text).replace("'", '"'))
    assert problem.message.startswith("must be a duration such as 500ms or 2s")


def seconds(tmp_path, text, **environ):
    config = load_text(tmp_path, TIMEOUT % text, environ=environ)
    return config.endpoint("search").pipeline.layers[0].seconds


@pytest.mark.parametrize(
    "text, environ, value",
    [
        ('"${T}"', {"T": "3s"}, 3),
        ('"${T:-4s}"', {"T": "3s"}, 3),
        ('"${T:-4s}"', {}, 4),
        ('"${T:-4s}"', {"T": ""}, 4),
        ('"${N}${U}"', {"N": "5", "U": "m"}, 300),
    ],
)
def test_variable_is_replaced_in_text(tmp_path, text, environ, value):
    assert seconds(tmp_path, text, **environ) == value


def test_variable_in_a_key_is_not_replaced(tmp_path):
    config = load_text(tmp_path, 'timeout: {endpoints: {"${T}": {seconds: 1}}}', environ={"T": "x"})
    assert config.names == ("${T}",)


def test_value_of_a_variable_is_not_replaced_again(tmp_path):
    text = 'switch: {store: s, endpoints: {}}\nstores: {s: {kind: sql, url: "${U}"}}'
    with pytest.raises(ConfigError):
        load_text(tmp_path, text, environ={"U": "${V}", "V": "sqlite://"})


EVERYWHERE = """
stores: {shared: {kind: "${V}", url: "${V}", prefix: "${V}", timeout: "${V}", mode: "${V}"}}
presets: {partner: {base: "${V}", jitter: "${V}", retry_on: {a.b: "${V}"}}}
retry: {endpoints: {search: {preset: "${V}", initial: "${V}", idempotent: "${V}"}}}
timeout: {endpoints: {search: {seconds: "${V}", on_late_result: "${V}"}}}
breaker: {endpoints: {search: {failure_rate: "${V}", window: {calls: "${V}"}, store: "${V}"}}}
fallback: {endpoints: {search: {links: ["${V}"]}}}
switch: {store: "${V}", unknown: "${V}", endpoints: {search: {segment: "${V}"}}}
pipeline: {endpoints: {search: {order: ["${V}"]}}}
"""


@pytest.mark.parametrize("value", [MARK, f"{MARK}\n'\"\\", f"redis://:{MARK}@localhost"])
def test_value_of_a_variable_is_in_no_problem(tmp_path, value):
    found = problems_of(tmp_path, EVERYWHERE, environ={"V": value})
    assert len(found) >= 15
    assert not any(MARK in str(each) for each in found)


@pytest.mark.parametrize("url", [f"redis://u:{MARK}@h:x/0", f"nope://{MARK}", f"redis://h/{MARK}"])
@pytest.mark.parametrize("kind", ["redis", "sql"])
def test_wrong_url_from_a_variable_is_in_no_problem(tmp_path, kind, url):
    text = "stores: {shared: {kind: %s, url: '${U}'}}" % kind  # noqa: UP031
    assert not any(MARK in str(each) for each in problems_of(tmp_path, text, environ={"U": url}))


def test_value_of_a_variable_is_masked_in_effective_settings_and_explanation(tmp_path):
    text = """
stores: {s: {kind: sql, url: "sqlite:///switch.db"}}
switch: {store: s, endpoints: {search: {segment: "${V}"}}}
timeout: {endpoints: {search: {seconds: 1, kind: "${V} ${W:-call}"}}}
"""
    config = load_text(tmp_path, text, environ={"V": MARK})
    shown = config.effective("search")
    endpoint = config.endpoint("search")
    assert (shown["switch.segment"].value, shown["timeout.kind"].value) == ("***", "***")
    assert "segment '***'" in endpoint.explain()
    assert MARK not in f"{endpoint.explain()}{shown}{endpoint.lint()}{config}{endpoint}"


@given(st.text(min_size=4), st.text(), st.text())
def test_masked_text_does_not_contain_the_secret(secret, before, after):
    from retrytemplate.config.nodes import mask

    assume(secret.strip() and secret not in "***" and "*" not in secret)
    assume(secret not in before + "***" + after)
    assert secret not in mask(f"{before}{secret}{after}", [secret])
