"""A queue in memory, and the source that a runtime receives its messages from."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from attrs import define

from retrytemplate._internal.validation import (
    check_at_least,
    check_delay,
    check_span_or_none,
    read_seconds,
)
from retrytemplate.clock import given_or_system
from retrytemplate.workers.message import NO_HEADERS, Message
from retrytemplate.workers.testing.memory_cache import LeasedMemoryCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock
    from retrytemplate.workers.message import DeadLetter

LONGEST_OVERTAKING = 100
"""Messages that one delivery overtakes, at most."""


@define(eq=False)
class Entry:
    """A message in the queue: waiting (``owner`` None) or delivered.

    ``fence`` grows with each delivery; ``deliveries`` does not count the released ones.
    """

    message: Message
    owner: MemorySource | None = None
    fence: int = 0
    deliveries: int = 0
    until: float = 0.0  # when the visibility timeout ends, or when the delay does


class MemoryQueue:
    """A queue of messages in this process, shared by the sources that are connected to it.

    :param name: of the queue.
    :param visibility_timeout: seconds, or a ``timedelta``; default 60; None: a message is owned
        until its source is closed.
    :param supports_delay: whether the queue can delay a message; default False.
    :param duplicates: share of the messages that are delivered twice, 0 to 1, default 0.
    :param reordering: share of the deliveries that overtake up to 100 others, 0 to 1, default 0.
    :param random: for these two; None: a generator of its own.
    :param clock: measures visibility and delays; None: the system's clock.

    ``letters`` lists the dead letters, ``acknowledged`` counts the messages that were processed,
    ``copied`` the duplicates by id.  ``len`` is the number of messages that are neither.

    >>> queue = MemoryQueue("orders")
    >>> queue.put(b"17", id="order-17")
    'order-17'
    >>> len(queue)
    1
    """

    def __init__(
        self,
        name: str = "memory",
        *,
        visibility_timeout: Seconds | None = 60.0,
        supports_delay: bool = False,
        duplicates: float = 0.0,
        reordering: float = 0.0,
        random: Random | None = None,
        clock: Clock | None = None,
    ) -> None:
        for share, value in (("duplicates", duplicates), ("reordering", reordering)):
            check_at_least(share, value, 0, finite=True)
        self.name = name
        self.visibility_timeout: float | None = read_seconds(
            "visibility_timeout", visibility_timeout, check_span_or_none
        )
        self.supports_delay = supports_delay
        self.letters: list[DeadLetter] = []
        self.acknowledged = 0
        self._clock = given_or_system(clock)
        self._entries: dict[int, Entry] = {}
        self._numbers = count(1)
        self._ready: deque[int] = deque()
        # When an entry becomes ready: an end of visibility, or of a delay.  Older marks stay.
        self._due: list[tuple[float, int, int]] = []
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._alarm: asyncio.TimerHandle | None = None
        self.copied: Counter[str] = Counter()
        self._duplicates = duplicates
        self._reordering = reordering
        self._random = Random() if random is None else random

    def __len__(self) -> int:
        return len(self._entries)

    def put(
        self, body: bytes, *, id: str | None = None, headers: Mapping[str, str] | None = None
    ) -> str:
        """Add a message; return its id.  The same id may be added again: a duplicate."""
        number = next(self._numbers)
        message = Message(
            f"{self.name}-{number}" if id is None else id,
            body,
            headers or NO_HEADERS,
            self.name,
            enqueued_at=self._clock.time(),
        )
        self._entries[number] = Entry(message)
        self._add_ready([number])
        return message.id

    def _add_ready(self, numbers: Iterable[int]) -> None:
        self._ready.extend(numbers)
        if self._ready:
            self._wake_one()

    def take(self, source: MemorySource, limit: int) -> list[Message]:
        """Deliver at most *limit* messages to a source."""
        self._make_due_ready()
        taken: list[Message] = []
        while self._ready and len(taken) < limit:
            number = self._next_ready()
            entry = self._entries.get(number)
            if entry is None or entry.owner is not None:
                continue
            if self._duplicates and not entry.deliveries:
                self._duplicate(entry)
            entry.owner = source
            entry.fence += 1
            entry.deliveries += 1
            self._restart(number, entry)
            taken.append(_delivered(number, entry))
        if self._ready:
            self._wake_one()
        return taken

    def _next_ready(self) -> int:
        ready = self._ready
        if not self._reordering or self._random.random() >= self._reordering:
            return ready.popleft()
        place = self._random.randrange(min(len(ready), LONGEST_OVERTAKING))
        ready.rotate(-place)
        number = ready.popleft()
        ready.rotate(place)
        return number

    def _duplicate(self, entry: Entry) -> None:
        """Add a copy of a message, as a broker does that lost an acknowledgement."""
        message = entry.message
        if not self.copied[message.id] and self._random.random() < self._duplicates:
            number = next(self._numbers)
            self.copied[message.id] += 1
            self._entries[number] = Entry(message)
            self._ready.append(number)

    def _restart(self, number: int, entry: Entry) -> None:
        if self.visibility_timeout is not None:
            self._mark(number, entry, self.visibility_timeout)

    def _mark(self, number: int, entry: Entry, seconds: float) -> None:
        entry.until = self._clock.monotonic() + seconds
        heappush(self._due, (entry.until, number, entry.fence))
        if self._waiting:
            self._set_alarm()

    def _make_due_ready(self) -> None:
        now = self._clock.monotonic()
        while (due := self._next_due()) is not None and due <= now:
            _, number, _ = heappop(self._due)
            self._entries[number].owner = None
            self._ready.append(number)

    def _next_due(self) -> float | None:
        """When the next message becomes ready by itself; None: never.  Drops older marks."""
        while self._due:
            until, number, fence = self._due[0]
            entry = self._entries.get(number)
            if entry is not None and (entry.until, entry.fence) == (until, fence):
                return until
            heappop(self._due)
        return None

    def owned(self, source: MemorySource, message: Message) -> Entry | None:
        """The entry of a delivery that the source still owns."""
        number, fence = message.receipt
        entry = self._entries.get(number)
        if entry is None or entry.owner is not source or entry.fence != fence:
            return None
        if self.visibility_timeout is not None and entry.until <= self._clock.monotonic():
            return None
        return entry

    def has(self, message: Message) -> bool:
        """Whether the message is in the queue, waiting or delivered."""
        return message.receipt[0] in self._entries

    def remove(self, message: Message) -> None:
        """Remove an owned message."""
        del self._entries[message.receipt[0]]

    def extend(self, message: Message, entry: Entry) -> None:
        """Restart the visibility timeout of an owned message."""
        self._restart(message.receipt[0], entry)

    def give_back(self, message: Message, entry: Entry, delay: float = 0.0) -> None:
        """Make an owned message ready, at once or after a delay."""
        number = message.receipt[0]
        entry.owner, entry.until = None, 0.0
        if delay:
            self._mark(number, entry, delay)
        else:
            self._add_ready([number])

    def _wake_one(self) -> None:
        """Let a waiting source look for messages."""
        while self._waiting:
            waiter, _ = self._waiting.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
                return

    def disconnect(self, source: MemorySource) -> None:
        """Make the messages of a connection ready, if they are owned by it."""
        if self.visibility_timeout is None:
            mine = [number for number, entry in self._entries.items() if entry.owner is source]
            for number in mine:
                self._entries[number].owner = None
            self._add_ready(mine)

    async def wait(self, seconds: float) -> None:
        """Wait until a message may be ready, at most *seconds*."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _wake, waiter)
        self._waiting[waiter] = None
        self._set_alarm()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # another waiter gets the message
                self._wake_one()
            raise
        finally:
            timer.cancel()
            self._waiting.pop(waiter, None)
            if not self._waiting and self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None

    def _set_alarm(self) -> None:
        """Set the timer that wakes a waiting source when a message becomes ready by itself.

        One timer of the queue: a timer of each source would wake all of them.
        """
        due = self._next_due()
        if due is None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + max(0.0, due - self._clock.monotonic())
        if self._alarm is not None:
            if self._alarm.when() <= at:
                return
            self._alarm.cancel()
        # In a context of its own: that of the caller belongs to one of the sources.
        self._alarm = loop.call_at(at, self._ring, context=Context())

    def _ring(self) -> None:
        self._alarm = None
        self._make_due_ready()
        if self._ready:
            self._wake_one()
        if self._waiting:
            self._set_alarm()


