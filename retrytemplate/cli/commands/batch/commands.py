"""``retrytemplate batch``: run a chunk step, and show the state of runs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import format_span, with_text
from retrytemplate.cli import stores
from retrytemplate.cli.arguments import (
    add_limit,
    add_step,
    add_verbs,
    row_number,
    seconds,
    stored_text,
)
from retrytemplate.cli.commands.batch.progress import (
    JsonReporter,
    open_reporter,
    run_job,
)
from retrytemplate.cli.errors import CommandFailed, confirm
from retrytemplate.cli.formatting import (
    STYLES,
    describe_suspects,
    format_clock,
    format_count,
    format_when,
    named_parameters,
)
from retrytemplate.cli.tables import Listing, print_item, print_result

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from retrytemplate.batch import JobRepository, Runs, RunStatus

MIN_INTERVAL, MAX_INTERVAL = 0.05, 3600.0

DESCRIPTION = """\
Run a chunk step of a Python file, and show the state of runs from their journal, here or from
another terminal.  Reading takes no lock, creates no table and changes nothing.
"""

EXITS = {
    0: "done, the run is completed",
    1: "it failed, was stopped, or the store cannot be reached",
}

RUN_EPILOG = """\
examples:
  retrytemplate batch run job.py:step
  retrytemplate batch run job.py:step --parameter day=2026-11-21 --parameter limit=20
  retrytemplate batch run job.py:make_step --on-existing restart --json

The file is run like an imported module; NAME is a ChunkStep in it, or a function without arguments
that returns one.  A value that is valid JSON is parsed, any other value is text; quote text that
looks like JSON: --parameter 'part="7"'.  A run is identified by the name of its step and by its
parameters: the same ones resume it.

The first interrupt (or SIGTERM) ends the run after the current chunk, the second one immediately,
the third one kills the process.  The run can be resumed in each case.
"""

STATUS_EPILOG = f"""\
examples:
  retrytemplate batch status --store sqlite:///jobs.db
  retrytemplate batch status --step reprice-orders --limit 5
  retrytemplate batch status 17 --json
  {stores.STORE_VARIABLE}=postgresql://me@host/db retrytemplate batch status

The process of a run that is "crashed" ended before the run: start the run again to resume it.
"""

WATCH_EPILOG = """\
examples:
  retrytemplate batch watch --store sqlite:///jobs.db
  retrytemplate batch watch 17 --interval 5
  retrytemplate batch watch --step reprice-orders --json

Without a number it follows the newest run in progress, or else the newest run.  It ends with the
run: 0 if the run is completed, else 1.  Without a terminal, each change is a line of JSON.

Fields of the JSON: those of "batch status RUN --json".  claimed_at is the time at which the last
process claimed the run, done_before_claim the number of items done by then, rate the items per
second since then, remaining_seconds the estimated time to the end; null: unknown.
"""

ABANDON_EPILOG = """\
examples:
  retrytemplate batch abandon 17 --store sqlite:///jobs.db
  retrytemplate batch abandon 17 --yes --json

A process that still holds the run can no longer write, and the run is never resumed.  Written data
stays.  To start again: retrytemplate batch run ... --on-existing restart
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb, and its own verbs, to the command's parser."""
    does = "run a chunk step, and show the state of runs"
    verbs = add_verbs(subparsers, "batch", does, DESCRIPTION, EXITS)
    _add_run(verbs)
    _add_status(verbs)
    _add_watch(verbs)
    does = "abandon a run: it is never resumed"
    abandoning = verbs.add("abandon", does, ABANDON_EPILOG, stores.journal_options())
    abandoning.add_argument("run_id", type=row_number, metavar="RUN")
    abandoning.add_argument("--yes", action="store_true", help="in a terminal: do not ask")


def _add_run(verbs: Any) -> None:
    running = verbs.add("run", "run or resume the step of a file", RUN_EPILOG)
    add_step(running, "use run_async(), if asynchronous components are not detected")
    add = running.add_argument
    add(
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="identifies the run, with the step's name; may be repeated",
    )
    add(
        "--on-existing",
        choices=("resume", "restart", "refuse"),
        default="resume",
        help="if such a run exists (default: %(default)s)",
    )
    _add_interval(running, 0.5)


def _add_status(verbs: Any) -> None:
    does = "show the state of runs: a line for each, or all facts of one"
    looking = verbs.add("status", does, STATUS_EPILOG, stores.journal_options())
    add = looking.add_argument
    add("run_id", nargs="?", type=row_number, metavar="RUN", help="show all facts of this run")
    add("--step", type=stored_text, metavar="NAME", help="only runs of this step")
    add("--before", type=row_number, metavar="RUN", help="the next page: runs before this one")
    add_limit(looking, "runs")


def _add_watch(verbs: Any) -> None:
    does = "follow a run from another terminal, until it ends"
    watching = verbs.add("watch", does, WATCH_EPILOG, stores.journal_options())
    add = watching.add_argument
    add("run_id", nargs="?", type=row_number, metavar="RUN")
    add("--step", type=stored_text, metavar="NAME", help="only runs of this step")
    _add_interval(watching, 1.0)


