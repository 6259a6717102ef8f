"""The kinds of sections: constructors, settings and notations.

This table drives reading, the JSON Schema and the table of keys in the documentation.  Defaults,
ranges and meanings are those of the constructors.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._engine.attempt_timeout import AttemptTimeout
from retrytemplate._internal.validation import check_span, checked_by, to_seconds
from retrytemplate.config.parameters import Choice, Names, Nested, Parameter, parameters
from retrytemplate.config.readers import (
    DURATION,
    FLAG,
    FUNCTION,
    NULL,
    NUMBER,
    SHARE,
    TEXT,
    Classes,
    LevelsByType,
    ListOf,
    OneOf,
    Reference,
    Whole,
    Word,
)
from retrytemplate.control.breaker.breaker import CircuitBreaker
from retrytemplate.control.breaker.redis.store import RedisCircuitStore
from retrytemplate.control.breaker.window import Calls, Consecutive, Seconds
from retrytemplate.control.budget.budget import RetryBudget
from retrytemplate.control.bulkhead.bulkhead import Bulkhead
from retrytemplate.control.fallback import Fallback
from retrytemplate.control.hedge.delay import Quantile
from retrytemplate.control.hedge.hedge import Hedge
from retrytemplate.control.presets.preset import BY_REQUEST, Preset
from retrytemplate.control.rate_limiter.rate_limiter import RateLimiter
from retrytemplate.control.rate_limiter.redis.store import RedisRateLimitStore
from retrytemplate.control.switch.model import NAMED_KINDS
from retrytemplate.control.switch.store.redis import RedisSwitchStore
from retrytemplate.control.switch.store.sql import SQLSwitchStore
from retrytemplate.control.switch.switch import KillSwitch
from retrytemplate.control.timeout.timeout import Timeout
from retrytemplate.observe.alerts.slo import SLO, BurnRule, BurnRules, Latency
from retrytemplate.observe.installation import install
from retrytemplate.observe.sinks.log import LogSink
from retrytemplate.observe.sinks.sql import SQLEventSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@frozen(kw_only=True)
class Sizing:
    """The limit of a bulkhead from the expected load (Little's law).

    :param calls_per_second: expected calls per second, above 0.
    :param duration: expected duration of a call, above 0.
    :param headroom: factor for peaks, above 0; default 1.

    >>> Sizing(calls_per_second=40, duration=0.25, headroom=1.5).limit
    15
    """

    calls_per_second: float = field(validator=checked_by(check_span, "a number > 0"))
    duration: float = field(converter=to_seconds, validator=checked_by(check_span))
    headroom: float = field(default=1.0, validator=checked_by(check_span, "a number > 0"))

    @property
    def limit(self) -> int:
        """The product, rounded up."""
        return ceil(round(self.calls_per_second * self.duration * self.headroom, 9))


def _unchanged(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return values


@frozen(eq=False, kw_only=True)
class Kind:
    """A kind of section.

    :param section: name of the section.
    :param constructor: takes the settings as arguments, and the endpoint's name as ``name``.
    :param parameters: settings of ``defaults`` and of an endpoint.
    :param own: settings of the section itself.
    :param samples: arguments that the constructor needs if it gets one setting alone.
    :param exclusive: settings that replace each other: at most one of them per mapping.
    :param adapt: turns the settings into arguments of the constructor.
    """

    section: str
    constructor: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    own: tuple[Parameter, ...] = ()
    samples: Mapping[str, Any] = {}
    exclusive: tuple[str, ...] = ()
    adapt: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _unchanged


ON_ERRORS = Classes()
DELAY = OneOf(
    DURATION,
    Nested(
        Quantile,
        q=NUMBER,
        initial=OneOf(NULL, DURATION),
        minimum=Whole(1),
        window=Whole(1),
        floor=DURATION,
    ),
)
SIZING = Nested(Sizing, calls_per_second=NUMBER, duration=DURATION, headroom=NUMBER)
ATTEMPT_TIMEOUT = OneOf(
    NULL,
    DURATION,
    Nested(
        AttemptTimeout, seconds=DURATION, in_thread=FLAG, on_late_result=Word("return", "discard")
    ),
)


PRESET_SETTINGS = parameters(
    Preset,
    retry_on=Classes(),
    max_attempts=Whole(1),
    attempt_timeout=ATTEMPT_TIMEOUT,
    initial=DURATION,
    multiplier=NUMBER,
    maximum=DURATION,
    jitter=OneOf(NULL, Word("full", "equal", "decorrelated", "spring"), DURATION),
    give_up_above=OneOf(NULL, DURATION),
    idempotent=OneOf(NULL, FLAG, Word(BY_REQUEST)),
    budget=FLAG,
    strict=FLAG,
)
RETRY = Kind(
    section="retry",
    constructor=Preset,
    parameters=(
        Parameter("preset", TEXT, "the preset whose settings are the defaults", None),
        *PRESET_SETTINGS,
    ),
)
PRESETS = Kind(
    section="presets",
    constructor=Preset,
    parameters=(
        Parameter("base", TEXT, "the preset whose settings are the defaults", None),
        *PRESET_SETTINGS,
    ),
)
TIMEOUT = Kind(
    section="timeout",
    constructor=Timeout,
    parameters=parameters(
        Timeout,
        seconds=DURATION,
        kind=TEXT,
        floor=DURATION,
        on_late_result=Word("return", "discard"),
    ),
    samples={"seconds": 1.0},
)
BREAKER = Kind(
    section="breaker",
    constructor=CircuitBreaker,
    parameters=parameters(
        CircuitBreaker,
        window=Choice(
            calls=(Calls, Whole(1)),
            seconds=(Seconds, DURATION),
            consecutive=(Consecutive, Whole(1)),
        ),
        minimum_calls=Whole(1),
        failure_rate=SHARE,
        failures=ON_ERRORS,
        slow_call=OneOf(NULL, DURATION),
        slow_rate=SHARE,
        reset_timeout=DURATION,
        reset_jitter=SHARE,
        reset_growth=NUMBER,
        reset_maximum=DURATION,
        half_open_calls=Whole(1),
        required_successes=Whole(1),
        permit_timeout=OneOf(NULL, DURATION),
        store=Reference("breaker"),
    ),
    # No setting contradicts these.
    samples={"window": Seconds(60.0), "slow_call": 1.0},
)
RATE_LIMITER = Kind(
    section="rate_limiter",
    constructor=RateLimiter,
    parameters=parameters(
        RateLimiter,
        permits=Whole(1),
        per=DURATION,
        burst=OneOf(NULL, Whole(1)),
        max_wait=DURATION,
        store=Reference("rate_limiter"),
        on_store_error=Word("local", "raise"),
    ),
)


def _sized(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a bulkhead."""
    made = dict(values)
    sizing = made.pop("sizing", None)
    return made if sizing is None else {**made, "limit": sizing.limit}


BULKHEAD = Kind(
    section="bulkhead",
    constructor=Bulkhead,
    parameters=(
        *parameters(Bulkhead, limit=Whole(1), queue=Whole(0), max_wait=DURATION),
        Parameter("sizing", SIZING, "the limit as a product, rounded up", None),
    ),
    exclusive=("limit", "sizing"),
    adapt=_sized,
)
BUDGET = Kind(
    section="budget",
    constructor=RetryBudget,
    parameters=parameters(RetryBudget, ratio=SHARE, min_per_second=NUMBER, ttl=DURATION),
)
HEDGE = Kind(
    section="hedge",
    constructor=Hedge,
    parameters=parameters(Hedge, delay=DELAY, max_hedges=Whole(1), idempotent=FLAG, on=ON_ERRORS),
    samples={"idempotent": True},
)


def _fallback(links: tuple[Any, ...], **settings: Any) -> Fallback:
    return Fallback(*links, **settings)


FALLBACK = Kind(
    section="fallback",
    constructor=_fallback,
    parameters=(
        Parameter("links", ListOf(FUNCTION), "registered functions, in the order of their use"),
        *parameters(Fallback, on=ON_ERRORS, accept=OneOf(NULL, FUNCTION)),
    ),
    samples={"links": (_unchanged,)},
)


def _guard(switch: KillSwitch | None = None, name: str = "", **scopes: str) -> Any:
    return (switch or KillSwitch()).guard(**scopes)


SWITCH = Kind(
    section="switch",
    constructor=_guard,
    parameters=tuple(
        Parameter(each, OneOf(NULL, TEXT), f"the checked {each}", None) for each in NAMED_KINDS
    ),
    own=(
        Parameter("store", Reference("switch"), "the store of the kill switch"),
        *parameters(
            KillSwitch,
            stale_after=DURATION,
            unknown=Word("stop", "run"),
            scopes=Names(*NAMED_KINDS),
        ),
    ),
)

LAYERS = (SWITCH, FALLBACK, TIMEOUT, RETRY, HEDGE, BREAKER, RATE_LIMITER, BULKHEAD)
"""The kinds of layers, the outermost first."""
LAYER_NAMES = tuple(each.section for each in LAYERS)
PIPELINE = Kind(
    section="pipeline",
    constructor=dict,
    parameters=(
        Parameter(
            "order",
            ListOf(Word(*LAYER_NAMES)),
            "the layers, the outermost first; every layer of the endpoint once",
            LAYER_NAMES,
        ),
    ),
)

LATENCY = Nested(Latency, p95=OneOf(NULL, DURATION), p99=OneOf(NULL, DURATION))
BURN = Nested(BurnRule, long=DURATION, short=DURATION, factor=NUMBER)
SLOS = Kind(
    section="slo",
    constructor=SLO,
    parameters=parameters(
        SLO,
        availability=SHARE,
        latency=OneOf(NULL, LATENCY),
        error_rate=OneOf(NULL, SHARE),
        window=DURATION,
        burn=Nested(BurnRules, page=BURN, ticket=BURN),
        min_calls=Whole(1),
    ),
    samples={"availability": 0.999},
)

STORE_CLASSES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "redis": {
        "breaker": RedisCircuitStore,
        "rate_limiter": RedisRateLimitStore,
        "switch": RedisSwitchStore,
    },
    "sql": {"switch": SQLSwitchStore},
}
"""The classes of the kinds of stores, by the section that uses the store."""
STORES = Kind(
    section="stores",
    constructor=RedisCircuitStore,
    parameters=(
        Parameter("kind", Word(*STORE_CLASSES), "the kind of the server"),
        Parameter("url", TEXT, "URL of the server or database"),
        Parameter("prefix", TEXT, "prefix of the keys or tables", "retry"),
        *parameters(
            RedisCircuitStore,
            timeout=DURATION,
            mode=Word("strict", "cached"),
            stale_after=DURATION,
            on_store_error=Word("local", "raise"),
        ),
    ),
)


