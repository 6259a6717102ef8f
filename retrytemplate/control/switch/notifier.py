"""Delivery of changes to notifiers, and log lines about store outages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from attrs import define, field

from retrytemplate._internal.awaitables import is_async
from retrytemplate._internal.formatting import format_span
from retrytemplate._internal.locks import Monitor, Reentered
from retrytemplate.control.events import call_listener
from retrytemplate.control.switch.codec import read_record
from retrytemplate.control.switch.events import SwitchChanged
from retrytemplate.control.switch.model import UnreadableRecord
from retrytemplate.control.switch.store.base import StoredRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from retrytemplate.control.switch.model import AuditRecord
    from retrytemplate.control.switch.store.base import SwitchStore


LOG = logging.getLogger("retrytemplate.control.switch")
# Seconds that a process has to notify of its claimed records, before another one may.
CLAIM_LEASE = 60.0
CLAIM_BATCH = 20
PAGE_SIZE = 100
FAILED_NOTIFIER = (
    "notifier %r failed for record %s; all notifiers are called again for this record after "
    f"{CLAIM_LEASE:g} s"
)
NO_RECORD = StoredRecord(0, "", notified=True)  # before the first one
# The results of a notification; the first three are final.
NOTIFIED, TOO_OLD, CORRUPT, NEWER_FORMAT, FAILED = (
    "notified",
    "too_old",
    "corrupt",
    "newer_format",
    "failed",
)
FINAL = NOTIFIED, TOO_OLD, CORRUPT


def check_notifiers(name: str, value: Any) -> None:
    """Raise unless each one can be called with a record, in a thread."""
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be a list or tuple of functions, got {value!r}")
    for each in value:
        if not callable(each) or isinstance(each, type) or is_async(each):
            raise TypeError(
                f"{name}: each must be a synchronous function of the record, got {each!r}"
            )


@define(eq=False)
class AuditNotifier:
    """Notifies listeners and notifiers of the records of a store.

    :param now: measures how long ago a notifier has failed.
    :param time: says how long ago a change was made.
    :param max_notification_age: seconds; the notifiers receive no older change; None: all.
    """

    store: SwitchStore
    name: str
    notifiers: Sequence[Callable[[AuditRecord], Any]]
    now: Callable[[], float]
    time: Callable[[], float]
    max_notification_age: float | None
    _last_seen: StoredRecord | None = None
    _pending_since: float | None = None  # since when a notification may be pending
    _last_skipped: int = 0  # the last record that was left to others
    _monitor: Monitor = field(factory=Monitor)

    @property
    def has_pending(self) -> bool:
        """Whether notifications may be pending."""
        return self._pending_since is not None

    def start_at_newest(self) -> None:
        """Ignore all records that exist already."""
        if self._last_seen is None:
            newest = self.store.records(limit=1)
            self._monitor.post(self._set_start, newest[0] if newest else NO_RECORD)

    def _set_start(self, newest: StoredRecord) -> None:
        if self._last_seen is None:
            self._last_seen = newest

    def new_changes(self) -> list[SwitchChanged]:
        """The changes since the last call of this method, oldest first; each once."""
        self.start_at_newest()
        new = None
        while new is None:  # unless another thread has notified meanwhile
            new = self._take_new_records()
        return list(self._to_events(new))

    def _take_new_records(self) -> list[StoredRecord] | None:
        seen = self._last_seen or NO_RECORD
        new = self._records_since(seen)
        try:
            return new if self._monitor.run(self._advance_past, seen, new) else None
        except Reentered:  # the interrupted code notifies the listeners
            return []

    def _advance_past(self, seen: StoredRecord, new: list[StoredRecord]) -> bool:
        if self._last_seen is not seen:
            return False
        self._last_seen = new[-1] if new else seen
        return True

    def _records_since(self, seen: StoredRecord) -> list[StoredRecord]:
        """The records after this one, oldest first; all, if the store was cleared."""
        new: list[StoredRecord] = []
        restarted = False
        for each in self._newest_first():
            if each.number <= seen.number and not restarted:
                restarted = each.text != seen.text if each.number == seen.number else not new
                if not restarted:
                    break
            new.append(each)
        return new[::-1]

    def _newest_first(self) -> Iterator[StoredRecord]:
        page = self.store.records(limit=PAGE_SIZE)
        while page:
            yield from page
            page = self.store.records(before=page[-1].number, limit=PAGE_SIZE)

    def _to_events(self, stored: Iterable[StoredRecord]) -> Iterator[SwitchChanged]:
        for each in stored:
            record = read_record(each)
            if isinstance(record, UnreadableRecord):
                LOG.error(
                    "kill switch %s: record %s cannot be read and is not sent to any listener: %s",
                    self.name,
                    each.number,
                    record,
                )
            else:
                yield SwitchChanged(name=self.name, record=record)

    def notify(self) -> None:
        """Call the notifiers for each pending record that no other worker has claimed."""
        if not self.notifiers:
            return
        began, skipped = self.now(), 0
        if self._pending_since is None:
            self._pending_since = began
        try:
            # A worker of its own each time: threads do not get in each other's way, and what fails,
            # is interrupted, or is claimed by another, is claimed again when its lease is over.
            while claimed := self.store.claim_pending_notifications(
                worker := uuid4().hex, CLAIM_LEASE, CLAIM_BATCH
            ):
                outcomes = {each.number: self._notify_all(each) for each in claimed}
                skipped += sum(outcome == TOO_OLD for outcome in outcomes.values())
                done = [number for number, outcome in outcomes.items() if outcome in FINAL]
                if done:
                    self.store.mark_notified(done, worker)
                if FAILED in outcomes.values():
                    self._pending_since = began
                    return
        finally:
            if skipped:
                self._log_skipped(skipped)
        self._clear_pending(began)

    def _clear_pending(self, began: float) -> None:
        first = self._pending_since  # None: another thread was here as well
        if first is not None and (first == began or began - first > CLAIM_LEASE):
            self._pending_since = None

    def _notify_all(self, stored: StoredRecord) -> str:
        """Notify of one record; return the result."""
        number, record = stored.number, read_record(stored)
        if isinstance(record, UnreadableRecord):
            return self._log_unreadable(record)
        if (
            self.max_notification_age is not None
            and record.at < self.time() - self.max_notification_age
        ):
            return TOO_OLD
        notified = [
            call_listener(notifier, record, FAILED_NOTIFIER, number) for notifier in self.notifiers
        ]
        return NOTIFIED if all(notified) else FAILED

    def _log_unreadable(self, record: UnreadableRecord) -> str:
        if not record.later:
            LOG.error(
                "kill switch %s: record %s cannot be read and is not sent to any notifier: %s",
                self.name,
                record.number,
                record,
            )
            return CORRUPT
        if record.number > self._last_skipped:  # it is claimed again every minute
            self._last_skipped = record.number
            LOG.warning(
                "kill switch %s: %s; a process with a later version of the library must send its "
                "notification",
                self.name,
                record,
            )
        return NEWER_FORMAT

    def _log_skipped(self, number: int) -> None:
        changes = "1 change is" if number == 1 else f"{number} changes are"
        LOG.warning(
            "kill switch %s: %s older than max_notification_age (%s); the notifiers were not "
            "called; see the audit log",
            self.name,
            changes,
            format_span(self.max_notification_age or 0.0),
        )


@define(eq=False)
class LogOnce:
    """Logs a failure once, and again only after a success.

    :param name: of the switch, for the log.
    """

    name: str
    _logged: set[str] = field(factory=set)

    def run(self, step: Callable[[], object], message: str) -> None:
        """Run a step that other processes will run if this one fails.

        :param message: the consequence of a failure.
        """
        try:
            step()
        except Exception:
            if message not in self._logged:
                self._logged.add(message)
                LOG.warning("kill switch %s: %s", self.name, message, exc_info=True)
        else:
            self._logged.discard(message)
