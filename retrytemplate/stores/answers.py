"""What a step has to say whatever the store: a record as text and back, why it is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from retrytemplate.caches.record import from_json
from retrytemplate.errors import (
    AlreadyCompletedError,
    AttemptInProgressError,
    CacheUnavailableError,
    LeaseLostError,
)

if TYPE_CHECKING:
    from retrytemplate.caches.base import Claim
    from retrytemplate.caches.record import Record

__all__ = ["completed", "in_progress", "lost", "parsed"]


def parsed(key: str, text: str | bytes) -> Record:
    """The record that the store holds under a key."""
    try:
        return from_json(json.loads(text))
    except (CacheUnavailableError, ValueError, RecursionError) as exc:
        raise CacheUnavailableError(f"the record under {key!r} cannot be read: {exc}") from exc


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
