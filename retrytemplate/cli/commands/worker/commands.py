"""``retrytemplate worker``: run a worker runtime, and list those that run."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import format_age
from retrytemplate.caches.worker_id import parse_worker_id
from retrytemplate.cli import stores, user_files
from retrytemplate.cli.arguments import (
    add_verbs,
    seconds,
    text,
    whole_number,
)
from retrytemplate.cli.errors import CommandFailed, print_json
from retrytemplate.cli.tables import Listing, Screen, on_terminal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from retrytemplate.cli.commands.worker.fleet import Reporter
    from retrytemplate.workers import RuntimeSnapshot, WorkerRuntime
    from retrytemplate.workers.registry import RunningWorker

MOST = 1000
PACKAGE = __name__.rpartition(".")[0]
PRELOADED = (
    f"{PACKAGE}.processes",
    __name__,
    "retrytemplate.workers.runtime.runtime",
)
"""Modules of all processes of a group."""
CLIENTS = (
    "aio_pika",
    "nats",
    "redis.asyncio",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "sqlalchemy.ext.asyncio",
)
"""Modules that are loaded before the processes are forked, if this process has loaded them."""
PREFIXES = ("queue", "retry")
"""The default prefixes of the context caches of runtimes: of a ``JobQueue``, of all others."""
MIN_INTERVAL, MAX_INTERVAL = 0.05, 3600.0

DESCRIPTION = """\
Run a worker runtime of a Python module, in this process or in several ones, and list the runtimes
that run, here or on other machines.
"""

EXITS = {
    0: "done, the shutdown was clean",
    1: "it was not clean, or the store cannot be reached",
    130: "the second interrupt",
}

RUN_EPILOG = """\
examples:
  retrytemplate worker run app:runtime
  retrytemplate worker run app.py:make_runtime --concurrency 50
  retrytemplate worker run app:runtime --processes 4 --json

MODULE is the name of a module or a file; NAME is a WorkerRuntime in it, or a function without
arguments that returns one.  With --processes each process loads the module; a process that crashes
is started again after 0.1 to 5 seconds, one that ends with an error ends the command.

The first interrupt (or SIGTERM) stops the worker: messages in flight have the grace period of its
Shutdown.  The second one ends the grace period, the third one ends the processes at once.

On a terminal a table is redrawn in place; else a line is printed every 10 seconds.  The crashes
are those attributed to messages, with --processes those of processes.

Fields of the JSON: type is "warning" (of the settings), "snapshot", "process_crashed" or "stopped".
A snapshot and "stopped" have the fields of a RuntimeSnapshot, summed over the processes, and
processes, process_crashes and elapsed.
"""

STATUS_EPILOG = """\
examples:
  retrytemplate worker status --store sqlite:///jobs.db
  retrytemplate worker status --name billing --json
  retrytemplate worker status --store redis://localhost --store-prefix orders

Each runtime writes its snapshot every 5 seconds beside the keys of its context cache, if that is
durable; without a further write it is not listed after 15 seconds.  The prefix of that cache is
"queue" with a JobQueue and else "retry", if the program names no other: both are searched.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb, and its own verbs, to the command's parser."""
    does = "run a worker runtime, and list those that run"
    verbs = add_verbs(subparsers, "worker", does, DESCRIPTION, EXITS)
    running = verbs.add("run", "run a worker runtime until a signal", RUN_EPILOG)
    add = running.add_argument
    add("runtime", metavar="MODULE:NAME", help="the module, and the name of the runtime in it")
    help_ = "run N processes, and restart those that crash (default: run in this process)"
    add("--processes", type=whole_number(MOST), metavar="N", help=help_)
    help_ = "concurrent attempts of each process (default: the runtime's own)"
    add("--concurrency", type=whole_number(MOST * MOST), metavar="N", help=help_)
    interval = seconds(MIN_INTERVAL, MAX_INTERVAL)
    help_ = "between lines (default: 10), or drawings of the table (default: 0.5)"
    add("--interval", type=interval, metavar="SECONDS", help=help_)
    does = "list the runtimes that run"
    looking = verbs.add("status", does, STATUS_EPILOG, stores.options(PREFIXES))
    looking.add_argument("--name", type=text, metavar="NAME", help="only runtimes of this name")


def run(args: argparse.Namespace) -> int:
    """Run or list runtimes; the exit code."""
    return (_run if args.action == "run" else _print_status)(args)


