"""The table of kinds against the constructors."""

from inspect import Parameter, signature

import pytest

from retrytemplate.config.kinds import KINDS, OBSERVE, STORE_CLASSES, STORES
from retrytemplate.control import (
    PRESETS,
    Bulkhead,
    CircuitBreaker,
    Fallback,
    Hedge,
    KillSwitch,
    Preset,
    RateLimiter,
    RetryBudget,
    Timeout,
)
from tests.support.configs import load_text

# Parameters that a file cannot have: objects of the program, the endpoint's name, and settings
# without an effect on the calls of an endpoint.
PROGRAM = {"name", "clock", "listeners", "random"}
OTHERS = [
    ("retry", Preset, {"stream"}),
    ("timeout", Timeout, {"on_timeout"}),
    ("breaker", CircuitBreaker, set()),
    ("rate_limiter", RateLimiter, {"per_key", "max_keys"}),
    ("bulkhead", Bulkhead, {"per_key", "priorities", "fairness"}),
    ("budget", RetryBudget, {"parent"}),
    ("hedge", Hedge, {"budget", "executor"}),
    ("fallback", Fallback, {"fallbacks"}),
    (
        "switch",
        KillSwitch,
        {
            *("triggers", "reason_length", "incident", "notifiers", "reminder_interval"),
            "max_notification_age",
        },
    ),
]
OWN = {"preset", "sizing", "links", "segment", "feature", "experiment"}


@pytest.mark.parametrize("section, constructor, left_out", OTHERS, ids=[each[0] for each in OTHERS])
def test_section_has_every_parameter_of_its_constructor(section, constructor, left_out):
    kind = KINDS[section]
    names = {each.name for each in (*kind.own, *kind.parameters)} - OWN
    assert names == set(signature(constructor).parameters) - PROGRAM - left_out


def test_stores_have_every_parameter_of_their_classes():
    classes = [each for classes in STORE_CLASSES.values() for each in classes.values()]
    taken = {name for each in classes for name in signature(each).parameters}
    assert {each.name for each in STORES.parameters} == taken | {"kind"}


@pytest.mark.parametrize("kind", [*KINDS.values(), STORES, OBSERVE], ids=lambda each: each.section)
def test_every_setting_has_a_meaning_and_a_writable_default(kind):
    for each in (*kind.own, *kind.parameters):
        assert each.doc or each.name == "reset_maximum"
        if each.default is not Parameter.empty and each.default is not None:
            assert each.reader.writes(each.default) or each.name == "order"


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_can_be_named(tmp_path, name):
    text = f"retry: {{endpoints: {{x: {{preset: {name}}}}}}}"
    config = load_text(tmp_path, text)
    template = config.endpoint("x").pipeline.layers[0]
    assert template.policy.max_attempts == PRESETS[name].max_attempts
    assert config.effective("x")["retry.max_attempts"].source == f"preset {name}"
