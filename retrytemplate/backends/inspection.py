"""What a store keeps, for whoever looks into it: a key with its record and its holder."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

from retrytemplate.caches.record import Record, to_json
from retrytemplate.caches.record_schema import damaged, parsed
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from typing import TypeVar

    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate.backends.durable import BlockingCache

    T = TypeVar("T")

__all__ = ["ContextInspector", "Entry", "entry"]

UNREADABLE = {"phase": "damaged", "fence": 0}
"""What is shown of a column that cannot be read; of the others None."""


@frozen(kw_only=True)
class Entry:
    """A key as its store has it: what is remembered of it, who holds it, and until when.

    ``phase`` is that of the key, ``record.phase`` the one that was written last.  Of a key that is
    held for the first time the record is empty, as it is of a remembered success that leaves
    nothing else, and of a key whose record cannot be read: ``problem`` says why.  Times are seconds
    since the epoch by the store's clock, which read ``now`` when it was asked.
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
        """Whether a worker holds the key, and its lease is not over."""
        return self.worker is not None and (self.lease_until or 0.0) > self.now

    @property
    def lost(self) -> bool:
        """Whether an attempt was under way, and its lease is over."""
        return self.phase == "attempting" and not self.held

    @property
    def written(self) -> float | None:
        """When something was written last, as far as is known: at a failure, at least."""
        history = self.record.history
        return history[-1].ended if self.updated is None and history else self.updated

    def as_json(self) -> dict[str, Any]:
        """The record as JSON with what lies beside it; the key's own phase, worker and fence."""
        return to_json(self.record) | {
            "key": self.key,
            "phase": self.phase,
            "fence": self.fence,
            "worker": self.worker,
            "held": self.held,
            "lost": self.lost,
            "lease_until": self.lease_until,
            "updated": self.updated,
            "expires": self.expires,
            "now": self.now,
            "problem": self.problem,
        }


def entry(key: str, text: str | bytes | None, **columns: Any) -> Entry:
    """The entry of a key whose record the store holds as this text; None: there is none."""
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
    """What a store does for whoever looks, step by step."""

    def listing(self, prefix: str, after: str, limit: int) -> Operation[list[Entry]]: ...

    def search(self, key: str) -> Operation[Entry | None]: ...

    def forget(self, key: str) -> Operation[None]: ...


class ContextInspector:
    """What a store keeps under one prefix.

    Where the store is not there every method raises ``CacheUnavailableError``.

    :param cache: one on that store, for its connections.
    """

    def __init__(self, cache: BlockingCache, steps: ReadOnlyOperations) -> None:
        self._cache = cache
        self._steps = steps

    def page(self, *, prefix: str = "", after: str = "", limit: int) -> list[Entry]:
        """The entries whose keys begin with *prefix*, in order, from the one after *after* on."""
        return self._perform(self._steps.listing(prefix, after, limit))

    def find(self, key: str) -> Entry | None:
        """What is kept under the key, or None."""
        return self._perform(self._steps.search(key))

    def forget(self, key: str) -> None:
        """Drop it, held or not."""
        self._perform(self._steps.forget(key))

    def close(self) -> None:
        """End the connections."""
        self._cache.close()

    def _perform(self, step: Operation[T]) -> T:
        return self._cache._perform(step)
