"""Operations that have their effect once: a key is reserved first, and completed with a result."""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from attrs import field, frozen
from attrs.validators import optional

from retrytemplate._engine.drivers import ASYNC, SYNC, perform, perform_async
from retrytemplate._engine.entry import reject_blocking_cache
from retrytemplate._internal.validation import (
    check_function,
    check_methods,
    check_span,
    check_text,
    checked_by,
    instance_of,
    to_seconds,
)
from retrytemplate.caches.base import METHODS
from retrytemplate.caches.memory import MemoryRetryContextCache
from retrytemplate.control._fields import HasListeners
from retrytemplate.control._strategy import StrategyBase, apply_async, reject_awaitable
from retrytemplate.control.events import notify_listeners
from retrytemplate.control.idempotency.operation import (
    Operation,
    OperationResult,
    OperationUnrecorded,
)
from retrytemplate.control.idempotency.reservation import Reservation, most_severe
from retrytemplate.errors import CacheUnavailableError, MisuseError
from retrytemplate.state import encode_key, scope_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.control._strategy import P
    from retrytemplate.control.events import ControlEvent
    from retrytemplate.control.idempotency.keys import OperationScope
    from retrytemplate.control.idempotency.reservation import Steps


def _check_cache(name: str, value: Any) -> None:
    check_methods(name, value, *METHODS)
    parameters = signature(value.succeed).parameters
    if "record" not in parameters and not any(
        each.kind is each.VAR_KEYWORD for each in parameters.values()
    ):
        raise TypeError(f"{name} must keep a result: succeed() needs the parameter record")


def _or_in_memory(cache: Any) -> Any:
    return MemoryRetryContextCache() if cache is None else cache


