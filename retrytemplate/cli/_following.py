"""A run that is followed in its journal: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol

from attrs import Factory, define, field

from retrytemplate.batch.errors import JobRepositoryError
from retrytemplate.cli._screen import Screen
from retrytemplate.cli._words import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from rich.console import RenderableType

    from retrytemplate.batch import RunStatus

__all__ = [
    "STYLES",
    "Bar",
    "JsonLines",
    "Pace",
    "PlainLines",
    "Teller",
    "followed",
    "named_parameters",
    "on_terminal",
    "suspicion",
]

WINDOW = 30.0
# Between plain lines, unless another tenth of the source is read.
SELDOM = 30.0
STYLES = {
    "completed": "green",
    "failed": "red",
    "died": "red",
    "stopped": "yellow",
    "abandoned": "yellow",
}
UNDER_WAY = "cyan"


class Teller(Protocol):
    """Who is told how a run stands, again and again."""

    def __call__(self, run: RunStatus) -> None: ...

    def notice(self, text: str) -> None:
        """Say something beside it; a signal handler may."""
        ...


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


@contextmanager
def followed(find: Callable[[], RunStatus | None], tell: Teller, interval: float) -> Iterator[None]:
    """Tell in a thread how the run stands, meanwhile."""
    over = threading.Event()

    def follow() -> None:
        while not over.wait(interval):
            try:
                run = find()
                if run is not None:
                    tell(run)
            except JobRepositoryError:  # the run itself will say so
                continue
            except OSError:  # the output is closed: nobody is left to be told
                return

    thread = threading.Thread(target=follow, name="retrytemplate-bar", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def on_terminal() -> bool:
    """Whether standard output is one that can draw."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


@define
class JsonLines:
    """A JSON object a line, where something has changed."""

    stream: TextIO = Factory(lambda: sys.stdout)
    _last: tuple[Any, ...] | None = None

    def __call__(self, run: RunStatus) -> None:
        seen = (run.run_id, run.state, run.updated)
        if seen != self._last:
            self._last = seen
            print(json.dumps(run.as_json()), file=self.stream, flush=True)

    def notice(self, text: str) -> None:
        """On standard error."""
        _notice(text)


@define
class PlainLines:
    """A line for each tenth of the source, and now and then."""

    screen: Screen = Factory(Screen)
    _tenth: int = 0
    _told: float | None = None

    def __call__(self, run: RunStatus) -> None:
        tenth = int(10 * (run.progress or 0))
        if self._told is None:
            self._told = run.now
        if tenth > self._tenth or run.now - self._told >= SELDOM:
            self._tenth, self._told = tenth, run.now
            self.screen.say(f"run {run.run_id}: {', '.join(_parts(run))}")
            self.screen.console.file.flush()

    def notice(self, text: str) -> None:
        """On standard error."""
        _notice(text)


def _notice(text: str) -> None:
    os.write(2, f"{text}\n".encode())


def _parts(run: RunStatus) -> Iterator[str]:
    counts = run.counts
    if run.progress is not None:
        yield f"{run.progress:.0%}"
    yield from (f"{counts.read} read", f"{counts.written} written")
    for number, word in ((counts.filtered, "filtered"), (counts.dead, "dead-lettered")):
        if number:
            yield f"{number} {word}"
    if counts.retries:
        yield f"{counts.retries} retries"
    if run.careful:
        yield suspicion(run)


def suspicion(run: RunStatus) -> str:
    """What is known of the items that may have killed a process."""
    if run.suspects is None:
        return "careful: the items of a chunk are suspects"
    alone = "" if run.alone is None else f", item {run.alone} of the chunk alone"
    return f"careful: {run.suspects} suspects{alone}"


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


def named_parameters(run: RunStatus) -> Iterator[str]:
    """The run's parameters as one would type them."""
    for name, value in run.parameters.items():
        yield f"{name}={value if isinstance(value, str) else json.dumps(value)}"
