"""Worker processes on a job queue that are killed at a chosen point."""

import asyncio
import os
import signal

from sqlalchemy import event, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from retrytemplate import FixedBackoff
from retrytemplate._storage import sqlite_writer
from retrytemplate.workers import JobQueue, MessageSettled, Reject, SQLSource, WorkerRuntime
from tests.support.database import DRIVERS

__all__ = ["acknowledge_with_the_work", "run_until_settled", "work_until_statement"]


class Stop:
    """A listener that stops a runtime after a number of settlements."""

    def __init__(self, count):
        self.events = []
        self.left = count
        self.runtime = None

    def on_event(self, happened):
        self.events.append(happened)
        self.left -= type(happened) is MessageSettled
        if not self.left:
            self.runtime.stop()


async def run_until_settled(source, handler, *, count=1, **settings):
    """Run a runtime until *count* messages are settled, and return its events."""
    listener = Stop(count)
    settings = {"name": "billing", "backoff": FixedBackoff(60.0)} | settings
    listener.runtime = WorkerRuntime(source, handler, listeners=[listener], **settings)
    report = await listener.runtime.run()
    assert report.clean, report
    return listener.events


def kill_this_process(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def work_until_statement(url, prefix, outcome, fragment):
    """Run a runtime; kill this process before the first statement on jobs with the fragment."""

    async def handle(message, context):
        if outcome == "requeue":
            raise ConnectionError("unreachable")
        if outcome == "dead_letter":
            raise Reject("no such order")

    def look(connection, cursor, statement, *_):
        if f"{prefix}_jobs SET" in statement and fragment in statement:
            kill_this_process()

    fetch = sqlite_writer.fetch

    def look_and_fetch(connection, order):
        look(None, None, order[0].text)
        return fetch(connection, order)

    async def main():
        jobs = JobQueue(url, prefix=prefix)
        if url.startswith("sqlite"):  # where a listener expects them, no statements share a commit
            sqlite_writer.fetch = look_and_fetch
        else:
            event.listen(jobs.database.engine.sync_engine, "before_cursor_execute", look)
        await run_until_settled(SQLSource(jobs), handle)

    asyncio.run(main())


def acknowledge_with_the_work(url, prefix, method, killed):
    """Write a row and end the message in one transaction, then stop.

    :param method: "acknowledge_in" of the message or "complete_in" of the context.
    :param killed: "before" or "after" the commit: this process is killed then.
    """
    parsed = make_url(url)
    engine = create_async_engine(parsed.set(drivername=DRIVERS[parsed.get_backend_name()]))

    async def handle(message, context):
        async with engine.connect() as connection:
            await connection.execute(text(f"INSERT INTO {prefix}_work VALUES ('{message.id}')"))
            await getattr(message if method == "acknowledge_in" else context, method)(connection)
            if killed == "before":
                kill_this_process()
            await connection.commit()
        if killed == "after":
            kill_this_process()

    async def main():
        await run_until_settled(SQLSource(JobQueue(url, prefix=prefix)), handle)
        await engine.dispose()

    asyncio.run(main())
