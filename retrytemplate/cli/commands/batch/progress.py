"""Progress of a step while it runs."""

from __future__ import annotations

import json
import sys
from collections import deque
from contextlib import contextmanager, suppress
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol

from attrs import Factory, define, field

from retrytemplate._internal.formatting import format_moment
from retrytemplate._internal.threads import repeated
from retrytemplate.batch.errors import JobRepositoryError
from retrytemplate.caches.worker_id import worker_name
from retrytemplate.cli import user_files
from retrytemplate.cli.errors import CommandFailed
from retrytemplate.cli.formatting import (
    RUNNING_STYLE,
    STYLES,
    describe_suspects,
    format_clock,
    format_count,
    named_parameters,
)
from retrytemplate.cli.signals import print_stderr, stopped_by_signals
from retrytemplate.cli.tables import Screen, on_terminal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import TextIO

    from rich.console import RenderableType

    from retrytemplate.batch import ChunkStep, RunStatus

# Largest number of concurrent runs of a step that are searched.
MAX_RUNS = 10_000


def run_job(args: argparse.Namespace) -> RunStatus:
    """Run the step that the arguments name; the final state of its run."""
    parameters = user_files.parse_parameters(args.parameter)
    output = sys.stdout
    with user_files.open_step(args) as step:
        try:
            with open_reporter(PlainReporter, args.json, output) as reporter:
                return _run_reported(step, parameters, args, reporter)
        except JobRepositoryError as error:
            raise CommandFailed(str(error)) from None


@contextmanager
def open_reporter(
    plain: Callable[[], ProgressReporter], as_json: bool, output: Any
) -> Iterator[ProgressReporter]:
    """A reporter for *output*: JSON, a bar on a terminal, or *plain* elsewhere."""
    if as_json:
        yield JsonReporter(output)
    elif on_terminal():
        with BarReporter().display() as bar:
            yield bar
    else:
        yield plain()


def _run_reported(
    step: ChunkStep,
    parameters: dict[str, Any],
    args: argparse.Namespace,
    reporter: ProgressReporter,
) -> RunStatus:
    from retrytemplate.batch import Runs

    runs, here = Runs(step.repository), _process(worker_name())

    def find_own_run() -> RunStatus | None:
        """The run of this step in this process."""
        running = runs.page(step=step.name, status="running", limit=MAX_RUNS)
        return next((run for run in running if _process(run.worker or "") == here), None)

    with (
        stopped_by_signals(step.stop, reporter.notice),
        polled(find_own_run, reporter, args.interval),
    ):
        report = user_files.run_step(
            step,
            lambda: step.run(parameters, args.on_existing),
            lambda: step.run_async(parameters, args.on_existing),
            asynchronous=args.asynchronous,
        )
    run = runs.find(report.run_id)
    if run is None:
        raise CommandFailed(f"run {report.run_id} is no longer in the journal")
    reporter(run)
    if report.already_completed and run.ended is not None:
        reporter.notice(
            f"run {run.run_id} was completed at {format_moment(run.ended)}; to run it again: "
            "--on-existing restart"
        )
    return run


def _process(worker: str) -> str:
    """The part of a worker's name that all workers of its process share."""
    return worker.rpartition("-")[0]


# Seconds between plain lines, unless another tenth of the source is read.
PLAIN_INTERVAL = 30.0


class ProgressReporter(Protocol):
    """Receives the state of a run repeatedly."""

    def __call__(self, run: RunStatus) -> None: ...

    def notice(self, text: str) -> None:
        """Show a line of text; safe in a signal handler."""
        ...


def polled(
    find: Callable[[], RunStatus | None], reporter: ProgressReporter, interval: float
) -> AbstractContextManager[None]:
    """Report the state of the run from a thread, during the block."""

    def report() -> None:
        # The run reports its own errors; the output may be closed.
        with suppress(JobRepositoryError, OSError):
            run = find()
            if run is not None:
                reporter(run)

    return repeated("retrytemplate-bar", report, interval)


@define
class JsonReporter:
    """Prints a line of JSON for each change."""

    stream: TextIO = Factory(lambda: sys.stdout)
    _last: tuple[Any, ...] | None = None

    def __call__(self, run: RunStatus) -> None:
        seen = (run.run_id, run.state, run.updated)
        if seen != self._last:
            self._last = seen
            print(json.dumps(run.as_json()), file=self.stream, flush=True)

    notice = staticmethod(print_stderr)


