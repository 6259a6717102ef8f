"""The command ``retrytemplate outbox``."""

from __future__ import annotations

import json
import sys
from time import time
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import format_span
from retrytemplate.cli import stores, user_files
from retrytemplate.cli.arguments import (
    add_limit,
    add_step,
    add_verbs,
    row_number,
    stored_text,
)
from retrytemplate.cli.tables import Listing, one_line, print_result

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from retrytemplate.batch import JobRepository, UnsentMessage

DESCRIPTION = """\
List the unsent messages in the outbox of chunk steps, and send them.  A message is sent after its
chunk, by the next run of its step, by a replay, or by this command.
"""

EXITS = {1: "the store cannot be reached, has no such run, or a message could not be sent"}

LIST_EPILOG = f"""\
examples:
  retrytemplate outbox list --store sqlite:///jobs.db
  retrytemplate outbox list --step reprice-orders --run 17
  {stores.STORE_VARIABLE}=postgresql://me@host/db retrytemplate outbox list --json

Listing takes no lock and changes nothing.
"""

SEND_EPILOG = """\
examples:
  retrytemplate outbox send job.py:step
  retrytemplate outbox send job.py:step --json

The messages are sent in order, with the retries of the step.  If one cannot be sent, the later
messages of its run stay unsent.  A run in progress sends its messages itself.  Every message is
sent at least once: the receiver must drop an id that it has already seen.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb, and its own verbs, to the command's parser."""
    does = "list and send the unsent messages"
    verbs = add_verbs(subparsers, "outbox", does, DESCRIPTION, EXITS)
    does = "list the unsent messages"
    listing = verbs.add("list", does, LIST_EPILOG, stores.journal_options())
    add = listing.add_argument
    add("--step", type=stored_text, metavar="NAME", help="only those of this step")
    add("--run", type=row_number, metavar="RUN", dest="of_run", help="only those of this run")
    add_limit(listing, "messages", after="NUMBER")
    awaited = "use send_outbox_async(), for an asynchronous send function"
    add_step(verbs.add("send", "send the messages of a step", SEND_EPILOG), awaited)


def run(args: argparse.Namespace) -> int:
    """List or send and return the exit code."""
    if args.action == "send":
        return _send(args)
    with stores.open_journal(args) as repository:
        return _list(args, repository)


def _list(args: argparse.Namespace, repository: JobRepository) -> int:
    from retrytemplate.batch import UnsentMessages

    messages, which = UnsentMessages(repository), {"step": args.step, "run": args.of_run}
    stores.check_run_filter(args, repository)
    found = messages.page(after=args.after, limit=args.limit + 1, **which)
    MESSAGES.print(args, found, lambda: messages.count(**which))
    return 0


def _send(args: argparse.Namespace) -> int:
    with user_files.open_step(args) as step:
        report = user_files.run_step(
            step, step.send_outbox, step.send_outbox_async, asynchronous=args.asynchronous
        )
    print_result(args, report.as_json(), f"{report.sent} sent, {report.unsent} unsent")
    if report.error is not None:
        print(f"retrytemplate outbox: not sent: {one_line(report.error)}", file=sys.stderr)
        return 1
    return 0


DAMAGED = "red"


def _cells(message: UnsentMessage) -> Iterator[str]:
    yield str(message.number)
    yield message.step
    yield str(message.run)
    yield format_span(time() - message.created)
    yield message.problem or json.dumps(message.payload, ensure_ascii=False)


MESSAGES: Listing[UnsentMessage] = Listing(
    items="messages",
    heads=("number", "step", "run", "age", "payload"),
    numbers=("number", "run", "age"),
    name="step",
    cells=_cells,
    style=lambda message: None if message.problem is None else DAMAGED,
    cursor=lambda message: message.number,
    empty="No unsent messages.",
)
