"""The table and the plots of ``simulate`` in the terminal."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from attrs import frozen

from retrytemplate.cli._numbers import Run, seconds
from retrytemplate.cli.usage import console

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.table import Table

    from retrytemplate.cli._numbers import Retry, Spread

__all__ = ["Pen", "show"]

# A long simulation shows its first retries and its last ones.
FIRST, LAST = 12, 3
BINS = 12
# The widest and the narrowest drawing, and what a histogram needs beside its bars.
WIDEST, NARROWEST = 60, 12
BESIDE_BAR = 30
LEGEND = "░ min to max   ▒ p10 to p90   █ p50\n"
EIGHTHS = " ▏▎▍▌▋▊▉"
PLAIN = str.maketrans("░▒█", ".:#", EIGHTHS.strip())


@frozen
class Pen:
    """Draws with characters, *width* of them; with ASCII ones where it must be *plain*."""

    width: int
    plain: bool = False

    def strip(self, spread: Spread, scale: float) -> str:
        """Where the values lie between 0 and *scale*: all ``░``, eight of ten ``▒``, median ``█``.

        >>> from retrytemplate.cli._numbers import Spread
        >>> Pen(9).strip(Spread(0.0, 1.0, 2.0, 3.0, 4.0), 4.0)
        '░░▒▒█▒▒░░'
        """
        cells = [" "] * self.width
        for low, high, mark in (
            (spread.least, spread.most, "░"),
            (spread.tenth, spread.ninetieth, "▒"),
            (spread.median, spread.median, "█"),
        ):
            first, last = self._place(low, scale), self._place(high, scale)
            cells[first : last + 1] = mark * (last - first + 1)
        return self.drawn("".join(cells))

    def bar(self, share: float) -> str:
        """A bar that is *share* (0 to 1) of the width long, to an eighth of a character.

        >>> Pen(5).bar(0.5), Pen(5, plain=True).bar(0.5)
        ('██▌', '##')
        """
        whole, eighths = divmod(round(share * self.width * 8), 8)
        return self.drawn(("█" * whole + EIGHTHS[eighths]).rstrip())

    def _place(self, value: float, scale: float) -> int:
        return round(value / scale * (self.width - 1)) if scale else 0

    def drawn(self, text: str) -> str:
        """The text in the characters that may be used."""
        return text.translate(PLAIN) if self.plain else text


def show(runs: Sequence[Run], policy: str) -> None:
    """Print what was simulated, one backoff after the other, all strips on one scale."""
    screen = console("the table (there is --json, too)")
    scale = max((run.simulation.delays[-1] for run in runs if run.simulation.delays), default=0.0)
    for run in runs:
        screen.print(f"\nbackoff  {run.backoff}", style="bold")
        screen.print(f"policy   {policy}, {len(run.simulation.sequences)} runs")
        if run.total.most > 0:
            screen.print(_table(run.retries, scale))
            screen.print(_pen(screen).drawn(LEGEND))
            for line in _histogram(screen, run):
                screen.print(line)
        for line in _summary(run):
            screen.print(line)


def _pen(console: Console) -> Pen:
    width = max(NARROWEST, min(console.width - BESIDE_BAR, WIDEST))
    return Pen(width, console.options.ascii_only)


@frozen
class _Strip:
    """A cell of the table: as wide as the table has room for."""

    spread: Spread
    scale: float

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(NARROWEST, WIDEST)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[str]:
        yield Pen(options.max_width, options.ascii_only).strip(self.spread, self.scale)


def _table(retries: Sequence[Retry], scale: float) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("retry", "runs", "min", "p50", "p90", "max"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column(f"delay, 0 to {seconds(scale)} s")
    table.add_column("total p50", justify="right", no_wrap=True)
    longest = retries[-1].so_far.most
    for retry in _some(retries):
        table.add_row(*(["..."] if retry is None else _cells(retry, scale, longest)))
    return table


def _some(retries: Sequence[Retry]) -> Iterator[Retry | None]:
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
    # All the same; or so few, or so many, that no float can tell the bins apart.
    if not 1e-9 * high < high - low < inf or not width:
        return
    counts = [0] * BINS
    for total in totals:
        counts[min(int((total - low) / width), BINS - 1)] += 1
    pen = _pen(console)
    yield "waited in all, runs"
    for number, count in enumerate(counts):
        ends = (seconds(low + place * width, high) for place in (number, number + 1))
        yield "{:>7} to {:>7} s  {} {}".format(*ends, pen.bar(count / max(counts)), count)
    yield ""


def _summary(run: Run) -> Iterator[str]:
    total, worst = run.total, run.worst
    if not run.retries:
        yield "No retry, no wait."
    elif total.most == 0:
        yield "No wait: every retry follows at once."
    else:
        yield (
            f"waited in all  median {_axis_seconds(total.median)}, 90 % within "
            f"{_axis_seconds(total.ninetieth)}, longest {_axis_seconds(total.most)}"
        )
    attempts = "unbounded" if worst.attempts is None else worst.attempts
    yield (
        f"worst case     attempts {attempts}, waiting {_axis_seconds(worst.waiting)}, "
        f"in all {_axis_seconds(worst.duration)}"
    )
    if run.simulation.cut:
        yield f"cut off        {run.simulation.cut} runs that would have gone on; see --at-most"


def _axis_seconds(value: float) -> str:
    text = seconds(value)
    return text if text == "unbounded" else f"{text} s"
