"""Claims kept in this process, for caches whose store has no claims."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import count
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.awaitables import is_async
from retrytemplate._internal.locks import Monitor
from retrytemplate.caches.base import Claim, completed, in_progress, lost
from retrytemplate.errors import AlreadyCompletedError, MisuseError

if TYPE_CHECKING:
    from retrytemplate.caches.record import Record

__all__ = ["InProcessClaims", "refuse_connection"]


def refuse_connection(cache: object, connection: object) -> None:
    """Raise if an attempt shall end in a transaction: the cache has no database."""
    if connection is not None:
        raise MisuseError(
            f"{type(cache).__name__} has no database to complete an attempt in; use a SQL cache"
        )


class ForcedClaim(Claim):
    """A claim that began without the stored record, which may still exist."""

    __slots__ = ()


class InProcessClaims(ABC):
    """A context cache whose claims this object keeps; a subclass keeps the records.

    The methods of the subclass are called under the lock.
    """

    def __init__(self, redact: Any) -> None:
        if redact is not None and (not callable(redact) or is_async(redact)):
            raise TypeError(f"redact must be a function of a string or None, got {redact!r}")
        self.redact = redact
        self._claims: dict[str, Claim] = {}
        self._fences = count(1)
        # Reentrant: the garbage collector may close an abandoned execution in the thread that holds
        # the lock.
        self._monitor = Monitor()
        self._lock = self._monitor.lock
        self._monitor.forked = self._claims.clear  # they belong to the parent

    @abstractmethod
    def _load(self, key: str) -> Record | None:
        """The record; phase "done" is a completion marker."""

    @abstractmethod
    def _store(self, key: str, record: Record) -> None:
        """Store the record; it replaces a record and a completion marker."""

    @abstractmethod
    def _drop(self, key: str) -> None:
        """Delete the record and the completion marker, if any."""

    @abstractmethod
    def _mark(self, claim: Claim, remember: float, record: Record | None) -> None:
        """Store a completion marker with its record; it replaces an earlier record."""

    def begin(
        self, key: str, *, worker: str, lease: float | None = None, fresh: bool = False
    ) -> Claim:
        """Load or create the record, count the attempt and take the key, in one step."""
        # The old record stays until the first write: the claim may be released.
        claim = ForcedClaim(key, worker, None, 0) if fresh else Claim(key, worker, None, 0)
        with self._lock:
            # In one step: a new key may be taken without the lock.
            held = self._claims.setdefault(key, claim)
            if held.worker != worker:
                raise in_progress(key, held.worker)
            try:
                self._read(claim, fresh)
                claim.fence = next(self._fences)  # once the key is held: it only grows
            except BaseException as exc:
                # Also the earlier claim of this worker, whose begin() was interrupted.
                if held is claim or isinstance(exc, AlreadyCompletedError):
                    del self._claims[key]
                raise
            self._claims[key] = claim
            return claim

    def _read(self, claim: Claim, fresh: bool) -> None:
        record = None if fresh else self._load(claim.key)
        if record is not None:
            if record.phase == "done":
                raise completed(claim.key)
            claim.read(record)

    def renew(self, claim: Claim) -> None:
        """Check that the claim holds its key; in memory it has no lease."""
        with self._lock:
            self._check(claim)

    def fail(self, claim: Claim, record: Record) -> None:
        """Write the record after a failed attempt; ``record.worker`` None ends the claim."""
        with self._lock:
            self._check(claim)
            try:
                self._store(claim.key, record)
                claim.version = record.version
            finally:
                if record.worker is None:  # no later call would end it if the store failed
                    self._claims.pop(claim.key, None)

    def succeed(
        self,
        claim: Claim,
        *,
        connection: Any = None,
        remember: float | None = None,
        record: Record | None = None,
    ) -> None:
        """End the claim and delete the record, or leave a completion marker."""
        # The hot path of stateful executions: no call that is not needed.
        if connection is not None:
            refuse_connection(self, connection)
        with self._lock:
            if self._claims.get(claim.key) is not claim:
                self._check(claim)
            try:
                if remember is not None:
                    self._mark(claim, remember, record)
                elif claim.version or type(claim) is ForcedClaim:  # else the key is empty
                    self._drop(claim.key)
            finally:  # last: the next worker sees the final state
                self._claims.pop(claim.key, None)

    def release(self, claim: Claim) -> None:
        """End the claim; the key is as it was before."""
        # Without the lock: the garbage collector releases abandoned claims in any thread, which may
        # hold the lock of another cache and must not wait for this one.
        if self._claims.get(claim.key) is claim:
            held = self._claims.pop(claim.key, None)
            if held is not None and held is not claim:  # taken after a concurrent forget()
                self._claims.setdefault(claim.key, held)

    def forget(self, key: str) -> None:
        """Delete the record and the claim of a key, also of a running execution."""
        with self._lock:
            self._claims.pop(key, None)
            self._drop(key)

    def peek(self, key: str) -> Record | None:
        """The record, or None."""
        with self._lock:
            return self._kept(key)

    def swap(self, key: str, record: Record, version: int) -> bool:
        """Write a shared record if its version still is *version* (0: there was none)."""
        with self._lock:
            current = self._kept(key)
            if (0 if current is None else current.version) != version:
                return False
            self._store(key, record)
            return True

    def holds(self, claim: Claim) -> bool:
        """Whether the claim holds its key."""
        return self._claims.get(claim.key) is claim

    def _kept(self, key: str) -> Record | None:
        record = self._load(key)
        if record is None or (record.phase == "done" and not record.attributes):
            return None  # a completion marker without data is no record
        return record

    def _check(self, claim: Claim) -> None:
        if self._claims.get(claim.key) is not claim:
            raise lost(claim)
