"""Records of changes, as a store gives them: read, or said to be such as cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from retrytemplate.control.switch.entries import AuditRecord, decode_record, is_later
from retrytemplate.errors import SwitchStoreError

if TYPE_CHECKING:
    from retrytemplate.control.switch.stores import StoredRecord

__all__ = ["UnreadableRecord", "read_record"]


@frozen(kw_only=True)
class UnreadableRecord:
    """One change of which nothing else is known.

    :param number: of the record, in its store.
    :param why: it cannot be read.
    :param later: whether a later version of the library has written it, and can read it.
    """

    number: int
    why: str
    later: bool

    def __str__(self) -> str:
        return self.why


def read_record(stored: StoredRecord) -> AuditRecord | UnreadableRecord:
    """What a store has kept of a change.

    >>> from retrytemplate.control import StoredRecord
    >>> print(read_record(StoredRecord(17, "rubbish", told=False)))
    record 17 in the store of a kill switch cannot be read: it is no JSON
    """
    number, text = stored.number, stored.text
    try:
        return decode_record(text, f"record {number}")
    except SwitchStoreError as exc:
        return UnreadableRecord(number=number, why=str(exc), later=is_later(text))
