"""Places of kill switch stores: in memory, in a database, on Valkey."""

import os
from itertools import count

from sqlalchemy import create_engine, make_url, text

from retrytemplate.control import MemorySwitchStore, RedisSwitchStore, SQLSwitchStore
from retrytemplate.testing import VirtualClock
from tests.support import valkey

__all__ = ["DURABLE", "KINDS", "MemoryPlace", "SQLPlace", "ValkeyPlace", "of"]

DURABLE = ("sqlite", "postgresql", "valkey")
KINDS = ("memory", *DURABLE)
MICROSECONDS = 1_000_000

numbers = count(1)


class MemoryPlace:
    """In memory: every store of the place is the same object."""

    kind = "memory"

    def __init__(self):
        self.clock = VirtualClock()
        self.clear()

    def open(self):
        return self.store

    def age(self, seconds):
        """Let *seconds* pass."""
        self.clock.advance(seconds)

    def clear(self):
        """Let nothing be left."""
        self.store = MemorySwitchStore(clock=self.clock)

    def close(self):
        self.store.close()


class _Shared:
    """A place that several stores share, like stores of several processes."""

    def __init__(self, url):
        self.url = url
        self.prefix = f"s{os.getpid()}_{next(numbers)}"
        self.stores = []

    def open(self, **settings):
        self.stores.append(self.kept_in(self.url, **{"prefix": self.prefix} | settings))
        return self.stores[-1]

    def close(self):
        for store in self.stores:
            store.close()


class SQLPlace(_Shared):
    kept_in = SQLSwitchStore

    def __init__(self, kind, url):
        super().__init__(url)
        self.kind = kind
        driver = "sqlite" if kind == "sqlite" else "postgresql+psycopg"
        self.engine = create_engine(make_url(url).set(drivername=driver), hide_parameters=True)

    def sql(self, statement, **parameters):
        """Run a statement on the tables, {0} being their prefix."""
        with self.engine.begin() as connection:
            result = connection.execute(text(statement.format(self.prefix)), parameters)
            return result.fetchall() if result.returns_rows else []

    def age(self, seconds):
        table = f"{self.prefix}_switch_audit"
        with self.engine.begin() as connection:
            if self.kind == "postgresql":  # the rows one by one may deadlock with a running writer
                connection.execute(text(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))
            update = text(f"UPDATE {table} SET lease_until = lease_until - :seconds")
            connection.execute(update, {"seconds": float(seconds)})

    def clear(self):
        self.sql("UPDATE {0}_switch SET version = 0, document = ''")
        self.sql("DELETE FROM {0}_switch_audit")

    def of_the_future(self):
        self.sql("UPDATE {0}_meta SET value = 2 WHERE name = 'switch'")

    def lose(self):
        """Delete the stored state."""
        self.sql("DELETE FROM {0}_switch")

    def refuse(self):
        """Make the store reject records."""
        self.sql("DROP TABLE {0}_switch_audit")

    def versions(self):
        """The version that each record made, in their order."""
        return [row[0] for row in self.sql("SELECT version FROM {0}_switch_audit ORDER BY number")]

    def document(self):
        return self.sql("SELECT document FROM {0}_switch")[0][0]

    def close(self):
        super().close()
        if self.kind == "postgresql":
            for table in ("switch", "switch_audit", "meta"):
                self.sql("DROP TABLE IF EXISTS {0}_" + table)
        self.engine.dispose()


class ValkeyPlace(_Shared):
    kind = "valkey"
    kept_in = RedisSwitchStore

    def __init__(self, url):
        super().__init__(url)
        self.client = valkey.opened(url)
        self.name = f"{{{self.prefix}}}:switch"

    def names(self):
        return list(self.client.scan_iter(f"{{{self.prefix}}}*", count=1000))

    def age(self, seconds):
        claims = f"{self.name}:claims"
        for number, claim in self.client.hgetall(claims).items():
            ends, _, worker = claim.partition(" ")
            earlier = int(ends) - int(seconds * MICROSECONDS)
            self.client.hset(claims, number, f"{earlier} {worker}")

    def clear(self):
        for name in self.names():
            self.client.delete(name)

    def of_the_future(self):
        self.client.hset(self.name, "schema", "2")

    def lose(self):
        self.client.delete(self.name)

    def refuse(self):
        self.client.set(f"{self.name}:audit", "no list")

    def versions(self):
        """The version that each record made, in their order."""
        return [
            int(each.partition("\n")[0]) for each in self.client.lrange(f"{self.name}:audit", 0, -1)
        ]

    def document(self):
        return self.client.hget(self.name, "document")

    def close(self):
        super().close()
        self.clear()
        self.client.close()


def of(kind, request):
    """A place of this kind; SQLite gets its own folder."""
    if kind == "memory":
        return MemoryPlace()
    if kind == "valkey":
        return ValkeyPlace(request.getfixturevalue("valkey_url"))
    if kind == "sqlite":
        folder = request.getfixturevalue("tmp_path_factory").mktemp("sqlite")
        return SQLPlace(kind, f"sqlite:///{folder}/switch.db")
    return SQLPlace(kind, request.getfixturevalue("postgres_url"))
