"""The thread that looks at a shared circuit when no call does."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from weakref import ReferenceType

__all__ = ["Watcher"]

LOG = logging.getLogger("retrytemplate.control")
PATIENCE = 10.0


class Watched(Protocol):
    def watch(self) -> bool: ...


class Watcher:
    """Calls ``watch`` of what it watches every so many seconds, or when it is woken.

    The daemon thread begins with ``ensure``; it ends when ``watch`` says that there is nothing to
    do any more, when it is closed, or when nobody else holds what it watches.
    """

    def __init__(self, watched: Watched, period: float) -> None:
        self._period = period
        self._over = threading.Event()
        self._begin(watched)

    def _begin(self, watched: Watched) -> None:
        wake = threading.Event()
        self._wake = wake
        self._watched = weakref.ref(watched, lambda _: wake.set())
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def forked(self) -> None:
        """In a child process: the thread is the parent's."""
        watched = self._watched()
        if watched is not None:
            self._begin(watched)

    def ensure(self) -> None:
        """See that the thread runs."""
        if self._is_needed():
            with self._lock:
                if self._is_needed():
                    self._start()

    def _is_needed(self) -> bool:
        thread = self._thread
        return not self._over.is_set() and (thread is None or not thread.is_alive())

    def _start(self) -> None:
        thread = threading.Thread(
            target=_watch,
            args=(self._watched, self._wake, self._over, self._period),
            name="retrytemplate-circuit",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # the program ends, or there are too many
            LOG.warning("no thread can be started to look at the store", exc_info=True)
        else:
            self._thread = thread

    def wake(self) -> None:
        """Let it look now."""
        self.ensure()
        self._wake.set()

    def close(self) -> None:
        """End the thread for good; return when it has ended."""
        with self._lock:
            self._over.set()
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(PATIENCE)


def _watch(
    watched: ReferenceType[Watched], wake: threading.Event, over: threading.Event, period: float
) -> None:
    goes_on = True
    while goes_on:
        wake.wait(period)
        wake.clear()
        found = watched()
        if found is None or over.is_set():
            return
        try:
            goes_on = found.watch()
        except Exception:
            LOG.exception("a look at the store failed; the next one may not")
        del found
