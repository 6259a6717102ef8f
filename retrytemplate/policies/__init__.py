"""When to try again: retry policies, a concept a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._internal.imports import lazy_attributes
from retrytemplate.policies.base import RetryPolicy, StatefulRetryPolicy

if TYPE_CHECKING:
    from retrytemplate.policies.basic import (
        AlwaysRetryPolicy,
        MaxAttemptsRetryPolicy,
        NeverRetryPolicy,
        PredicateRetryPolicy,
        TimeoutRetryPolicy,
    )
    from retrytemplate.policies.circuit_breaker import CircuitBreakerRetryPolicy
    from retrytemplate.policies.composite import CompositeRetryPolicy
    from retrytemplate.policies.exception_classifier import ExceptionClassifierRetryPolicy
    from retrytemplate.policies.result import ResultRetryPolicy
    from retrytemplate.policies.simple import SimpleRetryPolicy

__getattr__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.policies.basic": (
            "AlwaysRetryPolicy",
            "MaxAttemptsRetryPolicy",
            "NeverRetryPolicy",
            "PredicateRetryPolicy",
            "TimeoutRetryPolicy",
        ),
        "retrytemplate.policies.circuit_breaker": ("CircuitBreakerRetryPolicy",),
        "retrytemplate.policies.composite": ("CompositeRetryPolicy",),
        "retrytemplate.policies.exception_classifier": ("ExceptionClassifierRetryPolicy",),
        "retrytemplate.policies.result": ("ResultRetryPolicy",),
        "retrytemplate.policies.simple": ("SimpleRetryPolicy",),
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
