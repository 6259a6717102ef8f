"""What a process knows of a store: a copy that is looked at, and how fresh it is."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field, frozen

from retrytemplate._internal.locks import Monitor
from retrytemplate.clock import SystemClock
from retrytemplate.control.switch.codec import decode_document
from retrytemplate.control.switch.events import SwitchStoreLost, SwitchStoreRecovered
from retrytemplate.errors import SwitchStoreError
from retrytemplate.history import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retrytemplate.clock import Clock
    from retrytemplate.control.events import ControlEvent
    from retrytemplate.control.switch.model import Document, SwitchEntry, SwitchScope
    from retrytemplate.control.switch.store.base import SwitchStore

__all__ = ["Copy", "View", "answered", "read", "ticks_of"]

LOG = logging.getLogger("retrytemplate.control.switch")
NOTHING: Mapping[SwitchScope, SwitchEntry] = MappingProxyType({})


@frozen
class View:
    """What a store held when it was read; never changed, but replaced."""

    version: int
    text: str
    document: Document

    @property
    def entries(self) -> Mapping[SwitchScope, SwitchEntry]:
        """What is stopped."""
        return self.document.entries


def read(store: SwitchStore) -> View:
    """What the store holds now.

    :raises SwitchStoreError: it cannot be reached, or holds what cannot be read.
    """
    return _view(answered(store.load, None))


def answered(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a method of a store answers.

    :raises SwitchStoreError: it raises something else.
    """
    try:
        return method(*arguments, **named)
    except SwitchStoreError:
        raise
    except Exception as exc:
        raise SwitchStoreError(
            f"the store of the kill switch cannot be read: {summary(exc)}"
        ) from exc


def _view(answer: Any) -> View:
    try:
        version, text = answer
    except (TypeError, ValueError):
        version = text = None
    if type(version) is not int or not isinstance(text, str):
        raise SwitchStoreError(f"the store of the kill switch answers with {answer!r}")
    return View(version, text, decode_document(text))


def ticks_of(clock: Clock) -> Callable[[], float]:
    """How the age of a copy is measured: a machine that was asleep has aged, too."""
    if type(clock) is SystemClock and hasattr(time, "CLOCK_BOOTTIME"):
        return partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    return clock.monotonic


