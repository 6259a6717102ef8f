"""Where a kill switch keeps what is stopped: the protocol, and the memory of one process."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from attrs import define, frozen

from retrytemplate._internal.locks import Monitor, Reentered
from retrytemplate.clock import given_or_system

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retrytemplate.clock import Clock

__all__ = ["MemorySwitchStore", "StoredRecord", "SwitchStore"]

# Of the changes of a process that never ends, so many are remembered in its memory.
KEPT = 10_000


@frozen
class StoredRecord:
    """One change, as a store keeps it.

    :param number: grows from record to record, from 1.
    :param text: what happened, as the switch wrote it; empty where what is kept is no text.
    :param told: whether the notifiers have been told.
    """

    number: int
    text: str
    told: bool


@runtime_checkable
class SwitchStore(Protocol):
    """What a ``KillSwitch`` needs of a store: one document with a version, and a list of records.

    The methods block, each for a bounded time, and raise ``SwitchStoreError`` where the store
    cannot be reached.  Stores know nothing of what the texts mean.
    """

    shared: bool
    """Whether other processes see it: then the switch keeps a copy, and a thread that refreshes
    it.  Otherwise it asks the store at every check, and ``load`` must cost next to nothing."""

    def load(self, known: int | None) -> tuple[int, str] | None:
        """The version and the document, in one round trip; None: the version is still *known*.

        Where nothing was ever written the version is 0 and the document empty.
        """
        ...

    def commit(self, expected: int, document: str, records: Sequence[str]) -> bool:
        """Write the document as the version after *expected* and add the records, all or nothing.

        False: the version is another by now, and nothing was written.
        """
        ...

    def records(self, *, before: int | None = None, limit: int = 100) -> list[StoredRecord]:
        """The newest records, newest first; of those with a number below *before*."""
        ...

    def claim_untold(self, worker: str, lease: float, limit: int) -> list[StoredRecord]:
        """The oldest records that are not told, and that nobody else has claimed.

        They are this worker's for *lease* seconds by the store's clock, or until they are told.
        """
        ...

    def told(self, numbers: Sequence[int], worker: str) -> None:
        """The notifiers have been told of these; those that another has claimed since stay his."""
        ...

    def close(self) -> None:
        """Give back what the store holds."""
        ...


@define(eq=False)
class _Kept:
    record: StoredRecord
    worker: str | None = None
    until: float = 0.0


class MemorySwitchStore:
    """A store in the memory of one process, for one switch or several.

    :param clock: measures how long claims last; None: the system's clock.

    What is stopped is forgotten with the process; of the records, the newest 10,000 are kept.

    >>> store = MemorySwitchStore()
    >>> store.commit(0, "what is stopped", ["who stopped it"]), store.commit(0, "late", [])
    (True, False)
    >>> store.load(None)
    (1, 'what is stopped')
    >>> store.records()
    [StoredRecord(number=1, text='who stopped it', told=False)]
    """

    shared = False

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = given_or_system(clock)
        self._state = 0, ""
        self._records: dict[int, _Kept] = {}
        self._last = 0
        self._monitor = Monitor()

    def load(self, known: int | None) -> tuple[int, str] | None:
        """The version and the document; None: the version is still *known*."""
        state = self._state
        return None if state[0] == known else state

    def commit(self, expected: int, document: str, records: Sequence[str]) -> bool:
        """Write the document and the records, unless the version is no longer *expected*."""
        try:
            return self._monitor.run(self._commit, expected, document, records)
        except Reentered:  # the interrupted code is about to write
            return False

    def _commit(self, expected: int, document: str, records: Sequence[str]) -> bool:
        if self._state[0] != expected:
            return False
        for text in records:
            self._last += 1
            self._records[self._last] = _Kept(StoredRecord(self._last, text, told=False))
        for number in list(islice(self._records, max(0, len(self._records) - KEPT))):
            del self._records[number]
        self._state = expected + 1, document
        return True

    def records(self, *, before: int | None = None, limit: int = 100) -> list[StoredRecord]:
        """The newest records, newest first; of those with a number below *before*."""
        kept = self._monitor.read(lambda: list(self._records.values()))
        found = [each.record for each in reversed(kept)]
        if before is not None:
            found = [each for each in found if each.number < before]
        return found[:limit]

    def claim_untold(self, worker: str, lease: float, limit: int) -> list[StoredRecord]:
        """The oldest records that are not told, and that nobody else has claimed."""
        now = self._clock.monotonic()
        try:
            return self._monitor.run(self._claim, worker, now, lease, limit)
        except Reentered:  # they are claimed the next time
            return []

    def _claim(self, worker: str, now: float, lease: float, limit: int) -> list[StoredRecord]:
        free = [each for each in self._records.values() if _is_free(each, worker, now)][:limit]
        for each in free:
            each.worker, each.until = worker, now + lease
        return [each.record for each in free]

    def told(self, numbers: Sequence[int], worker: str) -> None:
        """The notifiers have been told of these."""
        self._monitor.post(self._mark, numbers, worker)

    def _mark(self, numbers: Sequence[int], worker: str) -> None:
        for number in numbers:
            kept = self._records.get(number)
            if kept is not None and kept.worker == worker:
                kept.record = StoredRecord(number, kept.record.text, told=True)

    def close(self) -> None:
        """Nothing is held that would have to be given back."""


def _is_free(kept: _Kept, worker: str, now: float) -> bool:
    return not kept.record.told and (kept.worker in (None, worker) or kept.until <= now)
