"""What is stopped, for those who look: a snapshot for programs, a report for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from retrytemplate.control.switch.entries import SwitchEntry

__all__ = ["ReportLine", "SwitchReport", "SwitchSnapshot", "moment", "span"]


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
        overdue = self.left is not None and self.left <= 0
        share = f"back for {self.entry.share:g} %" if self.entry.step else "stopped"
        return f"{share}, overdue" if overdue else share

    def __str__(self) -> str:
        entry = self.entry
        if entry.until is None:
            end = "permanent"
        elif self.left is not None and self.left > 0:
            what = "lifted" if entry.when_expired == "lift" else "overdue"
            end = f"{what} in {span(self.left)}, {moment(entry.until)}"
        else:
            end = f"overdue since {moment(entry.until)}"
        state = f"{entry.scope}: {self.state}, for {span(self.age)}, by {entry.by}"
        return f"{state}, {end}: {entry.reason}"


@frozen(kw_only=True)
class SwitchReport:
    """All that is stopped, for a weekly look: with age, reason, who did it, and the end.

    :param at: seconds since the epoch.
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
    """A length of time, for people.

    >>> span(90), span(86400 * 3 + 7200)
    ('2 min', '3 days 2 h')
    """
    days, rest = divmod(max(0.0, seconds), 86400)
    hours, rest = divmod(rest, 3600)
    if days:
        return f"{days:.0f} day{'' if days == 1 else 's'} {hours:.0f} h"
    if hours:
        return f"{hours:.0f} h {rest / 60:.0f} min"
    return f"{rest / 60:.0f} min" if rest >= 60 else f"{rest:.0f} s"
