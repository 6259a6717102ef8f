"""The cost of tasks and streams beside those of asyncio: ``python benchmarks/workers.py``.

Per item, from its start to its end, the fastest of many short rounds.

``python benchmarks/workers.py --url redis://localhost`` measures the messages of a Redis stream
beside the loop of redis-py that acknowledges them one by one: the median of five runs of each.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # the checkout that this file is in is measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pages import INTERPRETER, options, show

from retrytemplate import AsyncRedisRetryContextCache
from retrytemplate.workers import (
    RedisStreamSource,
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
    ("`process_stream`", stream, "`asyncio.Queue` with a fixed pool", queue, 2.0),
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
    rows = ["| | µs | compared, µs | ratio | bound |", "|---|---:|---:|---:|---:|"]
    for name, _, other, _, bound in PAIRS:
        ours, base = best[name] / 1000, best[other] / 1000
        ratio = ours / base
        rows.append(f"| {name} to {other} | {ours:.2f} | {base:.2f} | {ratio:.2f} | {bound:g} |")
    return rows


# -- messages of a Redis stream

GROUP = "workers"
SLOTS = 16, 64
stream_numbers = count(1)


async def filled(client: Any, messages: int) -> str:
    """A new stream with messages."""
    stream = f"benchmark:{next(stream_numbers)}"
    await client.delete(stream)
    pipeline = client.pipeline(transaction=False)
    for number in range(messages):
        pipeline.xadd(stream, {"body": str(number)})
    await pipeline.execute()
    await client.xgroup_create(stream, GROUP, "0")
    return stream


async def bare_loop(client: Any, stream: str, messages: int, slots: int) -> float:
    """The documented consumer of redis-py, with the same prefetch; a crash loses no message.

    Returns the seconds until the last message, as ``runtime`` does.
    """
    began = time.perf_counter()
    handled = 0
    while handled < messages:
        reply = await client.xreadgroup(GROUP, "bare", {stream: ">"}, count=2 * slots, block=1000)
        for number, _ in reply[0][1]:
            await nothing()
            await client.xack(stream, GROUP, number)
            handled += 1
    return time.perf_counter() - began


async def runtime(url: str, stream: str, messages: int, slots: int, pipeline: bool) -> float:
    """A worker runtime, which records an attempt and its end for each message.

    The shutdown, which waits for a receive in progress, is not measured.
    """
    handled, ended = 0, 0.0

    async def handle(message: Any, context: Any) -> None:
        nonlocal handled, ended
        handled += 1
        if handled == messages:
            ended = time.perf_counter()
            worker.stop()

    source = RedisStreamSource(url, stream, group=GROUP, delete_acknowledged=False)
    cache = AsyncRedisRetryContextCache(url, prefix=stream, pipeline=pipeline)
    worker = WorkerRuntime(source, handle, name="benchmark", cache=cache, concurrency=slots)
    began = time.perf_counter()
    await worker.run()
    return ended - began


async def message_rates(url: str, rounds: int, messages: int) -> dict[str, list[float]]:
    """Messages a second of each case and number of slots, round by round."""
    from redis.asyncio import Redis

    rates: dict[str, list[float]] = {}
    client: Any
    async with Redis.from_url(url) as client:
        for number in range(-1, rounds):  # the one before warms up
            for slots in SLOTS:
                for name in ("bare", "separate", "pipeline"):
                    stream = await filled(client, messages)
                    gc.collect()
                    if name == "bare":
                        seconds = await bare_loop(client, stream, messages, slots)
                    else:
                        pipeline = name == "pipeline"
                        seconds = await runtime(url, stream, messages, slots, pipeline)
                    if number >= 0:
                        rates.setdefault(f"{name} {slots}", []).append(messages / seconds)
                    await client.delete(stream)
    return rates


def message_table(rates: dict[str, list[float]]) -> list[str]:
    """The rows of the messages, in Markdown: the ratio of the same round, and its spread."""
    rows = [
        "| slots, cache | bare loop, a second | runtime, a second | ratio | spread |",
        "|---|---:|---:|---:|---:|",
    ]
    for slots in SLOTS:
        bare = rates[f"bare {slots}"]
        for name, title in (("separate", "each alone"), ("pipeline", "shared pipeline")):
            ours = rates[f"{name} {slots}"]
            ratios = sorted(our / base for our, base in zip(ours, bare, strict=True))
            figures = f"{median(bare):,.0f} | {median(ours):,.0f} | {median(ratios):.2f}"
            rows.append(f"| {slots}, {title} | {figures} | {ratios[0]:.2f} to {ratios[-1]:.2f} |")
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__, figures="the nanoseconds, or the messages a second")
    parser.add_argument("--url", help="a Redis server: measure messages of a stream")
    wanted = parser.parse_args()
    if wanted.url:
        sizes = (1, 20) if wanted.quick else (5, 5000)
        rates = asyncio.run(message_rates(wanted.url, *sizes))
        text = "\n".join([*message_table(rates), "", f"{INTERPRETER}."])
        show(wanted, "messages", text, rates)
        return
    best = asyncio.run(fastest(3 if wanted.quick else 400))
    show(wanted, "workers", "\n".join([*table(best), "", f"{INTERPRETER}."]), best)


if __name__ == "__main__":
    main()
