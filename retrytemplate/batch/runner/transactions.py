"""One attempt to write a part of a chunk: the items and the journal, in one transaction.

The commit is part of the attempt.  Where it is not answered, the next attempt looks first whether
it came to pass: the run's row says so, and reading it under its lock waits for one still under way.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from retrytemplate._internal.awaitables import close_unawaited, is_async, is_awaitable
from retrytemplate._storage.cancellation import run_to_completion
from retrytemplate.batch.engine.effects import Fatal
from retrytemplate.batch.errors import RunLostError
from retrytemplate.batch.journal import runs
from retrytemplate.batch.journal.runs import Counts
from retrytemplate.errors import MisuseError
from retrytemplate.guards import Guard

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Iterator,
        Mapping,
        Sequence,
    )
    from typing import Literal

    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from retrytemplate.batch.engine.effects import Try, Write
    from retrytemplate.batch.journal.repository import JobRepository
    from retrytemplate.batch.journal.runs import JournalUpdate, Run
    from retrytemplate.batch.outbox import Outbox
    from retrytemplate.history import Outcome

    RollbackMode = Literal["transaction", "savepoint", "none"]

__all__ = [
    "ENDING",
    "ROLLBACKS",
    "SAVEPOINTS",
    "AsyncAttempts",
    "AsyncShared",
    "AsyncTransactions",
    "Attempts",
    "Shared",
    "Transactions",
]

ROLLBACKS = ("transaction", "savepoint", "none")
ITEM_DATABASE = "the database of the items"
# The databases that have these statements.
SAVEPOINTS = ("sqlite", "postgresql", "mysql", "mariadb")
SAVEPOINT = "SAVEPOINT retrytemplate_part"
ROLLBACK_TO_SAVEPOINT = "ROLLBACK TO SAVEPOINT retrytemplate_part"
RELEASE_SAVEPOINT = "RELEASE SAVEPOINT retrytemplate_part"
# What ends the run whatever its template allows.
ENDING = (RunLostError, Fatal)


@define
class Transactions:
    """Makes the attempts of a run.

    :param database: where the items go; None: into the repository's own transactions.
    :param processor: of items that are to be processed in the transaction.
    :param outbox: makes the messages that are kept with what was written.
    :param ledger: what says of a transaction what it came to: ``close`` and ``applied``.
    """

    repository: JobRepository
    writer: Callable[[Any, Any], Any]
    database: Engine | None
    rollback: str
    processor: Callable[[Any, Any], Any] | None = None
    outbox: Outbox | None = None
    ledger: Any = runs

    def attempts(
        self,
        run: Run,
        effect: Write | Try,
        verify: Callable[[], None],
        shared: Shared | None = None,
    ) -> Attempts:
        """The attempts at one part; *verify* raises ``Fatal`` if its source has changed."""
        return Attempts(self, run, effect, verify, shared)

    def shared(self, run: Run, verify: Callable[[], None]) -> Shared:
        """One transaction for several parts of a chunk."""
        return Shared(self, run, verify)

    def run_in_transaction(self, does: Callable[..., Any], *arguments: Any) -> Any:
        """A statement of the journal in a transaction of its own."""
        repository = self.repository
        with repository.translate_errors(), repository.transaction() as connection:
            return does(connection, repository.tables, *arguments)


@define
class AsyncTransactions:
    """The same for the tasks of one event loop.

    :param engine: the repository's, in this loop.
    """

    repository: JobRepository
    engine: AsyncEngine
    writer: Callable[[Any, Any], Any]
    database: AsyncEngine | None
    rollback: str
    processor: Callable[[Any, Any], Any] | None = None
    outbox: Outbox | None = None
    ledger: Any = runs

    def attempts(
        self,
        run: Run,
        effect: Write | Try,
        verify: Callable[[], Awaitable[None]],
        shared: AsyncShared | None = None,
    ) -> AsyncAttempts:
        """The attempts at one part; *verify* raises ``Fatal`` if its source has changed."""
        return AsyncAttempts(self, run, effect, verify, shared)

    def shared(self, run: Run, verify: Callable[[], Awaitable[None]]) -> AsyncShared:
        """One transaction for several parts of a chunk."""
        return AsyncShared(self, run, verify)

    async def run_in_transaction(self, does: Callable[..., Any], *arguments: Any) -> Any:
        """A statement of the journal in a transaction of its own."""
        repository = self.repository
        with repository.translate_errors():
            answer = await run_to_completion(self._run_in_transaction(does, arguments))
            repository.created = True
            return answer

    async def _run_in_transaction(
        self, does: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        async with self.engine.connect() as connection, connection.begin():
            await connection.run_sync(self.repository.create)
            return await connection.run_sync(does, self.repository.tables, *arguments)


@define(eq=False)
class _Attempts(Guard):
    """The attempts at one part of a chunk: what those of both kinds know.

    :param shared: the transaction that they share with other parts; None: each has its own.
    :param commit_unknown: whether the last one ended with a commit that was not answered.
    :param _committed: whether one is committed; of a shared transaction: in it.
    """

    transactions: Any
    run: Run
    effect: Write | Try
    verify: Callable[[], Any]
    shared: Any = None
    commit_unknown: bool = False
    _attempts_made: int = field(init=False, default=0)
    _committed: bool = field(init=False, default=False)
    _open: Any = field(init=False, default=None)
    _written: Mapping[int, Any] = field(init=False, factory=dict)
    """By where they stand in the effect: those that are missing are filtered."""
    _messages: Sequence[str] = field(init=False, default=())

    @property
    def journal_update(self) -> JournalUpdate:
        """What the attempt under way writes to the journal: those before it are in its counts."""
        update = self.effect.update  # type: ignore[union-attr]  # which only a Write asks for
        again = self._attempts_made - 1
        filtered = len(self.effect.items) - len(self._written)
        if again or filtered:
            more = Counts(retries=again, rollbacks=again, written=-filtered, filtered=filtered)
            update = evolve(update, counts=update.counts + more)
        return evolve(update, messages=self._messages) if self._messages else update

    def _set_written(self, items: Mapping[int, Any]) -> None:
        """These are in the transaction."""
        self._written = items
        if self.transactions.outbox is not None:
            self._messages = self.transactions.outbox.texts(items.values())

    @property
    def keeps_transaction(self) -> bool:
        """Whether one transaction may hold several attempts."""
        return self.shared is not None or bool(self.transactions.rollback != "transaction")

    def _must_end_transaction(self, connection: Any) -> bool:
        """Whether a transaction in which an attempt failed can take no other one."""
        return not self.keeps_transaction or self.commit_unknown or bool(connection.invalidated)

    def _is_in_doubt(self, outcome: Outcome[Any]) -> bool:
        """Whether nothing can be decided on a failure before the database was asked."""
        from sqlalchemy.exc import InterfaceError, OperationalError

        failure = outcome.exception
        away = isinstance(failure, (InterfaceError, OperationalError))
        return failure is not None and (self.commit_unknown or away)

    def shared_outcome(self, outcome: Outcome[Any]) -> Outcome[Any] | None:
        """The outcome of a part of a shared transaction; None: that is lost, or in doubt."""
        if self.shared.is_lost:
            return None
        if self._is_written(outcome):
            self.shared.messages += self._messages
            return self._succeeded(outcome)
        return None if self._is_in_doubt(outcome) else outcome

    def _is_written(self, outcome: Outcome[Any]) -> bool:
        """Whether it is written; also where that took too long, or was found out afterwards."""
        return self._committed or (outcome.ok and not isinstance(outcome.value, ENDING))

    def _succeeded(self, outcome: Outcome[Any]) -> Outcome[Any]:
        """It is written, by the last attempt, whatever became of that one afterwards."""
        history = outcome.history[: self._attempts_made - 1]
        return evolve(outcome, value=self._written, exception=None, history=history)


@define(eq=False)
class Attempts(_Attempts):
    """The attempts at one part of a chunk; each one is a call of ``run_attempt``."""

    def run_attempt(self) -> RunLostError | Fatal | Mapping[int, Any]:
        """One attempt: what was written.

        A run that was taken over and a source that has changed are no failures of the attempt:
        their error is returned.
        """
        try:
            if not (self._committed or (self.commit_unknown and self._check_committed())):
                self._attempts_made += 1
                self._write_in_transaction()
        except ENDING as error:
            return error
        return self._written

    def resolve_outcome(self, outcome: Outcome[Any]) -> Outcome[Any]:
        """The outcome, which a commit may have come to that was taken for a failure.

        :raises JobRepositoryError: the database cannot be asked: no item is to blame for that.
        """
        if self._is_written(outcome):
            return self._succeeded(outcome)
        if not self._is_in_doubt(outcome):
            return outcome
        with self.transactions.repository.translate_errors():
            commit_unknown, done = self.commit_unknown, self._check_committed()
        if self.transactions.database is not None:
            with (
                self.transactions.repository.translate_errors(ITEM_DATABASE),
                self.transactions.database.connect(),
            ):
                pass
        return self._succeeded(outcome) if commit_unknown and done else outcome

    def _check_committed(self) -> bool:
        with self.transactions.repository.transaction() as connection:
            done: bool = self.transactions.ledger.applied(
                connection, self.transactions.repository.tables, self.run
            )
        self.commit_unknown = False
        return done

    def _write_in_transaction(self) -> None:
        if self.shared is not None:
            with self.shared.savepoint() as connection, _check_transaction_open(connection):
                self._write_items(connection)
            self._committed = True
            return
        if self.transactions.database is not None:
            with (
                self.transactions.database.begin() as connection,
                _check_transaction_open(connection),
            ):
                self._write_items(connection)
        connection = self._begin()
        try:
            if self.transactions.rollback == "savepoint":
                with connection.begin_nested():
                    self._write_and_update_journal(connection)
            else:
                self._write_and_update_journal(connection)
            self.commit_unknown = True
            connection.commit()
            self.commit_unknown, self._committed = False, True
        except BaseException:
            if self._must_end_transaction(connection):
                self.close()
            raise
        self.close()

    def _begin(self) -> Connection:
        if self._open is None:
            connection = self.transactions.repository.engine.connect()
            self._open = connection
            try:
                connection.begin()
            except BaseException:
                self.close()
                raise
        return self._open  # type: ignore[no-any-return]  # of both kinds

    def _write_and_update_journal(self, connection: Connection) -> None:
        if self.transactions.database is None:
            with _check_transaction_open(connection):
                self._write_items(connection)
        self.transactions.ledger.close(
            connection, self.transactions.repository.tables, self.run, self.journal_update
        )

    def _write_items(self, connection: Connection) -> None:
        items = self.effect.items
        written = dict(enumerate(items))
        if self.transactions.processor is not None:
            made = (
                _reject_awaitable("processor", self.transactions.processor(item, connection))
                for item in items
            )
            written = {at: item for at, item in enumerate(made) if item is not None}
        if written:
            _reject_awaitable(
                "writer", self.transactions.writer(list(written.values()), connection)
            )
        self._set_written(written)
        if self.shared is None:  # which is verified once, when it is committed
            self.verify()

    def close(self) -> None:
        """Let go of the connection, rolled back unless committed."""
        if self._open is not None:
            with suppress(Exception):  # it says less than what failed before
                _end(self._open)
            self._open = None  # not before: a signal may come in between

    def reserve(self, context: Any, delay: float) -> None:
        """No transaction stays open during a wait."""
        if delay > 0:
            self.close()
            if self.shared is not None:
                self.shared.close()

    def __enter__(self) -> Attempts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@define(eq=False)
class _Shared:
    """One transaction for several parts of a chunk: what those of both kinds know.

    A part that fails is rolled back to a savepoint, and the others stay.

    :param messages: of the outbox, about what was written.
    :param is_lost: whether what was written in it is rolled back.
    """

    transactions: Any
    run: Run
    verify: Callable[[], Any]
    messages: list[str] = field(init=False, factory=list)
    is_lost: bool = field(init=False, default=False)
    _open: Any = field(init=False, default=None)

    def _with_messages(self, update: JournalUpdate) -> JournalUpdate:
        return evolve(update, messages=tuple(self.messages)) if self.messages else update


@define(eq=False)
class Shared(_Shared):
    """One transaction for several parts of a chunk, in this thread."""

    @contextmanager
    def savepoint(self) -> Iterator[Connection]:
        """Around one attempt at a part; the first one begins the transaction."""
        kept = False
        try:
            connection = self._begin()
            _emit(connection, SAVEPOINT)
            try:
                yield connection
            except BaseException:
                _emit(connection, ROLLBACK_TO_SAVEPOINT)
                kept = True
                raise
            _emit(connection, RELEASE_SAVEPOINT)
            kept = True
        finally:
            if not kept:
                self.close()

    def _begin(self) -> Connection:
        if self._open is None:
            engine = self.transactions.database or self.transactions.repository.engine
            self._open = engine.connect()
            self._open.begin()
            _begin_driver_transaction(self._open)
        return self._open  # type: ignore[no-any-return]  # of both kinds

    def commit(self, update: JournalUpdate) -> bool:
        """Write to the journal, and commit; whether that was done.

        :raises JobRepositoryError: the database cannot be asked whether it was.
        """
        if self.is_lost or self._open is None:
            return False
        self.verify()
        try:
            if self.transactions.database is None:
                self._close(self._open, update)
            self._open.commit()
            if self.transactions.database is not None:
                with self.transactions.repository.transaction() as connection:
                    self._close(connection, update)
            return True
        except RunLostError:
            raise
        except Exception:  # of the database: perhaps it has committed all the same
            self.close()
            with (
                self.transactions.repository.translate_errors(),
                self.transactions.repository.transaction() as connection,
            ):
                done: bool = self.transactions.ledger.applied(
                    connection, self.transactions.repository.tables, self.run
                )
            return done

    def _close(self, connection: Connection, update: JournalUpdate) -> None:
        tables = self.transactions.repository.tables
        self.transactions.ledger.close(connection, tables, self.run, self._with_messages(update))

    def close(self) -> None:
        """Close the connection; what was not committed is lost."""
        self.is_lost = True
        if self._open is not None:
            with suppress(Exception):
                _end(self._open)
            self._open = None


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


def _end(connection: Connection) -> None:
    """Close it, rolled back unless committed: a commit that failed leaves its transaction open."""
    try:
        connection.rollback()
    finally:
        connection.close()


async def _end_async(connection: AsyncConnection) -> None:
    try:
        await connection.rollback()
    finally:
        await connection.close()


def _reject_awaitable(piece: str, value: Any) -> Any:
    if is_awaitable(value):
        close_unawaited(value)
        raise MisuseError(f"the {piece} gives what must be awaited: use run_async()")
    return value


async def _call_in_transaction(
    name: str, piece: Callable[[Any, Any], Any], given: Any, connection: AsyncConnection
) -> Any:
    """What a piece gives that works in the transaction, asynchronous or not."""
    if is_async(piece):
        return await piece(given, connection)
    value = await connection.run_sync(lambda inner: piece(given, inner))
    if is_awaitable(value):
        close_unawaited(value)
        raise MisuseError(f"the {name} gives what must be awaited: make it an async function")
    return value


@contextmanager
def _check_transaction_open(connection: Any) -> Iterator[None]:
    """Raise where the caller's pieces have ended the transaction that they work in."""
    inner: Connection = getattr(connection, "sync_connection", None) or connection
    before = inner.get_transaction(), inner.get_nested_transaction()
    yield
    if inner.closed or (inner.get_transaction(), inner.get_nested_transaction()) != before:
        raise MisuseError(
            "the writer has ended the transaction that it was given: the step commits it, or rolls "
            "it back when the writer raises"
        )


