"""Retry that remembers: across attempts, transactions, redeliveries and crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._lazy import lazily
from retrytemplate.context import RetryContext, current_context
from retrytemplate.errors import (
    AlreadyCompletedError,
    AttemptInProgressError,
    AttemptLostError,
    AttemptTimeoutError,
    BackoffInterruptedError,
    BulkheadFullError,
    CacheUnavailableError,
    CircuitOpenError,
    DeadlineExceededError,
    ExhaustedRetryError,
    IdempotencyKeyReusedError,
    IdempotencyRequiredError,
    InconsistentKeyError,
    KillSwitchActiveError,
    LeaseLostError,
    MissingExtraError,
    MisuseError,
    NestedRetryError,
    RecordedFailure,
    Rejected,
    RetryBudgetExhaustedError,
    RetryContextCacheFullError,
    RetryError,
    RetryLater,
    SwitchRefusedError,
    SwitchStoreError,
    TerminatedRetryError,
    TriggerRefusedError,
    UnacceptableResultError,
    UnboundedRetryWarning,
    UnknownScopeError,
    Veto,
)
from retrytemplate.history import AttemptRecord
from retrytemplate.state import RetryState
from retrytemplate.template import BoundTemplate, RetryTemplate

if TYPE_CHECKING:
    from retrytemplate.attempt_timeout import AttemptTimeout
    from retrytemplate.attempts import Attempts
    from retrytemplate.backoff import (
        Backoff,
        ExponentialBackoff,
        FixedBackoff,
        NoBackoff,
        RetryAfterBackoff,
        UniformRandomBackoff,
    )
    from retrytemplate.caches import (
        MemoryRetryContextCache,
        RetryContextCache,
        SimpleCacheAdapter,
    )
    from retrytemplate.classify import ExceptionClassifier, PatternClassifier
    from retrytemplate.clock import Clock, SystemClock
    from retrytemplate.deadline import Deadline
    from retrytemplate.declarative import intercept, recover, retryable
    from retrytemplate.guards import Guard
    from retrytemplate.listeners import LoggingListener, RetryListener, StatisticsListener
    from retrytemplate.outcome import Outcome
    from retrytemplate.policies import (
        AlwaysRetryPolicy,
        CircuitBreakerRetryPolicy,
        CompositeRetryPolicy,
        ExceptionClassifierRetryPolicy,
        MaxAttemptsRetryPolicy,
        NeverRetryPolicy,
        PredicateRetryPolicy,
        ResultRetryPolicy,
        RetryPolicy,
        SimpleRetryPolicy,
        StatefulRetryPolicy,
        TimeoutRetryPolicy,
    )
    from retrytemplate.stores import (
        AsyncRedisRetryContextCache,
        AsyncSQLRetryContextCache,
        RedisRetryContextCache,
        SQLRetryContextCache,
    )

__getattr__ = lazily(
    __name__,
    {
        "retrytemplate.attempt_timeout": ("AttemptTimeout",),
        "retrytemplate.attempts": ("Attempts",),
        "retrytemplate.backoff": (
            "Backoff",
            "ExponentialBackoff",
            "FixedBackoff",
            "NoBackoff",
            "RetryAfterBackoff",
            "UniformRandomBackoff",
        ),
        "retrytemplate.caches": (
            "MemoryRetryContextCache",
            "RetryContextCache",
            "SimpleCacheAdapter",
        ),
        "retrytemplate.classify": ("ExceptionClassifier", "PatternClassifier"),
        "retrytemplate.clock": ("Clock", "SystemClock"),
        "retrytemplate.deadline": ("Deadline",),
        "retrytemplate.declarative": ("intercept", "recover", "retryable"),
        "retrytemplate.guards": ("Guard",),
        "retrytemplate.listeners": ("LoggingListener", "RetryListener", "StatisticsListener"),
        "retrytemplate.outcome": ("Outcome",),
        "retrytemplate.policies": (
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
        ),
        "retrytemplate.stores": (
            "AsyncRedisRetryContextCache",
            "AsyncSQLRetryContextCache",
            "RedisRetryContextCache",
            "SQLRetryContextCache",
        ),
    },
)

__all__ = [
    "AlreadyCompletedError",
    "AlwaysRetryPolicy",
    "AsyncRedisRetryContextCache",
    "AsyncSQLRetryContextCache",
    "AttemptInProgressError",
    "AttemptLostError",
    "AttemptRecord",
    "AttemptTimeout",
    "AttemptTimeoutError",
    "Attempts",
    "Backoff",
    "BackoffInterruptedError",
    "BoundTemplate",
    "BulkheadFullError",
    "CacheUnavailableError",
    "CircuitBreakerRetryPolicy",
    "CircuitOpenError",
    "Clock",
    "CompositeRetryPolicy",
    "Deadline",
    "DeadlineExceededError",
    "ExceptionClassifier",
    "ExceptionClassifierRetryPolicy",
    "ExhaustedRetryError",
    "ExponentialBackoff",
    "FixedBackoff",
    "Guard",
    "IdempotencyKeyReusedError",
    "IdempotencyRequiredError",
    "InconsistentKeyError",
    "KillSwitchActiveError",
    "LeaseLostError",
    "LoggingListener",
    "MaxAttemptsRetryPolicy",
    "MemoryRetryContextCache",
    "MissingExtraError",
    "MisuseError",
    "NestedRetryError",
    "NeverRetryPolicy",
    "NoBackoff",
    "Outcome",
    "PatternClassifier",
    "PredicateRetryPolicy",
    "RecordedFailure",
    "RedisRetryContextCache",
    "Rejected",
    "ResultRetryPolicy",
    "RetryAfterBackoff",
    "RetryBudgetExhaustedError",
    "RetryContext",
    "RetryContextCache",
    "RetryContextCacheFullError",
    "RetryError",
    "RetryLater",
    "RetryListener",
    "RetryPolicy",
    "RetryState",
    "RetryTemplate",
    "SQLRetryContextCache",
    "SimpleCacheAdapter",
    "SimpleRetryPolicy",
    "StatefulRetryPolicy",
    "StatisticsListener",
    "SwitchRefusedError",
    "SwitchStoreError",
    "SystemClock",
    "TerminatedRetryError",
    "TimeoutRetryPolicy",
    "TriggerRefusedError",
    "UnacceptableResultError",
    "UnboundedRetryWarning",
    "UniformRandomBackoff",
    "UnknownScopeError",
    "Veto",
    "current_context",
    "intercept",
    "recover",
    "retryable",
]
