"""A kill switch's store in a database, SQLite or PostgreSQL."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from retrytemplate._storage import sql_connection, sql_engine
from retrytemplate._storage.operation_runner import perform, twice
from retrytemplate._storage.sql_schema import Tables
from retrytemplate.backends.durable import TABLE_PREFIXES
from retrytemplate.control.switch import statements as sql
from retrytemplate.control.switch.durable import (
    KILL_SWITCH,
    DurableSwitchStore,
    kept,
    typed,
    unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine

    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.operation_runner import Step
    from retrytemplate.control.switch.stores import StoredRecord

T = TypeVar("T")

__all__ = ["SQLSwitchStore"]

# One that takes the lock with its first write.
TRANSACTION = {"sqlite": "SERIALIZABLE", "postgresql": "READ COMMITTED"}


class SQLSwitchStore(DurableSwitchStore):
    """What a kill switch has stopped, in a database: all processes that share it stop together.

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
    ...     store.commit(0, "what is stopped", ["who stopped it"])
    ...     store.load(None)
    ...     store.close()
    True
    (1, 'what is stopped')
    """

    _prefixes = TABLE_PREFIXES

    def __init__(self, url: str | Engine, prefix: str = "retry", *, timeout: Seconds = 5.0) -> None:
        super().__init__(prefix, timeout)
        self._engine = sql_engine.engine(url, self.timeout, KILL_SWITCH)
        self._others = self._engine.pool is getattr(url, "pool", None)
        dialect = self._engine.dialect.name
        self._whole = self._engine.execution_options(isolation_level=TRANSACTION[dialect])
        steps = _Steps(dialect, self.prefix)
        self._steps = steps
        self._prepare, self._look = steps.prepare, steps.look
        self._begin_life()

    def close(self) -> None:
        """Close the connections that are the store's own; what is used after that opens others."""
        if not self._others:
            self._engine.dispose()

    def is_made(self) -> bool:
        """Whether the tables are there; the first use of other methods makes them.

        :raises SwitchStoreError: the database cannot be reached, or they are of a later version.
        """
        with typed():
            return self._perform(self._look())

    def _place(self) -> object:
        return sql_engine.where(self._engine)

    def _reconnect(self) -> object:
        return sql_engine.let_go(self._engine)

    def _perform(self, step: Step[T]) -> T:
        return perform(step, partial(sql_connection.run, self._engine, None, owner=KILL_SWITCH))

    def _together(self, step: Step[T]) -> T:
        self._perform(self._prepare())
        return sql_connection.together(self._whole, step, KILL_SWITCH)


class _Steps:
    """The steps of a store on the tables of one prefix."""

    def __init__(self, dialect: str, prefix: str) -> None:
        tables = Tables(dialect, prefix, sql.TABLES)
        self._order = tables.order
        self.prepare, self._found = tables.prepare, tables.found

    def look(self) -> Step[bool]:
        return (yield from self._found())

    def load(self, known: int | None) -> Step[tuple[int, str] | None]:
        yield from self.prepare()
        rows = yield from twice(self._order(sql.LOAD, known=known))
        version, document = rows[0] if rows else (None, None)
        if not isinstance(version, int) or not isinstance(document, str):
            raise unreadable("what is stopped")
        return None if version == known else (version, document)

    def commit(
        self, expected: int, document: str, records: Sequence[str], again: bool
    ) -> Step[bool]:
        """In one transaction: the lock on the row is held until the records are there."""
        version = expected + 1
        changed = self._order(sql.CHANGE, expected=expected, version=version, document=document)
        if not (yield changed):
            return again and (yield from self._stands(version, document, records))
        for record in records:
            yield self._order(sql.APPEND, version=version, record=record)
        return True

    def _stands(self, version: int, document: str, records: Sequence[str]) -> Step[bool]:
        """Whether it is these that have made the version."""
        if not records:
            rows = yield self._order(sql.LOAD, known=None)
            return [tuple(row) for row in rows] == [(version, document)]
        rows = yield self._order(sql.OF_VERSION, version=version)
        return [row[0] for row in rows] == list(records)

    def records(self, before: int | None, limit: int) -> Step[list[StoredRecord]]:
        yield from self.prepare()
        rows = yield from twice(self._order(sql.RECORDS, before=before, limit=limit))
        return [kept(*row) for row in rows]

    def claim_untold(self, worker: str, lease: float, limit: int) -> Step[list[StoredRecord]]:
        yield from self.prepare()
        order = self._order(sql.CLAIM, worker=worker, lease=lease, limit=limit)
        rows = yield from twice(order)  # the second time they are this worker's already
        return sorted((kept(*row) for row in rows), key=lambda record: record.number)

    def told(self, numbers: Sequence[int], worker: str) -> Step[None]:
        for number in numbers:
            yield self._order(sql.TOLD, number=number, worker=worker)
