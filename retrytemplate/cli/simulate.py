"""``retrytemplate simulate``: the delays of a policy and a backoff, before anybody waits."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrytemplate.cli import spec
from retrytemplate.cli.usage import UsageError, whole_number

if TYPE_CHECKING:
    from retrytemplate.cli._numbers import Run
    from retrytemplate.policies.base import RetryPolicy

__all__ = ["add_parser", "run"]

POLICY = "simple:max_attempts=5"
BACKOFF = "exponential:initial=0.2,multiplier=2,maximum=30,jitter=full"

# Attempts in all, and in one run: more would take minutes and gigabytes.
MOST = 1_000_000
LONGEST_RUN = 10_000

DESCRIPTION = """\
Let every attempt fail, many times over, on virtual time: what is waited before each retry and in
all, and the longest that one call can take.  --backoff may be given more than once, to compare.
"""


def _epilog() -> str:
    lines = [
        "policies (combine with & and |):",
        *(f"  {line}" for line in spec.overview(spec.POLICIES)),
        "",
        "backoffs:",
        *(f"  {line}" for line in spec.overview(spec.BACKOFFS)),
        "",
        "examples:",
        f'  retrytemplate simulate --policy "{POLICY}" \\',
        f'      --backoff "{BACKOFF}"',
        '  retrytemplate simulate --policy "simple:8 & timeout:60" --attempt-duration 2 \\',
        "      --backoff exponential:1,2,30 --backoff exponential:1,2,30,full --png delays.png",
        "",
        "exit codes:",
        "  0 done   1 the picture could not be written   2 wrong use   130 interrupted",
    ]
    return "\n".join(lines)


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the verb to the command's parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "simulate",
        help="show the delays of a policy and a backoff: percentiles, worst case, plots",
        description=DESCRIPTION,
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--policy", default=POLICY, metavar="SPEC", help="default: %(default)s")
    add("--backoff", action="append", metavar="SPEC", help=f"default: {BACKOFF}")
    add("--runs", type=whole_number(MOST), default=1000, metavar="N", help="default: %(default)s")
    add("--seed", type=int, metavar="N", help="the same seed gives the same delays")
    add(
        "--attempt-duration",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long every attempt takes (default: no time at all)",
    )
    add(
        "--at-most",
        type=whole_number(LONGEST_RUN),
        default=100,
        metavar="N",
        help="attempts after which a run that does not end is cut off (default: %(default)s)",
    )
    add("--png", type=Path, metavar="FILE", help="draw the picture into a file, too")
    add("--json", action="store_true", help="print the numbers as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Simulate, and show the numbers; the exit code."""
    runs = [_simulated(args, text) for text in args.backoff or (BACKOFF,)]
    if args.png is not None:
        from retrytemplate.cli._picture import draw

        try:
            draw(runs, args.policy, args.png)
        except OSError as error:
            print(f"retrytemplate simulate: {args.png}: {error.strerror}", file=sys.stderr)
            return 1
    if args.json:
        _print_json(args, runs)
    else:
        from retrytemplate.cli._terminal import show

        show(runs, args.policy)
    return 0


def _simulated(args: argparse.Namespace, text: str) -> Run:
    from random import Random

    from retrytemplate.cli._numbers import Run
    from retrytemplate.simulation import simulate, worst_case

    policy, backoff = spec.policy(args.policy), spec.backoff(text)
    _check_size(args, policy)
    simulation = simulate(
        policy,
        backoff,
        args.runs,
        Random(args.seed),
        attempt_duration=args.attempt_duration,
        max_attempts_per_run=args.at_most,
    )
    worst = worst_case(policy, backoff, attempt_duration=args.attempt_duration)
    return Run(text, simulation, worst)


def _check_size(args: argparse.Namespace, policy: RetryPolicy) -> None:
    limit = policy.attempt_limit
    attempts = args.at_most if limit is None else min(limit, args.at_most)
    if args.runs * attempts > MOST:
        raise UsageError(
            f"--runs: {args.runs} runs of up to {attempts} attempts are {args.runs * attempts}; "
            f"at most {MOST} attempts are simulated"
        )


def _print_json(args: argparse.Namespace, runs: list[Run]) -> None:
    import json

    report = {
        "policy": args.policy,
        "runs": args.runs,
        "seed": args.seed,
        "attempt_duration": args.attempt_duration,
        "simulations": [each.as_json() for each in runs],
    }
    print(json.dumps(report, indent=2))


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0, got {text!r}")
    return number
