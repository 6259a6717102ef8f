"""Properties of templates, policies and backoffs, found by calling them."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._engine.failure_rules import is_unlisted_library_error
from retrytemplate.policies.base import as_stateful
from retrytemplate.policies.basic import AlwaysRetryPolicy
from retrytemplate.simulation import simulate, worst_case

if TYPE_CHECKING:
    from retrytemplate.backoff.base import Backoff
    from retrytemplate.policies.base import RetryPolicy
    from retrytemplate.template import RetryTemplate


def label(layer: Any) -> str:
    """The class of a layer, and its name if it has one."""
    name = getattr(layer, "kind", None) or getattr(layer, "label", None)
    name = name or getattr(layer, "name", None)
    kind = type(layer).__name__
    return f"{kind} {name!r}" if isinstance(name, str) else kind


@frozen
class _ConstantRandom:
    """A random source with a constant value."""

    number: float

    def random(self) -> float:
        return self.number


def sample_delays(backoff: Backoff, drawn: float, count: int = 3) -> tuple[float, ...]:
    """The first waits when every draw is this number, from 0 to 1."""
    chance = _ConstantRandom(min(drawn, 1 - 2**-53))
    run = simulate(AlwaysRetryPolicy(), backoff, 1, chance, max_attempts_per_run=count + 1)
    return run.longest_sequence


def has_jitter(backoff: Backoff) -> bool | None:
    """Whether its waits are random; None: unknown."""
    try:
        return sample_delays(backoff, 1) != sample_delays(backoff, 0)
    except Exception:  # a user's function that does not know this failure
        return None


def is_increasing(backoff: Backoff) -> bool | None:
    """Whether it may wait longer the more attempts have failed; None: unknown."""
    try:
        longest = sample_delays(backoff, 1)
    except Exception:  # as above
        return None
    return bool(longest) and longest[0] < longest[-1]


def retry_duration(template: RetryTemplate, attempt: float) -> float:
    """The duration of all attempts, of *attempt* seconds each, and of the waits between them."""
    if attempt == inf:
        return inf
    try:
        return worst_case(template.policy, template.backoff, attempt_duration=attempt).duration
    except Exception:  # a user's function that does not know this failure
        return inf


def is_retried(policy: RetryPolicy, failure: Exception) -> bool:
    """Whether a first failure of that kind is retried."""
    member = as_stateful(policy.resolved())
    try:
        _, state = member.decide(member.start(0.0), 0.0)
        allowed, _ = member.decide(member.record(state, failure, 0.0), 0.0)
        return allowed and not is_unlisted_library_error(policy, failure, None)
    except Exception:  # a predicate of the user's that knows nothing of this one
        return False


class _UnlistedError(Exception):
    """An error of no class that a rule names."""


def retries_everything(policy: RetryPolicy) -> bool:
    """Whether it retries an exception that no rule names."""
    return is_retried(policy, _UnlistedError("to see"))
