"""The newest events, in memory."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from retrytemplate._internal.validation import check_at_least_one
from retrytemplate.observe.sinks.pages import EventReader

if TYPE_CHECKING:
    from retrytemplate.observe.event import Event
    from retrytemplate.observe.sinks.pages import EventQuery


class MemorySink(EventReader):
    """Keeps the newest events of this process, for tests and the dashboard.

    :param size: the number of events, at least 1; older ones are forgotten.

    Safe for threads: its only state is a deque.

    >>> from retrytemplate.observe import Event
    >>> sink = MemorySink()
    >>> sink.emit(Event(type="call.failed", subject="charge", severity=30, time=17.0))
    >>> [event.subject for event in sink.page(type="call.*")]
    ['charge']
    """

    def __init__(self, size: int = 1000) -> None:
        check_at_least_one("size", size)
        self._events: deque[Event] = deque(maxlen=size)

    def emit(self, event: Event) -> None:
        """Keep the event."""
        self._events.append(event)

    @property
    def events(self) -> tuple[Event, ...]:
        """The events, the oldest first."""
        return tuple(self._events.copy())  # another thread may append

    def _page(self, query: EventQuery) -> list[Event]:
        return query.select(reversed(self.events))
