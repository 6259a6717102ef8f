"""The command ``retrytemplate outbox``."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext, redirect_stdout
from time import time
from typing import TYPE_CHECKING, Any

from retrytemplate.cli import stores as _journal
from retrytemplate.cli import stores as _stores
from retrytemplate.cli import user_files
from retrytemplate.cli.arguments import add_limit, add_verb, row_number, stored_text
from retrytemplate.cli.errors import print_json
from retrytemplate.cli.formatting import format_span
from retrytemplate.cli.tables import Screen, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retrytemplate.batch import JobRepository, UnsentMessage

__all__ = ["OutboxScreen", "add_parser", "run"]


DESCRIPTION = """\
List the messages of chunk steps that wait in the outbox, and send them.  A message waits until it
was sent: after its chunk, by the next run of its step, by a replay, or by this command.
"""

EPILOG = """\
examples:
  retrytemplate outbox list --store sqlite:///jobs.db
  retrytemplate outbox send job.py:step

exit codes:
  0 done   1 the store cannot be reached, or a message could not be sent   2 wrong use
  130 interrupted
"""

LIST_EPILOG = f"""\
examples:
  retrytemplate outbox list --store sqlite:///jobs.db
  retrytemplate outbox list --step reprice-orders --run 17
  {_stores.STORE_VARIABLE}=postgresql://me@host/db retrytemplate outbox list --json

Listing takes no lock and changes nothing.
"""

SEND_EPILOG = """\
examples:
  retrytemplate outbox send job.py:step
  retrytemplate outbox send job.py:step --json

The messages are sent in order, with the retries of the step.  Behind one that cannot be sent the
others of its run wait.  A run that is in progress sends its messages itself.  Every message is sent
at least once: the receiver drops an id that it knows.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the verb, and its own verbs, to the command's parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "outbox",
        help="list the messages that wait, and send them",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="action", metavar="VERB", required=True)
    does = "the messages that wait, a line each"
    listing = add_verb(verbs, "list", does, LIST_EPILOG, _journal.journal_options())
    add = listing.add_argument
    add("--step", type=stored_text, metavar="NAME", help="only those of this step")
    add("--run", type=row_number, metavar="RUN", dest="of_run", help="only those of this run")
    add("--after", type=row_number, default=0, metavar="NUMBER", help="the next page")
    add_limit(listing, "messages")
    add = add_verb(verbs, "send", "send the messages of a step", SEND_EPILOG).add_argument
    add("job", metavar="FILE:NAME", help="the file, and the name of the step in it")
    add(
        "--async",
        action="store_true",
        dest="asynchronous",
        help="use send_outbox_async(), for a send function that must be awaited",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """List or send; the exit code."""
    if args.action == "send":
        return _send(args)
    with _journal.open_journal(args) as repository:
        return _list(args, repository)


def _list(args: argparse.Namespace, repository: JobRepository) -> int:
    from retrytemplate.batch import UnsentMessages

    messages, which = UnsentMessages(repository), {"step": args.step, "run": args.of_run}
    found = messages.page(after=args.after, limit=args.limit + 1, **which)
    page, more = found[: args.limit], len(found) > args.limit
    if args.json:
        shown = [each.as_json() for each in page]
        print_json({"messages": shown, "next": page[-1].number if more else None})
    else:
        OutboxScreen().list(page, count=messages.count(**which), more=more)
    return 0


def _send(args: argparse.Namespace) -> int:
    with redirect_stdout(sys.stderr) if args.json else nullcontext():
        step = user_files.load_step(args.job)
        try:
            report = user_files.run_step(
                step, step.send_outbox, step.send_outbox_async, asynchronous=args.asynchronous
            )
        finally:
            step.repository.close()
    if args.json:
        print_json(report.as_json())
    else:
        print(f"{report.sent} sent, {report.unsent} unsent")
    if report.error is not None:
        print(f"retrytemplate outbox: not sent: {one_line(report.error)}", file=sys.stderr)
        return 1
    return 0


HEADS = ("number", "step", "run", "age", "payload")
NUMBERS = ("number", "run", "age")
STEP = HEADS.index("step")
DAMAGED = "red"


class OutboxScreen(Screen):
    """Messages that wait, on standard output."""

    def list(self, page: Sequence[UnsentMessage], *, count: int, more: bool) -> None:
        """A line for each message, and how to see the others."""
        if not page:
            self.say("No message waits.")
            return
        styles = [None if each.problem is None else DAMAGED for each in page]
        self.table(HEADS, map(_cells, page), styles, numbers=NUMBERS, name=STEP)
        if more:
            self.say(f"{len(page)} of {count} messages; more: --after {page[-1].number}")


def _cells(message: UnsentMessage) -> Iterator[str]:
    yield str(message.number)
    yield message.step
    yield str(message.run)
    yield format_span(time() - message.created)
    yield message.problem or json.dumps(message.payload, ensure_ascii=False)
