"""Whether a limit of time limits: how long it takes until the caller is free again.

An operation may take 0.1 s, and each of its attempts would take 0.2 s.

python benchmarks/deadline.py                                 # nine turns, medians, a table
python benchmarks/deadline.py --update docs/operations/performance.md
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Any

from attrs import frozen
from pages import CHECKOUT, INTERPRETER, options, show

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LIMIT, ATTEMPT = 0.1, 0.2
GOAL = 0.01
"""Seconds after the limit that are still in time."""


class Failure(Exception):
    """The failure of every attempt, which every library retries."""


def attempt() -> None:
    """An attempt that cannot be cancelled, only abandoned in its thread."""
    time.sleep(ATTEMPT)
    raise Failure


async def attempt_async() -> None:
    await asyncio.sleep(ATTEMPT)
    raise Failure


def ours_in_thread() -> Callable[[], Any]:
    """The attempt runs in a thread of its own."""
    from retrytemplate import AttemptTimeout, Deadline, RetryTemplate, SimpleRetryPolicy

    policy = SimpleRetryPolicy(99, retry_on=Failure)
    template = RetryTemplate(policy, attempt_timeout=AttemptTimeout(60.0, in_thread=True))

    def run() -> None:
        with Deadline(LIMIT):
            template.call(attempt)

    return run


def ours_with_client() -> Callable[[], Any]:
    """The attempt waits for a response within the remaining time, as a client with a timeout."""
    import socket

    from retrytemplate import Deadline, RetryTemplate, SimpleRetryPolicy
    from retrytemplate.control import time_left

    template = RetryTemplate(SimpleRetryPolicy(99, retry_on=(Failure, OSError)))

    def ask() -> None:
        here, there = socket.socketpair()
        with here, there:
            here.settimeout(time_left(ATTEMPT, minimum=0))
            here.recv(1)

    def run() -> None:
        with Deadline(LIMIT):
            template.call(ask)

    return run


def ours_async() -> Callable[[], Awaitable[Any]]:
    """The attempt is cut."""
    from retrytemplate import Deadline, RetryTemplate, SimpleRetryPolicy

    template = RetryTemplate(SimpleRetryPolicy(99, retry_on=Failure))

    async def run() -> None:
        async with Deadline(LIMIT):
            await template.call_async(attempt_async)

    return run


def tenacity(function: Any) -> Any:
    """It retries both kinds of functions."""
    library = import_module("tenacity")
    return library.retry(
        stop=library.stop_after_delay(LIMIT),
        wait=library.wait_none(),
        retry=library.retry_if_exception_type(Failure),
        reraise=True,
    )(function)


def stamina(function: Any) -> Any:
    """The same; it would log every retry."""
    library = import_module("stamina")
    library.instrumentation.set_on_retry_hooks([])
    settings = {"wait_initial": 0, "wait_max": 0, "wait_jitter": 0}
    return library.retry(on=Failure, attempts=None, timeout=LIMIT, **settings)(function)


def backoff(function: Any) -> Any:
    """The same."""
    library = import_module("backoff")
    return library.on_exception(
        library.constant, Failure, interval=0, jitter=None, max_time=LIMIT, logger=None
    )(function)


@frozen
class Row:
    """One line of the table."""

    title: str
    package: str
    sync: Callable[[], Callable[[], Any]] | None
    asynchronous: Callable[[], Callable[[], Awaitable[Any]]] | None


ROWS = (
    Row("retrytemplate", "retrytemplate", None, ours_async),
    Row("retrytemplate, in a thread", "retrytemplate", ours_in_thread, None),
    Row("retrytemplate, timeout of the client", "retrytemplate", ours_with_client, None),
    *(
        Row(each.__name__, each.__name__, partial(each, attempt), partial(each, attempt_async))
        for each in (tenacity, stamina, backoff)
    ),
)


def seconds(run: Callable[[], Any]) -> float:
    """How long it takes until the caller has its error."""
    began = time.perf_counter()
    try:
        run()
    except (Failure, TimeoutError):
        return time.perf_counter() - began
    raise AssertionError("it came to something")


def in_loop(runner: asyncio.Runner, awaited: Callable[[], Any]) -> None:
    """Run it in the loop that is there."""
    runner.run(awaited())


def measured(turns: int) -> dict[str, dict[str, list[float]]]:
    """The seconds of every turn by title and kind; those that are not installed have none."""
    figures: dict[str, dict[str, list[float]]] = {}
    with asyncio.Runner() as runner:
        for row in ROWS:
            figures[row.title] = taken = {}
            if not find_spec(row.package):
                continue
            if row.sync is not None:
                run = row.sync()
                taken["sync"] = [seconds(run) for _ in range(turns)]
            if row.asynchronous is not None:
                awaited: Any = row.asynchronous()
                run = partial(in_loop, runner, awaited)
                taken["async"] = [seconds(run) for _ in range(turns)]
    return figures


def table(figures: dict[str, dict[str, list[float]]]) -> list[str]:
    """The rows of the table, in Markdown."""
    lines = [
        "| library | sync: median, ms | sync: maximum, ms "
        "| async: median, ms | async: maximum, ms |",
        "|---|---:|---:|---:|---:|",
    ]
    for title, taken in figures.items():
        if not taken:
            lines.append(f"| {title} | not installed | | | |")
            continue
        cells = []
        for kind in ("sync", "async"):
            times = taken.get(kind)
            found = (median(times), max(times)) if times else ()
            cells += [f"{each * 1000:.0f}" for each in found] or ["-", "-"]
        lines.append(f"| {' | '.join([title, *cells])} |")
    return lines


def remarks(figures: dict[str, dict[str, list[float]]]) -> list[str]:
    """What stands below the table, a paragraph each."""
    late = [
        f"{title}, {kind}"
        for title, taken in figures.items()
        if title.startswith("retrytemplate")
        for kind, times in taken.items()
        if median(times) > LIMIT + GOAL
    ]
    goal = f"{GOAL * 1000:.0f} ms after the limit"
    packages = {row.package for row in ROWS} - {"retrytemplate"}
    where = [
        INTERPRETER,
        *(f"{each} {version(each)}" for each in sorted(packages) if find_spec(each)),
    ]
    return [
        f"Over its goal, {goal}: {'; '.join(late)}."
        if late
        else f"All medians of retrytemplate are within the goal, {goal}.",
        f"{', '.join(where)}.",
    ]


def main() -> None:
    """Measure, and print the table."""
    wanted = options(__doc__, figures="the figures of every turn").parse_args()
    figures = measured(1 if wanted.quick else 9)
    text = "\n\n".join(["\n".join(table(figures)), *remarks(figures)])
    show(wanted, "deadline", text, figures)


if __name__ == "__main__":
    # The checkout that this file is in is measured, whether it is installed or not.
    sys.path.insert(0, CHECKOUT)
    main()
