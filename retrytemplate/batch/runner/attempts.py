"""One attempt to write a part of a chunk: the items and the journal, in one transaction.

The commit is part of the attempt.  If its result is unknown, the next attempt reads the run's row
first, under its lock: this waits for a commit in progress.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from retrytemplate.batch.engine.effects import Fatal, Try, Write
from retrytemplate.batch.errors import RunLostError
from retrytemplate.batch.journal.run import Counts, JournalUpdate, Run
from retrytemplate.errors import MisuseError
from retrytemplate.guards import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate.batch.runner.transactions import Transactions
    from retrytemplate.history import Outcome

ROLLBACKS = ("transaction", "savepoint", "none")
ITEM_DATABASE = "the database of the items"
# The databases that have these statements.
SAVEPOINTS = ("sqlite", "postgresql", "mysql", "mariadb")
SAVEPOINT = "SAVEPOINT retrytemplate_part"
ROLLBACK_TO_SAVEPOINT = "ROLLBACK TO SAVEPOINT retrytemplate_part"
RELEASE_SAVEPOINT = "RELEASE SAVEPOINT retrytemplate_part"
# What ends the run whatever its template allows.
ENDING = (RunLostError, Fatal)


@define(eq=False)
class _Transaction:
    """An open transaction, if there is one."""

    transactions: Transactions
    run: Run
    _open: Any = field(init=False, default=None)

    def _begin(self, engine: Any) -> Operation[Any]:
        if self._open is None:
            self._open = engine.connect()
            try:
                yield self.transactions.begin(self._open)
            except BaseException:
                yield from self.close()
                raise
        return self._open

    def close(self) -> Operation[None]:
        """Close the connection, rolled back unless committed; also while it is cancelled."""
        if self._open is not None:
            with suppress(Exception):  # the earlier failure is raised
                yield self.transactions.end(self._open)
            self._open = None  # not before: a signal may come in between

    def _check_applied(self) -> Operation[bool]:
        """Whether the journal has the transaction."""
        done: bool = yield self.transactions.statement(
            self.transactions.ledger.is_applied, self.run
        )
        return done


@define(eq=False)
class Attempts(_Transaction, Guard):
    """The attempts at one part of a chunk.

    :param verify: raises ``Fatal`` if the source of the items has changed.
    :param shared: the transaction that they share with other parts; None: each has its own.
    :param commit_unknown: whether the last one ended with a commit that was not answered.
    :param _committed: whether one is committed; of a shared transaction: in it.
    """

    effect: Write | Try
    verify: Callable[[], Operation[None]]
    shared: Shared | None = None
    commit_unknown: bool = False
    _attempts_made: int = field(init=False, default=0)
    _committed: bool = field(init=False, default=False)
    _written: Mapping[int, Any] = field(init=False, factory=dict)
    """By index in the effect; a missing item was filtered."""
    _messages: Sequence[str] = field(init=False, default=())

    @property
    def journal_update(self) -> JournalUpdate:
        """The update of the attempt in progress: its counts include the attempts before it."""
        update = self.effect.update  # type: ignore[union-attr]  # which only a Write asks for
        again = self._attempts_made - 1
        filtered = len(self.effect.items) - len(self._written)
        if again or filtered:
            more = Counts(retries=again, rollbacks=again, written=-filtered, filtered=filtered)
            update = evolve(update, counts=update.counts + more)
        return evolve(update, messages=self._messages) if self._messages else update

    @property
    def keeps_transaction(self) -> bool:
        """Whether one transaction may hold several attempts."""
        return bool(self.transactions.rollback != "transaction")

    def shared_outcome(self, outcome: Outcome[Any]) -> Outcome[Any] | None:
        """The outcome of a part of a shared transaction; None: that is lost, or in doubt."""
        assert self.shared is not None
        if self.shared.is_lost:
            return None
        if self._is_written(outcome):
            self.shared.messages += self._messages
            return self._succeeded(outcome)
        return None if self._is_in_doubt(outcome) else outcome

    def _is_in_doubt(self, outcome: Outcome[Any]) -> bool:
        """Whether the database has to be queried before a failure is decided."""
        from sqlalchemy.exc import InterfaceError, OperationalError

        failure = outcome.exception
        away = isinstance(failure, (InterfaceError, OperationalError))
        return failure is not None and (self.commit_unknown or away)

    def _is_written(self, outcome: Outcome[Any]) -> bool:
        """Whether it is written, perhaps too late, or found in the journal afterwards."""
        return self._committed or (outcome.ok and not isinstance(outcome.value, ENDING))

    def _succeeded(self, outcome: Outcome[Any]) -> Outcome[Any]:
        """The outcome of a written part; a later failure of its last attempt is dropped."""
        history = outcome.history[: self._attempts_made - 1]
        return evolve(outcome, value=self._written, exception=None, history=history)

    def run_attempt(self) -> Any:
        """Perform one attempt; see ``attempt``."""
        return self.transactions.perform(self.attempt())

    def attempt(self) -> Operation[RunLostError | Fatal | Mapping[int, Any]]:
        """One attempt; returns the written items.

        A run that was taken over and a source that has changed are not failures of the attempt:
        their error is returned.
        """
        try:
            if not (self._committed or (self.commit_unknown and (yield from self._find_commit()))):
                self._attempts_made += 1
                # A cancelled writer ends before its connection is used again.
                yield self.transactions.finish(self._write_in_transaction(), cut=True)
        except ENDING as error:
            return error
        return self._written

    def resolve_outcome(self, outcome: Outcome[Any]) -> Operation[Outcome[Any]]:
        """The outcome, corrected if a commit that was taken for a failure has succeeded.

        :raises JobRepositoryError: the database cannot be queried; no item is at fault.
        """
        if self._is_written(outcome):
            return self._succeeded(outcome)
        if not self._is_in_doubt(outcome):
            return outcome
        transactions = self.transactions
        with transactions.repository.translate_errors():
            commit_unknown, done = self.commit_unknown, (yield from self._find_commit())
        if transactions.database is not None:
            with transactions.repository.translate_errors(ITEM_DATABASE):
                yield transactions.finish(self._in_database(None))
        return self._succeeded(outcome) if commit_unknown and done else outcome

    def _find_commit(self) -> Operation[bool]:
        done = yield from self._check_applied()
        self.commit_unknown = False
        return done

    def _write_in_transaction(self) -> Operation[None]:
        transactions = self.transactions
        if self.shared is not None:
            yield from self.shared.in_savepoint(self._write_items)
            self._committed = True
            return
        if transactions.database is not None:
            yield from self._in_database(self._write_items)
        connection = yield from self._begin(transactions.engine)
        try:
            if transactions.rollback == "savepoint":
                yield from self._in_nested_transaction(connection, self._write_and_update_journal)
            else:
                yield from self._write_and_update_journal(connection)
            self.commit_unknown = True
            yield transactions.commit(connection)
            self.commit_unknown, self._committed = False, True
        except BaseException:
            # A transaction in which an attempt failed may take another one.
            if not self.keeps_transaction or self.commit_unknown or connection.invalidated:
                yield from self.close()
            raise
        yield from self.close()

    def _in_database(self, write: Callable[[Any], Operation[None]] | None) -> Operation[None]:
        """In a transaction on the items' database; None: see whether it can be reached."""
        connection = self.transactions.database.connect()
        try:
            yield self.transactions.begin(connection)
            if write is not None:
                yield from write(connection)
                yield self.transactions.commit(connection)
        finally:
            with suppress(Exception):
                yield self.transactions.end(connection)

    def _in_nested_transaction(
        self, connection: Any, write: Callable[[Any], Operation[None]]
    ) -> Operation[None]:
        transactions = self.transactions
        nested = yield transactions.execute(connection, _enter_nested)
        try:
            yield from write(connection)
        except BaseException as exc:
            yield transactions.execute(connection, _exit_nested, nested, exc)
            raise
        yield transactions.execute(connection, _exit_nested, nested, None)

    def _write_and_update_journal(self, connection: Any) -> Operation[None]:
        transactions = self.transactions
        if transactions.database is None:
            yield from self._write_items(connection)
        yield transactions.finish(self._update_journal(connection))

    def _write_items(self, connection: Any) -> Operation[None]:
        items, transactions = self.effect.items, self.transactions
        written = dict(enumerate(items))
        with _check_transaction_open(connection):
            if transactions.processor is not None:
                written = {}
                for at, item in enumerate(items):
                    made = yield transactions.call(
                        "processor", transactions.processor, item, connection
                    )
                    if made is not None:
                        written[at] = made
            if written:
                yield transactions.call(
                    "writer", transactions.writer, list(written.values()), connection
                )
            self._written = written
            if transactions.outbox is not None:
                self._messages = transactions.outbox.texts(written.values())
            if self.shared is None:
                yield from self.verify()

    def _update_journal(self, connection: Any) -> Operation[None]:
        transactions = self.transactions
        yield transactions.execute(
            connection,
            transactions.ledger.close,
            transactions.repository.tables,
            self.run,
            self.journal_update,
        )

    def reserve(self, context: Any, delay: float) -> Any:
        """Close the transaction before a wait."""
        return self.transactions.perform(self.close()) if delay > 0 else None


