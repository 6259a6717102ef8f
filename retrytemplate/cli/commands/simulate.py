"""The command ``retrytemplate simulate``."""

from __future__ import annotations

import sys
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate.cli import specs
from retrytemplate.cli.arguments import add_command, exit_codes, whole_number
from retrytemplate.cli.arguments import seconds as seconds_from
from retrytemplate.cli.commands.simulate_runs import Run
from retrytemplate.cli.errors import UsageError, console, print_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.table import Table

    from retrytemplate.cli.commands.simulate_runs import Quantiles, Retry
    from retrytemplate.policies.base import RetryPolicy

POLICY = "simple:max_attempts=5"
BACKOFF = "exponential:initial=0.2,multiplier=2,maximum=30,jitter=full"

# Options whose values are printed with the numbers.
SETTINGS = ("policy", "runs", "seed", "attempt_duration")

# Attempts in all, and in one run: more would take minutes and gigabytes.
MOST = 1_000_000
LONGEST_RUN = 10_000

DESCRIPTION = """\
Simulate calls whose attempts all fail, on virtual time: the delay before each retry, the total
delay, and the worst case of one call.  Repeat --backoff to compare several.
"""


def _epilog() -> str:
    lines = [
        "policies (combine with & and |):",
        *(f"  {line}" for line in specs.describe_kinds(specs.POLICIES)),
        "",
        "backoffs:",
        *(f"  {line}" for line in specs.describe_kinds(specs.BACKOFFS)),
        "",
        "examples:",
        f'  retrytemplate simulate --policy "{POLICY}" \\',
        f'      --backoff "{BACKOFF}"',
        '  retrytemplate simulate --policy "simple:8 & timeout:60" --attempt-duration 2 \\',
        "      --backoff exponential:1,2,30 --backoff exponential:1,2,30,full --png delays.png",
        "",
        exit_codes({1: "the picture could not be written"}),
    ]
    return "\n".join(lines)


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the verb to the command's parser."""
    does = "show the delays of a policy and a backoff: percentiles, worst case, plots"
    parser = add_command(subparsers, "simulate", does, DESCRIPTION, _epilog())
    add = parser.add_argument
    add("--policy", default=POLICY, metavar="SPEC", help="default: %(default)s")
    add("--backoff", action="append", metavar="SPEC", help=f"default: {BACKOFF}")
    add(
        "--runs",
        type=whole_number(MOST),
        default=1000,
        metavar="N",
        help="default: %(default)s",
    )
    add("--seed", type=int, metavar="N", help="the same seed gives the same delays")
    add(
        "--attempt-duration",
        type=seconds_from(0),
        default=0.0,
        metavar="SECONDS",
        help="duration of each attempt (default: %(default)s)",
    )
    add(
        "--at-most",
        type=whole_number(LONGEST_RUN),
        default=100,
        metavar="N",
        help="largest number of attempts of a run (default: %(default)s)",
    )
    add("--png", type=Path, metavar="FILE", help="also draw a picture into this file")
    add("--json", action="store_true", help="print the numbers as JSON")


def run(args: argparse.Namespace) -> int:
    """Simulate, and show the numbers; the exit code."""
    runs = [_simulate(args, text) for text in args.backoff or (BACKOFF,)]
    if args.png is not None:
        from retrytemplate.cli.commands.simulate_png import draw

        try:
            draw(runs, args.policy, args.png)
        except OSError as error:
            print(f"retrytemplate simulate: {args.png}: {error.strerror}", file=sys.stderr)
            return 1
    if args.json:
        settings = {name: getattr(args, name) for name in SETTINGS}
        print_json(settings | {"simulations": [each.as_json() for each in runs]})
    else:
        show(runs, args.policy)
    return 0


def _simulate(args: argparse.Namespace, text: str) -> Run:
    from random import Random

    from retrytemplate.simulation import simulate, worst_case

    policy, backoff = specs.parse_policy(args.policy), specs.parse_backoff(text)
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


# Digits after the point for seconds below a limit.
DECIMALS = ((1, 3), (10, 2), (100, 1))
# Seconds (31 years) from which a number has an exponent.
EXPONENT_FROM = 1e9


def seconds(value: float, scale: float | None = None) -> str:
    """Seconds with about three significant digits of *scale*, by default of the value.

    >>> seconds(0.2), seconds(12.345), seconds(0.2, scale=30.0), seconds(0.0), seconds(1e300)
    ('0.200', '12.3', '0.2', '0', '1e+300')
    """
    if not isfinite(value):
        return "unbounded"
    size = value if scale is None else scale
    if size >= EXPONENT_FROM:
        return f"{value:.3g}"
    places = next((places for limit, places in DECIMALS if 0 < size < limit), 0)
    return f"{value:.{places}f}"


# Numbers of first and last retries that a long simulation shows.
FIRST, LAST = 12, 3
BINS = 12
# Limits of the width of a drawing, and the width of a histogram without its bars.
MAX_WIDTH, MIN_WIDTH = 60, 12
LABELS_WIDTH = 30
LEGEND = "░ min to max   ▒ p10 to p90   █ p50\n"
EIGHTHS = " ▏▎▍▌▋▊▉"
PLAIN = str.maketrans("░▒█", ".:#", EIGHTHS.strip())


