"""The command ``retrytemplate context``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import format_span, with_text
from retrytemplate.cli import stores
from retrytemplate.cli.arguments import add_limit, add_verbs
from retrytemplate.cli.errors import CommandFailed, confirm
from retrytemplate.cli.formatting import format_count, format_when
from retrytemplate.cli.tables import Listing, one_line, print_item, print_result

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from retrytemplate.backends.inspection import ContextInspector, Entry
    from retrytemplate.errors import RecordedFailure

DESCRIPTION = """\
List the keys in the store of a durable context cache, show the history of one, and drop keys.
Reading takes no claim, creates no table and changes nothing.

A key is the template's name, a slash, and the state's key with its type: charge/s:order-17 is that
of RetryState("order-17") in the template "charge".
"""

EXITS = {1: "the store cannot be reached, or has no such key"}

LIST_EPILOG = f"""\
examples:
  retrytemplate context list --store sqlite:///retry.db
  retrytemplate context list --prefix charge/ --after charge/s:order-17 --limit 200
  {stores.STORE_VARIABLE}=postgresql://me@host/db retrytemplate context list --json

The table shortens a key that is too long for the terminal in its middle; --json does not.
"""

SHOW_EPILOG = """\
examples:
  retrytemplate context show charge/s:order-17 --store sqlite:///retry.db
  retrytemplate context show charge/s:order-17 --json
"""

FORGET_EPILOG = """\
examples:
  retrytemplate context forget charge/s:order-17 --store sqlite:///retry.db
  retrytemplate context forget charge/s:order-17 charge/s:order-18 --yes

The next delivery of a forgotten key starts from scratch: without failures, history or completion
marker.  A key that is held is forgotten too; the final write of its holder is rejected.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb, and its own verbs, to the command's parser."""
    does = "list, show and drop the keys of a durable context cache"
    verbs = add_verbs(subparsers, "context", does, DESCRIPTION, EXITS)
    listing = verbs.add("list", "list the keys", LIST_EPILOG, stores.options())
    add = listing.add_argument
    add("--prefix", default="", metavar="TEXT", help="only keys with this prefix")
    add("--after", default="", metavar="KEY", help="the next page: keys after this one")
    add_limit(listing, "keys")
    showing = verbs.add(
        "show",
        "show the record of a key and its history",
        SHOW_EPILOG,
        stores.options(),
    )
    showing.add_argument("key", metavar="KEY")
    forgetting = verbs.add(
        "forget",
        "drop keys and their records",
        FORGET_EPILOG,
        stores.options(),
    )
    forgetting.add_argument("keys", nargs="+", metavar="KEY")
    forgetting.add_argument("--yes", action="store_true", help="in a terminal: do not ask")


def run(args: argparse.Namespace) -> int:
    """List, show or forget and return the exit code."""
    with stores.open_entries(args) as entries:
        return {"list": _list, "show": _show, "forget": _forget}[args.action](args, entries)


def _list(args: argparse.Namespace, entries: ContextInspector) -> int:
    found = entries.page(prefix=args.prefix, after=args.after, limit=args.limit + 1)
    KEYS.print(args, found)
    return 0


def _summary(entry: Entry) -> dict[str, Any]:
    """The entry as JSON without its long fields."""
    whole = entry.as_json()
    return {name: value for name, value in whole.items() if name not in ("history", "attributes")}


def _show(args: argparse.Namespace, entries: ContextInspector) -> int:
    entry = entries.find(args.key)
    if entry is None:
        raise CommandFailed(f"no record of the key {args.key!r}")
    print_item(args, entry, entry.key, _record_facts(entry), entry.record.history)
    return 0


def _forget(args: argparse.Namespace, entries: ContextInspector) -> int:
    entries_by_key = {key: entries.find(key) for key in args.keys}
    found = {key: entry for key, entry in entries_by_key.items() if entry is not None}
    number = format_count(len(found), "key")
    if found and not args.yes and not confirm(f"Forget {number}?", _facts(found)):
        raise CommandFailed("no key is forgotten")
    for key in found:
        entries.forget(key)
    unknown = [key for key in entries_by_key if key not in found]
    print_result(args, {"forgotten": list(found), "unknown": unknown}, f"{number} forgotten")
    if unknown:
        raise CommandFailed(f"no record of these keys: {', '.join(map(repr, unknown))}")
    return 0


def _facts(found: Mapping[str, Entry]) -> Iterator[str]:
    for key, entry in found.items():
        holder = f", held by {entry.worker!r}" if entry.held else ""
        yield f"{key!r}: {entry.phase}, failed {entry.record.failures}{holder}"


STYLES = {"held": "yellow", "lost": "red", "recovering": "red", "done": "green"}


def _cells(entry: Entry) -> Iterator[str]:
    yield entry.key
    yield _state(entry)
    yield str(entry.record.failures)
    yield _age_or_lease(entry)
    yield entry.problem or one_line(entry.record.last)


def _state(entry: Entry) -> str:
    return "lost" if entry.lost else entry.phase


def _style(entry: Entry) -> str | None:
    return STYLES.get("held" if entry.held else _state(entry))


def _age_or_lease(entry: Entry) -> str:
    if entry.held and entry.lease_until is not None:
        return f"{format_span(entry.lease_until - entry.now)} left"
    return "" if entry.written is None else format_span(entry.now - entry.written)


def _record_facts(entry: Entry) -> Iterator[tuple[str, str]]:
    """The facts of a key, without its attempts."""
    record, now = entry.record, entry.now
    yield "phase", _phase(entry)
    if entry.worker is not None and entry.lease_until is not None:
        yield (
            ("held by" if entry.held else "was held by"),
            f"{entry.worker}, until {format_when(entry.lease_until, now)}",
        )
    if entry.problem is not None:
        yield "record", entry.problem
    most = "" if record.max_attempts is None else f" of at most {record.max_attempts}"
    if record.attempts:
        yield "attempts", f"{record.attempts}{most}, {record.failures} failed"
    if record.last is not None:
        yield "last failure", _failure(record.last)
    for label, when in (
        ("written", entry.written),
        ("not before", record.not_before),
        ("forgotten", entry.expires),
    ):
        if when is not None:
            yield label, format_when(when, now)
    for label, value in (
        ("template", record.name),
        ("attributes", record.attributes),
        ("policy state", record.policy_state),
        ("backoff state", record.backoff_state),
    ):
        if value is not None:
            yield label, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    yield "fence", str(entry.fence)


def _phase(entry: Entry) -> str:
    record = entry.record
    if entry.lost:
        return "attempting, lost: the lease expired before the worker reported a result"
    if entry.phase == "idle" and (not record.retry_allowed or record.gave_up):
        return "idle, no attempts remain: the next delivery runs the recovery or fails"
    return entry.phase


def _failure(failure: RecordedFailure | None) -> str:
    texts = []
    while failure is not None:
        texts.append(with_text(failure.type_name, failure.message))
        failure = failure.cause
    return ", from ".join(texts)


KEYS: Listing[Entry] = Listing(
    items="keys",
    heads=("key", "phase", "failed", "age/lease", "last failure"),
    numbers=("failed", "age/lease"),
    cells=_cells,
    style=_style,
    as_json=_summary,
    cursor=lambda entry: entry.key,
    empty="No keys match.",
)
