"""Ends an attempt and settles its message in one transaction.

For a source and a context cache in one database.  Without its claim no message is settled, and no
message whose attempt has ended is left in the queue: a crash undoes both, or neither.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define

from retrytemplate.errors import CacheUnavailableError, LeaseLostError
from retrytemplate.workers.settlement import NotSettledError, Settlement

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retrytemplate.caches.base import Claim
    from retrytemplate.caches.record import Record
    from retrytemplate.workers.message import Message
    from retrytemplate.workers.sources.base import TransactionalSource


class Ending(Protocol):
    """An attempt in progress, and how its message is settled at its end.

    :ivar is_dead_lettered: whether the end settles the message with a dead letter.
    :ivar is_requeued: whether the failed attempt is followed by one of a later delivery.
    """

    @property
    def message(self) -> Message: ...
    @property
    def is_lost(self) -> bool: ...
    @property
    def is_dead_lettered(self) -> bool: ...
    @property
    def is_requeued(self) -> bool: ...

    async def settle(self, connection: Any) -> None:
        """Settle the message in a transaction.

        :raises LeaseLostError: the message was delivered to another worker.
        """
        ...

    def settled(self, by_us: bool) -> None:
        """The message needs no further settlement.

        :param by_us: False: another worker owns it.
        """
        ...


class SettlingCache:
    """The context cache of a runtime; the end of an attempt settles the message, too.

    :param cache: in the database of the source.
    :param settlement: repeats a transaction that failed.
    """

    def __init__(self, cache: Any, source: TransactionalSource, settlement: Settlement) -> None:
        self._cache = cache
        self._source = source
        self._settlement = settlement
        self._endings: dict[tuple[str, int], Ending] = {}
        self._claims: dict[Ending, tuple[str, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def expect(self, key: str, fence: int, ending: Ending) -> None:
        """The end of the claim with this key and fence settles a message."""
        self._endings[key, fence] = ending
        self._claims[ending] = key, fence

    def forget_ending(self, ending: Ending) -> None:
        """The execution has ended: a later end of its claim settles nothing."""
        claim = self._claims.pop(ending, None)
        if claim is not None:
            del self._endings[claim]

    async def succeed(self, claim: Claim, *, connection: Any = None, **marker: Any) -> None:
        """End the claim after a success or a recovery; with a connection in its transaction."""
        ending = self._endings.get((claim.key, claim.fence))
        end = partial(self._cache.succeed, claim, **marker)
        if ending is None or ending.is_lost:
            await end(connection=connection)
        elif connection is None:
            await self._end(claim, end, ending, self._statement(claim, ending, marker))
        else:
            await end(connection=connection)
            await ending.settle(connection)

    def _statement(
        self, claim: Claim, ending: Ending, marker: dict[str, Any]
    ) -> Callable[[], Awaitable[bool]] | None:
        """Ends the claim and acknowledges its message by one statement, if there is one."""
        source: Any = self._source
        is_acknowledged = not (ending.is_dead_lettered or ending.is_requeued)
        if not hasattr(source, "end_and_acknowledge"):
            return None
        if not is_acknowledged or getattr(claim, "undone", False):
            return None
        return partial(source.end_and_acknowledge, self._cache, claim, ending.message, **marker)

    async def fail(self, claim: Claim, record: Record, *, connection: Any = None) -> None:
        """Write the record; the end of the claim requeues the message."""
        ending = self._endings.get((claim.key, claim.fence))
        end = partial(self._cache.fail, claim, record)
        is_end = record.worker is None and record.phase != "recovering" and connection is None
        if ending is None or ending.is_lost or not (is_end and ending.is_requeued):
            await end(connection=connection)
        else:
            await self._end(claim, end, ending)

    async def _end(
        self,
        claim: Claim,
        end: Callable[..., Awaitable[None]],
        ending: Ending,
        statement: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """End the claim and settle the message in one transaction, repeated if it fails.

        :param statement: does both.
        """
        transaction = _Transaction(self._source, end, ending, statement)
        error, failed = await self._settlement.repeat(transaction)
        if failed is not None:
            self._settlement.count_failure(failed)
            raise CacheUnavailableError(str(failed)) from failed
        if not isinstance(error, NotSettledError):
            if error is not None:
                raise error
            ending.settled(by_us=True)
            return
        ending.settled(by_us=False)
        self._settlement.count_failure(error)
        if isinstance(error, OnlyEndedError):
            return
        if ending.is_dead_lettered:  # the worker that owns the message writes the letter
            await self._cache.release(claim)
            raise LeaseLostError(str(error))
        await end()  # the worker that owns the message finds the end of this attempt


class OnlyEndedError(NotSettledError):
    """The attempt has ended; its message is owned by another worker, which finds the end."""


@define(eq=False)
class _Transaction:
    """One transaction, which may be tried more than once.

    :param statement: of the whole transaction; None: it has several.
    :returns: the error of a claim or a message that has another owner.
    """

    _source: TransactionalSource
    _end: Callable[..., Awaitable[None]]
    _ending: Ending
    _statement: Callable[[], Awaitable[bool]] | None
    _is_unknown: bool = False

    async def __call__(self) -> Exception | None:
        try:
            if self._statement is None:
                await self._source.run_in_transaction(self._work)
            elif not await self._statement():
                id = self._ending.message.id
                raise OnlyEndedError(f"message {id!r} was delivered to another worker")
        except (LeaseLostError, NotSettledError) as exc:
            # The row of the message shows whether a commit whose answer was lost has taken place.
            if self._is_unknown and await self._source.is_settled(self._ending.message):
                return None
            return exc
        except Exception:  # no cancellation: that ends the loop
            self._is_unknown = True
            raise
        return None

    async def _work(self, connection: Any) -> None:
        await self._end(connection=connection)
        try:
            await self._ending.settle(connection)
        except LeaseLostError as exc:
            raise NotSettledError(str(exc)) from exc
