"""The command ``retrytemplate demo``."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from retrytemplate.cli import tables
from retrytemplate.cli.arguments import add_command, exit_codes, whole_number
from retrytemplate.cli.errors import UsageError, print_json
from retrytemplate.cli.signals import INTERRUPTED, print_stderr, stopped_by_signals
from retrytemplate.demo.job import AT_ONCE, CHUNK

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from retrytemplate.demo.job import Job, Report, Tally

    # Style and cells.
    Row = tuple[str | None, tuple[str, ...]]

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
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb to the command's parser."""
    does = "reprocess a file of orders through a faulty service, and see what retry does"
    codes = exit_codes({1: "the figures do not agree, or the database failed"})
    parser = add_command(subparsers, "demo", does, DESCRIPTION, f"{EPILOG}\n{codes}")
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
    from retrytemplate.demo.flaky_service import PricingService
    from retrytemplate.demo.job import DatabaseRefused, Job
    from retrytemplate.demo.orders import NotAnOrdersFile, OrdersFile, shipped

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
    figures = {name: getattr(report, name) for name in FIGURES} | {
        **{name: round(getattr(report, name), 3) for name in DURATIONS},
        "service_sent": {kind: report.sent.get(kind, 0) for kind in ANSWERS},
        "client_saw": {kind: report.seen.get(kind, 0) for kind in ANSWERS},
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


# The figures of the JSON that the report has under the same name, and those in seconds.
FIGURES = (
    "read written dead_lettered retried retries attempts dead_letters_by_error problems".split()
)
DURATIONS = "seconds", "waited", "planned_wait"
ANSWERS = {
    "priced": "a price (200)",
    "unavailable": "unavailable (503)",
    "reset": "connection reset",
    "slow": "too slow",
    "rejected": "rejected (4xx)",
}
"""The kinds of responses: as the service names them, and as printed."""

LONGEST_BAR = 36
NUMBERS = "lines", "service sent", "client saw"
SHOWN = "written", "failures", "dead_lettered"  # the counts of the bar


class Screen(tables.Screen):
    """The progress and the figures of the job."""

    _notice: str | None = None  # shown in the bar, if there is one

    @contextmanager
    def watching(self, job: Job) -> Iterator[Callable[[Tally], None]]:
        """The listener of the tally: a live bar in a terminal, lines elsewhere."""
        where = f"{job.service.host}:{job.service.port}"
        self.say(f"Pricing {job.tally.total} lines at {where}, seed {job.service.seed}")
        if tables.on_terminal():
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
        self._table(("outcome", "lines", ""), _outcomes(report))
        self._table(("attempts of a line", "lines", ""), self._attempts(report))
        self._table(("responses", "service sent", "client saw"), _answers(report))
        self.say("")
        self.say(
            f"time waited: {report.waited:.1f} s between attempts, summed over {AT_ONCE} "
            "concurrent lines"
        )
        self.say(f"Database: {job.database}")
        verb = "dlq list" if report.dead_lettered else "batch status"
        store = job.repository.engine.url.set(drivername="sqlite")
        self.say(f"Next: retrytemplate {verb} --store {quote(str(store))}")

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
            counts: dict[str, Any] = dict.fromkeys(SHOWN, 0)
            task = progress.add_task("", total=total, notice="", **counts)

            def watch(tally: Tally) -> None:
                counts.update((name, getattr(tally, name)) for name in SHOWN)
                progress.update(task, completed=tally.over, notice=self._notice, **counts)

            yield watch

    def _plain_lines(self) -> Callable[[Tally], None]:
        shown = 0

        def watch(tally: Tally) -> None:
            nonlocal shown
            tenth = 10 * tally.over // max(1, tally.total)
            if tenth > shown:
                shown = tenth
                self.say(
                    f"{tally.over:>6} of {tally.total}: {tally.written} written, "
                    f"{tally.failures} failed attempts, {tally.dead_lettered} dead-lettered"
                )
                self.console.file.flush()

        return watch

    def _table(self, heads: Sequence[str], rows: Iterable[Row]) -> None:
        shown = list(rows)
        if shown:
            self.say("")
            styles, cells = zip(*shown, strict=True)
            self.table(heads, cells, styles, numbers=NUMBERS)

    def _attempts(self, report: Report) -> Iterator[Row]:
        block = "█" if self.console.encoding.startswith("utf") else "#"
        most = max(report.attempts.values(), default=1)
        for made, lines in report.attempts.items():
            yield None, (f"{made}", f"{lines}", block * -(-LONGEST_BAR * lines // most))


def _outcomes(report: Report) -> Iterator[Row]:
    yield None, ("read", f"{report.read}", f"in {report.seconds:.1f} s")
    written = f"with a price, in transactions of {CHUNK} lines"
    yield "green", ("written", f"{report.written}", written)
    causes = ", by the last error:" if report.dead_letters_by_error else ""
    yield "red", ("dead-lettered", f"{report.dead_lettered}", f"without a price{causes}")
    for name, lines in report.dead_letters_by_error.items():
        yield "red", ("", f"{lines}", name.rpartition(".")[2])
    retried = f"failed at least once: {report.retries} further attempts"
    yield "yellow", ("retried", f"{report.retried}", retried)


def _answers(report: Report) -> Iterator[Row]:
    for kind, name in ANSWERS.items():
        sent, seen = report.sent.get(kind, 0), report.seen.get(kind, 0)
        yield None if sent == seen else "bold red", (name, f"{sent}", f"{seen}")
