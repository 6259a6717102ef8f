"""The circuit breaker: rejects calls after too many failures, then admits a few trial calls."""

from __future__ import annotations

import logging
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, overload
from weakref import ref

from attrs import field, fields, frozen
from attrs.validators import optional

from retrytemplate._internal.awaitables import is_awaitable
from retrytemplate._internal.formatting import format_count, format_limit
from retrytemplate._internal.validation import (
    check_at_least,
    check_at_least_one,
    check_methods,
    check_number,
    check_span,
    check_text,
    check_text_or_none,
    checked_by,
    instance_of,
    read_seconds,
    to_seconds,
)
from retrytemplate.classify.exceptions import is_never_retried
from retrytemplate.clock import SystemClock, fast_monotonic
from retrytemplate.control._fields import Observed
from retrytemplate.control._predicates import exception_predicate
from retrytemplate.control._strategy import (
    StrategyBase,
    apply_async,
    immutable,
    reject_awaitable,
    returns_result,
)
from retrytemplate.control.breaker.backend import LocalBackend
from retrytemplate.control.breaker.permit import CircuitCalls, Permit, notify_if_alive
from retrytemplate.control.breaker.state_machine import CircuitConfig
from retrytemplate.control.breaker.window import Calls, Consecutive, Seconds
from retrytemplate.errors import MisuseError
from retrytemplate.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retrytemplate._internal.validation import Seconds as Duration
    from retrytemplate.control._strategy import P, T
    from retrytemplate.control.breaker.backend import CircuitSnapshot
    from retrytemplate.control.breaker.permit import CircuitBackend
    from retrytemplate.control.breaker.redis.store import RedisCircuitStore
    from retrytemplate.control.breaker.state_machine import State

LOG = logging.getLogger("retrytemplate.control")
MINIMUM_CALLS, FAILURE_RATE, SLOW_RATE = 10, 0.3, 1.0
RATES = {"minimum_calls": MINIMUM_CALLS, "failure_rate": FAILURE_RATE, "slow_rate": SLOW_RATE}


def _rate(name: str, value: Any) -> None:
    check_number(name, value, "a share above 0 and up to 1", lambda share: 0.0 < share <= 1.0)


def _growth(name: str, value: Any) -> None:
    check_number(name, value, "between 1 and 100", lambda factor: 1.0 <= factor <= 100.0)


def _store(name: str, value: Any) -> None:
    if value is None:
        return
    from retrytemplate.control.breaker.redis.store import RedisCircuitStore

    if not isinstance(value, RedisCircuitStore):
        raise TypeError(f"{name} must be a RedisCircuitStore or None, got {value!r}")


def _draw_jitter_factor(name: str, jitter: float, random: Any, before: float | None) -> float:
    """The factor of the next open time; the previous one if the random source raises."""
    try:
        return 1.0 + jitter * float(random.random())
    except Exception:
        if before is None:
            raise
        LOG.exception(
            "the random source of circuit breaker %r failed; the previous jitter factor is used",
            name,
        )
        return before


