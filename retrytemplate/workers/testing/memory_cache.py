"""A context cache in memory with the leases and fences of a durable one."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from attrs import define

from retrytemplate._internal.closing import AsyncClosing
from retrytemplate._internal.validation import check_limit_or_none, check_seconds, read_seconds
from retrytemplate.backends.leases import LeasedClaim, RenewingTask
from retrytemplate.caches.base import completed, in_progress, lost
from retrytemplate.caches.in_process import refuse_connection
from retrytemplate.caches.snapshot import load
from retrytemplate.clock import given_or_system
from retrytemplate.errors import LeaseLostError

if TYPE_CHECKING:
    from retrytemplate._internal.validation import Seconds
    from retrytemplate.caches.base import Claim
    from retrytemplate.caches.record import Phase, Record
    from retrytemplate.clock import Clock


@define
class Row:
    """The row of a key, as in a durable cache."""

    record: Record | None = None
    fence: int = 0
    phase: Phase = "attempting"
    worker: str | None = None
    lease_until: float = 0.0
    lost: str | None = None
    expires: float | None = None


class LeasedMemoryCache(AsyncClosing):
    """A context cache in memory, for tests and simulations of several workers in one thread.

    Unlike ``MemoryRetryContextCache`` it has leases: an attempt whose worker crashes is lost when
    its lease ends, as in a database.  In an event loop, leases are renewed.  ``connect`` returns
    the cache of another worker, with the same rows.

    :param lease: seconds, or a ``timedelta``; default 30.
    :param ttl: seconds after the last write when a key is deleted; default None: never.
    :param clock: measures leases; None: the system's clock.

    >>> cache = LeasedMemoryCache(lease=10.0)
    >>> cache.connect().lease
    10.0
    """

    durable = True
    blocking = False
    on_store_error = "raise"
    redact = None

    def __init__(
        self, lease: Seconds = 30.0, ttl: Seconds | None = None, *, clock: Clock | None = None
    ) -> None:
        self.lease = check_seconds("lease", lease)
        self.ttl: float | None = read_seconds("ttl", ttl, check_limit_or_none)
        self._clock = given_or_system(clock)
        self._rows: dict[str, Row] = {}
        # The keys of successes with the time until which they are remembered, the oldest first.
        self._remembered: deque[tuple[float, str]] = deque()
        self._fence = [0]
        self._renewer = self._renewing()
        load()

    def _renewing(self) -> RenewingTask:
        return RenewingTask(self._renew, self._clock.monotonic, _nothing)

    def connect(self) -> LeasedMemoryCache:
        """The cache of another worker, with the same rows."""
        other = LeasedMemoryCache(self.lease, self.ttl, clock=self._clock)
        other._rows, other._fence = self._rows, self._fence
        other._remembered = self._remembered
        return other

    def __len__(self) -> int:
        return len(self._rows)

    async def close(self) -> None:
        """End the renewal of leases; the rows stay."""
        await self._renewer.stop()
        self._renewer = self._renewing()

    def begin(
        self, key: str, *, worker: str, lease: float | None = None, fresh: bool = False
    ) -> Claim:
        """Load or create the record, count the attempt and take the key, in one step."""
        now, row = self._clock.time(), self._found(key)
        if row is None:
            row = self._rows[key] = Row()
        elif row.worker not in (None, worker) and row.lease_until > now:
            raise in_progress(key, row.worker, row.lease_until)
        elif row.phase == "done" and not fresh:
            raise completed(key)
        else:
            if row.phase == "attempting" and row.worker not in (None, worker):
                row.lost = row.lost or row.worker
            if row.phase == "idle":
                row.phase = "attempting"
        self._fence[0] += 1
        row.fence, row.worker = self._fence[0], worker
        seconds = self.lease if lease is None else lease
        row.lease_until = now + seconds
        claim = LeasedClaim(key, worker, None, row.fence, row.lease_until)
        claim.lease = seconds
        if not fresh:
            claim.lost = row.lost
            if row.record is not None:
                claim.read(row.record)
        if _is_running():
            self._renewer.add(claim)
        return claim

    async def _renew(self, claim: Claim) -> None:
        self.renew(claim)

    def renew(self, claim: Claim) -> None:
        """Extend the lease; LeaseLostError when the key was taken over."""
        row = self._mine(claim)
        row.lease_until = claim.lease_until = self._clock.time() + self.lease

    def fail(self, claim: Claim, record: Record) -> None:
        """Write the record after a failed attempt; ``record.worker`` None ends the claim."""
        if record.worker is None:
            self._renewer.drop(claim)
        row = self._mine(claim)
        row.record, row.phase, row.worker, row.lost = record, record.phase, record.worker, None
        now = self._clock.time()
        row.lease_until, row.expires = (
            now + self.lease,
            None if self.ttl is None else now + self.ttl,
        )
        claim.version = record.version

    def succeed(
        self,
        claim: Claim,
        *,
        connection: Any = None,
        remember: float | None = None,
        record: Record | None = None,
    ) -> None:
        """End the claim and delete the record, or leave a completion marker."""
        refuse_connection(self, connection)
        self._renewer.drop(claim)
        row = self._mine(claim)
        if remember is None:
            del self._rows[claim.key]
            return
        row.record, row.phase, row.worker, row.lost = record, "done", None, None
        row.expires = self._clock.time() + remember
        self._remembered.append((row.expires, claim.key))
        self._drop_expired()

    def _drop_expired(self) -> None:
        """Delete the successes whose time is over."""
        now, remembered = self._clock.time(), self._remembered
        while remembered and remembered[0][0] <= now:
            self._found(remembered.popleft()[1])

    def release(self, claim: Claim) -> None:
        """End the claim and do not count the attempt: the key is as it was before."""
        self._renewer.drop(claim)
        try:
            row = self._mine(claim)
        except LeaseLostError:
            return
        if row.record is None and row.lost is None and row.phase == "attempting":
            del self._rows[claim.key]
            return
        if row.phase == "attempting" and row.lost is None:
            row.phase = "idle"
        # A lost attempt that is not recorded yet is restored, so that the next worker finds it.
        row.worker, row.lost, row.lease_until = row.lost, None, self._clock.time()

    def forget(self, key: str) -> None:
        """Delete the record and the claim of the key."""
        self._rows.pop(key, None)

    def peek(self, key: str) -> Record | None:
        """The record, or None."""
        row = self._found(key)
        return None if row is None else row.record

    def swap(self, key: str, record: Record, version: int) -> bool:
        """Write a shared record if its version still is *version* (0: there was none)."""
        row = self._found(key)
        stored = None if row is None else row.record
        if (0 if stored is None else stored.version) != version:
            return False
        if row is None or stored is None:
            row = self._rows[key] = Row(fence=self._fence[0])
        row.record, row.phase = record, record.phase
        row.expires = None if self.ttl is None else self._clock.time() + self.ttl
        return True

    def holds(self, claim: Claim) -> bool:
        """Whether the claim holds its key at the time of the call."""
        row = self._rows.get(claim.key)
        return (
            row is not None
            and (row.fence, row.worker) == (claim.fence, claim.worker)
            and row.lease_until > self._clock.time()
        )

    def _found(self, key: str) -> Row | None:
        """The row of a key, unless its time to live has ended."""
        row = self._rows.get(key)
        if row is None or row.worker is not None or row.expires is None:
            return row
        if row.expires > self._clock.time():
            return row
        del self._rows[key]
        return None

    def _mine(self, claim: Claim) -> Row:
        """The row that the claim holds.

        :raises LeaseLostError: another claim holds the key.
        """
        row = self._rows.get(claim.key)
        if row is None or (row.fence, row.worker) != (claim.fence, claim.worker):
            raise lost(claim)
        return row


def _is_running() -> bool:
    """Whether this is the thread of an event loop, in which leases can be renewed."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _nothing() -> None:
    """There are no ends of claims to make up for."""
