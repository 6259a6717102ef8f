"""Background thread that polls a store."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING
from weakref import WeakMethod

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BackgroundPoller"]

LOG = logging.getLogger("retrytemplate.control")
JOIN_TIMEOUT = 10.0  # seconds that ``close()`` waits for a poll in progress


class BackgroundPoller:
    """Calls *poll*, a method, every *period* seconds, or when it is woken.

    The daemon thread begins with ``ensure_running``; it ends when *poll* says that there is nothing
    to do any more, when it is closed, or when the object of that method is collected.
    """

    def __init__(self, poll: Callable[[], bool], period: float, *, name: str) -> None:
        self._period = min(period, threading.TIMEOUT_MAX)
        self._name = name
        self._closed = False
        self._begin(poll)

    def _begin(self, poll: Callable[[], bool]) -> None:
        # The collector may call back amid anything; a queue allows it, an event may lock for ever.
        calls = self._calls = SimpleQueue[None]()
        self._poll = WeakMethod(poll, lambda _: calls.put(None))
        self._starting = threading.Lock()  # never waited for
        self._thread: threading.Thread | None = None

    def forked(self) -> None:
        """In a child process: the thread is the parent's."""
        poll = self._poll()
        if poll is not None:
            self._begin(poll)

    def ensure_running(self) -> None:
        """See that the thread runs."""
        if not self._is_needed():
            return
        if not self._starting.acquire(blocking=False):
            return  # another thread is starting it, or the code that is interrupted
        try:
            if self._is_needed():
                self._start()
        finally:
            self._starting.release()

    def _is_needed(self) -> bool:
        thread = self._thread
        return not self._closed and (thread is None or not thread.is_alive())

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the program ends, or there are too many
            LOG.warning(
                "cannot start the background polling thread %s; the next call tries again",
                self._name,
                exc_info=True,
            )
        else:
            self._thread = thread

    def wake(self) -> None:
        """Poll now."""
        self.ensure_running()
        if self._calls.empty():
            self._calls.put(None)

    def close(self) -> None:
        """End the thread permanently; return when it has ended."""
        self._closed = True
        thread = self._thread
        self._calls.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_TIMEOUT)

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            with suppress(Empty):
                self._calls.get(timeout=self._period)
            poll = self._poll()
            if poll is None or self._closed:
                return
            try:
                goes_on = poll()
            except Exception:
                LOG.exception("polling the store failed; next poll in %g s", self._period)
            del poll  # and with it the hold on its object
