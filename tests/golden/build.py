"""From the file's specifications to objects of the library, through its public face alone."""

from __future__ import annotations

from typing import Any

from retrytemplate import (
    AlwaysRetryPolicy,
    CircuitBreakerRetryPolicy,
    CompositeRetryPolicy,
    ExceptionClassifier,
    ExceptionClassifierRetryPolicy,
    ExponentialBackoff,
    FixedBackoff,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    NoBackoff,
    PredicateRetryPolicy,
    RetryState,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
)
from retrytemplate.backoff.base import Backoff
from retrytemplate.policies.base import RetryPolicy
from tests.golden.model import JSON, UnknownFieldError, check_known, named


def built_classifier(spec: JSON) -> ExceptionClassifier:
    """``map``, ``default`` and ``traverse`` of any specification that has them."""
    return ExceptionClassifier(
        {named(name): verdict for name, verdict in spec["map"].items()},
        default=spec.get("default", False),
        traverse_causes=spec.get("traverse", False),
    )


def built_policy(spec: JSON) -> RetryPolicy:
    """The policy tree of a specification."""
    kind = spec.get("type") if isinstance(spec, dict) else None
    if kind not in POLICIES:
        raise UnknownFieldError(f"unknown policy {spec!r}")
    build, fields = POLICIES[kind]
    check_known(f"policy {kind}", spec, "type", *fields)
    return build(spec)


def _simple(spec: JSON) -> RetryPolicy:
    rules: dict[str, Any] = {}
    if "map" in spec:
        rules["classifier"] = built_classifier(spec)
    if "not_recoverable" in spec:
        rules["not_recoverable"] = tuple(named(name) for name in spec["not_recoverable"])
    return SimpleRetryPolicy(spec["max"], **rules)


def _predicate(spec: JSON) -> RetryPolicy:
    types = tuple(named(name) for name in spec["types"])
    return PredicateRetryPolicy(lambda error: isinstance(error, types))


def _composite(spec: JSON) -> RetryPolicy:
    members = [built_policy(member) for member in spec["policies"]]
    return CompositeRetryPolicy(members, optimistic=spec.get("optimistic", False))


def _chooser(spec: JSON) -> RetryPolicy:
    policies = {named(name): built_policy(policy) for name, policy in spec["map"].items()}
    return ExceptionClassifierRetryPolicy(policies, default=NeverRetryPolicy())


def _breaker(spec: JSON) -> RetryPolicy:
    return CircuitBreakerRetryPolicy(
        built_policy(spec["delegate"]),
        open_timeout=spec["open_ms"],
        reset_timeout=spec["reset_ms"],
    )


POLICIES = {
    "simple": (_simple, ("max", "map", "traverse", "default", "not_recoverable")),
    "max_attempts": (lambda spec: MaxAttemptsRetryPolicy(spec["max"]), ("max",)),
    "never": (lambda spec: NeverRetryPolicy(), ()),
    "always": (lambda spec: AlwaysRetryPolicy(), ()),
    "timeout": (lambda spec: TimeoutRetryPolicy(spec["ms"]), ("ms",)),
    "binary": (
        lambda spec: PredicateRetryPolicy(built_classifier(spec).classify),
        ("map", "traverse", "default"),
    ),
    "predicate": (_predicate, ("types",)),
    "composite": (_composite, ("policies", "optimistic")),
    "exception_classifier": (_chooser, ("map",)),
    "circuit_breaker": (_breaker, ("delegate", "open_ms", "reset_ms")),
}


def built_backoff(spec: JSON) -> Backoff:
    """The backoff of a specification, clamped first as the setters of the original clamp."""
    kind = spec.get("type") if isinstance(spec, dict) else None
    if kind == "none":
        check_known("backoff none", spec, "type")
        return NoBackoff()
    if kind == "fixed":
        check_known("backoff fixed", spec, "type", "ms", "interrupt_at")
        return FixedBackoff(max(spec["ms"], 1))
    if kind == "exponential":
        check_known(
            "backoff exponential", spec, "type", "initial", "multiplier", "max", "interrupt_at"
        )
        return ExponentialBackoff(
            initial=max(spec.get("initial", 100), 1),
            multiplier=max(spec.get("multiplier", 2.0), 1.0),
            maximum=max(spec.get("max", 30_000), 1),
        )
    raise UnknownFieldError(f"unknown backoff {spec!r}")


def built_state(spec: JSON) -> RetryState:
    """The state of a call; a null key is an untracked one."""
    check_known("state", spec, "key", "force_refresh", "rollback")
    options: dict[str, Any] = {}
    if "rollback" in spec:
        check_known("rollback", spec["rollback"], "map", "default", "traverse")
        options["rollback_for"] = built_classifier(spec["rollback"])
    if spec["key"] is None:
        # There is nothing to refresh where nothing is kept.
        return RetryState.untracked(**options)
    return RetryState(spec["key"], force_refresh=spec.get("force_refresh", False), **options)
