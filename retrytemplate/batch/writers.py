"""Writers for steps: callables that take the items of a chunk and its transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.imports import extra

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect, Table

DIALECTS = ("sqlite", "postgresql")
MOST = 100  # statements that are kept: one for every set of columns that items have


class UpsertWriter:
    """Writes items to a table: new rows, or in place of those with the same key.

    :param table: of SQLAlchemy, on SQLite or PostgreSQL.
    :param key: the columns that identify a row: its primary key, or unique together.
    :param update: the columns that are set in a row that is there already; None: all that the item
        has.  None of them (``()``) leaves such a row as it is.
    :raises TypeError, ValueError: not a table, or a column that it does not have.

    An item is a mapping with the names of columns, its key among them.  Items of one chunk may have
    different columns.  Of items with the same key the last one counts.  Under ``run_async`` it is
    awaited.

    >>> from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, select
    >>> orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True),
    ...                Column("sku", String), Column("cents", Integer))
    >>> write = UpsertWriter(orders)
    >>> engine = create_engine("sqlite://")
    >>> with engine.begin() as transaction:
    ...     orders.create(transaction)
    ...     write([{"id": 17, "sku": "A", "cents": 100}], transaction)
    ...     write([{"id": 17, "cents": 250}, {"id": 18, "cents": 50}], transaction)
    ...     transaction.execute(select(orders)).all()
    [(17, 'A', 250), (18, None, 50)]
    """

    def __init__(
        self, table: Table, key: Sequence[str] = ("id",), update: Sequence[str] | None = None
    ) -> None:
        with extra("batch", "an UpsertWriter"):
            from sqlalchemy import Table

        if not isinstance(table, Table):
            raise TypeError(f"table must be a sqlalchemy Table, got {table!r}")
        self.table = table
        self.key = _checked_columns("key", key, table)
        self.update = None if update is None else _checked_columns("update", update, table)
        if not self.key:
            raise ValueError("key must name one column at least, got none")
        if set(self.update or ()) & set(self.key):
            raise ValueError(f"update must name no column of the key, got {self.update!r}")
        self._prepared: dict[tuple[Any, ...], _Prepared] = {}

    def __call__(self, items: Sequence[Mapping[str, Any]], transaction: Any) -> Any:
        """Write the items in the transaction; an asynchronous one returns an awaitable."""
        from sqlalchemy import Connection

        if isinstance(transaction, Connection):
            return self._write(transaction, items)
        with extra("sql", "an AsyncConnection"):
            from sqlalchemy.ext.asyncio import AsyncConnection

        if isinstance(transaction, AsyncConnection):
            return transaction.run_sync(self._write, items)
        raise TypeError(f"transaction must be a connection of sqlalchemy, got {transaction!r}")

    def _write(self, connection: Connection, items: Sequence[Mapping[str, Any]]) -> None:
        for fields, same in groupby(items, _fields):
            self._prepare(connection.dialect, tuple(sorted(fields))).run(connection, list(same))

    def _prepare(self, dialect: Dialect, fields: tuple[str, ...]) -> _Prepared:
        known = (dialect.name, dialect.driver, fields)
        prepared = self._prepared.get(known)
        if prepared is None:
            self._check(dialect, fields)
            if len(self._prepared) == MOST:
                self._prepared.clear()
            self._prepared[known] = prepared = _Prepared.of(self, dialect, fields)
        return prepared

    def _check(self, dialect: Dialect, fields: tuple[str, ...]) -> None:
        if dialect.name not in DIALECTS:
            raise ValueError(f"transaction must be of SQLite or PostgreSQL, got {dialect.name}")
        unknown = [name for name in fields if name not in self.table.c]
        if unknown:
            raise ValueError(
                f"an item must have columns of {self.table} only "
                f"({', '.join(self.table.c.keys())}), got {', '.join(map(repr, unknown))}"
            )
        missing = [name for name in self.key if name not in fields]
        if missing:
            raise ValueError(f"an item must have its key, and lacks {', '.join(missing)}")

    def __repr__(self) -> str:
        shown = "" if self.update is None else f", update={self.update!r}"
        return f"UpsertWriter({self.table.fullname!r}, key={self.key!r}{shown})"


def _checked_columns(name: str, value: Any, table: Table) -> tuple[str, ...]:
    allowed = f"{name} must name columns of {table} ({', '.join(table.c.keys())})"
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise TypeError(f"{allowed} in a list or tuple, got {value!r}")
    names = tuple(value)
    if not all(each in table.c for each in names):
        raise ValueError(f"{allowed}, got {names!r}")
    return names


def _fields(item: Any) -> Any:
    if not isinstance(item, Mapping):
        raise TypeError(f"an item must be a mapping of columns, got {item!r}")
    return item.keys()


@frozen
class _Prepared:
    """The statement for items with the same columns.

    :param text: the same for the driver itself, if it can take the values as they are ...
    :param values: ... in the order in which this gives them.
    """

    statement: Any
    text: str | None
    values: Callable[[Any], Any]

    @classmethod
    def of(cls, writer: UpsertWriter, dialect: Dialect, fields: tuple[str, ...]) -> _Prepared:
        statement = _statement(writer, dialect, fields)
        compiled: Any = statement.compile(dialect=dialect, column_keys=list(fields))
        converted = any(
            writer.table.c[name].type.dialect_impl(dialect).bind_processor(dialect)
            for name in fields
        )
        others = set(compiled.params) != set(fields) or compiled.insert_prefetch
        if converted or others or len(fields) == 1:
            return cls(statement, None, dict)
        values = itemgetter(*compiled.positiontup) if compiled.positional else dict
        return cls(statement, str(compiled), values)

    def run(self, connection: Connection, items: list[Any]) -> None:
        """Write some items."""
        if self.text is None:
            connection.execute(self.statement, items)
        else:  # in half the time
            connection.exec_driver_sql(self.text, list(map(self.values, items)))


def _statement(writer: UpsertWriter, dialect: Dialect, fields: tuple[str, ...]) -> Any:
    from sqlalchemy.dialects import postgresql, sqlite

    kind: Any = sqlite if dialect.name == "sqlite" else postgresql
    statement = kind.insert(writer.table)
    key = [writer.table.c[name] for name in writer.key]
    wanted = fields if writer.update is None else writer.update
    replaced = [name for name in wanted if name in fields and name not in writer.key]
    if not replaced:
        return statement.on_conflict_do_nothing(index_elements=key)
    values = {name: statement.excluded[name] for name in replaced}
    return statement.on_conflict_do_update(index_elements=key, set_=values)
