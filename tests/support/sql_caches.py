"""A database, and caches on the same tables of it."""

import os
from itertools import count

from sqlalchemy import create_engine, make_url, text

from retrytemplate._storage.sql_dialect import in_dialect
from tests.support.cache_kinds import awaited, blocking

__all__ = ["SQLStore"]

numbers = count(1)


class SQLStore:
    """Operations of a test on a store in SQLite or PostgreSQL."""

    tables = ("contexts", "meta")

    def __init__(self, kind, url):
        self.kind = kind
        self.url = url
        self.prefix = f"t{os.getpid()}_{next(numbers)}"
        driver = "sqlite" if kind == "sqlite" else "postgresql+psycopg"
        self.engine = create_engine(make_url(url).set(drivername=driver), hide_parameters=True)
        self.caches = []

    def cache(self, **settings):
        self.caches.append(blocking(self.url, **{"prefix": self.prefix} | settings))
        return self.caches[-1]

    def async_cache(self, **settings):
        """An asynchronous cache that the test closes in the loop of its use."""
        return awaited(self.url, **{"prefix": self.prefix} | settings)

    def sql(self, statement, **parameters):
        """Run a statement on the tables, {0} being their prefix."""
        with self.engine.begin() as connection:
            result = connection.execute(text(statement.format(self.prefix)), parameters)
            return result.mappings().all() if result.returns_rows else []

    def row(self, key):
        """The record of a key, or None."""
        rows = self.sql("SELECT * FROM {0}_contexts WHERE key = :key", key=key)
        return rows[0] if rows else None

    def keys(self):
        """Every key with a stored entry."""
        return sorted(row["key"] for row in self.sql("SELECT key FROM {0}_contexts"))

    def change(self, key, **columns):
        """Overwrite columns of an existing key."""
        assigned = ", ".join(f"{name} = :{name}" for name in columns)
        self.sql(f"UPDATE {{0}}_contexts SET {assigned} WHERE key = :key", key=key, **columns)

    def now(self):
        """The time by the clock of the store."""
        return self.sql(in_dialect("SELECT ${now} AS now", self.kind, self.prefix))[0]["now"]

    def age(self, seconds):
        """Simulate *seconds*: move every time in the table back."""
        self.sql(
            "UPDATE {0}_contexts SET lease_until = lease_until - :s, expires = expires - :s",
            s=float(seconds),
        )

    def spoil(self, key):
        """Let the store reject every operation on the key."""
        self.sql("DROP TABLE {0}_contexts")

    def clear(self):
        """Delete everything except the tables."""
        self.sql("DELETE FROM {0}_contexts")

    def close(self):
        for cache in self.caches:
            cache.close()
        if self.kind == "postgresql":
            for table in self.tables:
                self.sql("DROP TABLE IF EXISTS {0}_" + table)
        self.engine.dispose()
