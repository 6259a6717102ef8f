"""Tables of the journal, their creation, and the database's clock."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.imports import extra
from retrytemplate._storage.sql_dialect import DIALECT_FRAGMENTS
from retrytemplate.batch.errors import JobRepositoryError

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData, Table

__all__ = ["SCHEMA", "Tables", "check_tables", "clock", "create", "new_row", "now", "tables"]


SCHEMA = 1
"""The version of the tables."""


@frozen
class Tables:
    """The tables under one prefix.

    :param runs: a row a run: who has it, its counts, and the chunk in flight.
    :param letters: a row a dead letter, with its attempts and with what became of it.
    :param messages: what is to be sent after the commit, until it is.
    :param meta: the version of the tables.
    """

    metadata: MetaData
    meta: Table
    runs: Table
    letters: Table
    messages: Table


@lru_cache
def tables(prefix: str) -> Tables:
    """The tables whose names begin with *prefix*."""
    with extra("batch", "a job repository"):
        from sqlalchemy import (
            BigInteger,
            Column,
            Double,
            ForeignKey,
            Index,
            Integer,
            MetaData,
            Table,
            Text,
            UniqueConstraint,
        )

    metadata = MetaData()
    number = BigInteger().with_variant(Integer(), "sqlite")

    def column(name: str, kind: Any = Text, *more: Any, null: bool = False, **options: Any) -> Any:
        return Column(name, kind, *more, nullable=null, **options)

    def key(name: str = "id") -> Any:
        return column(name, number, primary_key=True, autoincrement=True)

    meta = Table(
        f"{prefix}_meta", metadata, column("name", primary_key=True), column("value", number)
    )
    runs = Table(
        f"{prefix}_runs",
        metadata,
        key(),
        column("step"),
        column("parameters"),
        column("digest"),  # of the parameters: an index takes no text of any length
        column("generation", number),
        column("status"),
        # Who has it: only grows; every write compares both.
        column("fence", number),
        column("seq", number),
        column("worker", null=True),
        column("process", null=True),
        column("lease_until", Double, null=True),
        *(column(name, number) for name in COUNTS),
        column("checkpoint"),
        column("error", null=True),
        column("progress", Double, null=True),
        column("exactly_once", number),
        column("code_version", null=True),
        column("started", Double),
        # When who has it now, or had it last, took it, and how many items were done by then.
        column("taken", Double, null=True),
        column("done_before", number),
        column("updated", Double),
        column("ended", Double, null=True),
        UniqueConstraint("step", "digest", "generation"),
    )
    letters = Table(
        f"{prefix}_letters",
        metadata,
        key(),
        column("run", number, ForeignKey(runs.c.id)),
        column("step"),
        column("source"),
        column("number", number),
        column("item_key"),
        column("ordinal", number),
        column("phase"),
        column("payload"),
        column("replayable", number),
        column("error_type"),
        column("error_message"),
        column("attempts"),
        column("code_version", null=True),
        column("state"),
        column("created", Double),
        column("resolved", Double, null=True),
        column("audit"),
        UniqueConstraint("run", "source", "number"),
        Index(f"{prefix}_letters_state", "step", "state"),
        Index(f"{prefix}_letters_key", "run", "item_key"),
    )
    messages = Table(
        f"{prefix}_outbox",
        metadata,
        key(),
        # The row's number orders messages; SQLite uses it again, so it identifies none of them.
        column("message_id"),
        column("run", number, ForeignKey(runs.c.id)),
        column("step"),
        column("payload"),
        column("created", Double),
        UniqueConstraint("message_id"),
        Index(f"{prefix}_outbox_run", "run"),
    )
    return Tables(metadata, meta, runs, letters, messages)


COUNTS = (
    "read",
    "written",
    "filtered",
    "dead_lettered",
    "skipped",
    "retries",
    "rollbacks",
    "crashes",
)


def create(connection: Connection, made: Tables) -> None:
    """Create what is missing, other processes doing so at the same time included.

    The row with the version comes last: where it is, everything is.  Not every engine of a caller
    begins a transaction for what makes a table.

    :raises JobRepositoryError: the tables are of a newer version of the library.
    """
    from sqlalchemy import text
    from sqlalchemy.schema import CreateIndex, CreateTable

    if _version(connection, made) is None:
        if connection.dialect.name == "postgresql":
            lock = text("SELECT pg_advisory_xact_lock(hashtext(:name))")
            connection.execute(lock, {"name": made.meta.name})
        for table in made.metadata.sorted_tables:
            connection.execute(CreateTable(table, if_not_exists=True))
            for index in table.indexes:
                connection.execute(CreateIndex(index, if_not_exists=True))
        connection.execute(new_row(connection, made.meta).values(name="schema", value=SCHEMA))
    _check_version(_version(connection, made))


def check_tables(connection: Connection, made: Tables) -> None:
    """Raise unless the tables are there, for whoever makes none.

    :raises JobRepositoryError: they are not, or of a newer version of the library.
    """
    version = _version(connection, made)
    if version is None:
        prefix = made.meta.name.removesuffix("meta")
        raise JobRepositoryError(f"the database has no tables {prefix}*")
    _check_version(version)


def new_row(connection: Connection, table: Table) -> Any:
    """An insert of a row, unless it is there: by another process, perhaps."""
    from sqlalchemy.dialects import postgresql, sqlite

    made: Any = {"sqlite": sqlite, "postgresql": postgresql}[connection.dialect.name]
    return made.insert(table).on_conflict_do_nothing()


def _version(connection: Connection, made: Tables) -> Any:
    """None: they are not there, or not yet whole."""
    from sqlalchemy import inspect, select

    if not inspect(connection).has_table(made.meta.name):
        return None
    asked = select(made.meta.c.value).where(made.meta.c.name == "schema")
    return connection.execute(asked).scalar()


def _check_version(version: Any) -> None:
    if type(version) is not int or version > SCHEMA:
        raise JobRepositoryError(
            f"the tables of the job repository have version {version!r}, this library knows "
            f"{SCHEMA}: update the library, or choose another prefix"
        )


def now(connection: Connection) -> Any:
    """The database's clock, as an expression: seconds since the epoch."""
    return clock(connection.dialect.name)


def clock(dialect: str) -> Any:
    """The same for a kind of database."""
    from sqlalchemy import literal_column

    return literal_column(DIALECT_FRAGMENTS[dialect]["now"])
