"""The job of ``retrytemplate demo --workers``: messages of a queue, and some that crash a process.

The handler writes a row for each message in the transaction that acknowledges it.  The rows show
which messages were lost or processed twice, whatever the processes report.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate import FixedBackoff
from retrytemplate._internal.imports import extra
from retrytemplate.workers import (
    Cleanup,
    JobQueue,
    RedeliveryPolicy,
    Shutdown,
    SQLSource,
    WorkerRuntime,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncEngine

    from retrytemplate import RetryContext

MESSAGES, POISONS, FAILING, PROCESSES = 300, 3, 12, 2
MAX_CRASHES = 2
MOST_CRASHES = POISONS * (1 + MAX_CRASHES)
WORK = 0.02
"""Seconds of a message."""
LEASE = 6.0


class ServiceDown(ConnectionError):
    """The failure of some messages at their first attempt."""


def url_of(database: Path) -> str:
    """The URL of a SQLite file."""
    with extra("sql", "the demo of workers"):
        from sqlalchemy import URL
    return URL.create("sqlite", database=str(database)).render_as_string()


def make_engine(url: str) -> AsyncEngine:
    """An engine for the handler and the queue.

    Its commits wait for no disk: they survive the crash of a process, not that of the machine.
    """
    from sqlalchemy import event
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(
        url.replace("sqlite:", "sqlite+aiosqlite:", 1), connect_args={"timeout": 20.0}
    )

    @event.listens_for(engine.sync_engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA synchronous = OFF").close()

    return engine


async def enqueue(database: Path, seed: int) -> frozenset[int]:
    """Create the tables and register the messages; the numbers of those that crash a process."""
    from sqlalchemy import text

    numbers = Random(seed).sample(range(1, MESSAGES + 1), POISONS + FAILING)
    poisons = frozenset(numbers[:POISONS])
    engine = make_engine(url_of(database))
    async with JobQueue(engine) as jobs, engine.begin() as connection:
        await connection.execute(
            text("CREATE TABLE processed (number integer, attempt integer, process integer)")
        )
        for number in range(1, MESSAGES + 1):
            job = {"number": number, "crashes": number in poisons, "fails": number in numbers}
            await jobs.enqueue(job, f"message-{number}", connection=connection)
    await engine.dispose()
    return poisons


async def handle(engine: Any, message: Any, context: RetryContext) -> None:
    """Process a message; write its row and acknowledge it in one transaction."""
    from sqlalchemy import text

    job = json.loads(message.body)
    await asyncio.sleep(WORK)
    if job["crashes"]:
        os.kill(os.getpid(), signal.SIGKILL)
    if job["fails"] and context.attempt == 1:
        raise ServiceDown("the service does not answer")
    row = {"number": job["number"], "attempt": context.attempt, "process": os.getpid()}
    async with engine.begin() as connection:
        await connection.execute(
            text("INSERT INTO processed VALUES (:number, :attempt, :process)"), row
        )
        await message.acknowledge_in(connection)


def make_runtime(url: str) -> WorkerRuntime:
    """The runtime of one process."""
    logging.getLogger("retrytemplate").setLevel(logging.CRITICAL)  # the table shows it
    engine = make_engine(url)
    return WorkerRuntime(
        SQLSource(JobQueue(engine), lease=LEASE),
        partial(handle, engine),
        name="demo",
        concurrency=8,
        attempt_timeout=20.0,
        retry=RedeliveryPolicy(max_crashes=MAX_CRASHES),
        backoff=FixedBackoff(0.2),
        receive_wait=0.2,
        remember=60.0,
        shutdown=Shutdown(grace=4.0, cleanups=(Cleanup(engine.dispose, "database"),)),
    )


def unfinished(database: Path) -> int:
    """The number of messages that are neither completed nor dead-lettered."""
    with closing(sqlite3.connect(database, timeout=20.0)) as connection:
        query = "SELECT count(*) FROM queue_jobs WHERE finished_at IS NULL"
        return int(connection.execute(query).fetchone()[0])


@frozen(kw_only=True)
class WorkerCounts:
    """The result, counted from the table of the handler and the states of the messages.

    :param letters: the ids of the dead-lettered messages.
    """

    processed: int
    lost: int
    doubled: int
    dead_lettered: int
    crashes: int
    bystanders_dead_lettered: int
    letters: tuple[str, ...]

    @property
    def is_expected(self) -> bool:
        """Whether each message has the result that it should have."""
        wrong = self.lost or self.doubled or self.bystanders_dead_lettered
        return not wrong and self.dead_lettered == POISONS and self.crashes <= MOST_CRASHES

    def __str__(self) -> str:
        return (
            f"{MESSAGES} messages: {self.lost} lost, {self.doubled} doubled, "
            f"{self.dead_lettered} dead-lettered, {self.crashes} crashes, "
            f"{self.bystanders_dead_lettered} bystanders dead-lettered"
        )


def count(database: Path, poisons: frozenset[int], crashes: int) -> WorkerCounts:
    """Count the rows of the handler and the dead letters.

    :param crashes: of processes.
    """
    with closing(sqlite3.connect(database)) as connection:
        rows = Counter(number for (number,) in connection.execute("SELECT number FROM processed"))
        query = "SELECT id, body FROM queue_jobs WHERE state = 'dead_lettered' ORDER BY number"
        dead = {json.loads(body)["number"]: job_id for job_id, body in connection.execute(query)}
    return WorkerCounts(
        processed=len(rows),
        lost=len(set(range(1, MESSAGES + 1)) - set(rows) - set(dead)),
        doubled=sum(rows.values()) - len(rows) + len(rows.keys() & dead.keys()),
        dead_lettered=len(dead),
        crashes=crashes,
        bystanders_dead_lettered=len(dead.keys() - poisons),
        letters=tuple(dead.values()),
    )
