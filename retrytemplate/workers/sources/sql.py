"""A source of messages: the jobs of a ``JobQueue``."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from attrs import frozen

from retrytemplate._internal.validation import check_wait
from retrytemplate._storage.cancellation import run_to_completion
from retrytemplate._storage.operation_runner import translate_errors
from retrytemplate._storage.process_liveness import is_process_gone, process_fingerprint
from retrytemplate._storage.sql_dialect import in_dialect
from retrytemplate.backends.sql.cache import AsyncSQLRetryContextCache
from retrytemplate.caches.record import shortened
from retrytemplate.caches.worker_id import next_number, worker_name
from retrytemplate.clock import Clock, given_or_system
from retrytemplate.errors import LeaseLostError, MisuseError
from retrytemplate.workers import job_statements as sql
from retrytemplate.workers.errors import JobQueueError
from retrytemplate.workers.job_queue import JobQueue
from retrytemplate.workers.message import DeadLetter, Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.caches.base import Claim

    T = TypeVar("T")

# Seconds between two looks into an empty queue.
FIRST_POLL, LONGEST_POLL = 0.02, 0.25
# Characters of a reason that are stored.
REASON_LIMIT = 1000


class _Receipt(NamedTuple):
    """A delivery: its source, the job's row, and the fence of the delivery."""

    source: SQLSource
    number: int
    fence: int


@frozen(eq=False, repr=False)
class JobMessage(Message):
    async def acknowledge_in(self, connection: AsyncConnection) -> None:
        """Acknowledge the message in the caller's transaction: it commits with the work.

        :param connection: to the database of the queue, in a transaction.
        :raises LeaseLostError: the message was delivered to another worker; let the error roll
            the transaction back.
        """
        if connection is None:
            raise MisuseError("connection must be a sqlalchemy AsyncConnection, got None")
        self.receipt.source.queue.database.check_connection(connection)
        if await self.receipt.source.acknowledge([self], connection=connection):
            raise _lost(self)


