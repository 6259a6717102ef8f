"""The columns of a job repository, the values that they may hold, and how rows are read.

A row that was damaged (manually, by a broken disk) is an error that names its table, its number and
its column.  It never changes a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

from retrytemplate.batch.errors import JobRepositoryError
from retrytemplate.batch.report import Status
from retrytemplate.caches.record_schema import SERIAL, TEXT, TIME, Field, fault, loads, or_null

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table


T = TypeVar("T")
StoredRow = Mapping[Any, Any]

State = Literal["open", "replayed", "discarded"]
Phase = Literal["read", "process", "write", "crash"]
STATES: tuple[State, ...] = get_args(State)
PHASES: tuple[Phase, ...] = get_args(Phase)

LATEST = 1e11  # seconds since the epoch: the year 5138
FINGERPRINT = re.compile(r"\S+ \S+ \d{1,20} \d{1,20}")


COUNTS = "read written filtered dead_lettered skipped retries rollbacks crashes".split()


class Column(NamedTuple):
    """A column of a table.

    :param field: the values that it may hold, and their description.
    :param shown: the value that is shown if it is damaged.
    :param kind: its type in the database: "text", "number" or "time".
    """

    field: Field
    shown: Any
    kind: str
    is_nullable: bool = False


def _text(shown: str = "", field: Field = TEXT) -> Column:
    return Column(field, shown, "text")


def _one_of(values: tuple[str, ...], shown: str) -> Column:
    return _text(shown, (lambda value: value in values, f"one of {', '.join(values)}"))


def _or_null(column: Column) -> Column:
    return Column(or_null(column.field), None, column.kind, is_nullable=True)


ID = Column((lambda value: SERIAL[0](value) and value > 0, "an int from 1 to 2**62"), 0, "number")
FROM_ONE = ID._replace(shown=1)
NUMBER = Column(SERIAL, 0, "number")
BIT = Column((lambda value: type(value) is int and value in (0, 1), "0 or 1"), 0, "number")
WHEN = Column(
    (
        lambda value: TIME[0](value) and 0 <= value <= LATEST,
        f"a time from 0 to {LATEST:g} s since the epoch",
    ),
    0.0,
    "time",
)
PROCESS: Field = (
    lambda value: TEXT[0](value) and FINGERPRINT.fullmatch(value) is not None,
    "the fingerprint of a process",
)

Columns = dict[str, Column]

RUN_HOLD: Columns = {
    "id": ID,
    "step": _text(),
    "parameters": _text("{}"),
    "digest": _text(),  # of the parameters: an index takes no text of any length
    "generation": FROM_ONE,
    "status": _one_of(get_args(Status), "failed"),
    # The holder: the fence only grows, and every write compares both.
    "fence": NUMBER,
    "seq": NUMBER,
    "worker": _or_null(_text()),
    "process": _or_null(_text(field=PROCESS)),
    "lease_until": _or_null(WHEN),
}
"""The identity of a run, and its holder."""

RUN_STATE: Columns = {
    **dict.fromkeys(COUNTS, NUMBER),
    "checkpoint": _text(),
    "error": _or_null(_text()),
    "exactly_once": BIT,
}
"""The progress of a run."""

RUN_SHOWN: Columns = {
    "progress": _or_null(Column(TIME, None, "time")),
    "code_version": _or_null(_text()),
    "started": WHEN,
    # When the present or last holder took it, and the number of items done by then.
    "taken": _or_null(WHEN),
    "done_before": NUMBER,
    "updated": WHEN,
    "ended": _or_null(WHEN),
}
"""Columns that are only shown."""

RUN: Columns = {**RUN_HOLD, **RUN_STATE, **RUN_SHOWN}

LETTER: Columns = {
    "id": ID,
    "run": ID,
    "step": _text(),
    "source": _text(),
    "number": NUMBER,
    "item_key": _text(),
    "ordinal": FROM_ONE,
    "phase": _one_of(PHASES, "write"),
    "payload": _text(),
    "replayable": BIT,
    "error_type": _text(),
    "error_message": _text(),
    "attempts": _text("[]"),
    "code_version": _or_null(_text()),
    "state": _one_of(STATES, "open"),
    "created": WHEN,
    "resolved": _or_null(WHEN),
    "audit": _text("[]"),
}

MESSAGE: Columns = {
    # The id orders messages; SQLite uses it again, so it identifies none of them.
    "id": ID,
    "message_id": _text(),
    "run": ID,
    "step": _text(),
    "payload": _text("null"),
    "created": WHEN,
}


def check(table: Table, row: Any, columns: Columns) -> None:
    """Raise unless these columns have allowed values.

    :raises JobRepositoryError: it names the first one that does not.
    """
    _, problem = readable(table, row._mapping, columns)
    if problem is not None:
        raise JobRepositoryError(problem)


def readable(
    table: Table, row: StoredRow, columns: Columns, **parsers: Callable[[Any], Any]
) -> tuple[dict[str, Any], str | None]:
    """These columns, damaged ones with a value that can be shown, and the first problem.

    :param parsers: make the values of columns with JSON; None in place of a value that they reject.
    """
    values, problem = {}, None
    for name, column in columns.items():
        wrong = fault("", {name: row[name]}, {name: column.field}, ())
        values[name] = row[name] if wrong is None else column.shown
        if wrong is not None and problem is None:
            problem = str(damaged(table, row, wrong))
    for name, parse in parsers.items():
        try:
            values[name] = parsed(table, values, name, parse)
        except JobRepositoryError as exc:
            values[name], problem = None, problem or str(exc)
    return values, problem


def equal(table: Table, **values: Any) -> list[ColumnElement[bool]]:
    """Conditions: columns have these values; None: any."""
    return [table.c[name] == value for name, value in values.items() if value is not None]


def parsed(table: Table, row: StoredRow, column: str, parse: Callable[[Any], T]) -> T:
    """Parse the JSON value of a column.

    :raises JobRepositoryError: it is not JSON, or *parse* raised ValueError.
    """
    try:
        return parse(loads(row[column]))
    except (ValueError, TypeError, RecursionError) as exc:
        raise damaged(table, row, f"{column}: {exc}") from exc


def damaged(table: Table, row: StoredRow, wrong: str) -> JobRepositoryError:
    """The error of a damaged row; *wrong* begins with the column."""
    return JobRepositoryError(f"{table.name}, row {row['id']}, column {wrong}")
