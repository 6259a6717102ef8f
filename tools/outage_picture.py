"""Draw how a thousand clients come back from an outage, with each kind of jitter.

python tools/outage_picture.py            # write docs/images/outage.svg
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from attrs import frozen
from matplotlib import rc_context
from matplotlib.figure import Figure

from retrytemplate import ExponentialBackoff, SimpleRetryPolicy
from retrytemplate.backoff.exponential import JITTERS
from retrytemplate.simulation import simulate

if TYPE_CHECKING:
    from os import PathLike

    from retrytemplate.backoff.exponential import Jitter

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "outage.svg"
CLIENTS, OUTAGE, CAP = 1000, 20.0, 10.0
# More than anybody needs who waits until the outage is over.
RETRIES = 40
LATE = 8
BINS_A_SECOND = 10
INK, GRID, CALM, LOUD = "#333333", "#dddddd", "#0072b2", "#d55e00"


@frozen(eq=False)
class Crowd:
    """What the clients do, who all fail in the moment when the outage begins.

    :param bins: calls in each tenth of a second from then on.
    :param at_cap: the share of the waits before a late retry that are exactly the cap.
    """

    jitter: Jitter | None
    bins: Counter[int]
    at_cap: float

    @property
    def during(self) -> int:
        """Calls while it lasts."""
        return sum(calls for place, calls in self.bins.items() if place < OUTAGE * BINS_A_SECOND)

    @property
    def peak(self) -> int:
        """The most calls in a tenth of a second, once it is over."""
        return max(calls for place, calls in self.bins.items() if place >= OUTAGE * BINS_A_SECOND)


@cache
def crowd(jitter: Jitter | None) -> Crowd:
    """Each client calls until its first call after the outage."""
    backoff = ExponentialBackoff(initial=0.5, maximum=CAP, jitter=jitter)
    simulated = simulate(SimpleRetryPolicy(RETRIES), backoff, CLIENTS, Random(1))
    bins = Counter[int]()
    for run in simulated.sequences:
        for at in accumulate(run):
            bins[int(at * BINS_A_SECOND)] += 1
            if at >= OUTAGE:
                break
    late = simulated.before_retry(LATE)
    return Crowd(jitter, bins, late.count(CAP) / len(late))


def draw(path: str | PathLike[str]) -> None:
    """Write the picture; the same bytes every time."""
    crowds = [crowd(jitter) for jitter in JITTERS]
    with rc_context(
        {"font.size": 9, "svg.hashsalt": "outage", "svg.fonttype": "none", "text.color": INK}
    ):
        figure = Figure(figsize=(8.4, 7.4), layout="constrained")
        panels = figure.subplots(len(crowds), sharex=True, sharey=True)
        for panel, each in zip(panels, crowds, strict=True):
            _panel(panel, each)
        panels[0].text(11.5, 30, "the outage", ha="center", va="center")
        panels[-1].set_xlabel("seconds since the outage began")
        figure.supylabel("calls in 100 ms (logarithmic)", fontsize=9)
        figure.suptitle(f"{CLIENTS} clients, an outage of {OUTAGE:g} s, delays up to {CAP:g} s")
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _panel(panel: Any, crowd: Crowd) -> None:
    ends = int((OUTAGE + CAP) * BINS_A_SECOND)
    heights = [crowd.bins[place] for place in range(ends)]
    edges = [place / BINS_A_SECOND for place in range(ends + 1)]
    panel.axvspan(0, OUTAGE, color=GRID, lw=0)
    panel.stairs(heights, edges, fill=True, color=LOUD if crowd.jitter is None else CALM)
    panel.set_yscale("log", subs=())
    panel.yaxis.set_major_formatter("{x:g}")
    panel.set_ylim(0.8, 2 * CLIENTS)
    panel.set_xlim(0, OUTAGE + CAP)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_title(f"jitter={crowd.jitter!r}", loc="left", fontsize=9)
    panel.set_title(f"at most {crowd.peak} calls in 100 ms after it", loc="right", fontsize=9)


if __name__ == "__main__":
    draw(IMAGE)
    for each in map(crowd, JITTERS):
        print(f"{each.jitter}: {each.peak=} {each.during=} {each.at_cap=:.0%}")