class SQLSource:
    """The jobs of a ``JobQueue`` as messages; a message's body is the job as JSON.

    :param queue: the queue; ``close()`` closes its connections, too.
    :param lease: seconds for which a received message is not delivered again, renewed by
        ``extend``; 0.01 to 1,000,000.
    :param clock: its time and sleep; None: those of the system.

    PostgreSQL: ``FOR UPDATE SKIP LOCKED``; SQLite: one writer at a time.  Each settlement compares
    the fence of the delivery, so that a worker that lost its lease changes nothing.  Messages of a
    process that has ended on this machine are received without waiting for the lease.

    >>> import asyncio
    >>> from tempfile import TemporaryDirectory
    >>> async def main():
    ...     with TemporaryDirectory() as folder:
    ...         jobs = JobQueue(f"sqlite:///{folder}/jobs.db")
    ...         job_id = await jobs.enqueue({"report": 17}, "report-17")
    ...         source = SQLSource(jobs)
    ...         await source.open()
    ...         [message] = await source.receive(10, wait=1.0)
    ...         rejected = await source.acknowledge([message])
    ...         job = await jobs.status(job_id)
    ...         await source.close()
    ...     return message.body, rejected, job.state
    >>> asyncio.run(main())
    (b'{"report":17}', [], 'completed')
    """

    supports_delay = True
    transactional = True

    def __init__(
        self, queue: JobQueue, *, lease: Seconds = 30.0, clock: Clock | None = None
    ) -> None:
        if not isinstance(queue, JobQueue):
            raise TypeError(f"queue must be a JobQueue, got {queue!r}")
        self.queue = queue
        self.name = queue.name
        self.visibility_timeout: float | None = check_wait("lease", lease)
        self._lease = self.visibility_timeout
        self._clock = given_or_system(clock)
        self._worker_number = next_number()
        self._poll = FIRST_POLL
        self._checked_at = -self._lease
        dialect = queue.database.engine.dialect.name
        self._acknowledgement = in_dialect(sql.ACKNOWLEDGE_ENDED, dialect, queue.prefix)

    def __repr__(self) -> str:
        return f"<SQLSource {self.queue!r}>"

    def __str__(self) -> str:
        """The database without a password, and the queue."""
        url = self.queue.database.engine.url
        return f"{url.set(drivername=url.get_backend_name(), query={})} {self.name}"

    async def open(self) -> None:
        """Create the tables if they are missing."""
        await self.queue.prepare()

    async def receive(self, max_messages: int, wait: float) -> list[Message]:
        """Take jobs that are ready, by priority and time; see ``Source.receive``."""
        until = self._clock.monotonic() + wait
        while not (messages := await self._take(max_messages)):
            if await self._take_back():
                continue
            rest = until - self._clock.monotonic()
            if rest <= 0:
                return messages
            await self._clock.sleep_async(min(self._poll, rest))
            self._poll = min(2 * self._poll, LONGEST_POLL)
        self._poll = FIRST_POLL
        return messages

    async def _take(self, limit: int) -> list[Message]:
        """Take jobs; release them if the task is cancelled meanwhile."""
        taken: list[Message] = []
        try:
            await run_to_completion(self._receive(limit, taken))
        except asyncio.CancelledError:
            with suppress(JobQueueError):  # they are received again after the lease
                await run_to_completion(self.release(taken))
            raise
        return taken

    async def _receive(self, limit: int, taken: list[Message]) -> None:
        rows: Any = await self.queue.ask(
            "receive",
            sql.RECEIVE,
            limit=limit,
            lease=self._lease,
            worker=worker_name(self._worker_number),
            process=process_fingerprint(),
        )
        for _, number, fence, id, body, deliveries, enqueued_at in sorted(rows):
            taken.append(
                JobMessage(
                    id,
                    body.encode(),
                    queue=self.name,
                    delivery_count=deliveries,
                    redelivered=deliveries > 1,
                    enqueued_at=enqueued_at,
                    receipt=_Receipt(self, number, fence),
                )
            )

    async def _take_back(self) -> bool:
        """Make the jobs ready whose worker's process has ended on this machine."""
        now = self._clock.monotonic()
        own = process_fingerprint()
        if own is None or now - self._checked_at < self._lease / 3:
            return False
        self._checked_at = now
        holders = await self.queue.ask("receive", sql.RUNNING, own=own)
        gone = [process for (process,) in holders if is_process_gone(process)]
        for process in gone:
            await self.queue.ask("receive", sql.TAKE_BACK, process=process)
        return bool(gone)

    async def acknowledge(
        self, messages: Sequence[Message], *, connection: AsyncConnection | None = None
    ) -> list[Message]:
        """Complete the jobs, in the caller's transaction if there is one.

        :return: the messages that were delivered to another worker: they are unchanged.
        """
        return await self._settle("acknowledge", sql.ACKNOWLEDGE, messages, connection)

    async def end_and_acknowledge(
        self, cache: AsyncSQLRetryContextCache, claim: Claim, message: Message, **marker: Any
    ) -> bool:
        """End an attempt and complete its job in one round trip.

        :param marker: the further arguments of ``cache.succeed``.
        :return: False: the message was delivered to another worker; the attempt has ended.
        :raises LeaseLostError: another claim holds the key; the job is unchanged.
        """
        _, number, fence = message.receipt
        job = {"number": number, "delivery": fence}
        with translate_errors(JobQueueError):
            return await cache.succeed_with(claim, self._acknowledgement, job, **marker)

    async def requeue(
        self,
        message: Message,
        delay: float,
        reason: str,
        *,
        connection: AsyncConnection | None = None,
    ) -> None:
        """Make the job ready after a delay in seconds; the reason is its ``last_failure``.

        :param connection: of a transaction that contains it.
        :raises LeaseLostError: within a transaction: the message was delivered to another worker.
        """
        await self._settle_one(
            "requeue", sql.REQUEUE, message, connection, delay=float(delay), reason=reason
        )

    async def dead_letter(
        self, message: Message, letter: DeadLetter, *, connection: AsyncConnection | None = None
    ) -> None:
        """Set the job aside with its letter, until an operator replays it.

        :param connection: of a transaction that contains it.
        :raises LeaseLostError: within a transaction: the message was delivered to another worker.
        """
        data = letter.as_json()
        del data["message"]  # the row has it
        values = {"letter": json.dumps(data), "reason": letter.reason}
        await self._settle_one("dead_letter", sql.DEAD_LETTER, message, connection, **values)

    async def release(self, messages: Sequence[Message]) -> None:
        """Make the jobs ready at once; this delivery is not counted."""
        await self._settle("release", sql.RELEASE, messages)

    async def extend(self, messages: Sequence[Message]) -> list[Message]:
        """Begin the leases of the messages again; return those that are not held any more."""
        lost = await self._settle("extend", sql.EXTEND, messages, lease=self._lease)
        return await self._settle("extend", sql.EXTEND_LOCKED, lost)

    async def is_settled(self, message: Message) -> bool:
        """Whether this delivery was settled; False if the message was delivered again."""
        return not await self._settle("is_settled", sql.SETTLED, [message])

    async def shares_database(self, cache: Any) -> bool:
        """Whether a context cache is in the database of the queue.

        Then ``run_in_transaction`` can end an attempt and settle its message.  The servers are
        compared, not the URLs.
        """
        if not isinstance(cache, AsyncSQLRetryContextCache):
            return False
        return await cache.is_in(self.queue.database)

    async def run_in_transaction(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Await a function in one transaction: an error undoes all that used its connection.

        For settlements with ``connection=`` that belong together with the end of an attempt.  A
        cancellation is raised after the end.

        :raises JobQueueError: the database cannot be reached, or the commit failed.
        """
        with translate_errors(JobQueueError):
            return await self.queue.database.run_in_transaction(work)

    async def _settle(
        self,
        name: str,
        statement: str,
        messages: Sequence[Message],
        connection: Any = None,
        **values: Any,
    ) -> list[Message]:
        """Run a statement on deliveries; return the messages that it did not apply to."""
        if not messages:
            return []
        pairs = json.dumps([message.receipt[1:] for message in messages])
        rows = await self.queue.ask(name, statement, connection, pairs=pairs, **values)
        done = {(number, fence) for number, fence in rows}
        return [message for message in messages if message.receipt[1:] not in done]

    async def _settle_one(
        self,
        name: str,
        statement: str,
        message: Message,
        connection: Any,
        *,
        reason: str,
        **values: Any,
    ) -> None:
        failure = json.dumps(shortened(reason, REASON_LIMIT))
        lost = await self._settle(name, statement, [message], connection, failure=failure, **values)
        if connection is not None and lost:
            raise _lost(message)

    async def close(self) -> None:
        """Close the connections of the queue; its next use opens others."""
        await self.queue.close()

    def default_cache(self) -> AsyncSQLRetryContextCache:
        """A context cache in the same database, with tables of the same prefix."""
        return AsyncSQLRetryContextCache(
            self.queue.database.engine, self._lease, prefix=self.queue.prefix
        )


def _lost(message: Message) -> LeaseLostError:
    return LeaseLostError(f"message {message.id!r} was delivered to another worker")
