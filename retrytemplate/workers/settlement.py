"""Settling messages: acknowledgements in batches, repeated calls within a limit, dead letters."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

from attrs import Factory, define

from retrytemplate._internal.cancel_scope import cancel_after
from retrytemplate._internal.failure_text import summary, type_name
from retrytemplate.errors import AttemptLostError
from retrytemplate.workers.message import DeadLetter, Message, Reject

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from retrytemplate._engine.context import RetryContext
    from retrytemplate.workers.sources.base import Source

COLLECTED_FOR = 0.002
"""Seconds for which acknowledgements are collected."""
REPEATED_AFTER = 0.1
"""Seconds between two calls of a settlement that failed."""
LOST, REJECT = type_name(AttemptLostError), type_name(Reject)


class NotSettledError(Exception):
    """A message was not settled: another worker owns it, or the runtime has stopped."""


@define(eq=False)
class Settlement:
    """Settles the messages of one run.

    Every call is repeated until it succeeds, or until ``timeout`` has passed.  Acknowledgements are
    collected for 2 ms, and sent in one call.

    :param timeout: seconds for each settlement.
    :param on_failed: called with a reason and the number of messages that were not settled.
    """

    _source: Source
    _timeout: float
    _on_failed: Callable[[str, int], None]
    _collected: list[tuple[Message, asyncio.Future[BaseException | None]]] = Factory(list)
    _timer: asyncio.TimerHandle | None = None
    _sending: set[Any] = Factory(set)  # tasks

    def acknowledge(
        self, message: Message, *, at_once: bool = False
    ) -> asyncio.Future[BaseException | None]:
        """Acknowledge a message; the future's result is the failure, or None.

        :param at_once: whether to send the collected acknowledgements without delay.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[BaseException | None] = loop.create_future()
        self._collected.append((message, answer))
        if at_once:
            self.flush()
        elif self._timer is None:
            self._timer = loop.call_later(COLLECTED_FOR, self.flush)
        return answer

    def flush(self) -> None:
        """Send the collected acknowledgements."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._collected:
            batch, self._collected = self._collected, []
            task = asyncio.get_running_loop().create_task(self._send(batch))
            self._sending.add(task)

    async def _send(
        self, batch: Sequence[tuple[Message, asyncio.Future[BaseException | None]]]
    ) -> None:
        messages = [message for message, _ in batch]
        try:
            rejected, error = await self.repeat(self._source.acknowledge, messages)
        finally:
            self._sending.discard(asyncio.current_task())
        if error is not None:
            self.count_failure(error, len(messages))
        elif rejected:
            self._on_failed("rejected", len(rejected))
        not_ours = {id(message) for message in rejected or ()}
        for message, answer in batch:
            if not answer.done():
                lost = NotSettledError(f"message {message.id!r} is owned by another worker")
                answer.set_result(lost if id(message) in not_ours else error)

    async def perform(self, call: Callable[..., Awaitable[Any]], *args: Any) -> Exception | None:
        """Make a settlement of one message; return its failure."""
        _, error = await self.repeat(call, *args)
        if error is not None:
            self.count_failure(error)
        return error

    async def release(self, messages: list[Message], limit: float) -> bool:
        """Release messages within *limit* seconds; whether the queue has them again."""
        limit = min(limit, self._timeout)
        _, error = await self.repeat(self._source.release, messages, limit=limit)
        if error is not None:
            self.count_failure(error, len(messages))
        return error is None

    def count_failure(self, error: Exception, messages: int = 1) -> None:
        """Report messages that were not settled."""
        self._on_failed(_reason(error), messages)

    async def repeat(
        self, call: Callable[..., Awaitable[Any]], *args: Any, limit: float | None = None
    ) -> tuple[Any, Exception | None]:
        """Call until it succeeds, within the time limit; return the value and the failure.

        :param limit: seconds; None: ``timeout``.
        """
        error: Exception | None = None
        with cancel_after(self._timeout if limit is None else limit):
            while True:
                try:
                    return await call(*args), None
                except Exception as exc:  # no cancellation: that ends the loop
                    error = exc
                await asyncio.sleep(REPEATED_AFTER)
        return None, error or TimeoutError()

    async def end(self) -> None:
        """Send the collected acknowledgements, and wait for them."""
        self.flush()
        while sending := [task for task in self._sending if not task.done()]:
            await asyncio.wait(sending)


def _reason(error: Exception) -> str:
    if isinstance(error, NotSettledError):
        return "rejected"
    return "timeout" if isinstance(error, TimeoutError) else type(error).__name__


def letter_of(
    message: Message, key: str, context: RetryContext, now: float, code_version: str | None
) -> DeadLetter:
    """The dead letter of a message whose attempts are exhausted.

    Its id is the same if the letter is written again after a crash: it is made of the record.
    """
    history, failure = context.history, context.last_exception
    first, last = (history[0], history[-1]) if history else (None, None)
    began = now if first is None else first.started or first.ended or now
    is_crash = failure is not None and type_name(failure) == LOST
    marks = (key, began, last and last.ended, context.retry_count)
    return DeadLetter(
        id=hashlib.blake2s(repr(marks).encode(), digest_size=16).hexdigest(),
        key=key,
        reason="the handler gave up" if failure is None else summary(failure),
        phase="crash" if is_crash else "handler",
        attempts=context.retry_count,
        crashes=context.attributes.get("crashes", 0),
        history=history,
        first_attempt_at=began,
        dead_lettered_at=now,
        message=message,
        code_version=code_version,
    )


def undecodable_letter(
    message: Message, key: str, reason: str, now: float, code_version: str | None
) -> DeadLetter:
    """The dead letter of a message whose body cannot be decoded."""
    marks = (key, message.id, message.enqueued_at)
    return DeadLetter(
        id=hashlib.blake2s(repr(marks).encode(), digest_size=16).hexdigest(),
        key=key,
        reason=reason,
        phase="decode",
        attempts=0,
        crashes=0,
        history=(),
        first_attempt_at=now,
        dead_lettered_at=now,
        message=message,
        code_version=code_version,
    )


def is_reject(failure: BaseException | None) -> bool:
    """Whether the failure, live or recorded, is a ``Reject``."""
    return failure is not None and type_name(failure) == REJECT
