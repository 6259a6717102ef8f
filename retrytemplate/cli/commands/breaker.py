"""The command ``retrytemplate breaker``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, fields

from retrytemplate._internal.formatting import format_span
from retrytemplate.batch.errors import ReaderError
from retrytemplate.batch.readers.csv import CsvReader
from retrytemplate.batch.readers.json_lines import JsonLinesReader
from retrytemplate.cli import stores
from retrytemplate.cli.arguments import add_verbs
from retrytemplate.cli.errors import CommandFailed, print_json
from retrytemplate.cli.specs import NUMBER, SECONDS, WHOLE, Kind, build
from retrytemplate.control.breaker.breaker import CircuitBreaker
from retrytemplate.control.breaker.replay import RecordedCall
from retrytemplate.control.breaker.window import Calls, Consecutive, Seconds
from retrytemplate.errors import CircuitStoreError

if TYPE_CHECKING:
    import argparse
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Sequence

    from retrytemplate.control.breaker.redis.record import CircuitRecord
    from retrytemplate.control.breaker.replay import Replayed

DEFAULT_BREAKER = "calls:50"
EXIT_REJECTING = 3

DESCRIPTION = """\
Show the state of the circuits that several processes share; try settings on recorded calls.
"""

EXITS = {
    1: "the store or the recording cannot be read, has other data, or there is no such circuit",
    EXIT_REJECTING: "status --exit-code: a circuit rejects calls",
}

STATUS_EPILOG = f"""\
examples:
  retrytemplate breaker status --store redis://host/0
  retrytemplate breaker status billing search --json | jq '.[] | select(.gauge > 0) | .name'
  {stores.STORE_VARIABLE}=redis://host/0 retrytemplate breaker status billing --exit-code

Use the store of your CircuitBreaker.  A breaker without a store belongs to its process and cannot
be shown.  Reading changes nothing: an open circuit whose reset timeout has expired stays open until
the next call.

gauge: 0 closed, 1 half_open, 2 open, 3 forced_open, -1 disabled, -2 metrics_only
"""

REPLAY_EPILOG = """\
One call per line: CSV with a header line if the file's name ends with .csv, else JSON objects.
  time      start of the call in seconds, from any origin
  duration  seconds of the call
  outcome   success, failure, ignored or cancelled

breakers; the first setting needs no name:
  calls:number=N, minimum_calls=N, failure_rate=SHARE, slow_rate=SHARE
  seconds:seconds=SECONDS, minimum_calls=N, failure_rate=SHARE, slow_rate=SHARE
  consecutive:number=N
  and each of them: slow_call=SECONDS, reset_timeout=SECONDS, reset_jitter=SHARE,
  reset_growth=NUMBER, reset_maximum=SECONDS, half_open_calls=N, required_successes=N

