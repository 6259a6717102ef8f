"""Replay of dead letters: each item is processed and written as if it were read again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attrs import asdict, define, field, frozen

from retrytemplate._internal.failure_text import to_recorded_failure
from retrytemplate._internal.validation import check_text_or_none, checked_by
from retrytemplate.batch.dead_letters import AuditEntry, LetterFilter, audited
from retrytemplate.batch.engine.effects import (
    AfterCommit,
    EnterGate,
    Fatal,
    Process,
    Processed,
    Write,
    WriteJournal,
)
from retrytemplate.batch.errors import RunLostError
from retrytemplate.batch.events import EmitEvents, Event, error_as_json
from retrytemplate.batch.journal.letter_rows import change_letter
from retrytemplate.batch.journal.letters import RecordLimits, attempts_from, joined, sanitize_text
from retrytemplate.batch.journal.message_rows import add_messages
from retrytemplate.batch.journal.rows import LETTER, check, parsed
from retrytemplate.batch.journal.run import Counts
from retrytemplate.batch.journal.schema import Tables, now
from retrytemplate.batch.outbox import deliver
from retrytemplate.caches.worker_id import worker_name
from retrytemplate.history import AttemptRecord, Outcome

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from sqlalchemy import Connection, Table

    from retrytemplate.batch.engine.rules import Rules
    from retrytemplate.errors import RecordedFailure


@frozen(kw_only=True)
class ReplayReport:
    """Result of a replay of dead letters, by their ids.

    :param replayed: their items are written, or filtered, now.
    :param failed: their items failed again; they stay open, with those attempts in their history.
    :param failures: for each of those the failure of its last attempt.
    :param skipped: resolved meanwhile, or their item could not be stored.
    :param error: the rejection of a guard, or an expired deadline, that ended the replay early.
        The letter in progress and those after it are unchanged.
    :param unsent: number of messages of the step that wait in the outbox.
    """

    replayed: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    failures: Mapping[int, RecordedFailure] = field(factory=dict)
    skipped: tuple[int, ...] = ()
    error: RecordedFailure | None = None
    unsent: int = 0

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        failures = {str(letter): error_as_json(why) for letter, why in self.failures.items()}
        return asdict(self) | {"error": error_as_json(self.error), "failures": failures}


@frozen
class ReplayCandidate:
    """A letter that is to be replayed."""

    id: int
    run: int
    payload: str
    replayable: bool


def find(
    connection: Connection, tables: Tables, filters: LetterFilter, ids: Sequence[int] | None
) -> list[ReplayCandidate]:
    """The letters, the oldest first.

    :param ids: these; None: all that match the filters, except items that crashed their process:
        they would crash this one.
    :raises JobRepositoryError: one of them is damaged.
    """
    from sqlalchemy import select

    table = tables.letters
    columns = [table.c[name] for name in ("id", "run", "phase", "payload", "replayable")]
    chosen = select(*columns).where(*filters.conditions(tables))
    if ids is not None:
        chosen = chosen.where(table.c.id.in_(list(ids)))
    else:
        chosen = chosen.where(table.c.phase != "crash")
    rows = connection.execute(chosen.order_by(table.c.id)).all()
    for row in rows:
        check(table, row, {name: LETTER[name] for name in row._mapping})
    return [ReplayCandidate(row.id, row.run, row.payload, bool(row.replayable)) for row in rows]


@frozen
class Resolved:
    """The item is done: the update of its letter, in the transaction that writes the item."""

    messages: Sequence[str] = ()
    counts: Counts = field(factory=Counts)


@frozen
class FailedAgain:
    """The item failed again: the update of its letter."""

    attempts: Sequence[AttemptRecord]
    error: RecordedFailure


def _or_worker_name(by: Any) -> Any:
    return worker_name() if by is None else by


@define
class ReplayRequest:
    """The letter in progress: replaces a run.

    :param step: the step's name.
    :param limits: of the failures that are kept.
    :param by: who replays; None: this process's worker name.
    """

    step: str
    limits: RecordLimits
    by: str = field(converter=_or_worker_name, validator=checked_by(check_text_or_none))
    letter: ReplayCandidate | None = None

    @property
    def id(self) -> int:
        """The run that the letter is of."""
        assert self.letter is not None
        return self.letter.run

    def apply(self, update: Any) -> None:
        """The letter has it."""


class Ledger:
    """The journal of a replay: updates the letter in the transaction of its item."""

    @staticmethod
    def close(connection: Connection, tables: Tables, request: ReplayRequest, update: Any) -> None:
        """Write the update of the item.

        :raises RunLostError: the letter was resolved meanwhile.
        """
        assert request.letter is not None
        row = _lock_letter(connection, tables, request.letter.id)
        if row.state != "open":
            raise RunLostError(f"dead letter {row.id} is {row.state} already")
        values = _values(connection, tables.letters, row, request, update)
        if not change_letter(connection, tables, row, values):
            raise RunLostError(f"another process changed dead letter {row.id} during its replay")
        add_messages(connection, tables, row.run, row.step, getattr(update, "messages", ()))

    @staticmethod
    def is_applied(connection: Connection, tables: Tables, request: ReplayRequest) -> bool:
        """Whether a commit without a result has succeeded."""
        assert request.letter is not None
        return bool(_lock_letter(connection, tables, request.letter.id).state == "replayed")


def _lock_letter(connection: Connection, tables: Tables, letter: int) -> Any:
    from sqlalchemy import select

    table = tables.letters
    found = select(table, now(connection).label("now")).where(table.c.id == letter)
    row = connection.execute(found.with_for_update()).one()
    check(table, row, LETTER)
    return row


def _values(
    connection: Connection, table: Table, row: Any, request: ReplayRequest, update: Any
) -> dict[str, Any]:
    action = "replayed" if isinstance(update, Resolved) else "failed_again"
    entry = AuditEntry(at=row.now, by=request.by, action=action, reason=None)
    audit = audited(table, row, entry)
    if isinstance(update, Resolved):
        return {"state": "replayed", "resolved": now(connection), "audit": audit}
    before = parsed(table, row._mapping, "attempts", attempts_from)
    attempts, failure = request.limits.fit(update.error, joined(before, update.attempts))
    return {
        "attempts": json.dumps([asdict(attempt) for attempt in attempts]),
        "error_type": sanitize_text(failure.type_name),
        "error_message": sanitize_text(failure.message),
        "audit": audit,
    }


@define
class _Replay:
    rules: Rules
    request: ReplayRequest
    replayed: list[int] = field(factory=list)
    failed: list[int] = field(factory=list)
    failures: dict[int, RecordedFailure] = field(factory=dict)
    skipped: list[int] = field(factory=list)

    def replay_letter(self, letter: ReplayCandidate) -> Generator[Any, Any, list[int]]:
        """Where the letter's id belongs to.

        :raises Fatal: it was rejected by a guard or a deadline.
        """
        self.request.letter = letter
        if not letter.replayable:
            return self.skipped
        yield EnterGate(exclusive=False)
        try:
            item = self.rules.codec.decode(letter.payload)
        except Exception as exc:  # the other letters are replayed
            error = to_recorded_failure(exc)
            text = self.request.limits.text(error.message)
            attempt = AttemptRecord(1, None, None, error.type_name, text)
            return (yield from self._failed([attempt], exc))
        done = Processed([item])
        if self.rules.uses_processor:
            done = yield Process([item])
        if done.fatal:
            raise Fatal(done.failures[0])
        history = done.histories.get(0, ())
        if done.failures:
            return (yield from self._failed(history, done.failures[0]))
        items = [
            value for value in done.values if value is not None or not self.rules.uses_processor
        ]
        # Not a JournalUpdate: the ledger of a replay takes Resolved, with counts and messages.
        outcome: Outcome[Any] = yield Write(items, Resolved())  # type: ignore[arg-type]  # see above
        if outcome.exception is not None:
            return (yield from self._failed(joined(history, outcome.history), outcome.exception))
        if self.rules.has_listeners:
            yield EmitEvents([self._replayed(letter)])
        if self.rules.after_commit and outcome.value:
            yield AfterCommit(list(outcome.value.values()))
        yield from self.send(run=letter.run, others=False)
        return self.replayed

    def _replayed(self, letter: ReplayCandidate) -> Event:
        step, by = self.request.step, self.request.by
        return Event(kind="replayed", step=step, run_id=letter.run, letter=letter.id, by=by)

    def send(self, **which: Any) -> Generator[Any, Any, None]:
        """Send messages that wait; one that cannot be sent is no failure of the replay."""
        if self.rules.outbox is not None:
            yield from deliver(self.request.step, **which)

    def _failed(
        self, history: Sequence[AttemptRecord], failure: BaseException
    ) -> Generator[Any, Any, list[int]]:
        again = FailedAgain(history, to_recorded_failure(failure))
        yield WriteJournal(again)  # type: ignore[arg-type]  # as above
        assert self.request.letter is not None
        _, self.failures[self.request.letter.id] = self.request.limits.fit(again.error)
        return self.failed


def replay_steps(
    rules: Rules, request: ReplayRequest, letters: Iterable[ReplayCandidate]
) -> Generator[Any, Any, ReplayReport]:
    """The steps of a replay, for a driver."""
    replay, error = _Replay(rules, request), None
    yield from replay.send()
    for letter in letters:
        try:
            where = yield from replay.replay_letter(letter)
        except RunLostError:  # another replay was faster
            where = replay.skipped
        except Fatal as fatal:
            error = to_recorded_failure(*fatal.args)
            break
        where.append(letter.id)
    return ReplayReport(
        replayed=tuple(replay.replayed),
        failed=tuple(replay.failed),
        failures=replay.failures,
        skipped=tuple(replay.skipped),
        error=error,
    )
