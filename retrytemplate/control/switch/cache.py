"""The copy of a store that a process checks, and its age."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field, frozen

from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.locks import Monitor
from retrytemplate.clock import SystemClock
from retrytemplate.control.switch.codec import decode_document
from retrytemplate.control.switch.events import SwitchStoreLost, SwitchStoreRecovered
from retrytemplate.errors import SwitchStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retrytemplate.clock import Clock
    from retrytemplate.control.events import ControlEvent
    from retrytemplate.control.switch.model import Document, SwitchEntry, SwitchScope
    from retrytemplate.control.switch.store.base import SwitchStore

LOG = logging.getLogger("retrytemplate.control.switch")
NO_ENTRIES: Mapping[SwitchScope, SwitchEntry] = MappingProxyType({})


@frozen
class StateSnapshot:
    """The content of a store when it was read."""

    version: int
    text: str
    document: Document

    @property
    def entries(self) -> Mapping[SwitchScope, SwitchEntry]:
        """The stopped scopes, with their entries."""
        return self.document.entries


def load_snapshot(store: SwitchStore) -> StateSnapshot:
    """Read the store.

    :raises SwitchStoreError: it cannot be reached, or its content cannot be read.
    """
    return _decode_snapshot(call_store(store.load, None))


def call_store(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a method of a store.

    :raises SwitchStoreError: the method raised another exception, which is the cause.
    """
    try:
        return method(*arguments, **named)
    except SwitchStoreError:
        raise
    except Exception as exc:
        raise SwitchStoreError(
            f"the store of the kill switch cannot be read: {summary(exc)}"
        ) from exc


def _decode_snapshot(answer: Any) -> StateSnapshot:
    try:
        version, text = answer
    except (TypeError, ValueError):
        version = text = None
    if type(version) is not int or not isinstance(text, str):
        raise SwitchStoreError(
            f"the store of the kill switch must return a version and a string, got {answer!r}"
        )
    return StateSnapshot(version, text, decode_document(text))


def suspend_aware_clock(clock: Clock) -> Callable[[], float]:
    """The clock that measures the age of a copy: it also runs while the machine sleeps."""
    if type(clock) is SystemClock and hasattr(time, "CLOCK_BOOTTIME"):
        return partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    return clock.monotonic


