"""Around the call: what keeps one failing part from taking the others with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._internal.imports import lazily

if TYPE_CHECKING:
    from retrytemplate.control.authentication import (
        AUTHENTICATION_ERRORS,
        AuthenticationAlert,
        AuthenticationFailed,
    )
    from retrytemplate.control.breaker import CircuitBreaker
    from retrytemplate.control.budget import BudgetSnapshot, RetryBudget
    from retrytemplate.control.bulkhead import Bulkhead, BulkheadSnapshot, Slot
    from retrytemplate.control.circuits.store import RedisCircuitStore
    from retrytemplate.control.client_errors import timeout_kind, timeouts_of
    from retrytemplate.control.clients import (
        aiohttp_timeout,
        httpx_timeout,
        requests_timeout,
        time_left,
    )
    from retrytemplate.control.codes import CodeClassifier, allowlist, mapped
    from retrytemplate.control.delays import backoff_delay
    from retrytemplate.control.events import (
        CallRejected,
        CircuitChanged,
        CircuitStoreBack,
        CircuitStoreLost,
        ControlEvent,
        ControlListener,
        LateResult,
        NestedRetry,
    )
    from retrytemplate.control.fallback import Fallback, FallbackOutcome, FellBack
    from retrytemplate.control.hedge import Hedge, HedgeOutcome
    from retrytemplate.control.hedge_events import (
        CallLeftBehind,
        CallLost,
        HedgeRefused,
        HedgeSnapshot,
        HedgeStarted,
        HedgeWon,
    )
    from retrytemplate.control.http import http_retry
    from retrytemplate.control.idempotency import (
        RequireIdempotency,
        idempotency_header,
        idempotency_key,
    )
    from retrytemplate.control.kinds import TRANSIENT_ERRORS, FailureKind, FailureKinds
    from retrytemplate.control.nesting import NestedRetries, Nesting
    from retrytemplate.control.nodes import (
        with_breaker,
        with_bulkhead,
        with_retry,
        with_switch,
        with_timeout,
    )
    from retrytemplate.control.operation import (
        Operation,
        OperationReplayed,
        OperationResult,
        OperationUnknown,
        OperationUnrecorded,
    )
    from retrytemplate.control.operations import Once, Operations
    from retrytemplate.control.permit import Permit
    from retrytemplate.control.pipeline import Pipeline
    from retrytemplate.control.presets import (
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
    from retrytemplate.control.propagation import Propagation
    from retrytemplate.control.quantile import Quantile
    from retrytemplate.control.recipe import Preset
    from retrytemplate.control.remarks import Remark
    from retrytemplate.control.service_errors import ServiceErrors
    from retrytemplate.control.snapshot import CircuitSnapshot
    from retrytemplate.control.sql_limits import statement_limit
    from retrytemplate.control.strategy import Strategy
    from retrytemplate.control.streams import StreamTimeout
    from retrytemplate.control.switch.audit import UnreadableRecord
    from retrytemplate.control.switch.entries import (
        AuditRecord,
        Decision,
        SwitchEntry,
    )
    from retrytemplate.control.switch.events import (
        SwitchChanged,
        SwitchStoreBack,
        SwitchStoreLost,
    )
    from retrytemplate.control.switch.guard import SwitchGuard
    from retrytemplate.control.switch.redis import RedisSwitchStore
    from retrytemplate.control.switch.report import (
        ReportLine,
        SwitchReport,
        SwitchSnapshot,
    )
    from retrytemplate.control.switch.scopes import SwitchScope
    from retrytemplate.control.switch.sql import SQLSwitchStore
    from retrytemplate.control.switch.stores import (
        MemorySwitchStore,
        StoredRecord,
        SwitchStore,
    )
    from retrytemplate.control.switch.switch import KillSwitch
    from retrytemplate.control.switch.triggers import (
        DEFAULT_TRIGGERS,
        HUMAN,
        Automatic,
    )
    from retrytemplate.control.timeout import TimedOut, Timeout
    from retrytemplate.control.transactions import OpenTransaction, in_transaction
    from retrytemplate.control.windows import Calls, Consecutive, Seconds

__getattr__ = lazily(
    __name__,
    {
        "retrytemplate.control.authentication": (
            "AUTHENTICATION_ERRORS",
            "AuthenticationAlert",
            "AuthenticationFailed",
        ),
        "retrytemplate.control.breaker": ("CircuitBreaker",),
        "retrytemplate.control.budget": (
            "BudgetSnapshot",
            "RetryBudget",
        ),
        "retrytemplate.control.bulkhead": (
            "Bulkhead",
            "BulkheadSnapshot",
            "Slot",
        ),
        "retrytemplate.control.circuits.store": ("RedisCircuitStore",),
        "retrytemplate.control.client_errors": (
            "timeout_kind",
            "timeouts_of",
        ),
        "retrytemplate.control.clients": (
            "aiohttp_timeout",
            "httpx_timeout",
            "requests_timeout",
            "time_left",
        ),
        "retrytemplate.control.codes": (
            "CodeClassifier",
            "allowlist",
            "mapped",
        ),
        "retrytemplate.control.delays": ("backoff_delay",),
        "retrytemplate.control.events": (
            "CallRejected",
            "CircuitChanged",
            "CircuitStoreBack",
            "CircuitStoreLost",
            "ControlEvent",
            "ControlListener",
            "LateResult",
            "NestedRetry",
        ),
        "retrytemplate.control.fallback": (
            "Fallback",
            "FallbackOutcome",
            "FellBack",
        ),
        "retrytemplate.control.hedge": (
            "Hedge",
            "HedgeOutcome",
        ),
        "retrytemplate.control.hedge_events": (
            "CallLeftBehind",
            "CallLost",
            "HedgeRefused",
            "HedgeSnapshot",
            "HedgeStarted",
            "HedgeWon",
        ),
        "retrytemplate.control.http": ("http_retry",),
        "retrytemplate.control.idempotency": (
            "RequireIdempotency",
            "idempotency_header",
            "idempotency_key",
        ),
        "retrytemplate.control.kinds": (
            "FailureKind",
            "FailureKinds",
            "TRANSIENT_ERRORS",
        ),
        "retrytemplate.control.nesting": (
            "NestedRetries",
            "Nesting",
        ),
        "retrytemplate.control.nodes": (
            "with_breaker",
            "with_bulkhead",
            "with_retry",
            "with_switch",
            "with_timeout",
        ),
        "retrytemplate.control.operation": (
            "Operation",
            "OperationReplayed",
            "OperationResult",
            "OperationUnknown",
            "OperationUnrecorded",
        ),
        "retrytemplate.control.operations": (
            "Once",
            "Operations",
        ),
        "retrytemplate.control.permit": ("Permit",),
        "retrytemplate.control.pipeline": ("Pipeline",),
        "retrytemplate.control.presets": (
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
        "retrytemplate.control.propagation": ("Propagation",),
        "retrytemplate.control.quantile": ("Quantile",),
        "retrytemplate.control.recipe": ("Preset",),
        "retrytemplate.control.remarks": ("Remark",),
        "retrytemplate.control.service_errors": ("ServiceErrors",),
        "retrytemplate.control.snapshot": ("CircuitSnapshot",),
        "retrytemplate.control.sql_limits": ("statement_limit",),
        "retrytemplate.control.strategy": ("Strategy",),
        "retrytemplate.control.streams": ("StreamTimeout",),
        "retrytemplate.control.switch.audit": ("UnreadableRecord",),
        "retrytemplate.control.switch.entries": (
            "AuditRecord",
            "Decision",
            "SwitchEntry",
        ),
        "retrytemplate.control.switch.events": (
            "SwitchChanged",
            "SwitchStoreBack",
            "SwitchStoreLost",
        ),
        "retrytemplate.control.switch.guard": ("SwitchGuard",),
        "retrytemplate.control.switch.redis": ("RedisSwitchStore",),
        "retrytemplate.control.switch.report": (
            "ReportLine",
            "SwitchReport",
            "SwitchSnapshot",
        ),
        "retrytemplate.control.switch.scopes": ("SwitchScope",),
        "retrytemplate.control.switch.sql": ("SQLSwitchStore",),
        "retrytemplate.control.switch.stores": (
            "MemorySwitchStore",
            "StoredRecord",
            "SwitchStore",
        ),
        "retrytemplate.control.switch.switch": ("KillSwitch",),
        "retrytemplate.control.switch.triggers": (
            "Automatic",
            "DEFAULT_TRIGGERS",
            "HUMAN",
        ),
        "retrytemplate.control.timeout": (
            "TimedOut",
            "Timeout",
        ),
        "retrytemplate.control.transactions": (
            "OpenTransaction",
            "in_transaction",
        ),
        "retrytemplate.control.windows": (
            "Calls",
            "Consecutive",
            "Seconds",
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
    "AuditRecord",
    "AuthenticationAlert",
    "AuthenticationFailed",
    "Automatic",
    "BudgetSnapshot",
    "Bulkhead",
    "BulkheadSnapshot",
    "CallLeftBehind",
    "CallLost",
    "CallRejected",
    "Calls",
    "CircuitBreaker",
    "CircuitChanged",
    "CircuitSnapshot",
    "CircuitStoreBack",
    "CircuitStoreLost",
    "CodeClassifier",
    "Consecutive",
    "ControlEvent",
    "ControlListener",
    "Decision",
    "FailureKind",
    "FailureKinds",
    "Fallback",
    "FallbackOutcome",
    "FellBack",
    "Hedge",
    "HedgeOutcome",
    "HedgeRefused",
    "HedgeSnapshot",
    "HedgeStarted",
    "HedgeWon",
    "KillSwitch",
    "LateResult",
    "MemorySwitchStore",
    "NestedRetries",
    "NestedRetry",
    "Nesting",
    "Once",
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
    "Remark",
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
    "SwitchStoreBack",
    "SwitchStoreLost",
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
