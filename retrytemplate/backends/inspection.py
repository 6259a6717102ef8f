"""Read-only views of a store: each key with its record and its holder."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from attrs import field, frozen

from retrytemplate.backends.stored_rows import damaged, parsed
from retrytemplate.caches.record import Record, to_json
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate.backends.durable import BlockingCache

    T = TypeVar("T")

UNREADABLE = {"phase": "damaged", "fence": 0}
"""Values shown for columns that cannot be read; None for the others."""
SHOWN = "key phase fence worker held lost lease_until updated expires now problem".split()


@frozen(kw_only=True)
class Entry:
    """A key in a store: its record, its holder, and the end of its lease.

    ``phase`` is that of the key, ``record.phase`` the one that was written last.  The record is
    empty for a key that is held for the first time, for a completion marker without a record, and
    for a key whose record cannot be read: ``problem`` says why.  Times are seconds since the epoch
    by the clock of the store, which was ``now`` when the entry was read.
    """

    key: str
    phase: str
    fence: int
    worker: str | None = None
    lease_until: float | None = None
    updated: float | None = None
    expires: float | None = None
    now: float
    record: Record = field(factory=Record)
    problem: str | None = None

    @property
    def held(self) -> bool:
        """Whether a worker holds the key, and its lease has not ended."""
        return self.worker is not None and (self.lease_until or 0.0) > self.now

    @property
    def lost(self) -> bool:
        """Whether an attempt was in progress when its lease ended."""
        return self.phase == "attempting" and not self.held

    @property
    def written(self) -> float | None:
        """Time of the last known write: at least that of the last failure."""
        history = self.record.history
        return history[-1].ended if self.updated is None and history else self.updated

    def as_json(self) -> dict[str, Any]:
        """The record as JSON with the other columns; phase, worker and fence of the key."""
        return to_json(self.record) | {name: getattr(self, name) for name in SHOWN}


def entry(key: str, text: str | bytes | None, **columns: Any) -> Entry:
    """The entry of a key.

    :param text: the record as stored; None: no record.
    """
    if columns["expires"] == inf:
        columns["expires"] = None
    record, problem = Record(), None
    try:
        if text is not None:
            record = parsed(key, text)
    except CacheUnavailableError as exc:
        problem = str(exc)
    for name, value in columns.items():
        error = damaged(key, **{name: value})
        if error is not None:
            problem = problem or str(error)
            columns[name] = UNREADABLE.get(name)
    return Entry(key=key, record=record, problem=problem, **columns)


class ReadOnlyOperations(Protocol):
    """Operations of a store for its inspection."""

    def listing(self, prefix: str, after: str, limit: int) -> Operation[list[Entry]]: ...

    def search(self, key: str) -> Operation[Entry | None]: ...

    def forget(self, key: str) -> Operation[None]: ...


class ContextInspector:
    """The entries of a store under one prefix.

    Each method raises ``CacheUnavailableError`` if the store is unavailable.

    :param cache: on that store, for its connections.
    """

    def __init__(self, cache: BlockingCache, steps: ReadOnlyOperations) -> None:
        self._cache = cache
        self._steps = steps

    def exists(self) -> bool:
        """Whether the tables exist; True for a store without tables."""
        return True

    def page(self, *, prefix: str = "", after: str = "", limit: int) -> list[Entry]:
        """The entries whose keys begin with *prefix*, in order, beginning after *after*."""
        return self._perform(self._steps.listing(prefix, after, limit))

    def find(self, key: str) -> Entry | None:
        """The entry of the key, or None."""
        return self._perform(self._steps.search(key))

    def forget(self, key: str) -> None:
        """Delete the entry of the key, held or not."""
        self._perform(self._steps.forget(key))

    def close(self) -> None:
        """Close the connections."""
        self._cache.close()

    def _perform(self, step: Operation[T]) -> T:
        return self._cache._perform(step)
