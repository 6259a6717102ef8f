"""The command ``retrytemplate demo``."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from retrytemplate.cli.arguments import add_command, whole_number
from retrytemplate.cli.errors import UsageError, console, print_json
from retrytemplate.cli.signals import INTERRUPTED, print_stderr, stopped_by_signals
from retrytemplate.demo.job import AT_ONCE, CHUNK

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from retrytemplate.demo import Job, Report, Tally

__all__ = ["ANSWERS", "Screen", "add_parser", "run"]


SEED = 7

DESCRIPTION = """\
Reprocess a file of orders in a chunk step: an HTTP service prices every line, and the step writes
the lines to SQLite, 500 in a transaction.  The service runs in this process on a loopback port and
fails on purpose: it answers 503 with Retry-After, resets connections, responds too late, and fails
permanently for some orders.  A line that fails is retried while other lines are processed.  A line
that is not retryable, or has failed 5 times, becomes a dead letter with the history of its
attempts.

With --workers two worker processes handle 300 messages of a queue in SQLite.  3 messages crash
their process each time; they are dead-lettered, and every other message is processed once.

The first Ctrl-C stops the demo after the current chunk, the second one interrupts it, the third one
ends the process.
"""

EPILOG = """\
examples:
  retrytemplate demo                   the 3 000 orders that come with the package
  retrytemplate demo --input orders.csv --database priced.db --seed 42
  retrytemplate demo --json            the figures for a program, no progress
  retrytemplate demo --workers         messages that crash their process, and the others

The file is a CSV in UTF-8 whose first line names the columns order_id, placed_on, customer, sku,
quantity.  Products are SKU-0001 to SKU-0400.  The same seed gives the same faults.