examples:
  retrytemplate breaker replay calls.csv
  retrytemplate breaker replay calls.jsonl --breaker consecutive:2 \\
      --breaker calls:50,failure_rate=0.3,reset_timeout=10 --json
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb, and its own verb, to the command's parser."""
    does = "show shared circuits; try settings on recorded calls"
    verbs = add_verbs(subparsers, "breaker", does, DESCRIPTION, EXITS)
    shared = stores.options(of="the store of the circuits")
    does = "show the state of shared circuits"
    add = verbs.add("status", does, STATUS_EPILOG, shared).add_argument
    add("names", nargs="*", metavar="NAME", help="names of circuits (default: all in the store)")
    add(
        "--exit-code",
        action="store_true",
        help=f"exit with {EXIT_REJECTING} if one of them is open or half-open",
    )
    does = "replay recorded calls through breakers: openings and rejected calls of each"
    add = verbs.add("replay", does, REPLAY_EPILOG).add_argument
    add("file", type=Path, metavar="FILE", help="the recorded calls")
    add("--breaker", action="append", metavar="SPEC", help=f"default: {DEFAULT_BREAKER}")
    add(
        "--seed", type=int, default=1, metavar="N", help="seed of the jitter (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Show or replay and return the exit code."""
    return _status(args) if args.action == "status" else _replay(args)


def _status(args: argparse.Namespace) -> int:
    """Show the state of the circuits."""
    found, wrong = load_circuits(args)
    if args.json:
        print_json([as_json(name, seen) for name, seen in found.items()])
    elif found or not wrong:
        print_circuits(found)
    if wrong:
        raise CommandFailed("; ".join(wrong))
    rejects = any(seen.gauge > 0 for seen in found.values())
    return EXIT_REJECTING if args.exit_code and rejects else 0


def _replay(args: argparse.Namespace) -> int:
    """Replay the recording through each breaker, and show the results."""
    from random import Random

    from retrytemplate.control.breaker.replay import replay

    tried = {spec: parse_breaker(spec) for spec in args.breaker or (DEFAULT_BREAKER,)}
    calls = list(read_calls(args.file))
    if not calls:
        raise CommandFailed(f"{args.file}: no calls are recorded")
    seen = {
        spec: replay(evolve(each, random=Random(args.seed)), calls) for spec, each in tried.items()
    }
    if args.json:
        print_json([{"breaker": spec} | asdict(each) for spec, each in seen.items()])
    else:
        _print_replay(calls, seen)
    return 0


HEADS = ("breaker", "opened", "reopened", "open", "rejected", "wrongly", "failed")
LEGEND = (
    "reopened: by a half-open trial call; open: total time until the circuit closed again;",
    "wrongly: rejected calls that succeed in the recording; failed: admitted calls that fail",
)


def _print_replay(calls: Sequence[RecordedCall], seen: dict[str, Replayed]) -> None:
    from retrytemplate.cli.tables import Screen

    length = max(call.time + call.duration for call in calls) - min(call.time for call in calls)
    failures = sum(call.outcome == "failure" for call in calls)
    screen = Screen()
    share = failures / len(calls)
    screen.say(
        f"{len(calls)} calls in {format_span(length)}, {failures} of them failures ({share:.1%})"
    )
    rows = [
        (
            spec,
            str(each.opened),
            str(each.reopened),
            f"{each.seconds:.0f} s",
            str(each.rejected),
            str(each.rejected_successes),
            str(each.failures),
        )
        for spec, each in seen.items()
    ]
    screen.table(HEADS, rows, [None] * len(rows), numbers=HEADS[1:])
    for line in LEGEND:
        screen.say(line, "dim")


PAGE_SIZE = 1000
FIELDS = tuple(each.name for each in fields(RecordedCall))

RATE_SETTINGS = {"minimum_calls": WHOLE, "failure_rate": NUMBER, "slow_rate": NUMBER}
BREAKER_SETTINGS = {
    "slow_call": SECONDS,
    "reset_timeout": SECONDS,
    "reset_jitter": NUMBER,
    "reset_growth": NUMBER,
    "reset_maximum": SECONDS,
    "half_open_calls": WHOLE,
    "required_successes": WHOLE,
}


def _breaker(window: Callable[[Any], Any], size: str, **settings: Any) -> CircuitBreaker:
    return CircuitBreaker("replay", window=window(settings.pop(size)), **settings)


BREAKERS = {
    "calls": Kind(
        partial(_breaker, Calls, "number"),
        {"number": WHOLE} | RATE_SETTINGS | BREAKER_SETTINGS,
        ("number",),
    ),
    "seconds": Kind(
        partial(_breaker, Seconds, "seconds"),
        {"seconds": SECONDS} | RATE_SETTINGS | BREAKER_SETTINGS,
        ("seconds",),
    ),
    "consecutive": Kind(
        partial(_breaker, Consecutive, "number"), {"number": WHOLE} | BREAKER_SETTINGS, ("number",)
    ),
}


def parse_breaker(text: str) -> CircuitBreaker:
    """The breaker that the text describes.

    :raises UsageError: the text is not valid; the message names the allowed values.

    >>> parse_breaker("calls:20,failure_rate=0.5").failure_rate
    0.5
    """
    found: CircuitBreaker = build("breaker", text, BREAKERS)
    return found


def read_calls(path: Path) -> Iterator[RecordedCall]:
    """The calls in a file: CSV if its name ends with .csv, else JSON lines.

    :raises CommandFailed: it cannot be read.
    """
    reader = CsvReader(path) if path.suffix.lower() == ".csv" else JsonLinesReader(path)
    try:
        with reader.open() as cursor:
            while records := cursor.read(PAGE_SIZE):
                for error in records.broken.values():
                    raise CommandFailed(str(error))
                for index, item in enumerate(records.items):
                    yield _call(item, f"{path}, record {records.number(index)}")
    except (OSError, ReaderError) as error:
        raise CommandFailed(str(error)) from error


def _call(item: Any, where: str) -> RecordedCall:
    if not isinstance(item, dict) or not item.keys() >= set(FIELDS):
        raise CommandFailed(f"{where} must have {', '.join(FIELDS)}, got {item!r}")
    try:
        time, duration = float(item["time"]), float(item["duration"])
        return RecordedCall(time, duration, item["outcome"])
    except (TypeError, ValueError, OverflowError) as error:
        raise CommandFailed(f"{where}: {error}") from error


CIRCUIT_HEADS = "circuit state for left calls failures slow permits by reason".split()
NUMBERS = CIRCUIT_HEADS[2:-2]
GAUGE_OPEN, GAUGE_HALF_OPEN = 2, 1


def load_circuits(args: Namespace) -> tuple[dict[str, CircuitRecord], list[str]]:
    """The records of the named circuits, or of all; and the errors of the others.

    :raises UsageError: the URL is missing or not valid.
    :raises CommandFailed: the store cannot be reached.
    """
    from retrytemplate.control import RedisCircuitStore

    found: dict[str, CircuitRecord] = {}
    wrong = list[str]()
    with stores.open_redis(args, RedisCircuitStore, "circuits", CircuitStoreError) as store:
        from redis import ConnectionError, TimeoutError

        for name in args.names or store.names():
            try:
                seen = store.fetch(name)
            except CircuitStoreError as error:
                if isinstance(error.__cause__, ConnectionError | TimeoutError):
                    raise
                wrong.append(str(error))
            else:
                if seen is not None:
                    found[name] = seen
                elif args.names:  # else it was deleted meanwhile
                    wrong.append(f"there is no circuit {name!r} in the store")
    return found, wrong


# The fields of the JSON that are attributes of the same name.
AS_THEY_ARE = (
    "state gauge generation since until calls failures slow successes opened by reason"
).split()


def as_json(name: str, seen: CircuitRecord) -> dict[str, Any]:
    """All fields of a circuit."""
    more = {"age": seen.now - seen.since, "left": seen.remaining, "permits": seen.probes}
    return {"name": name, **{each: getattr(seen, each) for each in AS_THEY_ARE}, **more}


def print_circuits(found: dict[str, CircuitRecord]) -> None:
    """Print a line for each circuit."""
    from retrytemplate.cli.tables import Screen

    screen = Screen()
    if not found:
        screen.say("The store has no circuits.")
        return
    rows = [_cells(name, seen) for name, seen in found.items()]
    screen.table(CIRCUIT_HEADS, rows, map(_style, found.values()), numbers=NUMBERS)


def _cells(name: str, seen: CircuitRecord) -> tuple[str, ...]:
    return (
        name,
        seen.state,
        format_span(seen.now - seen.since),
        "" if seen.remaining is None else format_span(seen.remaining),
        str(seen.calls),
        str(seen.failures),
        str(seen.slow),
        str(seen.probes),
        seen.by or "",
        seen.reason or "",
    )


def _style(seen: CircuitRecord) -> str | None:
    if seen.gauge >= GAUGE_OPEN:
        return "red"
    return "yellow" if seen.gauge == GAUGE_HALF_OPEN else None
