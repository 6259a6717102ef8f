"""The rows of a query, page by page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from zlib import crc32

from attrs import frozen

from retrytemplate._internal.imports import extra
from retrytemplate.batch.errors import ReaderError
from retrytemplate.batch.readers.base import (
    AsyncCursor,
    Cursor,
    Reader,
    Records,
    checked_name,
    checked_names,
    part,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection, Engine, SelectBase
    from sqlalchemy.ext.asyncio import AsyncEngine

    from retrytemplate._internal.values import JSON


class QueryReader(Reader):
    """The rows of a query as dicts; it can resume.

    :param statement: a ``select()`` of SQLAlchemy or the text of one, without order and limit.
    :param key: the column, or columns, by which the rows are put in order: unique together as the
        database compares them, never null, and of int or text.
    :param engine: an ``Engine``, or an ``AsyncEngine`` for a step that is awaited.
    :param name: of the source, which makes a row known together with its number.
    :raises TypeError, ValueError: another kind of statement, a key that it does not have, or not an
        engine.

    Each read is a query of its own for the rows behind the last key (never an ``OFFSET``), in a
    short transaction.  Rows that come behind it meanwhile are read, rows that come before it are
    not.  While a chunk is not over its rows must stay: put a condition on what the job changes into
    the processor, not into the query.  A resumed run ends with a ``ReaderError`` if a chunk of
    which some rows are done has other rows.  An index on the key makes the pages cheap.

    >>> from sqlalchemy import create_engine, text
    >>> engine = create_engine("sqlite://")
    >>> with engine.begin() as connection:
    ...     _ = connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT)"))
    ...     _ = connection.execute(text("INSERT INTO orders VALUES (17, 'A'), (18, 'B')"))
    >>> reader = QueryReader("SELECT id, sku FROM orders", engine=engine)
    >>> with reader.open() as cursor:
    ...     cursor.read(1).items, cursor.position
    ([{'id': 17, 'sku': 'A'}], {'after': [17], 'number': 1})
    """

    def __init__(
        self,
        statement: SelectBase | str,
        key: str | Sequence[str] = "id",
        *,
        engine: Engine | AsyncEngine,
        name: str = "query",
    ) -> None:
        with extra("batch", "a QueryReader"):
            from sqlalchemy import Engine
        self.name = checked_name(name)
        self.key = _checked_key(key)
        self.engine = engine
        self._pages = _Pages.of(statement, self.key, self.name)
        self._blocks = isinstance(engine, Engine)
        if not self._blocks:
            with extra("sql", "an AsyncEngine"):
                from sqlalchemy.ext.asyncio import AsyncEngine

            if not isinstance(engine, AsyncEngine):
                raise TypeError(f"engine must be an engine of sqlalchemy, got {engine!r}")

    def open(self, position: JSON = None) -> Cursor | AsyncCursor:
        """Begin; see ``Reader.open``."""
        if position is not None:
            part(position, "number", int, self.name)
            self._pages.check_key(part(position, "after", list, self.name))
        kind = _QueryCursor if self._blocks else _AsyncQueryCursor
        return kind(self.engine, self._pages, position)

    def __repr__(self) -> str:
        return f"QueryReader(key={self.key!r}, engine={self.engine!r}, name={self.name!r})"


def _checked_key(key: Any) -> tuple[str, ...]:
    allowed = "key must be the name of a column, or several distinct ones"
    names = checked_names(allowed, [key] if isinstance(key, str) else key)
    if "" in names:
        raise ValueError(f"{allowed}, got {key!r}")
    return names


@frozen
class _Pages:
    """Makes the query of each page, and records of its rows.

    The database compares the keys, never Python: to a collation 'a' and 'A' may be one key.
    """

    key: tuple[str, ...]
    source: str
    columns: tuple[ColumnElement[Any], ...]
    first: Any
    """The page at the beginning; each row has its key behind it, as the driver has it, and last
    whether the database takes the key for that of the row before."""
    further: Any
    """The page behind a key."""

    @classmethod
    def of(cls, statement: Any, key: tuple[str, ...], source: str) -> _Pages:
        from sqlalchemy import bindparam, column, literal_column, select, text, tuple_

        is_text = isinstance(statement, str)  # of which only the database knows the columns
        inner: Any
        if is_text:
            inner = text(statement).columns(*map(column, key)).subquery("page")
        else:
            inner = _checked_statement(statement, key).subquery("page")
        every: Sequence[Any] = [literal_column("page.*")] if is_text else list(inner.c)
        columns = tuple(inner.c[name] for name in key)
        keys = [_raw(each).label(f"key_of_page_{at}") for at, each in enumerate(columns)]
        rows = select(*every, *keys).select_from(inner).order_by(*columns)
        rows = rows.limit(bindparam("limit_of_page"))
        # Of no type: the database gives each value the type and collation of its column.
        after = [_raw(bindparam(f"after_{at}")) for at in range(len(key))]
        behind = columns[0] > after[0] if len(key) == 1 else tuple_(*columns) > tuple_(*after)
        first, further = (_marked(each, len(key), is_text) for each in (rows, rows.where(behind)))
        return cls(key, source, columns, first, further)

    def query(self, position: JSON, limit: int) -> tuple[Any, dict[str, Any]]:
        """The query of the rows after a position, and one more to check that the key is unique."""
        values: dict[str, Any] = {"limit_of_page": limit + 1}
        if position is None:
            return self.first, values
        after = {f"after_{at}": value for at, value in enumerate(position["after"])}
        return self.further, values | after

    def nulls(self) -> Any:
        """The query for a row whose key has a null: no page would contain it."""
        from sqlalchemy import literal_column, or_, select

        inner = self.columns[0].table
        return (
            select(literal_column("1"))
            .select_from(inner)
            .where(or_(*(column.is_(None) for column in self.columns)))
            .limit(1)
        )

    def check_nulls(self, found: Any) -> None:
        """Raise if the query of nulls has found one."""
        if found is not None:
            raise ReaderError(
                f"{self.source} has a row whose key ({', '.join(self.key)}) has a null: it would "
                "not be read; exclude such rows in the query, or choose another key"
            )

    def records(
        self, names: Sequence[str], rows: Sequence[Any], position: JSON, limit: int
    ) -> tuple[Records, JSON]:
        """The rows as dicts, and the position behind them."""
        width = len(names) - len(self.key) - 1
        places = range(width, len(names) - 1)
        keys = [[row[place] for place in places] for row in rows]
        for key in keys:
            self.check_key(key)
        for at, row in enumerate(rows):
            if row[-1]:
                raise ReaderError(
                    f"{self.source} has two rows with the key {keys[at]!r}: to the database "
                    f"{keys[at - 1]!r} is the same, and rows would be lost between pages; add a "
                    "column that makes the key unique"
                )
        names = names[:width]
        items = [dict(zip(names, row)) for row in rows[:limit]]  # noqa: B905  # without the rest
        number = 0 if position is None else position["number"]
        keys = keys[:limit]
        if keys:
            position = {"after": keys[-1], "number": number + len(keys)}
        fingerprint = crc32(json.dumps(keys).encode())
        return Records(items, self.source, number + 1, fingerprint=fingerprint), position

    def check_key(self, key: list[Any]) -> None:
        """Raise unless the journal can keep the key as it is."""
        if len(key) != len(self.key) or not all(type(value) in (int, str) for value in key):
            raise ReaderError(
                f"{self.source} cannot resume after the key {key!r} of {', '.join(self.key)}: "
                "it must be of int or text, never null; cast it in the query, or choose another"
            )


def _marked(page: Any, size: int, is_text: bool) -> Any:
    """The rows of a page, each with whether its key equals that of the row before."""
    from sqlalchemy import and_, case, func, literal_column, select

    rows = page.subquery("rows_of_page")
    keys = list(rows.c)[-size:]
    same = and_(*(each == func.lag(each).over(order_by=keys) for each in keys))
    every: Any = literal_column("rows_of_page.*") if is_text else rows
    repeated = case((same, 1), else_=0).label("repeated")
    return select(every, repeated).select_from(rows).order_by(*keys)


def _raw(value: Any) -> Any:
    """A column or value as the driver has it: no type of SQLAlchemy converts it."""
    from sqlalchemy import type_coerce
    from sqlalchemy.types import NullType

    return type_coerce(value, NullType())


def _checked_statement(statement: Any, key: tuple[str, ...]) -> SelectBase:
    from sqlalchemy import SelectBase
    from sqlalchemy.sql.selectable import GenerativeSelect

    if not isinstance(statement, SelectBase):
        raise TypeError(f"statement must be a select() of sqlalchemy or a str, got {statement!r}")
    columns = list(statement.selected_columns.keys())
    if not set(key) <= set(columns):
        raise ValueError(f"key must be of the columns {', '.join(columns)}, got {key!r}")
    if isinstance(statement, GenerativeSelect):
        plain = statement.order_by(None).limit(None).offset(None)
        if not plain.compare(statement):
            raise ValueError("statement must have no order and no limit: it is read by its key")
    return statement


class _QueryState:
    """The position in a query, and the check of its keys."""

    def __init__(self, engine: Any, pages: _Pages, position: JSON) -> None:
        self._engine = engine
        self._pages = pages
        self._checked = False
        self.position = position

    def _read(self, connection: Connection, limit: int) -> Records:
        if not self._checked:
            self._pages.check_nulls(connection.execute(self._pages.nulls()).first())
            self._checked = True
        result = connection.execute(*self._pages.query(self.position, limit))
        names, rows = list(result.keys()), result.all()
        records, self.position = self._pages.records(names, rows, self.position, limit)
        return records


class _QueryCursor(_QueryState, Cursor):
    def read(self, limit: int) -> Records:
        with self._engine.connect() as connection:
            return self._read(connection, limit)


class _AsyncQueryCursor(_QueryState, AsyncCursor):
    async def read(self, limit: int) -> Records:
        async with self._engine.connect() as connection:
            records: Records = await connection.run_sync(self._read, limit)
            return records
