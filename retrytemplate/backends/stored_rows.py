"""Rows of a store: the record of a row, and the columns beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate.caches.record import Record, from_json
from retrytemplate.caches.record_schema import SERIAL, TEXT, TIME, Field, fault, loads, or_null
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping


COLUMNS: Mapping[str, Field] = {
    "phase": TEXT,
    "fence": SERIAL,
    "worker": or_null(TEXT),
    "lost": or_null(TEXT),
    "process": or_null(TEXT),
    "lease_until": or_null(TIME),
    "updated": or_null(TIME),
    "expires": or_null(TIME),
    "now": TIME,
}
"""The columns of a store beside the record."""


def parsed(key: str, text: str | bytes) -> Record:
    """The record that the store has under a key."""
    try:
        return from_json(loads(text))
    except (CacheUnavailableError, TypeError, ValueError, RecursionError) as exc:
        raise CacheUnavailableError(f"the record under {key!r} cannot be read: {exc}") from exc


def damaged(key: str, **columns: Any) -> CacheUnavailableError | None:
    """The error about a column that is not valid; None: all are valid."""
    why = fault("", columns, COLUMNS, ())
    return None if why is None else CacheUnavailableError(f"{key!r} cannot be read: {why}")
