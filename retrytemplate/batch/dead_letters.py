"""Inspection of dead letters, and decisions about them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TextIO, cast

from attrs import asdict, field, frozen

from retrytemplate._internal.validation import (
    check_methods,
    check_text_or_none,
    checked_by,
    instance_of,
)
from retrytemplate.batch import validation
from retrytemplate.batch.events import Event, StepListener
from retrytemplate.batch.journal.letter_rows import change_letter
from retrytemplate.batch.journal.letters import attempts_from, indexable_text, sanitize_text
from retrytemplate.batch.journal.repository import JobRepository
from retrytemplate.batch.journal.rows import (
    LETTER,
    PHASES,
    STATES,
    check,
    equal,
    parsed,
    readable,
)
from retrytemplate.batch.journal.schema import Tables, now
from retrytemplate.caches.record_schema import TEXT, TIME, objects, or_null
from retrytemplate.control.events import notify_listeners
from retrytemplate.listeners.defaults import with_defaults

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection, RowMapping, Table

    from retrytemplate.batch.journal.rows import Phase, State
    from retrytemplate.history import AttemptRecord

# Letters that ``each()`` reads at once.
PAGE = 200


@frozen(kw_only=True)
class AuditEntry:
    """One action on a dead letter.

    :param at: when, in seconds since the epoch by the database's clock.
    :param by: the operator.
    :param action: "replayed", "failed_again" or "discarded".
    """

    at: float
    by: str | None
    action: str
    reason: str | None


AUDIT = {"at": TIME, "by": or_null(TEXT), "action": TEXT, "reason": or_null(TEXT)}


def audit_from(data: Any) -> tuple[AuditEntry, ...]:
    """The entries that a JSON list holds."""
    return tuple(AuditEntry(**each) for each in objects(data, AUDIT, AUDIT))


def audited(letters: Table, row: Any, entry: AuditEntry) -> str:
    """The audit of a letter's row with one entry more, as JSON."""
    before = parsed(letters, row._mapping, "audit", audit_from)
    return json.dumps([asdict(each) for each in (*before, entry)])


@frozen(kw_only=True)
class DeadLetter:
    """An item that was given up, as the job repository keeps it.

    :param run: the number of the run that gave it up.
    :param source: where the item came from, and its ``number`` there, from 1.
    :param key: the step's key of it, as text; ``ordinal``: which one it is of that key, from 1.
    :param phase: what failed at last: "read", "process", "write", or "crash".
    :param payload: the item as text.
    :param replayable: whether the step's codec can make the item of it again.
    :param history: its failed attempts, the crashes of its process among them.
    :param state: "open", "replayed", or "discarded"; ``resolved``: since when it is not open.
    :param audit: the actions on it.
    :param problem: the damage of its row, or None.
    """

    id: int
    run: int
    step: str
    source: str
    number: int
    key: str
    ordinal: int
    phase: Phase
    payload: str
    replayable: bool
    error_type: str
    error_message: str
    history: tuple[AttemptRecord, ...]
    code_version: str | None
    state: State
    created: float
    resolved: float | None
    audit: tuple[AuditEntry, ...]
    problem: str | None = None

    @property
    def attempts(self) -> int:
        """Number of failed attempts; ``history`` has the first three and the last thirteen."""
        return self.history[-1].number if self.history else 0

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self) | {"attempts": self.attempts}


@frozen(kw_only=True)
class LetterFilter:
    """Selects dead letters; None: any value.

    :param step: those of the step of this name.
    :param run: those of the run of this number.
    :param error: those whose last failure was of this type, with its module or without.
    :param key: those of the item with this key.

    >>> LetterFilter(state="lost")
    Traceback (most recent call last):
        ...
    ValueError: state must be 'open' or 'replayed' or 'discarded' or None, got 'lost'
    """

    step: str | None = field(default=None, validator=validation.text_or_none)
    run: int | None = field(default=None, validator=validation.number_or_none)
    state: State | None = field(default=None, validator=validation.one_of_or_none(*STATES))
    error: str | None = field(default=None, validator=checked_by(check_text_or_none))
    key: str | None = field(default=None, validator=checked_by(check_text_or_none))
    phase: Phase | None = field(default=None, validator=validation.one_of_or_none(*PHASES))

    def conditions(self, tables: Tables) -> list[ColumnElement[bool]]:
        """The conditions of a statement on the letters."""
        from sqlalchemy import func, or_

        column = tables.letters.c
        conditions = equal(
            tables.letters,
            step=self.step,
            run=self.run,
            state=self.state,
            phase=self.phase,
            item_key=None if self.key is None else indexable_text(self.key),
        )
        if self.error is not None:
            error = sanitize_text(self.error)
            kind, behind = column.error_type, f".{error}"
            last = func.substr(kind, func.length(kind) - len(behind) + 1)
            conditions.append(or_(kind == error, last == behind))
        return conditions


@frozen
class Discarding:
    """Result of ``DeadLetters.discard``, by the numbers of the letters.

    :param before: those discarded before: they are unchanged.
    :param replayed: those that were replayed before: they are unchanged.
    :param unknown: numbers without a letter.
    """

    discarded: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    replayed: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()