def load_runtime(spec: str, concurrency: int | None, as_json: bool) -> WorkerRuntime:
    """The runtime that ``MODULE:NAME`` names; also called in the processes of a group.

    :param as_json: True: output of the user's module goes to standard error.
    """
    from retrytemplate.workers import WorkerRuntime

    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        runtime = user_files.load_object(spec, WorkerRuntime, "app:runtime")
    if concurrency is not None:
        runtime.concurrency = concurrency
    return runtime


def _run(args: argparse.Namespace) -> int:
    from retrytemplate.cli.commands.worker.fleet import Fleet, opened, place_of
    from retrytemplate.cli.commands.worker.processes import leave

    output, is_group = sys.stdout, args.processes is not None
    runtime = load_runtime(args.runtime, args.concurrency, args.json)
    fleet = Fleet(runtime.name, place_of(runtime), is_group=is_group)
    with (
        redirect_stdout(sys.stderr) if args.json else nullcontext(),
        opened(fleet, args.json, args.interval, output) as reporter,
    ):
        for warning in runtime.lint():
            reporter.warn(warning)
        code = _run_group(args, reporter) if is_group else _run_here(runtime, reporter)
        reporter.show(at_end=True)
    return code if is_group else leave(code)


def _run_here(runtime: WorkerRuntime, reporter: Reporter) -> int:
    from retrytemplate.cli.commands.worker.processes import run_here

    def report(snapshot: RuntimeSnapshot) -> None:
        reporter.fleet.add(0, snapshot)
        reporter.show()

    return run_here(runtime, report, reporter.tick)


def _run_group(args: argparse.Namespace, reporter: Reporter) -> int:
    from retrytemplate.cli.commands.worker import processes
    from retrytemplate.control.process_group import ProcessGroup

    arguments = (args.runtime, args.concurrency, args.json)
    sends_output = on_terminal() and not args.json
    group = ProcessGroup(
        processes.serve,
        (load_runtime, arguments, reporter.tick, args.json, sends_output),
        count=args.processes,
        preload=[*PRELOADED, *(name for name in CLIENTS if name in sys.modules)],
    )
    return processes.run_group(group, reporter)


# -- status --------------------------------------------------------------------------------------


def _print_status(args: argparse.Namespace) -> int:
    prefixes = PREFIXES if args.store_prefix is None else (args.store_prefix,)
    found = _running(args, prefixes)
    if args.json:
        print_json({"workers": [each.as_json() for each in found]})
    elif found:
        WORKERS.draw(Screen(), found)
    else:
        name = "" if args.name is None else f" of the name {args.name!r}"
        Screen().say(f"No workers{name} run on a cache with the prefix {' or '.join(prefixes)}.")
    return 0


def _running(args: argparse.Namespace, prefixes: Sequence[str]) -> list[RunningWorker]:
    """The runtimes in the registries under some prefixes.

    :raises CommandFailed: the database has tables of none of them.
    """
    from retrytemplate.workers.registry import running_workers

    found: list[RunningWorker] = []
    has_tables = False
    for prefix in prefixes:
        with stores.open_entries(args, prefix) as entries:
            if entries.exists():
                has_tables = True
                found += running_workers(entries, args.name)
    if not has_tables:
        tables = " or ".join(f"{prefix}_*" for prefix in prefixes)
        raise CommandFailed(
            f"the database has no tables {tables}: no worker has run on it, or its context cache "
            "has another prefix, to be named by --store-prefix"
        )
    return found


def _cells(worker: RunningWorker) -> Iterator[str]:
    snapshot = worker.snapshot
    host, process = parse_worker_id(worker.worker)
    yield snapshot["name"]
    yield f"{host}:{process}"
    yield snapshot["state"]
    yield f"{snapshot['in_flight']}/{snapshot['concurrency']}"
    for name in ("acknowledged", "requeued", "dead_lettered", "suspects", "stuck"):
        yield f"{snapshot[name]:,}"
    yield format_age(worker.now - worker.started)
    yield snapshot["queue_name"]


STYLES = {"paused": "yellow", "draining": "yellow", "stopped": "dim"}
NUMBERS = ("in flight", "done", "retried", "letters", "suspects", "stuck", "started")
WORKERS: Listing[RunningWorker] = Listing(
    items="workers",
    heads=("name", "worker", "state", *NUMBERS, "queue"),
    numbers=NUMBERS,
    name="worker",
    cells=_cells,
    style=lambda worker: STYLES.get(worker.snapshot["state"]),
    cursor=lambda worker: worker.worker,
    empty="No workers run.",
)
