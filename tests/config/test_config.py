"""Endpoints of a configuration: calls, wrapped functions, names, settings."""

import asyncio
from pathlib import Path

import pytest

from retrytemplate.config import UnknownEndpointError, load
from retrytemplate.control import Strategy
from retrytemplate.errors import BulkheadFullError, MisuseError
from retrytemplate.template import RetryTemplate
from retrytemplate.testing import VirtualClock
from tests.support.configs import EXAMPLE, FUNCTIONS, load_text

TEXT = """
retry:
  endpoints:
    billing: {max_attempts: 3, initial: 1s, jitter: null, attempt_timeout: null}
bulkhead:
  endpoints:
    search: {limit: 1, queue: 0}
"""


class Flaky:
    """Fails so often before it returns its argument."""

    def __init__(self, failures):
        self.failures = failures
        self.calls = 0

    def __call__(self, value):
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError("reset")
        return value


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def config(tmp_path, clock):
    return load_text(tmp_path, TEXT, clock=clock)


def test_endpoint_retries_a_call(config, clock):
    flaky = Flaky(2)
    assert config.endpoint("billing").call(flaky, 17) == 17
    assert (flaky.calls, clock.monotonic()) == (3, VirtualClock().monotonic() + 3.0)


async def test_endpoint_retries_an_asynchronous_call(tmp_path):
    flaky = Flaky(2)

    async def charge(order):
        return flaky(order)

    endpoint = load_text(tmp_path, TEXT.replace("1s", "0")).endpoint("billing")
    assert await endpoint.call_async(charge, 17) == 17
    assert (await endpoint.outcome_async(charge, 18)).value == 18


def test_outcome_has_value_and_attempts(config):
    outcome = config.endpoint("billing").outcome(Flaky(1), 17)
    assert (outcome.value, outcome.attempts) == (17, 2)


def test_wrapped_function_keeps_its_name_and_its_kind(config):
    def charge(order): ...

    async def charge_async(order): ...

    wrap = config.endpoint("billing").wrap
    assert wrap(charge).__name__ == "charge"
    assert asyncio.iscoroutinefunction(wrap(charge_async))


def test_wrapped_method_is_a_method(config):
    class Service:
        def __init__(self):
            self.flaky = Flaky(2)

        @config.endpoint("billing").wrap
        def charge(self, order):
            return self.flaky(order)

    assert Service().charge(17) == 17


def test_function_wrapped_by_a_template_is_rejected(config):
    with pytest.raises(MisuseError, match="wrapped by a template already"):
        config.endpoint("billing").wrap(RetryTemplate().wrap(int.bit_length))


def test_endpoint_is_a_strategy_and_the_same_object_each_time(config):
    assert isinstance(config.endpoint("billing"), Strategy)
    assert config.endpoint("billing") is config.endpoint("billing")


def test_endpoint_without_retry_makes_one_attempt(config):
    flaky = Flaky(1)
    with pytest.raises(ConnectionError):
        config.endpoint("search").call(flaky, 17)
    assert flaky.calls == 1


@pytest.mark.statement("S4-90")
def test_endpoint_has_the_layers_of_the_sections_that_name_it(config):
    layers = [type(each).__name__ for each in config.endpoint("search").pipeline.layers]
    assert layers == ["RetryTemplate", "Bulkhead"]


def test_endpoint_describes_itself(config):
    endpoint = config.endpoint("search")
    assert "Bulkhead 'search': 1 call at once, none waits" in endpoint.explain()
    assert endpoint.worst_case(attempt_duration=2.0) == 2.0
    assert [each.rule for each in config.endpoint("billing").lint()] == [
        "unbounded-retry",
        "no-jitter",
    ]


def test_unknown_endpoint_has_a_suggestion(config):
    with pytest.raises(UnknownEndpointError, match="did you mean 'billing'"):
        config.endpoint("biling")
    with pytest.raises(LookupError):
        config.effective("biling")


@pytest.mark.statement("S4-96")
def test_wrap_all_wraps_each_tool_with_its_endpoint(config):
    def search(query):
        return tools["search"](query)

    tools = config.wrap_all({"billing": Flaky(2).__call__, "search": search})
    assert tools["billing"](17) == 17
    with pytest.raises(BulkheadFullError):
        tools["search"]("cats")


def test_wrap_all_uses_the_default_for_other_names(config):
    tools = config.wrap_all({"weather": Flaky(2).__call__}, default="billing")
    assert tools["weather"](17) == 17


def test_wrap_all_without_default_rejects_other_names(config):
    with pytest.raises(UnknownEndpointError):
        config.wrap_all({"weather": int})


def test_effective_settings_have_values_and_sources(tmp_path):
    config = load(
        EXAMPLE,
        environ={"REDIS_URL": "redis://localhost", "BILLING_TIMEOUT": "9s"},
        functions=FUNCTIONS,
        install=False,
    )
    billing, search = config.effective("billing"), config.effective("search")
    name = str(EXAMPLE)

    def pair(setting):
        return setting.value, setting.source.replace(name, "file")

    assert pair(billing["retry.max_attempts"]) == (4, "file:25")
    assert pair(billing["retry.attempt_timeout"]) == ("800ms", "file:15")
    assert pair(billing["retry.retry_on"]) == ("rules of the preset", "preset httpx")
    assert pair(billing["breaker.reset_timeout"]) == ("30s", "file:49")
    assert pair(billing["bulkhead.limit"]) == (20, "file:79")
    assert pair(billing["timeout.seconds"]) == ("***", "file:45")
    assert pair(billing["timeout.floor"]) == ("0s", "default")
    assert pair(search["bulkhead.limit"]) == (15, "file:80")
    assert pair(search["retry.give_up_above"]) == (None, "file:34")


def test_config_names_its_endpoints_and_its_path(config, tmp_path):
    assert config.names == ("billing", "search")
    assert repr(config) == f"<Config {str(tmp_path / 'resilience.yaml')!r}: 2 endpoints>"


def test_exception_classes_of_a_file_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "retry: {endpoints: {x: {retry_on: {evil_module.Error: true}, max_attempts: 2}}}"
    with pytest.raises(ValueError):
        load_text(tmp_path, text).endpoint("x").call(int, "x")


def test_loading_creates_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = 'stores: {s: {kind: sql, url: "sqlite:///s.db"}}\nswitch: {store: s, endpoints: {x: {}}}'
    assert load_text(tmp_path, text).names == ("x",)
    assert [each.name for each in Path().iterdir()] == ["resilience.yaml"]
