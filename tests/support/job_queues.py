"""A database, and job queues on the same tables of it."""

from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import create_async_engine

from retrytemplate.workers import JobQueue
from tests.support.database import DRIVERS
from tests.support.sql_caches import SQLStore

__all__ = ["JobStore"]


class JobStore(SQLStore):
    """Operations of a test on the tables of job queues in SQLite or PostgreSQL."""

    tables = ("jobs", "contexts", "meta")

    def queue(self, name="jobs", **settings):
        """A queue that the test closes in the loop of its use."""
        return JobQueue(self.url, name, **{"prefix": self.prefix} | settings)

    async def create(self):
        async with self.queue(), self.async_cache() as cache:
            await cache.peek("a key")

    def clear(self):
        """Delete all jobs and contexts, and close the connections of this object."""
        self.sql("DELETE FROM {0}_jobs")
        self.sql("DELETE FROM {0}_contexts")
        self.engine.dispose()

    @asynccontextmanager
    async def caller(self, **settings):
        """An engine of the caller's."""
        engine = create_async_engine(self.engine.url.set(drivername=DRIVERS[self.kind]), **settings)
        try:
            yield engine
        finally:
            await engine.dispose()

    def row(self, job_id):
        return self.sql("SELECT * FROM {0}_jobs WHERE id = :id", id=job_id)[0]

    def claim(self, key):
        """The row of a key in the context cache, or None."""
        return super().row(key)

    def change(self, job_id, **columns):
        """Overwrite columns of an existing job."""
        assigned = ", ".join(f"{name} = :{name}" for name in columns)
        self.sql(f"UPDATE {{0}}_jobs SET {assigned} WHERE id = :id", id=job_id, **columns)

    def age(self, seconds):
        """Simulate *seconds*: move every time in the table back."""
        self.sql(
            "UPDATE {0}_jobs SET enqueued_at = enqueued_at - :s, available_at = available_at - :s,"
            " finished_at = finished_at - :s",
            s=float(seconds),
        )
