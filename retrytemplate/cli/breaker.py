"""``retrytemplate breaker``: what settings of a circuit breaker would come to."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrytemplate.cli.usage import WorkError, add_verb, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retrytemplate.control.tuning import RecordedCall, Replayed

__all__ = ["add_parser", "run"]

USUAL = "calls:50"

EPILOG = """\
examples:
  retrytemplate breaker replay calls.csv --breaker consecutive:5 --breaker calls:50

exit codes:
  0 done   1 the recording cannot be read   2 wrong use   130 interrupted
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
        help="try settings of a circuit breaker on calls that were recorded",
        description="Find the settings of a circuit breaker.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="action", metavar="VERB", required=True)
    does = "let breakers see calls that were recorded: how often each opens, and what it refuses"
    add = add_verb(verbs, "replay", does, REPLAY_EPILOG).add_argument
    add("file", type=Path, metavar="FILE", help="the calls")
    add("--breaker", action="append", metavar="SPEC", help=f"default: {USUAL}")
    add("--seed", type=int, default=1, metavar="N", help="of the jitter (default: %(default)s)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Replay the recording with each breaker, and show what came of it; the exit code."""
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
