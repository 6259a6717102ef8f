"""The command ``retrytemplate queue``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import format_moment, format_span
from retrytemplate.caches.record_schema import loads
from retrytemplate.cli import stores
from retrytemplate.cli.arguments import (
    add_limit,
    add_verbs,
    current_user,
    seconds,
    text,
)
from retrytemplate.cli.errors import CommandFailed, UsageError
from retrytemplate.cli.formatting import format_when
from retrytemplate.cli.tables import Listing, print_item, print_result
from retrytemplate.workers.job_queue import JOB_STATES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from retrytemplate.workers import Job, JobQueue

DESCRIPTION = """\
List and show the jobs of a job queue, register a job, and replay dead-lettered ones.
"""

EXITS = {1: "the store cannot be reached, or has no such job"}

LIST_EPILOG = f"""\
examples:
  retrytemplate queue list --store sqlite:///jobs.db
  retrytemplate queue list --queue mails --state delayed --limit 200
  {stores.STORE_VARIABLE}=postgresql://me@host/db retrytemplate queue list --json

The oldest jobs are first.  The table truncates text that is too long for the terminal; show and
--json do not.
"""

SHOW_EPILOG = """\
examples:
  retrytemplate queue show mfrggzdfmztwq2lk --store sqlite:///jobs.db
  retrytemplate queue show mfrggzdfmztwq2lk --json
"""

ENQUEUE_EPILOG = """\
examples:
  retrytemplate queue enqueue report.json --key report-17 --store sqlite:///jobs.db
  echo '{"report": 17}' | retrytemplate queue enqueue - --key report-17 --delay 60
  retrytemplate queue enqueue --replay mfrggzdfmztwq2lk --reason "price list fixed" --by ada

FILE has one JSON value; - is standard input.  The id of the job is printed.  The same key returns
the same id, and registers nothing.  A replayed job keeps its id; its attempts are counted from 1
again.  The operator, time and reason are stored with it.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb, and its own verbs, to the command's parser."""
    does = "list, show, register and replay jobs of a job queue"
    verbs = add_verbs(subparsers, "queue", does, DESCRIPTION, EXITS)
    listing = verbs.add("list", "list the jobs", LIST_EPILOG, stores.queue_options())
    listing.add_argument("--state", choices=JOB_STATES, help="only those in this state")
    add_limit(listing, "jobs", after="NUMBER")
    does = "show all facts of a job"
    showing = verbs.add("show", does, SHOW_EPILOG, stores.queue_options())
    showing.add_argument("id", type=text, metavar="ID")
    does = "register a job, or replay a dead-lettered one"
    adding = verbs.add("enqueue", does, ENQUEUE_EPILOG, stores.queue_options())
    add = adding.add_argument_group("a new job").add_argument
    add("file", nargs="?", type=text, metavar="FILE", help="the job as JSON")
    add("--key", type=text, metavar="KEY", help="its idempotency key (required)")
    after = "a worker may receive it after this delay (default: 0)"
    add("--delay", type=seconds(0), default=0.0, metavar="SECONDS", help=after)
    add = adding.add_argument_group("a replay").add_argument
    add("--replay", type=text, metavar="ID", help="the dead-lettered job")
    add("--reason", type=text, metavar="TEXT", help="stored with it (required)")
    add("--by", type=text, metavar="NAME", help="the operator (default: the user who is logged in)")


def run(args: argparse.Namespace) -> int:
    """List, show, register or replay and return the exit code."""
    import asyncio

    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    if args.action == "enqueue":
        does = _replay if args.replay else _enqueue
        _check(args)
    else:
        does = {"list": _list, "show": _show}[args.action]
    async with stores.open_queue(args) as jobs:
        await does(args, jobs)
    return 0


def _check(args: argparse.Namespace) -> None:
    if (args.file is None) == (args.replay is None):
        raise UsageError("pass either FILE or --replay")
    required = "reason" if args.replay else "key"
    if getattr(args, required) is None:
        raise UsageError(f"{'--replay' if args.replay else 'FILE'} requires --{required}")


async def _list(args: argparse.Namespace, jobs: JobQueue) -> None:
    JOBS.print(args, await jobs.page(state=args.state, after=args.after, limit=args.limit + 1))


async def _show(args: argparse.Namespace, jobs: JobQueue) -> None:
    job = await jobs.status(args.id)
    if job is None:
        raise CommandFailed(f"there is no job {args.id!r} in the queue {jobs.name!r}")
    print_item(args, job, f"job {job.id}", _facts(job), job.history)


async def _enqueue(args: argparse.Namespace, jobs: JobQueue) -> None:
    job_id = await jobs.enqueue(_read(args.file), args.key, delay=args.delay)
    print_result(args, {"id": job_id}, job_id)


def _read(file: str) -> Any:
    """The JSON value in a file or in standard input."""
    try:
        return loads(sys.stdin.read() if file == "-" else Path(file).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} must have one JSON value: {error}") from None


async def _replay(args: argparse.Namespace, jobs: JobQueue) -> None:
    if not await jobs.replay(args.replay, by=current_user(args.by), reason=args.reason):
        raise CommandFailed(
            f"there is no dead-lettered job {args.replay!r} in the queue {jobs.name!r}"
        )
    print_result(args, {"id": args.replay}, args.replay)


STYLES = {"completed": "green", "dead_lettered": "red", "delayed": "dim"}


def _cells(job: Job) -> Iterator[str]:
    yield job.id
    yield job.key
    yield job.state
    yield str(job.attempts)
    yield format_span(time() - job.enqueued_at)
    yield job.last_failure or ""


def _facts(job: Job) -> Iterator[tuple[str, str]]:
    yield "key", job.key
    yield "state", job.state
    if job.worker is not None:
        yield "worker", job.worker
    yield "body", json.dumps(job.body, ensure_ascii=False)
    yield "priority", str(job.priority)
    yield "attempts", f"{job.attempts}, crashes {job.crashes}"
    now = time()
    yield "registered", format_when(job.enqueued_at, now)
    if job.finished_at is None:
        yield "available", format_when(job.available_at, now)
    else:
        yield "finished", format_when(job.finished_at, now)
    if job.last_failure is not None:
        yield "last failure", job.last_failure
    if job.letter is not None:
        yield "dead letter", f"phase {job.letter.get('phase')}, id {job.letter.get('id')}"
        if job.letter.get("code_version") is not None:
            yield "code", job.letter["code_version"]
    for each in job.replays:
        yield "replayed", f"{format_moment(each.at)} by {each.by}: {each.reason}"


JOBS: Listing[Job] = Listing(
    items="jobs",
    heads=("id", "key", "state", "tries", "age", "last failure"),
    numbers=("tries", "age"),
    name="key",
    cells=_cells,
    style=lambda job: STYLES.get(job.state),
    cursor=lambda job: job.number,
    empty="No jobs match.",
)
