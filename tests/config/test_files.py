"""Reading of YAML, TOML and folders, strictly; hostile files."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate.config import ConfigError, load
from retrytemplate.config.files import LARGEST
from tests.support.configs import load_text, problems_of

LIMIT = "bulkhead: {endpoints: {search: {limit: %s}}}"


def messages(folder, text, name="resilience.yaml"):
    return [each.message for each in problems_of(folder, text, name)]


@pytest.mark.parametrize(
    "scalar",
    ["on", "no", "010", "1:30", "1_000", "0b1", "+010", "1.2.3", "2026-11-23", "0o8", "=", "<<"],
)
def test_scalar_outside_yaml_1_2_is_a_string(tmp_path, scalar):
    assert messages(tmp_path, LIMIT % scalar) == [f"must be a whole number >= 1, got {scalar!r}"]


@pytest.mark.parametrize("scalar, value", [("7", 7), ("+7", 7), ("0x1F", 31), ("0o17", 15)])
def test_whole_number_of_yaml_1_2_is_read(tmp_path, scalar, value):
    config = load_text(tmp_path, LIMIT % scalar)
    assert config.endpoint("search").pipeline.layers[-1].limit == value


@pytest.mark.parametrize(
    "scalar, shown",
    [
        ("~", "null"),
        ("True", "true"),
        ("1e3", "1000.0"),
        (".5", "0.5"),
        ("-.inf", "-inf"),
        ("'7'", "'7'"),
        ("[7]", "a list"),
        ("{a: 7}", "a mapping"),
    ],
)
def test_other_scalar_of_yaml_1_2_has_its_type(tmp_path, scalar, shown):
    assert messages(tmp_path, LIMIT % scalar) == [f"must be a whole number >= 1, got {shown}"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: &x {}\nb: *x", "a YAML alias is not allowed"),
        ("bulkhead: !!python/object/apply:os.system [id]", "a YAML tag is not allowed"),
        ("!tag bulkhead: {}", "a key must have no YAML anchor or tag"),
        ("[a, b]: {}", "a key must be text"),
        ("- bulkhead", "the file must be a mapping of sections"),
        ("", "the file is empty"),
        ("# only a comment", "the file is empty"),
        ("bulkhead: {}\n---\nbulkhead: {}", "the file must have one document"),
        ("bulkhead: [", "invalid YAML: "),
        ("bulkhead: \x01", "invalid YAML: "),
    ],
)
def test_wrong_yaml_is_a_problem(tmp_path, text, message):
    assert any(each.startswith(message) for each in messages(tmp_path, text))


@pytest.mark.parametrize("name", ["resilience.yaml", "resilience.toml"])
@pytest.mark.parametrize(
    "content, message",
    [
        (b"#" * (LARGEST + 1), "the file must have at most 1 MiB"),
        (b"a\n\xff", "the file must be UTF-8"),
        (b"a = " + b"[" * 100_000, None),
        (b"a: " + b"[" * 100_000, None),
        (b"a: " + b"{a: " * 10_000, None),
        (b"[" + b"a." * 5_000 + b"a]\nb = 1", None),
        (b"a: " + b"9" * 10_000, None),
        (b"a = " + b"9" * 10_000, None),
        (b"\x00", None),
        (b"- " * 10_000, None),
        (b"? " * 10_000, None),
    ],
    ids=range(11),
)
def test_hostile_file_is_a_problem(tmp_path, name, content, message):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert message is None or [each.message for each in caught.value.problems] == [message]


def test_invalid_utf_8_has_its_line(tmp_path):
    file = tmp_path / "resilience.yaml"
    file.write_bytes(b"version: 1\n# \xff")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert [each.line for each in caught.value.problems] == [2]


def test_deep_nesting_is_a_problem_with_its_place(tmp_path):
    (problem,) = problems_of(tmp_path, "bulkhead: " + "[" * 30 + "]" * 30)
    assert (problem.message, problem.line, problem.column) == (
        "at most 20 levels are allowed",
        1,
        31,
    )


def test_byte_order_mark_is_accepted(tmp_path):
    assert load_text(tmp_path, "\ufeff" + LIMIT % 7).names == ("search",)


def test_missing_file_is_a_problem(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "resilience.yaml")


def test_unknown_suffix_is_a_problem(tmp_path):
    assert messages(tmp_path, "{}", "resilience.json") == [
        "the name must end with .yaml, .yml, .toml"
    ]


def test_toml_is_read_as_yaml_is(tmp_path):
    text = """
    [retry.endpoints.billing]
    max_attempts = 4
    initial = "200ms"
    [breaker.endpoints.billing]
    window = {consecutive = 5}
    """
    layers = load_text(tmp_path, text, "resilience.toml").endpoint("billing").pipeline.layers
    assert (layers[0].policy.max_attempts, layers[1].window.number) == (4, 5)


@pytest.mark.parametrize(
    "value, shown",
    [("2026-11-23", "datetime.date(2026, 11, 23)"), ("[1]", "a list"), ("nan", "nan")],
)
def test_toml_value_of_another_type_is_a_problem(tmp_path, value, shown):
    text = f"[bulkhead.endpoints.search]\nlimit = {value}"
    assert messages(tmp_path, text, "resilience.toml") == [
        f"must be a whole number >= 1, got {shown}"
    ]


def folder(path, **files):
    for name, text in files.items():
        (path / name.replace("_", ".")).write_text(text)
    return path


def test_folder_has_a_file_for_each_section(tmp_path):
    path = folder(
        tmp_path,
        bulkhead_yaml="defaults: {queue: 7}\nendpoints: {search: {limit: 3}}",
        timeout_toml="[endpoints.search]\nseconds = 2",
        presets_yml="partner: {max_attempts: 7}",
        retry_yaml="endpoints: {search: {preset: partner}}",
        readme_txt="not read",
    )
    timeout, template, bulkhead = load(path).endpoint("search").pipeline.layers
    assert (timeout.seconds, template.policy.max_attempts) == (2, 7)
    assert (bulkhead.limit, bulkhead.queue) == (3, 7)


def test_problem_in_a_folder_has_file_and_path(tmp_path):
    path = folder(tmp_path, retry_yaml="endpoints:\n  billing: {preset: httpx, max_atempts: 3}")
    with pytest.raises(ConfigError) as caught:
        load(path)
    (problem,) = caught.value.problems
    assert str(problem).removeprefix(str(path)) == (
        "/retry.yaml:2:28: retry.endpoints.billing.max_atempts: unknown setting; "
        "did you mean max_attempts?"
    )


def test_file_of_an_unknown_section_is_a_problem(tmp_path):
    path = folder(tmp_path, bulkheads_yaml="{}")
    with pytest.raises(ConfigError, match="unknown section; did you mean bulkhead"):
        load(path)


def test_two_files_of_one_section_are_a_problem(tmp_path):
    path = folder(tmp_path, bulkhead_yaml="{}", bulkhead_toml="")
    with pytest.raises(ConfigError, match="duplicate section"):
        load(path)


def test_python_parser_of_yaml_reads_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    (problem,) = problems_of(tmp_path, "bulkhead:\n  endpoints: {search: {limits: 3}}")
    assert (problem.line, problem.column, problem.suggestion) == (2, 24, "limit")


@given(st.text() | st.binary())
def test_any_content_is_read_or_a_problem(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(content.encode("utf-8", "replace") if isinstance(content, str) else content)
    for name in ("any.yaml", "any.toml"):
        try:
            load(file.rename(file.with_name(name)))
        except ConfigError as error:
            assert error.problems
        file = file.with_name(name)
