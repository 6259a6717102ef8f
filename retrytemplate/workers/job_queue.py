"""A durable queue of jobs in a table of SQLite or PostgreSQL."""

from __future__ import annotations

import json
import os
from base64 import b32encode
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

from attrs import asdict, frozen

from retrytemplate._internal.closing import AsyncClosing
from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.validation import (
    check_choice,
    check_int,
    check_text,
    check_wait,
    read_seconds,
)
from retrytemplate._internal.values import JSON, MAX_STORED_INT
from retrytemplate._storage.column_keys import TABLE_PREFIXES, from_column_key, to_column_key
from retrytemplate._storage.operation_runner import (
    perform_async,
    retry_once_if_answer_lost,
    translate_errors,
)
from retrytemplate._storage.sql_connection import AsyncDatabase
from retrytemplate._storage.sql_schema import Tables
from retrytemplate._storage.store_role import StoreRole
from retrytemplate.caches.record_schema import ATTEMPT, OF_EVERY_ATTEMPT, loads, objects
from retrytemplate.control.events import ControlListener, notify_listeners
from retrytemplate.history import AttemptRecord
from retrytemplate.listeners.defaults import with_defaults
from retrytemplate.workers import job_statements as sql
from retrytemplate.workers.errors import JobQueueError
from retrytemplate.workers.events import JobReplayed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate._storage.sql_schema import Rows

    T = TypeVar("T")

JobState = Literal["ready", "delayed", "running", "completed", "dead_lettered"]
JOB_STATES: tuple[JobState, ...] = get_args(JobState)

JOB_QUEUE = StoreRole(
    "job queue",
    "jobs there are lost when the process ends",
    "enter the queue with `async with` at the start, which creates its tables, and call no other "
    "method than enqueue(connection=...) within a transaction",
)
# Jobs that are deleted by one statement.
AT_ONCE = 1000


@frozen
class JobReplay:
    """An operator's decision to run a dead-lettered job again.

    :param at: seconds since the epoch, by the database's clock.
    :param by: the operator.
    """

    at: float
    by: str
    reason: str


@frozen(kw_only=True)
class Job:
    """A job as the queue keeps it.  Times are in seconds since the epoch, by the database's clock.

    :param number: its place in the order of ``JobQueue.page``.
    :param id: what ``enqueue`` returned, and the id of its message.
    :param key: the idempotency key; of more than 1,000 bytes the beginning and a digest.
    :param state: "ready": a worker may receive it; "delayed"; "running": a worker holds it;
        "completed"; "dead_lettered".
    :param body: the job.
    :param attempts: deliveries to a worker that it did not release; of a dead-lettered job the
        attempts in its letter.
    :param crashes: deliveries that no worker settled; of a dead-lettered job the crashes in its
        letter.
    :param available_at: when a worker may receive it: the end of a delay, or of a worker's lease.
    :param finished_at: when it was completed or dead-lettered, else None.
    :param worker: the worker that holds it, else None.
    :param last_failure: the reason of the last retry or dead letter, else None.
    :param letter: its last dead letter as JSON, without the message; None: there was none.
    :param replays: the replays after dead letters.
    """

    number: int
    id: str
    key: str
    state: JobState
    body: JSON
    priority: int
    attempts: int
    crashes: int
    enqueued_at: float
    available_at: float
    finished_at: float | None
    worker: str | None
    last_failure: str | None
    letter: Mapping[str, Any] | None
    replays: tuple[JobReplay, ...]

    @property
    def history(self) -> tuple[AttemptRecord, ...]:
        """The failed attempts in the dead letter: the first three and the last thirteen."""
        history = [] if self.letter is None else self.letter["history"]
        return tuple(AttemptRecord(**each) for each in objects(history, ATTEMPT, OF_EVERY_ATTEMPT))

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


