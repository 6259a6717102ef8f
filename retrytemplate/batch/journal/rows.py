"""What the columns of a job repository must hold, and how rows are read.

A row that was damaged (by hand, by a broken disk) is an error that names its table, its number and
its column.  It never changes what a run does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, get_args

from retrytemplate.batch.errors import JobRepositoryError
from retrytemplate.batch.journal.schema import COUNTS
from retrytemplate.batch.report import Status
from retrytemplate.caches.record_schema import SERIAL, TEXT, TIME, fault, loads, or_null

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from sqlalchemy import Table

    from retrytemplate.caches.record_schema import Field

    T = TypeVar("T")
    StoredRow = Mapping[Any, Any]

__all__ = [
    "LETTER",
    "MESSAGE",
    "PHASES",
    "RUN_HOLD",
    "RUN_SHOWN",
    "RUN_STATE",
    "STATES",
    "Phase",
    "State",
    "check",
    "damaged",
    "parsed",
    "readable",
]

State = Literal["open", "replayed", "discarded"]
Phase = Literal["read", "process", "write", "crash"]
STATES: tuple[State, ...] = get_args(State)
PHASES: tuple[Phase, ...] = get_args(Phase)

LATEST = 1e11  # seconds since the epoch: the year 5138
FINGERPRINT = re.compile(r"\S+ \S+ \d{1,20} \d{1,20}")


def _one_of(values: tuple[str, ...]) -> Field:
    return lambda value: value in values, f"one of {', '.join(values)}"


NUMBER: Field = (lambda value: SERIAL[0](value) and value > 0, "an int from 1 to 2**62")
BIT: Field = (lambda value: type(value) is int and value in (0, 1), "0 or 1")
WHEN: Field = (
    lambda value: TIME[0](value) and 0 <= value <= LATEST,
    f"a time from 0 to {LATEST:g} s since the epoch",
)
PROCESS: Field = (
    lambda value: TEXT[0](value) and FINGERPRINT.fullmatch(value) is not None,
    "the fingerprint of a process",
)

# For each column: what it must hold, and the value that is shown if it is damaged.
Columns = dict[str, tuple["Field", Any]]

RUN_HOLD: Columns = {
    "id": (NUMBER, 0),
    "step": (TEXT, ""),
    "parameters": (TEXT, "{}"),
    "digest": (TEXT, ""),
    "generation": (NUMBER, 1),
    "status": (_one_of(get_args(Status)), "failed"),
    "fence": (SERIAL, 0),
    "seq": (SERIAL, 0),
    "worker": (or_null(TEXT), None),
    "process": (or_null(PROCESS), None),
    "lease_until": (or_null(WHEN), None),
}
"""What a run is known by, and who has it."""

RUN_STATE: Columns = {
    **dict.fromkeys(COUNTS, (SERIAL, 0)),
    "checkpoint": (TEXT, ""),
    "error": (or_null(TEXT), None),
    "exactly_once": (BIT, 0),
}
"""How far a run is."""

RUN_SHOWN: Columns = {
    "progress": (or_null(TIME), None),
    "code_version": (or_null(TEXT), None),
    "started": (WHEN, 0.0),
    "taken": (or_null(WHEN), None),
    "done_before": (SERIAL, 0),
    "updated": (WHEN, 0.0),
    "ended": (or_null(WHEN), None),
}
"""What is only shown of a run."""

LETTER: Columns = {
    "id": (NUMBER, 0),
    "run": (NUMBER, 0),
    "step": (TEXT, ""),
    "source": (TEXT, ""),
    "number": (SERIAL, 0),
    "item_key": (TEXT, ""),
    "ordinal": (NUMBER, 1),
    "phase": (_one_of(PHASES), "write"),
    "payload": (TEXT, ""),
    "replayable": (BIT, 0),
    "error_type": (TEXT, ""),
    "error_message": (TEXT, ""),
    "attempts": (TEXT, "[]"),
    "code_version": (or_null(TEXT), None),
    "state": (_one_of(STATES), "open"),
    "created": (WHEN, 0.0),
    "resolved": (or_null(WHEN), None),
    "audit": (TEXT, "[]"),
}

MESSAGE: Columns = {
    "id": (NUMBER, 0),
    "message_id": (TEXT, ""),
    "run": (NUMBER, 0),
    "step": (TEXT, ""),
    "payload": (TEXT, "null"),
    "created": (WHEN, 0.0),
}


def check(table: Table, row: Any, columns: Columns) -> None:
    """Raise unless these columns hold what they must.

    :raises JobRepositoryError: it names the first one that does not.
    """
    _, problem = readable(table, row._mapping, columns)
    if problem is not None:
        raise JobRepositoryError(problem)


def readable(table: Table, row: StoredRow, columns: Columns) -> tuple[dict[str, Any], str | None]:
    """These columns, those that are damaged with a value that can be shown; the first problem."""
    values, problem = {}, None
    for name, (field, shown) in columns.items():
        wrong = fault("", {name: row[name]}, {name: field}, ())
        values[name] = row[name] if wrong is None else shown
        if wrong is not None and problem is None:
            problem = str(damaged(table, row, wrong))
    return values, problem


def parsed(table: Table, row: StoredRow, column: str, parse: Callable[[Any], T]) -> T:
    """What *parse* makes of the JSON value of a column.

    :raises JobRepositoryError: it is not JSON, or *parse* raised ValueError.
    """
    try:
        return parse(loads(row[column]))
    except (ValueError, TypeError, RecursionError) as exc:
        raise damaged(table, row, f"{column}: {exc}") from exc


def damaged(table: Table, row: StoredRow, wrong: str) -> JobRepositoryError:
    """The error of a damaged row; *wrong* begins with the column."""
    return JobRepositoryError(f"{table.name}, row {row['id']}, column {wrong}")
