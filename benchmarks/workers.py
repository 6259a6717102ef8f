"""The cost of tasks and streams beside those of asyncio: ``python benchmarks/workers.py``.

Per item, from its start to its end, the fastest of many short rounds.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # the checkout that this file is in is measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pages import INTERPRETER, options, show

from retrytemplate.workers import TaskSupervisor, process_stream

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


def main() -> None:
    """Run the benchmark."""
    wanted = options(__doc__, figures="the nanoseconds").parse_args()
    best = asyncio.run(fastest(3 if wanted.quick else 400))
    show(wanted, "workers", "\n".join([*table(best), "", f"{INTERPRETER}."]), best)


if __name__ == "__main__":
    main()
