"""The command ``retrytemplate rate-limiter``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import format_span
from retrytemplate.cli import stores
from retrytemplate.cli.arguments import add_verbs
from retrytemplate.cli.errors import print_json
from retrytemplate.errors import RateLimitStoreError

if TYPE_CHECKING:
    import argparse

    from retrytemplate.control.rate_limiter.redis.store import RateLimitRecord

DESCRIPTION = "Show the rate limits that several processes share."

EXITS = {1: "the store cannot be reached, or has other data under a key"}

STATUS_EPILOG = f"""\
examples:
  retrytemplate rate-limiter status --store redis://host/0
  retrytemplate rate-limiter status billing --json | jq '.[].available'
  {stores.STORE_VARIABLE}=redis://host/0 retrytemplate rate-limiter status

Use the store of your RateLimiter.  A limiter without a store belongs to its process and cannot be
shown.  A limit whose permits are all free has no record.  Limits of single keys are not shown.

free: permits that are free at once   rate, burst: those of the latest caller
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb, and its own verb, to the command's parser."""
    verbs = add_verbs(subparsers, "rate-limiter", "show shared rate limits", DESCRIPTION, EXITS)
    shared = stores.options(of="the store of the limiters")
    add = verbs.add("status", "show shared rate limits", STATUS_EPILOG, shared).add_argument
    add("names", nargs="*", metavar="NAME", help="names of limiters (default: all in the store)")


def run(args: argparse.Namespace) -> int:
    """Show the limits and return the exit code."""
    found = _load(args)
    if args.json:
        print_json([_as_json(each) for each in found])
    else:
        _print(found)
    return 0


def _load(args: argparse.Namespace) -> list[RateLimitRecord]:
    from retrytemplate.control import RedisRateLimitStore

    opened = stores.open_redis(args, RedisRateLimitStore, "rate limits", RateLimitStoreError)
    with opened as store:
        return [store.fetch(name) for name in args.names or store.names()]


def _as_json(record: RateLimitRecord) -> dict[str, Any]:
    """All fields of a limit."""
    shown = {each: getattr(record, each) for each in "name interval burst debt paused".split()}
    return shown | {"available": _available(record)}


def _available(record: RateLimitRecord) -> int | None:
    if record.interval is None or record.burst is None:
        return None
    return record.available(record.interval, record.burst)


HEADS = "limiter rate burst free paused".split()


def _print(found: list[RateLimitRecord]) -> None:
    """Print a line for each limit."""
    from retrytemplate.cli.tables import Screen

    screen = Screen()
    if not found:
        screen.say("The store has no rate limits in use.")
        return
    styles = ["red" if each.paused else None for each in found]
    screen.table(HEADS, map(_cells, found), styles, numbers=HEADS[1:])


def _cells(record: RateLimitRecord) -> tuple[str, ...]:
    free = 0 if record.paused else _available(record)
    return (
        record.name,
        "" if record.interval is None else f"{1 / record.interval:.3g}/s",
        "" if record.burst is None else str(record.burst),
        "all" if free is None else str(free),
        format_span(record.paused) if record.paused else "",
    )
