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
from retrytemplate.control.timeout.timeout import Timeout
from retrytemplate.errors import CircuitOpenError
from retrytemplate.template import BoundTemplate, RetryTemplate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from retrytemplate._internal.validation import Seconds

    Layers = Sequence[Any]

__all__ = ["LintWarning", "lint"]

# So low a number of failures, consecutive or in a window, happens without an outage.
TOO_FEW = 2


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


def lint(layers: Layers, attempt_duration: Seconds | None = None) -> tuple[LintWarning, ...]:
    """The warnings about the layers; those about their order come first."""
    bounds = (_nothing_bounds_it, _timeout_inside_only, _too_short, _longer_than_the_timeout)
    orders = (
        _breaker_outside,
        _bulkhead_outside,
        _hedge_outside,
        _nested,
        _fallback_inside,
    )
    numbers = (_rejections, _no_jitter, _every_error, _too_sensitive)
    found: list[LintWarning] = []
    for bound in bounds:
        found.extend(bound(layers, attempt_duration))
    for rule in (*orders, *numbers):
        found.extend(rule(layers))
    return tuple(found)


def _retries(layers: Layers) -> Iterator[tuple[int, Any]]:
    """The templates that try more than once, and where they are."""
    for place, layer in enumerate(layers):
        if isinstance(layer, RetryTemplate | BoundTemplate) and max_calls([layer]) > 1:
            yield place, layer


def _first(layers: Iterable[Any], kind: type) -> Any:
    return next((each for each in layers if isinstance(each, kind)), None)


# Limits of time.


def _nothing_bounds_it(layers: Layers, attempt: Seconds | None) -> Iterator[LintWarning]:
    for place, template in _retries(layers):
        if _is_unlimited(layers[:place]) and worst_case_duration(layers[place:], attempt) == inf:
            endless = worst_case_duration(layers[place:], 0.0) == inf
            what = "how often and how long it tries" if endless else "how long an attempt may take"
            yield LintWarning(
                rule="unbounded-retry",
                reason=f"{label(template)} has no Timeout outside, and nothing limits {what}",
                remedy="Put a Timeout outside of it"
                + ("" if endless else ", or give it an attempt_timeout"),
            )
            return


def _timeout_inside_only(layers: Layers, attempt: Seconds | None) -> Iterator[LintWarning]:
    for place, template in _retries(layers):
        inner = _first(layers[place:], Timeout)
        if inner is not None and _is_unlimited(layers[:place]):
            most = worst_case_duration(layers[place:], attempt)
            together = "are unbounded" if most == inf else f"may take {format_limit(most)}"
            yield LintWarning(
                rule="timeout-inside-only",
                reason=f"{label(inner)} limits each attempt of {label(template)} to "
                f"{format_limit(inner.seconds)}, but all of them together {together}",
                remedy="Put another Timeout outside of the template",
            )
            return


def _is_unlimited(layers: Layers) -> bool:
    return all(timeout.seconds == inf for _, timeout in _timeouts(layers))


def _too_short(layers: Layers, attempt: Seconds | None) -> Iterator[LintWarning]:
    for place, timeout in _timeouts(layers):
        for what, limit in _not_reached(timeout, layers[place + 1 :]):
            yield LintWarning(
                rule="limit-never-reached",
                reason=f"{label(timeout)} is over after {format_limit(timeout.seconds)}, not later "
                f"than {what}, after {format_limit(limit)}",
                remedy="Make the inner limit the shorter one, or leave it out",
            )


def _timeouts(layers: Layers) -> Iterator[tuple[int, Timeout]]:
    return ((place, each) for place, each in enumerate(layers) if isinstance(each, Timeout))


def _not_reached(timeout: Timeout, inside: Layers) -> Iterator[tuple[str, float]]:
    """The limits inside that are not shorter."""
    for layer in inside:
        what, limit = label(layer), inf
        if isinstance(layer, Timeout):
            limit = layer.seconds
        elif isinstance(layer, RetryTemplate | BoundTemplate):
            attempt = layer.template.attempt_timeout
            if attempt is not None:
                what, limit = f"the attempt_timeout of {what}", attempt.seconds
        if timeout.seconds <= limit < inf:
            yield what, limit


def _longer_than_the_timeout(layers: Layers, attempt: Seconds | None) -> Iterator[LintWarning]:
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
            yield LintWarning(
                rule="worst-case-exceeds-timeout",
                reason=f"{what} may take {format_limit(most)}, and {label(timeout)} is over after "
                f"{format_limit(timeout.seconds)}: {after}",
                remedy="Make fewer attempts, shorter ones or shorter waits, or give it more time",
            )


def _waiting(layers: Layers) -> float:
    return sum(retry_duration(layer.template, 0.0) for _, layer in _retries(layers))


# Orders.


