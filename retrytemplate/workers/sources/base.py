"""The interface between a runtime and a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from retrytemplate.caches.base import AsyncRetryContextCache
    from retrytemplate.workers.message import DeadLetter, Message

METHODS = "open receive acknowledge requeue dead_letter release extend close default_cache".split()


@runtime_checkable
class Source(Protocol):
    """A queue that a runtime receives messages from and settles them with.

    A message belongs to the source's connection from ``receive`` until it is settled: acknowledged,
    requeued, dead-lettered or released; or until its visibility timeout ends, or the connection.
    Then the queue delivers it again, here or to another worker: **at least once**.

    The methods are called in one event loop of asyncio, several of them at the same time.  Each may
    be cancelled at any await; then the queue has either done the whole or nothing.  A failure of
    the connection raises an ``Exception`` of the client; the runtime calls again after a delay, so
    that a source opens a new connection by itself.  A message that the source has lost is reported,
    never raised, and never settled on behalf of its new owner.

    :ivar name: names the queue in logs, events and metrics.
    :ivar visibility_timeout: seconds after which the queue delivers an unsettled message again,
        counted from ``receive`` or the last ``extend``; None: owned while the connection lives.
    :ivar supports_delay: whether ``requeue`` may be called.
    :ivar transactional: whether messages have ``acknowledge_in``.

    Three attributes are optional, for ``WorkerRuntime.lint`` and the default of ``prefetch``:
    ``can_extend`` (False: ``extend`` has no effect), ``delivery_limit`` (deliveries after which the
    broker removes a message; None: no limit) and ``dead_letters`` (the target of dead letters;
    None: they are deleted).
    """

    name: str
    visibility_timeout: float | None
    supports_delay: bool
    transactional: bool

    async def open(self) -> None:
        """Connect, and create a queue that is missing; an existing one is not changed.

        Called once before the other methods.

        :raises MisuseError: if a setting of the queue contradicts those of the source.
        """
        ...

    async def receive(self, max_messages: int, wait: float) -> Sequence[Message]:
        """Take messages of the queue.

        New messages and those that other workers abandoned, in turn, so that none of the two waits
        behind the other.  A message is not returned again while it is owned here.

        Not called a second time before the first call has returned.  If it is cancelled, messages
        that were taken and not returned are delivered again.  A message that the source cannot read
        is a ``DamagedMessage``.

        :param max_messages: at most this number, at least 1.
        :param wait: seconds to wait for the first message, at least 0; after about *wait* it
            returns without any.
        """
        ...

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Remove messages from the queue, in one round trip where that is possible.

        A message that was acknowledged before, also by ``acknowledge_in``, counts as acknowledged:
        the call is repeated if its answer was lost.

        :return: the messages that the queue rejected, because they are owned by another worker.
        """
        ...

    async def requeue(self, message: Message, delay: float, reason: str) -> None:
        """Give a message back, to be delivered after a delay.

        Called only if ``supports_delay``; else the runtime keeps the message until the delay ends.

        :param delay: seconds, at least 0.
        :param reason: one line for the queue's history, if it has one.
        """
        ...

    async def dead_letter(self, message: Message, letter: DeadLetter) -> None:
        """Write a dead letter, then remove its message from the queue, in this order.

        Idempotent by ``letter.id`` where the target knows ids: after a crash between the two steps
        it is called again with the same id.  If it raises, the message is still in the queue.
        """
        ...

    async def release(self, messages: Sequence[Message]) -> None:
        """Give messages back, to be delivered at once and without counting this delivery.

        A queue that cannot do the one or the other delivers them when ownership ends.
        """
        ...

    async def extend(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Restart the visibility timeout of messages that are still owned here.

        Not called if ``visibility_timeout`` is None.

        :return: the messages that another worker owns, or the queue itself.
        """
        ...

    async def close(self) -> None:
        """Close the connection; no other method is called afterwards.  It may be called twice."""
        ...

    def default_cache(self) -> AsyncRetryContextCache | None:
        """A context cache on the same server; None: the user must name one.

        Called at most once, before ``open``; the runtime closes the cache.
        """
        ...


class TransactionalSource(Source, Protocol):
    """A source in a database whose settlements can be part of a transaction."""

    async def shares_database(self, cache: Any) -> bool:
        """Whether a transaction of the source can contain the writes of a context cache."""
        ...

    async def run_in_transaction(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """Await a function in one transaction: an error undoes all that used its connection."""
        ...

    async def is_settled(self, message: Message) -> bool:
        """Whether this delivery was settled; False if the message was delivered again."""
        ...

    async def requeue(
        self, message: Message, delay: float, reason: str, *, connection: Any = None
    ) -> None: ...

    async def dead_letter(
        self, message: Message, letter: DeadLetter, *, connection: Any = None
    ) -> None: ...