@define
class PlainReporter:
    """Prints a line for each tenth of the source, or after ``PLAIN_INTERVAL``."""

    screen: Screen = Factory(Screen)
    _tenth: int = 0
    _last_shown: float | None = None

    def __call__(self, run: RunStatus) -> None:
        tenth = int(10 * (run.progress or 0))
        if self._last_shown is None:
            self._last_shown = run.now
        if tenth > self._tenth or run.now - self._last_shown >= PLAIN_INTERVAL:
            self._tenth, self._last_shown = tenth, run.now
            self.screen.say(f"run {run.run_id}: {', '.join(_progress_parts(run))}")
            self.screen.console.file.flush()

    notice = staticmethod(print_stderr)


def _progress_parts(run: RunStatus) -> Iterator[str]:
    counts = run.counts
    if run.progress is not None:
        yield f"{run.progress:.0%}"
    yield from (f"{counts.read} read", f"{counts.written} written")
    for number, word in ((counts.filtered, "filtered"), (counts.dead_lettered, "dead-lettered")):
        if number:
            yield f"{number} {word}"
    if counts.retries:
        yield f"{counts.retries} retries"
    if run.isolating:
        yield describe_suspects(run)


RATE_WINDOW = 30.0


@define
class Throughput:
    """The recent throughput of a run, from its observed states.

    :param window: seconds over which it is measured.
    """

    window: float = RATE_WINDOW
    _seen: deque[tuple[float, int]] = field(init=False, factory=deque)

    def update(self, run: RunStatus) -> float | None:
        """Items per second, including this state of the run."""
        seen = self._seen
        if not seen or seen[-1][1] != run.counts.done:
            seen.append((run.updated, run.counts.done))
        while len(seen) > 2 and seen[1][0] < run.now - self.window:
            seen.popleft()
        (begun, before), (last, done) = seen[0], seen[-1]
        # A pause longer than the last interval lowers the rate.
        took = max(last - begun, run.now - last)
        return (done - before) / took if done > before and took > 0 else run.rate


class BarReporter:
    """A bar with the counts below it, redrawn in place."""

    def __init__(self, screen: Screen | None = None) -> None:
        self.screen = screen or Screen()
        self._throughput = Throughput()
        self._notice = ""
        self._live: Any = None

    @contextmanager
    def display(self) -> Iterator[BarReporter]:
        """Show the bar during the block; other output is printed above it."""
        from rich.live import Live

        with Live(console=self.screen.console, auto_refresh=False) as live:
            self._live = live
            yield self

    def __call__(self, run: RunStatus) -> None:
        self._live.update(self.render(run), refresh=True)

    def notice(self, text: str) -> None:
        """Show a line below the counts, from the next update on."""
        self._notice = text

    def render(self, run: RunStatus) -> RenderableType:
        """The bar for the present state."""
        from rich.console import Group

        rate = self._throughput.update(run) if not run.over else run.rate
        lines = [
            self._head(run),
            self._line(run, rate),
            self._counts(run),
            self._problem_counts(run),
        ]
        if run.isolating:
            lines.append(self._text((describe_suspects(run), "bold yellow")))
        if self._notice and not run.over:
            lines.append(self._text((self._notice, "yellow")))
        return Group(*lines)

    def _head(self, run: RunStatus) -> RenderableType:
        title = " ".join((f"run {run.run_id} of {run.step}", *named_parameters(run)))
        return self._text((title, "bold"), (run.state, STYLES.get(run.state, RUNNING_STYLE)))

    def _line(self, run: RunStatus, rate: float | None) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        known = run.progress is not None or run.over
        share = 1.0 if run.state == "completed" else run.progress or 0.0
        style = STYLES.get(run.state, RUNNING_STYLE)
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
            "" if left is None else f"{format_clock(ceil(left))} left",
        )
        return grid

    def _counts(self, run: RunStatus) -> RenderableType:
        counts = run.counts
        return self._text(
            (f"{counts.read:,} read", ""),
            (f"{counts.written:,} written", "green"),
            (f"{counts.filtered:,} filtered", ""),
            (f"{counts.dead_lettered:,} dead-lettered", "red" if counts.dead_lettered else ""),
            (f"{run.pending:,} pending", ""),
        )

    def _problem_counts(self, run: RunStatus) -> RenderableType:
        counts = run.counts
        return self._text(
            (format_count(counts.retries, "retry", "retries"), "yellow" if counts.retries else ""),
            (f"{counts.skipped:,} skipped", "red" if counts.skipped else ""),
            (format_count(counts.rollbacks, "rollback"), ""),
            (format_count(counts.crashes, "crash", "crashes"), "red" if counts.crashes else ""),
        )

    def _text(self, *parts: tuple[str, str]) -> RenderableType:
        from rich.text import Text

        line = Text()
        for number, (text, style) in enumerate(parts):
            line.append("   " if number and text.strip() else "")
            line.append(self.screen.clean(text), style)
        return line
