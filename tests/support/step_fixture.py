"""A database with a table that steps write to, and their results in it."""

import asyncio
import json
from types import SimpleNamespace

from sqlalchemy import Column, Integer, MetaData, Table, Text, select

from retrytemplate.batch import ChunkStep, JobRepository


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
            self.out.create(transaction)

    def close(self):
        with self.jobs.transaction() as transaction:
            self.out.drop(transaction)
            self.jobs.tables.metadata.drop_all(transaction)
        self.jobs.close()

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


def run(step, way, *arguments, **settings):
    """The step's report; "sync" or "async"."""
    if way == "sync":
        return step.run(*arguments, **settings)
    return asyncio.run(step.run_async(*arguments, **settings))


def accounted(report):
    """Whether every item that was read is in exactly one place."""
    parts = report.written + report.filtered + report.dead_lettered + report.pending
    return report.read == parts