def _breaker_outside(layers: Layers) -> Iterator[LintWarning]:
    for breaker, template in _around_retry(layers, CircuitBreaker):
        yield LintWarning(
            rule="breaker-outside-retry",
            reason=f"to {label(breaker)} all attempts of {label(template)} are one call: it counts "
            "failures late, and when it opens, running attempts continue",
            remedy="Put the breaker inside of the template",
        )


def _bulkhead_outside(layers: Layers) -> Iterator[LintWarning]:
    for bulkhead, template in _around_retry(layers, Bulkhead):
        if not template.template.backoff.never_waits:
            yield LintWarning(
                rule="bulkhead-outside-retry",
                reason=f"a slot of {label(bulkhead)} is held while {label(template)} waits between "
                "its attempts",
                remedy="Put the bulkhead inside of the template",
            )


def _around_retry(layers: Layers, kind: type) -> Iterator[tuple[Any, Any]]:
    """Each layer of a kind that is around a retry, and the outermost of those."""
    for place, layer in enumerate(layers):
        if isinstance(layer, kind):
            for _, template in _retries(layers[place:]):
                yield layer, template
                break


def _hedge_outside(layers: Layers) -> Iterator[LintWarning]:
    for hedge, template in _around_retry(layers, Hedge):
        many = format_count(max_calls([hedge, template]), "call")
        yield LintWarning(
            rule="hedge-outside-retry",
            reason=f"{label(hedge)} repeats all of {label(template)}, which multiplies to "
            f"{many} for one",
            remedy="Put the hedge inside of the template",
        )


def _nested(layers: Layers) -> Iterator[LintWarning]:
    retries = [
        (layer, many)
        for layer, many in call_multipliers(layers)
        if many > 1 and isinstance(layer, RetryTemplate | BoundTemplate)
    ]
    if len(retries) > 1:
        each = " x ".join("any number" if many == inf else f"{many:.0f}" for _, many in retries)
        product = format_count(prod(many for _, many in retries), "call")
        yield LintWarning(
            rule="nested-retries",
            reason=f"attempts multiply: {each}, that is {product} for one",
            remedy="Retry in one layer only, or guard each template with NestedRetries()",
        )


def _fallback_inside(layers: Layers) -> Iterator[LintWarning]:
    for place, template in _retries(layers):
        fallback = _first(layers[place:], Fallback)
        if fallback is not None:
            yield LintWarning(
                rule="fallback-inside-retry",
                reason=f"{label(fallback)} answers at the first failure: {label(template)} never "
                "sees it, and never tries again",
                remedy="Put the fallback outside of the template",
            )
            return


# Settings.


def _rejections(layers: Layers) -> Iterator[LintWarning]:
    for place, layer in _retries(layers):
        guard = _first(layers[place:], CircuitBreaker) or _first(layers[place:], Bulkhead)
        backoff, policy = layer.template.backoff, layer.template.policy
        if guard is None or isinstance(backoff, RetryAfterBackoff):
            continue
        refusal = CircuitOpenError("to see", name="to see", retry_after=1.0)
        if policy.matches_library_error(refusal) and is_retried(policy, refusal):
            yield LintWarning(
                rule="rejections-retried",
                reason=f"{label(layer)} tries again when {label(guard)} rejects a call, without a "
                "look at when it is worth it",
                remedy="Leave rejections out of its rules, or wait as long as they say, with a "
                "RetryAfterBackoff",
            )


def _no_jitter(layers: Layers) -> Iterator[LintWarning]:
    for _, layer in _retries(layers):
        backoff = layer.template.backoff.resolved()
        if has_jitter(backoff) is False:
            how = "does not wait" if backoff.never_waits else "always waits the same"
            yield LintWarning(
                rule="no-jitter",
                reason=f"{label(layer)} {how}: callers that fail together come back together",
                remedy='Give it a backoff with jitter, such as ExponentialBackoff(jitter="full")',
            )


def _every_error(layers: Layers) -> Iterator[LintWarning]:
    for _, layer in _retries(layers):
        if retries_everything(layer.template.policy):
            yield LintWarning(
                rule="retries-all-exceptions",
                reason=f"{label(layer)} retries whatever is raised, faults of the program and "
                "wrong input too",
                remedy="Name in retry_on what may go away by itself",
            )


def _too_sensitive(layers: Layers) -> Iterator[LintWarning]:
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
        yield LintWarning(
            rule="breaker-too-sensitive",
            reason=f"{label(breaker)} is too sensitive: {why}, which is everyday noise",
            remedy="Look back on more calls: a larger window, minimum_calls or failure_rate",
        )


def _min_failures_to_open(breaker: CircuitBreaker) -> int:
    if isinstance(breaker.window, Consecutive):
        return breaker.window.number
    return max(1, ceil(breaker.failure_rate * breaker.minimum_calls - 1e-9))
