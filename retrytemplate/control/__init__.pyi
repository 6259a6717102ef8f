# The types of the public names; __init__.py imports them on first use.

from retrytemplate.control._strategy import Strategy as Strategy
from retrytemplate.control.breaker.backend import CircuitSnapshot as CircuitSnapshot
from retrytemplate.control.breaker.breaker import CircuitBreaker as CircuitBreaker
from retrytemplate.control.breaker.events import CircuitChanged as CircuitChanged
from retrytemplate.control.breaker.events import CircuitStoreLost as CircuitStoreLost
from retrytemplate.control.breaker.events import CircuitStoreRecovered as CircuitStoreRecovered
from retrytemplate.control.breaker.events import LateResult as LateResult
from retrytemplate.control.breaker.permit import Permit as Permit
from retrytemplate.control.breaker.redis.store import RedisCircuitStore as RedisCircuitStore
from retrytemplate.control.breaker.window import Calls as Calls
from retrytemplate.control.breaker.window import Consecutive as Consecutive
from retrytemplate.control.breaker.window import Seconds as Seconds
from retrytemplate.control.budget.budget import BudgetSnapshot as BudgetSnapshot
from retrytemplate.control.budget.budget import RetryBudget as RetryBudget
from retrytemplate.control.bulkhead.bulkhead import Bulkhead as Bulkhead
from retrytemplate.control.bulkhead.bulkhead import BulkheadSnapshot as BulkheadSnapshot
from retrytemplate.control.bulkhead.bulkhead import Slot as Slot
from retrytemplate.control.classification.authentication import (
    AUTHENTICATION_ERRORS as AUTHENTICATION_ERRORS,
)
from retrytemplate.control.classification.authentication import (
    AuthenticationAlert as AuthenticationAlert,
)
from retrytemplate.control.classification.authentication import (
    AuthenticationFailed as AuthenticationFailed,
)
from retrytemplate.control.classification.codes import CodeClassifier as CodeClassifier
from retrytemplate.control.classification.codes import allowlist as allowlist
from retrytemplate.control.classification.codes import mapped as mapped
from retrytemplate.control.classification.failure_kind import TRANSIENT_ERRORS as TRANSIENT_ERRORS
from retrytemplate.control.classification.failure_kind import FailureKind as FailureKind
from retrytemplate.control.classification.failure_kind import FailureKinds as FailureKinds
from retrytemplate.control.classification.service_errors import ServiceErrors as ServiceErrors
from retrytemplate.control.classification.timeouts import timeout_kind as timeout_kind
from retrytemplate.control.classification.timeouts import timeouts_of as timeouts_of
from retrytemplate.control.events import CallRejected as CallRejected
from retrytemplate.control.events import ControlEvent as ControlEvent
from retrytemplate.control.events import ControlListener as ControlListener
from retrytemplate.control.fallback import Fallback as Fallback
from retrytemplate.control.fallback import FallbackOutcome as FallbackOutcome
from retrytemplate.control.fallback import FallbackUsed as FallbackUsed
from retrytemplate.control.fallback import PrimaryAnswered as PrimaryAnswered
from retrytemplate.control.hedge.delay import Quantile as Quantile
from retrytemplate.control.hedge.events import AttemptAbandoned as AttemptAbandoned
from retrytemplate.control.hedge.events import AttemptFailed as AttemptFailed
from retrytemplate.control.hedge.events import HedgeRefused as HedgeRefused
from retrytemplate.control.hedge.events import HedgeSnapshot as HedgeSnapshot
from retrytemplate.control.hedge.events import HedgeStarted as HedgeStarted
from retrytemplate.control.hedge.events import HedgeWon as HedgeWon
from retrytemplate.control.hedge.hedge import Hedge as Hedge
from retrytemplate.control.hedge.hedge import HedgeOutcome as HedgeOutcome
from retrytemplate.control.http.client_timeouts import aiohttp_timeout as aiohttp_timeout
from retrytemplate.control.http.client_timeouts import httpx_timeout as httpx_timeout
from retrytemplate.control.http.client_timeouts import requests_timeout as requests_timeout
from retrytemplate.control.http.client_timeouts import time_left as time_left
from retrytemplate.control.http.retry import http_retry as http_retry
from retrytemplate.control.http.status import http_status as http_status
from retrytemplate.control.idempotency.keys import RequireIdempotency as RequireIdempotency
from retrytemplate.control.idempotency.keys import idempotency_header as idempotency_header
from retrytemplate.control.idempotency.keys import idempotency_key as idempotency_key
from retrytemplate.control.idempotency.operation import Operation as Operation
from retrytemplate.control.idempotency.operation import OperationReplayed as OperationReplayed
from retrytemplate.control.idempotency.operation import OperationResult as OperationResult
from retrytemplate.control.idempotency.operation import OperationUnknown as OperationUnknown
from retrytemplate.control.idempotency.operation import OperationUnrecorded as OperationUnrecorded
from retrytemplate.control.idempotency.operations import IdempotentExecution as IdempotentExecution
from retrytemplate.control.idempotency.operations import Operations as Operations
from retrytemplate.control.isolation_gate.gate import GateEntry as GateEntry
from retrytemplate.control.isolation_gate.gate import GateSnapshot as GateSnapshot
from retrytemplate.control.isolation_gate.gate import HostGate as HostGate
from retrytemplate.control.isolation_gate.gate import ProcessGate as ProcessGate
from retrytemplate.control.langgraph.nodes import with_breaker as with_breaker
from retrytemplate.control.langgraph.nodes import with_bulkhead as with_bulkhead
from retrytemplate.control.langgraph.nodes import with_retry as with_retry
from retrytemplate.control.langgraph.nodes import with_switch as with_switch
from retrytemplate.control.langgraph.nodes import with_timeout as with_timeout
from retrytemplate.control.pipeline.lint import LintWarning as LintWarning
from retrytemplate.control.pipeline.pipeline import Pipeline as Pipeline
from retrytemplate.control.presets.catalog import AIOHTTP as AIOHTTP
from retrytemplate.control.presets.catalog import FAST_IO as FAST_IO
from retrytemplate.control.presets.catalog import HTTPX as HTTPX
from retrytemplate.control.presets.catalog import OPENAI as OPENAI
from retrytemplate.control.presets.catalog import POSTGRESQL as POSTGRESQL
from retrytemplate.control.presets.catalog import PRESETS as PRESETS
from retrytemplate.control.presets.catalog import REDIS as REDIS
from retrytemplate.control.presets.catalog import REQUESTS as REQUESTS
from retrytemplate.control.presets.catalog import SLOW_IO as SLOW_IO
from retrytemplate.control.presets.catalog import STREAMING as STREAMING
from retrytemplate.control.presets.catalog import STRICT as STRICT
from retrytemplate.control.presets.catalog import preset as preset
from retrytemplate.control.presets.catalog import register as register
from retrytemplate.control.presets.catalog import strict as strict
from retrytemplate.control.presets.jitter import backoff_delay as backoff_delay
from retrytemplate.control.presets.preset import Preset as Preset
from retrytemplate.control.propagation.nesting import NestedRetries as NestedRetries
from retrytemplate.control.propagation.nesting import NestedRetry as NestedRetry
from retrytemplate.control.propagation.nesting import Nesting as Nesting
from retrytemplate.control.propagation.propagation import Propagation as Propagation
from retrytemplate.control.rate_limiter.events import CallDelayed as CallDelayed
from retrytemplate.control.rate_limiter.events import RateLimitStoreLost as RateLimitStoreLost
from retrytemplate.control.rate_limiter.events import (
    RateLimitStoreRecovered as RateLimitStoreRecovered,
)
from retrytemplate.control.rate_limiter.rate_limiter import RateLimiter as RateLimiter
from retrytemplate.control.rate_limiter.rate_limiter import RateLimiterGuard as RateLimiterGuard
from retrytemplate.control.rate_limiter.rate_limiter import (
    RateLimiterSnapshot as RateLimiterSnapshot,
)
from retrytemplate.control.rate_limiter.redis.store import (
    RedisRateLimitStore as RedisRateLimitStore,
)
from retrytemplate.control.sql.statement_timeout import statement_limit as statement_limit
from retrytemplate.control.sql.transactions import OpenTransaction as OpenTransaction
from retrytemplate.control.sql.transactions import in_transaction as in_transaction
from retrytemplate.control.switch.events import SwitchChanged as SwitchChanged
from retrytemplate.control.switch.events import SwitchStoreLost as SwitchStoreLost
from retrytemplate.control.switch.events import SwitchStoreRecovered as SwitchStoreRecovered
from retrytemplate.control.switch.guard import SwitchGuard as SwitchGuard
from retrytemplate.control.switch.model import AuditRecord as AuditRecord
from retrytemplate.control.switch.model import Decision as Decision
from retrytemplate.control.switch.model import SwitchEntry as SwitchEntry
from retrytemplate.control.switch.model import SwitchScope as SwitchScope
from retrytemplate.control.switch.model import UnreadableRecord as UnreadableRecord
from retrytemplate.control.switch.report import ReportLine as ReportLine
from retrytemplate.control.switch.report import SwitchReport as SwitchReport
from retrytemplate.control.switch.report import SwitchSnapshot as SwitchSnapshot
from retrytemplate.control.switch.store.base import MemorySwitchStore as MemorySwitchStore
from retrytemplate.control.switch.store.base import StoredRecord as StoredRecord
from retrytemplate.control.switch.store.base import SwitchStore as SwitchStore
from retrytemplate.control.switch.store.redis import RedisSwitchStore as RedisSwitchStore
from retrytemplate.control.switch.store.sql import SQLSwitchStore as SQLSwitchStore
from retrytemplate.control.switch.switch import KillSwitch as KillSwitch
from retrytemplate.control.switch.triggers import DEFAULT_TRIGGERS as DEFAULT_TRIGGERS
from retrytemplate.control.switch.triggers import HUMAN as HUMAN
from retrytemplate.control.switch.triggers import Automatic as Automatic
from retrytemplate.control.timeout.stream import StreamTimeout as StreamTimeout
from retrytemplate.control.timeout.timeout import TimedOut as TimedOut
from retrytemplate.control.timeout.timeout import Timeout as Timeout
