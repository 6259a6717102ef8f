"""``retrytemplate breaker``: how shared circuits stand, and what settings would come to."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrytemplate.cli import _stores
from retrytemplate.cli.usage import WorkError, add_verb, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retrytemplate.control.tuning import RecordedCall, Replayed

__all__ = ["add_parser", "run"]

USUAL = "calls:50"
REFUSES = 3

DESCRIPTION = """\
See how the circuits stand that the breakers of several processes share; find the settings of one.
"""

EPILOG = f"""\
examples:
  retrytemplate breaker status --store redis://host/0
  retrytemplate breaker replay calls.csv --breaker consecutive:5 --breaker calls:50

exit codes:
  0 done   1 the store cannot be reached, has no such circuit, or something else in its place;
             the recording cannot be read
  2 wrong use   {REFUSES} a circuit refuses calls, where status was asked with --exit-code
  130 interrupted
"""

STATUS_EPILOG = f"""\
examples:
  retrytemplate breaker status --store redis://host/0
  retrytemplate breaker status billing search --json | jq '.[] | select(.gauge > 0) | .name'
  {_stores.NAMED}=redis://host/0 retrytemplate breaker status billing --exit-code

The store is the one that your CircuitBreaker has.  A breaker without one is of its process alone,
and nobody else can look at it.  Looking changes nothing: a circuit whose time is over stays open
until the next call.

gauge: 0 closed, 1 half-open, 2 open, 3 forced open, -1 disabled, -2 metrics only
"""

REPLAY_EPILOG = """\
The file has a call a line: CSV, if its name ends so, with a first line of names; else JSON objects.
  time      when it began, in seconds from any moment
  duration  seconds that it took
  outcome   success, failure, ignored or cancelled

breakers, the first setting needs no name:
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


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the verb, and its own verb, to the command's parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "breaker",
        help="how shared circuits stand; settings tried on calls that were recorded",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="action", metavar="VERB", required=True)
    shared = _stores.options(of="the store of the circuits")
    does = "how the circuits stand that processes share"
    add = add_verb(verbs, "status", does, STATUS_EPILOG, shared).add_argument
    add("names", nargs="*", metavar="NAME", help="of circuits (default: all in the store)")
    add(
        "--exit-code",
        action="store_true",
        help=f"end with {REFUSES} where one of them is open or half-open",
    )
    does = "let breakers see calls that were recorded: how often each opens, and what it refuses"
    add = add_verb(verbs, "replay", does, REPLAY_EPILOG).add_argument
    add("file", type=Path, metavar="FILE", help="the calls")
    add("--breaker", action="append", metavar="SPEC", help=f"default: {USUAL}")
    add("--seed", type=int, default=1, metavar="N", help="of the jitter (default: %(default)s)")
    return parser


def run(args: argparse.Namespace) -> int:
    """What the verb's verb comes to; the exit code."""
    return _status(args) if args.action == "status" else _replay(args)


def _status(args: argparse.Namespace) -> int:
    """Show how the circuits stand."""
    from retrytemplate.cli._circuits import as_json, looked, show

    found, wrong = looked(args)
    if args.json:
        print_json([as_json(name, seen) for name, seen in found.items()])
    elif found or not wrong:
        show(found)
    if wrong:
        raise WorkError("; ".join(wrong))
    refuses = any(seen.gauge > 0 for seen in found.values())
    return REFUSES if args.exit_code and refuses else 0


def _replay(args: argparse.Namespace) -> int:
    """Replay the recording with each breaker, and show what came of it."""
    from random import Random

    from attrs import evolve

    from retrytemplate.cli._breakers import breaker, recording
    from retrytemplate.control.tuning import replay

    tried = {spec: breaker(spec) for spec in args.breaker or (USUAL,)}
    calls = list(recording(args.file))
    if not calls:
        raise WorkError(f"{args.file}: no call is recorded")
    seen = {
        spec: replay(evolve(each, random=Random(args.seed)), calls) for spec, each in tried.items()
    }
    if args.json:
        _print_json(seen)
    else:
        _show(calls, seen)
    return 0


def _print_json(seen: dict[str, Replayed]) -> None:
    from attrs import asdict

    print_json([{"breaker": spec} | asdict(each) for spec, each in seen.items()])


HEADS = ("breaker", "opened", "again", "open for", "refused", "good", "failures")
LEGEND = (
    "again: opened once more when it looked; open for: until it closed again;",
    "good: refused, and went well without the breaker; failures: let through",
)


def _show(calls: Sequence[RecordedCall], seen: dict[str, Replayed]) -> None:
    from retrytemplate.cli._screen import Screen
    from retrytemplate.cli._words import clock, span

    length = max(call.time + call.duration for call in calls) - min(call.time for call in calls)
    failures = sum(call.outcome == "failure" for call in calls)
    screen = Screen()
    share = failures / len(calls)
    screen.say(f"{len(calls)} calls in {span(length)}, {failures} of them failures ({share:.1%})")
    rows = [
        (
            spec,
            str(each.opened),
            str(each.reopened),
            clock(each.seconds),
            str(each.refused),
            str(each.refused_successes),
            str(each.failures),
        )
        for spec, each in seen.items()
    ]
    screen.table(HEADS, rows, [None] * len(rows), numbers=HEADS[1:])
    for line in LEGEND:
        screen.say(line, "dim")
