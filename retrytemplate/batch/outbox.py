"""Messages about written items: sent after the commit, and not lost in a crash."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attrs import asdict, field, frozen

from retrytemplate._internal.awaitables import close_unawaited, is_awaitable
from retrytemplate._internal.validation import instance_of
from retrytemplate.batch import validation
from retrytemplate.batch.errors import JobRepositoryError
from retrytemplate.batch.events import error_as_json
from retrytemplate.batch.journal.message_rows import count_messages
from retrytemplate.batch.journal.repository import JobRepository
from retrytemplate.batch.journal.rows import MESSAGE, RUN_HOLD, StoredRow, equal, readable
from retrytemplate.batch.journal.runs import is_taken
from retrytemplate.batch.journal.schema import Tables, now
from retrytemplate.errors import MisuseError, RecordedFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Sequence

    from sqlalchemy import ColumnElement, Connection, Table

    from retrytemplate._internal.values import JSON

# Messages that are read at once.
PAGE = 1000


@frozen
class Message:
    """A message that is to be sent.

    :param id: the same whenever it is sent again: by it the receiver knows one that it has.  No
        other message ever gets it, of whatever repository.
    :param payload: what ``Outbox.message`` gave.
    """

    id: str
    payload: JSON


@frozen
class Outbox:
    """Side effects of written items: a mail, a call, an event on a bus.

    :param send: ``(message) -> None``, called after the commit, with the retries of the step.
    :param message: ``(item) -> JSON value``, of each item that is written; None: nothing to send.

    Messages are committed with the items, and deleted when they are sent: each is sent at least
    once, also if the process crashes in between; once, if the receiver drops those whose ``id`` it
    knows.  One that cannot be sent waits, and so do those of its run behind it.  They are tried
    again after the next chunk, when any run of the step begins or is resumed (also if it is
    completed), with a replay, and by ``ChunkStep.send_outbox``.

    >>> Outbox(send=print, message=lambda order: {"order": order["id"]}).message({"id": 17})
    {'order': 17}
    """

    send: Callable[[Message], Any] = field(validator=validation.called)
    message: Callable[[Any], JSON] = field(validator=validation.plain)

    def texts(self, items: Iterable[Any]) -> tuple[str, ...]:
        """The messages about these items, as they are kept."""
        made = (self._made(item) for item in items)
        return tuple(json.dumps(each, allow_nan=False) for each in made if each is not None)

    def _made(self, item: Any) -> JSON:
        made = self.message(item)
        if is_awaitable(made):
            close_unawaited(made)
            raise MisuseError("the outbox's message is awaitable; use a synchronous function")
        return made


@frozen(kw_only=True)
class UnsentMessage:
    """A message that waits in the outbox.

    :param number: its place in the outbox: messages are sent in this order.
    :param id: by which the receiver knows it, see ``Message``.
    :param run: the number of the run that has written the item.
    :param created: when the item was written, in seconds since the epoch by the database's clock.
    :param problem: the damage of its row, or None; a damaged message is not sent.
    """

    number: int
    id: str
    run: int
    step: str
    payload: JSON
    created: float
    problem: str | None = None

    @property
    def message(self) -> Message:
        """The message as ``Outbox.send`` gets it."""
        return Message(self.id, self.payload)

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


@frozen(kw_only=True)
class SendReport:
    """The result of ``ChunkStep.send_outbox``.

    :param sent: number of messages that were sent.
    :param unsent: number of messages of the step that still wait.
    :param error: the first failure to send; None: there was none.
    """

    sent: int
    unsent: int
    error: RecordedFailure | None = None

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {"sent": self.sent, "unsent": self.unsent, "error": error_as_json(self.error)}


@frozen
class UnsentMessages:
    """The outbox of a job repository, read only.

    :param repository: a ``JobRepository``.

    Every method raises ``JobRepositoryError`` if the database cannot be reached or has no tables.

    >>> from tempfile import TemporaryDirectory
    >>> from retrytemplate.batch import ChunkStep, JobRepository
    >>> def send(message):
    ...     raise ConnectionError("the bus is down")
    >>> with TemporaryDirectory() as folder, JobRepository(f"sqlite:///{folder}/jobs.db") as jobs:
    ...     step = ChunkStep(
    ...         "count",
    ...         reader=[17],
    ...         writer=lambda items, transaction: None,
    ...         repository=jobs,
    ...         outbox=Outbox(send, lambda number: {"counted": number}),
    ...     )
    ...     report = step.run()
    ...     [message] = UnsentMessages(jobs).page(step="count")
    >>> report.status, report.unsent, message.payload
    ('completed', 1, {'counted': 17})
    """

    repository: JobRepository = field(validator=instance_of(JobRepository, "a JobRepository"))

    def page(
        self,
        *,
        step: str | None = None,
        run: int | None = None,
        after: int = 0,
        limit: int = 50,
    ) -> list[UnsentMessage]:
        """Messages in the order in which they are sent.

        :param step: only those of the step of this name.
        :param run: only those of the run of this number.
        :param after: only those behind this ``number``: the next page.
        :param limit: at most this many, at least 1.
        """
        validation.check_page(after, limit)
        table = self.repository.tables.messages
        wanted = [*_Filter(step, run).conditions(table), table.c.id > after]
        with self.repository.read_only() as connection:
            return _select(connection, table, wanted, limit)

    def count(self, *, step: str | None = None, run: int | None = None) -> int:
        """The number of messages that wait; the filters are those of ``page``."""
        _Filter(step, run)
        with self.repository.read_only() as connection:
            return count_messages(connection, self.repository.tables, step=step, run=run)


@frozen
class _Filter:
    step: str | None = field(validator=validation.text_or_none)
    run: int | None = field(validator=validation.number_or_none)

    def conditions(self, table: Table) -> list[ColumnElement[bool]]:
        return equal(table, step=self.step, run=self.run)


@frozen
class FindUnsent:
    """Read messages of a step that wait, the oldest first.  Answer: a list of them, a page at most.

    :param run: those of this run.
    :param others: True: also those of other runs, unless another process has the run.
    :param without: runs whose messages are left out.
    :param after: only messages behind this number.
    """

    step: str
    run: int | None
    others: bool
    without: Collection[int]
    after: int


@frozen
class SendOutbox:
    """Send a message, and delete it.  Answer: the failure, or None."""

    message: UnsentMessage


def _select(
    connection: Connection, table: Table, wanted: Sequence[ColumnElement[bool]], limit: int
) -> list[UnsentMessage]:
    from sqlalchemy import select

    rows = connection.execute(select(table).where(*wanted).order_by(table.c.id).limit(limit))
    return [_message(table, row) for row in rows.mappings()]


def _message(table: Table, row: StoredRow) -> UnsentMessage:
    values, problem = readable(table, row, MESSAGE, payload=lambda value: value)
    number, identifier = values.pop("id"), values.pop("message_id")
    return UnsentMessage(number=number, id=identifier, problem=problem, **values)


def unsent(connection: Connection, tables: Tables, wanted: FindUnsent) -> list[UnsentMessage]:
    """A page of the messages that this process may send."""
    table, without = tables.messages, set(wanted.without)
    if wanted.others:
        without |= _taken(connection, tables, wanted.step) - {wanted.run}
    conditions = _Filter(wanted.step, None if wanted.others else wanted.run).conditions(table)
    conditions += [table.c.run.not_in(without), table.c.id > wanted.after]
    return _select(connection, table, conditions, PAGE)


def _taken(connection: Connection, tables: Tables, step: str) -> set[int]:
    """Runs that another process has, or seems to have: it sends their messages."""
    from sqlalchemy import exists, select

    runs, messages = tables.runs, tables.messages
    rows = connection.execute(
        select(runs, now(connection).label("now")).where(
            runs.c.step == step,
            runs.c.status == "running",
            exists().where(messages.c.run == runs.c.id),
        )
    ).all()
    return {row.id for row in rows if readable(runs, row._mapping, RUN_HOLD)[1] or is_taken(row)}


def deliver(
    step: str,
    run: int | None = None,
    *,
    others: bool = True,
    stopping: Callable[[], bool] | None = None,
) -> Generator[Any, Any, tuple[int, list[Exception]]]:
    """Send the messages that wait, for a driver: the number of those sent, and the failures.

    They are sent in order.  Behind one that cannot be sent the others of its run wait.

    :param run: those of this run.
    :param others: also those of other runs, unless another process has the run.
    :param stopping: whether to leave the rest, checked before each message; None: never.
    """
    sent = 0
    failures: list[Exception] = []
    blocked: set[int] = set()
    after = 0
    while page := (yield FindUnsent(step, run, others, frozenset(blocked), after)):
        for message in page:
            if message.run in blocked:
                continue
            if stopping is not None and stopping():
                return sent, failures
            if message.problem is None:
                failure = yield SendOutbox(message)
            else:
                failure = JobRepositoryError(message.problem)
            if failure is None:
                sent += 1
            else:
                blocked.add(message.run)
                failures.append(failure)
        newest = max(message.number for message in page)
        if newest <= after:  # only rows are left whose number is damaged
            break
        after = newest
    return sent, failures
