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
        self._polls_again = False
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

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def wake(self) -> None:
        """Poll now."""
        self.ensure_running()
        if self._calls.empty():
            self._calls.put(None)

    def close(self, timeout: float = JOIN_TIMEOUT, *, poll_again: bool = False) -> bool:
        """End the thread permanently; return whether it has ended within *timeout* seconds.

        :param poll_again: it polls once more before it ends.
        """
        self._polls_again = poll_again
        self._closed = True
        thread = self._thread
        self._calls.put(None)
        if thread is None:
            return True
        if thread is not threading.current_thread():
            thread.join(min(timeout, threading.TIMEOUT_MAX))
        return not thread.is_alive()

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            with suppress(Empty):
                self._calls.get(timeout=self._period)
            poll, is_closed = self._poll(), self._closed
            if poll is None or (is_closed and not self._polls_again):
                return
            goes_on = not is_closed
            try:
                goes_on = poll() and goes_on
            except Exception:
                LOG.exception("a poll of %s failed; next poll in %g s", self._name, self._period)
            del poll  # and with it the hold on its object
