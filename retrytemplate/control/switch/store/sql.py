"""The switch store in SQLite or PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from retrytemplate._storage.column_keys import TABLE_PREFIXES
from retrytemplate._storage.operation_runner import retry_once_if_answer_lost, translate_errors
from retrytemplate._storage.sql_connection import Database
from retrytemplate._storage.sql_dialect import META, SET, WRITE_AHEAD
from retrytemplate._storage.sql_schema import Schema, Tables
from retrytemplate.control.switch.store.base import (
    KILL_SWITCH,
    DurableSwitchStore,
    to_stored_record,
    unreadable_error,
)
from retrytemplate.errors import SwitchStoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine

    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate.control.switch.store.base import StoredRecord


T = TypeVar("T")


class SQLSwitchStore(DurableSwitchStore):
    """Store of a kill switch in a database, shared by processes.

    :param url: of the database, as SQLAlchemy writes it, or an ``Engine``.  SQLite serves the
        processes of one machine, PostgreSQL those of many.
    :param prefix: of the names of the tables, ``{prefix}_switch`` and ``{prefix}_switch_audit``,
        which are made on first use.  Their version is a row of ``{prefix}_meta``.
    :param timeout: seconds to wait for a connection or a lock.

    A change and its records are one transaction.  Safe for threads, and across a fork.  It needs
    the extra ``sql``, for PostgreSQL ``postgresql``.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     store = SQLSwitchStore(f"sqlite:///{folder}/switch.db")
    ...     store.commit(0, "state", ["change"])
    ...     store.load(None)
    ...     store.close()
    True
    (1, 'state')
    """

    _prefixes = TABLE_PREFIXES

    def __init__(self, url: str | Engine, prefix: str = "retry", *, timeout: Seconds = 5.0) -> None:
        super().__init__(prefix, timeout)
        self._store: Database = Database(url, self.timeout, KILL_SWITCH)
        dialect = self._store.engine.dialect.name
        operations = _SQLOperations(dialect, self.prefix)
        self._operations = operations
        self._prepare, self._tables_exist = operations.prepare, operations.exists

    def is_made(self) -> bool:
        """Whether the tables exist; the first use of other methods creates them.

        :raises SwitchStoreError: the database cannot be reached, or they are of a later version.
        """
        with translate_errors(SwitchStoreError):
            return self._perform(self._tables_exist())

    def _in_transaction(self, step: Operation[T]) -> T:
        self._perform(self._prepare())
        return self._store.run_in_transaction(step)


class _SQLOperations:
    """The steps of a store on the tables of one prefix."""

    def __init__(self, dialect: str, prefix: str) -> None:
        tables = Tables(dialect, prefix, TABLES)
        self._order = tables.order
        self.prepare, self._found = tables.prepare, tables.found

    def exists(self) -> Operation[bool]:
        return (yield from self._found())

    def load(self, known: int | None) -> Operation[tuple[int, str] | None]:
        yield from self.prepare()
        rows = yield from retry_once_if_answer_lost(self._order(LOAD, known=known))
        version, document = rows[0] if rows else (None, None)
        if not isinstance(version, int) or not isinstance(document, str):
            raise unreadable_error("the state")
        return None if version == known else (version, document)

    def commit(
        self, expected: int, document: str, records: Sequence[str], again: bool
    ) -> Operation[bool]:
        """In one transaction: the lock on the row is held until the records are there."""
        version = expected + 1
        changed = self._order(CHANGE, expected=expected, version=version, document=document)
        if not (yield changed):
            return again and (yield from self._was_committed(version, document, records))
        for record in records:
            yield self._order(APPEND, version=version, record=record)
        return True

    def _was_committed(
        self, version: int, document: str, records: Sequence[str]
    ) -> Operation[bool]:
        """Whether these records belong to the committed version."""
        if not records:
            rows = yield self._order(LOAD, known=None)
            return [tuple(row) for row in rows] == [(version, document)]
        rows = yield self._order(OF_VERSION, version=version)
        return [row[0] for row in rows] == list(records)

    def records(self, before: int | None, limit: int) -> Operation[list[StoredRecord]]:
        yield from self.prepare()
        rows = yield from retry_once_if_answer_lost(
            self._order(RECORDS, before=before, limit=limit)
        )
        return [to_stored_record(*row) for row in rows]

    def claim_pending_notifications(
        self, worker: str, lease: float, limit: int
    ) -> Operation[list[StoredRecord]]:
        yield from self.prepare()
        order = self._order(CLAIM, worker=worker, lease=lease, limit=limit)
        # The second time they are this worker's already.
        rows = yield from retry_once_if_answer_lost(order)
        return sorted((to_stored_record(*row) for row in rows), key=lambda record: record.number)

    def mark_notified(self, numbers: Sequence[int], worker: str) -> Operation[None]:
        for number in numbers:
            yield self._order(MARK_NOTIFIED, number=number, worker=worker)


VERSION = 1
SWITCH = """
CREATE TABLE IF NOT EXISTS ${prefix}_switch (
    name text NOT NULL PRIMARY KEY,
    version bigint NOT NULL,
    document text NOT NULL
)"""
AUDIT = """
CREATE TABLE IF NOT EXISTS ${prefix}_switch_audit (
    number bigint NOT NULL PRIMARY KEY,
    version bigint NOT NULL,
    record text NOT NULL,
    written double precision NOT NULL,
    worker text,
    lease_until double precision,
    notified double precision
)"""
PENDING = """
CREATE INDEX IF NOT EXISTS ${prefix}_switch_pending ON ${prefix}_switch_audit (number)
WHERE notified IS NULL"""
INITIAL_ROW = """
INSERT INTO ${prefix}_switch (name, version, document) VALUES ('stopped', 0, '')
ON CONFLICT (name) DO NOTHING"""

LOAD = """
SELECT version, CASE WHEN version = CAST(:known AS bigint) THEN '' ELSE document END
FROM ${prefix}_switch WHERE name = 'stopped'"""
CHANGE = """
UPDATE ${prefix}_switch SET version = :version, document = :document
WHERE name = 'stopped' AND version = :expected RETURNING 1"""
APPEND = """
INSERT INTO ${prefix}_switch_audit (number, version, record, written)
SELECT coalesce(max(number), 0) + 1, :version, :record, ${now} FROM ${prefix}_switch_audit"""
OF_VERSION = "SELECT record FROM ${prefix}_switch_audit WHERE version = :version ORDER BY number"
RECORDS = """
SELECT number, record, notified IS NOT NULL FROM ${prefix}_switch_audit
WHERE CAST(:before AS bigint) IS NULL OR number < CAST(:before AS bigint)
ORDER BY number DESC LIMIT :limit"""
FREE = "notified IS NULL AND (worker IS NULL OR worker = :worker OR lease_until <= ${now})"
# Materialized: looked for again row by row, behind each that is claimed would come another.  The
# outer condition is looked at again where a record was claimed in the meantime.
CLAIM = f"""
WITH free AS MATERIALIZED (
    SELECT number FROM ${{prefix}}_switch_audit WHERE {FREE}
    ORDER BY number LIMIT :limit ${{skip_locked}}
)
UPDATE ${{prefix}}_switch_audit SET worker = :worker, lease_until = ${{now}} + :lease
WHERE number IN (SELECT number FROM free) AND {FREE}
RETURNING number, record, false"""
MARK_NOTIFIED = """
UPDATE ${prefix}_switch_audit SET notified = ${now}
WHERE number = :number AND worker = :worker AND notified IS NULL"""


def _creating(dialect: str) -> list[str]:
    """The statements that create the tables; the version is written last."""
    made = [SWITCH, AUDIT, PENDING, INITIAL_ROW, META]
    if dialect == "sqlite":
        made.append(WRITE_AHEAD)
    return [*made, SET % ("switch", VERSION)]


TABLES = Schema("switch", VERSION, _creating)
