"""Delivery of changes to notifiers, and log lines about store outages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from attrs import define, field

from retrytemplate._internal.awaitables import close_unawaited, is_async, is_awaitable
from retrytemplate._internal.locks import Monitor, Reentered
from retrytemplate.control.switch.codec import read_record
from retrytemplate.control.switch.events import SwitchChanged
from retrytemplate.control.switch.model import UnreadableRecord
from retrytemplate.control.switch.report import span
from retrytemplate.control.switch.store.base import StoredRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from retrytemplate.control.switch.model import AuditRecord
    from retrytemplate.control.switch.store.base import SwitchStore

__all__ = ["LEASE", "Chronicle", "Outages", "check_notifiers"]


LOG = logging.getLogger("retrytemplate.control.switch")
# Seconds that a process has for telling what it has claimed, before another one does.
LEASE = 60.0
AT_ONCE = 20
PAGE = 100
NOTHING = StoredRecord(0, "", notified=True)  # before the first one
# How the telling of a record may end; the first three are the end of it.
TOLD, OLD, RUBBISH, LATER, FAILED = "told", "old", "rubbish", "later", "failed"
DONE = TOLD, OLD, RUBBISH


def check_notifiers(name: str, value: Any) -> None:
    """Raise unless each one can be called with a record, in a thread."""
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be a list or tuple of functions, got {value!r}")
    for each in value:
        if not callable(each) or isinstance(each, type) or is_async(each):
            raise TypeError(
                f"{name}: each must be a plain function of the record, not one that has to be "
                f"awaited, got {each!r}"
            )


@define(eq=False)
class Chronicle:
    """Tells what stands in a store's list of records.

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
    _seen: StoredRecord | None = None
    _began: float | None = None  # to tell what may not be told yet
    _left: int = 0  # the last record that was left to others
    _monitor: Monitor = field(factory=Monitor)

    @property
    def has_to_try_again(self) -> bool:
        """Whether something may have been left untold."""
        return self._began is not None

    def begin(self) -> None:
        """What happened before is no news."""
        if self._seen is None:
            newest = self.store.records(limit=1)
            self._monitor.post(self._begin, newest[0] if newest else NOTHING)

    def _begin(self, newest: StoredRecord) -> None:
        if self._seen is None:
            self._seen = newest

    def news(self) -> list[SwitchChanged]:
        """What has happened since this was last asked, oldest first; each once."""
        self.begin()
        new = None
        while new is None:  # unless another thread has told something meanwhile
            new = self._unheard()
        return list(self._changes(new))

    def _unheard(self) -> list[StoredRecord] | None:
        seen = self._seen or NOTHING
        new = self._since(seen)
        try:
            return new if self._monitor.run(self._go_past, seen, new) else None
        except Reentered:  # the interrupted code notifies the listeners
            return []

    def _go_past(self, seen: StoredRecord, new: list[StoredRecord]) -> bool:
        if self._seen is not seen:
            return False
        self._seen = new[-1] if new else seen
        return True

    def _since(self, seen: StoredRecord) -> list[StoredRecord]:
        """The records after this one, oldest first; all, where the store has begun anew."""
        new: list[StoredRecord] = []
        anew = False
        for each in self._newest_first():
            if each.number <= seen.number and not anew:
                anew = each.text != seen.text if each.number == seen.number else not new
                if not anew:
                    break
            new.append(each)
        return new[::-1]

    def _newest_first(self) -> Iterator[StoredRecord]:
        page = self.store.records(limit=PAGE)
        while page:
            yield from page
            page = self.store.records(before=page[-1].number, limit=PAGE)

    def _changes(self, stored: Iterable[StoredRecord]) -> Iterator[SwitchChanged]:
        for each in stored:
            record = read_record(each)
            if isinstance(record, UnreadableRecord):
                LOG.error("record %s is told to no listener: %s", each.number, record)
            else:
                yield SwitchChanged(name=self.name, record=record)

    def notify(self) -> None:
        """Tell the notifiers what nobody has told yet, and nobody else is about to tell."""
        if not self.notifiers:
            return
        began, old = self.now(), 0
        if self._began is None:
            self._began = began
        try:
            # A worker of its own each time: threads do not get in each other's way, and what fails,
            # is interrupted, or is another's to tell, comes again when its lease is over.
            while claimed := self.store.claim_pending_notifications(
                worker := uuid4().hex, LEASE, AT_ONCE
            ):
                ends = {each.number: self._tell(each) for each in claimed}
                old += sum(end == OLD for end in ends.values())
                done = [number for number, end in ends.items() if end in DONE]
                if done:
                    self.store.mark_notified(done, worker)
                if FAILED in ends.values():
                    self._began = began
                    return
        finally:
            if old:
                self._say_old(old)
        self._all_told(began)

    def _all_told(self, began: float) -> None:
        first = self._began  # None: another thread was here as well
        if first is not None and (first == began or began - first > LEASE):
            self._began = None

    def _tell(self, stored: StoredRecord) -> str:
        """Tell of one; how that has ended."""
        number, record = stored.number, read_record(stored)
        if isinstance(record, UnreadableRecord):
            return self._leave(record)
        if (
            self.max_notification_age is not None
            and record.at < self.time() - self.max_notification_age
        ):
            return OLD
        told = [self._notify(notifier, number, record) for notifier in self.notifiers]
        return TOLD if all(told) else FAILED

    def _leave(self, record: UnreadableRecord) -> str:
        if not record.later:
            LOG.error("record %s is told to nobody: %s", record.number, record)
            return RUBBISH
        if record.number > self._left:  # it comes again, minute by minute
            self._left = record.number
            LOG.warning("%s: whoever can read it will tell", record)
        return LATER

    def _notify(
        self, notifier: Callable[[AuditRecord], Any], number: int, record: AuditRecord
    ) -> bool:
        try:
            value = notifier(record)
            if is_awaitable(value):
                close_unawaited(value)
                raise TypeError(f"{notifier!r} has to be awaited: nobody does")
        except Exception:
            LOG.exception("%r could not be told of record %s", notifier, number)
            return False
        return True

    def _say_old(self, number: int) -> None:
        changes = "1 change is" if number == 1 else f"{number} changes are"
        LOG.warning(
            "%s: %s older than %s: the notifiers are not told, see the audit",
            self.name,
            changes,
            span(self.max_notification_age or 0.0),
        )


LOG = logging.getLogger("retrytemplate.control.switch")


@define(eq=False)
class Outages:
    """Logs what fails, and says nothing more of it until it has gone well again.

    :param name: of the switch, for the log.
    """

    name: str
    _said: set[str] = field(factory=set)

    def attempt(self, step: Callable[[], object], trouble: str) -> None:
        """Do something that others will do if this process cannot.

        :param trouble: what it means that it fails.
        """
        try:
            step()
        except Exception:
            if trouble not in self._said:
                self._said.add(trouble)
                LOG.warning("%s: %s", self.name, trouble, exc_info=True)
        else:
            self._said.discard(trouble)