@define(eq=False)
class AsyncAttempts(_Attempts):
    """The same in a task."""

    async def run_attempt(self) -> RunLostError | Fatal | Mapping[int, Any]:
        """One attempt: what was written; see ``Attempts.run_attempt``."""
        try:
            if not (self._committed or (self.commit_unknown and await self._check_committed())):
                self._attempts_made += 1
                # What it cuts off in the writer is over before the connection is another's.
                await run_to_completion(self._write_in_transaction(), cut=True)
        except ENDING as error:
            return error
        return self._written

    async def resolve_outcome(self, outcome: Outcome[Any]) -> Outcome[Any]:
        """The outcome, which a commit may have come to that was taken for a failure.

        :raises JobRepositoryError: the database cannot be asked: no item is to blame for that.
        """
        if self._is_written(outcome):
            return self._succeeded(outcome)
        if not self._is_in_doubt(outcome):
            return outcome
        with self.transactions.repository.translate_errors():
            commit_unknown, done = self.commit_unknown, await self._check_committed()
        if self.transactions.database is not None:
            with self.transactions.repository.translate_errors(ITEM_DATABASE):
                await run_to_completion(self._reach(self.transactions.database))
        return self._succeeded(outcome) if commit_unknown and done else outcome

    async def _reach(self, database: AsyncEngine) -> None:
        async with database.connect():
            pass

    async def _check_committed(self) -> bool:
        done: bool = await run_to_completion(self._applied())
        self.commit_unknown = False
        return done

    async def _applied(self) -> bool:
        async with self.transactions.engine.connect() as connection, connection.begin():
            answer: bool = await connection.run_sync(
                self.transactions.ledger.applied, self.transactions.repository.tables, self.run
            )
        return answer

    async def _write_in_transaction(self) -> None:
        if self.shared is not None:
            async with self.shared.savepoint() as connection:
                with _check_transaction_open(connection):
                    await self._write_items(connection)
            self._committed = True
            return
        if self.transactions.database is not None:
            async with self.transactions.database.begin() as connection:
                with _check_transaction_open(connection):
                    await self._write_items(connection)
        connection = await self._begin()
        try:
            if self.transactions.rollback == "savepoint":
                async with connection.begin_nested():
                    await self._write_and_update_journal(connection)
            else:
                await self._write_and_update_journal(connection)
            self.commit_unknown = True
            await run_to_completion(connection.commit())
            self.commit_unknown, self._committed = False, True
        except BaseException:
            if self._must_end_transaction(connection):
                await self.close()
            raise
        await self.close()

    async def _begin(self) -> AsyncConnection:
        if self._open is None:
            connection = self._open = self.transactions.engine.connect()
            try:
                await run_to_completion(connection.start())
                await run_to_completion(connection.begin().start())
            except BaseException:
                await self.close()
                raise
        return self._open  # type: ignore[no-any-return]  # of both kinds

    async def _write_and_update_journal(self, connection: AsyncConnection) -> None:
        if self.transactions.database is None:
            with _check_transaction_open(connection):
                await self._write_items(connection)
        close = self.transactions.ledger.close
        update = connection.run_sync(
            close, self.transactions.repository.tables, self.run, self.journal_update
        )
        await run_to_completion(update)

    async def _write_items(self, connection: AsyncConnection) -> None:
        items, processor = self.effect.items, self.transactions.processor
        written = dict(enumerate(items))
        if processor is not None:
            made = [
                await _call_in_transaction("processor", processor, item, connection)
                for item in items
            ]
            written = {at: item for at, item in enumerate(made) if item is not None}
        if written:
            await _call_in_transaction(
                "writer", self.transactions.writer, list(written.values()), connection
            )
        self._set_written(written)
        if self.shared is None:
            await self.verify()

    async def close(self) -> None:
        """Let go of the connection, rolled back unless committed; also while it is cancelled."""
        connection, self._open = self._open, None
        if connection is not None:
            with suppress(Exception):
                await run_to_completion(_end_async(connection))

    async def reserve(self, context: Any, delay: float) -> None:
        """No transaction stays open during a wait."""
        if delay > 0:
            await self.close()
            if self.shared is not None:
                await self.shared.close()

    async def __aenter__(self) -> AsyncAttempts:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@define(eq=False)
