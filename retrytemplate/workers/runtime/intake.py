"""The intake of a run: it receives messages, keeps the delayed ones, and pauses."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.failure_text import summary
from retrytemplate.backoff.exponential import ExponentialBackoff
from retrytemplate.errors import Rejected
from retrytemplate.workers.engine import Outcome, Result

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from retrytemplate.workers.message import Message
    from retrytemplate.workers.runtime.attempts import Delivery
    from retrytemplate.workers.sources.base import Source

LOG = logging.getLogger("retrytemplate.workers")

MAX_DELAYED = 10  # delayed messages for each concurrent attempt, above which the intake pauses
RELEASED_PAUSE = 1.0
"""Seconds of the pause after two messages in a row were released by their handler."""
RETRIES = ExponentialBackoff(initial=0.1, maximum=30.0, jitter="equal")
"""Pauses while the queue or the context cache is unavailable."""


class Intake:
    """Receives as many messages as there are free places.

    While messages wait here, it does not fill a few free places: a call for each place would cost
    a round trip for each message.

    :param run: the ``Run`` that the messages are delivered to.
    :ivar on_first: awaited once, before the first messages are processed.
    """

    def __init__(self, run: Any) -> None:
        runtime = run.runtime
        self.ready: deque[Delivery] = deque()
        self.delayed: dict[Delivery, asyncio.TimerHandle] = {}
        self.pause_reason: str | None = None
        self.is_stopped = False
        self.is_failing = False
        self.on_first: Callable[[], Awaitable[None]] | None = None
        self._run = run
        self._name = runtime.name
        self._source: Source = runtime.source
        self._wait = runtime.receive_wait
        self._least = max(1, runtime.prefetch // 4)
        self._max_delayed = MAX_DELAYED * runtime.concurrency
        self._clock = runtime.clock
        self._random = runtime.random or Random()
        self._paused_until = 0.0
        self._in_a_row = 0  # messages that were released or rejected
        self._store_state = RETRIES.start()
        self.is_store_failing = False
        self._changed = asyncio.Event()

    async def run(self) -> Sequence[Message]:
        """Receive until ``stop``; return the messages that came too late to be processed."""
        state = RETRIES.start()
        while not self.is_stopped:
            limit = self._wanted()
            rest = self._paused_until - self._clock.monotonic()
            if rest > 0:
                await self._wait_for_change(rest)
                continue
            if self.pause_reason is not None:
                self.pause_reason = None
                self._run.dispatch()
            if not limit:
                await self._wait_for_change(None)
                continue
            try:
                # Never inside a time limit of ours: a message that arrives at the limit would be
                # lost until its visibility timeout.
                messages = await self._source.receive(limit, self._wait)
            except Exception as exc:  # not a cancellation
                self._log_failure(exc)
                self._run.receive_failed(exc)
                delay, state = RETRIES.next(state, exc, self._random)
                await self._wait_for_change(delay)
                continue
            if self.is_failing:
                self.is_failing, state = False, RETRIES.start()
            if self._is_over():
                return messages
            self.ready.extend(self._run.deliver(message) for message in messages)
            if messages and self.on_first is not None:
                on_first, self.on_first = self.on_first, None
                await on_first()
            self._run.dispatch()
        return ()

    def _log_failure(self, error: Exception) -> None:
        """Log the first of consecutive failures of ``receive``."""
        if not self.is_failing:
            self.is_failing = True
            LOG.error(
                "%s: cannot receive messages from %s: %s; the worker tries again after growing "
                "pauses, and messages in flight continue: check the server of the queue",
                self._name,
                self._source.name,
                summary(error),
            )

    def _wanted(self) -> int:
        """How many messages to receive now."""
        limit: int = self._run.free_places()
        if limit <= 0 or len(self.delayed) >= self._max_delayed:
            return 0
        return 0 if self.ready and limit < self._least else limit

    def _is_over(self) -> bool:
        return self.is_stopped

    async def _wait_for_change(self, seconds: float | None) -> None:
        """Wait until a place may be free, the pause is over, or the runtime stops."""
        self._changed.clear()
        loop = asyncio.get_running_loop()
        timer = None if seconds is None else loop.call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    @property
    def is_open(self) -> bool:
        """Whether the messages that wait here may be processed: it is not paused or stopped."""
        return not self.is_stopped and self.pause_reason is None

    def notify(self) -> None:
        """A place may be free."""
        if not self._changed.is_set() and self._wanted():
            self._changed.set()

    def stop(self) -> None:
        """Receive no further messages."""
        self.is_stopped = True
        self._changed.set()

    def pause(self, seconds: float, reason: str) -> None:
        """Receive nothing for a time; earlier messages wait, too."""
        until = self._clock.monotonic() + seconds
        if until > self._paused_until:
            self._paused_until, self.pause_reason = until, reason
            self._run.paused(reason, seconds)

    def note(self, result: Result) -> None:
        """Pause if messages cannot be processed at present."""
        outcome = result.outcome
        is_rejected = outcome is Outcome.DEFERRED and isinstance(result.error, Rejected)
        if outcome is Outcome.STORE_UNAVAILABLE:
            self._pause_for_store(result)
            return
        if self.is_store_failing:
            self.is_store_failing, self._store_state = False, RETRIES.start()
        # A RetryLater concerns its own key only; it pauses nothing.
        if outcome is not Outcome.RELEASED and not is_rejected:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row >= 2:
            seconds = result.delay if is_rejected else RELEASED_PAUSE
            self.pause(seconds, result.reason or outcome.value)

    def _pause_for_store(self, result: Result) -> None:
        if not self.is_store_failing:
            LOG.error(
                "%s: the context cache cannot begin or end an attempt: %s; the worker releases its "
                "messages and tries again after growing pauses: check the server of the cache",
                self._name,
                "" if result.error is None else summary(result.error),
            )
        self.is_store_failing = True
        if self._clock.monotonic() < self._paused_until:
            return  # of an attempt that began before: the same outage, not one more
        error = result.error or Exception()
        delay, self._store_state = RETRIES.next(self._store_state, error, self._random)
        if delay is not None:
            self.pause(delay, "the context cache is unavailable")

    def delay(self, delivery: Delivery, seconds: float) -> None:
        """Keep a message until its next attempt."""
        loop = asyncio.get_running_loop()
        self.delayed[delivery] = loop.call_later(seconds, self._due, delivery)

    def _due(self, delivery: Delivery) -> None:
        del self.delayed[delivery]
        self.ready.append(delivery)
        self._run.dispatch()
        self.notify()

    def drop(self, lost: Iterable[Delivery]) -> None:
        """Forget messages that wait here and are no longer owned."""
        for delivery in lost:
            timer = self.delayed.pop(delivery, None)
            if timer is not None:
                timer.cancel()
            elif delivery in self.ready:
                self.ready.remove(delivery)

    def clear(self) -> list[Message]:
        """Forget the prefetched and delayed messages; return them."""
        waiting = [*self.ready, *self.delayed]
        for timer in self.delayed.values():
            timer.cancel()
        self.ready.clear()
        self.delayed.clear()
        return [delivery.message for delivery in waiting]
