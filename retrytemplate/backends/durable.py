"""Base classes and settings of the durable context caches."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from functools import partial, wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, get_args, overload

from retrytemplate._internal.closing import AsyncClosing, Closing
from retrytemplate._internal.validation import (
    check_choice,
    check_function,
    check_int,
    check_seconds,
    check_wait,
)
from retrytemplate._storage.fork_safety import register
from retrytemplate._storage.operation_runner import Operation, perform, perform_async
from retrytemplate._storage.process_liveness import is_process_gone
from retrytemplate.backends.leases import LeasedClaim, RenewingTask, RenewingThread
from retrytemplate.caches.base import AsyncRetryContextCache, Claim, RetryContextCache
from retrytemplate.caches.record_limit import check_record_limit
from retrytemplate.clock import Clock, given_or_system
from retrytemplate.errors import (
    AttemptInProgressError,
    CacheUnavailableError,
    LeaseLostError,
    MisuseError,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Coroutine
    from typing import Concatenate

    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.column_keys import Prefixes
    from retrytemplate.backends.redis.operations import Steps as RedisSteps
    from retrytemplate.backends.sql.operations import Steps as SQLSteps
    from retrytemplate.caches.record import Record

P = ParamSpec("P")
T = TypeVar("T")

OnStoreError = Literal["raise", "run_unguarded"]

PAGE = 1000


def check_records(redact: Any, record_limit: Any) -> None:
    """Check the settings of stored failures."""
    if redact is not None:
        check_function("redact", redact)
    check_record_limit(record_limit)


class operation(Generic[P, T]):  # a decorator
    """A method of both kinds of cache; its body is a generator of orders to the store.

    A method of a ``BlockingCache`` returns the result, one of an ``AwaitedCache`` is a coroutine
    function.  The argument ``connection`` is the caller's, in whose transaction the orders run.
    """

    def __init__(self, body: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        @wraps(body)
        def blocking(cache: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
            return cache._perform(body(cache, *args, **kwargs), kwargs.get("connection"))

        @wraps(body)
        async def awaited(cache: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
            return await cache._perform(body(cache, *args, **kwargs), kwargs.get("connection"))

        self._functions = awaited, blocking

    @overload
    def __get__(self, cache: BlockingCache, kind: Any = ...) -> Callable[P, T]: ...

    @overload
    def __get__(
        self, cache: AwaitedCache, kind: Any = ...
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, cache: DurableCache | None, kind: Any = ...) -> Any: ...

    def __get__(self, cache: Any, kind: Any = None) -> Any:
        function = self._functions[kind.blocking]
        return function if cache is None else MethodType(function, cache)


class DurableCache(ABC):
    """Settings and operations of both kinds of cache.

    The time to live is a setting of each store.
    """

    durable = True
    blocking = False

    prefixes: Prefixes
    _claims: type[LeasedClaim] = LeasedClaim
    _steps: SQLSteps | RedisSteps
    _store: Any
    _store_class: type
    _renewer: Any

    def __init__(
        self,
        url: Any,
        lease: Seconds,
        prefix: Any,
        timeout: Seconds,
        redact: Callable[[str], str] | None,
        record_limit: int,
        clock: Clock | None,
        on_store_error: OnStoreError,
    ) -> None:
        self.lease: float = check_seconds("lease", lease)
        self.prefix: str = self.prefixes.checked(prefix)
        self.timeout: float = check_wait("timeout", timeout)
        check_records(redact, record_limit)
        self.redact = redact
        self.record_limit = record_limit
        check_choice("on_store_error", on_store_error, *get_args(OnStoreError))
        self.on_store_error = on_store_error
        self._monotonic = given_or_system(clock).monotonic
        self._store = self._store_class(url, self.timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store} prefix={self.prefix!r}>"

    @abstractmethod
    def _check_connection(self, connection: Any) -> None:
        """Raise if an attempt cannot end in the transaction of a given connection."""

    @abstractmethod
    def _renewing(self) -> Any:
        """Create the component that renews the leases of later claims."""

    @abstractmethod
    def _perform(self, step: Operation[Any], connection: Any = None) -> Any:
        """Run an operation, in the caller's transaction if there is one."""

    def _reply(self, connection: Any, order: Any, name: str) -> Any:
        return order() if callable(order) else self._store.ask(order, name, connection)

    @operation
    def begin(
        self,
        key: str,
        *,
        worker: str,
        lease: float | None = None,
        fresh: bool = False,
        takeover: str | None = None,
    ) -> Operation[Claim]:
        """Load or create the record, count the attempt and take the key: one round trip.

        If the holder's process has ended on this host, a second one takes the key over at once.

        :param takeover: name of a worker whose lease is ignored.
        """
        held_for = None if lease is None else check_seconds("lease", lease)
        if self._left:
            yield self._end_left
        try:
            claim = yield from self._steps.begin(key, worker, held_for, fresh, takeover)
        except AttemptInProgressError as exc:
            if not is_process_gone(exc.process):
                raise
            claim = yield from self._steps.begin(key, worker, held_for, fresh, exc.worker)
        self._renewer.add(claim)
        return claim

    @operation
    def renew(self, claim: Claim) -> Operation[None]:
        """Extend the lease; LeaseLostError when the key was taken over."""
        yield from self._steps.renew(self._ours(claim))

    @operation
    def fail(self, claim: Claim, record: Record, *, connection: Any = None) -> Operation[None]:
        """Write the record after a failed attempt; ``record.worker`` None ends the claim.

        :param connection: as that of ``succeed``, for a record that ends the claim.
        """
        self._check_connection(connection)
        if record.worker is None:
            self._renewer.drop(claim)
        elif connection is not None:
            raise MisuseError("a failure written with connection= must end its claim")
        yield from self._steps.fail(self._ours(claim), record, connection)
        if record.worker is not None:  # complete_in() might have dropped it, and was rolled back
            self._renewer.add(claim)

    @operation
    def succeed(
        self,
        claim: Claim,
        *,
        connection: Any = None,
        remember: float | None = None,
        record: Record | None = None,
    ) -> Operation[None]:
        """End the claim and delete the record, or leave a completion marker.

        :param connection: of the caller, to the same database: the end of the claim is part of its
            transaction.
        :param remember: seconds for which the completion marker stays; None: no marker.
        :param record: kept with the marker, and returned by ``peek``; None: nothing.
        """
        self._check_connection(connection)
        self._renewer.drop(claim)
        yield from self._steps.succeed(self._ours(claim), remember, connection, record)

    @operation
    def release(self, claim: Claim) -> Operation[None]:
        """End the claim; restore the key."""
        self._renewer.drop(claim)
        yield from self._steps.release(self._ours(claim))

    @operation
    def forget(self, key: str) -> Operation[None]:
        """Delete the record and the claim of a key, also of a running execution."""
        yield from self._steps.forget(key)

    @operation
    def peek(self, key: str) -> Operation[Record | None]:
        """The record, or None."""
        return (yield from self._steps.peek(key))

    @operation
    def swap(self, key: str, record: Record, version: int) -> Operation[bool]:
        """Write a shared record if its version still is *version* (0: there was none)."""
        return (yield from self._steps.swap(key, record, version))

    @operation
    def holds(self, claim: Claim) -> Operation[bool]:
        """Whether the claim holds its key, and its lease has not ended."""
        return (yield from self._steps.holds(self._ours(claim)))

    @operation
    def purge(self) -> Operation[int]:
        """Delete the keys whose time to live has ended; return their number."""
        return (yield from self._steps.purge())

    @operation
    def keys(self, *, after: str = "", limit: int = PAGE) -> Operation[list[str]]:
        """The keys that have a record, in order: at most *limit*, beginning after *after*."""
        check_int("limit", limit, 1)
        return (yield from self._steps.keys(after, limit))

    def end_later(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Note a call that ends a claim; ``begin``, ``close`` or the renewal of leases makes it.

        For an execution that the garbage collector closes.  It takes no lock and calls no store.
        A call that takes a key is followed by its release.
        """
        self._left.append(partial(function, *arguments))

    @operation
    def _end_left(self) -> Operation[None]:
        """Make the noted calls; keep them if the store is unavailable."""
        for _ in range(len(self._left)):
            try:
                call = self._left.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                claim = yield call
                if isinstance(claim, Claim):
                    yield partial(self.release, claim)
            except CacheUnavailableError:
                self._left.append(call)
                return
            except Exception:  # the key has another holder, or is completed
                continue
            except BaseException:  # a signal or a cancellation
                self._left.append(call)
                raise

    def _begin_life(self) -> None:
        self._left: deque[Callable[[], Any]] = deque()
        self._renewer = self._renewing()
        register(self)

    def _forked(self) -> None:
        """In a child process: leave the claims to the parent."""
        self._left.clear()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._renewer = self._renewing()

    def _ours(self, claim: Claim) -> Any:
        if not isinstance(claim, self._claims):
            raise TypeError(f"claim must be a {self._claims.__name__}, got {claim!r}")
        if claim.process != os.getpid():
            raise LeaseLostError(f"{claim.key!r} is held by the process this one was forked from")
        return claim


class BlockingCache(DurableCache, Closing, RetryContextCache):
    """A synchronous cache."""

    blocking = True

    _renewer: RenewingThread

    def _renewing(self) -> RenewingThread:
        return RenewingThread(self.renew, self._monotonic, self._end_left)

    def _perform(self, step: Operation[T], connection: Any = None) -> T:
        return perform(step, partial(self._reply, connection))

    def close(self) -> None:
        """End the renewals and close the connections; the next use opens others."""
        self._end_left()
        self._renewer.stop()
        self._store.close()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.peek(key) is not None


class AwaitedCache(DurableCache, AsyncClosing, AsyncRetryContextCache):
    """A cache for asyncio, in one event loop at a time."""

    _renewer: RenewingTask
    _loop: AbstractEventLoop | None = None

    def _renewing(self) -> RenewingTask:
        return RenewingTask(self.renew, self._monotonic, self._end_left)

    def _begin_anew(self) -> None:
        self._loop = None
        super()._begin_anew()

    async def _perform(self, step: Operation[T], connection: Any = None) -> T:
        self._check_loop()
        return await perform_async(step, partial(self._reply, connection))

    async def close(self) -> None:
        """End the renewals and close the connections; the next use opens others."""
        if self._loop is not None:
            self._check_loop()
        if self._left:
            await self._end_left()
        await self._renewer.stop()
        await self._store.close()
        self._loop = None

    def _check_loop(self) -> None:
        """Raise unless this is the loop that the connections belong to."""
        import asyncio

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise MisuseError(
                f"{type(self).__name__} needs an event loop of asyncio; under trio call execute() "
                "in a worker thread, with the blocking cache"
            ) from None
        if self._loop is not None and self._loop.is_closed():
            self._begin_anew()
            self._store.reopen()  # the previous connections cannot be closed any more
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise MisuseError(
                f"{type(self).__name__} is in use by another event loop: close() it there first"
            )