class AsyncShared(_Shared):
    """The same in a task."""

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[AsyncConnection]:
        """Around one attempt at a part; the first one begins the transaction."""
        kept = False
        try:
            connection = await self._begin()
            await connection.run_sync(_emit, SAVEPOINT)
            try:
                yield connection
            except BaseException:
                await connection.run_sync(_emit, ROLLBACK_TO_SAVEPOINT)
                kept = True
                raise
            await connection.run_sync(_emit, RELEASE_SAVEPOINT)
            kept = True
        finally:
            if not kept:
                await self.close()

    async def _begin(self) -> AsyncConnection:
        if self._open is None:
            engine = self.transactions.database or self.transactions.engine
            connection = self._open = engine.connect()
            await run_to_completion(connection.start())
            await run_to_completion(connection.begin().start())
            await connection.run_sync(_begin_driver_transaction)
        return self._open  # type: ignore[no-any-return]  # of both kinds

    async def commit(self, update: JournalUpdate) -> bool:
        """Write to the journal, and commit; whether that was done.

        :raises JobRepositoryError: the database cannot be asked whether it was.
        """
        if self.is_lost or self._open is None:
            return False
        await self.verify()
        try:
            await run_to_completion(self._commit(self._with_messages(update)))
            return True
        except RunLostError:
            raise
        except Exception:  # of the database: perhaps it has committed all the same
            await self.close()
            with self.transactions.repository.translate_errors():
                return await run_to_completion(self._applied())

    async def _commit(self, update: JournalUpdate) -> None:
        tables = self.transactions.repository.tables
        written = (self.transactions.ledger.close, tables, self.run, update)
        if self.transactions.database is None:
            await self._open.run_sync(*written)
        await self._open.commit()
        if self.transactions.database is not None:
            async with self.transactions.engine.connect() as connection, connection.begin():
                await connection.run_sync(*written)

    async def _applied(self) -> bool:
        async with self.transactions.engine.connect() as connection, connection.begin():
            done: bool = await connection.run_sync(
                self.transactions.ledger.applied, self.transactions.repository.tables, self.run
            )
        return done

    async def close(self) -> None:
        """Close the connection; what was not committed is lost; also while it is cancelled."""
        self.is_lost = True
        connection, self._open = self._open, None
        if connection is not None:
            with suppress(Exception):
                await run_to_completion(_end_async(connection))
