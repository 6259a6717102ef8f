"""Check of the settings that a template needs in production."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from retrytemplate.control.budget.budget import RetryBudget
from retrytemplate.control.http.retry import IdempotentRequestClassifier
from retrytemplate.control.idempotency.keys import RequireIdempotency
from retrytemplate.control.pipeline.probe import (
    has_jitter,
    is_increasing,
    label,
    retries_everything,
    retry_duration,
)
from retrytemplate.errors import UnsafeRetryError
from retrytemplate.policies.composite import CompositeRetryPolicy
from retrytemplate.policies.simple import SimpleRetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retrytemplate.policies.base import RetryPolicy
    from retrytemplate.template import RetryTemplate


def check(template: RetryTemplate, whose: Any) -> None:
    """Raise unless a template that retries has all of it; *whose* is named in the error."""
    limit = template.policy.resolved().attempt_limit
    missing = () if limit == 1 else tuple(_missing(template))
    if missing:
        raise UnsafeRetryError(f"{label(whose)} is missing {'; '.join(missing)}", missing=missing)


def _missing(template: RetryTemplate) -> Iterator[str]:
    backoff, guards = template.backoff.resolved(), template.guards
    if template.policy.resolved().attempt_limit is None and retry_duration(template, 0.0) == inf:
        yield "a limit (max_attempts, or a time)"
    if not is_increasing(backoff):
        yield "increasing delays (a backoff such as ExponentialBackoff)"
    if not has_jitter(backoff):
        yield "jitter in its delays"
    if not (_has(guards, RequireIdempotency) or _is_by_request(template.policy)):
        yield "a rule whether a call may be repeated (RequireIdempotency, or http_retry)"
    if not _has(guards, RetryBudget):
        yield "a budget (RetryBudget)"
    if retries_everything(template.policy):
        yield "a list of retryable errors (it retries every Exception)"


def _has(guards: tuple[Any, ...], kind: type) -> bool:
    return any(isinstance(each, kind) for each in guards)


def _is_by_request(policy: RetryPolicy) -> bool:
    """Whether only requests that may be repeated are retried."""
    if policy.result_rules():
        return False  # a result has no request
    if isinstance(policy, CompositeRetryPolicy):
        enough = all if policy.optimistic else any
        return enough(map(_is_by_request, policy.policies))
    classifier = policy.classifier if isinstance(policy, SimpleRetryPolicy) else None
    return isinstance(classifier, IdempotentRequestClassifier)
