"""Statements on the rows of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from retrytemplate.batch.journal.rows import equal
from retrytemplate.batch.journal.schema import Tables, now

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection


def add_messages(
    connection: Connection, tables: Tables, run: int, step: str, messages: Iterable[str]
) -> None:
    """Insert messages, in the transaction that writes their items."""
    rows = [
        {"message_id": uuid4().hex, "run": run, "step": step, "payload": text} for text in messages
    ]
    if rows:
        connection.execute(tables.messages.insert().values(created=now(connection)), rows)


def count_messages(
    connection: Connection, tables: Tables, step: str | None = None, run: int | None = None
) -> int:
    """Number of unsent messages."""
    from sqlalchemy import func, select

    table = tables.messages
    counted = select(func.count()).select_from(table).where(*equal(table, step=step, run=run))
    return connection.execute(counted).scalar_one()


def delete_messages(connection: Connection, tables: Tables, message_id: str) -> None:
    """Delete the message of this id, which was sent."""
    table = tables.messages
    connection.execute(table.delete().where(table.c.message_id == message_id))
