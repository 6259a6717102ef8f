"""Protocol of context caches: claims on keys, compare-and-set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from retrytemplate.errors import AlreadyCompletedError, AttemptInProgressError, LeaseLostError

if TYPE_CHECKING:
    from retrytemplate.caches.record import Record

__all__ = ["METHODS", "AsyncRetryContextCache", "Claim", "RetryContextCache"]
__all__ += ["completed", "in_progress", "lost"]

METHODS = ("begin", "renew", "fail", "succeed", "release", "forget", "peek", "swap", "holds")
"""The methods that a template needs of a cache, synchronous or not."""


class Claim:
    """One execution's hold on a key.

    ``record`` is the stored record of the key (None: no record), ``fence`` a number that only grows
    per key, ``version`` the version that the next write expects, ``lost`` the worker of an attempt
    that began and never ended (None: no lost attempt), ``completed`` whether the end of the attempt
    is part of the caller's own transaction.
    """

    __slots__ = ("completed", "fence", "key", "lease_until", "lost", "record", "version", "worker")

    def __init__(
        self,
        key: str,
        worker: str,
        record: Record | None,
        fence: int,
        lease_until: float | None = None,
        lost: str | None = None,
    ) -> None:
        self.key = key
        self.worker = worker
        self.record = record
        self.fence = fence
        self.version = 0 if record is None else record.version
        self.lease_until = lease_until
        self.lost = lost
        self.completed = False

    def read(self, record: Record) -> None:
        """Set the stored record of the key."""
        self.record, self.version = record, record.version


@runtime_checkable
class RetryContextCache(Protocol):
    """Stores the contexts of stateful executions.

    Keys arrive encoded and scoped (see ``RetryTemplate.scoped_key``).  Every write is a
    compare-and-set on the claim.

    Source: ``org.springframework.retry.policy.RetryContextCache``, rebuilt around claims.
    """

    def begin(
        self, key: str, *, worker: str, lease: float | None = None, fresh: bool = False
    ) -> Claim:
        """Load or create the record, count the attempt and take the key, in one step.

        The same worker may begin again while it holds the key: its next attempt in place.

        :param fresh: begin without the stored record; the first write replaces it.
        :raises AttemptInProgressError: another worker holds the key.
        :raises AlreadyCompletedError: the key's success is remembered.
        """
        ...

    def renew(self, claim: Claim) -> None:
        """Extend the lease; LeaseLostError when the key was taken over."""
        ...

    def fail(self, claim: Claim, record: Record) -> None:
        """Write the record after a failed attempt; ``record.worker`` None ends the claim."""
        ...

    def succeed(
        self,
        claim: Claim,
        *,
        connection: Any = None,
        remember: float | None = None,
        record: Record | None = None,
    ) -> None:
        """End the claim and delete the record, or leave a completion marker.

        :param remember: seconds for which the completion marker stays; None: no marker.
        :param record: kept with the marker, and returned by ``peek``; None: nothing.
        """
        ...

    def release(self, claim: Claim) -> None:
        """End the claim and do not count the attempt: the key is as it was before."""
        ...

    def forget(self, key: str) -> None:
        """Delete the record and the claim of the key."""
        ...

    def peek(self, key: str) -> Record | None:
        """The record, or None."""
        ...

    def swap(self, key: str, record: Record, version: int) -> bool:
        """Write a shared record if its version still is *version* (0: there was none)."""
        ...

    def holds(self, claim: Claim) -> bool:
        """Whether the claim holds its key at the time of the call."""
        ...

    def __contains__(self, key: object) -> bool: ...


class AsyncRetryContextCache(Protocol):
    """The asynchronous twin of ``RetryContextCache``: the same methods as coroutine functions."""

    async def begin(
        self, key: str, *, worker: str, lease: float | None = None, fresh: bool = False
    ) -> Claim: ...

    async def renew(self, claim: Claim) -> None: ...

    async def fail(self, claim: Claim, record: Record) -> None: ...

    async def succeed(
        self,
        claim: Claim,
        *,
        connection: Any = None,
        remember: float | None = None,
        record: Record | None = None,
    ) -> None: ...

    async def release(self, claim: Claim) -> None: ...

    async def forget(self, key: str) -> None: ...

    async def peek(self, key: str) -> Record | None: ...

    async def swap(self, key: str, record: Record, version: int) -> bool: ...

    async def holds(self, claim: Claim) -> bool: ...


def in_progress(
    key: str,
    worker: str | None,
    lease_until: float | None = None,
    process: str | None = None,
) -> AttemptInProgressError:
    """Another worker holds the key."""
    error = AttemptInProgressError(
        f"{key!r} is being worked on by {worker}", worker=worker, lease_until=lease_until
    )
    error.process = process
    return error


def completed(key: str) -> AlreadyCompletedError:
    """The key has a completion marker."""
    return AlreadyCompletedError(f"{key!r} was completed before")


def lost(claim: Claim) -> LeaseLostError:
    """The claim does not hold its key."""
    if claim.completed:
        return LeaseLostError(f"{claim.key!r} was completed: later events are not recorded")
    return LeaseLostError(f"{claim.key!r} is no longer held by {claim.worker}")
