"""Levels of log records by type of event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from retrytemplate.listeners.log_records import check_level, record_fields, record_line, to_level
from retrytemplate.observe.sinks.base import type_matcher

if TYPE_CHECKING:
    from retrytemplate.observe.event import Event


class Levels:
    """The level of the record of an event.

    :param levels: levels by type; a type may be a pattern with ``*``.  None: no record.
    """

    def __init__(self, levels: Mapping[str, int | str | None]) -> None:
        if not isinstance(levels, Mapping):
            raise TypeError(f"levels must map event types to levels, got {levels!r}")
        self._exact: dict[str, Any] = {}
        self._patterns: list[tuple[Any, Any]] = []
        for kind, given in levels.items():
            level = to_level(given)
            matches = type_matcher([kind], "levels: each key")
            check_level(f"levels[{kind!r}]", level)
            if "*" in kind:
                self._patterns.append((matches, level))
            else:
                self._exact[kind] = level

    def of(self, event: Event) -> int | None:
        """The level of the event; None: it has no record."""
        kind = event.type
        if kind in self._exact:
            level: int | None = self._exact[kind]
            return level
        for matches, level in self._patterns:
            if matches(kind):
                return level
        return event.severity


def event_line(event: Event) -> str:
    """The text of the event's record."""
    return record_line(event.type, event.subject, event.data)


def event_fields(event: Event) -> dict[str, Any]:
    """The fields of the event's record."""
    parent = event.traceparent
    return record_fields(
        event.type,
        event.subject,
        event.data,
        correlation=event.correlation,
        execution_id=event.execution_id,
        root_id=event.root_id,
        trace_id=None if parent is None else parent.split("-")[1],
    )
