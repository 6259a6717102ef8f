"""Who is told of changes: the listeners of this process, and the notifiers, once for all."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from attrs import define, field

from retrytemplate._checks import close_unawaited, is_async, is_awaitable
from retrytemplate.control.switch.entries import AuditRecord
from retrytemplate.control.switch.events import SwitchChanged
from retrytemplate.errors import SwitchStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from retrytemplate.control.switch.stores import StoredRecord, SwitchStore

__all__ = ["LEASE", "Chronicle", "check_notifiers"]

LOG = logging.getLogger("retrytemplate.control.switch")
# Seconds that a process has for telling what it has claimed, before another one does.
LEASE = 60.0
AT_ONCE = 20
LOOK_BACK = 100


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
    """

    store: SwitchStore
    name: str
    notifiers: Sequence[Callable[[AuditRecord], Any]]
    now: Callable[[], float]
    _seen: int | None = None
    _began: float | None = None  # to tell what may not be told yet
    _lock: Any = field(factory=threading.RLock)

    @property
    def has_to_try_again(self) -> bool:
        """Whether something may have been left untold."""
        return self._began is not None

    def begin(self) -> None:
        """What happened before is no news."""
        if self._seen is None:
            newest = self.store.records(limit=1)
            with self._lock:
                if self._seen is None:
                    self._seen = newest[0].number if newest else 0

    def news(self) -> list[SwitchChanged]:
        """What has happened since this was last asked, oldest first; each once."""
        if self._seen is None:
            self.begin()
        found = self.store.records(limit=LOOK_BACK)
        with self._lock:
            seen = self._seen or 0
            new = [each for each in reversed(found) if each.number > seen]
            if new:
                self._seen = new[-1].number
        records = (_record(each) for each in new)
        return [SwitchChanged(name=self.name, record=each) for each in records if each is not None]

    def notify(self) -> None:
        """Tell the notifiers what nobody has told yet, and nobody else is about to tell."""
        if not self.notifiers:
            return
        # A worker of its own each time: threads do not get in each other's way, and what fails, or
        # is interrupted, comes again when its lease is over.
        worker, began = uuid4().hex, self.now()
        if self._began is None:
            self._began = began
        while claimed := self.store.claim_untold(worker, LEASE, AT_ONCE):
            told = [each.number for each in claimed if self._tell(each)]
            if told:
                self.store.told(told, worker)
            if len(told) < len(claimed):
                self._began = began
                return
        self._all_told(began)

    def _all_told(self, began: float) -> None:
        first = self._began  # None: another thread was here as well
        if first is not None and (first == began or began - first > LEASE):
            self._began = None

    def _tell(self, stored: StoredRecord) -> bool:
        record = _record(stored)
        if record is None:
            return True  # nobody will ever be able to tell it
        done = True
        for notifier in self.notifiers:
            try:
                value = notifier(record)
                if is_awaitable(value):
                    close_unawaited(value)
                    raise TypeError(f"{notifier!r} has to be awaited: nobody does")
            except Exception:
                LOG.exception("%r could not be told of record %s", notifier, stored.number)
                done = False
        return done

    def forked(self) -> None:
        """In a child process: a lock that nobody holds."""
        self._lock = threading.RLock()


def _record(stored: StoredRecord) -> AuditRecord | None:
    try:
        return AuditRecord.from_text(stored.text)
    except SwitchStoreError:
        LOG.exception("record %s is told to nobody", stored.number)
        return None
