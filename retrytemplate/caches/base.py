"""What a context cache is: claims on keys, compare-and-set.  The seam to write one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from retrytemplate.errors import AlreadyCompletedError, AttemptInProgressError, LeaseLostError

if TYPE_CHECKING:
    from retrytemplate.caches.record import Record

__all__ = ["METHODS", "AsyncRetryContextCache", "Claim", "RetryContextCache"]
__all__ += ["completed", "in_progress", "lost"]

METHODS = ("begin", "renew", "fail", "succeed", "release", "forget", "peek", "swap", "holds")
"""What a template asks a cache to have, synchronous or not."""


class Claim:
    """One execution's hold on a key.

    ``record`` is what the cache kept under the key (None: nothing), ``fence`` a number that only
    grows per key, ``version`` what the next write is compared with, ``lost`` the worker of an
    attempt that began and never ended (None: there is none), ``completed`` whether the attempt's
    end is in the caller's own transaction.
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
        """Take over what was kept under the key."""
        self.record, self.version = record, record.version


@runtime_checkable
class RetryContextCache(Protocol):
    """Where the contexts of stateful executions are kept.

    Keys arrive encoded and scoped (see ``RetryTemplate.scoped_key``).  Every write is a
    compare-and-set on the claim.

    Source: ``org.springframework.retry.policy.RetryContextCache``, rebuilt around claims.
    """

    def begin(
        self, key: str, *, worker: str, lease: float | None = None, fresh: bool = False
    ) -> Claim:
        """Load or create the record, count the attempt and take the key, in one step.

        The same worker may begin again while it holds the key: its next attempt in place.

        :param fresh: begin without what is kept under the key; the first write replaces it.
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
        """End the claim and forget the record, or leave a mark for *remember* seconds.

        :param record: what the mark keeps, to be found by ``peek``; None: nothing.
        """
        ...

    def release(self, claim: Claim) -> None:
        """End the claim and give the counted attempt back: the key is as it was before."""
        ...

    def forget(self, key: str) -> None:
        """Drop whatever is kept under the key."""
        ...

    def peek(self, key: str) -> Record | None:
        """The record, or None."""
        ...

    def swap(self, key: str, record: Record, version: int) -> bool:
        """Write a shared record if its version still is *version* (0: there was none)."""
        ...

    def holds(self, claim: Claim) -> bool:
        """Whether the claim is the one in force: advice, true at the moment of asking."""
        ...

    def __contains__(self, key: object) -> bool: ...


class AsyncRetryContextCache(Protocol):
    """The asynchronous twin of ``RetryContextCache``: the same steps as coroutine methods."""

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
    key: str, worker: str | None, lease_until: float | None = None
) -> AttemptInProgressError:
    """Another worker holds the key."""
    return AttemptInProgressError(
        f"{key!r} is being worked on by {worker}", worker=worker, lease_until=lease_until
    )


def completed(key: str) -> AlreadyCompletedError:
    """The key's success is remembered."""
    return AlreadyCompletedError(f"{key!r} was completed before")


def lost(claim: Claim) -> LeaseLostError:
    """The claim is not the one in force."""
    if claim.completed:
        return LeaseLostError(f"{claim.key!r} was completed: what came after it is not recorded")
    return LeaseLostError(f"{claim.key!r} is no longer held by {claim.worker}")