@define(eq=False)
class Copy:
    """The view of a store, and whether it may still be gone by.

    :param stale_after: seconds for which it may be, from when it was asked for; 0: it is asked for
        anew each time.
    :param now: measures them.
    :param view: another one with each change; who has found nothing in it need not look again.
    :param trusted_until: until when it may be gone by, where it is no store in memory.
    :param missing: what a store has lost that is known here; replaced, never changed.
    """

    store: SwitchStore
    name: str
    stale_after: float
    now: Callable[[], float]
    view: View | None = None
    trusted_until: float = -inf
    missing: Mapping[SwitchScope, SwitchEntry] = NOTHING
    # When the latest view was asked for, and when it was here.
    asked: float = -inf
    known_at: float = -inf
    lost_at: float | None = None
    error: str | None = None
    _monitor: Monitor = field(factory=Monitor)
    # Held while the store is asked; the same thread may have to ask it once more.
    _one_at_a_time: Any = field(factory=threading.RLock)

    @property
    def age(self) -> float | None:
        """Seconds since the view was asked for; None: there is none."""
        return None if self.view is None else max(0.0, self.now() - self.asked)

    def is_fresh(self) -> bool:
        """Whether the view may be gone by, or the store is known not to answer."""
        if self.store.shared:
            return self.now() < self.trusted_until
        view = self.view
        return view is not None and self.is_version(view.version)

    def is_version(self, version: int) -> bool:
        """Whether a store in memory still has this one."""
        try:
            return self.store.load(version) is None
        except Exception:  # whoever looks next will find out, and say so
            return False

    def catch_up(self) -> list[ControlEvent]:
        """Refresh it, unless it is fresh, or another thread is about to; what is to be told."""
        if not self.stale_after:
            return self.refresh()
        with self._one_at_a_time:
            return [] if self.is_fresh() else self.refresh()

    def refresh(self) -> list[ControlEvent]:
        """Ask the store; what is to be told of it.  Where it does not answer, the view stays."""
        began = self.now()
        try:
            view = read(self.store)
        except SwitchStoreError as exc:
            return self._lost(exc, began)
        return self.accept(view, began)

    def accept(
        self, view: View, began: float, restored: Mapping[SwitchScope, SwitchEntry] = NOTHING
    ) -> list[ControlEvent]:
        """Go by this view, unless a later one is here already; what is to be told.

        :param began: when it was asked for, or was about to be written.
        :param restored: what was missing, and has been put back.
        """
        lost_at = self._monitor.post(self._accept, view, began, self.now(), restored)
        if lost_at is None:
            return []
        outage = max(0.0, self.now() - lost_at)
        LOG.warning("%s: the store is back after %.3g s", self.name, outage)
        return [SwitchStoreRecovered(name=self.name, outage=outage)]

    def _accept(
        self, view: View, began: float, ended: float, restored: Mapping[SwitchScope, SwitchEntry]
    ) -> float | None:
        """Accept what the store has; return when the store was lost, None if it was not."""
        if self._is_outdated(view, began):
            return None
        self._replace(view, restored)
        self.asked, self.known_at = max(began, self.asked), max(ended, self.known_at)
        self.trusted_until = self.asked + self.stale_after
        lost_at, self.lost_at, self.error = self.lost_at, None, None
        return lost_at

    def _is_outdated(self, view: View, began: float) -> bool:
        """Whether it is an earlier one, that was on its way when the present one came."""
        old = self.view
        return old is not None and _went_back(old, view) and began <= self.known_at

    def _replace(self, view: View, restored: Mapping[SwitchScope, SwitchEntry]) -> None:
        old, missing = self.view, _without(self.missing, restored)
        if old is not None and _went_back(old, view):
            missing = {**missing, **old.entries}
        missing = _without(missing, view.entries)
        same = old is not None and (view.version, view.text) == (old.version, old.text)
        if same and missing == self.missing:
            return
        self.missing = missing
        if missing:
            entries = {**missing, **view.entries}
            view = evolve(view, document=evolve(view.document, entries=entries))
        self.view = view

    def _lost(self, error: Exception, began: float) -> list[ControlEvent]:
        now, age = self.now(), self.age
        if not self._monitor.post(self._lose, str(error), began, now):
            return []
        known = "nothing is known" if age is None else f"what was known {age:.3g} s ago holds"
        LOG.error("%s: the store is lost, %s: %s", self.name, known, error)
        return [SwitchStoreLost(name=self.name, age=age, error=error)]

    def _lose(self, error: str, began: float, now: float) -> bool:
        """Note a failed read; return whether the store was available before."""
        if began < self.known_at:  # another caller has had an answer since
            return False
        is_news = self.lost_at is None
        if is_news:
            self.lost_at = now
        self.error = error
        self.trusted_until = now + self._patience(now - began)
        return is_news

    def _patience(self, waited: float) -> float:
        """How long a lost store is asked by the watcher alone, which may wait as long again."""
        return self.stale_after + waited if self.stale_after else 0.0

    def forked(self) -> None:
        """In a child process: another thread may have held the lock."""
        self._one_at_a_time = threading.RLock()
        self.trusted_until = -inf


def _without(
    some: Mapping[SwitchScope, SwitchEntry], others: Mapping[SwitchScope, SwitchEntry]
) -> Mapping[SwitchScope, SwitchEntry]:
    return {scope: entry for scope, entry in some.items() if scope not in others}


def _went_back(old: View, new: View) -> bool:
    """Whether it is another store than the one that was known, or an earlier state of it."""
    known = old.document.store
    return (known is not None and new.document.store != known) or new.version < old.version