@frozen
class DeadLetters:
    """The dead letters of a job repository.

    Every method raises ``JobRepositoryError`` if the database cannot be reached or has no tables;
    no table is created.  The filters are those of ``LetterFilter``.

    >>> from tempfile import TemporaryDirectory
    >>> from retrytemplate.batch import ChunkStep, JobRepository, SkipPolicy
    >>> with TemporaryDirectory() as folder, JobRepository(f"sqlite:///{folder}/jobs.db") as jobs:
    ...     step = ChunkStep(
    ...         "invert",
    ...         reader=[1, 0, 2],
    ...         processor=lambda number: 1 / number,
    ...         writer=lambda items, transaction: None,
    ...         repository=jobs,
    ...         skip=SkipPolicy(on=ZeroDivisionError),
    ...     )
    ...     report = step.run()
    ...     letters = DeadLetters(jobs)
    ...     [letter] = letters.page(error="ZeroDivisionError")
    ...     done = letters.discard([letter.id], by="me", reason="division by zero")
    ...     audit = letters.find(letter.id).audit
    >>> letter.payload, letter.phase, letter.state, len(letter.history)
    ('0', 'process', 'open', 3)
    >>> done.discarded, audit[0].action, audit[0].reason
    ((1,), 'discarded', 'division by zero')
    """

    repository: JobRepository = field(validator=instance_of(JobRepository, "a JobRepository"))

    def page(self, *, after: int = 0, limit: int = 50, **filters: Any) -> list[DeadLetter]:
        """Letters in the order of their numbers.

        :param after: only those behind the letter of this number: the next page.
        """
        validation.check_page(after, limit)
        conditions = LetterFilter(**filters).conditions(self.repository.tables)
        return self._read([*conditions, self.repository.tables.letters.c.id > after], limit)

    def each(self, **filters: Any) -> Iterator[DeadLetter]:
        """Yield all dead letters, read in pages."""
        after = 0
        while page := self.page(after=after, limit=PAGE, **filters):
            yield from page
            after = page[-1].id

    def count(self, **filters: Any) -> int:
        """Number of dead letters."""
        from sqlalchemy import func, select

        tables = self.repository.tables
        conditions = LetterFilter(**filters).conditions(tables)
        with self.repository.read_only() as connection:
            query = select(func.count()).select_from(tables.letters).where(*conditions)
            return connection.execute(query).scalar_one()

    def find(self, letter_id: int) -> DeadLetter | None:
        """The letter of this number, or None."""
        validation.check_number("letter_id", letter_id)
        found = self._read([self.repository.tables.letters.c.id == letter_id], 1)
        return found[0] if found else None

    def discard(self, ids: Sequence[int], *, by: str, reason: str) -> Discarding:
        """Close these letters without a replay, all in one transaction.

        A second call changes nothing.  The default listeners receive a "discarded" for each letter
        that was open.

        :param by: the operator; it and ``reason`` are kept in the audit.
        """
        validation.check_ids("ids", ids)
        names: dict[str, Any] = {"by": by, "reason": reason}
        for name, value in names.items():
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name} must be a non-blank str, got {value!r}")
        with self.repository.read_only():
            pass  # for the error, where there are no tables: a transaction would make them
        became: dict[State | None, list[int]] = {}
        events = list[Event]()
        with self.repository.translate_errors(), self.repository.transaction() as connection:
            for letter_id in dict.fromkeys(ids):
                row = _discard(connection, self.repository.tables, letter_id, by, reason)
                before = None if row is None else cast("State", row.state)
                became.setdefault(before, []).append(letter_id)
                if row is not None and before == "open":
                    events.append(
                        Event(
                            kind="discarded",
                            step=row.step,
                            run_id=row.run,
                            letter=row.id,
                            by=by,
                            reason=reason,
                        )
                    )
        notify_listeners(with_defaults((), StepListener), events)
        order: tuple[State | None, ...] = ("open", "discarded", "replayed", None)
        return Discarding(*(tuple(became.get(before, ())) for before in order))

    def export(self, stream: TextIO, **filters: Any) -> int:
        """Write the letters as JSON, one per line; return their number."""
        check_methods("stream", stream, "write")
        written = 0
        for letter in self.each(**filters):
            stream.write(json.dumps(letter.as_json()) + "\n")
            written += 1
        return written

    def _read(self, conditions: list[ColumnElement[bool]], limit: int) -> list[DeadLetter]:
        from sqlalchemy import select

        letters = self.repository.tables.letters
        query = select(letters).where(*conditions).order_by(letters.c.id).limit(limit)
        with self.repository.read_only() as connection:
            rows = connection.execute(query).mappings().all()
        return [_letter(letters, row) for row in rows]


def _discard(connection: Connection, tables: Tables, letter_id: int, by: str, reason: str) -> Any:
    """Discard an open letter, and record the operator.

    It works in the connection's transaction, and waits for concurrent changes of the letter.

    :returns: the row as it was: another state than "open" stays as it is; None: there is no such
        letter.
    """
    from sqlalchemy import select

    letters = tables.letters
    columns = [letters.c[name] for name in ("id", "run", "step", "state", "audit")]
    query = select(*columns, now(connection).label("now"))
    query = query.where(letters.c.id == letter_id).with_for_update()
    while row := connection.execute(query).first():
        check(letters, row, {"state": LETTER["state"]})
        entry = AuditEntry(at=row.now, by=by, action="discarded", reason=reason)
        values = {"state": "discarded", "resolved": row.now, "audit": audited(letters, row, entry)}
        if row.state != "open" or change_letter(connection, tables, row, values):
            return row
    return None


def _letter(letters: Table, stored: RowMapping) -> DeadLetter:
    row, problem = readable(letters, stored, LETTER, attempts=attempts_from, audit=audit_from)
    row |= {"key": row.pop("item_key"), "replayable": bool(row["replayable"])}
    history, audit = row.pop("attempts") or (), row.pop("audit") or ()
    return DeadLetter(history=history, audit=audit, problem=problem, **row)
