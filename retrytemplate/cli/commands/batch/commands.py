"""``retrytemplate batch``: run a chunk step, and see how runs stand."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from retrytemplate.cli import stores
from retrytemplate.cli.arguments import (
    add_command,
    add_limit,
    add_step,
    add_verb,
    add_verbs,
    row_number,
    seconds,
    stored_text,
)
from retrytemplate.cli.commands.batch.progress import (
    BarReporter,
    JsonReporter,
    on_terminal,
    run_job,
)
from retrytemplate.cli.commands.batch.rendering import RUNS, run_facts
from retrytemplate.cli.errors import CommandFailed, confirm, print_json
from retrytemplate.cli.tables import print_item

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from retrytemplate.batch import JobRepository, Runs, RunStatus
    from retrytemplate.cli.commands.batch.progress import ProgressReporter

__all__ = ["add_parser", "run"]

SOONEST, RARELY = 0.05, 3600.0

DESCRIPTION = """\
Run a chunk step that a Python file holds, and see how runs stand: what their journal says, here or
from another terminal.  Looking takes no lock, makes no table and changes nothing.
"""

EPILOG = """\
examples:
  retrytemplate batch run job.py:step --parameter day=2026-11-21
  retrytemplate batch status --store sqlite:///jobs.db
  retrytemplate batch watch --store sqlite:///jobs.db
  retrytemplate batch abandon 17 --store sqlite:///jobs.db

exit codes:
  0 done, the run is completed   1 it failed, was stopped, or the store cannot be reached
  2 wrong use   130 interrupted
"""

RUN_EPILOG = """\
examples:
  retrytemplate batch run job.py:step
  retrytemplate batch run job.py:step --parameter day=2026-11-21 --parameter limit=20
  retrytemplate batch run job.py:make_step --on-existing restart --json

The file is run as a script's import; NAME in it is a ChunkStep, or a function without arguments
that returns one.  A value that is JSON is taken as such, any other one is text; where text looks
like JSON, quote it: --parameter 'part="7"'.  Parameters and the step's name are what a run is known
by: the same ones resume it.

The first interrupt (or SIGTERM) ends the run after the chunk that it is at, the second one at once,
the third kills the process.  The run can be resumed in each case.
"""

STATUS_EPILOG = f"""\
examples:
  retrytemplate batch status --store sqlite:///jobs.db
  retrytemplate batch status --step reprice-orders --limit 5
  retrytemplate batch status 17 --json
  {stores.STORE_VARIABLE}=postgresql://me@host/db retrytemplate batch status

A run that is "crashed" is under way by its journal, and nobody has it: run it again to go on.
"""

WATCH_EPILOG = """\
examples:
  retrytemplate batch watch --store sqlite:///jobs.db
  retrytemplate batch watch 17 --interval 5
  retrytemplate batch watch --step reprice-orders --json

Without a number it is the newest run that is under way, else the newest one.  It ends when the run
ends: 0 if that is completed, else 1.  Where there is no terminal, each change is a line of JSON.
"""

ABANDON_EPILOG = """\
examples:
  retrytemplate batch abandon 17 --store sqlite:///jobs.db
  retrytemplate batch abandon 17 --yes --json

Whoever still has the run can write no more, and nobody resumes it.  What was written stays.  To
begin anew: retrytemplate batch run ... --on-existing restart
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the verb, and its own verbs, to the command's parser."""
    does = "run a chunk step, and see how runs stand"
    parser = add_command(subparsers, "batch", does, DESCRIPTION, EPILOG)
    verbs = add_verbs(parser)
    _add_run(verbs)
    _add_status(verbs)
    _add_watch(verbs)
    does = "give a run up, so that nobody goes on with it"
    abandoning = add_verb(verbs, "abandon", does, ABANDON_EPILOG, stores.journal_options())
    abandoning.add_argument("run_id", type=row_number, metavar="RUN")
    abandoning.add_argument("--yes", action="store_true", help="in a terminal: do not ask")
    return parser


