"""How a command is written: on what the store holds, with its records, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from attrs import define

from retrytemplate.control.switch import transitions
from retrytemplate.control.switch.cache import Copy, View, read
from retrytemplate.control.switch.codec import encode_document, encode_record
from retrytemplate.control.switch.model import AuditRecord, Document
from retrytemplate.errors import SwitchStoreError
from retrytemplate.history import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from retrytemplate.clock import Clock
    from retrytemplate.control.events import ControlEvent
    from retrytemplate.control.switch.model import SwitchEntry, SwitchScope

    Command = Callable[[Mapping[SwitchScope, SwitchEntry], float], transitions.Change]

__all__ = ["LOOK_BACK", "Writer"]

# So often is a change tried anew that another one has come before.
TRIES = 100
LOOK_BACK = 100


@define(eq=False)
class Writer:
    """Changes what a store holds, whoever else writes at the same time.

    :param copy: learns of what is read and written.
    :param tell: is given what that tells.
    """

    copy: Copy
    clock: Clock
    tell: Callable[[Iterable[ControlEvent]], None]

    def write(self, command: Command) -> tuple[AuditRecord, ...]:
        """Carry out a command; what a store has lost is put back with it.

        :raises SwitchStoreError: the store does not answer: nothing was changed.
        """
        copy = self.copy
        for _ in range(TRIES):
            began, view = copy.now(), self.read()
            self.tell(copy.accept(view, began))
            missing, now = copy.missing, self.clock.time()
            restored = transitions.restore(view.entries, missing, now)
            change = command(restored.entries, now)
            records = (*restored.records, *change.records)
            if not records:
                self.tell(copy.accept(view, began, missing))
                return ()
            document = Document(change.entries, view.document.store or uuid4().hex)
            if self._commit(view.version, encode_document(document), records):
                made = View(view.version + 1, encode_document(document), document)
                self.tell(copy.accept(made, began, missing))
                return records
        raise SwitchStoreError(f"others change {copy.name!r} all the time: nothing was changed")

    def read(self) -> View:
        """What the store holds.

        :raises SwitchStoreError: it does not answer: nothing was changed.
        """
        try:
            return read(self.copy.store)
        except SwitchStoreError as exc:
            raise SwitchStoreError(f"{exc}: nothing was changed") from exc

    def _commit(self, expected: int, document: str, records: Sequence[AuditRecord]) -> bool:
        texts = [encode_record(each) for each in records]
        try:
            return self.copy.store.commit(expected, document, texts)
        except Exception as exc:
            if self._stands(records[-1], exc):
                return True
            raise SwitchStoreError(f"{_said(exc)}: nothing was changed") from exc

    def _stands(self, record: AuditRecord, error: Exception) -> bool:
        """Whether it was written though the answer was lost."""
        try:
            found = self.copy.store.records(limit=LOOK_BACK)
        except Exception:
            raise SwitchStoreError(
                f"{_said(error)}: whether {record.scope} was changed is not known, "
                "look at the report"
            ) from error
        return any(record.id in each.text for each in found)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, SwitchStoreError) else summary(error)