@frozen
class AsciiPlot:
    """Draws with *width* characters; with ASCII characters if *plain*."""

    width: int
    plain: bool = False

    def strip(self, spread: Quantiles, scale: float) -> str:
        """The values between 0 and *scale*: all ``░``, p10 to p90 ``▒``, median ``█``.

        >>> from retrytemplate.cli.commands.simulate_runs import Quantiles
        >>> AsciiPlot(9).strip(Quantiles(0.0, 1.0, 2.0, 3.0, 4.0), 4.0)
        '░░▒▒█▒▒░░'
        """
        cells = [" "] * self.width
        for low, high, mark in (
            (spread.least, spread.most, "░"),
            (spread.tenth, spread.ninetieth, "▒"),
            (spread.median, spread.median, "█"),
        ):
            first, last = self._column(low, scale), self._column(high, scale)
            cells[first : last + 1] = mark * (last - first + 1)
        return self.translate("".join(cells))

    def bar(self, share: float) -> str:
        """A bar that is *share* (0 to 1) of the width long, to an eighth of a character.

        >>> AsciiPlot(5).bar(0.5), AsciiPlot(5, plain=True).bar(0.5)
        ('██▌', '##')
        """
        whole, eighths = divmod(round(share * self.width * 8), 8)
        return self.translate(("█" * whole + EIGHTHS[eighths]).rstrip())

    def _column(self, value: float, scale: float) -> int:
        return round(value / scale * (self.width - 1)) if scale else 0

    def translate(self, text: str) -> str:
        """The text in the allowed characters."""
        return text.translate(PLAIN) if self.plain else text


def show(runs: Sequence[Run], policy: str) -> None:
    """Print the simulations, all strips on one scale."""
    screen = console("the table (there is --json, too)")
    scale = max((run.simulation.delays[-1] for run in runs if run.simulation.delays), default=0.0)
    for run in runs:
        screen.print(f"\nbackoff  {run.backoff}", style="bold")
        screen.print(f"policy   {policy}, {len(run.simulation.sequences)} runs")
        if run.total.most > 0:
            screen.print(_table(run.retries, scale))
            screen.print(_plot(screen).translate(LEGEND))
            for line in _histogram(screen, run):
                screen.print(line)
        for line in _summary(run):
            screen.print(line)


def _plot(console: Console) -> AsciiPlot:
    width = max(MIN_WIDTH, min(console.width - LABELS_WIDTH, MAX_WIDTH))
    return AsciiPlot(width, console.options.ascii_only)


@frozen
class _Strip:
    """A cell of the table that fills the width of its column."""

    spread: Quantiles
    scale: float

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(MIN_WIDTH, MAX_WIDTH)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[str]:
        yield AsciiPlot(options.max_width, options.ascii_only).strip(self.spread, self.scale)


def _table(retries: Sequence[Retry], scale: float) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("retry", "runs", "min", "p50", "p90", "max"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column(f"delay, 0 to {seconds(scale)} s")
    table.add_column("total p50", justify="right", no_wrap=True)
    longest = retries[-1].so_far.most
    for retry in _shown_retries(retries):
        table.add_row(*(["..."] if retry is None else _cells(retry, scale, longest)))
    return table


def _shown_retries(retries: Sequence[Retry]) -> Iterator[Retry | None]:
    if len(retries) <= FIRST + LAST + 1:
        yield from retries
        return
    yield from retries[:FIRST]
    yield None
    yield from retries[-LAST:]


def _cells(retry: Retry, scale: float, longest: float) -> Iterator[str | _Strip]:
    yield str(retry.number)
    yield str(retry.runs)
    delay = retry.delay
    for value in (delay.least, delay.median, delay.ninetieth, delay.most):
        yield seconds(value, scale)
    yield _Strip(delay, scale)
    yield seconds(retry.so_far.median, longest)


def _histogram(console: Console, run: Run) -> Iterator[str]:
    totals = run.simulation.totals
    low, high = totals[0], totals[-1]
    width = (high - low) / BINS
    # All totals are equal, or floats cannot separate the bins.
    if not 1e-9 * high < high - low < inf or not width:
        return
    counts = [0] * BINS
    for total in totals:
        counts[min(int((total - low) / width), BINS - 1)] += 1
    pen = _plot(console)
    yield "total delay, runs"
    for number, count in enumerate(counts):
        ends = (seconds(low + place * width, high) for place in (number, number + 1))
        yield "{:>7} to {:>7} s  {} {}".format(*ends, pen.bar(count / max(counts)), count)
    yield ""


def _summary(run: Run) -> Iterator[str]:
    total, worst = run.total, run.worst
    if not run.retries:
        yield "No retries."
    elif total.most == 0:
        yield "No delays: each retry follows immediately."
    else:
        yield (
            f"total delay    median {_axis_seconds(total.median)}, 90 % within "
            f"{_axis_seconds(total.ninetieth)}, longest {_axis_seconds(total.most)}"
        )
    attempts = "unbounded" if worst.attempts is None else worst.attempts
    yield (
        f"worst case     attempts {attempts}, waiting {_axis_seconds(worst.waiting)}, "
        f"total {_axis_seconds(worst.duration)}"
    )
    if run.simulation.cut:
        yield f"truncated      {run.simulation.cut} runs reached --at-most"


def _axis_seconds(value: float) -> str:
    text = seconds(value)
    return text if text == "unbounded" else f"{text} s"
