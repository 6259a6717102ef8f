"""A buffer in front of a sink, which a background thread empties."""

from __future__ import annotations

from itertools import count
from math import inf
from queue import Empty, SimpleQueue
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Literal

from retrytemplate._internal.locks import is_interrupted
from retrytemplate._internal.validation import check_at_least_one, check_choice
from retrytemplate._storage.fork_safety import register
from retrytemplate.control._poller import BackgroundPoller
from retrytemplate.observe.sinks.base import check_detached_sink, close_sink
from retrytemplate.observe.sinks.delivery import Delivery

if TYPE_CHECKING:
    from retrytemplate.observe.event import Event
    from retrytemplate.observe.sinks.base import Sink

BATCH = 500  # events given to the sink at once, at most
LOOK = 0.5  # seconds after which a caller that waits checks that the thread still runs


class BufferedSink:
    """Gives events to another sink from a background thread, so that no call waits for its I/O.

    :param sink: the sink, without ``needs_call``; its ``emit_many``, if it has one, gets up to 500
        events at once.
    :param capacity: events that wait to be written; at least 1.
    :param when_full: "drop": the new event is dropped and counted; "wait": the caller waits.

    ``dropped`` is the number of events that were not written: the buffer was full or closed, or the
    sink raised an exception; ``errors`` the number of its exceptions, which are logged at most once
    per minute.  Call ``close`` at the end of the program: it writes the rest.  A child process
    starts with an empty buffer and a thread of its own.

    A finalizer, and a sink that causes events itself, never wait: their events are dropped then.

    >>> from retrytemplate.observe import BufferedSink, Event, MemorySink
    >>> kept = MemorySink()
    >>> sink = BufferedSink(kept)
    >>> sink.emit(Event(type="call.failed", subject="charge", severity=30, time=17.0))
    >>> sink.close(), len(kept.events), sink.dropped
    (True, 1, 0)
    """

    blocking = False

    def __init__(
        self, sink: Sink, capacity: int = 10_000, when_full: Literal["drop", "wait"] = "drop"
    ) -> None:
        check_detached_sink(sink)
        check_at_least_one("capacity", capacity)
        check_choice("when_full", when_full, "drop", "wait")
        self.sink = sink
        self.capacity = capacity
        self.when_full = when_full
        self._closed = False
        self._delivery = Delivery(sink)
        self._begin()
        self._poller = BackgroundPoller(self._write, inf, name="retrytemplate-buffered-sink")
        register(self)

    def _begin(self) -> None:
        # Queues written in C: a finalizer or signal handler may use them amid anything.
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._free = SimpleQueue[None]()
        for _ in range(self.capacity):
            self._free.put(None)
        self.dropped = 0
        self._drops = count(1)
        self._writer: int | None = None  # the thread that is writing

    def _forked(self) -> None:
        """In a child process: the events and the thread are the parent's."""
        on_loss, self._delivery = self._delivery.on_loss, Delivery(self.sink)
        self._delivery.on_loss = on_loss
        self._begin()
        self._poller.forked()

    @property
    def errors(self) -> int:
        """Exceptions of the sink."""
        return self._delivery.errors

    def emit(self, event: Event) -> None:
        """Put the event into the buffer."""
        if self._closed or not self._has_space():
            self._drop(1)
            return
        self._events.put(event)
        self._poller.wake()

    def close(self, timeout: float = 5.0) -> bool:
        """Write the rest, and close the sink; later events are dropped.

        :param timeout: seconds to wait for the sink.
        :returns: False: the sink took longer, or raised an exception.  The thread continues.
        """
        self._closed = True
        until = monotonic() + timeout
        if not self._poller.close(timeout, poll_again=True):
            return False
        self._write()  # the thread could not be started
        lost = self._delivery.errors > 0
        return close_sink(self.sink, max(0.0, until - monotonic())) and not lost

    def _has_space(self) -> bool:
        """Use one place of the buffer, or wait for one."""
        try:
            self._free.get_nowait()
            return True
        except Empty:
            pass
        if self.when_full == "drop" or is_interrupted() or self._writer == get_ident():
            return False
        while not self._closed:
            self._poller.wake()
            try:
                self._free.get(timeout=LOOK)
                return True
            except Empty:
                if not self._poller.is_running:  # no thread can be started: the program ends
                    break
        return False

    def _write(self) -> bool:
        """Write all events of the buffer."""
        self._writer = get_ident()
        while batch := self._batch():
            self._drop(self._delivery.emit_many(batch))
            for _ in batch:
                self._free.put(None)
        self._writer = None
        return True

    def _batch(self) -> list[Event]:
        batch: list[Event] = []
        try:
            while len(batch) < BATCH:
                batch.append(self._events.get_nowait())
        except Empty:
            pass
        return batch

    def _drop(self, number: int) -> None:
        for _ in range(number):
            self.dropped = next(self._drops)
        self._delivery.drop(number)
