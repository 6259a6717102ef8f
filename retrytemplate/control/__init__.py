"""Resilience strategies: they keep the failure of one component from spreading to others."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.control._strategy": "Strategy",
        "retrytemplate.control.breaker.backend": "CircuitSnapshot",
        "retrytemplate.control.breaker.breaker": "CircuitBreaker",
        "retrytemplate.control.breaker.events": (
            "CircuitChanged CircuitStoreLost CircuitStoreRecovered LateResult"
        ),
        "retrytemplate.control.breaker.permit": "Permit",
        "retrytemplate.control.breaker.redis.store": "RedisCircuitStore",
        "retrytemplate.control.breaker.window": "Calls Consecutive Seconds",
        "retrytemplate.control.budget.budget": "BudgetSnapshot RetryBudget",
        "retrytemplate.control.bulkhead.bulkhead": "Bulkhead BulkheadSnapshot Slot",
        "retrytemplate.control.classification.authentication": (
            "AUTHENTICATION_ERRORS AuthenticationAlert AuthenticationFailed"
        ),
        "retrytemplate.control.classification.codes": "CodeClassifier allowlist mapped",
        "retrytemplate.control.classification.failure_kind": (
            "FailureKind FailureKinds TRANSIENT_ERRORS"
        ),
        "retrytemplate.control.classification.service_errors": "ServiceErrors",
        "retrytemplate.control.classification.timeouts": "timeout_kind timeouts_of",
        "retrytemplate.control.events": "CallRejected ControlEvent ControlListener",
        "retrytemplate.control.fallback": "Fallback FallbackOutcome FallbackUsed PrimaryAnswered",
        "retrytemplate.control.hedge.delay": "Quantile",
        "retrytemplate.control.hedge.events": (
            "AttemptAbandoned AttemptFailed HedgeRefused HedgeSnapshot HedgeStarted HedgeWon"
        ),
        "retrytemplate.control.hedge.hedge": "Hedge HedgeOutcome",
        "retrytemplate.control.http.client_timeouts": (
            "aiohttp_timeout httpx_timeout requests_timeout time_left"
        ),
        "retrytemplate.control.http.retry": "http_retry",
        "retrytemplate.control.http.status": "http_status",
        "retrytemplate.control.idempotency.keys": (
            "RequireIdempotency idempotency_header idempotency_key"
        ),
        "retrytemplate.control.idempotency.operation": (
            "Operation OperationReplayed OperationResult OperationUnknown OperationUnrecorded"
        ),
        "retrytemplate.control.idempotency.operations": "IdempotentExecution Operations",
        "retrytemplate.control.isolation_gate.gate": "GateEntry GateSnapshot HostGate ProcessGate",
        "retrytemplate.control.langgraph.nodes": (
            "with_breaker with_bulkhead with_retry with_switch with_timeout"
        ),
        "retrytemplate.control.pipeline.lint": "LintWarning",
        "retrytemplate.control.pipeline.pipeline": "Pipeline",
        "retrytemplate.control.presets.catalog": (
            "AIOHTTP FAST_IO HTTPX OPENAI POSTGRESQL PRESETS REDIS REQUESTS SLOW_IO STREAMING "
            "STRICT preset register strict"
        ),
        "retrytemplate.control.presets.jitter": "backoff_delay",
        "retrytemplate.control.presets.preset": "Preset",
        "retrytemplate.control.propagation.nesting": "NestedRetries NestedRetry Nesting",
        "retrytemplate.control.propagation.propagation": "Propagation",
        "retrytemplate.control.rate_limiter.events": (
            "CallDelayed RateLimitStoreLost RateLimitStoreRecovered"
        ),
        "retrytemplate.control.rate_limiter.rate_limiter": (
            "RateLimiter RateLimiterGuard RateLimiterSnapshot"
        ),
        "retrytemplate.control.rate_limiter.redis.store": "RedisRateLimitStore",
        "retrytemplate.control.sql.statement_timeout": "statement_limit",
        "retrytemplate.control.sql.transactions": "OpenTransaction in_transaction",
        "retrytemplate.control.switch.events": "SwitchChanged SwitchStoreLost SwitchStoreRecovered",
        "retrytemplate.control.switch.guard": "SwitchGuard",
        "retrytemplate.control.switch.model": (
            "AuditRecord Decision SwitchEntry SwitchScope UnreadableRecord"
        ),
        "retrytemplate.control.switch.report": "ReportLine SwitchReport SwitchSnapshot",
        "retrytemplate.control.switch.store.base": "MemorySwitchStore StoredRecord SwitchStore",
        "retrytemplate.control.switch.store.redis": "RedisSwitchStore",
        "retrytemplate.control.switch.store.sql": "SQLSwitchStore",
        "retrytemplate.control.switch.switch": "KillSwitch",
        "retrytemplate.control.switch.triggers": "Automatic DEFAULT_TRIGGERS HUMAN",
        "retrytemplate.control.timeout.stream": "StreamTimeout",
        "retrytemplate.control.timeout.timeout": "TimedOut Timeout",
    },
)
