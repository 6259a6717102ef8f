"""The rules of a kill switch: each command returns the entries after a change.

Without a clock and stores: the time is an argument, and the caller writes the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from retrytemplate.control.switch.canary import ALL_KEYS, rollout_position
from retrytemplate.control.switch.model import GLOBAL, AuditRecord, Decision, SwitchEntry
from retrytemplate.errors import SwitchRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from retrytemplate.control.switch.model import SwitchScope

    Entries = Mapping[SwitchScope, SwitchEntry]

ALLOWED = Decision(True)
EXPIRY_ACTOR = "automatic: expiry"
RECOVERY_ACTOR = "automatic: the store had lost it"


@frozen
class Change:
    """The entries after a change, and its records; no record: nothing has changed."""

    entries: Entries
    records: tuple[AuditRecord, ...] = ()

    def with_record(self, record: AuditRecord, entry: SwitchEntry | None) -> Change:
        """This change with one more record; None: the entry is removed."""
        entries = {**self.entries}
        if entry is None:
            entries.pop(record.scope, None)
        else:
            entries[record.scope] = entry  # a changed entry keeps its place
        return Change(entries, (*self.records, record))


def decide(
    entries: Entries, scopes: Iterable[SwitchScope], key: Callable[[], Any], now: float
) -> Decision:
    """Whether all of these scopes may run; the first stopped one gives the reason.

    :param key: returns the key that a canary decides by, or None.
    """
    answer = ALLOWED
    for scope in scopes:
        entry = entries.get(scope)
        if entry is None or entry.is_expired(now):
            continue
        if not entry.step:
            return Decision(False, str(entry), entry)
        found = key()
        if found is None:
            return Decision(False, _canary_reason(entry, "no key was given"), entry)
        if rollout_position(scope, found) >= entry.share:
            return Decision(False, _canary_reason(entry, "this key is not among them"), entry)
        answer = Decision(True, "", entry)
    return answer


def _canary_reason(entry: SwitchEntry, why: str) -> str:
    return f"{entry.scope} runs for {entry.share:g} % of the keys, and {why}: {entry.reason}"


# Commands.


def stop(
    entries: Entries,
    now: float,
    *,
    scope: SwitchScope,
    reason: str,
    by: str,
    seconds: float | None,
    when_expired: str = "resume",
    cause: str | None = None,
) -> Change:
    """Stop something, wholly; of two stops the later end holds.

    An automatic *cause* leaves a stopped scope as it is.

    :param seconds: for how long; None: permanently.
    """
    before = expire(entries, now)
    until = None if seconds is None else now + seconds
    old = before.entries.get(scope)
    if old is not None:
        if cause is not None:
            return before if not old.step else _roll_back(before, old, by, reason, now)
        until = None if until is None or old.until is None else max(until, old.until)
        when_expired = "keep" if "keep" in (when_expired, old.when_expired) else "resume"
    new = SwitchEntry(
        scope=scope,
        reason=reason,
        by=by,
        since=now,
        until=until,
        when_expired=when_expired,
        cause=cause,
    )
    return before.with_record(_record("stopped", new, now, by, reason), new)


def resume(
    entries: Entries,
    now: float,
    *,
    scope: SwitchScope,
    by: str,
    justification: str,
    canary: tuple[float, ...] = (),
    override: bool = False,
) -> Change:
    """Resume a scope: for all keys, or for the first share of a canary.

    :raises SwitchRefusedError: it is not stopped, or everything would be resumed at once.
    """
    before = expire(entries, now)
    old = _find_stopped(before.entries, scope)
    first = canary[0] if canary else ALL_KEYS
    if scope.kind == GLOBAL and first >= ALL_KEYS and not override:
        raise SwitchRefusedError(
            "a global stop must be resumed in steps: use canary=(5, 25, 100), or override=True to "
            "resume all at once"
        )
    new = None
    if first < ALL_KEYS:
        # With an expiry, the clock would take the last step, without an operator.
        new = evolve(old, canary=canary, step=1, when_expired="keep")
    record = _record("resumed", new or old, now, by, justification, first, override=override)
    return before.with_record(record, new)


def find_canary(entries: Entries, scope: SwitchScope) -> SwitchEntry:
    """The entry that has a next step.

    :raises SwitchRefusedError: no canary runs.
    """
    entry = _find_stopped(entries, scope)
    if not entry.step:
        raise SwitchRefusedError(
            f"{scope} is stopped for all keys; start a canary with resume(canary=(5, 25, 100))"
        )
    return entry


def advance(
    entries: Entries,
    now: float,
    *,
    seen: SwitchEntry,
    by: str,
    justification: str,
    healthy: bool = True,
) -> Change:
    """Take the next step of a canary; if unhealthy, stop all keys again.

    :param seen: the checked entry; an entry that has changed since has to be checked again.
    :raises SwitchRefusedError: it was changed.
    """
    before = expire(entries, now)
    entry = find_canary(before.entries, seen.scope)
    if (entry.since, entry.canary, entry.step) != (seen.since, seen.canary, seen.step):
        raise SwitchRefusedError(
            f"{seen.scope} was changed by another command; it now runs for "
            f"{entry.share:g} % of the keys; check again"
        )
    if not healthy:
        return _roll_back(before, entry, by, justification, now)
    share = entry.canary[entry.step]
    new = evolve(entry, step=entry.step + 1) if share < ALL_KEYS else None
    return before.with_record(_record("advanced", new or entry, now, by, justification, share), new)


def _roll_back(before: Change, entry: SwitchEntry, by: str, reason: str, now: float) -> Change:
    new = evolve(entry, canary=(), step=0)
    return before.with_record(_record("rolled_back", new, now, by, reason), new)


def _find_stopped(entries: Entries, scope: SwitchScope) -> SwitchEntry:
    entry = entries.get(scope)
    if entry is None:
        some = ", ".join(map(str, entries)) or "none"
        raise SwitchRefusedError(f"{scope} is not stopped; stopped scopes: {some}")
    return entry


# Expiry and recovery.


def expire(entries: Entries, now: float, reminder_interval: float | None = None) -> Change:
    """Remove expired entries; record a reminder of overdue ones.

    :param reminder_interval: seconds between two reminders; None: there are none.
    """
    change = Change(entries)
    for entry in entries.values():
        if entry.is_expired(now):
            record = _record("expired", entry, now, EXPIRY_ACTOR, entry.reason, ALL_KEYS)
            change = change.with_record(record, None)
        elif (
            reminder_interval is not None
            and entry.is_over(now)
            and (entry.reminded is None or now - entry.reminded >= reminder_interval)
        ):
            new = evolve(entry, reminded=now)
            record = _record("overdue", new, now, EXPIRY_ACTOR, entry.reason, entry.share)
            change = change.with_record(record, new)
    return change


def restore_lost(entries: Entries, lost: Entries, now: float) -> Change:
    """Restore entries that a store has lost and a process still has."""
    change = Change(entries)
    for scope, entry in lost.items():
        if scope not in entries and not entry.is_expired(now):
            record = _record("restored", entry, now, RECOVERY_ACTOR, entry.reason, entry.share)
            change = change.with_record(record, entry)
    return change


def _record(
    action: str,
    entry: SwitchEntry,
    now: float,
    by: str,
    reason: str,
    share: float = 0.0,
    *,
    override: bool = False,
) -> AuditRecord:
    return AuditRecord(
        action=action,
        scope=entry.scope,
        at=now,
        by=by,
        reason=reason,
        share=share,
        until=entry.until,
        when_expired=entry.when_expired,
        override=override,
    )
