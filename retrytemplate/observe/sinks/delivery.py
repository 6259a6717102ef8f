"""Calls of a sink, which change nothing else if it raises."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from retrytemplate.observe.failure_log import FailureLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from retrytemplate.observe.event import Event

    OnLoss = Callable[[str, int], None]

FAILED = "the sink %r raised an exception (%d so far); its events are lost"


class Delivery:
    """Gives events to a sink; its exceptions are logged at most once per minute, and counted.

    ``on_loss`` is called with the metric and the number of exceptions or dropped events.

    :param now: the present time in seconds.
    """

    def __init__(self, sink: Any, now: Callable[[], float] = monotonic) -> None:
        self.sink = sink
        self.on_loss: OnLoss | None = None
        self._failures = FailureLog(FAILED, sink, now=now)

    @property
    def errors(self) -> int:
        """Exceptions of the sink."""
        return self._failures.errors

    def emit(self, event: Event) -> bool:
        """Give the event to the sink; False if it raised an exception."""
        try:
            self.sink.emit(event)
        except Exception:
            self._failed()
            return False
        return True

    def emit_many(self, events: Sequence[Event]) -> int:
        """Give the events to the sink, at once if it can; return the number of lost ones."""
        emit_many = getattr(self.sink, "emit_many", None)
        if emit_many is None:
            return sum(not self.emit(event) for event in events)
        try:
            emit_many(events)
        except Exception:
            self._failed()
            return len(events)
        return 0

    def drop(self, number: int) -> None:
        """Report events that are dropped."""
        if number and self.on_loss is not None:
            self.on_loss("sink.dropped", number)

    def _failed(self) -> None:
        self._failures.add()
        if self.on_loss is not None:
            self.on_loss("sink.errors", 1)


def report_losses(delivery: Delivery, on_loss: Callable[[str, str, int], None]) -> None:
    """Report the losses of a sink and of those behind it.

    :param on_loss: called with the metric, the class of the last sink, and a number.
    """
    deliveries = [delivery]
    sink = delivery.sink
    while hasattr(sink, "sink"):
        inner = getattr(sink, "_delivery", None)
        deliveries += [inner] if isinstance(inner, Delivery) else []
        sink = sink.sink
    name = type(sink).__name__
    for each in deliveries:
        each.on_loss = lambda metric, number: on_loss(metric, name, number)