async def _call_within_permit(
    permit: Permit, fn: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Call the function with a permit that a store may have to grant.

    Only for a store: without one a coroutine more would cost as much as the permit.
    """
    async with permit:
        return await apply_async(fn, *args, **kwargs)


@immutable()
@frozen(eq=False, kw_only=True)
class CircuitBreaker(Observed, StrategyBase):
    """Stops calling what keeps failing, and finds out later whether it works again.

    Closed: calls are made and counted.  Open, after too many failures: every call is rejected at
    once with ``CircuitOpenError``.  Half-open, when the time is over: a few calls are made; enough
    successes close the circuit, one failure opens it again.

    :param name: name of the called service; in errors and events.
    :param window: the calls that are counted: ``Calls(n)``, ``Seconds(n)`` or ``Consecutive(n)``.
    :param minimum_calls: calls in the window before a rate is compared; default 10.
    :param failure_rate: the share of failures that opens it.
    :param failures: what counts as one: exception classes, a predicate, or an
        ``ExceptionClassifier``.  Other exceptions are *ignored*: they count for nothing.  So are
        rejections by other guards (``Rejected``), unless they are named; and cancellations.
    :param slow_call: seconds from which a call is slow, whether it fails or not; None: none is.
    :param slow_rate: the share of slow calls that opens it.
    :param reset_timeout: seconds for which it is open.
    :param reset_jitter: the open time is extended by a random share of at most this, so that
        clients do not return at the same time.
    :param reset_growth: what the open time is multiplied by each time it opens again without a
        close between, up to *reset_maximum* seconds.
    :param half_open_calls: concurrent trial calls while half-open; default 3.
    :param required_successes: successful trial calls, none slow, that close it; default 3.
    :param permit_timeout: seconds after which the permit of a half-open trial call without a result
        is released; None: as *reset_timeout*.
    :param listeners: notified of changes, rejections and late results.
    :param store: a ``RedisCircuitStore``, where the circuit is shared with the breakers of the same
        name in other processes; None: it is of this process alone.
    :param clock: measures.
    :param random: the random source: an object with ``random()``.
    :raises ValueError: a number is out of its range.

    A result counts only in the state in which its call was admitted; a later one changes nothing.
    No lock is held while a function of yours runs.

    >>> from retrytemplate import CircuitOpenError
    >>> breaker = CircuitBreaker("billing", window=Consecutive(2), reset_timeout=30)
    >>> for text in ("17", "x", "y"):
    ...     print(breaker.outcome(int, text).ok, breaker.state)
    True closed
    False closed
    False open
    >>> try:
    ...     breaker.call(int, "17")
    ... except CircuitOpenError as error:
    ...     print(error.name, error.retry_after > 29)
    billing True

    Modelled on ``CircuitBreaker`` of Resilience4j and Polly.
    """

    name: str = field(kw_only=False, validator=checked_by(check_text))
    window: Calls | Seconds | Consecutive = field(
        default=Calls(50),
        validator=instance_of((Calls, Seconds, Consecutive), "Calls, Seconds or Consecutive"),
    )
    minimum_calls: int = field(default=MINIMUM_CALLS, validator=checked_by(check_at_least_one))
    failure_rate: float = field(default=FAILURE_RATE, validator=checked_by(_rate))
    failures: Any = (Exception,)
    slow_call: float | None = field(
        default=None, converter=to_seconds, validator=optional(checked_by(check_span))
    )
    slow_rate: float = field(default=SLOW_RATE, validator=checked_by(_rate))
    reset_timeout: float = field(
        default=30.0, converter=to_seconds, validator=checked_by(check_span)
    )
    reset_jitter: float = field(default=0.2, validator=checked_by(check_at_least, 0.0, finite=True))
    reset_growth: float = field(default=1.0, validator=checked_by(_growth))
    reset_maximum: float = field(
        default=3600.0, converter=to_seconds, validator=checked_by(check_span)
    )
    half_open_calls: int = field(default=3, validator=checked_by(check_at_least_one))
    required_successes: int = field(default=3, validator=checked_by(check_at_least_one))
    permit_timeout: float | None = field(
        default=None, converter=to_seconds, validator=optional(checked_by(check_span))
    )
    store: RedisCircuitStore | None = field(default=None, validator=checked_by(_store))
    random: Any = field(
        default=None, validator=optional(checked_by(check_methods, "random")), repr=False
    )
    _backend: CircuitBackend = field(init=False, repr=False)
    _calls: CircuitCalls = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.window, Consecutive):
            for name, usual in RATES.items():
                if getattr(self, name) != usual:
                    raise ValueError(
                        f"{name} must be left out with {self.window!r}, "
                        f"got {getattr(self, name)!r}: consecutive failures have no rate"
                    )
        elif isinstance(self.window, Calls) and self.minimum_calls > self.window.number:
            raise ValueError(
                f"minimum_calls must be at most the {self.window.number} calls of the window, "
                f"got {self.minimum_calls!r}"
            )
        if self.slow_call is None and self.slow_rate != SLOW_RATE:
            raise ValueError(
                f"slow_rate must be left out without slow_call, got {self.slow_rate!r}"
            )
        store = partial(object.__setattr__, self)
        if self.random is None:
            from random import Random

            store("random", Random())
        calls = CircuitCalls(
            self.name,
            fast_monotonic(self.clock),
            inf if self.slow_call is None else self.slow_call,
            exception_predicate("failures", self.failures, rejections=False),
            self.listeners,
        )
        settings = {each.name: getattr(self, each.name) for each in fields(CircuitConfig)}
        settings["permit_timeout"] = self.permit_timeout or self.reset_timeout
        rules = CircuitConfig(**settings)
        jitter = partial(_draw_jitter_factor, self.name, self.reset_jitter, self.random)
        if self.store is None:
            calls.backend = LocalBackend(rules, jitter)
        else:
            from retrytemplate.control.breaker.redis.cached import CachedRedisBackend
            from retrytemplate.control.breaker.redis.strict import StrictRedisBackend

            kind = StrictRedisBackend if self.store.mode == "strict" else CachedRedisBackend
            notify = partial(notify_if_alive, ref(calls))
            key = self.store.circuit_key(self.name, rules, self.slow_call)
            calls.backend = kind(self.store, key, rules, jitter, calls.monotonic, notify)
        store("_calls", calls)
        store("_backend", calls.backend)
        self._track()

    # Calls.

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, if that may be.

        :raises CircuitOpenError: it may not.
        :raises CircuitStoreError: the store is unavailable, and has ``on_store_error="raise"``.
        """
        with Permit(self._calls):
            value = fn(*args, **kwargs)
            reject_awaitable(value, fn)
            return value

    @returns_result
    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, and await it, if that may be.

        :raises CircuitOpenError: it may not.
        """
        if self._backend.does_io:
            return await _call_within_permit(Permit(self._calls), fn, args, kwargs)
        with Permit(self._calls):
            value = fn(*args, **kwargs)
            return await value if is_awaitable(value) else value

    def outcome(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
        """Call the function if the circuit admits it; return the outcome, raise no ``Exception``.

        This is the fastest form of a rejection: nothing is raised.
        """
        permit = Permit(self._calls)
        refused = permit.acquire()
        if refused is not None:
            return Outcome(None, refused, 0, (), 0.0, "rejected")
        try:
            with permit:
                value = fn(*args, **kwargs)
                reject_awaitable(value, fn)
        except BaseException as exc:
            if is_never_retried(exc):
                raise
            return Outcome(None, exc, 1, (), permit.elapsed)
        return Outcome(value, None, 1, (), permit.elapsed)

    @overload
    async def outcome_async(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T]: ...

    @overload
    async def outcome_async(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T]: ...

    async def outcome_async(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Outcome[Any]:
        """The same for functions that may be asynchronous."""
        permit = Permit(self._calls)
        refused = await permit.acquire_async() if self._backend.does_io else permit.acquire()
        if refused is not None:
            return Outcome(None, refused, 0, (), 0.0, "rejected")
        try:
            if self._backend.does_io:
                value = await _call_within_permit(permit, fn, args, kwargs)
            else:
                with permit:
                    value = fn(*args, **kwargs)
                    if is_awaitable(value):
                        value = await value
        except BaseException as exc:
            if is_never_retried(exc):
                raise
            return Outcome(None, exc, 1, (), permit.elapsed)
        return Outcome(value, None, 1, (), permit.elapsed)

    def permit(self) -> Permit:
        """The block form: ``with breaker.permit():``, or ``async with``.

        >>> breaker = CircuitBreaker("billing")
        >>> with breaker.permit():
        ...     number = int("17")
        >>> breaker.snapshot().calls
        1
        """
        return Permit(self._calls)

    def _function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """While the circuit is closed no permit is created, and a success takes no lock."""
        calls, fast_path, timed = self._calls, self._backend.fast_path, self._is_timed()
        monotonic, slow = calls.monotonic, calls.slow
        kind = type(None)  # of the last result: a value of this class is no awaitable

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal kind
            counter = fast_path.closed
            if counter is None:
                return self.call(fn, *args, **kwargs)
            began = monotonic.now() if timed else 0.0
            try:
                value = fn(*args, **kwargs)
                if type(value) is not kind:
                    reject_awaitable(value, fn)
                    kind = type(value)
            except BaseException as exc:
                calls.complete(counter.generation, 0, began, exc)
                raise
            ended = monotonic.now() if timed else 0.0
            if ended - began < slow and ended < counter.fast_path_until:
                next(counter.fast_successes)
            else:
                calls.report(counter.generation, 0, began, monotonic.now(), "success")
            return value

        return wrapped

    def _coroutine(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        calls, fast_path, timed = self._calls, self._backend.fast_path, self._is_timed()
        monotonic, slow = calls.monotonic, calls.slow

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            counter = fast_path.closed
            if counter is None:
                return await self.call_async(fn, *args, **kwargs)
            began = monotonic.now() if timed else 0.0
            try:
                value = await fn(*args, **kwargs)
            except BaseException as exc:
                await calls.complete_async(counter.generation, 0, began, exc)
                raise
            ended = monotonic.now() if timed else 0.0
            if ended - began < slow and ended < counter.fast_path_until:
                next(counter.fast_successes)
            else:
                await calls.report_async(counter.generation, 0, began, monotonic.now(), "success")
            return value

        return wrapped

    def _is_timed(self) -> bool:
        """Whether a success depends on the time."""
        return self.slow_call is not None or isinstance(self.window, Seconds)

    def describe(self) -> str:
        """Its effect on a call, with its numbers."""
        window, slow = self.window, ""
        if isinstance(window, Consecutive):
            threshold, share = format_count(window.number, "consecutive failure"), ""
        else:
            back = (
                f"{window.number} calls"
                if isinstance(window, Calls)
                else format_limit(window.seconds)
            )
            threshold = (
                f"{self.failure_rate:.0%} failures in the last {back}, among "
                f"{format_count(self.minimum_calls, 'call')} at least,"
            )
            share = f"{self.slow_rate:.0%} of "
        if self.slow_call is not None:
            slow = f" or {share}calls slower than {format_limit(self.slow_call)}"
        return (
            f"after {threshold}{slow} calls are rejected for {format_limit(self.reset_timeout)} or "
            f"slightly longer; then {format_count(self.half_open_calls, 'trial call')} at once: "
            f"{self.required_successes} that succeed close it"
        )

    # Looking, and by hand.

    @property
    def state(self) -> State:
        """The present state of the circuit."""
        return self.snapshot().state

    def snapshot(self) -> CircuitSnapshot:
        """The present state and counts."""
        shown = self._backend.snapshot(self.name, self._calls.monotonic.now())
        self._calls.notify()
        return shown

    def close(self) -> None:
        """Send the unreported results to the store, and stop the poller; no effect without one."""
        self._backend.close()

    def force_open(self, *, by: str, reason: str, seconds: Duration | None = None) -> None:
        """Reject every call until ``reset``.

        :param by: who does it, and *reason*: why; both are in events and in the snapshot.
        :param seconds: when it ends by itself, closed; None: never.
        """
        self._force_state("forced_open", by, reason, seconds)

    def disable(self, *, by: str, reason: str, seconds: Duration | None = None) -> None:
        """Make every call, count none."""
        self._force_state("disabled", by, reason, seconds)

    def only_measure(self, *, by: str, reason: str, seconds: Duration | None = None) -> None:
        """Make every call and count it; never open."""
        self._force_state("metrics_only", by, reason, seconds)

    def reset(self, *, by: str | None = None, reason: str | None = None) -> None:
        """Close it, as if it were new."""
        check_text_or_none("by", by)
        check_text_or_none("reason", reason)
        self._set_state("closed", by, reason, None)

    def restore_state_from(self, other: CircuitBreaker) -> None:
        """Continue the state of another breaker of this process, such as one that this replaces.

        Taken over are the state, its end, who forced it and why.  The window is taken over if both
        have equal windows and one clock; else it is empty.  Results of calls in progress are late.

        :param other: a breaker of this process; it is not changed.
        :raises TypeError: it is not a ``CircuitBreaker``.
        :raises MisuseError: one of both has a store, which holds its state.

        >>> old = CircuitBreaker("billing", window=Consecutive(1))
        >>> old.outcome(int, "x").ok
        False
        >>> new = CircuitBreaker("billing", window=Consecutive(1), half_open_calls=1)
        >>> new.restore_state_from(old)
        >>> new.state
        'open'
        """
        if not isinstance(other, CircuitBreaker):
            raise TypeError(f"other must be a CircuitBreaker, got {other!r}")
        if self.store is not None or other.store is not None:
            raise MisuseError("the state of a breaker with a store is in the store")
        ours: Any = self._backend
        theirs: Any = other._backend
        if ours is theirs:
            return
        now, same = self._calls.monotonic.now(), self.window == other.window
        one_clock = self.clock is other.clock or (
            type(self.clock) is SystemClock and type(other.clock) is SystemClock
        )
        saved = theirs.saved(other._calls.monotonic.now())
        ours.restore(saved, now, same and one_clock)
        self._calls.notify()

    def _force_state(self, state: State, by: str, reason: str, seconds: Duration | None) -> None:
        check_text("by", by)
        check_text("reason", reason)
        length = None if seconds is None else read_seconds("seconds", seconds, check_span)
        self._set_state(state, by, reason, length)

    def _set_state(
        self, state: State, by: str | None, reason: str | None, seconds: float | None
    ) -> None:
        self._backend.force_state(state, by, reason, seconds, self._calls.monotonic.now())
        self._calls.notify()
