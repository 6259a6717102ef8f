"""Events as entries of structlog."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.imports import extra
from retrytemplate.observe.event_types import is_reported_by_call
from retrytemplate.observe.sinks.levels import Levels, event_fields, event_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrytemplate.observe.event import Event

METHODS = ("debug", "info", "warning", "error", "critical")
STARTS = (20, 30, 40, 50)  # of the levels, from the second on


class StructlogSink:
    """Writes an entry of structlog for each event.

    :param logger: a logger of structlog; None: ``structlog.get_logger()``.
    :param levels: as of ``LogSink``.
    :raises MissingExtraError: structlog is not installed: the extra ``structlog`` has it.

    The entry's event is the line that a ``LogSink`` writes.  The fields are its keys, without those
    that are None; ``type`` is the type of the event.
    """

    writes_log = True  # so that the built-in log does not write the same

    def __init__(
        self,
        logger: Any = None,
        levels: Mapping[str, int | str | None] = {},  # it is not changed
    ) -> None:
        if logger is None:
            with extra("structlog", "a StructlogSink"):
                import structlog

            logger = structlog.get_logger()
        self.logger = logger
        self._levels = Levels(levels)

    def emit(self, event: Event) -> None:
        """Write the entry of the event."""
        if is_reported_by_call(event.type, event.execution_id):
            return
        level = self._levels.of(event)
        if level is None:
            return
        fields = event_fields(event)
        keys = {name: value for name, value in fields.items() if value is not None}
        keys["type"] = keys.pop("event")
        getattr(self.logger, METHODS[bisect_right(STARTS, level)])(event_line(event), **keys)