class JobQueue(AsyncClosing):
    """A queue of jobs in a database: they survive crashes; one worker at a time receives a job.

    :param url: of the database, as SQLAlchemy writes it, or an ``AsyncEngine``.  SQLite serves the
        processes of one machine, PostgreSQL those of many.
    :param name: of the queue; one table has the jobs of several queues.
    :param prefix: of the names of the tables, which are created on first use.
    :param timeout: seconds to wait for a connection or a lock.
    :raises TypeError, ValueError: a parameter is of another type, or out of its range.

    Used in one event loop of asyncio at a time: ``close()`` it there before it is used in another
    one.  A closed queue opens new connections on its next use.  A worker receives the jobs from a
    ``SQLSource``.  It needs the extra ``sql``, for PostgreSQL ``postgresql``.

    Pattern: https://microservices.io/patterns/data/transactional-outbox.html

    >>> import asyncio
    >>> from tempfile import TemporaryDirectory
    >>> async def main():
    ...     with TemporaryDirectory() as folder:
    ...         async with JobQueue(f"sqlite:///{folder}/jobs.db") as jobs:
    ...             job_id = await jobs.enqueue({"report": 17}, "report-17")
    ...             again = await jobs.enqueue({"report": 17}, "report-17")
    ...             job = await jobs.status(job_id)
    ...     return again == job_id, job.state, job.body
    >>> asyncio.run(main())
    (True, 'ready', {'report': 17})
    """

    def __init__(
        self,
        url: str | AsyncEngine,
        name: str = "jobs",
        prefix: str = "queue",
        *,
        timeout: Seconds = 5.0,
    ) -> None:
        check_text("name", name)
        self.name = name
        self.prefix = TABLE_PREFIXES.checked(prefix)
        self.timeout: float = check_wait("timeout", timeout)
        self.database = AsyncDatabase(url, self.timeout, JOB_QUEUE)
        self.tables = Tables(self.database.engine.dialect.name, self.prefix, sql.JOBS)
        self._queue = to_column_key(name)

    def __repr__(self) -> str:
        return f"<JobQueue {self.name!r} {self.database} prefix={self.prefix!r}>"

    async def enqueue(
        self,
        job: JSON,
        idempotency_key: str,
        *,
        connection: AsyncConnection | None = None,
        delay: Seconds = 0.0,
        priority: int = 0,
    ) -> str:
        """Register a job, and return its id; workers receive it after the commit.

        :param job: a JSON value.
        :param idempotency_key: identifies the job: as long as the queue has a job with this key, in
            any state, a further call changes nothing and returns the id of that job.
        :param connection: of the caller, in a transaction on the same database: the job is part of
            it (transactional outbox).  None: the job is committed by this call.
        :param delay: seconds after which a worker may receive it; at least 0.
        :param priority: jobs with a higher one are received first; at most 2**62.
        :raises TypeError: the job is not a JSON value.
        :raises JobQueueError: the database cannot be reached.
        """
        check_text("idempotency_key", idempotency_key)
        seconds = read_seconds("delay", delay)
        check_int("priority", priority, -MAX_STORED_INT)
        if priority > MAX_STORED_INT:
            raise ValueError(f"priority must be an int up to 2**62, got {priority!r}")
        self.database.check_connection(connection)
        # 80 random bits, never used for another job of any queue; short enough for a command.
        job_id = b32encode(os.urandom(10)).decode().lower()
        row = {"key": to_column_key(idempotency_key), "body": _body(job), "id": job_id}
        await self.prepare()
        enqueued = self._enqueue(**row, delay=float(seconds), priority=priority)
        return await self.perform("enqueue", enqueued, connection)

    def _enqueue(self, **row: Any) -> Operation[str]:
        named = {"queue": self._queue, "key": row["key"]}
        while True:  # a job that is there may be deleted before it is found
            for order in (
                self.tables.order(sql.ENQUEUE, **row, queue=self._queue),
                self.tables.order(sql.FIND_KEY, **named),
            ):
                rows = yield from retry_once_if_answer_lost(order)
                if rows:
                    return str(rows[0][0])

    async def status(self, job_id: str) -> Job | None:
        """The job with this id, or None."""
        check_text("job_id", job_id)
        rows = await self.ask("status", sql.ONE, id=to_column_key(job_id))
        return _job(rows[0]) if rows else None

    async def page(
        self, *, state: JobState | None = None, after: int = 0, limit: int = 50
    ) -> list[Job]:
        """Jobs in the order in which they were registered.

        :param state: only those in this state; None: all.
        :param after: only those behind this ``number``: the next page.
        :param limit: at most this number, at least 1.
        """
        check_choice("state", state, *JOB_STATES, None)
        check_int("after", after, 0)
        check_int("limit", limit, 1)
        rows = await self.ask("page", sql.PAGE, state=state, after=after, limit=limit)
        return [_job(row) for row in rows]

    async def replay(self, job_id: str, *, by: str, reason: str) -> bool:
        """Make a dead-lettered job ready again, and record the operator.

        The job keeps its id, so that external calls keep their idempotency keys.  Its attempts are
        counted from 1 again.  The default listeners receive a ``JobReplayed``.

        :param by: the operator; it and *reason* are kept in the job's ``replays``.
        :returns: False: there is no dead-lettered job with this id.
        """
        for name, text in (("job_id", job_id), ("by", by), ("reason", reason)):
            check_text(name, text)
        await self.prepare()
        replay = self._replay(to_column_key(job_id), by, reason)
        is_replayed = await self.perform("replay", replay)
        if is_replayed:
            event = JobReplayed(name=self.name, job_id=job_id, by=by, reason=reason)
            notify_listeners(with_defaults((), ControlListener), [event])
        return is_replayed

    def _replay(self, job_id: str, by: str, reason: str) -> Operation[bool]:
        named = {"id": job_id, "queue": self._queue}
        rows = yield from retry_once_if_answer_lost(self.tables.order(sql.REPLAYS, **named))
        if not rows:
            return False
        before, at = rows[0]
        replays = json.dumps([*loads(before), asdict(JobReplay(at, by, reason))])
        return bool((yield self.tables.order(sql.REPLAY, **named, before=before, replays=replays)))

    async def purge(self, older_than: Seconds) -> int:
        """Delete the jobs that were completed earlier than this; return their number.

        Their idempotency keys can be used again.  Dead letters stay.

        :param older_than: seconds, at least 0.
        """
        age = read_seconds("older_than", older_than)
        deleted = 0
        while rows := await self.ask("purge", sql.PURGE, age=float(age), limit=AT_ONCE):
            deleted += len(rows)
        return deleted

    async def close(self) -> None:
        """Close the connections, except those of a given engine."""
        await self.database.close()

    async def __aenter__(self) -> Self:
        await self.prepare()
        return self

    async def prepare(self) -> None:
        """Create the tables if they are missing."""
        await self.perform("create the tables", self.tables.prepare())

    async def ask(
        self, name: str, statement: str, connection: Any = None, **parameters: Any
    ) -> Rows:
        """The rows of an idempotent statement on the jobs of this queue.

        :param name: of the operation, for its errors.
        """
        await self.prepare()
        order = self.tables.order(statement, queue=self._queue, **parameters)
        return await self.perform(name, retry_once_if_answer_lost(order), connection)

    async def perform(self, name: str, step: Operation[T], connection: Any = None) -> T:
        """Run an operation, in the caller's transaction if there is one."""
        step.__name__ = name  # type: ignore[attr-defined]  # a generator
        with translate_errors(JobQueueError):
            return await perform_async(step, partial(self._reply, connection))

    def _reply(self, connection: Any, order: Any, name: str) -> Any:
        return self.database.ask(order, name, connection)


def _body(job: JSON) -> str:
    try:
        return json.dumps(job, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(f"job must be a JSON value: {exc}") from exc


def _job(row: Any) -> Job:
    """The job of a row.

    :raises JobQueueError: a column with JSON is damaged.
    """
    values: dict[str, Any] = dict(zip(sql.COLUMNS, row, strict=True))
    job_id = values["id"]
    try:
        for name in ("body", "last_failure", "letter", "replays"):
            if values[name] is not None:
                values[name] = loads(values[name])
        values["replays"] = tuple(JobReplay(**each) for each in values["replays"])
        if values["state"] == "dead_lettered":
            values |= {name: values["letter"][name] for name in ("attempts", "crashes")}
        values["key"] = from_column_key(values["key"])
        job = Job(**values)
        assert job.history is not None  # it can be read
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise JobQueueError(f"the row of job {job_id!r} is damaged: {summary(exc)}") from exc
    return job
