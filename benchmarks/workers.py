"""The cost of tasks and streams beside those of asyncio: ``python benchmarks/workers.py``.

Per item, from its start to its end, the fastest of many short rounds.

``python benchmarks/workers.py --url redis://localhost`` measures the messages of a Redis stream
beside the loop of redis-py that acknowledges them one by one: the median of five runs of each.
With the URL of a database it measures the jobs of a ``JobQueue`` beside a loop over a plain table.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

if __name__ == "__main__":  # the checkout that this file is in is measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pages import INTERPRETER, options, show
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from retrytemplate import AsyncRedisRetryContextCache
from retrytemplate.workers import (
    JobQueue,
    RedisStreamSource,
    SQLSource,
    TaskSupervisor,
    WorkerRuntime,
    process_stream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    # Processes the items of one round.
    Case = Callable[[], Awaitable[object]]

ITEMS = 100  # in a round
CONCURRENCY = 16
END = object()


async def nothing() -> None:
    """The work of a task."""


async def task_group() -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(ITEMS):
            group.create_task(nothing())


async def supervisor() -> None:
    async with TaskSupervisor() as owner:
        for _ in range(ITEMS - 1):
            owner.start(nothing)
        await owner.start(nothing).wait()


async def ignore(item: int) -> None:
    """The work of an item."""


async def numbers() -> AsyncIterator[int]:
    for number in range(ITEMS):
        yield number


async def queue() -> None:
    """A bounded queue in front of a fixed pool of tasks."""
    items: asyncio.Queue[Any] = asyncio.Queue(2 * CONCURRENCY)

    async def worker() -> None:
        while (item := await items.get()) is not END:
            await ignore(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker())
        async for number in numbers():
            await items.put(number)
        for _ in range(CONCURRENCY):
            await items.put(END)


async def stream() -> None:
    await process_stream(numbers(), ignore, concurrency=CONCURRENCY)


# The name and the case of the library, those that it is compared with, and the highest ratio.
PAIRS: tuple[tuple[str, Case, str, Case, float], ...] = (
    ("`TaskSupervisor.start`", supervisor, "`TaskGroup.create_task`", task_group, 2.0),
    ("`process_stream`", stream, "`asyncio.Queue` and 16 tasks", queue, 2.0),
)


async def measured(case: Case) -> float:
    """Nanoseconds of an item, by one round."""
    await asyncio.sleep(0)
    gc.collect()  # else the same ones would pay for the others' garbage in each round
    began = time.perf_counter_ns()
    await case()
    return (time.perf_counter_ns() - began) / ITEMS


async def fastest(rounds: int) -> dict[str, float]:
    """The fastest round of each case, all in turn."""
    cases = {name: case for pair in PAIRS for name, case in (pair[:2], pair[2:4])}
    best = dict.fromkeys(cases, float("inf"))
    gc.freeze()
    for _ in range(rounds):
        for name, case in cases.items():
            best[name] = min(best[name], await measured(case))
    return best


def table(best: dict[str, float]) -> list[str]:
    """The rows of the table, in Markdown."""
    rows = [
        "| this library; asyncio | this library, µs | asyncio, µs | ratio | goal |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, _, other, _, bound in PAIRS:
        ours, base = best[name] / 1000, best[other] / 1000
        ratio = ours / base
        rows.append(f"| {name}; {other} | {ours:.2f} | {base:.2f} | {ratio:.2f} | {bound:g} |")
    return rows


# -- messages of a Redis stream, and of a table

GROUP = "workers"
SLOTS = 16, 64
numbers_of_queues = count(1)


async def run_worker(source: Any, cache: Any, messages: int, slots: int) -> float:
    """A worker runtime, which records an attempt and its end for each message.

    Returns the seconds until the last message, as the bare loops do: the shutdown, which waits for
    a receive in progress, is not measured and kept short.
    """
    handled, ended = 0, 0.0

    async def handle(message: Any, context: Any) -> None:
        nonlocal handled, ended
        handled += 1
        if handled == messages:
            ended = time.perf_counter()
            worker.stop()

    worker = WorkerRuntime(
        source, handle, name="benchmark", cache=cache, concurrency=slots, receive_wait=0.05
    )
    began = time.perf_counter()
    await worker.run()
    return ended - began


class RedisStream:
    """Messages of a stream of Redis."""

    mark = "messages"
    column = "commands of the cache"
    cases: ClassVar = {"separate": "one per round trip", "pipeline": "sent together"}

    def __init__(self, url: str) -> None:
        self.url = url

    async def fill(self, messages: int) -> None:
        """Make a new stream with messages."""
        from redis.asyncio import Redis

        self.name = f"benchmark:{next(numbers_of_queues)}"
        client: Any
        async with Redis.from_url(self.url) as client:
            await client.delete(self.name)
            pipeline = client.pipeline(transaction=False)
            for number in range(messages):
                pipeline.xadd(self.name, {"body": str(number)})
            await pipeline.execute()
            await client.xgroup_create(self.name, GROUP, "0")

    async def bare(self, messages: int, slots: int) -> float:
        """The documented consumer of redis-py, with the same prefetch; a crash loses no message."""
        from redis.asyncio import Redis

        client: Any
        async with Redis.from_url(self.url) as client:
            await client.ping()
            began = time.perf_counter()
            handled = 0
            while handled < messages:
                streams = {self.name: ">"}
                reply = await client.xreadgroup(GROUP, "bare", streams, count=2 * slots, block=1000)
                for number, _ in reply[0][1]:
                    await nothing()
                    await client.xack(self.name, GROUP, number)
                    handled += 1
            return time.perf_counter() - began

    async def ours(self, case: str, messages: int, slots: int) -> float:
        """The runtime; the cache sends each command alone, or those of several tasks together."""
        source = RedisStreamSource(self.url, self.name, group=GROUP, delete_acknowledged=False)
        pipeline = case == "pipeline"
        cache = AsyncRedisRetryContextCache(self.url, prefix=self.name, pipeline=pipeline)
        return await run_worker(source, cache, messages, slots)

    async def clear(self) -> None:
        """Delete the stream."""
        from redis.asyncio import Redis

        async with Redis.from_url(self.url) as client:
            await client.delete(self.name)


TAKE = """
    UPDATE {name}_bare SET state = 'running' WHERE number IN (
        SELECT number FROM {name}_bare WHERE state = 'ready' ORDER BY number LIMIT :limit {lock}
    ) RETURNING number, body"""
DONE = "UPDATE {name}_bare SET state = 'completed' WHERE number = :number"


class Table:
    """Messages of a table of SQLite or PostgreSQL."""

    column = "database"

    def __init__(self, url: str) -> None:
        self.url = make_url(url)
        dialect = self.url.get_backend_name()
        self.mark = f"messages-{dialect}"
        self.cases = {"one": {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[dialect]}
        self._lock = "FOR UPDATE SKIP LOCKED" if dialect == "postgresql" else ""
        driver = "aiosqlite" if dialect == "sqlite" else "psycopg"
        self._engine = create_async_engine(self.url.set(drivername=f"{dialect}+{driver}"))

    async def fill(self, messages: int) -> None:
        """Make new tables with messages: of a job queue, and a plain one."""
        self.name = f"benchmark_{next(numbers_of_queues)}"
        await self.clear()
        plain = (
            "(number bigint PRIMARY KEY, body text NOT NULL, state text NOT NULL DEFAULT 'ready')"
        )
        async with self._queue() as queue, self._engine.begin() as connection:
            await connection.execute(text(f"CREATE TABLE {self.name}_bare {plain}"))
            for number in range(messages):
                await queue.enqueue(number, str(number), connection=connection)
            rows = [{"number": number, "body": str(number)} for number in range(messages)]
            insert = f"INSERT INTO {self.name}_bare (number, body) VALUES (:number, :body)"
            await connection.execute(text(insert), rows)

    def _queue(self) -> JobQueue:
        return JobQueue(self.url.render_as_string(hide_password=False), prefix=self.name)

    async def bare(self, messages: int, slots: int) -> float:
        """A loop on one connection, with the same prefetch; a crash loses no message."""
        take = text(TAKE.format(name=self.name, lock=self._lock))
        done = text(DONE.format(name=self.name))
        async with self._engine.connect() as connection:
            began = time.perf_counter()
            handled = 0
            while handled < messages:
                rows = (await connection.execute(take, {"limit": 2 * slots})).all()
                await connection.commit()
                for number, _ in rows:
                    await nothing()
                    await connection.execute(done, {"number": number})
                    await connection.commit()
                    handled += 1
            return time.perf_counter() - began

    async def ours(self, case: str, messages: int, slots: int) -> float:
        """The runtime, with the context cache in the database of the queue."""
        return await run_worker(SQLSource(self._queue()), None, messages, slots)

    async def clear(self) -> None:
        """Drop the tables."""
        async with self._engine.begin() as connection:
            for each in ("bare", "jobs", "contexts", "meta"):
                await connection.execute(text(f"DROP TABLE IF EXISTS {self.name}_{each}"))
        await self._engine.dispose()


async def message_rates(
    queue: RedisStream | Table, rounds: int, messages: int
) -> dict[str, list[float]]:
    """Messages a second of each case and number of slots, round by round."""
    rates: dict[str, list[float]] = {}
    for number in range(-1, rounds):  # the one before warms up
        for slots in SLOTS:
            for case in ("bare", *queue.cases):
                await queue.fill(messages)
                gc.collect()
                if case == "bare":
                    seconds = await queue.bare(messages, slots)
                else:
                    seconds = await queue.ours(case, messages, slots)
                if number >= 0:
                    rates.setdefault(f"{case} {slots}", []).append(messages / seconds)
                await queue.clear()
    return rates


def message_table(queue: RedisStream | Table, rates: dict[str, list[float]]) -> list[str]:
    """The rows of the messages, in Markdown: the ratio of the same round, and its spread."""
    rows = [
        f"| slots, {queue.column} | loop, messages/s | runtime, messages/s "
        "| ratio of the rates | range |",
        "|---|---:|---:|---:|---:|",
    ]
    for slots in SLOTS:
        bare = rates[f"bare {slots}"]
        for case, title in queue.cases.items():
            ours = rates[f"{case} {slots}"]
            ratios = sorted(our / base for our, base in zip(ours, bare, strict=True))
            figures = f"{median(bare):,.0f} | {median(ours):,.0f} | {median(ratios):.2f}"
            rows.append(f"| {slots}, {title} | {figures} | {ratios[0]:.2f} to {ratios[-1]:.2f} |")
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__, figures="the nanoseconds, or the messages a second")
    parser.add_argument("--url", help="of Redis, SQLite or PostgreSQL: measure messages")
    wanted = parser.parse_args()
    if wanted.url:
        is_redis = wanted.url.startswith(("redis:", "rediss:", "unix:"))
        queue: Any = RedisStream(wanted.url) if is_redis else Table(wanted.url)
        sizes = (1, 20) if wanted.quick else (5, 5000 if is_redis else 1000)
        rates = asyncio.run(message_rates(queue, *sizes))
        rows = "\n".join([*message_table(queue, rates), "", f"{INTERPRETER}."])
        show(wanted, queue.mark, rows, rates)
        return
    best = asyncio.run(fastest(3 if wanted.quick else 400))
    show(wanted, "workers", "\n".join([*table(best), "", f"{INTERPRETER}."]), best)


if __name__ == "__main__":
    main()
