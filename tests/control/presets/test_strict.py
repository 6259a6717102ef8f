"""The safeguards that a retry in production must have, and the check for them."""

import pytest

from retrytemplate import (
    AlwaysRetryPolicy,
    ExceptionClassifier,
    ExponentialBackoff,
    FixedBackoff,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    NoBackoff,
    PredicateRetryPolicy,
    ResultRetryPolicy,
    RetryAfterBackoff,
    RetryTemplate,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    UniformRandomBackoff,
    UnsafeRetryError,
)
from retrytemplate.control import (
    FAST_IO,
    HTTPX,
    OPENAI,
    POSTGRESQL,
    REDIS,
    STRICT,
    RequireIdempotency,
    RetryBudget,
    http_retry,
    strict,
)

LIMIT, GROWTH, JITTER, TWICE, BUDGET, LIST = (
    "a limit",
    "increasing delays",
    "jitter",
    "may be repeated",
    "a budget",
    "a list",
)


def sound(**changes):
    """A template with all safeguards, except for the changes."""
    settings = {
        "policy": SimpleRetryPolicy(3, retry_on=OSError),
        "backoff": ExponentialBackoff(jitter="full"),
        "guards": [RequireIdempotency(), RetryBudget()],
    }
    return RetryTemplate(**{**settings, **changes})


def missing(made):
    with pytest.raises(UnsafeRetryError) as refusal:
        strict(made)
    return refusal.value.missing


def in_order(found, *expected):
    assert len(found) == len(expected)
    assert all(word in safeguard for word, safeguard in zip(expected, found, strict=True))


def test_complete_template_is_returned():
    template = sound()
    assert strict(template) is template
    bound = template.bind(label="night")
    assert strict(bound) is bound


@pytest.mark.statement("S3-01", "S3-22")
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"policy": PredicateRetryPolicy(lambda error: isinstance(error, OSError))}, LIMIT),
        ({"backoff": UniformRandomBackoff(1.0, 2.0)}, GROWTH),
        ({"backoff": ExponentialBackoff(1.0, maximum=1.0, jitter="full")}, GROWTH),
        ({"backoff": ExponentialBackoff(1.0, 1.0, jitter="full")}, GROWTH),
        ({"backoff": ExponentialBackoff()}, JITTER),
        ({"guards": [RetryBudget()]}, TWICE),
        ({"guards": [RequireIdempotency()]}, BUDGET),
        ({"policy": SimpleRetryPolicy(3)}, LIST),
        ({"policy": MaxAttemptsRetryPolicy(3)}, LIST),
        ({"policy": SimpleRetryPolicy(3, classifier=ExceptionClassifier({}, True))}, LIST),
    ],
)
def test_each_missing_safeguard_is_named(changes, what):
    in_order(missing(sound(**changes)), what)


@pytest.mark.statement("S3-01", "S3-22")
def test_all_missing_safeguards_are_named_together():
    in_order(
        missing(RetryTemplate(AlwaysRetryPolicy(), NoBackoff())),
        *(LIMIT, GROWTH, JITTER, TWICE, BUDGET, LIST),
    )


@pytest.mark.statement("S3-01")
def test_error_describes_the_missing_safeguards():
    with pytest.raises(UnsafeRetryError) as refusal:
        strict(RetryTemplate(backoff=FixedBackoff(1.0), name="orders"))
    assert str(refusal.value).startswith("RetryTemplate 'orders' is missing increasing delays")
    assert isinstance(refusal.value, ValueError)


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": TimeoutRetryPolicy(30) & PredicateRetryPolicy(lambda error: False)},
        {"policy": SimpleRetryPolicy(lambda: 3, retry_on=OSError)},
        {"policy": NeverRetryPolicy()},
        {"policy": NeverRetryPolicy(), "backoff": NoBackoff(), "guards": ()},
        {"backoff": ExponentialBackoff(lambda: 1.0, jitter="full")},
        {"backoff": ExponentialBackoff(jitter="decorrelated")},
        {"backoff": RetryAfterBackoff(ExponentialBackoff(jitter="equal"))},
        {"guards": [RequireIdempotency(idempotent=True), RetryBudget.tokens()]},
    ],
)
def test_each_alternative_safeguard_is_accepted(changes):
    strict(sound(**changes))


@pytest.mark.statement("S3-01")
def test_backoff_that_raises_does_not_count_as_growing():
    odd = FixedBackoff(lambda failures, error: error.seconds)
    in_order(missing(sound(backoff=odd)), GROWTH, JITTER)


def test_request_that_declares_idempotency_is_enough():
    template = http_retry()
    budget = RetryBudget()
    strict(template.with_(guards=(*template.guards, budget)))
    both = template.policy & TimeoutRetryPolicy(9.0)
    strict(template.with_(policy=both, guards=[budget]))


@pytest.mark.statement("S3-01")
def test_policy_that_retries_past_idempotency_is_named():
    template = http_retry()
    past = template.policy | SimpleRetryPolicy(2, retry_on=OSError)
    in_order(missing(template.with_(policy=past, guards=[RetryBudget()])), TWICE)


@pytest.mark.statement("S3-01")
def test_retry_on_results_needs_idempotency():
    template = http_retry()
    by_result = ResultRetryPolicy(lambda value: value == 202, template.policy)
    for policy in (by_result, by_result & template.policy):
        in_order(missing(template.with_(policy=policy, guards=[RetryBudget()])), TWICE)


# Presets.


@pytest.mark.statement("S3-01")
def test_presets_name_the_safeguards_left_to_the_user():
    in_order(missing(FAST_IO), TWICE, BUDGET)
    in_order(missing(POSTGRESQL), TWICE)
    in_order(missing(REDIS), TWICE)


@pytest.mark.parametrize("made", [STRICT, HTTPX, OPENAI], ids=lambda each: each.name)
def test_complete_presets_are_strict(made):
    assert strict(made) == made.with_(strict=True)


@pytest.mark.statement("S3-01", "S3-22")
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"jitter": None}, JITTER),
        ({"multiplier": 1.0}, GROWTH),
        ({"initial": 0.0}, GROWTH),
        ({"budget": False}, BUDGET),
        ({"idempotent": None}, TWICE),
        ({"retry_on": Exception}, LIST),
    ],
)
def test_strict_preset_cannot_lose_a_safeguard(change, what):
    with pytest.raises(UnsafeRetryError, match=r"Preset 'strict' is missing") as refusal:
        STRICT.with_(**change)
    assert any(what in safeguard for safeguard in refusal.value.missing)


@pytest.mark.statement("S3-01")
def test_strict_stays_strict():
    production = strict(FAST_IO.with_(idempotent=False, budget=True))
    with pytest.raises(UnsafeRetryError):
        production.with_(budget=False)
    assert strict(production) == production


@pytest.mark.parametrize("value", [None, SimpleRetryPolicy(3), "fast-io"])
def test_strict_requires_a_template_or_preset(value):
    with pytest.raises(TypeError, match="takes a template or a preset"):
        strict(value)
