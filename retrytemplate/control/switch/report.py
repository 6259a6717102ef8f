"""The stopped scopes: a snapshot for programs, a report for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from retrytemplate._internal.formatting import format_moment, format_span

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate.control.switch.model import SwitchEntry


@frozen(kw_only=True)
class SwitchSnapshot:
    """The state of a switch that this process knows.

    :param version: of the known state; None: no state is known.
    :param entries: the stopped scopes.
    :param age: seconds since the store was read; None: it has never answered.
    :param error: the error of the store; None: no error.
    """

    name: str
    version: int | None
    entries: tuple[SwitchEntry, ...]
    age: float | None
    error: str | None

    @property
    def lost(self) -> bool:
        """Whether the store is unavailable."""
        return self.error is not None


@frozen(kw_only=True)
class ReportLine:
    """A stopped scope.

    :param age: seconds since it was stopped.
    :param left: seconds until the stop ends, negative if it is overdue; None: it has no end.
    """

    entry: SwitchEntry
    age: float
    left: float | None

    @property
    def state(self) -> str:
        """``"stopped"``, ``"overdue"``, or the share of the keys that run.

        An overdue stop still stops: its time is up, and ``when_expired`` is ``"keep"``.
        """
        share = f"resumed for {self.entry.share:g} %" if self.entry.step else "stopped"
        return f"{share}, overdue" if self.overdue else share

    @property
    def overdue(self) -> bool:
        """Whether its time is up."""
        return self.left is not None and self.left <= 0

    @property
    def end(self) -> str:
        """The end of the stop in words."""
        entry = self.entry
        if entry.until is None or self.left is None:
            return "permanent"
        if self.overdue:
            return f"overdue since {format_moment(entry.until, to_minute=True)}"
        when = f"in {format_span(self.left)}, {format_moment(entry.until, to_minute=True)}"
        if entry.when_expired == "resume":
            return f"resumes automatically {when}"
        return f"due {when}, stays stopped until an operator resumes it"

    def __str__(self) -> str:
        entry = self.entry
        state = f"{entry.scope}: {self.state}, for {format_span(self.age)}, by {entry.by}"
        return f"{state}, {self.end}: {entry.reason}"


@frozen(kw_only=True)
class SwitchReport:
    """All stopped scopes, with age, reason, operator and end.

    :param at: seconds since the epoch.
    :param lines: overdue stops first, then the others, each group oldest first.
    :param stale: seconds since the last answer of an unavailable store; None: it is available.
    """

    name: str
    at: float
    lines: tuple[ReportLine, ...]
    stale: float | None = None

    def __str__(self) -> str:
        title = f"{self.name}, {format_moment(self.at, to_minute=True)}: "
        title += f"{len(self.lines)} stopped" if self.lines else "nothing is stopped"
        if self.stale is not None:
            title += f" (the store is unavailable; state read {format_span(self.stale)} ago)"
        return "\n".join([title, *(f"- {line}" for line in self.lines)])


def report_lines(entries: Iterable[SwitchEntry], now: float) -> tuple[ReportLine, ...]:
    """A line for each stop that has not expired: overdue ones first, then the oldest."""
    lines = [
        ReportLine(
            entry=each,
            age=max(0.0, now - each.since),
            left=None if each.until is None else each.until - now,
        )
        for each in entries
        if not each.is_expired(now)
    ]
    return tuple(sorted(lines, key=lambda line: (not line.overdue, line.entry.since)))
