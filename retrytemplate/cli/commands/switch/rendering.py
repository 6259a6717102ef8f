"""Output of ``retrytemplate switch``: the stops, the report, and the result of a change."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.formatting import format_moment, format_span
from retrytemplate.cli import tables
from retrytemplate.cli.commands.switch.loading import Unreadable
from retrytemplate.cli.formatting import clean, format_count
from retrytemplate.control.switch.model import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retrytemplate.cli.commands.switch.loading import Change, StoreView
    from retrytemplate.control.switch.model import AuditRecord, Decision, SwitchScope
    from retrytemplate.control.switch.report import ReportLine

HEADS = ("what", "state", "for", "by", "end", "reason")
CHANGES = ("when", "what", "change", "by", "notified", "reason")
WHAT = CHANGES.index("what")
OVERDUE, CANARY, RUNS, UNREADABLE = "red", "yellow", "green", "red"
NOT_NOTIFIED = "no: pending until a process whose switch has notifiers sends it"
FIRST_CHANGE = "this is the first change in this store: check that your processes use this store"


class SwitchScreen(tables.Screen):
    """The stops on standard output."""

    def list(self, view: StoreView) -> None:
        """Print a line for each stop, and the warnings."""
        if view.lines:
            rows = [_cells(line) for line in view.lines]
            self.table(HEADS, rows, map(_style, view.lines), numbers=("for",))
        else:
            self.say(f"Nothing is stopped{_unused_store_note(view)}.")
        self._warnings(view)

    def decision(
        self, decision: Decision, scopes: Sequence[SwitchScope], key: Any, view: StoreView
    ) -> None:
        """Print the decision of a check, and the stop that caused it."""
        word, style = ("runs", RUNS) if decision.allowed else ("is stopped", OVERDUE)
        names = " and ".join(map(str, scopes[1:] or scopes))
        whose = "" if key is None else f", key {key!r}:"
        self.say(f"{names}{whose} {word}", style=style)
        if decision.reason:
            self.facts([("because", decision.reason)])
        line = None if decision.entry is None else view.find_line(decision.entry.scope)
        if line is not None:
            self.facts([("state", line.state), *_facts(line)])
        for scope in scopes:
            self.facts(_similar_name_note(scope, view))

    def report(self, view: StoreView) -> None:
        """Print all facts of all stops, overdue ones first."""
        overdue = sum(line.overdue for line in view.lines)
        number = (
            f"{len(view.lines)} stopped"
            if view.lines
            else f"nothing is stopped{_unused_store_note(view)}"
        )
        title = f"Kill switch, {format_moment(view.at, to_minute=True)}: {number}"
        self.say(f"{title}, {overdue} overdue" if overdue else title, style="bold")
        for line in view.lines:
            self.say("")
            self.say(f"{line.entry.scope}: {line.state}", style=_style(line) or "bold")
            self.facts(_facts(line))
        if view.pending or view.unreadable:
            self.say("")
        self._warnings(view)

    def changes(self, changes: Sequence[Change | Unreadable]) -> None:
        """Print a line for each change, including unreadable ones."""
        self.say("")
        if not changes:
            self.say("No changes.")
            return
        rows = [_change(each) for each in changes]
        styles = [UNREADABLE if isinstance(each, Unreadable) else None for each in changes]
        self.table(CHANGES, rows, styles, numbers=(), name=WHAT)

    def _warnings(self, view: StoreView) -> None:
        """Print the number of pending notifications and of unreadable records."""
        pending, unreadable = view.pending, view.unreadable
        if pending:
            age = format_span(view.at - pending[-1].record.at)
            number = format_count(len(pending), "change")
            self.say(f"Pending notifications: {number}, the oldest {age} old.", style=CANARY)
        if unreadable:
            latest = "" if len(unreadable) == 1 else "the latest is "
            why = unreadable[0].record.reason
            number = format_count(len(unreadable), "change")
            self.say(f"{number} cannot be read: {latest}{why}", style=UNREADABLE)


def _unused_store_note(view: StoreView) -> str:
    """A note for a store without changes: it may be the wrong one."""
    return "" if view.version else "; this store has no changes"


def _cells(line: ReportLine) -> Iterator[str]:
    yield str(line.entry.scope)
    yield f"resumed for {line.entry.share:g} %" if line.entry.step else "stopped"
    yield format_span(line.age)
    yield line.entry.by
    yield _end(line)
    yield line.entry.reason


def _end(line: ReportLine) -> str:
    if line.left is None:
        return "permanent"
    if line.overdue:
        return f"overdue {format_span(-line.left)}"
    what = "resumes" if line.entry.when_expired == "resume" else "due"
    return f"{what} in {format_span(line.left)}"


def _style(line: ReportLine) -> str | None:
    return OVERDUE if line.overdue else CANARY if line.entry.step else None


def _facts(line: ReportLine) -> Iterator[tuple[str, str]]:
    entry = line.entry
    yield "since", f"{format_moment(entry.since, to_minute=True)}, {format_span(line.age)} ago"
    yield "by", entry.by
    yield "reason", entry.reason
    yield "end", line.end
    if entry.step:
        yield "next", _next_percentages(line)


def _next_percentages(line: ReportLine) -> str:
    return ", ".join(f"{share:g} %" for share in line.entry.canary[line.entry.step :])


def _change(change: Change | Unreadable) -> Iterator[str]:
    if isinstance(change, Unreadable):
        yield from ("?", f"record {change.record.number}", "cannot be read", "?")
        yield from (_notified(change), change.record.reason)
        return
    record = change.record
    yield format_moment(record.at, to_minute=True)
    yield str(record.scope)
    yield _action_text(record)
    yield record.by
    yield _notified(change)
    yield record.reason


def _notified(change: Change | Unreadable) -> str:
    return "yes" if change.notified else "no"


def _action_text(record: AuditRecord) -> str:
    share = f" {record.share:g} %" if record.action in ("resumed", "advanced") else ""
    return f"{record.action}{share}{', override' if record.override else ''}"


# The result of a change is printed without rich: the change is committed by then.


def headline(record: AuditRecord) -> str:
    """The new state of the scope."""
    if record.share >= 100:
        return f"{record.scope} is resumed"
    if record.share > 0:
        return f"{record.scope} is resumed for {record.share:g} % of the keys"
    again = " again" if record.action == "rolled_back" else ""
    return f"{record.scope} is stopped{again}"


def print_change(change: Change, view: StoreView, *, named: bool) -> None:
    """Print the state after a change.

    :param view: the content of the store after the change.
    :param named: whether the operator passed a name.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    print(clean(headline(change.record), encoding))
    for label, text in _facts_of(change, view, named):
        print(clean(f"{label:<{tables.LABEL_WIDTH}}{text}", encoding))


