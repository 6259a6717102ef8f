"""A worker process over a stream in Valkey, which crashes at some of its messages."""

import asyncio
import os
import signal

import redis

from retrytemplate import FixedBackoff
from retrytemplate.control import idempotency_key
from retrytemplate.workers import MessageCrashAttributed, MessageExclusive, WorkerRuntime
from tests.support.redis_streams import RedisStream

__all__ = ["BEGUN", "CRASHES_ALWAYS", "CRASHES_ONCE", "EFFECTS", "attributed", "exclusive", "work"]

CRASHES_ALWAYS, CRASHES_ONCE = b"crashes always", b"crashes once"
BEGUN, EFFECTS = "begun", "effects"
attributed, exclusive = MessageCrashAttributed.__name__, MessageExclusive.__name__


class Tally:
    """Counts in the server, which survives the workers: by message or by idempotency key."""

    def __init__(self, stream):
        self.client, self.name = redis.Redis.from_url(stream.url), stream.name

    def add(self, what, key):
        return self.client.hincrby(f"{self.name}-{what}", key, 1)

    def on_event(self, event):
        if isinstance(event, MessageCrashAttributed | MessageExclusive):
            self.add(type(event).__name__, event.key)


def work(url, name, concurrency, prefetch):
    """Process messages until the stream is empty."""
    stream = RedisStream(url, name)
    asyncio.run(_work(stream, concurrency, prefetch))
    stream.client.close()


async def _work(stream, concurrency, prefetch):
    tally = Tally(stream)

    async def handle(message, context):
        count = tally.add(BEGUN, message.id)
        await asyncio.sleep(0.001)  # others begin meanwhile
        if message.body == CRASHES_ALWAYS or (message.body == CRASHES_ONCE and count == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        tally.add(EFFECTS, idempotency_key())

    async def stop_when_empty():
        while stream.client.xlen(stream.name):
            await asyncio.sleep(0.01)
        runtime.stop()

    runtime = WorkerRuntime(
        stream.source(dead_letters=f"{stream.name}-dead"),
        handle,
        name=stream.name,
        concurrency=concurrency,
        prefetch=prefetch,
        backoff=FixedBackoff(0.01),
        receive_wait=0.1,
        listeners=[tally],
    )
    stopping = asyncio.ensure_future(stop_when_empty())
    report = await runtime.run()
    await stopping
    tally.client.close()
    assert report.clean, report
