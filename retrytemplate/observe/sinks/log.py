"""Events as records of the logging module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate.listeners.log_records import LOGGER, to_logger
from retrytemplate.observe.event_types import is_reported_by_call
from retrytemplate.observe.sinks.levels import Levels, event_fields, event_line

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    from retrytemplate.observe.event import Event


class LogSink:
    """Writes a record of ``logging`` for each event, with the lines of a ``LoggingListener``.

    :param logger: a ``logging.Logger`` or its name; default ``"retrytemplate"``.
    :param levels: levels by event type, for other levels than the severity of the events.  A type
        may be a pattern with ``*``; an exact type wins, then the first pattern.  None: no record.
    :raises ValueError: ``logging`` does not know the name of a level.

    A rejection by a component inside an execution has no record of its own: ``call.rejected`` or
    the retry reports it.  The fields of a record are attributes, as ``extra`` sets them.

    >>> from retrytemplate.observe import LogSink
    >>> sink = LogSink("shop.retries", levels={"call.failed": "ERROR", "hedge.*": None})
    """

    writes_log = True  # so that the built-in log does not write the same

    def __init__(
        self,
        logger: logging.Logger | str = LOGGER,
        levels: Mapping[str, int | str | None] = {},  # it is not changed
    ) -> None:
        self.logger = to_logger(logger)
        self._levels = Levels(levels)

    def emit(self, event: Event) -> None:
        """Write the record of the event."""
        if is_reported_by_call(event.type, event.execution_id):
            return
        level = self._levels.of(event)
        if level is not None and self.logger.isEnabledFor(level):
            self.logger.log(level, "%s", event_line(event), extra=event_fields(event))
