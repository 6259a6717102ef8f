"""Whether a transaction of the caller's, in which a claim was ended, has been rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from retrytemplate.stores.steps import SQLClaim

__all__ = ["follow"]

# The claims that were ended in the latest transaction of a connection.
_ended: WeakKeyDictionary[Connection, list[SQLClaim]] = WeakKeyDictionary()


def follow(claim: SQLClaim, connection: Any) -> None:
    """Let a rollback be noted on the claim, which has been ended in this connection."""
    from sqlalchemy import event

    inner: Connection = getattr(connection, "sync_connection", None) or connection
    if inner not in _ended:
        _ended[inner] = []
        for name in ("begin", "begin_twophase"):
            event.listen(inner, name, _has_begun)
        for name in ("rollback", "rollback_twophase", "rollback_savepoint"):
            event.listen(inner, name, _was_rolled_back)
    claim.undone = False
    _ended[inner].append(claim)


def _has_begun(connection: Connection, *_: Any) -> None:
    _ended[connection].clear()


def _was_rolled_back(connection: Connection, *_: Any) -> None:
    for claim in _ended[connection]:
        if claim.completed:
            claim.completed, claim.undone = False, True
