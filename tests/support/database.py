"""A database with tables of a test's own."""

import os
from contextlib import asynccontextmanager
from itertools import count

from sqlalchemy import MetaData, Table, create_engine, insert, make_url, select
from sqlalchemy.ext.asyncio import create_async_engine

__all__ = ["KINDS", "Place"]

KINDS = ("sqlite", "postgresql")
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}

numbers = count(1)


class Place:
    """SQLite in a file, or the PostgreSQL server of the tests."""

    def __init__(self, kind, request):
        if kind == "sqlite":
            folder = request.getfixturevalue("tmp_path_factory").mktemp("place")
            url = f"sqlite:///{folder}/data.db"
        else:
            url = request.getfixturevalue("postgres_url")
        self.url = make_url(url)
        driver = "sqlite" if kind == "sqlite" else "postgresql+psycopg"
        self.kind = kind
        self.engine = create_engine(self.url.set(drivername=driver))
        self.tables = MetaData()

    def table(self, *columns, rows=()):
        """A new table with some rows."""
        table = Table(f"p{os.getpid()}_{next(numbers)}", self.tables, *columns)
        table.create(self.engine)
        self.put(table, rows)
        return table

    def put(self, table, rows):
        if rows:
            with self.engine.begin() as connection:
                connection.execute(insert(table), list(rows))

    def rows(self, table):
        """Every row as a dict, in the order of the first column."""
        with self.engine.connect() as connection:
            found = connection.execute(select(table).order_by(next(iter(table.c))))
            return [dict(row) for row in found.mappings()]

    @asynccontextmanager
    async def awaited(self):
        """An asynchronous engine."""
        engine = create_async_engine(self.url.set(drivername=DRIVERS[self.kind]))
        try:
            yield engine
        finally:
            await engine.dispose()

    def close(self):
        self.tables.drop_all(self.engine)
        self.engine.dispose()