def _add_run(verbs: Any) -> None:
    running = add_verb(verbs, "run", "run the step that a file holds, or go on with it", RUN_EPILOG)
    add_step(running, "run it with run_async(), where only its reader has to be awaited")
    add = running.add_argument
    add(
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what the run is known by, beside the step's name; as often as wanted",
    )
    add(
        "--on-existing",
        choices=("resume", "restart", "refuse"),
        default="resume",
        help="what to do where such a run exists (default: %(default)s)",
    )
    _add_interval(running, 0.5)


def _add_status(verbs: Any) -> None:
    does = "show how runs stand: a line for each, or all of one"
    looking = add_verb(verbs, "status", does, STATUS_EPILOG, stores.journal_options())
    add = looking.add_argument
    add("run_id", nargs="?", type=row_number, metavar="RUN", help="all that is known of this one")
    add("--step", type=stored_text, metavar="NAME", help="only runs of this step")
    add("--before", type=row_number, metavar="RUN", help="begin behind this one: the next page")
    add_limit(looking, "runs")


def _add_watch(verbs: Any) -> None:
    does = "follow a run from another terminal, until it ends"
    watching = add_verb(verbs, "watch", does, WATCH_EPILOG, stores.journal_options())
    add = watching.add_argument
    add("run_id", nargs="?", type=row_number, metavar="RUN")
    add("--step", type=stored_text, metavar="NAME", help="only runs of this step")
    _add_interval(watching, 1.0)


def _add_interval(parser: argparse.ArgumentParser, usual: float) -> None:
    parser.add_argument(
        "--interval",
        type=seconds(SOONEST, RARELY),
        default=usual,
        metavar="SECONDS",
        help="between looks into the journal (default: %(default)s)",
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
        _show(args, _find_run(runs, args.run_id))
        return 0
    found = runs.page(step=args.step, before=args.before, limit=args.limit + 1)
    RUNS.print(args, found)
    return 0


def _find_run(runs: Runs, run_id: int) -> RunStatus:
    found = runs.find(run_id)
    if found is None:
        raise CommandFailed(f"there is no run {run_id}")
    return found


def _show(args: argparse.Namespace, run: RunStatus) -> None:
    print_item(args, run, f"run {run.run_id} of {run.step}", run_facts(run))


# -- watch ---------------------------------------------------------------------------------------


def _watch(args: argparse.Namespace, repository: JobRepository) -> int:
    from retrytemplate.batch import Runs

    runs = Runs(repository)
    run = _select_run(runs, args)
    with _open_reporter(lines=args.json or not on_terminal()) as reporter:
        reporter(run)
        while not run.over:
            time.sleep(args.interval)
            run = _find_run(runs, run.run_id)
            reporter(run)
    return _code(run.state)


def _select_run(runs: Runs, args: argparse.Namespace) -> RunStatus:
    if args.run_id is not None:
        return _find_run(runs, args.run_id)
    for status in ("running", None):
        for run in runs.page(step=args.step, status=status, limit=1):
            return run
    raise CommandFailed("there is no run" + (f" of {args.step!r}" if args.step else ""))


@contextmanager
def _open_reporter(*, lines: bool) -> Iterator[ProgressReporter]:
    if lines:
        yield JsonReporter()
    else:
        with BarReporter().display() as bar:
            yield bar


def _code(state: str) -> int:
    return 0 if state == "completed" else 1


# -- abandon -------------------------------------------------------------------------------------


def _abandon(args: argparse.Namespace, repository: JobRepository) -> int:
    from retrytemplate.batch import Runs

    runs = Runs(repository)
    run = _find_run(runs, args.run_id)
    facts = [f"run {run.run_id} of {run.step!r}: {run.state}, {run.counts.done} items done"]
    if run.state == "running":
        facts.append(f"{run.worker} is at work on it")
    question = f"Abandon run {run.run_id}?"
    if (
        run.state not in ("completed", "abandoned")
        and not args.yes
        and not confirm(question, facts)
    ):
        raise CommandFailed("no run is abandoned")
    repository.abandon(args.run_id)
    run = _find_run(runs, args.run_id)
    if run.state != "abandoned":
        raise CommandFailed(f"run {run.run_id} is {run.state}: there is nothing to give up")
    if args.json:
        print_json(run.as_json())
    else:
        print(f"run {run.run_id} abandoned")
    return 0
