"""Context cache in the memory of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from retrytemplate._internal.validation import check_int, check_limit_or_none, to_seconds
from retrytemplate.caches.base import Claim
from retrytemplate.caches.in_process import InProcessClaims
from retrytemplate.caches.snapshot import load
from retrytemplate.caches.worker_id import worker_name
from retrytemplate.clock import Clock, given_or_system

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.caches.record import Record

__all__ = ["MemoryRetryContextCache", "NewClaim"]

BARE = None, None  # a completion marker without a record, or no marker


class NewClaim(Claim):
    """A claim on a new key.

    The worker name is built lazily: formatting it costs more than the rest of the claim.
    """

    __slots__ = ("number",)

    def __init__(self, key: str, number: int) -> None:
        self.key = key
        self.number = number
        self.record = self.lease_until = self.lost = None
        self.fence = self.version = 0
        self.completed = False

    @property
    def worker(self) -> str:  # type: ignore[override]  # read-only here
        return worker_name(self.number)


class MemoryRetryContextCache(InProcessClaims):
    """Contexts in memory: they outlive the execution, not the process.

    :param capacity: number of failed keys that are kept, at least 1.
    :param ttl: seconds after the last write when a key is deleted; None: never.
    :param when_full: "raise" rejects a new key with ``RetryContextCacheFullError``; "evict" drops
        the least recently used key that is not in flight.
    :param redact: applied to the traceback texts and messages that are kept.
    :param clock: measures the TTL and the completion markers; None: the system's clock.
    :raises ValueError: ``capacity`` is below 1, or ``when_full`` is unknown.

    Safe for threads and tasks.  A claim ends with its execution.  Completion markers have their own
    end, and do not count against the capacity.

    >>> cache = MemoryRetryContextCache(capacity=100, ttl=3600)
    >>> "charge/s:order-17" in cache
    False

    Source: ``org.springframework.retry.policy.MapRetryContextCache``.
    """

    def __init__(
        self,
        capacity: int = 4096,
        ttl: Seconds | None = None,
        when_full: Literal["raise", "evict"] = "raise",
        *,
        clock: Clock | None = None,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(redact)
        check_int("capacity", capacity, 1)
        seconds: float | None = to_seconds(ttl)
        check_limit_or_none("ttl", seconds)
        if when_full not in ("raise", "evict"):
            raise ValueError(f"when_full must be 'raise' or 'evict', got {when_full!r}")
        self.capacity = capacity
        self.ttl = seconds
        self.when_full = when_full
        self._timer = given_or_system(clock).monotonic
        load()
        # Plain dicts until the first failure or marker: successes need no more.
        self._records: Any = {}
        self._marks: Any = {}
        # Their keys, read without the lock.
        self._kept_keys: Container[str] = ()
        self._marked_keys: Container[str] = ()

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self._records or self._marks.get(key, BARE)[1] is not None

    def __len__(self) -> int:
        with self._lock:
            return len(self._records)

    def begin(
        self, key: str, *, worker: str, lease: float | None = None, fresh: bool = False
    ) -> Claim:
        """Load or create the record, count the attempt and take the key, in one step."""
        claim = Claim(key, worker, None, 0)
        if not fresh and self.take(claim):
            return claim
        return super().begin(key, worker=worker, lease=lease, fresh=fresh)

    def take(self, claim: Claim) -> bool:
        """Take the key of the claim if nothing is stored under it, the usual case.

        Needs no lock: ``setdefault`` decides between threads.
        """
        key = claim.key
        if self._claims.setdefault(key, claim) is claim:
            if key not in self._kept_keys and key not in self._marked_keys:
                claim.fence = next(self._fences)  # once the key is held: it only grows
                return True
            self.release(claim)
        return False

    def end(self, claim: Claim) -> None:
        """End the claim of ``take`` after a success that leaves no completion marker."""
        with self._lock:
            if self._claims.get(claim.key) is not claim:
                self._check(claim)
            del self._claims[claim.key]

    def _load(self, key: str) -> Record | None:
        mark = self._marks.get(key)
        if mark is None:
            record: Record | None = self._records.get(key)
            return record
        from retrytemplate.caches.bounded import DONE

        return mark[1] or DONE

    def _drop(self, key: str) -> None:
        self._records.pop(key, None)
        self._marks.pop(key, None)

    def _mark(self, claim: Claim, remember: float, record: Record | None) -> None:
        self._records.pop(claim.key, None)
        if type(self._marks) is dict:
            from retrytemplate.caches.bounded import CompletionMarkers

            self._marks = self._marked_keys = CompletionMarkers(self._timer)
        self._marks[claim.key] = remember, record

    def _store(self, key: str, record: Record) -> None:
        if type(self._records) is dict:
            from retrytemplate.caches.bounded import BoundedRecords

            evicts = self.when_full == "evict"
            self._records = BoundedRecords(
                self.capacity, self.ttl, self._timer, self._claims, evicts
            )
            self._kept_keys = self._records.keys
        self._records[key] = record
        self._marks.pop(key, None)
