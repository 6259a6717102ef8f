"""What a step has to say whatever the store: a record as text and back, why it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate.caches.record import from_json
from retrytemplate.caches.record_schema import SERIAL, TEXT, TIME, fault, loads, or_null
from retrytemplate.errors import (
    AlreadyCompletedError,
    AttemptInProgressError,
    CacheUnavailableError,
    LeaseLostError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrytemplate.caches.base import Claim
    from retrytemplate.caches.record import Record
    from retrytemplate.caches.record_schema import Field

__all__ = ["COLUMNS", "completed", "damaged", "in_progress", "lost", "parsed"]

COLUMNS: Mapping[str, Field] = {
    "phase": TEXT,
    "fence": SERIAL,
    "worker": or_null(TEXT),
    "lost": or_null(TEXT),
    "lease_until": or_null(TIME),
    "updated": or_null(TIME),
    "expires": or_null(TIME),
    "now": TIME,
}
"""What a store keeps beside a record."""


def parsed(key: str, text: str | bytes) -> Record:
    """The record that the store holds under a key."""
    try:
        return from_json(loads(text))
    except (CacheUnavailableError, TypeError, ValueError, RecursionError) as exc:
        raise CacheUnavailableError(f"the record under {key!r} cannot be read: {exc}") from exc


def damaged(key: str, **columns: Any) -> CacheUnavailableError | None:
    """The error where what the store keeps beside the record does not fit; None where it does."""
    why = fault("", columns, COLUMNS, ())
    return None if why is None else CacheUnavailableError(f"{key!r} cannot be read: {why}")


def in_progress(key: str, worker: str | None, lease_until: float | None) -> AttemptInProgressError:
    """Another holds the key."""
    return AttemptInProgressError(
        f"{key!r} is being worked on by {worker}", worker=worker, lease_until=lease_until
    )


def completed(key: str) -> AlreadyCompletedError:
    """The key's success is remembered."""
    return AlreadyCompletedError(f"{key!r} was completed before")


def lost(claim: Claim) -> LeaseLostError:
    """The claim is not the one in force."""
    if claim.completed:
        return LeaseLostError(f"{claim.key!r} was completed: what came after it is not recorded")
    return LeaseLostError(f"{claim.key!r} is no longer held by {claim.worker}")
