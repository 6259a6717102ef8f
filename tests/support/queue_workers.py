"""Worker processes for the tests that kill them, and the queues that they work on."""

import asyncio
import json
import logging
import os
import signal
import sys
from itertools import count

from attrs import frozen
from sqlalchemy import create_engine, make_url, text

from retrytemplate import FixedBackoff
from retrytemplate.control import ProcessGate, idempotency_key
from retrytemplate.workers import (
    JobQueue,
    RedeliveryPolicy,
    RedisStreamSource,
    SQLSource,
    WorkerRuntime,
)
from retrytemplate.workers.sources.redis_scripts import ACKNOWLEDGE
from tests.support import valkey
from tests.support.queue_receiver import send
from tests.support.simulated_workers import NoGate

__all__ = ["SQLQueue", "StreamQueue", "WorkerSettings", "queue_at", "work"]

numbers = count(1)


@frozen
class WorkerSettings:
    """The settings of a worker process.

    :param duration: seconds of a handler.
    :param gate: False: "exclusive" attempts run beside others.
    """

    concurrency: int
    prefetch: int | None
    max_crashes: int
    lease: float
    duration: float
    gate: bool


@frozen
class SQLQueue:
    """A job queue as a row of the campaign; another source has the same methods.

    :param prefix: of the tables.
    """

    url: str
    prefix: str

    @property
    def name(self):
        return make_url(self.url).get_backend_name()

    @property
    def settlement(self):
        """Contained in requests that settle a message."""
        return b"WITH ended"

    def source(self, lease):
        """The source of a worker."""
        return SQLSource(JobQueue(self.url, prefix=self.prefix), lease=lease)

    async def fill(self, bodies):
        async with JobQueue(self.url, prefix=self.prefix) as jobs:
            for body in bodies:
                await jobs.enqueue(body, body)

    async def ends(self):
        """The state of each message by its body: "completed", "dead_lettered" or another one."""
        async with JobQueue(self.url, prefix=self.prefix) as jobs:
            return {job.body: job.state for job in await jobs.page(limit=10_000)}

    async def left(self):
        """The number of messages that are not settled."""
        ends = await self.ends()
        return sum(state not in ("completed", "dead_lettered") for state in ends.values())

    async def drop(self):
        """Delete the tables."""
        parsed = make_url(self.url)
        driver = {"postgresql": "postgresql+psycopg"}.get(self.name, self.name)
        engine = create_engine(parsed.set(drivername=driver))
        with engine.begin() as connection:
            for table in ("jobs", "contexts", "meta"):
                connection.execute(text(f"DROP TABLE IF EXISTS {self.prefix}_{table}"))
        engine.dispose()


@frozen
class StreamQueue:
    """A stream in Valkey, which has the methods of a ``SQLQueue``.

    :param prefix: the key of the stream, and the beginning of that of its dead letters.
    """

    url: str
    prefix: str
    name = "valkey"

    @property
    def settlement(self):
        return ACKNOWLEDGE.sha.encode()

    @property
    def dead_letters(self):
        return f"{self.prefix}-dead"

    def source(self, lease):
        return RedisStreamSource(
            self.url,
            self.prefix,
            group="workers",
            visibility_timeout=lease,
            dead_letters=self.dead_letters,
        )

    async def fill(self, bodies):
        with valkey.opened(self.url) as client:
            for body in bodies:
                client.xadd(self.prefix, {"body": body})
            client.script_load(ACKNOWLEDGE.text)

    async def ends(self):
        """The state of each message by its body; those that were acknowledged are missing."""
        with valkey.opened(self.url) as client:
            left = {fields["body"]: "waiting" for _, fields in client.xrange(self.prefix)}
            entries = client.xrange(self.dead_letters)
        letters = [json.loads(fields["body"]) for _, fields in entries]
        return left | {each["message"]["body"]: "dead_lettered" for each in letters}

    async def left(self):
        with valkey.opened(self.url) as client:
            return client.xlen(self.prefix)

    async def drop(self):
        """Delete the streams, and the contexts of the runtime."""
        with valkey.opened(self.url) as client:
            for key in client.scan_iter(f"*{self.prefix}*", count=1000):
                client.delete(key)


def queue_at(url):
    """A queue with a name of its own in a database or on a server."""
    name = f"queue{os.getpid()}_{next(numbers)}"
    return StreamQueue(url, name) if url.startswith("redis") else SQLQueue(url, name)


def work(queue, settings, port):
    """Run a worker until SIGTERM; exit code 0 if the stop was clean."""
    logging.disable()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until the runtime handles it
    sys.exit(0 if asyncio.run(_work(queue, settings, port)) else 1)


async def _work(queue, settings, port):
    async def handle(message, context):
        body = message.body.decode().strip('"')
        effect = {
            "body": body,
            "key": idempotency_key(),
            "attempt": context.attempt,
            "crashes": context.attributes.get("crashes", 0),
        }
        await asyncio.sleep(settings.duration)
        await send(port, **effect)
        if body.startswith("poison"):
            os.kill(os.getpid(), signal.SIGKILL)

    runtime = WorkerRuntime(
        queue.source(settings.lease),
        handle,
        name=queue.prefix,
        concurrency=settings.concurrency,
        prefetch=settings.prefetch,
        retry=RedeliveryPolicy(max_crashes=settings.max_crashes),
        backoff=FixedBackoff(0.1),
        gate=ProcessGate() if settings.gate else NoGate(),
        receive_wait=0.2,
    )
    async with runtime.signals():
        return (await runtime.run()).clean