@define(eq=False)
class Shared(_Transaction):
    """One transaction for several parts of a chunk.

    A part that fails is rolled back to a savepoint, and the others stay.

    :param verify: raises ``Fatal`` if the source of the items has changed.
    :param messages: of the outbox, about its items.
    :param is_lost: whether it was rolled back.
    """

    verify: Callable[[], Operation[None]]
    messages: list[str] = field(init=False, factory=list)
    is_lost: bool = field(init=False, default=False)

    def in_savepoint(self, write: Callable[[Any], Operation[None]]) -> Operation[None]:
        """One attempt at a part; the first one begins the transaction."""
        execute, kept = self.transactions.execute, False
        try:
            connection = self._open or (yield from self._begin_for_driver())
            yield execute(connection, _emit, SAVEPOINT)
            try:
                yield from write(connection)
            except BaseException:
                yield execute(connection, _emit, ROLLBACK_TO_SAVEPOINT)
                kept = True
                raise
            yield execute(connection, _emit, RELEASE_SAVEPOINT)
            kept = True
        finally:
            if not kept:
                yield from self.close()

    def _begin_for_driver(self) -> Operation[Any]:
        connection = yield from self._begin(self.transactions.database or self.transactions.engine)
        yield self.transactions.execute(connection, _begin_driver_transaction)
        return connection

    def commit(self, update: JournalUpdate) -> Operation[bool]:
        """Write to the journal, and commit; returns whether this succeeded.

        :raises JobRepositoryError: the database cannot be queried for the result.
        """
        if self._open is None:
            return False
        yield from self.verify()
        if self.messages:
            update = evolve(update, messages=tuple(self.messages))
        try:
            yield self.transactions.finish(self._commit(update))
            return True
        except RunLostError:
            raise
        except Exception:  # of the database, which may have committed nevertheless
            yield from self.close()
            with self.transactions.repository.translate_errors():
                return (yield from self._check_applied())

    def _commit(self, update: JournalUpdate) -> Operation[None]:
        transactions = self.transactions
        close = transactions.ledger.close
        if transactions.database is None:
            tables = transactions.repository.tables
            yield transactions.execute(self._open, close, tables, self.run, update)
        yield transactions.commit(self._open)
        if transactions.database is not None:
            yield transactions.statement(close, self.run, update)

    def close(self) -> Operation[None]:
        """Close the connection; parts that are not committed are lost."""
        self.is_lost = True
        yield from super().close()


def _enter_nested(connection: Connection) -> Any:
    return connection.begin_nested().__enter__()


def _exit_nested(_: Connection, nested: Any, failure: BaseException | None) -> None:
    """Commit the savepoint, or roll it back after a failure."""
    nested.__exit__(failure and type(failure), failure, None)


def _emit(connection: Connection, statement: str) -> None:
    """Execute it by the driver: around a small part SQLAlchemy would cost more than the part."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement)
    finally:
        cursor.close()


def _begin_driver_transaction(connection: Connection) -> None:
    """Begin where the driver of SQLite waits for the first change: after a savepoint, too late.

    The end of an outermost savepoint would commit.
    """
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN")


@contextmanager
def _check_transaction_open(connection: Any) -> Iterator[None]:
    """Raise if a component has ended its transaction."""
    inner: Connection = getattr(connection, "sync_connection", None) or connection
    before = inner.get_transaction(), inner.get_nested_transaction()
    yield
    if inner.closed or (inner.get_transaction(), inner.get_nested_transaction()) != before:
        raise MisuseError(
            "the writer has ended its transaction; the step commits it, or rolls it back when the "
            "writer raises"
        )
