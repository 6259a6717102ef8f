"""When to try again: retry policies, a concept a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._lazy import lazily
from retrytemplate.policies.base import RetryPolicy, StatefulRetryPolicy

if TYPE_CHECKING:
    from retrytemplate.policies.always import AlwaysRetryPolicy
    from retrytemplate.policies.chooser import ExceptionClassifierRetryPolicy
    from retrytemplate.policies.circuit_breaker import CircuitBreakerRetryPolicy
    from retrytemplate.policies.composite import CompositeRetryPolicy
    from retrytemplate.policies.max_attempts import MaxAttemptsRetryPolicy
    from retrytemplate.policies.never import NeverRetryPolicy
    from retrytemplate.policies.predicate import PredicateRetryPolicy
    from retrytemplate.policies.result import ResultRetryPolicy
    from retrytemplate.policies.simple import SimpleRetryPolicy
    from retrytemplate.policies.timeout import TimeoutRetryPolicy

__getattr__ = lazily(
    __name__,
    {
        "retrytemplate.policies.always": ("AlwaysRetryPolicy",),
        "retrytemplate.policies.chooser": ("ExceptionClassifierRetryPolicy",),
        "retrytemplate.policies.circuit_breaker": ("CircuitBreakerRetryPolicy",),
        "retrytemplate.policies.composite": ("CompositeRetryPolicy",),
        "retrytemplate.policies.max_attempts": ("MaxAttemptsRetryPolicy",),
        "retrytemplate.policies.never": ("NeverRetryPolicy",),
        "retrytemplate.policies.predicate": ("PredicateRetryPolicy",),
        "retrytemplate.policies.result": ("ResultRetryPolicy",),
        "retrytemplate.policies.simple": ("SimpleRetryPolicy",),
        "retrytemplate.policies.timeout": ("TimeoutRetryPolicy",),
    },
)

__all__ = [
    "AlwaysRetryPolicy",
    "CircuitBreakerRetryPolicy",
    "CompositeRetryPolicy",
    "ExceptionClassifierRetryPolicy",
    "MaxAttemptsRetryPolicy",
    "NeverRetryPolicy",
    "PredicateRetryPolicy",
    "ResultRetryPolicy",
    "RetryPolicy",
    "SimpleRetryPolicy",
    "StatefulRetryPolicy",
    "TimeoutRetryPolicy",
]
