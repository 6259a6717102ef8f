"""The command ``retrytemplate events``."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from attrs import asdict

from retrytemplate._internal.formatting import format_moment, printable
from retrytemplate.cli import stores
from retrytemplate.cli.arguments import add_limit, add_verbs, text
from retrytemplate.cli.tables import Listing
from retrytemplate.listeners.log_records import record_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from retrytemplate.observe import Event
    from retrytemplate.observe.sinks.pages import EventReader

INTERVAL = 1.0  # seconds between two reads of --follow
PAGE = 500

DESCRIPTION = """\
List the events of an audit: a table that a SQLEventSink writes, or the file of a JsonLinesSink.
"""

EXITS = {1: "the store or the file cannot be read, or has no events"}

LIST_EPILOG = f"""\
examples:
  retrytemplate events list --store sqlite:///events.db
  retrytemplate events list --file events.jsonl --type "circuit_breaker.*" --subject billing
  retrytemplate events list --execution 4f1a8c0d9b3e7a5200000000000004d2 --json
  {stores.STORE_VARIABLE}=postgresql://me@host/db retrytemplate events list --follow

The newest events are first; with --follow the newest are last, and new ones follow until an
interrupt.  With --json each line of --follow is one event.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb, and its own verbs, to the command's parser."""
    does = "list the events of an audit"
    verbs = add_verbs(subparsers, "events", does, DESCRIPTION, EXITS)
    options = stores.options("retry", "its sink")
    listing = verbs.add("list", "list the events", LIST_EPILOG, options)
    add = listing.add_argument
    add("--file", type=text, metavar="FILE", help="the file of a JsonLinesSink, instead of a store")
    add("--type", type=text, metavar="TYPE", help="only this type; * is any text")
    add("--subject", type=text, metavar="NAME", help="only those of this template or component")
    add("--execution", type=text, metavar="ID", help="only those of this execution")
    add("--before", type=text, metavar="ID", help="the next page: those before this event")
    add("--follow", action="store_true", help="print new events until an interrupt")
    add_limit(listing, "events")


def run(args: argparse.Namespace) -> int:
    """List or follow and return the exit code."""
    with stores.open_events(args) as reader:
        if args.follow:
            _follow(args, reader)
        else:
            found = reader.page(before=args.before, limit=args.limit + 1, **_filters(args))
            EVENTS.print(args, found)
    return 0


def _filters(args: argparse.Namespace) -> dict[str, Any]:
    return {"type": args.type, "subject": args.subject, "execution_id": args.execution}


def _follow(args: argparse.Namespace, reader: EventReader) -> None:
    page, last = reader.page(limit=args.limit, **_filters(args)), None
    while True:
        for event in reversed(page):
            print(json.dumps(asdict(event)) if args.json else _line(event))
            last = event.id
        sys.stdout.flush()
        time.sleep(INTERVAL)
        page = list(_newer(args, reader, last))


def _newer(args: argparse.Namespace, reader: EventReader, last: str | None) -> Iterator[Event]:
    """The events after the last one that was printed, the newest first."""
    before = None
    while page := reader.page(before=before, limit=PAGE, **_filters(args)):
        for event in page:
            if event.id == last:
                return
            yield event
        before = page[-1].id


def _line(event: Event) -> str:
    return printable("  ".join(_cells(event)))


def _cells(event: Event) -> tuple[str, ...]:
    try:
        line = record_line(event.type, event.subject, _Known(event.data))
    except (AttributeError, TypeError, ValueError):  # another version or program has written it
        line = f"{event.subject}: {json.dumps(dict(event.data))}"
    return format_moment(event.time), logging.getLevelName(event.severity), event.type, line


class _Known(dict[str, Any]):
    """Data of which another version has left out keys."""

    def __missing__(self, name: str) -> None:
        return None


def _style(event: Event) -> str | None:
    if event.severity >= logging.ERROR:
        return "red"
    return "yellow" if event.severity >= logging.WARNING else None


EVENTS: Listing[Event] = Listing(
    items="events",
    heads=("time", "level", "type", "event"),
    numbers=(),
    name="type",
    cells=_cells,
    style=_style,
    as_json=asdict,
    cursor=lambda event: event.id,
    option="--before",
    empty="No events match.",
)