def _check_lookup(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function of the key or None, got {value!r}")


@frozen(eq=False)
class Operations(HasListeners):
    """A store of operations: a completed operation is not executed again.

    :param cache: where they are kept: a context cache; one that outlives the process and is shared,
        where operations do.  None: in memory.
    :param ttl: seconds for which a result is remembered; a number or a ``timedelta``.
    :param lease: seconds after which another process may begin the operation of a crashed one;
        None: the cache's own.  A durable cache renews it while the process lives.
    :param lookup: called by ``call`` if it is unknown whether an earlier attempt had its effect: a
        function of the key that gives an ``OperationResult``, or None: it had not.
    :param name: in events, and the scope of the keys in a shared cache.
    :param listeners: notified of operations that are replayed, of unknown outcome, or unrecorded.
    :raises TypeError: not a cache, or one that keeps no result.
    :raises ValueError: for a time that is not above 0.

    >>> operations = Operations()
    >>> operations.call("order-17/charge", lambda: {"receipt": 1})
    {'receipt': 1}
    >>> operations.call("order-17/charge", lambda: {"receipt": 2})
    {'receipt': 1}
    """

    cache: Any = field(
        default=None,
        converter=_or_in_memory,
        validator=checked_by(_check_cache),
    )
    ttl: float = field(default=86_400.0, converter=to_seconds, validator=checked_by(check_span))
    lease: float | None = field(
        default=None, kw_only=True, converter=to_seconds, validator=optional(checked_by(check_span))
    )
    lookup: Any = field(default=None, kw_only=True, validator=checked_by(_check_lookup))
    name: str = field(default="operations", kw_only=True, validator=checked_by(check_text))

    def scoped_key(self, key: Any) -> str:
        """The name of *key* in the cache; no template's key is like it.

        >>> Operations(name="payments").scoped_key("order-17")
        'payments/operation/s:order-17'
        """
        return f"{scope_of(self.name)}operation/{encode_key(key)}"

    def start_once(self, key: Any, *, fingerprint: Any = None) -> Operation:
        """Reserve the key before the effect, or find the result of the operation.

        :param key: names the operation: a str, int, bytes, or a tuple of those.
        :param fingerprint: a JSON value of the request; another one under the same key is
            rejected.  Only its hash is kept.
        :raises AttemptInProgressError: another has it, until ``lease_until``.
        :raises IdempotencyKeyReusedError: it was begun with another fingerprint.
        :raises CacheUnavailableError: the store cannot be reached: nothing was begun.
        :raises InconsistentKeyError: the key is not valid.

        >>> with Operations().start_once("order-17/charge") as operation:
        ...     if not operation.result:
        ...         print(operation.complete({"receipt": 1}))
        {'receipt': 1}
        """
        operation = self._operation(key)
        perform(operation._release_on_error(operation._begin_steps(fingerprint, SYNC), SYNC))
        return operation

    async def start_once_async(self, key: Any, *, fingerprint: Any = None) -> Operation:
        """The same with an asynchronous store, or one in memory."""
        reject_blocking_cache(self.cache)
        operation = self._operation(key)
        await perform_async(
            operation._release_on_error(operation._begin_steps(fingerprint, ASYNC), ASYNC)
        )
        return operation

    def call(self, key: Any, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function once for the key; from then on give its result.

        Its result must be a JSON value, and is returned as JSON restores it, the first time too.
        """
        return perform(self._call(key, None, partial(fn, *args, **kwargs), SYNC))

    async def call_async(
        self, key: Any, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Any:
        """The same for functions that may be asynchronous."""
        reject_blocking_cache(self.cache)
        return await perform_async(self._call(key, None, partial(fn, *args, **kwargs), ASYNC))

    def idempotent(
        self, key: Callable[..., Any], *, fingerprint: Any = None
    ) -> IdempotentExecution:
        """A strategy: each call is an operation, whose key is made of its arguments.

        :param key: a function with the parameters of the call.
        :param fingerprint: likewise, a function that returns a JSON value of the request.

        >>> operations = Operations()
        >>> @operations.idempotent(lambda order: ("charge", order)).wrap
        ... def charge(order):
        ...     print("charged")
        ...     return order
        >>> charge(17), charge(17)
        charged
        (17, 17)
        """
        return IdempotentExecution(self, key, fingerprint)

    def _operation(self, key: Any) -> Operation:
        reservation = Reservation(self.scoped_key(key), self.cache, self.ttl, self.lease)
        return Operation(key, reservation, self._notify)

    def _notify(self, event: Callable[..., ControlEvent], **facts: Any) -> None:
        notify_listeners(self.listeners, [event(name=self.name, **facts)])

    def _call(self, key: Any, fingerprint: Any, fn: partial[Any], driver: Any) -> Steps:
        operation = self._operation(key)
        return operation._release_on_error(
            self._run_once(operation, fingerprint, fn, driver), driver
        )

    def _run_once(
        self, operation: Operation, fingerprint: Any, fn: partial[Any], driver: Any
    ) -> Steps:
        """Begin it; look it up, or call the function; and complete it."""
        _, error = yield from operation._begin_steps(fingerprint, driver)
        if error is None and operation.outcome_unknown and self.lookup is not None:
            error = yield from self._look_up(operation, driver)
        if error is not None:
            return None, error
        if operation.result is not None:
            return operation.result.value, None
        run = _run_async if driver.awaits else _run
        value, error = yield run, (operation._scope, fn)
        if error is None:
            value, error = yield from self._conclude(operation, value, driver)
        return value, error

    def _look_up(self, operation: Operation, driver: Any) -> Steps:
        """Whether an earlier attempt had the effect; what prevents to know it."""
        found, error = yield self.lookup, (operation.key,)
        if error is None and not isinstance(found, OperationResult | None):
            error = MisuseError(f"lookup must return an OperationResult or None, got {found!r}")
        if error is None and found is not None:
            _, error = yield from operation._complete_steps(found.value, None, driver)
        if error is not None:
            _, problem = yield from operation._reservation.release(driver)
            error = most_severe(error, problem)
        return error

    def _conclude(self, operation: Operation, value: Any, driver: Any) -> Steps:
        """Complete the operation; if the store is unavailable, the caller still gets the result."""
        stored, error = yield from operation._complete_steps(value, None, driver)
        if isinstance(error, CacheUnavailableError):
            self._notify(OperationUnrecorded, key=operation.key, error=error)
            return stored, None
        return stored, error


@frozen(eq=False)
class IdempotentExecution(StrategyBase):
    """A strategy around calls that are operations: see ``Operations.idempotent``."""

    operations: Operations = field(validator=instance_of(Operations, "an Operations"))
    key: Callable[..., Any] = field(validator=checked_by(check_function))
    fingerprint: Callable[..., Any] | None = field(
        default=None, validator=optional(checked_by(check_function))
    )

    def call(self, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function once for these arguments; from then on give its result."""
        return perform(self._steps(fn, args, kwargs, SYNC))

    async def call_async(self, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The same for functions that may be asynchronous."""
        reject_blocking_cache(self.operations.cache)
        return await perform_async(self._steps(fn, args, kwargs, ASYNC))

    def describe(self) -> str:
        """Its effect on a call."""
        return "each operation happens once; from then on its result is given"

    def _steps(self, fn: Callable[..., Any], args: Any, kwargs: Any, driver: Any) -> Steps:
        key = self.key(*args, **kwargs)
        fingerprint = None if self.fingerprint is None else self.fingerprint(*args, **kwargs)
        return self.operations._call(key, fingerprint, partial(fn, *args, **kwargs), driver)


def _run(scope: OperationScope, fn: partial[Any]) -> Any:
    """Call the function as part of the operation."""
    with scope:
        value = fn()
    reject_awaitable(value, fn.func)
    return value


async def _run_async(scope: OperationScope, fn: partial[Any]) -> Any:
    with scope:
        return await apply_async(fn)
