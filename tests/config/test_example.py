"""The example with every setting."""

import pytest

from retrytemplate.config import load
from retrytemplate.config.kinds import KINDS, OBSERVE, PRESETS, STORES
from retrytemplate.config.parameters import Choice, Nested
from retrytemplate.config.readers import OneOf
from tests.support.configs import ENVIRON, EXAMPLE, FUNCTIONS


@pytest.fixture(scope="module")
def config():
    return load(EXAMPLE, environ=ENVIRON, functions=FUNCTIONS, install=False)


def nested(reader):
    """The names of the settings that a reader reads."""
    if isinstance(reader, OneOf):
        for each in reader.readers:
            yield from nested(each)
    elif isinstance(reader, Nested):
        for each in reader.parameters:
            yield each.name
            yield from nested(each.reader)
    elif isinstance(reader, Choice):
        yield from reader.choices


def used(value):
    """All keys of a document."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield str(key)
            yield from used(each)


@pytest.mark.parametrize(
    "kind", [*KINDS.values(), STORES, PRESETS, OBSERVE], ids=lambda each: each.section
)
def test_every_setting_of_a_section_occurs_in_the_example(kind):
    import yaml

    section = yaml.load(EXAMPLE.read_text(encoding="utf-8"), yaml.BaseLoader)[kind.section]
    known = [each for each in (*kind.own, *kind.parameters) if kind is not PRESETS]
    names = {each.name for each in known}
    names |= {name for each in known for name in nested(each.reader)}
    assert names <= set(used(section))


def test_example_with_all_sections_loads():
    environ = {"DATABASE_URL": "sqlite:///never-opened.db"}
    config = load(
        EXAMPLE.with_name("complete.yaml"), environ=environ, functions=FUNCTIONS, install=False
    )
    assert config.names == ("billing", "search", "ledger")
    assert config.effective_observe()["events"].value == {"url": "***", "keep": "30d"}


def test_every_layer_is_built_in_its_order(config):
    assert [type(each).__name__ for each in config.endpoint("billing").pipeline.layers] == [
        "SwitchGuard",
        "Timeout",
        "RetryTemplate",
        "CircuitBreaker",
        "RateLimiter",
        "Bulkhead",
    ]


def test_order_of_section_pipeline_is_used(config):
    assert [type(each).__name__ for each in config.endpoint("search").pipeline.layers] == [
        "Fallback",
        "Timeout",
        "RetryTemplate",
        "CircuitBreaker",
        "Bulkhead",
        "Hedge",
    ]


def layer(config, endpoint, kind):
    (found,) = (
        each for each in config.endpoint(endpoint).pipeline.layers if type(each).__name__ == kind
    )
    return found


def test_durations_and_shares_become_numbers(config):
    breaker = layer(config, "billing", "CircuitBreaker")
    assert (breaker.failure_rate, breaker.reset_timeout, breaker.reset_maximum) == (0.2, 30.0, 600)


@pytest.mark.statement("S4-51")
def test_sizing_gives_the_limit_rounded_up(config):
    assert layer(config, "search", "Bulkhead").limit == 15


def test_settings_of_an_endpoint_override_those_of_its_preset(config):
    template = layer(config, "billing", "RetryTemplate")
    assert (template.policy.max_attempts, template.attempt_timeout.seconds) == (4, 0.8)


def test_budget_of_an_endpoint_guards_its_retries(config):
    budgets = [
        each
        for each in layer(config, "billing", "RetryTemplate").guards
        if type(each).__name__ == "RetryBudget"
    ]
    assert [each.name for each in budgets] == ["billing"]


def test_endpoints_share_a_store(config):
    limiter = layer(config, "billing", "RateLimiter")
    breaker = layer(config, "ledger", "CircuitBreaker")
    assert (limiter.store.prefix, breaker.store.prefix) == ("limits", "limits")
    assert (breaker.store.mode, breaker.store.stale_after) == ("cached", 2.0)


def test_exceptions_are_classified_by_the_names_of_the_file(config):
    classify = layer(config, "ledger", "RetryTemplate").policy.classifier.classify
    assert (classify(TimeoutError()), classify(ValueError())) == (True, False)


def test_mutable_objects_are_not_shared_between_endpoints(config):
    first, second = (layer(config, each, "CircuitBreaker") for each in ("billing", "search"))
    assert first is not second
