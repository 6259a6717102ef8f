"""Retry that remembers: across attempts, transactions, redeliveries and crashes."""

from retrytemplate import errors
from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate._engine.activity": "is_active set_active",
        "retrytemplate._engine.attempt_timeout": "AttemptTimeout",
        "retrytemplate._engine.block": "Attempts",
        "retrytemplate._engine.context": "RetryContext current_context",
        "retrytemplate._engine.deadline": "Deadline",
        "retrytemplate._internal.cancel_reason": "CancelReason",
        "retrytemplate.backends": (
            "AsyncRedisRetryContextCache AsyncSQLRetryContextCache RedisRetryContextCache "
            "SQLRetryContextCache"
        ),
        "retrytemplate.backoff": (
            "Backoff ExponentialBackoff FixedBackoff NoBackoff RetryAfterBackoff "
            "UniformRandomBackoff"
        ),
        "retrytemplate.caches": "MemoryRetryContextCache RetryContextCache",
        "retrytemplate.classify": "ExceptionClassifier PatternClassifier",
        "retrytemplate.clock": "Clock SystemClock",
        "retrytemplate.declarative": "intercept recover retryable",
        "retrytemplate.errors": " ".join(errors.__all__),
        "retrytemplate.guards": "Guard",
        "retrytemplate.history": "AttemptRecord Outcome StopReason",
        "retrytemplate.listeners": "LoggingListener RetryListener StatisticsListener",
        "retrytemplate.policies": (
            "AlwaysRetryPolicy CircuitBreakerRetryPolicy CompositeRetryPolicy "
            "ExceptionClassifierRetryPolicy MaxAttemptsRetryPolicy NeverRetryPolicy "
            "PredicateRetryPolicy ResultRetryPolicy RetryPolicy SimpleRetryPolicy "
            "StatefulRetryPolicy TimeoutRetryPolicy"
        ),
        "retrytemplate.state": "RetryState",
        "retrytemplate.template": "BoundTemplate RetryTemplate",
    },
)

from retrytemplate import template as template  # noqa: E402  # loads it with the package
