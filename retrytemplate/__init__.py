"""Retry that remembers: across attempts, transactions, redeliveries and crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._engine.context import RetryContext, current_context
from retrytemplate._internal.imports import lazy_attributes
from retrytemplate.errors import (
    AlreadyCompletedError,
    AttemptInProgressError,
    AttemptLostError,
    AttemptTimeoutError,
    BackoffInterruptedError,
    BulkheadFullError,
    CacheUnavailableError,
    CircuitOpenError,
    CircuitStoreError,
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
    UnsafeRetryError,
    Veto,
)
from retrytemplate.history import AttemptRecord
from retrytemplate.state import RetryState
from retrytemplate.template import BoundTemplate, RetryTemplate

if TYPE_CHECKING:
    from retrytemplate._engine.attempt_timeout import AttemptTimeout
    from retrytemplate._engine.block import Attempts
    from retrytemplate._engine.deadline import Deadline
    from retrytemplate.backends import (
        AsyncRedisRetryContextCache,
        AsyncSQLRetryContextCache,
        RedisRetryContextCache,
        SQLRetryContextCache,
    )
    from retrytemplate.backoff import (
        Backoff,
        ExponentialBackoff,
        FixedBackoff,
        NoBackoff,
        RetryAfterBackoff,
        UniformRandomBackoff,
    )
    from retrytemplate.caches import MemoryRetryContextCache, RetryContextCache
    from retrytemplate.classify import ExceptionClassifier, PatternClassifier
    from retrytemplate.clock import Clock, SystemClock
    from retrytemplate.declarative import intercept, recover, retryable
    from retrytemplate.guards import Guard
    from retrytemplate.history import Outcome, StopReason
    from retrytemplate.listeners import LoggingListener, RetryListener, StatisticsListener
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

__getattr__ = lazy_attributes(
    __name__,
    {
        "retrytemplate._engine.attempt_timeout": ("AttemptTimeout",),
        "retrytemplate._engine.block": ("Attempts",),
        "retrytemplate._engine.deadline": ("Deadline",),
        "retrytemplate.backends": (
            "AsyncRedisRetryContextCache",
            "AsyncSQLRetryContextCache",
            "RedisRetryContextCache",
            "SQLRetryContextCache",
        ),
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
        ),
        "retrytemplate.classify": (
            "ExceptionClassifier",
            "PatternClassifier",
        ),
        "retrytemplate.clock": (
            "Clock",
            "SystemClock",
        ),
        "retrytemplate.declarative": (
            "intercept",
            "recover",
            "retryable",
        ),
        "retrytemplate.guards": ("Guard",),
        "retrytemplate.history": (
            "Outcome",
            "StopReason",
        ),
        "retrytemplate.listeners": (
            "LoggingListener",
            "RetryListener",
            "StatisticsListener",
        ),
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
    "CircuitStoreError",
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
    "SimpleRetryPolicy",
    "StatefulRetryPolicy",
    "StatisticsListener",
    "StopReason",
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
    "UnsafeRetryError",
    "Veto",
    "current_context",
    "intercept",
    "recover",
    "retryable",
]
