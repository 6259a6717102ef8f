"""Events as rows of a table in SQLite or PostgreSQL."""

from __future__ import annotations

import json
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import asdict

from retrytemplate._internal.validation import check_span, check_wait, to_seconds
from retrytemplate._storage.column_keys import TABLE_PREFIXES, from_column_key, to_column_key
from retrytemplate._storage.operation_runner import (
    perform,
    retry_once_if_answer_lost,
    translate_errors,
)
from retrytemplate._storage.sql_connection import Database
from retrytemplate._storage.sql_dialect import META, SET, WRITE_AHEAD
from retrytemplate._storage.sql_engine import missing_file
from retrytemplate._storage.sql_schema import Schema, Tables
from retrytemplate._storage.store_role import StoreRole
from retrytemplate.errors import RetryError
from retrytemplate.observe.event import Event
from retrytemplate.observe.sinks.pages import EventReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine

    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate._storage.sql_schema import Rows
    from retrytemplate.observe.sinks.pages import EventQuery

T = TypeVar("T")
EVENTS = StoreRole(
    "event sink",
    "for events that live as long as the process use MemorySink",
    "put the sink behind a BufferedSink, which writes outside of it",
)
DELETED_AT_ONCE = 1000
DELETION_INTERVAL = 60.0  # seconds between two looks for old rows

VERSION = 1
NUMBER = {
    "sqlite": "integer PRIMARY KEY",
    "postgresql": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}
TABLE = """
CREATE TABLE IF NOT EXISTS ${{prefix}}_event (
    number {number},
    id text NOT NULL UNIQUE,
    type text NOT NULL,
    subject text NOT NULL,
    severity bigint NOT NULL,
    time double precision NOT NULL,
    execution_id text,
    root_id text,
    traceparent text,
    data text NOT NULL,
    correlation text NOT NULL
)"""
INDEX = "CREATE INDEX IF NOT EXISTS ${{prefix}}_event_{0} ON ${{prefix}}_event ({0}, number)"
INDEXED = ("type", "subject", "execution_id", "time")
COLUMNS = (
    *("id", "type", "subject", "severity", "time", "execution_id", "root_id", "traceparent"),
    *("data", "correlation"),
)
TEXTS = ("type", "subject", "execution_id", "root_id", "traceparent")

NAMES = ", ".join(COLUMNS)
INTO = f"INSERT INTO ${{prefix}}_event ({NAMES})"
FROM_JSON = ", ".join(f"json_extract(value, '$.{name}')" for name in COLUMNS)
RECORD = NAMES.replace("severity", "severity bigint").replace(" time,", " time double precision,")
RECORD = ", ".join(each if each.count(" ") else f"{each} text" for each in RECORD.split(", "))
INSERT = {
    "sqlite": f"{INTO} SELECT {FROM_JSON} FROM json_each(:events) WHERE true "
    "ON CONFLICT (id) DO NOTHING",
    "postgresql": f"{INTO} SELECT {NAMES} FROM json_to_recordset(CAST(:events AS json)) "
    f"AS given({RECORD}) ON CONFLICT (id) DO NOTHING",
}
DELETE = """
WITH old AS MATERIALIZED (
    SELECT number FROM ${prefix}_event WHERE time < ${now} - :keep
    ORDER BY time LIMIT :limit ${skip_locked}
)
DELETE FROM ${prefix}_event WHERE number IN (SELECT number FROM old) RETURNING number"""
PAGE = f"SELECT {NAMES} FROM ${{prefix}}_event WHERE true"
CONDITIONS = {
    "type": " AND type = :type",
    "pattern": " AND type LIKE :pattern ESCAPE '!'",
    "subject": " AND subject = :subject",
    "execution_id": " AND execution_id = :execution_id",
    "since": " AND time >= :since",
    "before": " AND number < (SELECT number FROM ${prefix}_event WHERE id = :before)",
}
NEWEST = " ORDER BY number DESC LIMIT :limit"


def _creating(dialect: str) -> list[str]:
    """The statements that create the table; the last one writes its version."""
    made = [TABLE.format(number=NUMBER[dialect]), *(INDEX.format(name) for name in INDEXED), META]
    if dialect == "sqlite":
        made.append(WRITE_AHEAD)
    return [*made, SET % ("event", VERSION)]


SCHEMA = Schema("event", VERSION, _creating)


class EventStoreError(RetryError):
    """Raised by an ``SQLEventSink``: its database cannot be reached, or rejects the statement."""