def _delivered(number: int, entry: Entry) -> Message:
    """The message of a delivery."""
    sent, count, receipt = entry.message, entry.deliveries, (number, entry.fence)
    known = sent.id, sent.body, sent.headers, sent.queue, count, count > 1, sent.enqueued_at
    return Message(*known, receipt)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class MemorySource:
    """A source of messages in memory, for tests and simulations.

    :param queue: the queue; default: one of its own.
    :param before: called before each operation with its name, for scripted failures: an exception
        that it raises is the queue's.

    >>> source = MemorySource(MemoryQueue("orders"))
    >>> source.name, source.visibility_timeout
    ('orders', 60.0)
    """

    transactional = False

    def __init__(
        self, queue: MemoryQueue | None = None, *, before: Callable[[str], None] | None = None
    ) -> None:
        self.queue = MemoryQueue() if queue is None else queue
        self.name = self.queue.name
        self.visibility_timeout = self.queue.visibility_timeout
        self.supports_delay = self.queue.supports_delay
        self._before = before

    def _check(self, operation: str) -> None:
        if self._before is not None:
            self._before(operation)

    async def open(self) -> None:
        """Connect; there is nothing to create."""
        self._check("open")

    async def receive(self, max_messages: int, wait: float) -> Sequence[Message]:
        """Take messages of the queue, or wait for the first one."""
        end = self.queue._clock.monotonic() + wait
        while True:
            self._check("receive")
            taken = self.queue.take(self, max_messages)
            rest = end - self.queue._clock.monotonic()
            if taken or rest <= 0:
                return taken
            await self.queue.wait(rest)

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Remove messages; return those that are not owned, unless they were removed before."""
        self._check("acknowledge")
        rejected = []
        for message in messages:
            if self.queue.owned(self, message) is None:
                if self.queue.has(message):
                    rejected.append(message)
            else:
                self.queue.remove(message)
                self.queue.acknowledged += 1
        return rejected

    async def requeue(self, message: Message, delay: float, reason: str) -> None:
        """Give a message back, to be delivered after a delay."""
        check_delay("delay", delay)
        self._check("requeue")
        entry = self.queue.owned(self, message)
        if entry is not None:
            self.queue.give_back(message, entry, delay)

    async def dead_letter(self, message: Message, letter: DeadLetter) -> None:
        """Write a letter, unless one has its id, and remove the message, if it is owned."""
        self._check("dead_letter")
        if self.queue.owned(self, message) is not None:
            if letter.id not in {each.id for each in self.queue.letters}:
                self.queue.letters.append(letter)
            self.queue.remove(message)

    async def release(self, messages: Sequence[Message]) -> None:
        """Give messages back, to be delivered at once; this delivery does not count."""
        self._check("release")
        for message in messages:
            entry = self.queue.owned(self, message)
            if entry is not None:
                entry.deliveries -= 1
                self.queue.give_back(message, entry)

    async def extend(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Restart visibility timeouts; return the messages that are not owned."""
        self._check("extend")
        lost = []
        for message in messages:
            entry = self.queue.owned(self, message)
            if entry is None:
                lost.append(message)
            else:
                self.queue.extend(message, entry)
        return lost

    async def close(self) -> None:
        """Close the connection."""
        self.queue.disconnect(self)

    def default_cache(self) -> LeasedMemoryCache:
        """A context cache in memory."""
        return LeasedMemoryCache(clock=self.queue._clock)
