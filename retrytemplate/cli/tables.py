"""Output that several verbs share: tables that fit the terminal, facts, attempts."""

from __future__ import annotations

import os
import sys
from operator import methodcaller
from shlex import quote
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attrs import frozen

from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.formatting import format_moment, with_text
from retrytemplate.cli.errors import console, print_json
from retrytemplate.cli.formatting import clean, truncate_end, truncate_middle

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import JustifyMethod, OverflowMethod

    from retrytemplate.errors import RecordedFailure
    from retrytemplate.history import AttemptRecord

T = TypeVar("T")

COLUMN_GAP = 2
# Cells of a truncated column, and of all columns if the output is no terminal.
MIN_WIDTH = 12
PIPE_WIDTH = 240
LABEL_WIDTH = 14


class Screen:
    """Standard output, through rich (the ``cli`` extra)."""

    def __init__(self) -> None:
        self.console = console("the text (there is --json, too)")
        if not self.console.is_terminal and "COLUMNS" not in os.environ:
            self.console.width = PIPE_WIDTH
        self.mark = "…" if self.console.encoding.startswith("utf") else ".."

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line without wrapping it."""
        self.console.print(self.clean(text), style=style, soft_wrap=True)

    def clean(self, text: str) -> str:
        """The text without terminal control characters."""
        return clean(text, self.console.encoding)

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Print a line for each fact, after its label."""
        for label, text in facts:
            self.say(f"{label:<{LABEL_WIDTH}}{text}")

    def attempts(self, history: Sequence[AttemptRecord]) -> None:
        """Print each failed attempt, and the numbers of those that are not kept."""
        numbers = [attempt.number for attempt in history]
        for attempt, before in zip(history, [0, *numbers], strict=False):
            if attempt.number > before + 1:
                self.say("")
                self.say(_missing_attempts(before + 1, attempt.number - 1), style="dim")
            self.say("")
            self._attempt(attempt)

    def table(
        self,
        heads: Sequence[str],
        rows: Iterable[Iterable[str]],
        styles: Iterable[str | None],
        *,
        numbers: Sequence[str],
        name: int = 0,
    ) -> None:
        """Print a line for each row, none wider than the terminal.

        :param numbers: the heads of the columns that are aligned to the right.
        :param name: the column whose texts keep both ends when they are cut; in the last one they
            keep the beginning.
        """
        from rich import box
        from rich.table import Table

        cells = [[self.clean(text) for text in row] for row in rows]
        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, COLUMN_GAP - 1, 0, 0)
        )
        beyond: OverflowMethod = "ellipsis" if self.console.encoding.startswith("utf") else "crop"
        for head in heads:
            side: JustifyMethod = "right" if head in numbers else "left"
            table.add_column(head, justify=side, no_wrap=True, overflow=beyond)
        name_width, last_width = self._widths(heads, cells, name)
        for row, style in zip(cells, styles, strict=True):
            row[name] = truncate_middle(row[name], name_width, self.mark)
            row[-1] = truncate_end(row[-1], last_width, self.mark)
            table.add_row(*row, style=style)
        self.console.print(table)

    def _widths(
        self, heads: Sequence[str], rows: Sequence[Sequence[str]], name: int
    ) -> tuple[int, int]:
        """The widths of the name and of the last column: the rest of the line, shared."""
        from rich.cells import cell_len

        wanted = [
            max(cell_len(head), *(cell_len(row[place]) for row in rows))
            for place, head in enumerate(heads)
        ]
        last = wanted.pop()
        wide = wanted.pop(name)
        gaps = COLUMN_GAP * (len(heads) - 1)
        free = max(self.console.width - sum(wanted) - gaps, 2 * MIN_WIDTH)
        wide = min(wide, max(free - last, free * 3 // 5))
        return wide, min(last, free - wide)

    def _attempt(self, attempt: AttemptRecord) -> None:
        took = "" if attempt.duration is None else f", took {attempt.duration:.3f} s"
        ended = "" if attempt.ended is None else f", ended {format_moment(attempt.ended)}"
        place = f" on host {attempt.host}, process {attempt.process}" if attempt.host else ""
        self.say(f"attempt {attempt.number}{ended}{took}{place}", style="bold")
        text = attempt.traceback or with_text(attempt.type_name, attempt.message)
        for line in text.expandtabs().splitlines():
            self.say(f"  {line}")


@frozen(kw_only=True)
class Listing(Generic[T]):
    """Format of a page of items: as a table, or as JSON.

    :param items: their name in the JSON.
    :param numbers: the heads of the columns that are aligned to the right.
    :param cursor: what ``option`` takes to begin after an item.
    :param name: the column whose texts keep both ends when they are cut.
    :param empty: the line for a page without items.
    :param note: a line below the table.
    """

    items: str
    heads: Sequence[str]
    numbers: Sequence[str]
    cells: Callable[[T], Iterable[str]]
    style: Callable[[T], str | None]
    as_json: Callable[[T], Any] = methodcaller("as_json")
    cursor: Callable[[T], Any]
    option: str = "--after"
    name: str = ""
    empty: str
    note: Callable[[Sequence[T]], str] = lambda page: ""

    def print(
        self, args: Namespace, found: Sequence[T], count: Callable[[], int] | None = None
    ) -> None:
        """Print at most ``--limit`` of the items that were found, and how to see the next.

        :param count: the number of all items.
        """
        page, more = found[: args.limit], len(found) > args.limit
        if args.json:
            after = self.cursor(page[-1]) if more else None
            print_json({self.items: [self.as_json(each) for each in page], "next": after})
            return
        rest = f"{len(page)} of {count()} {self.items}; more" if count else "There are more"
        self.draw(Screen(), page, rest if more else None)

    def draw(self, screen: Screen, page: Sequence[T], more: str | None = None) -> None:
        """Draw a page."""
        if not page:
            screen.say(self.empty)
            return
        rows, styles = map(self.cells, page), map(self.style, page)
        name = self.heads.index(self.name) if self.name else 0
        screen.table(self.heads, rows, styles, numbers=self.numbers, name=name)
        if note := self.note(page):
            screen.say(note)
        if more:
            screen.say(f"{more}: {self.option} {quote(str(self.cursor(page[-1])))}")


def print_item(
    args: Namespace,
    item: Any,
    title: str,
    facts: Iterable[tuple[str, str]],
    history: Sequence[AttemptRecord] = (),
) -> None:
    """Print all that is known of an item: as JSON, or as a title, facts and attempts."""
    if args.json:
        print_json(item.as_json())
        return
    screen = Screen()
    screen.say(title, style="bold")
    screen.facts(facts)
    screen.attempts(history)


def print_result(args: Namespace, value: Any, text: str) -> None:
    """Print the result of a command: with ``--json`` the value, else the text."""
    if args.json:
        print_json(value)
    else:
        print(text)


def on_terminal() -> bool:
    """Whether standard output is a terminal that can redraw lines."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def one_line(failure: RecordedFailure | None) -> str:
    """A failure in one line, without the module of its class."""
    return "" if failure is None else summary(failure)


def _missing_attempts(first: int, last: int) -> str:
    if first == last:
        return f"(attempt {first} is not kept)"
    return f"(attempts {first} to {last} are not kept)"
