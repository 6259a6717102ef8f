"""A selection of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate.listeners.log_records import check_level, to_level
from retrytemplate.observe.sinks.base import (
    blocks,
    check_sink,
    close_sink,
    needs_call,
    type_matcher,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate.observe.event import Event
    from retrytemplate.observe.sinks.base import Sink


class FilteredSink:
    """Passes matching events to another sink.

    :param sink: the other sink.
    :param types: types of events; ``*`` in one is any text.
    :param min_severity: a level or its name; events below it are not passed.  None: no limit.

    >>> from retrytemplate.observe import FilteredSink, MemorySink
    >>> alerts = FilteredSink(MemorySink(), types=("alert.*",), min_severity="WARNING")
    """

    def __init__(
        self,
        sink: Sink,
        types: Iterable[str] = ("alert.*",),
        min_severity: int | str | None = None,
    ) -> None:
        check_sink("sink", sink)
        self.sink = sink
        self._matches = type_matcher(types)
        self.min_severity = to_level(min_severity)
        check_level("min_severity", self.min_severity)

    @property
    def blocking(self) -> bool:
        """Whether the other sink does I/O."""
        return blocks(self.sink)

    @property
    def needs_call(self) -> bool:
        """Whether the other sink reads the context of the call."""
        return needs_call(self.sink)

    def emit(self, event: Event) -> None:
        """Pass the event if it matches."""
        if (self.min_severity is None or event.severity >= self.min_severity) and self._matches(
            event.type
        ):
            self.sink.emit(event)

    def close(self, timeout: float = 5.0) -> bool:
        """Close the other sink; False if events may be lost."""
        return close_sink(self.sink, timeout)