@define(eq=False)
class StateCache:
    """The latest snapshot of a store, and whether it is still valid.

    :param stale_after: seconds for which it is valid after its request; 0: it is read each time.
    :param now: the clock of these seconds.
    :param snapshot: replaced at each change; a caller may cache the result of a check of it.
    :param trusted_until: the end of its validity, unless the store is in memory.
    :param lost_entries: what a store has lost that is known here; replaced, never changed.
    """

    store: SwitchStore
    name: str
    stale_after: float
    now: Callable[[], float]
    snapshot: StateSnapshot | None = None
    trusted_until: float = -inf
    lost_entries: Mapping[SwitchScope, SwitchEntry] = NO_ENTRIES
    # When the latest snapshot was requested, and when it was received.
    requested_at: float = -inf
    received_at: float = -inf
    lost_at: float | None = None
    error: str | None = None
    _monitor: Monitor = field(factory=Monitor)
    # Held while the store is read; the same thread may have to read it once more.
    _refresh_lock: Any = field(factory=threading.RLock)

    @property
    def age(self) -> float | None:
        """Seconds since the snapshot was requested; None: no snapshot yet."""
        return None if self.snapshot is None else max(0.0, self.now() - self.requested_at)

    def is_fresh(self) -> bool:
        """Whether the snapshot is valid, or the store is known not to answer."""
        if self.store.shared:
            return self.now() < self.trusted_until
        snapshot = self.snapshot
        return snapshot is not None and self.is_version(snapshot.version)

    def is_version(self, version: int) -> bool:
        """Whether a store in memory still has this one."""
        try:
            return self.store.load(version) is None
        except Exception:  # the next check reports it
            return False

    def refresh_if_stale(self) -> list[ControlEvent]:
        """Refresh it, unless it is fresh, or another thread is about to; return the events."""
        if not self.stale_after:
            return self.refresh()
        with self._refresh_lock:
            return [] if self.is_fresh() else self.refresh()

    def refresh(self) -> list[ControlEvent]:
        """Read the store; return the events to report.  If it fails, the snapshot stays."""
        began = self.now()
        try:
            snapshot = load_snapshot(self.store)
        except SwitchStoreError as exc:
            return self._on_read_failed(exc, began)
        return self.accept(snapshot, began)

    def accept(
        self,
        snapshot: StateSnapshot,
        began: float,
        restored: Mapping[SwitchScope, SwitchEntry] = NO_ENTRIES,
    ) -> list[ControlEvent]:
        """Use this snapshot, unless a later one is here already; return the events.

        :param began: when it was requested, or was about to be written.
        :param restored: lost entries that were restored.
        """
        lost_at = self._monitor.post(self._accept, snapshot, began, self.now(), restored)
        if lost_at is None:
            return []
        outage = max(0.0, self.now() - lost_at)
        LOG.warning("kill switch %s: the store recovered after %.3g s", self.name, outage)
        return [SwitchStoreRecovered(name=self.name, outage=outage)]

    def _accept(
        self,
        snapshot: StateSnapshot,
        began: float,
        ended: float,
        restored: Mapping[SwitchScope, SwitchEntry],
    ) -> float | None:
        """Accept what the store has; return when the store was lost, None if it was not."""
        if self._is_outdated(snapshot, began):
            return None
        self._replace(snapshot, restored)
        self.requested_at = max(began, self.requested_at)
        self.received_at = max(ended, self.received_at)
        self.trusted_until = self.requested_at + self.stale_after
        lost_at, self.lost_at, self.error = self.lost_at, None, None
        return lost_at

    def _is_outdated(self, snapshot: StateSnapshot, began: float) -> bool:
        """Whether it is an earlier one, that was on its way when the present one came."""
        old = self.snapshot
        return old is not None and _is_rollback(old, snapshot) and began <= self.received_at

    def _replace(
        self, snapshot: StateSnapshot, restored: Mapping[SwitchScope, SwitchEntry]
    ) -> None:
        old, lost_entries = self.snapshot, _without(self.lost_entries, restored)
        if old is not None and _is_rollback(old, snapshot):
            lost_entries = {**lost_entries, **old.entries}
        lost_entries = _without(lost_entries, snapshot.entries)
        same = old is not None and (snapshot.version, snapshot.text) == (old.version, old.text)
        if same and lost_entries == self.lost_entries:
            return
        self.lost_entries = lost_entries
        if lost_entries:
            entries = {**lost_entries, **snapshot.entries}
            snapshot = evolve(snapshot, document=evolve(snapshot.document, entries=entries))
        self.snapshot = snapshot

    def _on_read_failed(self, error: Exception, began: float) -> list[ControlEvent]:
        now, age = self.now(), self.age
        if not self._monitor.post(self._record_failure, str(error), began, now):
            return []
        known = "no state was ever read" if age is None else f"using the state read {age:.3g} s ago"
        LOG.error("kill switch %s: the store is unavailable, %s: %s", self.name, known, error)
        return [SwitchStoreLost(name=self.name, age=age, error=error)]

    def _record_failure(self, error: str, began: float, now: float) -> bool:
        """Note a failed read; return whether the store was available before."""
        if began < self.received_at:  # another caller has had an answer since
            return False
        is_news = self.lost_at is None
        if is_news:
            self.lost_at = now
        self.error = error
        self.trusted_until = now + self._retry_interval(now - began)
        return is_news

    def _retry_interval(self, waited: float) -> float:
        """Seconds during which only the poller reads a lost store."""
        return self.stale_after + waited if self.stale_after else 0.0

    def forked(self) -> None:
        """In a child process: another thread may have held the lock."""
        self._refresh_lock = threading.RLock()
        self.trusted_until = -inf


def _without(
    some: Mapping[SwitchScope, SwitchEntry], others: Mapping[SwitchScope, SwitchEntry]
) -> Mapping[SwitchScope, SwitchEntry]:
    return {scope: entry for scope, entry in some.items() if scope not in others}


def _is_rollback(old: StateSnapshot, new: StateSnapshot) -> bool:
    """Whether it is another store than the one that was known, or an earlier state of it."""
    known = old.document.store
    return (known is not None and new.document.store != known) or new.version < old.version
