"""What is stopped, for those who look: a snapshot for programs, a report for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate.control.switch.model import SwitchEntry

__all__ = ["ReportLine", "SwitchReport", "SwitchSnapshot", "moment", "report_lines", "span"]


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

        An overdue stop still stops: its time is up, and it was told to stay.
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
            return f"overdue since {moment(entry.until)}"
        when = f"in {span(self.left)}, {moment(entry.until)}"
        if entry.when_expired == "resume":
            return f"lifted {when}"
        return f"due {when}, not lifted by itself"

    def __str__(self) -> str:
        entry = self.entry
        state = f"{entry.scope}: {self.state}, for {span(self.age)}, by {entry.by}"
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
        title = f"{self.name}, {moment(self.at)}: "
        title += f"{len(self.lines)} stopped" if self.lines else "nothing is stopped"
        if self.stale is not None:
            title += f" (the store does not answer; as known {span(self.stale)} ago)"
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


def moment(at: float) -> str:
    """A moment, for people.

    >>> moment(1_767_225_600.0)
    '2026-01-01 00:00 UTC'
    """
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{at:g}"


def span(seconds: float) -> str:
    """A length of time, for people: in two units where the larger one says little.

    >>> span(7), span(90), span(7020), span(86_399.9), span(86_400 * 3 + 7200), span(1e6)
    ('7 s', '2 min', '1 h 57 min', '24 h', '3 d 2 h', '12 d')
    """
    if seconds < 59.5:
        return f"{max(0.0, seconds):.0f} s"
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 600:
        return _units(minutes, 60, "h", "min")
    if hours < 48:
        return f"{hours} h"
    return _units(hours, 24, "d", "h") if hours < 240 else f"{seconds / 86_400:.0f} d"


def _units(number: int, size: int, large: str, small: str) -> str:
    whole, rest = divmod(number, size)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"
