"""Entries and audit records of a kill switch as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from attrs import asdict

from retrytemplate.caches import record_schema
from retrytemplate.control.switch.canary import is_canary
from retrytemplate.control.switch.model import (
    ACTIONS,
    EVERYTHING,
    GLOBAL,
    NAMED_KINDS,
    AuditRecord,
    Document,
    SwitchEntry,
    UnreadableRecord,
    named_scope,
)
from retrytemplate.control.switch.validation import WHEN_EXPIRED
from retrytemplate.errors import SwitchStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrytemplate.caches.record_schema import Field
    from retrytemplate.control.switch.store.base import StoredRecord


FORMAT = 1


# To JSON.


def _to_json_object(value: SwitchEntry | AuditRecord) -> dict[str, Any]:
    data = asdict(value, recurse=False)
    scope = data.pop("scope")
    return {"kind": scope.kind, "name": scope.name, **data}


def _encode(data: dict[str, Any]) -> str:
    return json.dumps({"v": FORMAT, **data}, allow_nan=False, separators=(",", ":"))


# And back.

JSON_ERRORS = TypeError, ValueError, RecursionError


def _is_share(value: Any) -> bool:
    fits, _ = record_schema.TIME
    return fits(value) and 0 <= value <= 100


def _is_canary(value: Any) -> bool:
    shares = isinstance(value, list) and all(map(_is_share, value))
    return shares and (not value or is_canary(value))


SHARE: Field = (_is_share, "a number from 0 to 100")
CANARY: Field = (_is_canary, "a list of numbers that grow from above 0 to 100")

DOCUMENT: Mapping[str, Field] = {
    "v": record_schema.FORMAT_NUMBER,
    "store": record_schema.TEXT,
    "entries": record_schema.LIST,
}
SCOPED: Mapping[str, Field] = {
    "kind": record_schema.one_of(GLOBAL, *NAMED_KINDS),
    "name": record_schema.or_null(record_schema.TEXT),
    "reason": record_schema.TEXT,
    "by": record_schema.TEXT,
    "until": record_schema.or_null(record_schema.TIME),
    "when_expired": record_schema.one_of(*WHEN_EXPIRED),
}
ENTRY: Mapping[str, Field] = {
    **SCOPED,
    "since": record_schema.TIME,
    "cause": record_schema.or_null(record_schema.TEXT),
    "canary": CANARY,
    "step": record_schema.COUNT,
    "reminded": record_schema.or_null(record_schema.TIME),
}
RECORD: Mapping[str, Field] = {
    "v": record_schema.FORMAT_NUMBER,
    **SCOPED,
    "action": record_schema.one_of(*ACTIONS),
    "at": record_schema.TIME,
    "share": SHARE,
    "override": record_schema.FLAG,
    "id": record_schema.TEXT,
}


def encode_record(record: AuditRecord) -> str:
    """Return the record as JSON, in ASCII."""
    return _encode(_to_json_object(record))


def decode_record(text: str, what: str = "the record") -> AuditRecord:
    """Return the record that a JSON text holds.

    :param what: the name of the text in an error.
    :raises SwitchStoreError: the text is not a record.
    """
    return AuditRecord(**_parse_scoped(what, _parse_object(what, text), RECORD))


def encode_document(document: Document) -> str:
    """Return the document as JSON, in ASCII."""
    store = document.store or uuid4().hex
    entries = [_to_json_object(each) for each in document.entries.values()]
    return _encode({"store": store, "entries": entries})


def decode_document(text: str) -> Document:
    """Return the document that a JSON text holds; an empty text is an empty document.

    :raises SwitchStoreError: the text is not a document.
    """
    if not text:
        return Document()
    what = "the document"
    data = _parse_object(what, text)
    _check(what, record_schema.fault("", data, DOCUMENT, DOCUMENT))
    entries = [_parse_entry(f"entry {place}", each) for place, each in enumerate(data["entries"])]
    found = {each.scope: each for each in entries}
    if len(found) < len(entries):
        raise _corrupt(what, "a scope is in it twice")
    return Document(found, data["store"])


def is_newer_format(text: str) -> bool:
    """Whether a later version of the library has written this.

    >>> is_newer_format('{"v": 2}'), is_newer_format('{"v": 1}'), is_newer_format("rubbish")
    (True, False, False)
    """
    try:
        return _newer_format(json.loads(text)) is not None
    except JSON_ERRORS:
        return False


def _newer_format(data: Any) -> int | None:
    number = data.get("v") if isinstance(data, dict) else None
    return number if type(number) is int and number > FORMAT else None


def _parse_object(what: str, text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except JSON_ERRORS as exc:
        raise _corrupt(what, "it is not JSON") from exc
    if not isinstance(data, dict):
        raise _corrupt(what, "it must be a JSON object")
    number = _newer_format(data)
    if number is not None:
        raise SwitchStoreError(f"{what} has format {number}, this version reads up to {FORMAT}")
    return data


def _parse_scoped(what: str, data: Any, known: Mapping[str, Field]) -> dict[str, Any]:
    _check(what, record_schema.fault("", data, known, known))
    found = {name: value for name, value in data.items() if name not in ("v", "kind", "name")}
    kind, name = data["kind"], data["name"]
    if kind == GLOBAL and name is not None:
        raise _corrupt(what, "name must be null where everything is stopped")
    try:
        scope = EVERYTHING if kind == GLOBAL else named_scope(kind, name)
    except TypeError as exc:
        raise _corrupt(what, str(exc)) from None
    return {**found, "scope": scope}


def _parse_entry(what: str, data: Any) -> SwitchEntry:
    if not isinstance(data, dict):
        raise _corrupt(what, "it must be a JSON object")
    found = _parse_scoped(what, data, ENTRY)
    found["canary"] = tuple(found["canary"])
    if found["step"] >= max(len(found["canary"]), 1):
        raise _corrupt(what, "step must be one before the canary's last")
    return SwitchEntry(**found)


def _check(what: str, why: str | None) -> None:
    if why is not None:
        raise _corrupt(what, why)


def _corrupt(what: str, why: str) -> SwitchStoreError:
    return SwitchStoreError(f"{what} in the store of a kill switch cannot be read: {why}")


def read_record(stored: StoredRecord) -> AuditRecord | UnreadableRecord:
    """Decode the stored record of a change.

    >>> from retrytemplate.control import StoredRecord
    >>> print(read_record(StoredRecord(17, "rubbish", notified=False)))
    record 17 in the store of a kill switch cannot be read: it is not JSON
    """
    number, text = stored.number, stored.text
    try:
        return decode_record(text, f"record {number}")
    except SwitchStoreError as exc:
        return UnreadableRecord(number=number, reason=str(exc), later=is_newer_format(text))
