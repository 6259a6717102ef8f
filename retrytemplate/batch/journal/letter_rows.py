"""Statements on the rows of dead letters."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attrs import asdict

from retrytemplate.batch.journal.letters import Letter, indexable_text, sanitize_text
from retrytemplate.batch.journal.rows import equal
from retrytemplate.batch.journal.schema import Tables, clock
from retrytemplate.errors import RecordedFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from retrytemplate.batch.journal.run import Run


def insert_letters(
    connection: Connection, tables: Tables, run: Run, letters: Sequence[Letter]
) -> None:
    """Write them in the transaction that decides about them."""
    insertion = _insertion(tables, connection.dialect.name)
    for letter in letters:
        key, payload = indexable_text(letter.key), sanitize_text(letter.payload)
        failure = RecordedFailure(letter.error_type, letter.error_message, None)
        attempts, failure = run.request.limits.fit(failure, letter.attempts)
        connection.execute(
            insertion,
            {
                "of_run": run.id,
                "of_step": run.request.step,
                "of_source": indexable_text(letter.source),
                "of_number": letter.number,
                "of_item_key": key,
                "of_phase": letter.phase,
                "of_payload": payload,
                "of_replayable": int(letter.replayable and payload == letter.payload),
                "of_error_type": sanitize_text(failure.type_name),
                "of_error_message": sanitize_text(failure.message),
                "of_attempts": json.dumps([asdict(attempt) for attempt in attempts]),
                "of_code_version": run.request.code_version,
            },
        )


@lru_cache
def _insertion(tables: Tables, dialect: str) -> Any:
    """The statement that adds a letter, cached: to build it takes longer than to execute it."""
    from sqlalchemy import bindparam, func, select

    table = tables.letters
    given = (
        "run, step, source, number, item_key, phase, payload, replayable, error_type, "
        "error_message, attempts, code_version"
    )
    bound = {name: bindparam(f"of_{name}", type_=table.c[name].type) for name in given.split(", ")}
    before = select(func.count()).where(
        table.c.run == bound["run"], table.c.item_key == bound["item_key"]
    )
    ordinal = before.scalar_subquery() + 1
    return table.insert().values(
        **bound, ordinal=ordinal, state="open", created=clock(dialect), audit="[]"
    )


def change_letter(
    connection: Connection, tables: Tables, row: Any, values: Mapping[str, Any]
) -> bool:
    """Change an open letter if its row is as it was read; False: it was changed meanwhile.

    Some engines of callers do not lock the rows that they read.
    """
    letters = tables.letters
    as_read = (letters.c.id == row.id, letters.c.state == "open", letters.c.audit == row.audit)
    return bool(connection.execute(letters.update().where(*as_read).values(values)).rowcount)


def count_open_letters(connection: Connection, tables: Tables) -> dict[str, int]:
    """The number of open letters by step; steps without one are left out."""
    from sqlalchemy import func, select

    letters = tables.letters
    query = select(letters.c.step, func.count().label("letters"))
    query = query.where(*equal(letters, state="open")).group_by(letters.c.step)
    return {row.step: row.letters for row in connection.execute(query)}
