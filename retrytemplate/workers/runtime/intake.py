"""The intake of a run: it receives messages, keeps the delayed ones, and pauses."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from retrytemplate._internal.failure_text import summary
from retrytemplate.backoff.exponential import ExponentialBackoff
from retrytemplate.errors import Rejected
from retrytemplate.workers.engine import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from random import Random

    from retrytemplate.clock import Clock
    from retrytemplate.workers.engine import Result
    from retrytemplate.workers.message import Message
    from retrytemplate.workers.runtime.attempts import Delivery
    from retrytemplate.workers.sources.base import Source

__all__ = ["Intake"]

LOG = logging.getLogger("retrytemplate.workers")

RELEASED_PAUSE = 1.0
"""Seconds of the pause after two messages in a row were released by their handler."""
RETRIES = ExponentialBackoff(initial=0.1, maximum=30.0, jitter="equal")
"""Pauses while the queue or the context cache is unavailable."""


class Intake:
    """Receives as many messages as there are free places.

    :param least: while messages wait here, fewer free places than these are not filled: a call for
        each place would cost a round trip for each message.
    :param free_places: returns how many messages may be received.
    :param deliver: called with each received message.
    :ivar on_first: awaited once, before the first messages are processed.
    :param max_delayed: with this number of delayed messages it receives none until one is due.
    """

    def __init__(
        self,
        source: Source,
        *,
        wait: float,
        least: int,
        max_delayed: int,
        free_places: Callable[[], int],
        deliver: Callable[[Message], Delivery],
        dispatch: Callable[[], None],
        on_paused: Callable[[str, float], None],
        on_failed: Callable[[Exception], None],
        clock: Clock,
        random: Random,
    ) -> None:
        self.ready: deque[Delivery] = deque()
        self.delayed: dict[Delivery, asyncio.TimerHandle] = {}
        self.pause_reason: str | None = None
        self.is_stopped = False
        self.is_failing = False
        self.on_first: Callable[[], Awaitable[None]] | None = None
        self._source = source
        self._wait = wait
        self._least = least
        self._max_delayed = max_delayed
        self._free_places = free_places
        self._deliver = deliver
        self._dispatch = dispatch
        self._on_paused = on_paused
        self._on_failed = on_failed
        self._clock = clock
        self._random = random
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
            self._end_pause()
            if not limit:
                await self._wait_for_change(None)
                continue
            try:
                # Never inside a time limit of ours: a message that arrives at the limit would be
                # lost until its visibility timeout.
                messages = await self._source.receive(limit, self._wait)
            except Exception as exc:  # not a cancellation
                self.is_failing = True
                self._on_failed(exc)
                delay, state = RETRIES.next(state, exc, self._random)
                await self._wait_for_change(delay)
                continue
            if self.is_failing:
                self.is_failing, state = False, RETRIES.start()
            if self._is_over():
                return messages
            self.ready.extend(self._deliver(message) for message in messages)
            if messages and self.on_first is not None:
                on_first, self.on_first = self.on_first, None
                await on_first()
            self._dispatch()
        return ()

    def _wanted(self) -> int:
        """How many messages to receive now."""
        limit = self._free_places()
        if limit <= 0 or len(self.delayed) >= self._max_delayed:
            return 0
        return 0 if self.ready and limit < self._least else limit

    def _end_pause(self) -> None:
        if self.pause_reason is not None:
            self.pause_reason = None
            self._dispatch()

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
            self._on_paused(reason, seconds)

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
            text = "" if result.error is None else summary(result.error)
            LOG.error("%s: the context cache is unavailable: %s", self._source.name, text)
        self.is_store_failing = True
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
        self._dispatch()
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
