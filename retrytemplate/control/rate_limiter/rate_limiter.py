"""The rate limiter: a limit of calls per time; the others wait or are rejected."""

from __future__ import annotations

from math import isinf
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen
from attrs.validators import optional

from retrytemplate._internal.awaitables import is_awaitable
from retrytemplate._internal.formatting import format_count, format_limit
from retrytemplate._internal.validation import (
    check_at_least,
    check_at_least_one,
    check_choice,
    check_delay,
    check_span,
    check_text,
    checked_by,
    instance_of,
    read_seconds,
    to_seconds,
)
from retrytemplate.clock import fast_monotonic, given_or_system
from retrytemplate.control._fields import HasListeners
from retrytemplate.control._strategy import (
    StrategyBase,
    immutable,
    reject_awaitable,
    returns_result,
)
from retrytemplate.control.rate_limiter.admission import Admission
from retrytemplate.control.rate_limiter.gcra import GCRA
from retrytemplate.guards import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from retrytemplate._engine.context import RetryContext
    from retrytemplate._internal.validation import Seconds
    from retrytemplate.control._strategy import P, T
    from retrytemplate.control.rate_limiter.redis.store import RedisRateLimitStore


@frozen(kw_only=True)
class RateLimiterSnapshot:
    """State and counts of a rate limiter.

    :param permits: the rate, ``permits`` in ``per`` seconds, and its ``burst``.
    :param available: permits that are free at once; with a limit per key those of an unused key.
    :param waiting: calls that wait.
    :param keys: how many keys have a state; ``evicted``: how many lost it, since there were too
        many.
    :param admitted: calls that got their permits, ``delayed`` of them after a wait; ``rejected``:
        those that did not, so far.
    """

    name: str
    permits: int
    per: float
    burst: int
    available: int
    waiting: int
    keys: int
    admitted: int
    delayed: int
    rejected: int
    evicted: int


def _finite_span(name: str, value: Any) -> None:
    check_span(name, value)
    check_delay(name, value)


def _permits(name: str, value: Any) -> None:
    check_at_least_one(name, value)
    check_at_least(name, value, 1, allowed="an int >= 1", finite=True)


CHECKS = {"permits": _permits, "per": _finite_span, "burst": _permits, "max_wait": check_delay}


def _store(name: str, value: Any) -> None:
    if value is None:
        return
    from retrytemplate.control.rate_limiter.redis.store import RedisRateLimitStore

    if not isinstance(value, RedisRateLimitStore):
        raise TypeError(f"{name} must be a RedisRateLimitStore or None, got {value!r}")


@frozen(eq=False, repr=False)
class RateLimiterGuard(Guard):
    """Takes permits before every attempt, and none for a recovery; see ``RateLimiter.guard``."""

    name: str
    _admission: Admission
    _tokens: int
    _key: Any

    def admit(self, context: RetryContext) -> None:
        """Wait for the permits of an attempt.

        :raises RateLimitedError: they are not free in time.
        """
        self._admission.acquire(self._tokens, self._key_of(context))

    async def admit_async(self, context: RetryContext) -> None:
        """The same for a task."""
        await self._admission.acquire_async(self._tokens, self._key_of(context))

    def _key_of(self, context: RetryContext) -> Any:
        return self._key(context) if callable(self._key) else self._key

    def __repr__(self) -> str:
        return f"<RateLimiterGuard {self.name!r}>"


