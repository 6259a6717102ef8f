"""Warnings about the order of strategies, and about their settings."""

from __future__ import annotations

from math import ceil, inf, prod
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.formatting import format_count, format_limit
from retrytemplate.backoff.retry_after import RetryAfterBackoff
from retrytemplate.control.breaker.breaker import CircuitBreaker
from retrytemplate.control.breaker.window import Consecutive
from retrytemplate.control.bulkhead.bulkhead import Bulkhead
from retrytemplate.control.fallback import Fallback
from retrytemplate.control.hedge.hedge import Hedge
from retrytemplate.control.pipeline.explain import (
    call_multipliers,
    max_calls,
    worst_case_duration,
)
from retrytemplate.control.pipeline.probe import (
    has_jitter,
    is_retried,
    label,
    retries_everything,
    retry_duration,
)
from retrytemplate.control.rate_limiter.rate_limiter import RateLimiter
from retrytemplate.control.timeout.timeout import Timeout
from retrytemplate.errors import CircuitOpenError
from retrytemplate.template import BoundTemplate, RetryTemplate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from retrytemplate._internal.validation import Seconds

    Layers = Sequence[Any]
    Find = Callable[[Layers, Seconds | None], Iterator[str]]

# So low a number of failures, consecutive or in a window, happens without an outage.
TOO_FEW = 2
REJECTING = (CircuitBreaker, Bulkhead, RateLimiter)


@frozen(kw_only=True)
class LintWarning:
    """A warning about a pipeline.

    :param rule: the identifier of the rule, in kebab-case.
    :param reason: the effect on calls.
    :param remedy: the change to make.
    """

    rule: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}. {self.remedy}."


# Each rule, in the order of the warnings: its name, its remedy, and what finds the reasons.
RULES: list[tuple[str, str, Find]] = []


def _rule(name: str, remedy: str) -> Callable[[Find], Find]:
    """Make a rule of a function that yields the reason of each warning."""

    def register(find: Find) -> Find:
        RULES.append((name, remedy, find))
        return find

    return register


def lint(layers: Layers, attempt_duration: Seconds | None = None) -> tuple[LintWarning, ...]:
    """The warnings about the layers: limits of time first, then their order, then settings."""
    return tuple(
        LintWarning(rule=name, reason=reason, remedy=remedy)
        for name, remedy, find in RULES
        for reason in find(layers, attempt_duration)
    )


def _retries(layers: Layers) -> Iterator[tuple[int, Any]]:
    """The templates that try more than once, and where they are."""
    for place, layer in enumerate(layers):
        if isinstance(layer, RetryTemplate | BoundTemplate) and max_calls([layer]) > 1:
            yield place, layer


def _first(layers: Iterable[Any], kind: type) -> Any:
    return next((each for each in layers if isinstance(each, kind)), None)


# Limits of time.


@_rule(
    "unbounded-retry",
    "Put a Timeout outside of it, or limit its attempts and give it an attempt_timeout",
)
def _nothing_bounds_it(layers: Layers, attempt: Seconds | None) -> Iterator[str]:
    for place, template in _retries(layers):
        if _is_unlimited(layers[:place]) and worst_case_duration(layers[place:], attempt) == inf:
            endless = worst_case_duration(layers[place:], 0.0) == inf
            what = "how often and how long it tries" if endless else "how long an attempt may take"
            yield f"{label(template)} has no Timeout outside, and nothing limits {what}"
            return


@_rule("timeout-inside-only", "Put another Timeout outside of the template")
def _timeout_inside_only(layers: Layers, attempt: Seconds | None) -> Iterator[str]:
    for inside, timeout in _timeouts(layers):
        outside = list(_retries(layers[:inside]))
        if outside and _is_unlimited(layers[: outside[0][0]]):
            (place, outermost), (_, innermost) = outside[0], outside[-1]
            most = worst_case_duration(layers[place:], attempt)
            together = "are unbounded" if most == inf else f"may take {format_limit(most)}"
            yield (
                f"{label(timeout)} limits each attempt of {label(innermost)} to "
                f"{format_limit(timeout.seconds)}, but all attempts of {label(outermost)} together "
                f"{together}"
            )
            return


def _is_unlimited(layers: Layers) -> bool:
    return all(timeout.seconds == inf for _, timeout in _timeouts(layers))


