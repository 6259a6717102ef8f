"""Explanation and worst case of a pipeline."""

from __future__ import annotations

from functools import singledispatch
from math import ceil, inf, isinf, prod
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.validation import check_delay, to_seconds
from retrytemplate.backoff.retry_after import RetryAfterBackoff
from retrytemplate.control.breaker.breaker import CircuitBreaker
from retrytemplate.control.breaker.window import Calls, Consecutive
from retrytemplate.control.bulkhead.bulkhead import Bulkhead
from retrytemplate.control.classification.service_errors import ServiceErrors
from retrytemplate.control.fallback import Fallback
from retrytemplate.control.hedge.delay import Quantile
from retrytemplate.control.hedge.hedge import Hedge
from retrytemplate.control.idempotency.operations import IdempotentExecution
from retrytemplate.control.pipeline.probe import label, retry_duration, sample_delays
from retrytemplate.control.propagation.nesting import NestedRetries, Nesting
from retrytemplate.control.switch.guard import SwitchGuard
from retrytemplate.control.timeout.timeout import RERAISE, Timeout
from retrytemplate.policies.basic import AlwaysRetryPolicy, MaxAttemptsRetryPolicy
from retrytemplate.policies.simple import SimpleRetryPolicy
from retrytemplate.template import BoundTemplate, RetryTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retrytemplate._engine.attempt_timeout import AttemptTimeout
    from retrytemplate._internal.validation import Seconds
    from retrytemplate.backoff.base import Backoff
    from retrytemplate.policies.base import RetryPolicy

__all__ = [
    "call_multipliers",
    "describe",
    "max_calls",
    "min_failures_to_open",
    "number",
    "span",
    "worst_case_duration",
]


def worst_case_duration(
    layers: Sequence[Any], attempt_duration: Seconds | None = None, *, synchronous: bool = False
) -> float:
    """Seconds from the outermost in to the function and out again; infinite: nothing bounds it.

    :param attempt_duration: of the function, and of each function that a fallback asks.
    :param synchronous: whether the functions are: a limit does not end them, it only lets nothing
        further begin.
    """
    each = inf
    if attempt_duration is not None:
        each = to_seconds(attempt_duration)
        check_delay("attempt_duration", each)
    inside = begun = each  # begun: what cannot be stopped once it has begun, without retries
    for layer in reversed(layers):
        late = begun if synchronous else 0.0
        inside = _around(layer, inside, each, late)
        if isinstance(layer, RetryTemplate | BoundTemplate):
            begun = _attempt(layer, begun, late)
        else:
            begun = _around(layer, begun, each, late)
    return float(inside)


@singledispatch
def _around(layer: Any, inside: float, each: float, late: float) -> float:
    """The longest that it takes, itself and what is *inside*; unknown for other strategies.

    :param late: by how much what is inside may exceed a limit.
    """
    return inf


@_around.register
def _(layer: Timeout, inside: float, each: float, late: float) -> float:
    return min(layer.seconds + late, inside)


@_around.register(RetryTemplate)
@_around.register(BoundTemplate)
def _(layer: Any, inside: float, each: float, late: float) -> float:
    return retry_duration(layer.template, _attempt(layer, inside, late))


def _attempt(layer: Any, inside: float, late: float) -> float:
    timeout: AttemptTimeout | None = layer.template.attempt_timeout
    if timeout is None:
        return inside
    return min(inside, timeout.seconds + (0.0 if timeout.in_thread else late))


@_around.register
def _(layer: CircuitBreaker, inside: float, each: float, late: float) -> float:
    return inside


@_around.register
def _(layer: Bulkhead, inside: float, each: float, late: float) -> float:
    return inside + (layer.max_wait if layer.queue else 0.0)


@_around.register
def _(layer: Fallback, inside: float, each: float, late: float) -> float:
    return inside + len(layer.fallbacks) * each


