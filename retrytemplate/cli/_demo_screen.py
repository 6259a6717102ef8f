"""What ``retrytemplate demo`` shows: the bar while it runs, the tables at the end."""

from __future__ import annotations

import os
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING, Any

from retrytemplate.cli._signals import say
from retrytemplate.cli.usage import console
from retrytemplate.demo.job import AT_ONCE, CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from retrytemplate.demo import Job, Report, Tally

__all__ = ["ANSWERS", "Screen"]

ANSWERS = {
    "priced": "a price (200)",
    "unavailable": "not now (503)",
    "reset": "connection reset",
    "slow": "too slow",
    "refused": "refused (4xx)",
}
"""The kinds of answers, as the service names them, and for people."""

LONGEST_BAR = 36


class Screen:
    """Standard output, through rich (the ``cli`` extra)."""

    def __init__(self) -> None:
        self.console = console("the progress bar (without --json)")
        self._notice: str | None = None  # drawn in the bar, if there is one

    @contextmanager
    def watching(self, job: Job) -> Iterator[Callable[[Tally], None]]:
        """What to tell of every line: a live bar in a terminal, lines elsewhere."""
        where = f"{job.service.host}:{job.service.port}"
        self._say(f"Pricing {job.tally.total} lines at {where}, seed {job.service.seed}")
        if self.console.file.isatty() and os.environ.get("TERM") != "dumb":
            with self._bar(job.tally.total) as watch:
                yield watch
        else:
            yield self._plain_lines()

    def notice(self, text: str) -> None:
        """Show a line beside the progress; a signal handler may."""
        if self._notice is None:
            say(text)
        else:
            self._notice = text

    def show(self, job: Job, report: Report) -> None:
        """Print the figures, and the command to continue with."""
        for table in (_lines(report), self._attempts(report), _answers(report)):
            self.console.print(table)
        self._say(f"Database: {job.database}")
        verb = "dlq list" if report.dead else "batch status"
        store = job.repository.engine.url.set(drivername="sqlite")
        self._say(f"Next: retrytemplate {verb} --store {quote(str(store))}")

    @contextmanager
    def _bar(self, total: int) -> Iterator[Callable[[Tally], None]]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        columns = (
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("[green]{task.fields[written]:>4} written"),
            TextColumn("[yellow]{task.fields[failures]:>3} failures"),
            TextColumn("[red]{task.fields[dead]:>2} dead"),
            Elapsed(),
            TextColumn("[yellow]{task.fields[notice]}"),
        )
        self._notice = ""
        with Progress(*columns, console=self.console, expand=True) as progress:
            task = progress.add_task("", total=total, written=0, failures=0, dead=0, notice="")

            def watch(tally: Tally) -> None:
                now: dict[str, Any] = {"failures": tally.failures, "dead": tally.dead}
                now["notice"] = self._notice
                progress.update(task, completed=tally.over, written=tally.written, **now)

            yield watch

    def _plain_lines(self) -> Callable[[Tally], None]:
        told = 0

        def watch(tally: Tally) -> None:
            nonlocal told
            tenth = 10 * tally.over // max(1, tally.total)
            if tenth > told:
                told = tenth
                self._say(
                    f"{tally.over:>6} of {tally.total}: {tally.written} written, "
                    f"{tally.failures} failed attempts, {tally.dead} dead-lettered"
                )
                self.console.file.flush()

        return watch

    def _attempts(self, report: Report) -> Table:
        block = "█" if self.console.encoding.startswith("utf") else "#"
        most = max(report.attempts.values(), default=1)
        table = _table("attempts of a line", ("lines", "right"), ("", "left"))
        for made, lines in report.attempts.items():
            table.add_row(f"{made}", f"{lines}", block * -(-LONGEST_BAR * lines // most))
        return table

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)


def _lines(report: Report) -> Table:
    table = _table("lines", ("", "right"), ("", "left"))
    table.add_row("read", f"{report.read}", f"of the file, in {report.seconds:.1f} s")
    written = f"with a price, in transactions of {CHUNK} lines"
    table.add_row("written", f"{report.written}", written, style="green")
    table.add_row("dead-lettered", f"{report.dead}", _reasons(report), style="red")
    retried = f"failed at least once: {report.retries} further attempts"
    table.add_row("retried", f"{report.retried}", retried, style="yellow")
    waited = f"between attempts, summed over {AT_ONCE} concurrent lines"
    table.add_row("time waited", f"{report.waited:.1f} s", waited)
    return table


def _reasons(report: Report) -> str:
    width = len(str(max(report.dead_by_error.values(), default=0)))
    reasons = "\n".join(
        f"{lines:>{width}} {name.rpartition('.')[2]}"
        for name, lines in report.dead_by_error.items()
    )
    return f"without a price, by the last error:\n{reasons}" if reasons else "without a price"


def _answers(report: Report) -> Table:
    table = _table("responses", ("service sent", "right"), ("client saw", "right"))
    for kind, name in ANSWERS.items():
        sent, seen = report.sent.get(kind, 0), report.seen.get(kind, 0)
        table.add_row(name, f"{sent}", f"{seen}", style=None if sent == seen else "bold red")
    return table


def _table(first: str, *others: tuple[str, str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, min_width=16)
    for header, justify in others:
        table.add_column(header, justify="right" if justify == "right" else "left")
    return table
