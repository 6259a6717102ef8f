"""Base classes and settings of the durable context caches."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from attrs import frozen

from retrytemplate._engine.drivers import perform, perform_async
from retrytemplate._internal.validation import (
    check_function,
    check_int,
    check_seconds,
    check_wait,
)
from retrytemplate._storage.fork_safety import register, retain
from retrytemplate.backends.leases import LeasedClaim, RenewingTask, RenewingThread
from retrytemplate.caches.base import Claim
from retrytemplate.caches.record_limit import check_record_limit
from retrytemplate.clock import given_or_system
from retrytemplate.errors import CacheUnavailableError, LeaseLostError, MisuseError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Generator
    from types import TracebackType
    from typing import Self, TypeVar

    from retrytemplate._engine.execution import Effect, Reply
    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate.caches.record import Record
    from retrytemplate.clock import Clock

__all__ = [
    "KEY_PREFIXES",
    "PAGE",
    "TABLE_PREFIXES",
    "AwaitedCache",
    "BlockingCache",
    "DurableCache",
    "OnStoreError",
    "Settings",
    "check_records",
]


OnStoreError = Literal["raise", "run_unguarded"]
CHOICES = get_args(OnStoreError)


@frozen
class Prefixes:
    """What the names in a store may begin with."""

    pattern: re.Pattern[str]
    allowed: str

    def checked(self, prefix: Any) -> str:
        if not isinstance(prefix, str) or self.pattern.fullmatch(prefix) is None:
            raise ValueError(f"prefix must be {self.allowed}, got {prefix!r}")
        return prefix


TABLE_PREFIXES = Prefixes(
    re.compile(r"[a-z_][a-z0-9_]{0,39}"),
    "1 to 40 of a-z, 0-9 and _, with no digit at the beginning",
)
KEY_PREFIXES = Prefixes(
    re.compile(r"[A-Za-z0-9_.:-]{1,100}"), "1 to 100 of letters, digits and _ . : -"
)


class Settings:
    """Lease, prefix, timeout, redact, record limit, clock, and what happens without the store.

    The time to live is each store's own matter.
    """

    durable = True

    prefixes: Prefixes

    def __init__(
        self,
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
        if on_store_error not in CHOICES:
            raise ValueError(
                f"on_store_error must be one of {', '.join(CHOICES)}, got {on_store_error!r}"
            )
        self.on_store_error = on_store_error
        self._monotonic = given_or_system(clock).monotonic


def check_records(redact: Any, record_limit: Any) -> None:
    """Raise unless these say what is stored of failures, and how much of it."""
    if redact is not None:
        check_function("redact", redact)
    check_record_limit(record_limit)


if TYPE_CHECKING:
    T = TypeVar("T")


PAGE = 1000


class Steps(Protocol):
    """What a store does, step by step; a claim that comes in is one that it gave."""

    def begin(
        self, key: str, worker: str, lease: float | None, fresh: bool
    ) -> Operation[LeasedClaim]: ...

    def renew(self, claim: Any) -> Operation[None]: ...

    def fail(self, claim: Any, record: Record) -> Operation[None]: ...

    def succeed(
        self, claim: Any, remember: float | None, connection: Any, record: Record | None
    ) -> Operation[None]: ...

    def release(self, claim: Any) -> Operation[None]: ...

    def holds(self, claim: Any) -> Operation[bool]: ...

    def forget(self, key: str) -> Operation[None]: ...

    def peek(self, key: str) -> Operation[Record | None]: ...

    def swap(self, key: str, record: Record, version: int) -> Operation[bool]: ...

    def keys(self, after: str, limit: int) -> Operation[list[str]]: ...

    def purge(self) -> Operation[int]: ...


class DurableCache(Settings, ABC):
    """What both kinds are, beside their settings."""

    _claims: type[LeasedClaim] = LeasedClaim
    _steps: Steps
    _renewer: Any
    release: Any

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place()} prefix={self.prefix!r}>"

    @abstractmethod
    def _place(self) -> object:
        """Where the store is, without a password."""

    @abstractmethod
    def _check_connection(self, connection: Any) -> None:
        """Raise unless an attempt can end in this transaction, or it is None."""

    @abstractmethod
    def _renewing(self) -> Any:
        """Who renews the leases of the claims that are taken from now on."""

    @abstractmethod
    def _reconnect(self) -> Any:
        """Have connections of one's own from now on; those before, which nobody closes."""

    def end_later(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Note a step that ends a claim; ``begin``, ``close`` or the renewal of leases makes it.

        For an execution that the garbage collector closes.  It takes no lock and calls no store.
        A step that takes a key is followed by its release.
        """
        self._left.append((function, arguments))

    def _endings(self) -> Generator[Effect, Reply, tuple[None, BaseException | None]]:
        """Make the steps that were noted; where the store is unavailable, keep them."""
        for _ in range(len(self._left)):
            try:
                step = self._left.popleft()
            except IndexError:  # another thread was faster
                break
            claim, error = yield step
            if isinstance(claim, Claim):
                claim, error = yield self.release, (claim,)
            if isinstance(error, CacheUnavailableError) or not isinstance(error, Exception | None):
                self._left.append(step)
                return None, None if isinstance(error, Exception) else error
        return None, None

    def _begin_life(self) -> None:
        self._left: deque[Effect] = deque()
        self._renewer = self._renewing()
        register(self)

    def _forked(self) -> None:
        """In a child process: leave the connections and the claims to the parent."""
        self._left.clear()
        retain(self._begin_anew())

    def _begin_anew(self) -> Any:
        self._renewer = self._renewing()
        return self._reconnect()

    def _ours(self, claim: Claim) -> Any:
        if not isinstance(claim, self._claims):
            raise TypeError(f"claim must be a {self._claims.__name__}, got {claim!r}")
        if claim.process != os.getpid():
            raise LeaseLostError(f"{claim.key!r} is held by the process this one was forked from")
        return claim


class BlockingCache(DurableCache):
    """The methods of a synchronous cache; a store says how to perform a step."""

    blocking = True

    _renewer: RenewingThread

    def _renewing(self) -> RenewingThread:
        return RenewingThread(self.renew, self._monotonic, self._end_left)

    def _end_left(self) -> None:
        perform(self._endings())

    @abstractmethod
    def _perform(self, step: Operation[T], connection: Any = None) -> T:
        """Run a step, in the caller's transaction if there is one."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connections that are the cache's own."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the renewals and the connections.  What is used after that opens them anew."""
        self._end_left()
        self._renewer.stop()
        self._disconnect()

    def begin(
        self, key: str, *, worker: str, lease: float | None = None, fresh: bool = False
    ) -> Claim:
        """Load or create the record, count the attempt and take the key: one round trip."""
        held_for = None if lease is None else check_seconds("lease", lease)
        if self._left:
            self._end_left()
        claim = self._perform(self._steps.begin(key, worker, held_for, fresh))
        self._renewer.add(claim)
        return claim

    def renew(self, claim: Claim) -> None:
        """Extend the lease; LeaseLostError when the key was taken over."""
        self._perform(self._steps.renew(self._ours(claim)))

    def fail(self, claim: Claim, record: Record) -> None:
        """Write the record after a failed attempt; ``record.worker`` None ends the claim."""
        if record.worker is None:
            self._renewer.drop(claim)
        self._perform(self._steps.fail(self._ours(claim), record))
        if record.worker is not None:  # complete_in() might have dropped it, and was rolled back
            self._renewer.add(self._ours(claim))

    def succeed(
        self,
        claim: Claim,
        *,
        connection: Any = None,
        remember: float | None = None,
        record: Record | None = None,
    ) -> None:
        """End the claim and forget the record, or leave a mark for *remember* seconds.

        :param connection: the caller's own, to the same database: commits with what it commits.
        :param record: what the mark keeps, to be found by ``peek``; None: nothing.
        """
        self._check_connection(connection)
        self._renewer.drop(claim)
        step = self._steps.succeed(self._ours(claim), remember, connection, record)
        self._perform(step, connection)

    def release(self, claim: Claim) -> None:
        """End the claim; the key is as it was before."""
        self._renewer.drop(claim)
        self._perform(self._steps.release(self._ours(claim)))

    def forget(self, key: str) -> None:
        """Drop whatever is kept under the key, the claim of a running execution included."""
        self._perform(self._steps.forget(key))

    def peek(self, key: str) -> Record | None:
        """The record, or None."""
        return self._perform(self._steps.peek(key))

    def swap(self, key: str, record: Record, version: int) -> bool:
        """Write a shared record if its version still is *version* (0: there was none)."""
        return self._perform(self._steps.swap(key, record, version))

    def holds(self, claim: Claim) -> bool:
        """Whether the claim is the one in force, its lease included."""
        return self._perform(self._steps.holds(self._ours(claim)))

    def purge(self) -> int:
        """Delete what its time to live is over for; the number of keys."""
        return self._perform(self._steps.purge())

    def keys(self, *, after: str = "", limit: int = PAGE) -> list[str]:
        """The keys that have a record, in order: at most *limit*, from the one after *after*."""
        check_int("limit", limit, 1)
        return self._perform(self._steps.keys(after, limit))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.peek(key) is not None


class AwaitedCache(DurableCache):
    """The same for asyncio, in one event loop at a time."""

    _renewer: RenewingTask
    _loop: AbstractEventLoop | None = None

    def _renewing(self) -> RenewingTask:
        return RenewingTask(self.renew, self._monotonic, self._end_left)

    async def _end_left(self) -> None:
        await perform_async(self._endings())

    def _begin_anew(self) -> Any:
        self._loop = None
        return super()._begin_anew()

    @abstractmethod
    async def _perform(self, step: Operation[T], connection: Any = None) -> T:
        """Run a step, in the caller's transaction if there is one."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close the connections that are the cache's own."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the renewals and the connections.  What is used after that opens them anew."""
        if self._loop is not None:
            self._check_loop()
        await self._end_left()
        await self._renewer.stop()
        await self._disconnect()
        self._loop = None

    async def begin(
        self, key: str, *, worker: str, lease: float | None = None, fresh: bool = False
    ) -> Claim:
        """Load or create the record, count the attempt and take the key: one round trip."""
        held_for = None if lease is None else check_seconds("lease", lease)
        if self._left:
            await self._end_left()
        claim = await self._perform(self._steps.begin(key, worker, held_for, fresh))
        self._renewer.add(claim)
        return claim

    async def renew(self, claim: Claim) -> None:
        """Extend the lease; LeaseLostError when the key was taken over."""
        await self._perform(self._steps.renew(self._ours(claim)))

    async def fail(self, claim: Claim, record: Record) -> None:
        """Write the record after a failed attempt; ``record.worker`` None ends the claim."""
        if record.worker is None:
            self._renewer.drop(claim)
        await self._perform(self._steps.fail(self._ours(claim), record))
        if record.worker is not None:
            self._renewer.add(self._ours(claim))

    async def succeed(
        self,
        claim: Claim,
        *,
        connection: Any = None,
        remember: float | None = None,
        record: Record | None = None,
    ) -> None:
        """End the claim and forget the record, or leave a mark for *remember* seconds.

        :param connection: the caller's own, to the same database: commits with what it commits.
        :param record: what the mark keeps, to be found by ``peek``; None: nothing.
        """
        self._check_connection(connection)
        self._renewer.drop(claim)
        step = self._steps.succeed(self._ours(claim), remember, connection, record)
        await self._perform(step, connection)

    async def release(self, claim: Claim) -> None:
        """End the claim; the key is as it was before."""
        self._renewer.drop(claim)
        await self._perform(self._steps.release(self._ours(claim)))

    async def forget(self, key: str) -> None:
        """Drop whatever is kept under the key, the claim of a running execution included."""
        await self._perform(self._steps.forget(key))

    async def peek(self, key: str) -> Record | None:
        """The record, or None."""
        return await self._perform(self._steps.peek(key))

    async def swap(self, key: str, record: Record, version: int) -> bool:
        """Write a shared record if its version still is *version* (0: there was none)."""
        return await self._perform(self._steps.swap(key, record, version))

    async def holds(self, claim: Claim) -> bool:
        """Whether the claim is the one in force, its lease included."""
        return await self._perform(self._steps.holds(self._ours(claim)))

    async def purge(self) -> int:
        """Delete what its time to live is over for; the number of keys."""
        return await self._perform(self._steps.purge())

    async def keys(self, *, after: str = "", limit: int = PAGE) -> list[str]:
        """The keys that have a record, in order: at most *limit*, from the one after *after*."""
        check_int("limit", limit, 1)
        return await self._perform(self._steps.keys(after, limit))

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
            self._begin_anew()  # what was left open there, nobody can close any more
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise MisuseError(
                f"{type(self).__name__} is in use by another event loop: close() it there first"
            )
