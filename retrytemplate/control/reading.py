"""What strategies do, in words."""

from __future__ import annotations

from functools import singledispatch
from math import ceil, inf, isinf
from typing import TYPE_CHECKING, Any

from retrytemplate.backoff.retry_after import RetryAfterBackoff
from retrytemplate.control.breaker import CircuitBreaker
from retrytemplate.control.bulkhead import Bulkhead
from retrytemplate.control.fallback import Fallback
from retrytemplate.control.hedge import Hedge
from retrytemplate.control.operations import Once
from retrytemplate.control.probing import title, waits
from retrytemplate.control.quantile import Quantile
from retrytemplate.control.service_errors import ServiceErrors
from retrytemplate.control.switch.guard import SwitchGuard
from retrytemplate.control.timeout import RAISE, Timeout
from retrytemplate.control.windows import Calls, Consecutive
from retrytemplate.policies.basic import AlwaysRetryPolicy, MaxAttemptsRetryPolicy
from retrytemplate.policies.simple import SimpleRetryPolicy
from retrytemplate.template import BoundTemplate, RetryTemplate

if TYPE_CHECKING:
    from retrytemplate._engine.attempt_timeout import AttemptTimeout
    from retrytemplate.backoff.base import Backoff
    from retrytemplate.policies.base import RetryPolicy

__all__ = ["described", "fewest_failures", "number", "span"]

# So many of the waits are told.
SHOWN = 3


@singledispatch
def described(layer: Any) -> str:
    """What it does, with its numbers; of a stranger, what it says of itself."""
    return repr(layer)


@described.register
def _(layer: Timeout) -> str:
    if isinf(layer.seconds):
        return "no limit"
    instead = "" if layer.on_timeout is RAISE else ", and on_timeout gives the value"
    late = "run to their end"
    if layer.on_late_result == "discard":
        late += ", and a late value is discarded"
    return (
        f"asynchronous calls are cancelled after {span(layer.seconds)}{instead}; "
        f"synchronous calls {late}"
    )


@described.register(RetryTemplate)
@described.register(BoundTemplate)
def _(layer: Any) -> str:
    template = layer.template
    policy, backoff = template.policy.resolved(), template.backoff.resolved()
    parts = ["one attempt"]
    if policy.attempt_limit != 1:
        parts = [_attempts(policy), _waiting(backoff, policy.attempt_limit)]
    if template.attempt_timeout is not None and not isinf(template.attempt_timeout.seconds):
        parts.append(_limited(template.attempt_timeout))
    if template.guards:
        parts.append(f"asking {', '.join(map(title, template.guards))}")
    if layer.recovery is not None:
        parts.append("then a recovery answers")
    return "; ".join(parts)


@described.register
def _(layer: CircuitBreaker) -> str:
    slow = ""
    if layer.slow_call is not None:
        share = "" if isinstance(layer.window, Consecutive) else f"{layer.slow_rate:.0%} of "
        slow = f" or {share}calls slower than {span(layer.slow_call)}"
    return (
        f"after {_too_many(layer)}{slow} none is made for {span(layer.reset_timeout)} or a little "
        f"longer; then {layer.half_open_calls} at once, to see: {layer.required_successes} that "
        "succeed close it"
    )


def _too_many(breaker: CircuitBreaker) -> str:
    window = breaker.window
    if isinstance(window, Consecutive):
        return f"{number(window.number, 'failure')} in a row"
    back = f"{window.number} calls" if isinstance(window, Calls) else span(window.seconds)
    return (
        f"{breaker.failure_rate:.0%} failures in the last {back}, among "
        f"{number(breaker.minimum_calls, 'call')} at least,"
    )


@described.register
def _(layer: Bulkhead) -> str:
    wait = f"{layer.queue} more wait up to {span(layer.max_wait)}" if layer.queue else "none waits"
    keys = "" if layer.per_key is None else f", {layer.per_key} of each key"
    return f"{number(layer.limit, 'call')} at once{keys}, {wait}"


@described.register
def _(layer: Fallback) -> str:
    names = ", ".join(getattr(each, "__name__", type(each).__name__) for each in layer.links)
    return f"where the call fails, {names} answer{'s' if len(layer.links) == 1 else ' in turn'}"


@described.register
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


@described.register
def _(layer: Once) -> str:
    return "each operation happens once; from then on its result is given"


@described.register
def _(layer: ServiceErrors) -> str:
    return "timeouts become errors of the service"


@described.register
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
        longest, shortest = waits(backoff, 1, shown), waits(backoff, 0, shown)
    except Exception:  # a function of the user's, asked about a failure that is none of his
        return f"waiting {told}as {backoff!r} says"
    chance = "" if longest == shortest else "up to "
    return f"waiting {told}{chance}{', '.join(f'{each:.3g}' for each in longest)} s{more}"


# Numbers.


def fewest_failures(breaker: CircuitBreaker) -> int:
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