@_rule("limit-never-reached", "Make the inner limit the shorter one, or leave it out")
def _too_short(layers: Layers, _: Any) -> Iterator[str]:
    for place, timeout in _timeouts(layers):
        for what, limit in _not_reached(timeout, layers[place + 1 :]):
            yield (
                f"{label(timeout)} is over after {format_limit(timeout.seconds)}, not later "
                f"than {what}, after {format_limit(limit)}"
            )


def _timeouts(layers: Layers) -> Iterator[tuple[int, Timeout]]:
    return ((place, each) for place, each in enumerate(layers) if isinstance(each, Timeout))


def _not_reached(timeout: Timeout, inside: Layers) -> Iterator[tuple[str, float]]:
    """The limits inside that are not shorter."""
    for what, limit in _time_limits(inside):
        if timeout.seconds <= limit:
            yield what, limit


def _time_limits(layers: Layers) -> Iterator[tuple[str, float]]:
    """The limits of calls and attempts, by name."""
    for layer in layers:
        what, limit = label(layer), inf
        if isinstance(layer, Timeout):
            limit = layer.seconds
        elif isinstance(layer, RetryTemplate | BoundTemplate):
            attempt = layer.template.attempt_timeout
            if attempt is not None:
                what, limit = f"the attempt_timeout of {what}", attempt.seconds
        if limit < inf:
            yield what, limit


@_rule(
    "worst-case-exceeds-timeout",
    "Make fewer attempts, shorter ones or shorter waits, or give it more time",
)
def _longer_than_the_timeout(layers: Layers, attempt: Seconds | None) -> Iterator[str]:
    for place, timeout in _timeouts(layers):
        inside = layers[place + 1 :]
        if any(_not_reached(timeout, inside)):
            continue
        most, what = worst_case_duration(inside, attempt), "the layers inside"
        if most == inf:
            most, what = _waiting(inside), "the waits between attempts alone"
        after = "an asynchronous call is cancelled then, a synchronous one exceeds it"
        if max_calls(inside) > 1:
            after = "the last attempts may never be made"
        if timeout.seconds < most < inf:
            yield (
                f"{what} may take {format_limit(most)}, and {label(timeout)} is over after "
                f"{format_limit(timeout.seconds)}: {after}"
            )


def _waiting(layers: Layers) -> float:
    return sum(retry_duration(layer.template, 0.0) for _, layer in _retries(layers))


# Orders.


@_rule("breaker-outside-retry", "Put the breaker inside of the template")
def _breaker_outside(layers: Layers, _: Any) -> Iterator[str]:
    for breaker, template in _around_retry(layers, CircuitBreaker):
        yield (
            f"to {label(breaker)} all attempts of {label(template)} are one call: it counts "
            "failures late, and when it opens, running attempts continue"
        )


@_rule("bulkhead-outside-retry", "Put the bulkhead inside of the template")
def _bulkhead_outside(layers: Layers, _: Any) -> Iterator[str]:
    for bulkhead, template in _around_retry(layers, Bulkhead):
        if not template.template.backoff.never_waits:
            yield (
                f"a slot of {label(bulkhead)} is held while {label(template)} waits between "
                "its attempts"
            )


@_rule("rate-limiter-inside-bulkhead", "Put the rate limiter outside of the bulkhead")
def _limiter_inside_bulkhead(layers: Layers, _: Any) -> Iterator[str]:
    for place, limiter in _waiting_limiters(layers):
        bulkhead = _first(layers[:place], Bulkhead)
        if bulkhead is not None:
            yield (
                f"a slot of {label(bulkhead)} is held while a call waits up to "
                f"{format_limit(limiter.max_wait)} for {label(limiter)}"
            )


@_rule("max-wait-exceeds-limit", "Make max_wait shorter than the limit")
def _permit_too_late(layers: Layers, _: Any) -> Iterator[str]:
    for place, limiter in _waiting_limiters(layers):
        for what, limit in _time_limits(layers[:place]):
            if limiter.max_wait > limit:
                yield (
                    f"a call waits up to {format_limit(limiter.max_wait)} for "
                    f"{label(limiter)}, and {what} is over after {format_limit(limit)}"
                )
                break


def _waiting_limiters(layers: Layers) -> Iterator[tuple[int, RateLimiter]]:
    return (
        (place, each)
        for place, each in enumerate(layers)
        if isinstance(each, RateLimiter) and each.max_wait
    )