exit codes:
  0 done   1 the figures do not agree, or the database failed   2 wrong use   130 interrupted
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the verb to the command's parser."""
    does = "reprocess a file of orders through a faulty service, and see what retry does"
    parser = add_command(subparsers, "demo", does, DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--input", type=Path, metavar="FILE", help="the orders (default: the package's own)")
    add(
        "--database",
        type=Path,
        metavar="FILE",
        help="where to write, a new file (default: one in the temporary directory)",
    )
    add(
        "--port",
        type=whole_number(65_535, 0),
        default=0,
        help="the service's port (default: a free one)",
    )
    add("--seed", type=int, default=SEED, help="the faults (default: %(default)s)")
    add("--json", action="store_true", help="print the figures as JSON")
    does = "instead: 2 worker processes, 300 messages of a queue, 3 of which crash their process"
    add("--workers", action="store_true", help=does)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the demo and return the exit code."""
    if args.workers:
        return _run_workers(args)
    screen = None if args.json else Screen()
    job = _prepare(args)
    with stopped_by_signals(job.step.stop, print_stderr if screen is None else screen.notice):
        try:
            return _reprocess(job, screen, args)
        finally:
            job.service.close()
            job.close()


def _run_workers(args: argparse.Namespace) -> int:
    for option in ("input", "port"):
        if getattr(args, option):
            raise UsageError(f"--workers and --{option} are mutually exclusive")
    import asyncio

    from retrytemplate.cli.commands.worker.demo import run_workers
    from retrytemplate.demo.workers import enqueue

    if args.database is not None and args.database.exists():
        raise UsageError(f"--database: {args.database} exists already; name a new file")
    database = args.database or _new_file()
    poisons = asyncio.run(enqueue(database, args.seed))
    return run_workers(database, poisons, as_json=args.json)


def _prepare(args: argparse.Namespace) -> Job:
    """Check all arguments before anything is written."""
    from retrytemplate.demo import (
        DatabaseRefused,
        Job,
        NotAnOrdersFile,
        OrdersFile,
        PricingService,
        shipped,
    )

    try:
        orders = OrdersFile.read(args.input or shipped())
        service = PricingService(seed=args.seed, port=args.port)
    except NotAnOrdersFile as problem:
        raise UsageError(f"--input: {problem}") from problem
    except OSError as problem:
        raise UsageError(f"--port: cannot listen on {args.port}: {problem.strerror}") from problem
    try:
        return Job(orders.lines, service, args.database or _new_file())
    except DatabaseRefused as problem:
        service.close()
        raise UsageError(f"--database: {problem}") from problem


def _reprocess(job: Job, screen: Screen | None, args: argparse.Namespace) -> int:
    from sqlalchemy.exc import SQLAlchemyError

    from retrytemplate.batch import JobRepositoryError

    try:
        report = _run_watched(job, screen)
    except KeyboardInterrupt:
        return _print_error(_interrupt_notice(job), INTERRUPTED)
    except (SQLAlchemyError, JobRepositoryError) as problem:
        reason = getattr(problem, "orig", None) or problem
        return _print_error(f"the database {job.database} failed: {reason}", 1)
    if report.stopped:
        return _print_error(_interrupt_notice(job), INTERRUPTED)
    if screen is None:
        _print_json(job, report, args)
    else:
        screen.show(job, report)
    for each in report.problems:
        _print_error(each, 1)
    return 1 if report.problems else 0


def _run_watched(job: Job, screen: Screen | None) -> Report:
    if screen is None:
        return job.run()
    with screen.watching(job) as watch:
        return job.run(watch)


def _print_json(job: Job, report: Report, args: argparse.Namespace) -> None:
    figures = {
        "read": report.read,
        "written": report.written,
        "dead_lettered": report.dead_lettered,
        "retried": report.retried,
        "retries": report.retries,
        "attempts": {str(made): lines for made, lines in report.attempts.items()},
        "dead_letters_by_error": report.dead_letters_by_error,
        "seconds": round(report.seconds, 3),
        "waited": round(report.waited, 3),
        "planned_wait": round(report.planned_wait, 3),
        "service_sent": {kind: report.sent.get(kind, 0) for kind in ANSWERS},
        "client_saw": {kind: report.seen.get(kind, 0) for kind in ANSWERS},
        "problems": list(report.problems),
        "input": None if args.input is None else str(args.input),
        "database": str(job.database),
        "seed": args.seed,
        "port": job.service.port,
    }
    print_json(figures)


def _interrupt_notice(job: Job) -> str:
    tally = job.tally
    return (
        f"interrupted: {tally.written} of {tally.total} lines are written, {tally.dead_lettered} "
        f"dead-lettered, the others are not processed; database: {job.database}"
    )


def _new_file() -> Path:
    import tempfile

    handle, name = tempfile.mkstemp(prefix="retrytemplate-demo-", suffix=".db")
    os.close(handle)
    return Path(name)


def _print_error(problem: object, code: int) -> int:
    print(f"retrytemplate demo: {problem}", file=sys.stderr)
    return code


ANSWERS = {
    "priced": "a price (200)",
    "unavailable": "unavailable (503)",
    "reset": "connection reset",
    "slow": "too slow",
    "rejected": "rejected (4xx)",
}
"""The kinds of responses: as the service names them, and as printed."""

LONGEST_BAR = 36


class Screen:
    """Standard output, through rich (the ``cli`` extra)."""

    def __init__(self) -> None:
        self.console = console("the progress bar (without --json)")
        self._notice: str | None = None  # shown in the bar, if there is one

    @contextmanager
    def watching(self, job: Job) -> Iterator[Callable[[Tally], None]]:
        """The listener of the tally: a live bar in a terminal, lines elsewhere."""
        where = f"{job.service.host}:{job.service.port}"
        self._say(f"Pricing {job.tally.total} lines at {where}, seed {job.service.seed}")
        if self.console.file.isatty() and os.environ.get("TERM") != "dumb":
            with self._bar(job.tally.total) as watch:
                yield watch
        else:
            yield self._plain_lines()

    def notice(self, text: str) -> None:
        """Show a line of text; safe in a signal handler."""
        if self._notice is None:
            print_stderr(text)
        else:
            self._notice = text

    def show(self, job: Job, report: Report) -> None:
        """Print the figures, and the command to continue with."""
        for table in (_lines(report), self._attempts(report), _answers(report)):
            self.console.print(table)
        self._say(f"Database: {job.database}")
        verb = "dlq list" if report.dead_lettered else "batch status"
        store = job.repository.engine.url.set(drivername="sqlite")
        self._say(f"Next: retrytemplate {verb} --store {quote(str(store))}")

    @contextmanager
    def _bar(self, total: int) -> Iterator[Callable[[Tally], None]]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        columns = (
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("[green]{task.fields[written]:>4} written"),
            TextColumn("[yellow]{task.fields[failures]:>3} failures"),
            TextColumn("[red]{task.fields[dead_lettered]:>2} dead-lettered"),
            Elapsed(),
            TextColumn("[yellow]{task.fields[notice]}"),
        )
        self._notice = ""
        with Progress(*columns, console=self.console, expand=True) as progress:
            task = progress.add_task(
                "", total=total, written=0, failures=0, dead_lettered=0, notice=""
            )

            def watch(tally: Tally) -> None:
                now: dict[str, Any] = {
                    "failures": tally.failures,
                    "dead_lettered": tally.dead_lettered,
                }
                now["notice"] = self._notice
                progress.update(task, completed=tally.over, written=tally.written, **now)

            yield watch

    def _plain_lines(self) -> Callable[[Tally], None]:
        shown = 0

        def watch(tally: Tally) -> None:
            nonlocal shown
            tenth = 10 * tally.over // max(1, tally.total)
            if tenth > shown:
                shown = tenth
                self._say(
                    f"{tally.over:>6} of {tally.total}: {tally.written} written, "
                    f"{tally.failures} failed attempts, {tally.dead_lettered} dead-lettered"
                )
                self.console.file.flush()

        return watch

    def _attempts(self, report: Report) -> Table:
        block = "█" if self.console.encoding.startswith("utf") else "#"
        most = max(report.attempts.values(), default=1)
        table = _table("attempts of a line", ("lines", "right"), ("", "left"))
        for made, lines in report.attempts.items():
            table.add_row(f"{made}", f"{lines}", block * -(-LONGEST_BAR * lines // most))
        return table

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)


def _lines(report: Report) -> Table:
    table = _table("lines", ("", "right"), ("", "left"))
    table.add_row("read", f"{report.read}", f"lines in {report.seconds:.1f} s")
    written = f"with a price, in transactions of {CHUNK} lines"
    table.add_row("written", f"{report.written}", written, style="green")
    table.add_row("dead-lettered", f"{report.dead_lettered}", _reasons(report), style="red")
    retried = f"failed at least once: {report.retries} further attempts"
    table.add_row("retried", f"{report.retried}", retried, style="yellow")
    waited = f"between attempts, summed over {AT_ONCE} concurrent lines"
    table.add_row("time waited", f"{report.waited:.1f} s", waited)
    return table


def _reasons(report: Report) -> str:
    width = len(str(max(report.dead_letters_by_error.values(), default=0)))
    reasons = "\n".join(
        f"{lines:>{width}} {name.rpartition('.')[2]}"
        for name, lines in report.dead_letters_by_error.items()
    )
    return f"without a price, by the last error:\n{reasons}" if reasons else "without a price"


def _answers(report: Report) -> Table:
    table = _table("responses", ("service sent", "right"), ("client saw", "right"))
    for kind, name in ANSWERS.items():
        sent, seen = report.sent.get(kind, 0), report.seen.get(kind, 0)
        table.add_row(name, f"{sent}", f"{seen}", style=None if sent == seen else "bold red")
    return table


def _table(first: str, *others: tuple[str, str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, min_width=16)
    for header, justify in others:
        table.add_column(header, justify="right" if justify == "right" else "left")
    return table
