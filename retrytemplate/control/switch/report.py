"""What is stopped, for those who look: a snapshot for programs, a report for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from retrytemplate._internal.formatting import format_moment, format_span

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate.control.switch.model import SwitchEntry

__all__ = ["ReportLine", "SwitchReport", "SwitchSnapshot", "report_lines"]


@frozen(kw_only=True)
class SwitchSnapshot:
    """How a switch stands, by what this process knows.

    :param version: of what is known; None: nothing is.
    :param entries: what is stopped.
    :param age: seconds since the store was asked for it; None: it has never answered.
    :param error: what is wrong with the store; None: nothing.
    """

    name: str
    version: int | None
    entries: tuple[SwitchEntry, ...]
    age: float | None
    error: str | None

    @property
    def lost(self) -> bool:
        """Whether the store does not answer."""
        return self.error is not None


@frozen(kw_only=True)
class ReportLine:
    """One thing that is stopped.

    :param age: seconds since it was stopped.
    :param left: seconds until that ends, negative where it is overdue; None: it has no end.
    """

    entry: SwitchEntry
    age: float
    left: float | None

    @property
    def state(self) -> str:
        """``"stopped"``, ``"overdue"``, or the share of the keys that run.

        An overdue stop still stops: its time is up, and ``when_expired`` is ``"keep"``.
        """
        share = f"back for {self.entry.share:g} %" if self.entry.step else "stopped"
        return f"{share}, overdue" if self.overdue else share

    @property
    def overdue(self) -> bool:
        """Whether its time is up."""
        return self.left is not None and self.left <= 0

    @property
    def end(self) -> str:
        """What its end is, in words."""
        entry = self.entry
        if entry.until is None or self.left is None:
            return "permanent"
        if self.overdue:
            return f"overdue since {format_moment(entry.until, to_minute=True)}"
        when = f"in {format_span(self.left)}, {format_moment(entry.until, to_minute=True)}"
        if entry.when_expired == "resume":
            return f"lifted {when}"
        return f"due {when}, not lifted by itself"

    def __str__(self) -> str:
        entry = self.entry
        state = f"{entry.scope}: {self.state}, for {format_span(self.age)}, by {entry.by}"
        return f"{state}, {self.end}: {entry.reason}"


@frozen(kw_only=True)
class SwitchReport:
    """All that is stopped, for a weekly look: with age, reason, who did it, and the end.

    :param at: seconds since the epoch.
    :param lines: what is overdue first, and of each the oldest first.
    :param stale: seconds since the store has answered, where it does not now; None: it does.
    """

    name: str
    at: float
    lines: tuple[ReportLine, ...]
    stale: float | None = None

    def __str__(self) -> str:
        title = f"{self.name}, {format_moment(self.at, to_minute=True)}: "
        title += f"{len(self.lines)} stopped" if self.lines else "nothing is stopped"
        if self.stale is not None:
            title += f" (the store does not answer; as known {format_span(self.stale)} ago)"
        return "\n".join([title, *(f"- {line}" for line in self.lines)])


def report_lines(entries: Iterable[SwitchEntry], now: float) -> tuple[ReportLine, ...]:
    """A line for each that is not lifted yet: what is overdue first, and of each the oldest."""
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