def _around_retry(layers: Layers, kind: type) -> Iterator[tuple[Any, Any]]:
    """Each layer of a kind that is around a retry, and the outermost of those."""
    for place, layer in enumerate(layers):
        if isinstance(layer, kind):
            for _, template in _retries(layers[place:]):
                yield layer, template
                break


@_rule("hedge-outside-retry", "Put the hedge inside of the template")
def _hedge_outside(layers: Layers, _: Any) -> Iterator[str]:
    for hedge, template in _around_retry(layers, Hedge):
        many = format_count(max_calls([hedge, template]), "call")
        yield f"{label(hedge)} repeats all of {label(template)}, which multiplies to {many} for one"


@_rule("nested-retries", "Retry in one layer only, or guard each template with NestedRetries()")
def _nested(layers: Layers, _: Any) -> Iterator[str]:
    retries = [
        (layer, many)
        for layer, many in call_multipliers(layers)
        if many > 1 and isinstance(layer, RetryTemplate | BoundTemplate)
    ]
    if len(retries) > 1:
        each = " x ".join("any number" if many == inf else f"{many:.0f}" for _, many in retries)
        product = format_count(prod(many for _, many in retries), "call")
        yield f"attempts multiply: {each}, that is {product} for one"


@_rule("fallback-inside-retry", "Put the fallback outside of the template")
def _fallback_inside(layers: Layers, _: Any) -> Iterator[str]:
    for place, template in _retries(layers):
        fallback = _first(layers[place:], Fallback)
        if fallback is not None:
            yield (
                f"{label(fallback)} answers at the first failure: {label(template)} never "
                "sees it, and never retries"
            )
            return


# Settings.


@_rule(
    "rejections-retried",
    "Leave rejections out of its rules, or wait as long as they say, with a RetryAfterBackoff",
)
def _rejections(layers: Layers, _: Any) -> Iterator[str]:
    for place, layer in _retries(layers):
        guard = next(filter(None, (_first(layers[place:], kind) for kind in REJECTING)), None)
        backoff, policy = layer.template.backoff, layer.template.policy
        if guard is None or isinstance(backoff, RetryAfterBackoff):
            continue
        refusal = CircuitOpenError("to see", name="to see", retry_after=1.0)
        if policy.matches_library_error(refusal) and is_retried(policy, refusal):
            yield (
                f"{label(layer)} retries when {label(guard)} rejects a call, without a "
                "look at when it is worth it"
            )


@_rule("no-jitter", 'Give it a backoff with jitter, such as ExponentialBackoff(jitter="full")')
def _no_jitter(layers: Layers, _: Any) -> Iterator[str]:
    for _, layer in _retries(layers):
        backoff = layer.template.backoff.resolved()
        if has_jitter(backoff) is False:
            how = "does not wait" if backoff.never_waits else "always waits the same"
            yield f"{label(layer)} {how}: callers that fail at the same time retry at the same time"


@_rule("retries-all-exceptions", "Name in retry_on what may go away by itself")
def _every_error(layers: Layers, _: Any) -> Iterator[str]:
    for _, layer in _retries(layers):
        if retries_everything(layer.template.policy):
            yield (
                f"{label(layer)} retries whatever is raised, faults of the program and "
                "wrong input too"
            )


@_rule(
    "breaker-too-sensitive",
    "Look back on more calls: a larger window, minimum_calls or failure_rate",
)
def _too_sensitive(layers: Layers, _: Any) -> Iterator[str]:
    for place, breaker in enumerate(layers):
        if not isinstance(breaker, CircuitBreaker):
            continue
        fewest = _min_failures_to_open(breaker)
        attempts = max_calls([layer for _, layer in _retries(layers[:place])])
        if fewest <= TOO_FEW:
            why = f"{format_count(fewest, 'failure')} open it"
        elif isinstance(breaker.window, Consecutive) and fewest <= attempts:
            failures = format_count(attempts, "consecutive failure")
            why = f"the attempts of one call, {failures}, open it"
        else:
            continue
        yield f"{label(breaker)} is too sensitive: {why}, which is everyday noise"


def _min_failures_to_open(breaker: CircuitBreaker) -> int:
    if isinstance(breaker.window, Consecutive):
        return breaker.window.number
    return max(1, ceil(breaker.failure_rate * breaker.minimum_calls - 1e-9))
