"""Dead letters: the items that were given up, with all that happened to them."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from retrytemplate.batch.journal import Run
    from retrytemplate.batch.tables import Tables
    from retrytemplate.history import AttemptRecord

__all__ = ["LONGEST", "Letter", "change", "digest", "history_of", "insert", "sought", "storable"]

LONGEST = 500
"""Characters of what an index holds: 2,700 bytes on PostgreSQL, of which one may take four."""


@frozen
class Letter:
    """An item that was given up.

    :param source: where it came from, and its number there, from 1.
    :param key: the step's key of it, as text.
    :param phase: what failed at last: "read", "process", "write", or "crash".
    :param payload: the item as text.
    :param replayable: whether the codec can make the item of it again.
    :param attempts: its failed attempts, the deaths of its process among them.
    """

    source: str
    number: int
    key: str
    phase: str
    payload: str
    replayable: bool
    error_type: str
    error_message: str
    attempts: tuple[AttemptRecord, ...]


def history_of(*parts: Iterable[AttemptRecord]) -> tuple[AttemptRecord, ...]:
    """Attempts of several phases as those of one item."""
    every = [attempt for part in parts for attempt in part]
    return tuple(evolve(attempt, number=number) for number, attempt in enumerate(every, 1))


def storable(text: str) -> str:
    """The text with what not every database takes told in ASCII: halves of characters, and NUL.

    >>> storable("a\\ud800b")
    'a\\\\ud800b'
    """
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def digest(text: str) -> str:
    """What a text of any length is known by."""
    return sha256(text.encode()).hexdigest()


def sought(text: str) -> str:
    """The text as a column with an index keeps it: of a long one the beginning, and its digest.

    >>> sought("order-1"), len(sought("order" * 1000))
    ('order-1', 500)
    """
    kept = storable(text)
    if len(kept) <= LONGEST:
        return kept
    told = f"...{digest(kept)}"
    return kept[: LONGEST - len(told)] + told


def insert(connection: Connection, tables: Tables, run: Run, letters: Sequence[Letter]) -> None:
    """Write them in the transaction that decides about them."""
    from sqlalchemy import func, select

    from retrytemplate.batch.journal import now

    table = tables.letters
    for letter in letters:
        key, payload = sought(letter.key), storable(letter.payload)
        before = select(func.count()).where(table.c.run == run.id, table.c.item_key == key)
        connection.execute(
            table.insert().values(
                run=run.id,
                step=run.identity.step,
                source=sought(letter.source),
                number=letter.number,
                item_key=key,
                ordinal=before.scalar_subquery() + 1,
                phase=letter.phase,
                payload=payload,
                replayable=int(letter.replayable and payload == letter.payload),
                error_type=storable(letter.error_type),
                error_message=storable(letter.error_message),
                attempts=json.dumps([asdict(attempt) for attempt in letter.attempts]),
                code_version=run.identity.code_version,
                state="open",
                created=now(connection),
                audit="[]",
            )
        )


def change(connection: Connection, tables: Tables, row: Any, values: Mapping[str, Any]) -> bool:
    """Change an open letter as its row was read; False: somebody else has decided meanwhile.

    Not every engine of a caller locks what it reads.
    """
    letters = tables.letters
    as_read = (letters.c.id == row.id, letters.c.state == "open", letters.c.audit == row.audit)
    return bool(connection.execute(letters.update().where(*as_read).values(values)).rowcount)
