"""Pages of the events that a sink has received."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from attrs import field, frozen

from retrytemplate._internal.validation import check_at_least_one, checked_by
from retrytemplate.observe.sinks.base import type_matcher

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate.observe.event import Event


@frozen(kw_only=True)
class EventQuery:
    """A page of events; the parameters are those of ``EventReader.page``."""

    type: str | None
    subject: str | None
    execution_id: str | None
    since: float | None
    before: str | None
    limit: int = field(validator=checked_by(check_at_least_one))

    def select(self, events: Iterable[Event]) -> list[Event]:
        """The page of these events, which are the newest first."""
        matches = None if self.type is None else type_matcher([self.type], "type")
        newest = iter(events)
        if self.before is not None:
            for event in newest:
                if event.id == self.before:
                    break
        found = (
            event
            for event in newest
            if (matches is None or matches(event.type))
            and (self.subject is None or event.subject == self.subject)
            and (self.execution_id is None or event.execution_id == self.execution_id)
            and (self.since is None or event.time >= self.since)
        )
        return list(islice(found, self.limit))


class EventReader:
    """Adds ``page`` to a sink that keeps its events."""

    def page(
        self,
        *,
        type: str | None = None,
        subject: str | None = None,
        execution_id: str | None = None,
        since: float | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[Event]:
        """Events, the newest first.

        :param type: of this type, or of those that match a pattern with ``*``; None: all.
        :param subject: of this subject.
        :param execution_id: of this execution.
        :param since: not before this time, in seconds since the epoch.
        :param before: only those before the event with this id: the next page.
        :param limit: at most this number, at least 1.
        """
        return self._page(
            EventQuery(
                type=type,
                subject=subject,
                execution_id=execution_id,
                since=since,
                before=before,
                limit=limit,
            )
        )

    def _page(self, query: EventQuery) -> list[Event]:
        raise NotImplementedError
