"""Explanation and worst case of a pipeline."""

from __future__ import annotations

from math import inf, isinf, prod
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import format_count, format_limit
from retrytemplate._internal.validation import read_seconds
from retrytemplate.backoff.retry_after import RetryAfterBackoff
from retrytemplate.control.pipeline.probe import label, retry_duration, sample_delays
from retrytemplate.control.propagation.nesting import NestedRetries, Nesting
from retrytemplate.policies.basic import AlwaysRetryPolicy, MaxAttemptsRetryPolicy
from retrytemplate.policies.simple import SimpleRetryPolicy
from retrytemplate.template import BoundTemplate, RetryTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retrytemplate._engine.attempt_timeout import AttemptTimeout
    from retrytemplate._internal.validation import Seconds
    from retrytemplate.backoff.base import Backoff
    from retrytemplate.policies.base import RetryPolicy

TEMPLATES = (RetryTemplate, BoundTemplate)


def worst_case_duration(
    layers: Sequence[Any], attempt_duration: Seconds | None = None, *, synchronous: bool = False
) -> float:
    """The longest duration of a call through all layers in seconds; infinite: no limit.

    :param attempt_duration: of the function, and of each function that a fallback asks.
    :param synchronous: whether the functions are: a limit does not end them, it only lets nothing
        further begin.
    """
    each = inf
    if attempt_duration is not None:
        each = read_seconds("attempt_duration", attempt_duration)
    inside = begun = each  # begun: what cannot be stopped once it has begun, without retries
    for layer in reversed(layers):
        late = begun if synchronous else 0.0
        inside = _around(layer, inside, each, late)
        if isinstance(layer, TEMPLATES):
            begun = _attempt(layer, begun, late)
        else:
            begun = _around(layer, begun, each, late)
    return float(inside)


def _around(layer: Any, inside: float, each: float, late: float) -> float:
    """The longest duration of the layer, with *inside* as that of the layers inside it."""
    if isinstance(layer, TEMPLATES):
        return retry_duration(layer.template, _attempt(layer, inside, late))
    worst_case = getattr(layer, "worst_case", None)
    return inf if worst_case is None else float(worst_case(inside, each, late))


def _attempt(layer: Any, inside: float, late: float) -> float:
    timeout: AttemptTimeout | None = layer.template.attempt_timeout
    if timeout is None:
        return inside
    return min(inside, timeout.seconds + (0.0 if timeout.in_thread else late))


def max_calls(layers: Sequence[Any]) -> float:
    """The maximum number of calls of the function; infinite: no limit."""
    return prod(each for _, each in call_multipliers(layers))


def call_multipliers(layers: Sequence[Any]) -> Iterator[tuple[Any, float]]:
    """Each layer, and the maximum number of its inner calls."""
    depth = 0
    for layer in layers:
        many = _calls(layer)
        if many > 1 and isinstance(layer, TEMPLATES):
            many = min(many, 1 + _nested_retry_limit(depth, layer.template.guards))
            depth += 1
        yield layer, many


def _nested_retry_limit(depth: int, guards: Sequence[Any]) -> float:
    """The retries that the rules on nesting allow at this depth."""
    rules = [each for each in guards if isinstance(each, NestedRetries)]
    allowed = [each.allowed(Nesting(depth)) for each in rules if each.on_nested == "suppress"]
    return min((inf if each is None else each for each in allowed), default=inf)


def _calls(layer: Any) -> float:
    if isinstance(layer, TEMPLATES):
        limit = layer.template.policy.resolved().attempt_limit
        return inf if limit is None else limit
    max_calls = getattr(layer, "max_calls", None)
    return inf if max_calls is None else float(max_calls())


SHOWN = 3  # of the waits


def describe(layer: Any) -> str:
    """The effect of a layer on a call, with its numbers."""
    if not isinstance(layer, TEMPLATES):
        description = getattr(layer, "describe", None)
        return repr(layer) if description is None else str(description())
    template = layer.template
    policy, backoff = template.policy.resolved(), template.backoff.resolved()
    parts = ["one attempt"]
    if policy.attempt_limit != 1:
        parts = [_attempts(policy), _waiting(backoff, policy.attempt_limit)]
    if template.attempt_timeout is not None and not isinf(template.attempt_timeout.seconds):
        parts.append(_limited(template.attempt_timeout))
    if template.guards:
        parts.append(f"guarded by {', '.join(map(label, template.guards))}")
    if layer.recovery is not None:
        parts.append("then the recovery")
    return "; ".join(parts)


# Policies and backoffs.


def _limited(timeout: AttemptTimeout) -> str:
    if timeout.in_thread:
        return f"each attempt is cancelled or abandoned after {format_limit(timeout.seconds)}"
    late = ", late values discarded" if timeout.on_late_result == "discard" else ""
    return f"asynchronous attempts are cancelled after {format_limit(timeout.seconds)}{late}"


def _attempts(policy: RetryPolicy) -> str:
    limit = policy.attempt_limit
    many = f"up to {format_count(limit, 'attempt')}" if limit else "attempts without a limit"
    if isinstance(policy, MaxAttemptsRetryPolicy | AlwaysRetryPolicy):
        return many
    if not isinstance(policy, SimpleRetryPolicy) or not isinstance(policy.retry_on, tuple):
        return f"{many}, by {policy!r}"
    if policy.classifier is not None:
        return f"{many}, by its classifier"
    but = f", not after {_classes(policy.not_on)}" if policy.not_on else ""
    return f"{many}, after {_classes(policy.retry_on)}{but}"


def _classes(classes: tuple[type, ...]) -> str:
    return " or ".join("every Exception" if one is Exception else one.__name__ for one in classes)


def _waiting(backoff: Backoff, attempts: int | None) -> str:
    if backoff.never_waits:
        return "without a wait"
    prefix = ""
    if isinstance(backoff, RetryAfterBackoff):
        most = (
            "" if backoff.give_up_above is None else f" up to {format_limit(backoff.give_up_above)}"
        )
        prefix, backoff = f"as long as the other side asks{most}, else ", backoff.fallback
    shown = SHOWN if attempts is None else min(SHOWN, attempts - 1)
    more = " ..." if attempts is None or attempts - 1 > SHOWN else ""
    try:
        longest, shortest = sample_delays(backoff, 1, shown), sample_delays(backoff, 0, shown)
    except Exception:  # a user's function that does not know this failure
        return f"waiting {prefix}as {backoff!r} says"
    bound = "" if longest == shortest else "up to "
    return f"waiting {prefix}{bound}{', '.join(f'{each:.3g}' for each in longest)} s{more}"
