"""The thread that keeps a switch fresh, lifts what has expired, and tells what was not told."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from weakref import ReferenceType

__all__ = ["Watcher"]

LOG = logging.getLogger("retrytemplate.control.switch")
PATIENCE = 10.0  # for a round under way, when the end is asked for


class Watched(Protocol):
    """What does something in each round, and says whether there is to be another one."""

    def _watch(self) -> bool: ...


class Watcher:
    """Calls ``_watch`` of what it watches every *period* seconds, in a daemon thread of its own.

    The thread ends when ``_watch`` says that nothing is left to do, when it is told to stop, or
    when nobody else holds what it watches.  ``ensure`` begins another one.
    """

    def __init__(self, watched: Watched, period: float) -> None:
        self._watched = weakref.ref(watched)
        self._period = period
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._closed = False

    def ensure(self) -> None:
        """See that the thread runs."""
        if self._is_missing():
            with self._lock:
                if self._is_missing():
                    self._start()

    def _is_missing(self) -> bool:
        thread = self._thread
        return not self._closed and (thread is None or not thread.is_alive())

    def _start(self) -> None:
        watched = self._watched()
        if watched is None:
            return
        stop = self._stop = threading.Event()
        held = weakref.ref(watched, lambda _: stop.set())
        thread = threading.Thread(
            target=_watch, args=(held, stop, self._period), name="retrytemplate-switch", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the program ends, or there are too many
            LOG.warning("no thread can be started: each check looks for itself", exc_info=True)
        else:
            self._thread = thread

    def close(self) -> None:
        """End the thread for good."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(PATIENCE)

    def forked(self) -> None:
        """In a child process: the thread is the parent's."""
        self._lock, self._thread, self._stop = threading.RLock(), None, threading.Event()


def _watch(watched: ReferenceType[Watched], stop: threading.Event, period: float) -> None:
    while not stop.wait(period):
        found = watched()
        if found is None:
            return
        try:
            goes_on = found._watch()
        except Exception:
            LOG.exception("a round of the watcher failed; it goes on")
            goes_on = True
        if not goes_on:
            return
        del found
