"""A wrong setting is rejected at construction, with its name and the value."""

import inspect
from enum import Enum

import pytest

from retrytemplate import Outcome, control
from retrytemplate.control import ControlEvent, ControlListener, Operations, RetryBudget, Timeout
from retrytemplate.control.breaker.replay import RecordedCall


class Nonsense:
    """An object of no accepted type."""

    def __repr__(self):
        return "<nonsense>"


NONSENSE = Nonsense()

# What each of them needs to be made.
NEEDED = {
    control.AuthenticationAlert: {"notify": print},
    control.Automatic: {"scopes": ("segment",)},
    control.Bulkhead: {"name": "llm"},
    control.Calls: {"number": 3},
    control.CircuitBreaker: {"name": "billing"},
    control.CodeClassifier: {},
    control.Consecutive: {"number": 3},
    control.FailureKinds: {},
    control.Fallback: {"fallbacks": print},
    control.Hedge: {"idempotent": True},
    control.HostGate: {},
    control.KillSwitch: {},
    control.MemorySwitchStore: {},
    control.NestedRetries: {},
    control.IdempotentExecution: {"operations": Operations(), "key": repr},
    control.OpenTransaction: {"current": print},
    control.Operations: {},
    control.Pipeline: {"layers": Timeout(1)},
    control.Preset: {"name": "mine"},
    control.ProcessGate: {},
    control.Propagation: {},
    control.Quantile: {"q": 0.5},
    control.RateLimiter: {"name": "billing"},
    control.RedisCircuitStore: {"url": "redis://localhost"},
    control.RedisRateLimitStore: {"url": "redis://localhost"},
    control.RedisSwitchStore: {"url": "redis://localhost"},
    control.RequireIdempotency: {},
    control.RetryBudget: {},
    control.SQLSwitchStore: {"url": "sqlite:///switch.db"},
    control.Seconds: {"seconds": 3},
    control.ServiceErrors: {"rules": {}},
    control.StreamTimeout: {},
    control.Timeout: {"seconds": 1},
    RetryBudget.tokens: {},
    RecordedCall: {"time": 1.0, "duration": 1.0, "outcome": "success"},
}

# What the library itself makes.
GIVEN = {
    *(
        "AuthenticationFailed",
        "BudgetSnapshot",
        "BulkheadSnapshot",
        "CircuitSnapshot",
        "GateEntry",
        "GateSnapshot",
        "HedgeSnapshot",
        "RateLimiterGuard",
        "RateLimiterSnapshot",
    ),
    *("Nesting", "Operation", "OperationResult", "Permit", "LintWarning", "Slot", "Strategy"),
    *("AuditRecord", "Decision", "ReportLine", "StoredRecord", "SwitchEntry", "SwitchGuard"),
    *("SwitchReport", "SwitchScope", "SwitchSnapshot", "SwitchStore", "UnreadableRecord"),
}

ANYTHING = {(control.Timeout, "on_timeout"), (control.CodeClassifier, "default")}
BELOW_ZERO = {(RecordedCall, "time")}

# Where the message has other words than the setting's name.
WORDS = {
    (control.Fallback, "fallbacks"): "fallback functions",
    (control.Pipeline, "layers"): "takes strategies",
    (control.FailureKinds, "default"): "the kind of a failure",
    (control.CodeClassifier, "named"): "rules must map",
    (control.FailureKinds, "named"): "rules must map",
}


def made(part, **settings):
    several = [
        settings.pop(name)
        for name, parameter in inspect.signature(part).parameters.items()
        if parameter.kind is parameter.VAR_POSITIONAL
    ]
    return part(*several, **settings)


def settings():
    """Each setting of each part, and whether it is a number."""
    for part, needed in NEEDED.items():
        for name, parameter in inspect.signature(part).parameters.items():
            usual = needed.get(name, parameter.default)
            number = isinstance(usual, int | float) and not isinstance(usual, bool)
            yield pytest.param(part, name, number, id=f"{part.__qualname__}-{name}")


def test_table_covers_every_public_part():
    parts = {
        name
        for name in control.__all__
        if isinstance(part := getattr(control, name), type)
        and not issubclass(part, ControlEvent | ControlListener | Outcome | Enum)
    }
    assert parts == GIVEN | {part.__name__ for part in NEEDED if part.__name__ in parts}


@pytest.mark.parametrize("part", list(NEEDED), ids=lambda part: part.__qualname__)
def test_each_part_can_be_made(part):
    made(part, **NEEDED[part])


@pytest.mark.parametrize(("part", "name", "number"), list(settings()))
def test_wrong_value_is_rejected_by_name(part, name, number):
    if (part, name) in ANYTHING:
        made(part, **NEEDED[part] | {name: NONSENSE})
        return
    with pytest.raises((TypeError, ValueError)) as raised:
        made(part, **NEEDED[part] | {name: NONSENSE})
    assert WORDS.get((part, name), name) in str(raised.value)
    assert "got <nonsense>" in str(raised.value)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        pytest.param(*each.values[:2], id=each.id)
        for each in settings()
        if each.values[2] and tuple(each.values[:2]) not in ANYTHING
    ],
)
def test_number_must_be_finite_and_in_range(part, name):
    values = [float("nan"), "1", True]
    if (part, name) not in BELOW_ZERO:
        values.append(-1)
    for value in values:
        with pytest.raises((TypeError, ValueError), match=name):
            made(part, **NEEDED[part] | {name: value})