class SQLEventSink(EventReader):
    """Writes events to a table, and reads them in pages: an audit that processes share.

    :param url: of the database, as SQLAlchemy writes it, or an ``Engine``.  SQLite serves the
        processes of one machine, PostgreSQL those of many.
    :param prefix: of the name of the table, ``{prefix}_event``, which is created on first use.
    :param keep: seconds, or a ``timedelta``, that a row is kept; default 30 days.  Older rows are
        deleted at most 1,000 at a time, after a write.
    :param timeout: seconds to wait for a connection or a lock.
    :raises EventStoreError: from the methods: the database cannot be reached.

    A write is one statement.  Put the sink behind a ``BufferedSink``: a call would wait for the
    database.  Safe for threads, and across a fork.  It needs the extra ``sql``, for PostgreSQL
    ``postgresql``.

    >>> from tempfile import TemporaryDirectory
    >>> from retrytemplate.observe import Event, SQLEventSink
    >>> with TemporaryDirectory() as folder:
    ...     sink = SQLEventSink(f"sqlite:///{folder}/events.db")
    ...     sink.emit(Event(type="call.failed", subject="charge", severity=30, time=2e9))
    ...     print([event.subject for event in sink.page(type="call.*")])
    ...     sink.close()
    ['charge']
    """

    blocking = True

    def __init__(
        self,
        url: str | Engine,
        prefix: str = "retry",
        keep: Seconds = 2_592_000,
        *,
        timeout: Seconds = 5.0,
    ) -> None:
        self.keep: float = to_seconds(keep)
        check_span("keep", self.keep)
        self.prefix = TABLE_PREFIXES.checked(prefix)
        self.timeout = check_wait("timeout", timeout)
        self._database = Database(url, self.timeout, EVENTS)
        self._dialect: str = self._database.engine.dialect.name
        self._tables = Tables(self._dialect, self.prefix, SCHEMA)
        self._next_deletion = 0.0

    def __repr__(self) -> str:
        return f"<SQLEventSink {self._database} prefix={self.prefix!r}>"

    def emit(self, event: Event) -> None:
        """Write the event."""
        self.emit_many([event])

    def emit_many(self, events: Sequence[Event]) -> None:
        """Write the events, all or none."""
        rows = json.dumps([_row(event) for event in events])
        self._ask("write", INSERT[self._dialect], events=rows)
        if monotonic() >= self._next_deletion:
            with suppress(EventStoreError):  # the events are written; a later write tries again
                self._delete_old()

    def exists(self) -> bool:
        """Whether the table exists; nothing is created."""
        return missing_file(self._database.engine.url) is None and self._perform(
            "exists", self._tables.found()
        )

    def _page(self, query: EventQuery) -> list[Event]:
        """In the order in which the events were written."""
        given = asdict(query)
        limit, since = given.pop("limit"), given.pop("since")
        if query.type is not None and "*" in query.type:
            given["pattern"] = _like(given.pop("type"))
        filters: dict[str, Any] = {
            name: to_column_key(value) for name, value in given.items() if value is not None
        }
        if since is not None:
            filters["since"] = float(since)
        conditions = "".join(text for name, text in CONDITIONS.items() if name in filters)
        rows = self._ask("page", f"{PAGE}{conditions}{NEWEST}", limit=limit, **filters)
        return [_event(row) for row in rows]

    def close(self, timeout: float = 5.0) -> None:
        """Close the connections, except those of a given engine; the next use opens others."""
        self._database.close()

    def _delete_old(self) -> None:
        """Delete one batch of old rows; the next write deletes more if it was full."""
        deleted = self._ask("delete", DELETE, keep=self.keep, limit=DELETED_AT_ONCE)
        if len(deleted) < DELETED_AT_ONCE:
            self._next_deletion = monotonic() + DELETION_INTERVAL

    def _ask(self, name: str, statement: str, **parameters: Any) -> Rows:
        """The rows of an idempotent statement.

        :param name: of the operation, for its errors.
        """
        return self._perform(name, self._idempotent(statement, parameters))

    def _idempotent(self, statement: str, parameters: dict[str, Any]) -> Operation[Rows]:
        yield from self._tables.prepare()
        order = self._tables.order(statement, **parameters)
        rows: Rows = yield from retry_once_if_answer_lost(order)
        return rows

    def _perform(self, name: str, step: Operation[T]) -> T:
        step.__name__ = name  # type: ignore[attr-defined]  # a generator
        with translate_errors(EventStoreError):
            return perform(step, self._database.ask)


def _like(pattern: str) -> str:
    """The pattern of ``LIKE`` for one with ``*``."""
    for special in "!%_":
        pattern = pattern.replace(special, f"!{special}")
    return pattern.replace("*", "%")


def _row(event: Event) -> dict[str, Any]:
    values = {name: getattr(event, name) for name in COLUMNS}
    for name in TEXTS:
        if values[name] is not None:
            values[name] = to_column_key(values[name])
    for name in ("data", "correlation"):
        values[name] = json.dumps(dict(values[name]), default=str)
    return values


def _event(row: Any) -> Event:
    values: dict[str, Any] = dict(row._mapping)
    for name in TEXTS:
        if values[name] is not None:
            values[name] = from_column_key(values[name])
    for name in ("data", "correlation"):
        values[name] = json.loads(values[name])
    return Event(**values)
