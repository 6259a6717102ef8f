"""Tables of the journal, their creation, and the database's clock."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.imports import extra
from retrytemplate._storage.sql_dialect import DIALECT_FRAGMENTS
from retrytemplate.batch.errors import JobRepositoryError
from retrytemplate.batch.journal.rows import LETTER, MESSAGE, RUN, Columns

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData, Table


SCHEMA = 1
"""The version of the tables."""


@frozen
class Tables:
    """The tables under one prefix.

    :param runs: a row a run: its holder, its counts, and the chunk in progress.
    :param letters: a row a dead letter, with its attempts and its state.
    :param messages: messages that are not sent yet.
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
        import sqlalchemy as sql

    metadata = sql.MetaData()
    number = sql.BigInteger().with_variant(sql.Integer(), "sqlite")
    kinds: dict[str, Any] = {"text": sql.Text(), "number": number, "time": sql.Double()}

    def column(name: str, kind: str, is_nullable: bool = False, *, is_key: bool = False) -> Any:
        of_run = [sql.ForeignKey(f"{prefix}_runs.id")] if name == "run" else []
        return sql.Column(name, kinds[kind], *of_run, nullable=is_nullable, primary_key=is_key)

    def table(name: str, columns: Columns, *more: Any) -> Table:
        made = [
            column(each, rule.kind, rule.is_nullable, is_key=each == "id")
            for each, rule in columns.items()
        ]
        return sql.Table(f"{prefix}_{name}", metadata, *made, *more)

    return Tables(
        metadata,
        meta=sql.Table(
            f"{prefix}_meta",
            metadata,
            column("name", "text", is_key=True),
            column("value", "number"),
        ),
        runs=table("runs", RUN, sql.UniqueConstraint("step", "digest", "generation")),
        letters=table(
            "letters",
            LETTER,
            sql.UniqueConstraint("run", "source", "number"),
            sql.Index(f"{prefix}_letters_state", "step", "state"),
            sql.Index(f"{prefix}_letters_key", "run", "item_key"),
        ),
        messages=table(
            "outbox",
            MESSAGE,
            sql.UniqueConstraint("message_id"),
            sql.Index(f"{prefix}_outbox_run", "run"),
        ),
    )


def create(connection: Connection, made: Tables) -> None:
    """Create missing tables; other processes may do so at the same time.

    The row with the version is written last: it proves that all tables exist.  Some engines of
    callers begin no transaction for DDL.

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
    """Raise unless the tables exist.

    :raises JobRepositoryError: they are not, or of a newer version of the library.
    """
    if not has_tables(connection, made):
        prefix = made.meta.name.removesuffix("meta")
        raise JobRepositoryError(f"the database has no tables {prefix}*")


def has_tables(connection: Connection, made: Tables) -> bool:
    """Whether the tables exist.

    :raises JobRepositoryError: they are of a newer version of the library.
    """
    version = _version(connection, made)
    if version is not None:
        _check_version(version)
    return version is not None


def new_row(connection: Connection, table: Table) -> Any:
    """An insert that does nothing if the row exists already."""
    from sqlalchemy.dialects import postgresql, sqlite

    made: Any = {"sqlite": sqlite, "postgresql": postgresql}[connection.dialect.name]
    return made.insert(table).on_conflict_do_nothing()


def _version(connection: Connection, made: Tables) -> Any:
    """The version of the tables; None: they are missing or incomplete."""
    from sqlalchemy import inspect, select

    if not inspect(connection).has_table(made.meta.name):
        return None
    query = select(made.meta.c.value).where(made.meta.c.name == "schema")
    return connection.execute(query).scalar()


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
