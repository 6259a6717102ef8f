"""Bounded records and completion markers in memory.  Loaded with the first kept failure."""

from __future__ import annotations

import math
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import Factory, define
from cachetools import TLRUCache

from retrytemplate.caches.record import Record
from retrytemplate.errors import RetryContextCacheFullError

if TYPE_CHECKING:
    from collections.abc import Callable, Container

__all__ = ["DONE", "BoundedRecords", "CompletionMarkers"]

CompletionMarker = tuple[float, Record | None]

DONE = Record(phase="done")


@define(eq=False)
class BoundedRecords:
    """A bounded number of records, each kept *ttl* seconds after its last write.

    A new key beyond the capacity is rejected, or replaces the least recently used one that is not
    in flight.
    """

    # No LRUCache: it cannot skip a key that is in flight and keep its position.  Between any two
    # steps the garbage collector may close an execution that writes here, too: each step is one
    # call of an OrderedDict, and does not depend on the previous one.

    _capacity: int
    _ttl: float | None
    _timer: Callable[[], float]
    _in_flight: Container[str]
    _evicts: bool
    keys: OrderedDict[str, Record] = Factory(OrderedDict)  # as they were used
    _ends: OrderedDict[str, float] = Factory(OrderedDict)  # as they were written, if they end

    def get(self, key: str) -> Record | None:
        self._expire()
        record = self.keys.get(key)
        if record is not None:
            _used(self.keys, key)
        return record

    def pop(self, key: str, _default: None = None) -> None:
        self.keys.pop(key, None)
        self._ends.pop(key, None)

    def __setitem__(self, key: str, record: Record) -> None:
        self._expire()
        if key not in self.keys and len(self.keys) >= self._capacity:
            self._evict_for(key)
        self.keys[key] = record
        _used(self.keys, key)
        if self._ttl is not None:
            self._ends[key] = self._timer() + self._ttl
            _used(self._ends, key)

    def __contains__(self, key: object) -> bool:
        self._expire()
        return key in self.keys

    def __len__(self) -> int:
        self._expire()
        return len(self.keys)

    def _expire(self) -> None:
        if self._ends:
            now = self._timer()
            while (first := self._first_end()) and first[1] <= now:
                self.pop(first[0])

    def _first_end(self) -> tuple[str, float] | None:
        while True:
            try:
                return next(iter(self._ends.items()), None)
            except RuntimeError:  # changed meanwhile
                continue

    def _evict_for(self, key: str) -> None:
        if not self._evicts:
            raise RetryContextCacheFullError(
                f"the context cache is full: {self._capacity} keys; cannot keep {key!r}"
            )
        idle = self._least_recently_used()
        if idle is not None:
            self.pop(idle)
            return
        raise RetryContextCacheFullError(
            f"the context cache is full: {self._capacity} keys, all in flight; cannot keep {key!r}"
        )

    def _least_recently_used(self) -> str | None:
        """The least recently used key that is not in flight."""
        while True:
            try:
                return next((key for key in self.keys if key not in self._in_flight), None)
            except RuntimeError:  # the garbage collector closed an execution, which wrote
                continue


def _used(kept: OrderedDict[str, Any], key: str) -> None:
    with suppress(KeyError):  # removed meanwhile
        kept.move_to_end(key)


class CompletionMarkers(TLRUCache[str, CompletionMarker]):
    """Completion markers, each kept for its own number of seconds, with its record if any."""

    def __init__(self, timer: Callable[[], float]) -> None:
        super().__init__(math.inf, lambda _key, mark, now: now + mark[0], timer)

    def pop(  # type: ignore[override]  # the default has no type of its own here
        self, key: str, default: CompletionMarker | None = None
    ) -> CompletionMarker | None:
        """Remove a marker; the timer is frozen, or it could expire between lookup and removal."""
        with self.timer:
            return super().pop(key, default)