def _facts_of(change: Change, view: StoreView, named: bool) -> Iterator[tuple[str, str]]:
    record, line = change.record, view.find_line(change.record.scope)
    yield ("reason" if record.action == "stopped" else "justification"), record.reason
    override = ", with an override" if record.override else ""
    yield "by", f"{record.by}{'' if named else ' (the user who is logged in)'}{override}"
    if line is not None:
        yield "end", line.end
        if line.entry.step:
            yield "next", f"{_next_percentages(line)}, each with --advance, after a check"
    yield "notified", "yes" if change.notified else NOT_NOTIFIED
    yield from _notes(record, view)


def _notes(record: AuditRecord, view: StoreView) -> Iterator[tuple[str, str]]:
    """Notes on changes that may be mistakes."""
    everything = view.find_line(EVERYTHING)
    if view.version == 1:
        yield "note", FIRST_CHANGE
    elif record.action == "stopped":
        yield from _similar_name_note(record.scope, view)
    elif everything is not None and record.share and record.scope != EVERYTHING:
        yield "note", f"the global stop is still in force: this scope stays {everything.state}"


def _similar_name_note(scope: SwitchScope, view: StoreView) -> Iterator[tuple[str, str]]:
    """A note for a new name that is similar to a known one: it may be mistyped."""
    others = [each.record.scope for each in view.changes if each.record.scope.kind == scope.kind]
    names = {other.name or "" for other in others if other != scope}
    near = get_close_matches(scope.name or "", names, n=1)
    if near and others.count(scope) < 2:
        yield "note", f"{scope} is new in this store; a similar one is known: {near[0]!r}"
