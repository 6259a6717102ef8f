"""Messages about what was written: sent after the commit, and not lost with the process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._checks import close_unawaited, is_awaitable
from retrytemplate.batch import checks
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlalchemy import Connection

    from retrytemplate._values import JSON
    from retrytemplate.batch.journal import Run
    from retrytemplate.batch.tables import Tables

__all__ = ["Message", "Outbox", "drop", "waiting"]

# Of the messages that are waiting, so many at once.
PAGE = 1000


@frozen
class Message:
    """A message that is to be sent.

    :param id: the same whenever it is sent again: by it the receiver knows one that it has.
    :param payload: what ``Outbox.message`` gave.
    """

    id: str
    payload: JSON


@frozen
class Outbox:
    """Side effects of what was written: a mail, a call, an event on a bus.

    :param send: ``(message) -> None``, called after the commit, with the retries of the step.
    :param message: ``(item) -> JSON value``, of each item that is written; None: nothing to send.

    Messages are committed with the items, and dropped when they are sent: each is sent at least
    once, also when the process dies in between; once, where the receiver drops those whose ``id``
    it has had.  One that cannot be sent stays, and those behind it: they are tried again after the
    next chunk, and with the next run.

    >>> Outbox(send=print, message=lambda order: {"order": order["id"]}).message({"id": 17})
    {'order': 17}
    """

    send: Callable[[Message], Any] = field(validator=checks.called)
    message: Callable[[Any], JSON] = field(validator=checks.plain)

    def texts(self, items: Iterable[Any]) -> tuple[str, ...]:
        """The messages about these items, as they are kept."""
        made = (self._made(item) for item in items)
        return tuple(json.dumps(each, allow_nan=False) for each in made if each is not None)

    def _made(self, item: Any) -> JSON:
        made = self.message(item)
        if is_awaitable(made):
            close_unawaited(made)
            raise MisuseError("the outbox's message has to be awaited: give it a plain function")
        return made


def waiting(connection: Connection, tables: Tables, run: Run) -> list[tuple[int, Message]]:
    """Messages of the run that are not sent, by their row."""
    from sqlalchemy import select

    table = tables.messages
    rows = connection.execute(
        select(table.c.id, table.c.payload)
        .where(table.c.run == run.id)
        .order_by(table.c.id)
        .limit(PAGE)
    )
    return [(row.id, Message(f"{run.id}:{row.id}", json.loads(row.payload))) for row in rows]


def drop(connection: Connection, tables: Tables, row: int) -> None:
    """It is sent."""
    table = tables.messages
    connection.execute(table.delete().where(table.c.id == row))
