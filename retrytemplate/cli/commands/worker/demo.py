"""``retrytemplate demo --workers``: two worker processes, and messages that crash them."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import nullcontext
from shlex import quote
from typing import TYPE_CHECKING, Any

from attrs import asdict

from retrytemplate.cli.commands.worker.commands import PRELOADED
from retrytemplate.cli.commands.worker.fleet import Fleet, Reporter, opened
from retrytemplate.cli.commands.worker.processes import run_group, serve
from retrytemplate.cli.errors import print_json
from retrytemplate.cli.signals import INTERRUPTED
from retrytemplate.cli.tables import Screen, on_terminal
from retrytemplate.control.process_group import ProcessGroup
from retrytemplate.demo import workers
from retrytemplate.workers import JobQueue

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from retrytemplate.demo.workers import WorkerCounts
    from retrytemplate.workers import Job

LONGEST = 120.0
"""Seconds after which the demo stops, whatever is not finished."""
TICK, LINES = 0.1, 2.0
"""Seconds between two snapshots of a process, and between two lines."""
PRELOAD = (
    *PRELOADED,
    "retrytemplate.demo.workers",
    "retrytemplate.workers.sources.sql",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "sqlalchemy.ext.asyncio",
)


def run_workers(database: Path, poisons: frozenset[int], *, as_json: bool) -> int:
    """Process the messages in a new file and return the exit code.

    :param poisons: the numbers of the messages that crash their process.
    """
    began = time.monotonic()
    url = workers.url_of(database)
    fleet = Fleet("demo", f"{url} jobs", is_group=True)
    with _reporter(fleet, as_json) as reporter:
        group = ProcessGroup(
            serve,
            (workers.make_runtime, (url,), TICK, as_json, on_terminal()),
            count=workers.PROCESSES,
            preload=PRELOAD,
        )
        stopped: list[bool] = []

        def is_done() -> bool:
            over = time.monotonic() - began > LONGEST
            stopped[:] = [True] if over or not workers.unfinished(database) else []
            return bool(stopped)

        code = run_group(group, reporter, is_done)
        reporter.show(at_end=True)
    if not stopped:  # by a signal
        print(f"retrytemplate demo: interrupted; database: {database}", file=sys.stderr)
        return INTERRUPTED
    counts = workers.count(database, poisons, fleet.process_crashes)
    seconds = time.monotonic() - began
    if as_json:
        figures: dict[str, Any] = {"messages": workers.MESSAGES, **asdict(counts)}
        print_json(figures | {"seconds": round(seconds, 3), "database": str(database)})
    else:
        _print(counts, url, seconds)
    return code or (0 if counts.is_expected else 1)


def _reporter(fleet: Fleet, as_json: bool) -> AbstractContextManager[Reporter]:
    if as_json:
        return nullcontext(Reporter(fleet, LINES))
    return opened(fleet, False, None if on_terminal() else LINES, sys.stdout)


def _print(counts: WorkerCounts, url: str, seconds: float) -> None:
    screen = Screen()
    screen.say("")
    screen.say(f"{counts} ({seconds:.1f} s)", style="green" if counts.is_expected else "bold red")
    for letter in counts.letters[:1]:
        job = asyncio.run(_find(url, letter))
        if job is not None and job.letter is not None:
            screen.say("")
            screen.say(f"dead letter of message {job.id}: {job.letter['reason']}", style="bold")
            screen.attempts(job.history)
    store = f"--store {quote(url)}"
    screen.say("")
    screen.say("The messages, one of the dead letters, and a further attempt for it:")
    screen.say(f"  retrytemplate queue list --state dead_lettered {store}")
    for letter in counts.letters[:1]:
        screen.say(f"  retrytemplate queue show {letter} {store}")
        screen.say(f"  retrytemplate queue enqueue --replay {letter} --reason fixed {store}")


async def _find(url: str, job_id: str) -> Job | None:
    async with JobQueue(url) as jobs:
        return await jobs.status(job_id)