def _add_interval(parser: argparse.ArgumentParser, usual: float) -> None:
    parser.add_argument(
        "--interval",
        type=seconds(MIN_INTERVAL, MAX_INTERVAL),
        default=usual,
        metavar="SECONDS",
        help="between reads of the journal (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Run, show, watch or abandon; the exit code."""
    if args.action == "run":
        done = run_job(args)
        if not args.json:
            _show(args, done)
        return _code(done.state)
    does = {"status": _status, "watch": _watch, "abandon": _abandon}[args.action]
    with stores.open_journal(args) as repository:
        return does(args, repository)


# -- status --------------------------------------------------------------------------------------


def _status(args: argparse.Namespace, repository: JobRepository) -> int:
    from retrytemplate.batch import Runs

    runs = Runs(repository)
    if args.run_id is not None:
        _show(args, stores.find_run(runs, args.run_id))
        return 0
    found = runs.page(step=args.step, before=args.before, limit=args.limit + 1)
    RUNS.print(args, found)
    return 0


def _show(args: argparse.Namespace, run: RunStatus) -> None:
    print_item(args, run, f"run {run.run_id} of {run.step}", _facts(run))


# -- watch ---------------------------------------------------------------------------------------


def _watch(args: argparse.Namespace, repository: JobRepository) -> int:
    from retrytemplate.batch import Runs

    runs = Runs(repository)
    run = _select_run(runs, args)
    with open_reporter(JsonReporter, args.json, sys.stdout) as reporter:
        reporter(run)
        while not run.over:
            time.sleep(args.interval)
            run = stores.find_run(runs, run.run_id)
            reporter(run)
    return _code(run.state)


def _select_run(runs: Runs, args: argparse.Namespace) -> RunStatus:
    if args.run_id is not None:
        return stores.find_run(runs, args.run_id)
    for status in ("running", None):
        for run in runs.page(step=args.step, status=status, limit=1):
            return run
    raise CommandFailed("there is no run" + (f" of {args.step!r}" if args.step else ""))


def _code(state: str) -> int:
    return 0 if state == "completed" else 1


# -- abandon -------------------------------------------------------------------------------------


def _abandon(args: argparse.Namespace, repository: JobRepository) -> int:
    from retrytemplate.batch import Runs

    runs = Runs(repository)
    run = stores.find_run(runs, args.run_id)
    facts = [f"run {run.run_id} of {run.step!r}: {run.state}, {run.counts.done} items done"]
    if run.state == "running":
        facts.append(f"worker: {run.worker}")
    question = f"Abandon run {run.run_id}?"
    if (
        run.state not in ("completed", "abandoned")
        and not args.yes
        and not confirm(question, facts)
    ):
        raise CommandFailed("no run is abandoned")
    repository.abandon(args.run_id)
    run = stores.find_run(runs, args.run_id)
    if run.state != "abandoned":
        raise CommandFailed(f"run {run.run_id} is {run.state} and cannot be abandoned")
    print_result(args, run.as_json(), f"run {run.run_id} abandoned")
    return 0


# -- output --------------------------------------------------------------------------------------

RESTART_HINT = "run it again to resume"
HINTS = {
    "crashed": f": its process ended before the run; {RESTART_HINT}",
    "failed": f": {RESTART_HINT}",
    "stopped": f": {RESTART_HINT}",
}


def _cells(run: RunStatus) -> Iterator[str]:
    counts = run.counts
    yield str(run.run_id)
    yield run.step
    yield "isolating" if run.isolating and run.state == "running" else run.state
    yield "" if run.progress is None else f"{run.progress:.0%}"
    yield from map(str, (counts.written, counts.dead_lettered))
    yield "" if run.rate is None else f"{run.rate:,.0f}/s"
    yield format_span(run.now - run.updated)
    yield run.problem or " ".join(named_parameters(run))


def _facts(run: RunStatus) -> Iterator[tuple[str, str]]:
    if run.parameters:
        yield "parameters", " ".join(named_parameters(run))
    yield "state", _state(run)
    if run.error is not None:
        yield "error", with_text(run.error.type_name, run.error.message)
    if run.worker is not None and run.lease_until is not None:
        held = "was held by" if run.state == "crashed" else "held by"
        yield held, f"{run.worker}, until {format_when(run.lease_until, run.now)}"
    counts = run.counts
    yield (
        "read",
        (
            f"{counts.read} = {counts.written} written + {counts.filtered} filtered + "
            f"{counts.dead_lettered} dead-lettered + {run.pending} pending"
        ),
    )
    skipped = format_count(counts.skipped, "item")
    yield "skipped", f"{skipped}, dead-lettered by the skip policy"
    yield "retries", f"{counts.retries}, rollbacks {counts.rollbacks}, crashes {counts.crashes}"
    if run.rate is not None:
        left = run.remaining()
        yield "rate", f"{run.rate:.1f}/s" + ("" if left is None else f", {format_clock(left)} left")
    for label, when in (("started", run.started), ("updated", run.updated), ("ended", run.ended)):
        if when is not None:
            yield label, format_when(when, run.now)
    if run.unsent:
        yield "outbox", f"{run.unsent} unsent; to send: retrytemplate outbox send FILE:NAME"
    yield "writes", "exactly once" if run.exactly_once else "at least once, to another database"
    if run.code_version is not None:
        yield "code", run.code_version
    if run.problem is not None:
        yield "problem", run.problem


def _state(run: RunStatus) -> str:
    share = "" if run.progress is None else f", {run.progress:.0%} read"
    isolating = f", {describe_suspects(run)}" if run.isolating else ""
    return f"{run.state}{share}{isolating}{HINTS.get(run.state, '')}"


def _note(page: Sequence[RunStatus]) -> str:
    unsent = sum(run.unsent for run in page)
    return (
        f"{unsent} messages of these runs are unsent; to show: retrytemplate outbox list"
        if unsent
        else ""
    )


RUNS: Listing[RunStatus] = Listing(
    items="runs",
    heads=("run", "step", "state", "share", "written", "letters", "rate", "age", "parameters"),
    numbers=("run", "share", "written", "letters", "rate", "age"),
    name="step",
    cells=_cells,
    style=lambda run: STYLES.get(run.state),
    cursor=lambda run: run.run_id,
    option="--before",
    empty="No runs match.",
    note=_note,
)
