"""Operations of the SQL caches as generators of statements."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from retrytemplate._storage.column_keys import from_column_key, to_column_key
from retrytemplate._storage.operation_runner import AnswerLostError, retry_once_if_answer_lost
from retrytemplate._storage.process_liveness import process_fingerprint
from retrytemplate._storage.sql_schema import LockedError, Schema, Tables
from retrytemplate.backends.leases import LeasedClaim
from retrytemplate.backends.sql import statements as sql
from retrytemplate.backends.stored_rows import damaged, parsed
from retrytemplate.caches.base import Claim, completed, in_progress, lost
from retrytemplate.caches.record import Record, to_text
from retrytemplate.errors import AttemptInProgressError, CacheUnavailableError, MisuseError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate._storage.sql_schema import Order, Rows

CONTEXTS = Schema("schema", sql.SCHEMA, sql.schema)
AT_ONCE = 1000
SWEEP_EVERY = 100
SWEPT = 2 * SWEEP_EVERY  # more than are taken meanwhile: the number of expired keys is bounded


class SQLClaim(LeasedClaim):
    """A claim of a key in a table.

    ``empty``: there was no row of the key, and nothing was written since.  ``undone``: the claim
    was ended in a transaction that was rolled back, to its begin or to a savepoint.
    """

    __slots__ = ("empty", "undone")

    empty: bool
    undone: bool


class Steps:
    """The operations of a cache on the tables of one prefix.

    :param lease: seconds; default of a claim.
    :param ttl: seconds after the last write when a key is deleted; None: never.
    """

    def __init__(self, dialect: str, prefix: str, lease: float, ttl: float | None) -> None:
        self._dialect = dialect
        self.prefix = prefix
        self.lease = lease
        self.ttl = ttl
        self._begun = count(1)
        self._tables = Tables(dialect, prefix, CONTEXTS)
        self._order = self._tables.order

    def begin(
        self, key: str, worker: str, lease: float | None, fresh: bool, takeover: str | None
    ) -> Operation[SQLClaim]:
        """Take the key, or raise the reason."""
        yield from self.prepare()
        if next(self._begun) % SWEEP_EVERY == 0:
            yield from self._sweep()
        seconds = self.lease if lease is None else lease
        wanted = {
            "key": to_column_key(key),
            "worker": worker,
            "process": process_fingerprint(),
            "lease": seconds,
            "fresh": fresh,
            "takeover": takeover,
        }
        try:
            # The same worker may repeat it: both are one claim, with the fence of the last one.
            rows = yield from retry_once_if_answer_lost(
                self._order(sql.BEGIN, **wanted, ttl=self.ttl)
            )
        except LockedError as exc:  # perhaps by its holder, whose attempt ends in a transaction
            raise ((yield from self._refusal(key)) or exc) from exc.__cause__
        if not rows:
            raise (yield from self._refusal(key)) or AttemptInProgressError(
                f"{key!r} was being worked on just now"
            )
        text, fence, lease_until, before, phase = rows[0]
        claim = SQLClaim(key, worker, None, fence, lease_until, None if fresh else before)
        claim.lease = seconds
        claim.undone = False
        claim.empty = text is None and before is None and phase == "attempting"
        error = damaged(key, fence=fence, lost=before)
        if error is not None:
            yield from self.release(claim)
            raise error
        if text is not None and not fresh:
            try:
                claim.read(parsed(key, text))
            except CacheUnavailableError:  # no attempt has begun
                yield from self.release(claim)
                raise
        return claim

    def _refusal(self, key: str) -> Operation[Exception | None]:
        """The error that says why the key cannot be taken; None: it can be taken now."""
        rows = yield from retry_once_if_answer_lost(
            self._order(sql.REFUSAL, key=to_column_key(key))
        )
        worker, process, lease_until, held, done = rows[0] if rows else (None,) * 5
        if held:
            error = damaged(key, worker=worker, process=process, lease_until=lease_until)
            return error or in_progress(key, worker, lease_until, process)
        return completed(key) if done else None

    def renew(self, claim: SQLClaim) -> Operation[None]:
        """Extend the lease by its first duration."""
        rows = yield from retry_once_if_answer_lost(
            self._order(sql.RENEW, **_claim_columns(claim), lease=claim.lease)
        )
        claim.lease_until = _returned_value(claim, rows)

    def fail(self, claim: SQLClaim, record: Record, connection: Any) -> Operation[None]:
        """Write the record; keep the key if the record has a worker."""
        written, holder = _phase_columns(record), record.worker
        order = self._order(
            sql.FAIL,
            **_claim_columns(claim),
            **written,
            holder=holder,
            lease=claim.lease,
            ttl=self.ttl,
        )
        if connection is not None:  # the claim is changed by nothing that may be rolled back
            _returned_value(claim, (yield order))
            return
        try:
            rows = yield order
        except AnswerLostError:
            rows = yield order
            if not rows and holder is None:  # the claim has ended: by the first write?
                rows = yield self._order(sql.WRITTEN, **_claim_columns(claim), **written)
        claim.lease_until = _returned_value(claim, rows)
        claim.version = record.version
        # The row exists: a transaction that ended the attempt was rolled back.
        claim.completed = False
        claim.empty = False

    def succeed(
        self,
        claim: SQLClaim,
        remember: float | None,
        connection: Any,
        record: Record | None,
    ) -> Operation[None]:
        """Delete the key, or leave a completion marker."""
        if claim.undone and connection is None:
            return (yield from self._undo(claim))
        statement, columns = _end_of(claim, remember, record)
        rows = yield self._order(statement, **columns)
        _returned_value(claim, rows)
        if connection is not None:
            track_rollback(claim, connection)

    def succeed_with(
        self,
        claim: SQLClaim,
        also: str,
        parameters: dict[str, Any],
        remember: float | None,
        record: Record | None,
    ) -> Operation[bool]:
        """The same and another statement, together; whether that one returned a row."""
        statement, columns = _end_of(claim, remember, record)
        if self._dialect == "sqlite":  # no statement of it contains two writes
            order: Any = [self._order(statement, **columns), self._order(also, **parameters)]
            ended, others = yield order
        else:
            order = self._order(sql.ENDED_WITH % (statement, also), **columns, **parameters)
            [(ended, others)] = yield order
        if not ended:
            raise lost(claim)
        return bool(others)

    def _undo(self, claim: SQLClaim) -> Operation[None]:
        """Release the key if it is held: the end of the claim may have been rolled back."""
        if (yield self._release_order(claim)):
            raise MisuseError(
                f"{claim.key!r}: the transaction of complete_in() was rolled back: commit it, or "
                "let an error leave the callback; the attempt is not counted"
            )

    def release(self, claim: SQLClaim) -> Operation[None]:
        """End the claim; restore the key."""
        yield from retry_once_if_answer_lost(self._release_order(claim))

    def _release_order(self, claim: SQLClaim) -> Order:
        return self._order(sql.FINISH if claim.empty else sql.GIVE_BACK, **_claim_columns(claim))

    def holds(self, claim: SQLClaim) -> Operation[bool]:
        """Whether the row names the claim, and its lease has not ended."""
        return bool(
            (yield from retry_once_if_answer_lost(self._order(sql.HOLDS, **_claim_columns(claim))))
        )

    def forget(self, key: str) -> Operation[None]:
        """Delete the key, held or not."""
        yield from self.prepare()
        yield self._order(sql.FORGET, key=to_column_key(key))

    def peek(self, key: str) -> Operation[Record | None]:
        """The record, or None if it is missing or has expired."""
        yield from self.prepare()
        rows = yield from retry_once_if_answer_lost(
            self._order(sql.PEEK, key=to_column_key(key), ttl=self.ttl)
        )
        return parsed(key, rows[0][0]) if rows else None

    def swap(self, key: str, record: Record, version: int) -> Operation[bool]:
        """Write the record if the stored version is *version*."""
        yield from self.prepare()
        where = {"key": to_column_key(key), "ttl": self.ttl, **_phase_columns(record)}
        if version:
            return bool((yield self._order(sql.SWAP, **where, expected=version)))
        return bool((yield self._order(sql.SHARE, **where)))

    def keys(self, after: str, limit: int) -> Operation[list[str]]:
        """The keys that have a record, in order, beginning after *after*."""
        yield from self.prepare()
        order = self._order(sql.KEYS, after=to_column_key(after), limit=limit, ttl=self.ttl)
        rows = yield from retry_once_if_answer_lost(order)
        return [from_column_key(row[0]) for row in rows]

    def purge(self) -> Operation[int]:
        """Delete the expired keys, a batch per statement."""
        yield from self.prepare()
        deleted, after = 0, ""
        while True:
            rows = yield self._order(sql.PURGE, after=after, limit=AT_ONCE, ttl=self.ttl)
            if not rows:
                return deleted
            deleted += len(rows)
            after = max(row[0] for row in rows)

    def _sweep(self) -> Operation[None]:
        """Delete some expired keys, so that a table is bounded without ``purge()``."""
        # After an error the next sweep deletes them.
        with suppress(CacheUnavailableError):
            yield self._order(sql.SWEEP, limit=SWEPT, ttl=self.ttl)

    def prepare(self) -> Operation[None]:
        """Create the tables if they are missing."""
        yield from self._tables.prepare()


def _claim_columns(claim: Claim) -> dict[str, Any]:
    return {"key": to_column_key(claim.key), "fence": claim.fence, "worker": claim.worker}


def _end_of(
    claim: Claim, remember: float | None, record: Record | None
) -> tuple[str, dict[str, Any]]:
    """The statement that ends a claim after a success, and its parameters."""
    columns = _claim_columns(claim)
    if remember is None:
        return sql.FINISH, columns
    return sql.REMEMBER, {**columns, **_record_columns(record), "remember": remember}


def _returned_value(claim: Claim, rows: Rows) -> Any:
    """The value that a write to the row of the claim returned.

    :raises LeaseLostError: there is no such row any more.
    """
    if rows:
        return rows[0][0]
    raise lost(claim)


def _phase_columns(record: Record) -> dict[str, Any]:
    return {**_record_columns(record), "phase": record.phase}


def _record_columns(record: Record | None) -> dict[str, Any]:
    if record is None:
        return {"record": None, "version": 0}
    return {"record": to_text(record), "version": record.version}


# The claims that were ended in the latest transaction of a connection.
_ended: WeakKeyDictionary[Connection, list[SQLClaim]] = WeakKeyDictionary()
# The engines whose connections report the begin and the rollback of each transaction.
_observed: WeakSet[Engine] = WeakSet()


def track_rollback(claim: SQLClaim, connection: Any) -> None:
    """Note a rollback on the claim, which was ended in this connection."""
    inner: Connection = getattr(connection, "sync_connection", None) or connection
    if inner.engine not in _observed:
        _observe(inner.engine)
    claim.undone = False
    _ended.setdefault(inner, []).append(claim)


def _observe(engine: Engine) -> None:
    """Listen to an engine once: listeners of each connection cost more than its statements."""
    from sqlalchemy import event

    for name in ("begin", "begin_twophase"):
        event.listen(engine, name, _has_begun)
    for name in ("rollback", "rollback_twophase", "rollback_savepoint"):
        event.listen(engine, name, _was_rolled_back)
    _observed.add(engine)


def _has_begun(connection: Connection, *_: Any) -> None:
    _ended.pop(connection, None)


def _was_rolled_back(connection: Connection, *_: Any) -> None:
    for claim in _ended.get(connection, ()):
        if claim.completed:
            claim.completed, claim.undone = False, True
