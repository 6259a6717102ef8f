"""The protocol of switch stores, the store in memory, the base of the durable ones."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import define, frozen

from retrytemplate._internal.locks import Monitor, Reentered
from retrytemplate._internal.validation import check_wait
from retrytemplate._storage.operation_runner import (
    AnswerLateError,
    AnswerLostError,
    perform,
    translate_errors,
)
from retrytemplate._storage.store_role import StoreRole
from retrytemplate.clock import given_or_system
from retrytemplate.errors import CacheUnavailableError, SwitchStoreError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.column_keys import Prefixes
    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate.clock import Clock

    T = TypeVar("T")


# The most changes that are kept in the memory of a process.
MAX_RECORDS = 10_000


@frozen
class StoredRecord:
    """One change, as a store keeps it.

    :param number: grows from record to record, from 1.
    :param text: the change as the switch wrote it; empty if the stored value is not text.
    :param notified: whether the notifiers have received it.
    """

    number: int
    text: str
    notified: bool


@runtime_checkable
class SwitchStore(Protocol):
    """Protocol of the stores of a ``KillSwitch``: a versioned document and a list of records.

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

    def claim_pending_notifications(
        self, worker: str, lease: float, limit: int
    ) -> list[StoredRecord]:
        """The oldest pending records that no other worker has claimed.

        They are this worker's for *lease* seconds by the store's clock, or until they are marked.
        """
        ...

    def mark_notified(self, numbers: Sequence[int], worker: str) -> None:
        """Mark these as notified, unless another worker has claimed them since."""
        ...

    def close(self) -> None:
        """Release the resources of the store."""
        ...


@define(eq=False)
class _ClaimableRecord:
    record: StoredRecord
    worker: str | None = None
    until: float = 0.0


class MemorySwitchStore:
    """A store in the memory of one process, for one switch or several.

    :param clock: measures how long claims last; None: the system's clock.

    The state is lost with the process; the newest 10,000 records are kept.

    >>> store = MemorySwitchStore()
    >>> store.commit(0, "state", ["change"]), store.commit(0, "late", [])
    (True, False)
    >>> store.load(None)
    (1, 'state')
    >>> store.records()
    [StoredRecord(number=1, text='change', notified=False)]
    """

    shared = False

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = given_or_system(clock)
        self._state = 0, ""
        self._records: dict[int, _ClaimableRecord] = {}
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
            self._records[self._last] = _ClaimableRecord(
                StoredRecord(self._last, text, notified=False)
            )
        for number in list(islice(self._records, max(0, len(self._records) - MAX_RECORDS))):
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

    def claim_pending_notifications(
        self, worker: str, lease: float, limit: int
    ) -> list[StoredRecord]:
        """The oldest pending records that no other worker has claimed."""
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

    def mark_notified(self, numbers: Sequence[int], worker: str) -> None:
        """Mark these as notified."""
        self._monitor.post(self._mark_notified, numbers, worker)

    def _mark_notified(self, numbers: Sequence[int], worker: str) -> None:
        for number in numbers:
            kept = self._records.get(number)
            if kept is not None and kept.worker == worker:
                kept.record = StoredRecord(number, kept.record.text, notified=True)

    def close(self) -> None:
        """Do nothing: the store holds no resources."""


def _is_free(kept: _ClaimableRecord, worker: str, now: float) -> bool:
    return not kept.record.notified and (kept.worker in (None, worker) or kept.until <= now)


KILL_SWITCH = StoreRole(
    "kill switch",
    "for stops in one process use MemorySwitchStore",
    "give the switch a file of its own",
)


class StoreOperations(Protocol):
    """Protocol of the operations of a store, as generators of commands."""

    def load(self, known: int | None) -> Operation[tuple[int, str] | None]: ...

    def commit(
        self, expected: int, document: str, records: Sequence[str], again: bool
    ) -> Operation[bool]:
        """Write, if the version is as expected.

        :param again: it may have been written before, and then counts as written now.
        """
        ...

    def records(self, before: int | None, limit: int) -> Operation[list[StoredRecord]]: ...

    def claim_pending_notifications(
        self, worker: str, lease: float, limit: int
    ) -> Operation[list[StoredRecord]]: ...

    def mark_notified(self, numbers: Sequence[int], worker: str) -> Operation[None]: ...


class DurableSwitchStore:
    """The methods of a store that outlives the process; a store says how to perform a step."""

    shared = True

    _prefixes: Prefixes
    _operations: StoreOperations
    _store: Any

    def __init__(self, prefix: Any, timeout: Seconds) -> None:
        self.prefix = self._prefixes.checked(prefix)
        self.timeout = check_wait("timeout", timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store} prefix={self.prefix!r}>"

    def load(self, known: int | None) -> tuple[int, str] | None:
        """The version and the document, in one round trip; None: the version is still *known*."""
        with translate_errors(SwitchStoreError):
            return self._perform(self._operations.load(known))

    def commit(self, expected: int, document: str, records: Sequence[str]) -> bool:
        """Write the document and add the records, unless the version is no longer *expected*.

        After a lost answer, a committed change is recognised by its records.
        """
        with translate_errors(SwitchStoreError):
            try:
                return self._in_transaction(
                    self._operations.commit(expected, document, records, False)
                )
            except (AnswerLateError, AnswerLostError):
                return self._confirm_commit(expected, document, records)

    def _confirm_commit(self, expected: int, document: str, records: Sequence[str]) -> bool:
        return self._in_transaction(self._operations.commit(expected, document, records, True))

    def records(self, *, before: int | None = None, limit: int = 100) -> list[StoredRecord]:
        """The newest records, newest first; of those with a number below *before*."""
        with translate_errors(SwitchStoreError):
            return self._perform(self._operations.records(before, limit))

    def claim_pending_notifications(
        self, worker: str, lease: float, limit: int
    ) -> list[StoredRecord]:
        """The oldest pending records that no other worker has claimed."""
        with translate_errors(SwitchStoreError):
            return self._perform(self._operations.claim_pending_notifications(worker, lease, limit))

    def mark_notified(self, numbers: Sequence[int], worker: str) -> None:
        """Mark these as notified, unless another worker has claimed them since."""
        if not numbers:
            return
        with translate_errors(SwitchStoreError):
            try:
                self._in_transaction(self._operations.mark_notified(numbers, worker))
            except AnswerLostError:
                self._in_transaction(self._operations.mark_notified(numbers, worker))

    def is_made(self) -> bool:
        """Whether the tables or keys exist; the first use of the other methods creates them.

        :raises SwitchStoreError: it cannot be reached, or is of a later version.
        """
        return True

    def close(self) -> None:
        """Close the store's own connections; later use opens new ones."""
        self._store.close()

    def _perform(self, step: Operation[T]) -> T:
        """Run a step that is one order."""
        return perform(step, self._store.ask)

    def _in_transaction(self, step: Operation[T]) -> T:
        """Run an operation in one transaction."""
        return self._perform(step)


def to_stored_record(number: Any, text: Any, notified: Any) -> StoredRecord:
    """A record from the row of a store; a text that cannot be read becomes empty."""
    if not isinstance(number, int):
        raise unreadable_error(f"record {number!r}")
    return StoredRecord(number, text if isinstance(text, str) else "", bool(notified))


def unreadable_error(what: str) -> CacheUnavailableError:
    """The store holds something else than a switch has written."""
    return CacheUnavailableError(f"{what} in the store of the kill switch cannot be read")