@_around.register
def _(layer: Hedge, inside: float, each: float, late: float) -> float:
    # One that has failed is followed at once by the next; one that is slow, after the delay.
    later = inside if isinstance(layer.delay, Quantile) else min(layer.delay, inside)
    return inside + layer.max_hedges * later


@_around.register(IdempotentExecution)
@_around.register(ServiceErrors)
@_around.register(SwitchGuard)
def _(layer: Any, inside: float, each: float, late: float) -> float:
    return inside


def max_calls(layers: Sequence[Any]) -> float:
    """How often the function is called at most; infinite: nothing bounds it."""
    return prod(each for _, each in call_multipliers(layers))


def call_multipliers(layers: Sequence[Any]) -> Iterator[tuple[Any, float]]:
    """Each layer, and how often it makes its call."""
    depth = 0
    for layer in layers:
        many = _calls(layer)
        if many > 1 and isinstance(layer, RetryTemplate | BoundTemplate):
            many = min(many, 1 + _nested_retry_limit(depth, layer.template.guards))
            depth += 1
        yield layer, many


def _nested_retry_limit(depth: int, guards: Sequence[Any]) -> float:
    """What the rules on nested retries allow inside so many others."""
    rules = [each for each in guards if isinstance(each, NestedRetries)]
    allowed = [each.allowed(Nesting(depth)) for each in rules if each.on_nested == "suppress"]
    return min((inf if each is None else each for each in allowed), default=inf)


@singledispatch
def _calls(layer: Any) -> float:
    return inf


@_calls.register(Timeout)
@_calls.register(CircuitBreaker)
@_calls.register(Bulkhead)
@_calls.register(Fallback)
@_calls.register(IdempotentExecution)
@_calls.register(ServiceErrors)
@_calls.register(SwitchGuard)
def _(layer: Any) -> float:
    return 1


@_calls.register(RetryTemplate)
@_calls.register(BoundTemplate)
def _(layer: Any) -> float:
    limit = layer.template.policy.resolved().attempt_limit
    return inf if limit is None else limit


@_calls.register
def _(layer: Hedge) -> float:
    return 1 + layer.max_hedges


# So many of the waits are told.
SHOWN = 3


@singledispatch
def describe(layer: Any) -> str:
    """What it does, with its numbers; of a stranger, what it says of itself."""
    return repr(layer)


@describe.register
def _(layer: Timeout) -> str:
    if isinf(layer.seconds):
        return "no limit"
    instead = "" if layer.on_timeout is RERAISE else ", and on_timeout gives the value"
    late = "run to their end"
    if layer.on_late_result == "discard":
        late += ", and a late value is discarded"
    return (
        f"asynchronous calls are cancelled after {span(layer.seconds)}{instead}; "
        f"synchronous calls {late}"
    )


@describe.register(RetryTemplate)
@describe.register(BoundTemplate)
def _(layer: Any) -> str:
    template = layer.template
    policy, backoff = template.policy.resolved(), template.backoff.resolved()
    parts = ["one attempt"]
    if policy.attempt_limit != 1:
        parts = [_attempts(policy), _waiting(backoff, policy.attempt_limit)]
    if template.attempt_timeout is not None and not isinf(template.attempt_timeout.seconds):
        parts.append(_limited(template.attempt_timeout))
    if template.guards:
        parts.append(f"asking {', '.join(map(label, template.guards))}")
    if layer.recovery is not None:
        parts.append("then a recovery answers")
    return "; ".join(parts)


@describe.register
def _(layer: CircuitBreaker) -> str:
    slow = ""
    if layer.slow_call is not None:
        share = "" if isinstance(layer.window, Consecutive) else f"{layer.slow_rate:.0%} of "
        slow = f" or {share}calls slower than {span(layer.slow_call)}"
    return (
        f"after {_threshold_text(layer)}{slow} none is made for {span(layer.reset_timeout)} or "
        f"a little longer; then {layer.half_open_calls} at once, to see: "
        f"{layer.required_successes} that succeed close it"
    )


