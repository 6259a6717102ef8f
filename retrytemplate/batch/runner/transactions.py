"""One attempt to write a part of a chunk: the items and the journal, in one transaction.

The commit is part of the attempt.  Where it is not answered, the next attempt looks first whether
it came to pass: the run's row says so, and reading it under its lock waits for one still under way.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from retrytemplate._internal.awaitables import close_unawaited, is_async, is_awaitable
from retrytemplate._storage.cancellation import whole
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
    from retrytemplate.batch.journal.runs import Closing, Run
    from retrytemplate.batch.outbox import Outbox
    from retrytemplate.history import Outcome

    Isolation = Literal["transaction", "savepoint", "none"]

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
ELSEWHERE = "the database of the items"
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

    def alone(self, does: Callable[..., Any], *arguments: Any) -> Any:
        """A statement of the journal in a transaction of its own."""
        repository = self.repository
        with repository.asked(), repository.transaction() as connection:
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

    async def alone(self, does: Callable[..., Any], *arguments: Any) -> Any:
        """A statement of the journal in a transaction of its own."""
        repository = self.repository
        with repository.asked():
            answer = await whole(self._alone(does, arguments))
            repository.created = True
            return answer

    async def _alone(self, does: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        async with self.engine.connect() as connection, connection.begin():
            await connection.run_sync(self.repository.create)
            return await connection.run_sync(does, self.repository.tables, *arguments)


@define(eq=False)
class _Attempts(Guard):
    """The attempts at one part of a chunk: what those of both kinds know.

    :param shared: the transaction that they share with other parts; None: each has its own.
    :param unsettled: whether the last one ended with a commit that was not answered.
    :param _committed: whether one is committed; of a shared transaction: in it.
    """

    of: Any
    run: Run
    effect: Write | Try
    verify: Callable[[], Any]
    shared: Any = None
    unsettled: bool = False
    _tried: int = field(init=False, default=0)
    _committed: bool = field(init=False, default=False)
    _open: Any = field(init=False, default=None)
    _written: Mapping[int, Any] = field(init=False, factory=dict)
    """By where they stand in the effect: those that are missing are filtered."""
    _messages: Sequence[str] = field(init=False, default=())

    @property
    def closing(self) -> Closing:
        """What the attempt under way writes to the journal: those before it are in its counts."""
        closing = self.effect.closing  # type: ignore[union-attr]  # which only a Write asks for
        again = self._tried - 1
        filtered = len(self.effect.items) - len(self._written)
        if again or filtered:
            more = Counts(retries=again, rollbacks=again, written=-filtered, filtered=filtered)
            closing = evolve(closing, counts=closing.counts + more)
        return evolve(closing, messages=self._messages) if self._messages else closing

    def _wrote(self, items: Mapping[int, Any]) -> None:
        """These are in the transaction."""
        self._written = items
        if self.of.outbox is not None:
            self._messages = self.of.outbox.texts(items.values())

    @property
    def holds(self) -> bool:
        """Whether one transaction may hold several attempts."""
        return self.shared is not None or bool(self.of.rollback != "transaction")

    def _ends(self, connection: Any) -> bool:
        """Whether a transaction in which an attempt failed can take no other one."""
        return not self.holds or self.unsettled or bool(connection.invalidated)

    def _doubts(self, outcome: Outcome[Any]) -> bool:
        """Whether nothing can be decided on a failure before the database was asked."""
        from sqlalchemy.exc import InterfaceError, OperationalError

        failure = outcome.exception
        away = isinstance(failure, (InterfaceError, OperationalError))
        return failure is not None and (self.unsettled or away)

    def share(self, outcome: Outcome[Any]) -> Outcome[Any] | None:
        """The outcome of a part of a shared transaction; None: that is lost, or in doubt."""
        if self.shared.is_lost:
            return None
        if self._stands(outcome):
            self.shared.messages += self._messages
            return self._succeeded(outcome)
        return None if self._doubts(outcome) else outcome

    def _stands(self, outcome: Outcome[Any]) -> bool:
        """Whether it is written; also where that took too long, or was found out afterwards."""
        return self._committed or (outcome.ok and not isinstance(outcome.value, ENDING))

    def _succeeded(self, outcome: Outcome[Any]) -> Outcome[Any]:
        """It is written, by the last attempt, whatever became of that one afterwards."""
        history = outcome.history[: self._tried - 1]
        return evolve(outcome, value=self._written, exception=None, history=history)


@define(eq=False)
class Attempts(_Attempts):
    """The attempts at one part of a chunk; each one is a call of ``make``."""

    def make(self) -> RunLostError | Fatal | Mapping[int, Any]:
        """One attempt: what was written.

        A run that was taken over and a source that has changed are no failures of the attempt:
        their error is returned.
        """
        try:
            if not (self._committed or (self.unsettled and self._settled())):
                self._tried += 1
                self._transact()
        except ENDING as error:
            return error
        return self._written

    def settle(self, outcome: Outcome[Any]) -> Outcome[Any]:
        """The outcome, which a commit may have come to that was taken for a failure.

        :raises JobRepositoryError: the database cannot be asked: no item is to blame for that.
        """
        if self._stands(outcome):
            return self._succeeded(outcome)
        if not self._doubts(outcome):
            return outcome
        with self.of.repository.asked():
            unsettled, done = self.unsettled, self._settled()
        if self.of.database is not None:
            with self.of.repository.asked(ELSEWHERE), self.of.database.connect():
                pass
        return self._succeeded(outcome) if unsettled and done else outcome

    def _settled(self) -> bool:
        with self.of.repository.transaction() as connection:
            done: bool = self.of.ledger.applied(connection, self.of.repository.tables, self.run)
        self.unsettled = False
        return done

    def _transact(self) -> None:
        if self.shared is not None:
            with self.shared.savepoint() as connection, _kept(connection):
                self._fill(connection)
            self._committed = True
            return
        if self.of.database is not None:
            with self.of.database.begin() as connection, _kept(connection):
                self._fill(connection)
        connection = self._begun()
        try:
            if self.of.rollback == "savepoint":
                with connection.begin_nested():
                    self._body(connection)
            else:
                self._body(connection)
            self.unsettled = True
            connection.commit()
            self.unsettled, self._committed = False, True
        except BaseException:
            if self._ends(connection):
                self.close()
            raise
        self.close()

    def _begun(self) -> Connection:
        if self._open is None:
            connection = self.of.repository.engine.connect()
            self._open = connection
            try:
                connection.begin()
            except BaseException:
                self.close()
                raise
        return self._open  # type: ignore[no-any-return]  # of both kinds

    def _body(self, connection: Connection) -> None:
        if self.of.database is None:
            with _kept(connection):
                self._fill(connection)
        self.of.ledger.close(connection, self.of.repository.tables, self.run, self.closing)

    def _fill(self, connection: Connection) -> None:
        items = self.effect.items
        written = dict(enumerate(items))
        if self.of.processor is not None:
            made = (_plain("processor", self.of.processor(item, connection)) for item in items)
            written = {at: item for at, item in enumerate(made) if item is not None}
        if written:
            _plain("writer", self.of.writer(list(written.values()), connection))
        self._wrote(written)
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

    of: Any
    run: Run
    verify: Callable[[], Any]
    messages: list[str] = field(init=False, factory=list)
    is_lost: bool = field(init=False, default=False)
    _open: Any = field(init=False, default=None)

    def _closing(self, closing: Closing) -> Closing:
        return evolve(closing, messages=tuple(self.messages)) if self.messages else closing


@define(eq=False)
class Shared(_Shared):
    """One transaction for several parts of a chunk, in this thread."""

    @contextmanager
    def savepoint(self) -> Iterator[Connection]:
        """Around one attempt at a part; the first one begins the transaction."""
        stands = False
        try:
            connection = self._begun()
            _emit(connection, SAVEPOINT)
            try:
                yield connection
            except BaseException:
                _emit(connection, ROLLBACK_TO_SAVEPOINT)
                stands = True
                raise
            _emit(connection, RELEASE_SAVEPOINT)
            stands = True
        finally:
            if not stands:
                self.close()

    def _begun(self) -> Connection:
        if self._open is None:
            engine = self.of.database or self.of.repository.engine
            self._open = engine.connect()
            self._open.begin()
            _begin_in_fact(self._open)
        return self._open  # type: ignore[no-any-return]  # of both kinds

    def commit(self, closing: Closing) -> bool:
        """Write to the journal, and commit; whether that was done.

        :raises JobRepositoryError: the database cannot be asked whether it was.
        """
        if self.is_lost or self._open is None:
            return False
        self.verify()
        try:
            if self.of.database is None:
                self._close(self._open, closing)
            self._open.commit()
            if self.of.database is not None:
                with self.of.repository.transaction() as connection:
                    self._close(connection, closing)
            return True
        except RunLostError:
            raise
        except Exception:  # of the database: perhaps it has committed all the same
            self.close()
            with self.of.repository.asked(), self.of.repository.transaction() as connection:
                done: bool = self.of.ledger.applied(connection, self.of.repository.tables, self.run)
            return done

    def _close(self, connection: Connection, closing: Closing) -> None:
        tables = self.of.repository.tables
        self.of.ledger.close(connection, tables, self.run, self._closing(closing))

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


def _begin_in_fact(connection: Connection) -> None:
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


def _plain(piece: str, value: Any) -> Any:
    if is_awaitable(value):
        close_unawaited(value)
        raise MisuseError(f"the {piece} gives what must be awaited: use run_async()")
    return value


async def _called(
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
def _kept(connection: Any) -> Iterator[None]:
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

    async def make(self) -> RunLostError | Fatal | Mapping[int, Any]:
        """One attempt: what was written; see ``Attempts.make``."""
        try:
            if not (self._committed or (self.unsettled and await self._settled())):
                self._tried += 1
                # What it cuts off in the writer is over before the connection is another's.
                await whole(self._transact(), cut=True)
        except ENDING as error:
            return error
        return self._written

    async def settle(self, outcome: Outcome[Any]) -> Outcome[Any]:
        """The outcome, which a commit may have come to that was taken for a failure.

        :raises JobRepositoryError: the database cannot be asked: no item is to blame for that.
        """
        if self._stands(outcome):
            return self._succeeded(outcome)
        if not self._doubts(outcome):
            return outcome
        with self.of.repository.asked():
            unsettled, done = self.unsettled, await self._settled()
        if self.of.database is not None:
            with self.of.repository.asked(ELSEWHERE):
                await whole(self._reach(self.of.database))
        return self._succeeded(outcome) if unsettled and done else outcome

    async def _reach(self, database: AsyncEngine) -> None:
        async with database.connect():
            pass

    async def _settled(self) -> bool:
        done: bool = await whole(self._applied())
        self.unsettled = False
        return done

    async def _applied(self) -> bool:
        async with self.of.engine.connect() as connection, connection.begin():
            answer: bool = await connection.run_sync(
                self.of.ledger.applied, self.of.repository.tables, self.run
            )
        return answer

    async def _transact(self) -> None:
        if self.shared is not None:
            async with self.shared.savepoint() as connection:
                with _kept(connection):
                    await self._fill(connection)
            self._committed = True
            return
        if self.of.database is not None:
            async with self.of.database.begin() as connection:
                with _kept(connection):
                    await self._fill(connection)
        connection = await self._begun()
        try:
            if self.of.rollback == "savepoint":
                async with connection.begin_nested():
                    await self._body(connection)
            else:
                await self._body(connection)
            self.unsettled = True
            await whole(connection.commit())
            self.unsettled, self._committed = False, True
        except BaseException:
            if self._ends(connection):
                await self.close()
            raise
        await self.close()

    async def _begun(self) -> AsyncConnection:
        if self._open is None:
            connection = self._open = self.of.engine.connect()
            try:
                await whole(connection.start())
                await whole(connection.begin().start())
            except BaseException:
                await self.close()
                raise
        return self._open  # type: ignore[no-any-return]  # of both kinds

    async def _body(self, connection: AsyncConnection) -> None:
        if self.of.database is None:
            with _kept(connection):
                await self._fill(connection)
        close = self.of.ledger.close
        closing = connection.run_sync(close, self.of.repository.tables, self.run, self.closing)
        await whole(closing)

    async def _fill(self, connection: AsyncConnection) -> None:
        items, processor = self.effect.items, self.of.processor
        written = dict(enumerate(items))
        if processor is not None:
            made = [await _called("processor", processor, item, connection) for item in items]
            written = {at: item for at, item in enumerate(made) if item is not None}
        if written:
            await _called("writer", self.of.writer, list(written.values()), connection)
        self._wrote(written)
        if self.shared is None:
            await self.verify()

    async def close(self) -> None:
        """Let go of the connection, rolled back unless committed; also while it is cancelled."""
        connection, self._open = self._open, None
        if connection is not None:
            with suppress(Exception):
                await whole(_end_async(connection))

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
        stands = False
        try:
            connection = await self._begun()
            await connection.run_sync(_emit, SAVEPOINT)
            try:
                yield connection
            except BaseException:
                await connection.run_sync(_emit, ROLLBACK_TO_SAVEPOINT)
                stands = True
                raise
            await connection.run_sync(_emit, RELEASE_SAVEPOINT)
            stands = True
        finally:
            if not stands:
                await self.close()

    async def _begun(self) -> AsyncConnection:
        if self._open is None:
            engine = self.of.database or self.of.engine
            connection = self._open = engine.connect()
            await whole(connection.start())
            await whole(connection.begin().start())
            await connection.run_sync(_begin_in_fact)
        return self._open  # type: ignore[no-any-return]  # of both kinds

    async def commit(self, closing: Closing) -> bool:
        """Write to the journal, and commit; whether that was done.

        :raises JobRepositoryError: the database cannot be asked whether it was.
        """
        if self.is_lost or self._open is None:
            return False
        await self.verify()
        try:
            await whole(self._commit(self._closing(closing)))
            return True
        except RunLostError:
            raise
        except Exception:  # of the database: perhaps it has committed all the same
            await self.close()
            with self.of.repository.asked():
                return await whole(self._applied())

    async def _commit(self, closing: Closing) -> None:
        tables = self.of.repository.tables
        written = (self.of.ledger.close, tables, self.run, closing)
        if self.of.database is None:
            await self._open.run_sync(*written)
        await self._open.commit()
        if self.of.database is not None:
            async with self.of.engine.connect() as connection, connection.begin():
                await connection.run_sync(*written)

    async def _applied(self) -> bool:
        async with self.of.engine.connect() as connection, connection.begin():
            done: bool = await connection.run_sync(
                self.of.ledger.applied, self.of.repository.tables, self.run
            )
        return done

    async def close(self) -> None:
        """Close the connection; what was not committed is lost; also while it is cancelled."""
        self.is_lost = True
        connection, self._open = self._open, None
        if connection is not None:
            with suppress(Exception):
                await whole(_end_async(connection))
