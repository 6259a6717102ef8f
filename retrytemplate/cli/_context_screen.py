"""What ``retrytemplate context`` shows: the table of the keys, and the text of one."""

from __future__ import annotations

import json
import os
from shlex import quote
from typing import TYPE_CHECKING, Any

from retrytemplate.cli._words import ago, clean, cut, fitted, moment, span
from retrytemplate.cli.usage import console

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from retrytemplate.errors import RecordedFailure
    from retrytemplate.history import AttemptRecord
    from retrytemplate.stores.entries import Entry

__all__ = ["Screen"]

HEADS = ("key", "phase", "failed", "age/lease", "last failure")
NUMBERS = ("failed", "age/lease")
GAP = 2
# Cells of a column that is cut, and of all columns where no terminal ends the line.
NARROWEST = 12
ENDLESS = 240
STYLES = {"held": "yellow", "lost": "red", "recovering": "red", "done": "green"}
LABEL = 14


class Screen:
    """Standard output, through rich (the ``cli`` extra)."""

    def __init__(self) -> None:
        self.console = console("the text (there is --json, too)")
        if not self.console.is_terminal and "COLUMNS" not in os.environ:
            self.console.width = ENDLESS
        self.mark = "…" if self.console.encoding.startswith("utf") else ".."

    def list(self, page: Sequence[Entry], *, more: bool) -> None:
        """A line for each entry, and what comes next."""
        if not page:
            self._say("No such key is kept.")
            return
        self.console.print(self._table(page))
        if more:
            self._say(f"There are more: --after {quote(page[-1].key)}")

    def show(self, entry: Entry) -> None:
        """All that is kept under a key."""
        self._say(entry.key, style="bold")
        for label, text in _facts(entry):
            self._say(f"{label:<{LABEL}}{text}")
        numbers = [attempt.number for attempt in entry.record.history]
        for attempt, before in zip(entry.record.history, [0, *numbers], strict=False):
            if attempt.number > before + 1:
                self._say("")
                self._say(_gap(before + 1, attempt.number - 1), style="dim")
            self._say("")
            self._attempt(attempt)

    def _table(self, page: Sequence[Entry]) -> Table:
        from rich import box
        from rich.table import Table

        rows = [[self._clean(text) for text in _cells(entry)] for entry in page]
        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0)
        )
        for head in HEADS:
            table.add_column(head, justify="right" if head in NUMBERS else "left", no_wrap=True)
        key, failure = self._widths(rows)
        for entry, row in zip(page, rows, strict=True):
            row[0], row[-1] = fitted(row[0], key, self.mark), cut(row[-1], failure, self.mark)
            table.add_row(*row, style=_style(entry))
        return table

    def _widths(self, rows: Sequence[Sequence[str]]) -> tuple[int, int]:
        """The cells for the key and for the last failure: what the others leave, shared."""
        from rich.cells import cell_len

        wanted = [
            max(cell_len(head), *(cell_len(row[place]) for row in rows))
            for place, head in enumerate(HEADS)
        ]
        key, *others, failure = wanted
        gaps = GAP * (len(HEADS) - 1)
        free = max(self.console.width - sum(others) - gaps, 2 * NARROWEST)
        key = min(key, max(free - failure, free * 3 // 5))
        return key, min(failure, free - key)

    def _attempt(self, attempt: AttemptRecord) -> None:
        took = "" if attempt.duration is None else f", took {attempt.duration:.3f} s"
        ended = "" if attempt.ended is None else f", ended {moment(attempt.ended)}"
        place = f", {attempt.host} process {attempt.process}" if attempt.host else ""
        self._say(f"attempt {attempt.number}{ended}{took}{place}", style="bold")
        told = attempt.traceback or _named(attempt.type_name, attempt.message)
        for line in told.expandtabs().splitlines():
            self._say(f"  {line}")

    def _clean(self, text: str) -> str:
        return clean(text, self.console.encoding)

    def _say(self, text: str, style: str | None = None) -> None:
        self.console.print(self._clean(text), style=style, soft_wrap=True)


def _cells(entry: Entry) -> Iterator[str]:
    yield entry.key
    yield _state(entry)
    yield str(entry.record.failures)
    yield _age_or_lease(entry)
    yield entry.problem or _shortly(entry.record.last)


def _shortly(failure: RecordedFailure | None) -> str:
    if failure is None:
        return ""
    return _named(failure.type_name.rpartition(".")[2], failure.message)


def _state(entry: Entry) -> str:
    return "lost" if entry.lost else entry.phase


def _style(entry: Entry) -> str | None:
    return STYLES.get("held" if entry.held else _state(entry))


def _age_or_lease(entry: Entry) -> str:
    if entry.held and entry.lease_until is not None:
        return f"{span(entry.lease_until - entry.now)} left"
    return "" if entry.written is None else span(entry.now - entry.written)


def _facts(entry: Entry) -> Iterator[tuple[str, str]]:
    """What is said of a key before its attempts."""
    record, now = entry.record, entry.now
    yield "phase", _phase(entry)
    if entry.worker is not None and entry.lease_until is not None:
        until = f"{moment(entry.lease_until)}, {ago(now - entry.lease_until)}"
        yield ("held by" if entry.held else "was held by"), f"{entry.worker}, until {until}"
    if entry.problem is not None:
        yield "record", entry.problem
    most = "" if record.max_attempts is None else f", at most {record.max_attempts}"
    if record.attempts:
        yield "failed", f"{record.failures} of {record.attempts} attempts{most}"
    if record.last is not None:
        yield "last failure", _failure(record.last)
    for label, when in (
        ("written", entry.written),
        ("not before", record.not_before),
        ("forgotten", entry.expires),
    ):
        if when is not None:
            yield label, f"{moment(when)}, {ago(now - when)}"
    for label, value in (
        ("label", record.name),
        ("attributes", record.attributes),
        ("policy state", record.policy_state),
        ("backoff state", record.backoff_state),
    ):
        if value is not None:
            yield label, value if isinstance(value, str) else _json(value)
    yield "fence", str(entry.fence)


def _phase(entry: Entry) -> str:
    record = entry.record
    if entry.lost:
        return "attempting, lost: the worker did not report before its lease was over"
    if entry.phase == "idle" and (not record.verdict or record.gave_up):
        return "idle, no attempt left: the next delivery recovers"
    return entry.phase


def _failure(failure: RecordedFailure | None) -> str:
    told = []
    while failure is not None:
        told.append(_named(failure.type_name, failure.message))
        failure = failure.cause
    return ", from ".join(told)


def _named(type_name: str, message: str) -> str:
    return f"{type_name}: {message}" if message else type_name


def _gap(first: int, last: int) -> str:
    if first == last:
        return f"(attempt {first} is not kept)"
    return f"(attempts {first} to {last} are not kept)"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
