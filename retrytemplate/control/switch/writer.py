"""Writes of a kill switch: a command is committed with its records, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from attrs import define

from retrytemplate._internal.failure_text import summary
from retrytemplate.control.switch import transitions
from retrytemplate.control.switch.cache import StateCache, StateSnapshot, load_snapshot
from retrytemplate.control.switch.codec import encode_document, encode_record
from retrytemplate.control.switch.model import AuditRecord, Document
from retrytemplate.errors import SwitchStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from retrytemplate.clock import Clock
    from retrytemplate.control.events import ControlEvent
    from retrytemplate.control.switch.model import SwitchEntry, SwitchScope

    Command = Callable[[Mapping[SwitchScope, SwitchEntry], float], transitions.Change]

# How often a change is repeated after a concurrent one.
MAX_CAS_ATTEMPTS = 100
AUDIT_SCAN = 100


@define(eq=False)
class Writer:
    """Changes the state in a store, also with concurrent writers.

    :param cache: receives each state that is read or written.
    :param notify: called with the events.
    """

    cache: StateCache
    clock: Clock
    notify: Callable[[Iterable[ControlEvent]], None]

    def write(self, command: Command) -> tuple[AuditRecord, ...]:
        """Carry out a command, and restore entries that the store has lost.

        :raises SwitchStoreError: the store does not answer: nothing was changed.
        """
        cache = self.cache
        for _ in range(MAX_CAS_ATTEMPTS):
            began, snapshot = cache.now(), self.read()
            self.notify(cache.accept(snapshot, began))
            lost, now = cache.lost_entries, self.clock.time()
            restored = transitions.restore_lost(snapshot.entries, lost, now)
            change = command(restored.entries, now)
            records = (*restored.records, *change.records)
            if not records:
                self.notify(cache.accept(snapshot, began, lost))
                return ()
            document = Document(change.entries, snapshot.document.store or uuid4().hex)
            if self._commit(snapshot.version, encode_document(document), records):
                written = StateSnapshot(snapshot.version + 1, encode_document(document), document)
                self.notify(cache.accept(written, began, lost))
                return records
        raise SwitchStoreError(
            f"nothing was changed: other processes changed {cache.name!r} during each of "
            f"{MAX_CAS_ATTEMPTS} tries; try again"
        )

    def read(self) -> StateSnapshot:
        """Read the state in the store.

        :raises SwitchStoreError: it does not answer: nothing was changed.
        """
        try:
            return load_snapshot(self.cache.store)
        except SwitchStoreError as exc:
            raise SwitchStoreError(f"{exc}: nothing was changed") from exc

    def _commit(self, expected: int, document: str, records: Sequence[AuditRecord]) -> bool:
        texts = [encode_record(each) for each in records]
        try:
            return self.cache.store.commit(expected, document, texts)
        except Exception as exc:
            if self._was_committed(records[-1], exc):
                return True
            raise SwitchStoreError(f"{_describe_error(exc)}: nothing was changed") from exc

    def _was_committed(self, record: AuditRecord, error: Exception) -> bool:
        """Whether the change was written although the result was lost."""
        try:
            found = self.cache.store.records(limit=AUDIT_SCAN)
        except Exception:
            raise SwitchStoreError(
                f"{_describe_error(error)}: it is unknown whether {record.scope} was changed, "
                "check the report"
            ) from error
        return any(record.id in each.text for each in found)


def _describe_error(error: Exception) -> str:
    return str(error) if isinstance(error, SwitchStoreError) else summary(error)
