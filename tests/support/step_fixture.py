"""A database with a table that steps write to, and their results in it."""

import asyncio
import json
import shutil
from contextlib import contextmanager
from types import SimpleNamespace

from sqlalchemy import Column, Integer, MetaData, Table, Text, select, text

from retrytemplate.batch import ChunkStep, JobRepository
from retrytemplate.batch.journal.schema import SCHEMA


class World:
    """A repository, and a table beside its own.

    ``calls`` holds what happened in order: ("process", item), ("write", [items]).
    """

    def __init__(self, url, prefix):
        self.url, self.prefix = url, prefix
        self.jobs = JobRepository(url, prefix=prefix, lease=30.0)
        self.out = Table(
            f"{prefix}_out",
            MetaData(),
            Column("id", Integer, primary_key=True),
            Column("text", Text),
        )
        self.calls = []
        with self.jobs.transaction() as transaction:
            self.out.create(transaction, checkfirst=True)

    def close(self):
        with self.jobs.transaction() as transaction:
            self.out.drop(transaction)
            self.jobs.tables.metadata.drop_all(transaction)
        self.jobs.close()

    def shape(self):
        """The tables and indexes on PostgreSQL; a statement that alters one changes it."""
        names = f"relname LIKE '{self.prefix}\\_%'"
        columns = "oid, relnatts, relchecks, relhastriggers"
        query = text(f"SELECT {columns} FROM pg_class WHERE {names} ORDER BY oid")
        with self.jobs.engine.begin() as transaction:
            return transaction.execute(query).all()

    def clear(self):
        """Delete all rows on PostgreSQL, and number new ones from 1."""
        tables = self.jobs.tables
        full = {self.out, *tables.metadata.tables.values()} - {tables.meta}
        names = ", ".join(table.name for table in full)
        meta = tables.meta.name
        with self.jobs.engine.begin() as transaction:
            transaction.execute(text(f"TRUNCATE {names} RESTART IDENTITY"))
            transaction.execute(text(f"DELETE FROM {meta}"))
            transaction.execute(text(f"INSERT INTO {meta} VALUES ('schema', {SCHEMA})"))

    # Pieces of steps.

    def step(self, items=(), *, process=None, write=None, **settings):
        """A step over numbers; *process* and *write* may fail before the real work is done."""

        def processor(item):
            self.calls.append(("process", item))
            return item if process is None else process(item)

        def writer(items, transaction):
            self.calls.append(("write", list(items)))
            for number, item in enumerate(items):
                # The rows before the one that fails are in the transaction already.
                if write is not None:
                    write(item, number)
                transaction.execute(self.out.insert().values(id=item, text=str(item)))

        settings = {"chunk_size": 3, "repository": self.jobs, **settings}
        settings.setdefault("reader", items)
        settings.setdefault("processor", processor)
        settings.setdefault("writer", writer)
        return ChunkStep(settings.pop("name", "copy"), **settings)

    # Results of runs.

    def rows(self):
        return self._column(self.out.c.id)

    def letters(self):
        """Dead letters as the numbers of the items."""
        table = self.jobs.tables.letters
        return self._column(table.c.number)

    def letter(self, number):
        table = self.jobs.tables.letters
        with self.jobs.transaction() as transaction:
            found = transaction.execute(select(table).where(table.c.number == number))
            row = dict(found.mappings().one())
        return SimpleNamespace(**row | {"attempts": json.loads(row["attempts"])})

    def processed(self):
        return [item for what, item in self.calls if what == "process"]

    def writes(self):
        return [items for what, items in self.calls if what == "write"]

    def _column(self, column):
        with self.jobs.transaction() as transaction:
            return list(transaction.execute(select(column).order_by(column)).scalars())


@contextmanager
def empty_world(kind, request):
    """A world on "sqlite" or "postgresql", whose tables were created before and are empty."""
    if kind == "sqlite":
        file = request.getfixturevalue("tmp_path_factory").mktemp("world") / "jobs.db"
        shutil.copyfile(request.getfixturevalue("world_file"), file)
        made = World(f"sqlite:///{file}", "batch")
        yield made
        made.jobs.close()
    else:
        with request.getfixturevalue("postgres_worlds")() as made:
            yield made


def run(step, mode, *arguments, **settings):
    """The step's report; "sync" or "async"."""
    if mode == "sync":
        return step.run(*arguments, **settings)
    return asyncio.run(step.run_async(*arguments, **settings))


def accounted(report):
    """Whether every item that was read is in exactly one place."""
    parts = report.written + report.filtered + report.dead_lettered + report.pending
    return report.read == parts
