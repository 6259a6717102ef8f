"""The statements of a run on its databases, blocking and awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from attrs import define, field

from retrytemplate._internal.awaitables import close_unawaited, is_async, is_awaitable
from retrytemplate._storage.cancellation import run_to_completion
from retrytemplate._storage.operation_runner import Operation, perform, perform_async
from retrytemplate.batch.journal import runs
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from retrytemplate.batch.journal.repository import JobRepository
    from retrytemplate.batch.outbox import Outbox


def checked_result(piece: str, value: Any, remedy: str = "use run_async()") -> Any:
    """The result of a component, which must not be awaitable."""
    if is_awaitable(value):
        close_unawaited(value)
        raise MisuseError(f"the {piece} returned an awaitable; {remedy}")
    return value


@define
class Transactions:
    """The statements of a run, in the calling thread.

    Operations yield what these methods return.

    :param database: where the items go; None: into the repository's own transactions.
    :param processor: of items that are to be processed in the transaction.
    :param outbox: makes the messages that are kept with the items.
    :param ledger: has ``close`` and ``is_applied``: writes and checks the journal.
    """

    repository: JobRepository
    writer: Callable[[Any, Any], Any]
    database: Any
    rollback: str
    processor: Callable[[Any, Any], Any] | None = None
    outbox: Outbox | None = None
    ledger: Any = runs

    perform: ClassVar[Any] = staticmethod(perform)

    @property
    def engine(self) -> Any:
        """The repository's engine."""
        return self.repository.engine

    def finish(self, operation: Operation[Any], *, cut: bool = False) -> Any:
        """Perform an operation; in a task, to its end also if that is cancelled.

        :param cut: whether a cancellation is passed on to it.
        """
        return perform(operation)

    def statement(self, does: Callable[..., Any], *arguments: Any) -> Any:
        """A statement of the journal in a transaction of its own."""
        with self.repository.transaction() as connection:
            return does(connection, self.repository.tables, *arguments)

    def run_in_transaction(self, does: Callable[..., Any], *arguments: Any) -> Any:
        """The same, with the errors of the repository."""
        with self.repository.translate_errors():
            return self.statement(does, *arguments)

    def begin(self, connection: Any) -> Any:
        """Connect, and begin a transaction."""
        connection.begin()

    def execute(self, connection: Any, does: Callable[..., Any], *arguments: Any) -> Any:
        """Call it with the blocking connection."""
        return does(connection, *arguments)

    def commit(self, connection: Any) -> Any:
        """Commit the transaction."""
        connection.commit()

    def end(self, connection: Any) -> Any:
        """Close the connection; an open transaction is rolled back."""
        # A commit that failed leaves its transaction open.
        try:
            connection.rollback()
        finally:
            connection.close()

    def call(self, name: str, piece: Callable[[Any, Any], Any], given: Any, connection: Any) -> Any:
        """Call a component that works in the transaction."""
        try:
            value = piece(given, connection)
        except StopIteration as exc:  # a generator cannot pass it on
            raise RuntimeError(f"the {name} raised StopIteration") from exc
        return checked_result(name, value)


@define
class AsyncTransactions(Transactions):
    """The same for the tasks of one event loop.

    :param async_engine: the repository's, in this loop.
    """

    async_engine: AsyncEngine = field(kw_only=True)

    perform: ClassVar[Any] = staticmethod(perform_async)

    @property
    def engine(self) -> Any:
        return self.async_engine

    def finish(self, operation: Operation[Any], *, cut: bool = False) -> Any:
        return run_to_completion(perform_async(operation), cut=cut)

    async def statement(self, does: Callable[..., Any], *arguments: Any) -> Any:
        answer = await run_to_completion(self._statement(does, arguments))
        self.repository.created = True
        return answer

    async def _statement(self, does: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        async with self.async_engine.connect() as connection, connection.begin():
            await connection.run_sync(self.repository.create)
            return await connection.run_sync(does, self.repository.tables, *arguments)

    async def run_in_transaction(self, does: Callable[..., Any], *arguments: Any) -> Any:
        with self.repository.translate_errors():
            return await self.statement(does, *arguments)

    async def begin(self, connection: AsyncConnection) -> None:
        await run_to_completion(connection.start())
        await run_to_completion(connection.begin().start())

    async def execute(
        self, connection: AsyncConnection, does: Callable[..., Any], *arguments: Any
    ) -> Any:
        return await connection.run_sync(does, *arguments)

    def commit(self, connection: AsyncConnection) -> Any:
        return run_to_completion(connection.commit())

    def end(self, connection: AsyncConnection) -> Any:
        return run_to_completion(_end_async(connection))

    async def call(
        self,
        name: str,
        piece: Callable[[Any, Any], Any],
        given: Any,
        connection: AsyncConnection,
    ) -> Any:
        if is_async(piece):
            return await piece(given, connection)
        value = await connection.run_sync(lambda inner: piece(given, inner))
        return checked_result(name, value, "make it an async function")


async def _end_async(connection: AsyncConnection) -> None:
    try:
        await connection.rollback()
    finally:
        await connection.close()