@immutable(**dict.fromkeys(CHECKS, "use resize()"))
@frozen(eq=False)
class RateLimiter(HasListeners, StrategyBase):
    """Limits the calls per time, so that a dependency gets no more than it allows.

    :param name: name of the called service; in errors and events.
    :param permits: sustained rate, ``permits`` in ``per`` seconds; default 50, at least 1.
    :param per: seconds; default 1.0, above 0.
    :param burst: permits that are free at once after a pause; at least 1, which spaces the calls
        evenly; None, the default: as many as ``permits``.
    :param max_wait: seconds that a call waits for its permits, at most; less where a ``Deadline``
        leaves less; default 0: it is rejected at once.
    :param per_key: whether each key has a limit of its own; default False.
    :param max_keys: keys with a state; beyond it the oldest is forgotten; default 100,000.
    :param store: a ``RedisRateLimitStore``, where the limiters of this name in all processes share
        one limit; None, the default: this process alone.
    :param on_store_error: while the store is unavailable, "local", the default: each process
        applies the full limit by itself, so that the sum may exceed it; or "raise":
        ``RateLimitStoreError``.
    :param listeners: notified of rejections, delays and outages of the store.
    :param clock: measures, and sleeps; None, the default: the clock of the system.
    :raises ValueError: a number is out of its range.

    Threads and tasks, of asyncio and trio, share it, in the order of their arrival.  A call that
    has to wait reserves its permits; if it is cancelled meanwhile, it returns them.

    >>> from retrytemplate import RateLimitedError
    >>> from retrytemplate.testing import VirtualClock
    >>> limiter = RateLimiter("billing", permits=2, per=60, clock=VirtualClock())
    >>> limiter.call(int, "17"), limiter.try_acquire(), limiter.try_acquire()
    (17, True, False)
    >>> try:
    ...     limiter.acquire()
    ... except RateLimitedError as error:
    ...     print(error.retry_after)
    30.0

    Source: the generic cell rate algorithm (GCRA).
    """

    name: str = field(validator=checked_by(check_text))
    permits: int = field(default=50, kw_only=True, validator=checked_by(_permits))
    per: float = field(
        default=1.0, kw_only=True, converter=to_seconds, validator=checked_by(_finite_span)
    )
    burst: int | None = field(default=None, kw_only=True, validator=optional(checked_by(_permits)))
    max_wait: float = field(
        default=0.0, kw_only=True, converter=to_seconds, validator=checked_by(check_delay)
    )
    per_key: bool = field(default=False, kw_only=True, validator=instance_of(bool, "True or False"))
    max_keys: int = field(default=100_000, kw_only=True, validator=checked_by(check_at_least_one))
    store: RedisRateLimitStore | None = field(
        default=None, kw_only=True, validator=checked_by(_store)
    )
    on_store_error: str = field(
        default="local", kw_only=True, validator=checked_by(check_choice, "local", "raise")
    )
    clock: Any = field(default=None, kw_only=True, converter=given_or_system, repr=False)
    _admission: Admission = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        rate, shared = self._rate(self.permits, self.per, self.burst), None
        if self.store is not None:
            from retrytemplate.control.rate_limiter.redis.shared import SharedLimit

            settings = self.store, self.name, self.on_store_error == "local", rate
            shared = SharedLimit(*settings, fast_monotonic(self.clock), self.listeners)
        admission = Admission(
            self.name,
            f"{self.permits} per {format_limit(self.per)}",
            self.max_wait,
            self.per_key,
            self.listeners,
            self.clock,
            GCRA(*rate, self.max_keys),
            shared,
        )
        object.__setattr__(self, "_admission", admission)
        self._track()

    def _rate(self, permits: int, per: float, burst: int | None) -> tuple[float, int]:
        interval, burst = per / permits, permits if burst is None else burst
        if not interval or isinf(burst * interval):
            shown = f"{permits}, {per}, {burst}"
            raise ValueError(f"permits, per and burst must be closer, got {shown}")
        return interval, burst

    # By hand.

    def acquire(self, tokens: int = 1, *, key: Hashable = None) -> None:
        """Take permits, and wait for them if they are free in time.

        :param tokens: how many; default 1, at most the burst.
        :param key: whose limit applies, with ``per_key``; None: that of calls without a key.
        :raises RateLimitedError: they are not free in time; ``retry_after`` is the time until then.
        :raises ValueError: there are more tokens than the burst.
        :raises MisuseError: there is a key, and no limit per key.

        >>> limiter = RateLimiter("llm", permits=1000, per=86_400)  # a day
        >>> limiter.acquire(800)
        >>> limiter.snapshot().available
        200
        """
        if not (key is None and tokens == 1 and self._admission.take()):
            self._admission.acquire(tokens, key)

    async def acquire_async(self, tokens: int = 1, *, key: Hashable = None) -> None:
        """The same for a task of asyncio or trio."""
        if not (key is None and tokens == 1 and self._admission.take()):
            await self._admission.acquire_async(tokens, key)

    def try_acquire(self, tokens: int = 1, *, key: Hashable = None) -> bool:
        """Take permits if they are free now; whether it did."""
        admission = self._admission
        fast = key is None and tokens == 1 and admission.take()
        return fast or admission.try_acquire(tokens, key)

    def close(self) -> None:
        """End the thread that polls an unavailable store, if there is one."""
        if self._admission.shared is not None:
            self._admission.shared.close()

    def pause(self, seconds: Seconds) -> None:
        """Hold back all calls, of all keys, for that time, as a response 429 asks for.

        Calls that wait are held back, too, or rejected if that is longer than they may wait.  At
        the end no burst follows: the first permit is free one interval later.

        :param seconds: at least 0; a shorter pause does not end a longer one.

        >>> limiter = RateLimiter("billing")
        >>> limiter.pause(30.0)
        >>> limiter.try_acquire()
        False
        """
        self._admission.pause(read_seconds("seconds", seconds))

    def resize(
        self,
        *,
        permits: int | None = None,
        per: Seconds | None = None,
        burst: int | None = None,
        max_wait: Seconds | None = None,
    ) -> None:
        """Change the rate at once; free permits stay free, at most those of the new burst.

        Calls that wait get other moments, in the same order, or are rejected if those are too late.

        :param permits, per, burst, max_wait: as those of the limiter; None, the default: unchanged.
        :raises ValueError: a number is out of its range.

        >>> limiter = RateLimiter("billing", permits=10, per=60)
        >>> limiter.resize(permits=20)
        >>> limiter.snapshot().available
        10
        """
        changed: dict[str, Any] = {"permits": permits, "per": to_seconds(per), "burst": burst}
        changed["max_wait"] = to_seconds(max_wait)
        for name, value in changed.items():
            if value is None:
                changed[name] = getattr(self, name)
            else:
                CHECKS[name](name, value)
        rate = self._rate(changed["permits"], changed["per"], changed["burst"])
        for name, value in changed.items():
            object.__setattr__(self, name, value)
        self._admission.resize(self.permits, self.per, self.max_wait, *rate)

    def snapshot(self) -> RateLimiterSnapshot:
        """The present state and counts; with a store its free permits, and counts of this process.

        :raises RateLimitStoreError: the store is unavailable, and has ``on_store_error="raise"``.
        """
        admission = self._admission
        now = admission.monotonic.now()
        admission.monitor.post(admission.limits.expire, now, self.max_keys)
        shown = admission.monitor.read(self._shown, now)
        record = None if admission.shared is None else admission.shared.fetch()
        if record is None:
            return shown
        return evolve(shown, available=record.available(self.per / self.permits, shown.burst))

    def _shown(self, now: float) -> RateLimiterSnapshot:
        limits = self._admission.limits
        return RateLimiterSnapshot(
            name=self.name,
            permits=self.permits,
            per=self.per,
            burst=limits.burst,
            available=limits.available(limits.single, now),
            waiting=limits.waiting,
            keys=len(limits.buckets),
            admitted=limits.admitted,
            delayed=limits.delayed,
            rejected=limits.rejected,
            evicted=limits.evicted,
        )

    def guard(
        self, *, tokens: int = 1, key: Hashable | Callable[[RetryContext], Hashable] = None
    ) -> RateLimiterGuard:
        """A guard for templates: each attempt takes permits, and a recovery none.

        :param tokens: permits of an attempt; default 1.
        :param key: whose limit applies, or a function of the context that returns it.

        >>> from retrytemplate import RetryTemplate
        >>> limiter = RateLimiter("billing")
        >>> template = RetryTemplate(guards=[limiter.guard()])
        >>> template.call(int, "17"), limiter.snapshot().admitted
        (17, 1)
        """
        self._admission.check(tokens, None)
        if key is not None:
            self._admission.check_key()
        return RateLimiterGuard(self.name, self._admission, tokens, key)

    # Calls.

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function with a permit.

        :raises RateLimitedError: no permit is free in time.
        """
        self.acquire()
        value = fn(*args, **kwargs)
        reject_awaitable(value, fn)
        return value

    @returns_result
    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, with a permit, and await it."""
        await self.acquire_async()
        value = fn(*args, **kwargs)
        return await value if is_awaitable(value) else value

    def _function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        take, acquire = self._admission.take, self._admission.acquire
        kind = type(None)  # of the last result: of this class none has to be awaited

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal kind
            if not take():
                acquire(1, None)
            value = fn(*args, **kwargs)
            if type(value) is not kind:
                reject_awaitable(value, fn)
                kind = type(value)
            return value

        return wrapped

    def _coroutine(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        take, acquire = self._admission.take, self._admission.acquire_async

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not take():
                await acquire(1, None)
            return await fn(*args, **kwargs)

        return wrapped

    def describe(self) -> str:
        """Its effect on a call, with its rate."""
        wait = (
            f"the next wait up to {format_limit(self.max_wait)}" if self.max_wait else "none waits"
        )
        keys = " for each key" if self.per_key else ""
        rate = f"{format_count(self.permits, 'call')} per {format_limit(self.per)}{keys}"
        return f"{rate}, at most {self._admission.limits.burst} at the same moment, {wait}"

    def worst_case(self, inside: float, call: float, late: float) -> float:
        """The longest call after the longest wait."""
        return inside + self.max_wait
