"""The picture of ``simulate``: the delay before each retry, and the total delay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._internal.imports import extra
from retrytemplate.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from retrytemplate.cli.commands.simulate_runs import Quantiles, Run

# Distinguishable with colour blindness (P. Green-Armytage, M. Okabe and K. Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
INK, GRID = "#333333", "#dddddd"
COLUMNS = {1: 1, 2: 2, 4: 2}
MOST_COLUMNS = 3
PANEL = 3.4, 2.4
# Smallest number of bars that a panel is divided into, so that bars stay narrow.
FEWEST_PLACES = 6
LEGEND = "light: min to max, dark: p10 to p90, line: p50"
DPI = 90
# Seconds; longer delays could overflow the floats of the axes.
LONGEST = 1e100
# A longer name is wrapped before a setting.
NAME_WIDTH = 40


def draw(runs: Sequence[Run], policy: str, path: Path) -> None:
    """Draw the simulations into a PNG file.

    :raises OSError: the file cannot be written.
    :raises UsageError: the delays are too long for an axis.
    """
    longest = max((run.simulation.delays[-1] for run in runs if run.retries), default=0.0)
    if longest > LONGEST:
        raise UsageError(f"--png: delays of {longest:g} seconds cannot be drawn")
    with extra("cli", "the picture"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure

    columns = COLUMNS.get(len(runs), MOST_COLUMNS)
    rows = -(-len(runs) // columns)
    with rc_context({"font.size": 8, "axes.edgecolor": INK, "text.color": INK}):
        size = (max(columns, 2) * PANEL[0], (rows + 1) * PANEL[1] + 0.4)
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        title = f"{policy}, {len(runs[0].simulation.sequences)} runs   ({LEGEND})"
        figure.suptitle(title, fontsize=8)
        grid = figure.add_gridspec(rows + 1, columns)
        for place, run in enumerate(runs):
            row, column = divmod(place, columns)
            panel = figure.add_subplot(grid[row, column])
            _delays(panel, run, _colour(place))
            _scale(panel, runs, longest)
            if column == 0:
                panel.set_ylabel("delay before the retry, s")
        _totals(figure.add_subplot(grid[rows, :]), runs)
        figure.savefig(path, format="png", metadata={"Software": None})


def _scale(panel: Any, runs: Sequence[Run], longest: float) -> None:
    """Set the same scale for all backoffs, with a margin above the longest delay."""
    most = max(len(run.retries) for run in runs)
    panel.set_ylim(0, longest * 1.06 or 1.0)
    panel.set_xlim(0.4, max(most, FEWEST_PLACES) + 0.6)


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _delays(panel: Any, run: Run, colour: str) -> None:
    """Draw a bar for each retry: all delays, p10 to p90, and the median."""
    _plain(panel)
    panel.set_title(_broken(run.backoff), fontsize=8, loc="left")
    numbers = [retry.number for retry in run.retries]
    spreads = [retry.delay for retry in run.retries]
    _bars(panel, numbers, [(each.least, each.most) for each in spreads], colour, 0.25)
    _bars(panel, numbers, [(each.tenth, each.ninetieth) for each in spreads], colour, 0.55)
    _middles(panel, numbers, spreads)
    panel.set_xlabel("retry")
    panel.xaxis.get_major_locator().set_params(integer=True)


def _bars(
    panel: Any, numbers: list[int], ends: list[tuple[float, float]], colour: str, alpha: float
) -> None:
    heights = [high - low for low, high in ends]
    panel.bar(numbers, heights, 0.7, [low for low, _ in ends], color=colour, alpha=alpha, lw=0)


def _middles(panel: Any, numbers: list[int], spreads: list[Quantiles]) -> None:
    left, right = ([number + side for number in numbers] for side in (-0.35, 0.35))
    panel.hlines([each.median for each in spreads], left, right, color=INK, linewidth=1.5)


def _totals(panel: Any, runs: Sequence[Run]) -> None:
    """Draw the cumulative share of runs over the total delay, for each backoff."""
    _plain(panel)
    for place, run in enumerate(runs):
        totals = run.simulation.totals
        shares = [(number + 1) / len(totals) for number in range(len(totals))]
        panel.step(
            (totals[0], *totals),
            (0.0, *shares),
            where="post",
            color=_colour(place),
            linewidth=1.5,
            label=run.backoff,
        )
    panel.set_xlabel("total delay, s")
    panel.set_ylabel("share of runs")
    panel.set_xlim(left=0)
    panel.set_ylim(0, 1.02)
    panel.legend(loc="best", frameon=False, fontsize=7)


def _plain(panel: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color=GRID, linewidth=0.6)
    panel.set_axisbelow(True)


def _broken(name: str) -> str:
    """The name, wrapped if it is long."""
    lines = [""]
    for part in name.split(","):
        if lines[-1] and len(lines[-1]) + len(part) > NAME_WIDTH:
            lines.append("")
        lines[-1] += f"{part},"
    return "\n".join(lines).removesuffix(",")
