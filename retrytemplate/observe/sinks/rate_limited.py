"""At most N events per interval; the others become one event with their number."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from attrs import define, evolve

from retrytemplate._internal.locks import Monitor, Reentered
from retrytemplate._internal.validation import check_at_least_one, check_seconds
from retrytemplate.clock import given_or_system
from retrytemplate.control._poller import BackgroundPoller
from retrytemplate.observe.event import new_id
from retrytemplate.observe.sinks.base import (
    blocks,
    check_detached_sink,
    close_sink,
    type_matcher,
)
from retrytemplate.observe.sinks.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock
    from retrytemplate.observe.event import Event
    from retrytemplate.observe.sinks.base import Sink

POLL_INTERVAL = 1.0  # seconds, at most, between two looks for intervals that have ended


@define
class Window:
    """One interval of a type and subject.

    :param passed: events that were passed in it.
    :param count: events that were not.
    """

    end: float
    passed: int = 0
    count: int = 0
    first: str | None = None
    last: Any = None


class RateLimitedSink:
    """Passes at most N events per interval of each type and subject, and folds the others.

    At the end of the interval the other events become one: the last of them, with ``count``,
    ``interval`` (seconds), ``first_execution_id`` and ``last_execution_id`` in its data.  This
    event is the first one of the next interval.  So a flood gives ``limit`` events per interval.

    :param sink: the sink that gets the events, without ``needs_call``.
    :param limit: events of one type and subject that are passed per interval; at least 1.
    :param interval: seconds, or a ``timedelta``; at least 0.01.
    :param types: the types that are limited; ``*`` in one is any text.  Others are passed.
    :param clock: None: the system's.

    An interval begins with the first event after the previous one.  Its end is noticed by the next
    event and by a background thread, which runs while there are intervals.  Safe for threads; a
    child process starts without intervals.

    >>> from retrytemplate.observe import Event, MemorySink, RateLimitedSink
    >>> kept = MemorySink()
    >>> sink = RateLimitedSink(kept, limit=1)
    >>> for _ in range(1000):
    ...     sink.emit(Event(type="call.rejected", subject="charge", severity=20, time=17.0))
    >>> sink.close()
    True
    >>> [event.data.get("count") for event in kept.events]
    [None, 999]
    """

    def __init__(
        self,
        sink: Sink,
        limit: int = 20,
        interval: Seconds = 10.0,
        types: Iterable[str] = ("*.rejected", "task.cancelled"),
        clock: Clock | None = None,
    ) -> None:
        check_detached_sink(sink)
        check_at_least_one("limit", limit)
        self.sink = sink
        self.limit = limit
        self.interval = check_seconds("interval", interval)
        self._matches = type_matcher(types)
        self._clock: Clock = given_or_system(clock)
        # In the order of their beginnings, so that the first one is the next to end: a look at all
        # for each event would be slow with many subjects.
        self._windows: OrderedDict[Any, Window] = OrderedDict()
        self._delivery = Delivery(sink)
        self._lock = Monitor()
        self._lock.forked = self._forked
        self._poller = BackgroundPoller(
            self._poll, min(self.interval, POLL_INTERVAL), name="retrytemplate-rate-limited-sink"
        )

    @property
    def blocking(self) -> bool:
        """Whether the sink does I/O."""
        return blocks(self.sink)

    @property
    def errors(self) -> int:
        """Exceptions of the sink in the background thread."""
        return self._delivery.errors

    def emit(self, event: Event) -> None:
        """Pass the event, or count it."""
        if not self._matches(event.type):
            self.sink.emit(event)
            return
        try:
            passed, ended = self._lock.run(self._admit, event, self._clock.monotonic())
        except Reentered:  # a finalizer or signal handler inside of a step
            self._lock.post(self._count, event, self._clock.monotonic())
            return
        for window in ended:
            self.sink.emit(self._folded(window))
        if passed:
            self.sink.emit(event)
        else:
            self._poller.ensure_running()

    def close(self, timeout: float = 5.0) -> bool:
        """Pass the folded events, and close the sink; False if events may be lost."""
        has_ended = self._poller.close(timeout)
        try:
            ended = self._lock.run(self._take_all)
        except Reentered:  # a signal handler inside of a step
            ended, has_ended = [], False
        lost = self._delivery.emit_many([self._folded(window) for window in ended])
        return close_sink(self.sink, timeout) and has_ended and not lost

    def _admit(self, event: Event, now: float) -> tuple[bool, list[Window]]:
        """Whether the event is passed, and the intervals that have ended with a count."""
        ended = self._ended(now)
        window = self._window(event, now)
        if window.passed < self.limit:
            window.passed += 1
            return True, ended
        self._fold(window, event)
        return False, ended

    def _count(self, event: Event, now: float) -> None:
        self._fold(self._window(event, now), event)

    def _window(self, event: Event, now: float) -> Window:
        # Those of components inside an execution apart: a log sink leaves them out.
        key = event.type, event.subject, event.execution_id is None
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = Window(now + self.interval)
        return window

    def _fold(self, window: Window, event: Event) -> None:
        if not window.count:
            window.first = event.execution_id
        window.count += 1
        window.last = event

    def _ended(self, now: float) -> list[Window]:
        """The intervals that have ended with a count; their events begin the next interval."""
        found = []
        while self._windows:
            key, window = next(iter(self._windows.items()))
            if window.end > now:
                break
            del self._windows[key]
            if window.count:
                found.append(window)
                end = window.end + self.interval
                self._windows[key] = Window(end if end > now else now + self.interval, passed=1)
        return found

    def _take_all(self) -> list[Window]:
        found = [window for window in self._windows.values() if window.count]
        self._windows.clear()
        return found

    def _folded(self, window: Window) -> Event:
        """The events of an interval that were not passed, as one."""
        last: Event = window.last
        data = {
            **last.data,
            "count": window.count,
            "interval": self.interval,
            "first_execution_id": window.first,
            "last_execution_id": last.execution_id,
        }
        return evolve(last, id=new_id(), time=self._clock.time(), data=data)

    def _poll(self) -> bool:
        for window in self._lock.run(self._ended, self._clock.monotonic()):
            self._delivery.emit(self._folded(window))
        return bool(self._windows)

    def _forked(self) -> None:
        self._windows.clear()  # the parent passes its counts
        self._poller.forked()
