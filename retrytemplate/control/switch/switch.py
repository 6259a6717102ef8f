"""The kill switch: state, checks and commands."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import define

from retrytemplate._internal.closing import Closing
from retrytemplate._internal.validation import (
    check_choice,
    check_delay,
    check_int,
    check_methods,
    check_span,
    check_span_or_none,
    check_text,
    to_seconds,
)
from retrytemplate._storage.fork_safety import register
from retrytemplate.clock import given_or_system
from retrytemplate.control._poller import BackgroundPoller
from retrytemplate.control.events import (
    Listeners,
    Observable,
    notify_listeners,
    to_listeners,
)
from retrytemplate.control.switch import transitions
from retrytemplate.control.switch.cache import StateCache, call_store, suspend_aware_clock
from retrytemplate.control.switch.codec import read_record
from retrytemplate.control.switch.commands import SwitchCommands
from retrytemplate.control.switch.guard import SwitchChecks
from retrytemplate.control.switch.model import Decision, DeclaredScopes
from retrytemplate.control.switch.notifier import AuditNotifier, LogOnce, check_notifiers
from retrytemplate.control.switch.report import SwitchReport, SwitchSnapshot, report_lines
from retrytemplate.control.switch.store.base import MemorySwitchStore
from retrytemplate.control.switch.triggers import (
    DEFAULT_TRIGGERS,
    check_triggers,
)
from retrytemplate.control.switch.validation import ReasonPolicy
from retrytemplate.control.switch.writer import Writer
from retrytemplate.errors import SwitchStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from re import Pattern

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock
    from retrytemplate.control.events import ControlEvent
    from retrytemplate.control.switch.cache import StateSnapshot
    from retrytemplate.control.switch.guard import ScopeCheck
    from retrytemplate.control.switch.model import AuditRecord, UnreadableRecord
    from retrytemplate.control.switch.store.base import SwitchStore
    from retrytemplate.control.switch.writer import Command


STORE_METHODS = "load", "commit", "records", "claim_pending_notifications", "mark_notified", "close"
# Seconds between two rounds of the poller; a check itself reads a state that is too old.
MIN_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.05, 60.0
STATE_UNKNOWN = Decision(False, "the state is unknown: the store has not answered yet")


@define(eq=False, init=False, repr=False)
class KillSwitch(Observable, Closing, SwitchCommands, SwitchChecks):
    """Stops work at once, for a stated reason, until an operator resumes it step by step.

    :param store: the store of the state; None: in memory, for this process alone.
    :param stale_after: the largest age of the state that a check uses, in seconds, while the store
        answers; default 5; 0: every check reads the store.
    :param name: in errors, events and reports.
    :param scopes: the declared names, by ``"segment"``, ``"feature"``, ``"experiment"``; others are
        rejected.  None: any name is accepted.
    :param triggers: the causes of automatic stops, each with the scopes that it may stop.
    :param unknown: the decision until the store has answered once: ``"stop"`` or ``"run"``.
    :param reason_length: characters of a reason or a justification, at least; surrounding spaces
        do not count.
    :param incident: a regular expression that the reason of a stop must contain; None: not checked.
    :param listeners: notified of changes, of an unavailable store, and of rejected calls.
    :param notifiers: functions of an ``AuditRecord``, called once for each change by one of all
        processes (again, where one fails).
    :param reminder_interval: seconds between two reminders of a stop that is overdue.
    :param max_notification_age: seconds; the notifiers receive no older change.  None: they receive
        every change, however old it is.
    :param clock: the source of dates and durations.

    Safe for threads and tasks.

    >>> switch = KillSwitch()
    >>> record = switch.stop(
    ...     segment="finance", reason="leak suspected, incident 4711", by="kim", expires_in=3600
    ... )
    >>> allowed, reason = switch.check(segment="finance")
    >>> allowed, reason
    (False, "segment 'finance' is stopped by kim: leak suspected, incident 4711")
    >>> record = switch.resume(segment="finance", by="lee", justification="found and mended")
    >>> bool(switch.check(segment="finance"))
    True
    """

    name: str
    store: SwitchStore
    _scopes: DeclaredScopes
    _scope_checks: dict[tuple[Any, ...], ScopeCheck]
    _triggers: Mapping[str, Any]
    _unknown: Decision
    _reason_policy: ReasonPolicy
    _reminder_interval: float
    listeners: Listeners
    _notify_listeners: Callable[[Iterable[ControlEvent]], None]
    _clock: Clock
    _cache: StateCache
    _writer: Writer
    _audit_notifier: AuditNotifier
    _log_once: LogOnce
    _reported_snapshot: StateSnapshot | None
    _poller: BackgroundPoller

    def __init__(
        self,
        store: SwitchStore | None = None,
        stale_after: Seconds = 5.0,
        *,
        name: str = "switch",
        scopes: Mapping[str, Iterable[str]] | None = None,
        triggers: Mapping[str, Any] = DEFAULT_TRIGGERS,
        unknown: str = "stop",
        reason_length: int = 12,
        incident: str | Pattern[str] | None = None,
        listeners: Iterable[Any] = (),
        notifiers: Iterable[Callable[[AuditRecord], Any]] = (),
        reminder_interval: Seconds = 86400.0,
        max_notification_age: Seconds | None = 604800.0,
        clock: Clock | None = None,
    ) -> None:
        self._clock = given_or_system(clock)
        self.store = MemorySwitchStore(clock=clock) if store is None else store
        check_methods("store", self.store, *STORE_METHODS)
        max_age: float = to_seconds(stale_after)
        check_delay("stale_after", max_age)
        check_text("name", name)
        check_choice("unknown", unknown, "stop", "run")
        check_triggers("triggers", triggers)
        self.name, self._scopes, self._triggers = name, DeclaredScopes(scopes), dict(triggers)
        self._unknown = transitions.ALLOWED if unknown == "run" else STATE_UNKNOWN
        self._reason_policy = ReasonPolicy(reason_length, incident)
        self._reminder_interval = to_seconds(reminder_interval)
        check_span("reminder_interval", self._reminder_interval)
        age_limit = None if max_notification_age is None else to_seconds(max_notification_age)
        check_span_or_none("max_notification_age", age_limit)
        self.listeners = to_listeners(listeners)
        receivers: Any = tuple(notifiers) if hasattr(notifiers, "__iter__") else notifiers
        check_notifiers("notifiers", receivers)
        self._notify_listeners = partial(notify_listeners, self.listeners)
        now = suspend_aware_clock(self._clock)
        self._cache = StateCache(self.store, name, max_age, now)
        self._writer = Writer(self._cache, self._clock, self._notify_listeners)
        self._log_once = LogOnce(name)
        self._reported_snapshot = None
        self._audit_notifier = AuditNotifier(
            self.store, name, receivers, now, self._clock.time, age_limit
        )
        period = min(max(max_age / 2, MIN_POLL_INTERVAL), MAX_POLL_INTERVAL)
        self._poller = BackgroundPoller(self._poll, period, name="retrytemplate-switch")
        self._scope_checks = {}
        register(self)
        self._track()

    def _refresh_if_stale(self) -> None:
        if self.store.shared:
            self._poller.ensure_running()
        self._notify_listeners(self._cache.refresh_if_stale())
        self._report_changes()

    # Looking.

    def start(self) -> None:
        """Read the store, and start the poller; without this call, the first check starts it."""
        self.refresh()
        self._poller.ensure_running()

    def refresh(self) -> None:
        """Read the store now, apply expiries, and send pending notifications.

        The watching thread does it every ``stale_after`` / 2 seconds.  Where the store does not
        answer, the listeners are notified, and nothing is raised.
        """
        self._notify_listeners(self._cache.refresh())
        if self._cache.lost_at is not None:
            return
        self._log_once.run(self._apply_expiry, "expired stops cannot be updated in the store")
        self._report_changes()
        self._run_notifiers()

    def report(self) -> SwitchReport:
        """All stopped scopes, with age, reason, operator and end; ``str`` formats them.

        :raises SwitchStoreError: the store has never answered.

        >>> switch = KillSwitch()
        >>> record = switch.stop(
        ...     feature="export", reason="wrong totals, incident 4712", by="kim", permanent=True
        ... )
        >>> [(str(each.entry.scope), each.state) for each in switch.report().lines]
        [("feature 'export'", 'stopped')]
        """
        self.refresh()
        snapshot, now = self._cache.snapshot, self._clock.time()
        if snapshot is None:
            raise SwitchStoreError(
                f"the store of {self.name!r} has not answered yet: {self._cache.error}"
            )
        lines = report_lines(snapshot.entries.values(), now)
        stale = self._cache.age if self._cache.lost_at is not None else None
        return SwitchReport(name=self.name, at=now, lines=lines, stale=stale)

    def audit(self, limit: int = 100) -> tuple[AuditRecord | UnreadableRecord, ...]:
        """The latest changes, the newest first; one that cannot be read says why.

        :raises SwitchStoreError: the store does not answer.
        """
        check_int("limit", limit, 1)
        return tuple(map(read_record, call_store(self.store.records, limit=limit)))

    def snapshot(self) -> SwitchSnapshot:
        """The state that this process knows; the store is not read.

        >>> KillSwitch().snapshot().entries
        ()
        """
        snapshot = self._cache.snapshot
        return SwitchSnapshot(
            name=self.name,
            version=None if snapshot is None else snapshot.version,
            entries=() if snapshot is None else tuple(snapshot.entries.values()),
            age=self._cache.age,
            error=self._cache.error,
        )

    def close(self) -> None:
        """Stop the poller; the store stays open.

        Checks still work, and read the store themselves.
        """
        self._poller.close()

    def __repr__(self) -> str:
        return f"<KillSwitch {self.name!r}: {self.store!r}>"

    # Writing.

    def _write(self, command: Command) -> tuple[AuditRecord, ...]:
        if self.listeners:
            call_store(self._audit_notifier.start_at_newest)
        records = self._writer.write(command)
        if records:  # the change stays committed if what follows fails
            self._report_changes()
            self._run_notifiers()
            if self._needs_poll():
                self._poller.ensure_running()
        return records

    # Time.

    def _poll(self) -> bool:
        """One poll; return whether another one is needed."""
        self.refresh()
        return self._needs_poll()

    def _needs_poll(self) -> bool:
        snapshot = self._cache.snapshot
        timed = snapshot is not None and any(
            not each.permanent for each in snapshot.entries.values()
        )
        return self.store.shared or timed or self._audit_notifier.has_pending

    def _apply_expiry(self) -> None:
        snapshot = self._cache.snapshot
        command = partial(transitions.expire, reminder_interval=self._reminder_interval)
        if snapshot is None:
            return
        if self._cache.lost_entries or command(snapshot.entries, self._clock.time()).records:
            self._write(command)

    def _report_changes(self) -> None:
        """Notify the listeners of the changes up to the present snapshot, once."""
        if self._cache.snapshot is not self._reported_snapshot and self.listeners:
            message = (
                "recent changes cannot be read from the store; the listeners are notified later"
            )
            self._log_once.run(self._report_new_changes, message)

    def _report_new_changes(self) -> None:
        snapshot = self._cache.snapshot
        self._notify_listeners(self._audit_notifier.new_changes())
        self._reported_snapshot = snapshot

    def _run_notifiers(self) -> None:
        message = (
            "notifications cannot be claimed or marked as sent in the store; this or another "
            "process tries again later"
        )
        self._log_once.run(self._audit_notifier.notify, message)

    def _forked(self) -> None:
        self._cache.forked()
        self._poller.forked()
