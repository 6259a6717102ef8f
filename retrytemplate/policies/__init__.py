"""Retry policies: whether another attempt is made."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.policies.base": "RetryPolicy StatefulRetryPolicy",
        "retrytemplate.policies.basic": (
            "AlwaysRetryPolicy MaxAttemptsRetryPolicy NeverRetryPolicy PredicateRetryPolicy "
            "TimeoutRetryPolicy"
        ),
        "retrytemplate.policies.circuit_breaker": "CircuitBreakerRetryPolicy",
        "retrytemplate.policies.composite": "CompositeRetryPolicy",
        "retrytemplate.policies.exception_classifier": "ExceptionClassifierRetryPolicy",
        "retrytemplate.policies.result": "ResultRetryPolicy",
        "retrytemplate.policies.simple": "SimpleRetryPolicy",
    },
)
