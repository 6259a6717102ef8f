"""Around the call: what keeps one failing part from taking the others with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._internal.imports import lazy_attributes

if TYPE_CHECKING:
    from retrytemplate.control._strategy import Strategy
    from retrytemplate.control.breaker.backend import CircuitSnapshot
    from retrytemplate.control.breaker.breaker import CircuitBreaker
    from retrytemplate.control.breaker.events import (
        CircuitChanged,
        CircuitStoreLost,
        CircuitStoreRecovered,
        LateResult,
    )
    from retrytemplate.control.breaker.permit import Permit
    from retrytemplate.control.breaker.redis.store import RedisCircuitStore
    from retrytemplate.control.breaker.window import Calls, Consecutive, Seconds
    from retrytemplate.control.budget.budget import BudgetSnapshot, RetryBudget
    from retrytemplate.control.bulkhead.bulkhead import Bulkhead, BulkheadSnapshot, Slot
    from retrytemplate.control.classification.authentication import (
        AUTHENTICATION_ERRORS,
        AuthenticationAlert,
        AuthenticationFailed,
    )
    from retrytemplate.control.classification.codes import CodeClassifier, allowlist, mapped
    from retrytemplate.control.classification.failure_kind import (
        TRANSIENT_ERRORS,
        FailureKind,
        FailureKinds,
    )
    from retrytemplate.control.classification.service_errors import ServiceErrors
    from retrytemplate.control.classification.timeouts import timeout_kind, timeouts_of
    from retrytemplate.control.events import CallRejected, ControlEvent, ControlListener
    from retrytemplate.control.fallback import Fallback, FallbackOutcome, FallbackUsed
    from retrytemplate.control.hedge.delay import Quantile
    from retrytemplate.control.hedge.events import (
        AttemptAbandoned,
        AttemptFailed,
        HedgeRefused,
        HedgeSnapshot,
        HedgeStarted,
        HedgeWon,
    )
    from retrytemplate.control.hedge.hedge import Hedge, HedgeOutcome
    from retrytemplate.control.http.client_timeouts import (
        aiohttp_timeout,
        httpx_timeout,
        requests_timeout,
        time_left,
    )
    from retrytemplate.control.http.retry import http_retry
    from retrytemplate.control.idempotency.keys import (
        RequireIdempotency,
        idempotency_header,
        idempotency_key,
    )
    from retrytemplate.control.idempotency.operation import (
        Operation,
        OperationReplayed,
        OperationResult,
        OperationUnknown,
        OperationUnrecorded,
    )
    from retrytemplate.control.idempotency.operations import IdempotentExecution, Operations
    from retrytemplate.control.langgraph.nodes import (
        with_breaker,
        with_bulkhead,
        with_retry,
        with_switch,
        with_timeout,
    )
    from retrytemplate.control.pipeline.lint import LintWarning
    from retrytemplate.control.pipeline.pipeline import Pipeline
    from retrytemplate.control.presets.catalog import (
        AIOHTTP,
        FAST_IO,
        HTTPX,
        OPENAI,
        POSTGRESQL,
        PRESETS,
        REDIS,
        REQUESTS,
        SLOW_IO,
        STREAMING,
        STRICT,
        preset,
        register,
        strict,
    )
    from retrytemplate.control.presets.jitter import backoff_delay
    from retrytemplate.control.presets.preset import Preset
    from retrytemplate.control.propagation.nesting import NestedRetries, NestedRetry, Nesting
    from retrytemplate.control.propagation.propagation import Propagation
    from retrytemplate.control.sql.statement_timeout import statement_limit
    from retrytemplate.control.sql.transactions import OpenTransaction, in_transaction
    from retrytemplate.control.switch.events import (
        SwitchChanged,
        SwitchStoreLost,
        SwitchStoreRecovered,
    )
    from retrytemplate.control.switch.guard import SwitchGuard
    from retrytemplate.control.switch.model import (
        AuditRecord,
        Decision,
        SwitchEntry,
        SwitchScope,
        UnreadableRecord,
    )
    from retrytemplate.control.switch.report import (
        ReportLine,
        SwitchReport,
        SwitchSnapshot,
    )
    from retrytemplate.control.switch.store.base import MemorySwitchStore, StoredRecord, SwitchStore
    from retrytemplate.control.switch.store.redis import RedisSwitchStore
    from retrytemplate.control.switch.store.sql import SQLSwitchStore
    from retrytemplate.control.switch.switch import KillSwitch
    from retrytemplate.control.switch.triggers import (
        DEFAULT_TRIGGERS,
        HUMAN,
        Automatic,
    )
    from retrytemplate.control.timeout.stream import StreamTimeout
    from retrytemplate.control.timeout.timeout import TimedOut, Timeout

__getattr__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.control._strategy": ("Strategy",),
        "retrytemplate.control.breaker.backend": ("CircuitSnapshot",),
        "retrytemplate.control.breaker.breaker": ("CircuitBreaker",),
        "retrytemplate.control.breaker.events": (
            "CircuitChanged",
            "CircuitStoreRecovered",
            "CircuitStoreLost",
            "LateResult",
        ),
        "retrytemplate.control.breaker.permit": ("Permit",),
        "retrytemplate.control.breaker.redis.store": ("RedisCircuitStore",),
        "retrytemplate.control.breaker.window": (
            "Calls",
            "Consecutive",
            "Seconds",
        ),
        "retrytemplate.control.budget.budget": (
            "BudgetSnapshot",
            "RetryBudget",
        ),
        "retrytemplate.control.bulkhead.bulkhead": (
            "Bulkhead",
            "BulkheadSnapshot",
            "Slot",
        ),
        "retrytemplate.control.classification.authentication": (
            "AUTHENTICATION_ERRORS",
            "AuthenticationAlert",
            "AuthenticationFailed",
        ),
        "retrytemplate.control.classification.codes": (
            "CodeClassifier",
            "allowlist",
            "mapped",
        ),
        "retrytemplate.control.classification.failure_kind": (
            "FailureKind",
            "FailureKinds",
            "TRANSIENT_ERRORS",
        ),
        "retrytemplate.control.classification.service_errors": ("ServiceErrors",),
        "retrytemplate.control.classification.timeouts": (
            "timeout_kind",
            "timeouts_of",
        ),
        "retrytemplate.control.events": (
            "CallRejected",
            "ControlEvent",
            "ControlListener",
        ),
        "retrytemplate.control.fallback": (
            "Fallback",
            "FallbackOutcome",
            "FallbackUsed",
        ),
        "retrytemplate.control.hedge.delay": ("Quantile",),
        "retrytemplate.control.hedge.events": (
            "AttemptAbandoned",
            "AttemptFailed",
            "HedgeRefused",
            "HedgeSnapshot",
            "HedgeStarted",
            "HedgeWon",
        ),
        "retrytemplate.control.hedge.hedge": (
            "Hedge",
            "HedgeOutcome",
        ),
        "retrytemplate.control.http.client_timeouts": (
            "aiohttp_timeout",
            "httpx_timeout",
            "requests_timeout",
            "time_left",
        ),
        "retrytemplate.control.http.retry": ("http_retry",),
        "retrytemplate.control.idempotency.keys": (
            "RequireIdempotency",
            "idempotency_header",
            "idempotency_key",
        ),
        "retrytemplate.control.idempotency.operation": (
            "Operation",
            "OperationReplayed",
            "OperationResult",
            "OperationUnknown",
            "OperationUnrecorded",
        ),
        "retrytemplate.control.idempotency.operations": (
            "IdempotentExecution",
            "Operations",
        ),
        "retrytemplate.control.langgraph.nodes": (
            "with_breaker",
            "with_bulkhead",
            "with_retry",
            "with_switch",
            "with_timeout",
        ),
        "retrytemplate.control.pipeline.lint": ("LintWarning",),
        "retrytemplate.control.pipeline.pipeline": ("Pipeline",),
        "retrytemplate.control.presets.catalog": (
            "AIOHTTP",
            "FAST_IO",
            "HTTPX",
            "OPENAI",
            "POSTGRESQL",
            "PRESETS",
            "REDIS",
            "REQUESTS",
            "SLOW_IO",
            "STREAMING",
            "STRICT",
            "preset",
            "register",
            "strict",
        ),
        "retrytemplate.control.presets.jitter": ("backoff_delay",),
        "retrytemplate.control.presets.preset": ("Preset",),
        "retrytemplate.control.propagation.nesting": (
            "NestedRetries",
            "NestedRetry",
            "Nesting",
        ),
        "retrytemplate.control.propagation.propagation": ("Propagation",),
        "retrytemplate.control.sql.statement_timeout": ("statement_limit",),
        "retrytemplate.control.sql.transactions": (
            "OpenTransaction",
            "in_transaction",
        ),
        "retrytemplate.control.switch.events": (
            "SwitchChanged",
            "SwitchStoreRecovered",
            "SwitchStoreLost",
        ),
        "retrytemplate.control.switch.guard": ("SwitchGuard",),
        "retrytemplate.control.switch.model": (
            "AuditRecord",
            "Decision",
            "SwitchEntry",
            "SwitchScope",
            "UnreadableRecord",
        ),
        "retrytemplate.control.switch.report": (
            "ReportLine",
            "SwitchReport",
            "SwitchSnapshot",
        ),
        "retrytemplate.control.switch.store.base": (
            "MemorySwitchStore",
            "StoredRecord",
            "SwitchStore",
        ),
        "retrytemplate.control.switch.store.redis": ("RedisSwitchStore",),
        "retrytemplate.control.switch.store.sql": ("SQLSwitchStore",),
        "retrytemplate.control.switch.switch": ("KillSwitch",),
        "retrytemplate.control.switch.triggers": (
            "Automatic",
            "DEFAULT_TRIGGERS",
            "HUMAN",
        ),
        "retrytemplate.control.timeout.stream": ("StreamTimeout",),
        "retrytemplate.control.timeout.timeout": (
            "TimedOut",
            "Timeout",
        ),
    },
)

__all__ = [
    "AIOHTTP",
    "AUTHENTICATION_ERRORS",
    "DEFAULT_TRIGGERS",
    "FAST_IO",
    "HTTPX",
    "HUMAN",
    "OPENAI",
    "POSTGRESQL",
    "PRESETS",
    "REDIS",
    "REQUESTS",
    "SLOW_IO",
    "STREAMING",
    "STRICT",
    "TRANSIENT_ERRORS",
    "AttemptAbandoned",
    "AttemptFailed",
    "AuditRecord",
    "AuthenticationAlert",
    "AuthenticationFailed",
    "Automatic",
    "BudgetSnapshot",
    "Bulkhead",
    "BulkheadSnapshot",
    "CallRejected",
    "Calls",
    "CircuitBreaker",
    "CircuitChanged",
    "CircuitSnapshot",
    "CircuitStoreLost",
    "CircuitStoreRecovered",
    "CodeClassifier",
    "Consecutive",
    "ControlEvent",
    "ControlListener",
    "Decision",
    "FailureKind",
    "FailureKinds",
    "Fallback",
    "FallbackOutcome",
    "FallbackUsed",
    "Hedge",
    "HedgeOutcome",
    "HedgeRefused",
    "HedgeSnapshot",
    "HedgeStarted",
    "HedgeWon",
    "IdempotentExecution",
    "KillSwitch",
    "LateResult",
    "LintWarning",
    "MemorySwitchStore",
    "NestedRetries",
    "NestedRetry",
    "Nesting",
    "OpenTransaction",
    "Operation",
    "OperationReplayed",
    "OperationResult",
    "OperationUnknown",
    "OperationUnrecorded",
    "Operations",
    "Permit",
    "Pipeline",
    "Preset",
    "Propagation",
    "Quantile",
    "RedisCircuitStore",
    "RedisSwitchStore",
    "ReportLine",
    "RequireIdempotency",
    "RetryBudget",
    "SQLSwitchStore",
    "Seconds",
    "ServiceErrors",
    "Slot",
    "StoredRecord",
    "Strategy",
    "StreamTimeout",
    "SwitchChanged",
    "SwitchEntry",
    "SwitchGuard",
    "SwitchReport",
    "SwitchScope",
    "SwitchSnapshot",
    "SwitchStore",
    "SwitchStoreLost",
    "SwitchStoreRecovered",
    "TimedOut",
    "Timeout",
    "UnreadableRecord",
    "aiohttp_timeout",
    "allowlist",
    "backoff_delay",
    "http_retry",
    "httpx_timeout",
    "idempotency_header",
    "idempotency_key",
    "in_transaction",
    "mapped",
    "preset",
    "register",
    "requests_timeout",
    "statement_limit",
    "strict",
    "time_left",
    "timeout_kind",
    "timeouts_of",
    "with_breaker",
    "with_bulkhead",
    "with_retry",
    "with_switch",
    "with_timeout",
]
