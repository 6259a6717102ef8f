"""The cost of a pipeline and of the same strategies nested: ``python benchmarks/pipeline.py``.

An asynchronous call that succeeds at once, the fastest of many short rounds; and a rejection by
an open circuit, raised and caught, or as an outcome.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # the checkout that this file is in is measured
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pages import INTERPRETER, options, show

from retrytemplate import CircuitOpenError, ExponentialBackoff, RetryTemplate, SimpleRetryPolicy
from retrytemplate.control import Bulkhead, CircuitBreaker, Pipeline, Timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Call = Callable[[], Any]

LIMIT, ATTEMPTS, SLOTS, THRESHOLD, OPEN = 2.0, 3, 10, 5, 30.0
GOAL = 1.5
CALLS = 100  # in a round: the loop comes by between two, and lets go of timers


class Failure(Exception):
    """Worth another attempt."""


async def answer() -> int:
    return 1


def by_hand() -> Call:
    """``asyncio.timeout``, a loop, a lock around counts, a semaphore."""
    lock, slots = threading.Lock(), asyncio.Semaphore(SLOTS)
    failures, until = 0, 0.0

    async def call() -> int:
        nonlocal failures, until
        async with asyncio.timeout(LIMIT):
            for attempt in range(ATTEMPTS):
                with lock:
                    if until and time.monotonic() < until:
                        raise RuntimeError("open")
                try:
                    async with slots:
                        value = await answer()
                except Failure:
                    with lock:
                        failures += 1
                        if failures >= THRESHOLD:
                            until = time.monotonic() + OPEN
                    if attempt == ATTEMPTS - 1:
                        raise
                else:
                    with lock:
                        failures = 0
                    return value
        raise AssertionError("not reached")

    return call


async def timeout_by_hand() -> int:
    async with asyncio.timeout(LIMIT):
        return await answer()


def semaphore_by_hand() -> Call:
    slots = asyncio.Semaphore(SLOTS)

    async def call() -> int:
        async with slots:
            return await answer()

    return call


def made() -> tuple[Timeout, RetryTemplate, CircuitBreaker, Bulkhead]:
    """One of each; the failures that count are the same ones."""
    return (
        Timeout(LIMIT),
        RetryTemplate(
            SimpleRetryPolicy(ATTEMPTS, retry_on=Failure), ExponentialBackoff(0.1, jitter="full")
        ),
        CircuitBreaker("service", failures=(Failure,)),
        Bulkhead("service", limit=SLOTS),
    )


def calls() -> dict[str, Call]:
    """The measured calls, by name."""
    timeout, template, breaker, bulkhead = made()
    pipeline = Pipeline(timeout, template, breaker, bulkhead)
    opened = CircuitBreaker("open")
    opened.force_open(by="the benchmark", reason="to measure a rejection")

    async def rejected() -> None:
        try:
            await opened.call_async(answer)
        except CircuitOpenError:
            return

    return {
        "none": answer,
        "code by hand": by_hand(),
        "pipeline, `wrap`": pipeline.wrap(answer),
        "pipeline, `call_async`": lambda: pipeline.call_async(answer),
        "`asyncio.timeout`": timeout_by_hand,
        "timeout": timeout.wrap(answer),
        "timeout, template": Pipeline(timeout, template).wrap(answer),
        "timeout, template, breaker": Pipeline(timeout, template, breaker).wrap(answer),
        "template": template.wrap(answer),
        "breaker": breaker.wrap(answer),
        "`asyncio.Semaphore`": semaphore_by_hand(),
        "bulkhead": bulkhead.wrap(answer),
        "open circuit, error raised": rejected,
        "open circuit, error in an `Outcome`": lambda: opened.outcome_async(answer),
    }


async def measured(call: Callable[[], Awaitable[Any]]) -> float:
    """Nanoseconds of a call, by one round."""
    await asyncio.sleep(0)
    gc.collect()  # else the same ones would pay for the others' garbage in each round
    began = time.perf_counter_ns()
    for _ in range(CALLS):
        await call()
    return (time.perf_counter_ns() - began) / CALLS


async def fastest(rounds: int) -> dict[str, float]:
    """The fastest round of each, all in turn."""
    wanted = calls()
    best = dict.fromkeys(wanted, float("inf"))
    gc.freeze()
    for _ in range(rounds):
        for name, call in wanted.items():
            best[name] = min(best[name], await measured(call))
    return best


def table(best: dict[str, float]) -> list[str]:
    """The rows of the table, in Markdown."""
    hand = best["code by hand"]
    rows = (f"| {name} | {each / 1000:.2f} | {each / hand:.2f} |" for name, each in best.items())
    head = "| code around the function | µs | ratio to the code by hand |"
    return [head, "|---|---:|---:|", *rows]


def remark(best: dict[str, float]) -> str:
    """What stands below the table."""
    ratio = best["pipeline, `wrap`"] / best["code by hand"]
    verdict = "within" if round(ratio, 2) <= GOAL else "over"
    return f"The ratio of a wrapped pipeline is {verdict} its goal, {GOAL:g}. {INTERPRETER}."


def main() -> None:
    """Run the benchmark."""
    wanted = options(__doc__, figures="the nanoseconds").parse_args()
    best = asyncio.run(fastest(3 if wanted.quick else 200))
    text = "\n".join([*table(best), "", remark(best)])
    show(wanted, "pipeline", text, best)


if __name__ == "__main__":
    main()