@frozen
class Alerts:
    """The evaluation of objectives and rules in this process.

    :param every: seconds between two evaluations, above 0; default 60.
    """

    every: float = field(default=60.0, converter=to_seconds, validator=checked_by(check_span))


EVENTS = Nested(SQLEventSink, url=TEXT, prefix=TEXT, keep=DURATION, timeout=DURATION)
LOGS = OneOf(
    NULL,
    Word("logging", "structlog"),
    Nested(LogSink, logger=TEXT, levels=LevelsByType()),
)
OBSERVE = Kind(
    section="observe",
    constructor=install,
    parameters=(
        *parameters(install, logs=LOGS, prometheus=FLAG, otel=FLAG),
        Parameter("events", OneOf(NULL, EVENTS), "the database of the events", None),
        Parameter(
            "alerts",
            OneOf(FLAG, Nested(Alerts, every=DURATION)),
            "whether objectives and rules raise alerts in this process",
            default=False,
        ),
    ),
)
"""The observer of the process; this section has no endpoints."""

KINDS = {each.section: each for each in (*LAYERS, BUDGET, PIPELINE, SLOS)}
"""The kinds of sections with ``defaults`` and ``endpoints``."""
SECTIONS = ("version", "stores", "presets", *KINDS, OBSERVE.section)
