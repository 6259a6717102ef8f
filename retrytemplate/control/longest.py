"""The longest that a call can take with strategies around it."""

from __future__ import annotations

from functools import singledispatch
from math import inf, prod
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.validation import delay, duration
from retrytemplate.control.breaker import CircuitBreaker
from retrytemplate.control.bulkhead import Bulkhead
from retrytemplate.control.fallback import Fallback
from retrytemplate.control.hedge import Hedge
from retrytemplate.control.nesting import NestedRetries, Nesting
from retrytemplate.control.operations import Once
from retrytemplate.control.probing import retrying
from retrytemplate.control.quantile import Quantile
from retrytemplate.control.service_errors import ServiceErrors
from retrytemplate.control.switch.guard import SwitchGuard
from retrytemplate.control.timeout import Timeout
from retrytemplate.template import BoundTemplate, RetryTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retrytemplate._engine.attempt_timeout import AttemptTimeout
    from retrytemplate._internal.validation import Seconds

__all__ = ["calls", "factors", "longest"]


def longest(
    layers: Sequence[Any], attempt_duration: Seconds | None = None, *, synchronous: bool = False
) -> float:
    """Seconds from the outermost in to the function and out again; infinite: nothing bounds it.

    :param attempt_duration: of the function, and of each function that a fallback asks.
    :param synchronous: whether the functions are: a limit does not end them, it only lets nothing
        further begin.
    """
    each = inf
    if attempt_duration is not None:
        each = duration(attempt_duration)
        delay("attempt_duration", each)
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
    return retrying(layer.template, _attempt(layer, inside, late))


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
    return inside + len(layer.links) * each


@_around.register
def _(layer: Hedge, inside: float, each: float, late: float) -> float:
    # One that has failed is followed at once by the next; one that is slow, after the delay.
    later = inside if isinstance(layer.delay, Quantile) else min(layer.delay, inside)
    return inside + layer.max_hedges * later


@_around.register(Once)
@_around.register(ServiceErrors)
@_around.register(SwitchGuard)
def _(layer: Any, inside: float, each: float, late: float) -> float:
    return inside


def calls(layers: Sequence[Any]) -> float:
    """How often the function is called at most; infinite: nothing bounds it."""
    return prod(each for _, each in factors(layers))


def factors(layers: Sequence[Any]) -> Iterator[tuple[Any, float]]:
    """Each layer, and how often it makes its call."""
    depth = 0
    for layer in layers:
        many = _calls(layer)
        if many > 1 and isinstance(layer, RetryTemplate | BoundTemplate):
            many = min(many, 1 + _retries_at(depth, layer.template.guards))
            depth += 1
        yield layer, many


def _retries_at(depth: int, guards: Sequence[Any]) -> float:
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
@_calls.register(Once)
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
