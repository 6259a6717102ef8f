"""``retrytemplate demo``: a real file, a real HTTP service, a real database."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrytemplate.cli._signals import INTERRUPTED, say, stopped_by_signals
from retrytemplate.cli.usage import UsageError

if TYPE_CHECKING:
    from retrytemplate.cli._demo_screen import Screen
    from retrytemplate.demo import Job, Report

__all__ = ["add_parser", "run"]

SEED = 7

DESCRIPTION = """\
Reprocess a file of orders in a chunk step: an HTTP service prices every line, and the step writes
the lines to SQLite, 500 in a transaction.  The service runs in this process on a loopback port and
fails on purpose: it answers 503 with Retry-After, resets connections, responds too late, and fails
permanently for some orders.  A line that fails is retried while other lines are processed.  A line
that is not retryable, or has failed 5 times, becomes a dead letter with the history of its
attempts.

The first Ctrl-C stops the demo after the current chunk, the second one interrupts it, the third one
ends the process.
"""

EPILOG = """\
examples:
  retrytemplate demo                   the 3 000 orders that come with the package
  retrytemplate demo --input orders.csv --database priced.db --seed 42
  retrytemplate demo --json            the figures for a program, no progress

The file is a CSV in UTF-8 whose first line names the columns order_id, placed_on, customer, sku,
quantity.  Products are SKU-0001 to SKU-0400.  The same seed gives the same faults.

exit codes:
  0 done   1 the figures do not agree, or the database failed   2 wrong use   130 interrupted
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the verb to the command's parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo",
        help="reprocess a file of orders through a faulty service, and see what retry does",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--input", type=Path, metavar="FILE", help="the orders (default: the package's own)")
    add(
        "--database",
        type=Path,
        metavar="FILE",
        help="where to write, a new file (default: one in the temporary directory)",
    )
    add("--port", type=_port, default=0, help="the service's port (default: a free one)")
    add("--seed", type=int, default=SEED, help="the faults (default: %(default)s)")
    add("--json", action="store_true", help="print the figures as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Do the job; the exit code."""
    from retrytemplate.cli._demo_screen import Screen

    screen = None if args.json else Screen()
    job = _prepare(args)
    with stopped_by_signals(job.step.stop, say if screen is None else screen.notice):
        try:
            return _reprocess(job, screen, args)
        finally:
            job.service.close()
            job.close()


def _prepare(args: argparse.Namespace) -> Job:
    """Everything that wrong use can stop, before anything is written."""
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
        report = _watched(job, screen)
    except KeyboardInterrupt:
        return _complain(_interrupted(job), INTERRUPTED)
    except (SQLAlchemyError, JobRepositoryError) as problem:
        reason = getattr(problem, "orig", None) or problem
        return _complain(f"the database {job.database} failed: {reason}", 1)
    if report.stopped:
        return _complain(_interrupted(job), INTERRUPTED)
    if screen is None:
        _print_json(job, report, args)
    else:
        screen.show(job, report)
    for each in report.problems:
        _complain(each, 1)
    return 1 if report.problems else 0


def _watched(job: Job, screen: Screen | None) -> Report:
    if screen is None:
        return job.run()
    with screen.watching(job) as watch:
        return job.run(watch)


def _print_json(job: Job, report: Report, args: argparse.Namespace) -> None:
    import json

    from retrytemplate.cli._demo_screen import ANSWERS

    figures = {
        "read": report.read,
        "written": report.written,
        "dead": report.dead,
        "retried": report.retried,
        "retries": report.retries,
        "attempts": {str(made): lines for made, lines in report.attempts.items()},
        "dead_by_error": report.dead_by_error,
        "seconds": round(report.seconds, 3),
        "waited": round(report.waited, 3),
        "waits_asked": round(report.asked, 3),
        "service_sent": {kind: report.sent.get(kind, 0) for kind in ANSWERS},
        "client_saw": {kind: report.seen.get(kind, 0) for kind in ANSWERS},
        "problems": list(report.problems),
        "input": None if args.input is None else str(args.input),
        "database": str(job.database),
        "seed": args.seed,
        "port": job.service.port,
    }
    print(json.dumps(figures, indent=2))


def _interrupted(job: Job) -> str:
    tally = job.tally
    return (
        f"interrupted: {tally.written} of {tally.total} lines are written, {tally.dead} "
        f"dead-lettered, the others are not processed; database: {job.database}"
    )


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else -1
    if not 0 <= number <= 65_535:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, got {text!r}")
    return number


def _new_file() -> Path:
    import tempfile

    handle, name = tempfile.mkstemp(prefix="retrytemplate-demo-", suffix=".db")
    os.close(handle)
    return Path(name)


def _complain(problem: object, code: int) -> int:
    print(f"retrytemplate demo: {problem}", file=sys.stderr)
    return code