def _threshold_text(breaker: CircuitBreaker) -> str:
    window = breaker.window
    if isinstance(window, Consecutive):
        return f"{number(window.number, 'failure')} in a row"
    back = f"{window.number} calls" if isinstance(window, Calls) else span(window.seconds)
    return (
        f"{breaker.failure_rate:.0%} failures in the last {back}, among "
        f"{number(breaker.minimum_calls, 'call')} at least,"
    )


@describe.register
def _(layer: Bulkhead) -> str:
    wait = f"{layer.queue} more wait up to {span(layer.max_wait)}" if layer.queue else "none waits"
    keys = "" if layer.per_key is None else f", {layer.per_key} of each key"
    return f"{number(layer.limit, 'call')} at once{keys}, {wait}"


@describe.register
def _(layer: Fallback) -> str:
    names = ", ".join(getattr(each, "__name__", type(each).__name__) for each in layer.fallbacks)
    return f"where the call fails, {names} answer{'s' if len(layer.fallbacks) == 1 else ' in turn'}"


@describe.register
def _(layer: Hedge) -> str:
    if isinstance(layer.delay, Quantile):
        late = f"longer than {layer.delay.q:.0%} of the calls"
    else:
        late = f"longer than {span(layer.delay)}"
    most = number(layer.max_hedges, "time")
    return (
        f"where an answer takes {late}, the same is asked again, {most} at most; the first answer "
        "counts"
    )


@describe.register
def _(layer: IdempotentExecution) -> str:
    return "each operation happens once; from then on its result is given"


@describe.register
def _(layer: ServiceErrors) -> str:
    return "timeouts become errors of the service"


@describe.register
def _(layer: SwitchGuard) -> str:
    return f"no call, attempt, hedge or other answer while {layer.what} is stopped"


# Policies and backoffs.


def _limited(timeout: AttemptTimeout) -> str:
    if timeout.in_thread:
        return f"each attempt is cancelled or abandoned after {span(timeout.seconds)}"
    late = ", late values discarded" if timeout.on_late_result == "discard" else ""
    return f"asynchronous attempts are cancelled after {span(timeout.seconds)}{late}"


def _attempts(policy: RetryPolicy) -> str:
    limit = policy.attempt_limit
    many = f"up to {number(limit, 'attempt')}" if limit else "attempts without a limit"
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
    told = ""
    if isinstance(backoff, RetryAfterBackoff):
        most = "" if backoff.give_up_above is None else f" up to {span(backoff.give_up_above)}"
        told, backoff = f"as long as the other side asks{most}, else ", backoff.fallback
    shown = SHOWN if attempts is None else min(SHOWN, attempts - 1)
    more = " ..." if attempts is None or attempts - 1 > SHOWN else ""
    try:
        longest, shortest = sample_delays(backoff, 1, shown), sample_delays(backoff, 0, shown)
    except Exception:  # a function of the user's, asked about a failure that is none of his
        return f"waiting {told}as {backoff!r} says"
    chance = "" if longest == shortest else "up to "
    return f"waiting {told}{chance}{', '.join(f'{each:.3g}' for each in longest)} s{more}"


# Numbers.


def min_failures_to_open(breaker: CircuitBreaker) -> int:
    """How many failures open it at the earliest."""
    if isinstance(breaker.window, Consecutive):
        return breaker.window.number
    return max(1, ceil(breaker.failure_rate * breaker.minimum_calls - 1e-9))


def span(seconds: float) -> str:
    """Seconds, for people."""
    return "no limit" if isinf(seconds) else f"{seconds:.6g} s"


def number(count: float, what: str) -> str:
    """So many of something."""
    if count == inf:
        return f"any number of {what}s"
    return f"{count:.0f} {what}{'' if count == 1 else 's'}"
