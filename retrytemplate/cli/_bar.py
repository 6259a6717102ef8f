"""How a run stands, drawn in place: a bar with the counts below it."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate.cli._run_words import STYLES, UNDER_WAY, named_parameters, suspicion
from retrytemplate.cli._screen import Screen
from retrytemplate.cli._words import clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from retrytemplate.batch import RunStatus

__all__ = ["Bar", "Pace"]

WINDOW = 30.0


@define
class Pace:
    """How fast a run goes lately, by what was seen of it.

    :param window: seconds that are looked back.
    """

    window: float = WINDOW
    _seen: deque[tuple[float, int]] = field(init=False, factory=deque)

    def see(self, run: RunStatus) -> float | None:
        """Items a second, this sight of the run included."""
        seen = self._seen
        if not seen or seen[-1][1] != run.counts.done:
            seen.append((run.updated, run.counts.done))
        while len(seen) > 2 and seen[1][0] < run.now - self.window:
            seen.popleft()
        (begun, before), (last, done) = seen[0], seen[-1]
        # Where nothing has come for longer than that, it is slower than it was.
        took = max(last - begun, run.now - last)
        return (done - before) / took if done > before and took > 0 else run.rate


class Bar:
    """A bar with the counts below it, redrawn in place.

    >>> Bar.plural(1, "retry", "retries"), Bar.plural(1200, "retry", "retries")
    ('1 retry', '1,200 retries')
    """

    def __init__(self, screen: Screen | None = None) -> None:
        self.screen = screen or Screen()
        self._pace = Pace()
        self._notice = ""
        self._live: Any = None

    @contextmanager
    def shown(self) -> Iterator[Bar]:
        """While it is on the screen; what is printed meanwhile goes above it."""
        from rich.live import Live

        with Live(console=self.screen.console, auto_refresh=False) as live:
            self._live = live
            yield self

    def __call__(self, run: RunStatus) -> None:
        self._live.update(self.drawn(run), refresh=True)

    def notice(self, text: str) -> None:
        """Below the counts, from the next time on."""
        self._notice = text

    def drawn(self, run: RunStatus) -> RenderableType:
        """The bar of this moment."""
        from rich.console import Group

        rate = self._pace.see(run) if not run.over else run.rate
        lines = [self._head(run), self._line(run, rate), self._counts(run), self._troubles(run)]
        if run.careful:
            lines.append(self._text((suspicion(run), "bold yellow")))
        if self._notice and not run.over:
            lines.append(self._text((self._notice, "yellow")))
        return Group(*lines)

    def _head(self, run: RunStatus) -> RenderableType:
        told = " ".join((f"run {run.run_id} of {run.step}", *named_parameters(run)))
        return self._text((told, "bold"), (run.state, STYLES.get(run.state, UNDER_WAY)))

    def _line(self, run: RunStatus, rate: float | None) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        known = run.progress is not None or run.over
        share = 1.0 if run.state == "completed" else run.progress or 0.0
        style = STYLES.get(run.state, UNDER_WAY)
        bar = ProgressBar(
            1.0 if known else None,
            share,
            pulse=not known,
            complete_style=style,
            finished_style=style,
            pulse_style=style,
        )
        left = run.remaining(rate)
        grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
        grid.add_column(ratio=1)
        for _ in range(3):
            grid.add_column(justify="right", no_wrap=True)
        grid.add_row(
            bar,
            f"{share:.0%}" if known else "",
            "" if rate is None else f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s",
            "" if left is None else f"{clock(ceil(left))} left",
        )
        return grid

    def _counts(self, run: RunStatus) -> RenderableType:
        counts = run.counts
        return self._text(
            (f"{counts.read:,} read", ""),
            (f"{counts.written:,} written", "green"),
            (f"{counts.filtered:,} filtered", ""),
            (f"{counts.dead:,} dead", "red" if counts.dead else ""),
            (f"{run.pending:,} pending", ""),
        )

    def _troubles(self, run: RunStatus) -> RenderableType:
        counts = run.counts
        return self._text(
            (self.plural(counts.retries, "retry", "retries"), "yellow" if counts.retries else ""),
            (f"{counts.skipped:,} skipped", "red" if counts.skipped else ""),
            (self.plural(counts.rollbacks, "rollback", "rollbacks"), ""),
            (self.plural(counts.deaths, "death", "deaths"), "red" if counts.deaths else ""),
        )

    @staticmethod
    def plural(number: int, one: str, several: str) -> str:
        """So many of them."""
        return f"{number:,} {one if number == 1 else several}"

    def _text(self, *parts: tuple[str, str]) -> RenderableType:
        from rich.text import Text

        line = Text()
        for number, (text, style) in enumerate(parts):
            line.append("   " if number and text.strip() else "")
            line.append(self.screen.clean(text), style)
        return line
