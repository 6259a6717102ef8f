"""Rules of a semaphore with priorities and queues per key, and of a limit that grows."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

if TYPE_CHECKING:
    from collections.abc import Hashable


@define(eq=False)
class SlotRequest:
    """A request for a slot: waiting, granted or released.

    :param priority: 0 is the one that goes first.
    :param waiter: wakes the caller; the semaphore does not use it.
    """

    key: Hashable
    priority: int
    waiter: Any = None
    number: int = 0
    state: str = "new"  # then "in", or "waiting", "in"; "gone"
    epoch: int = 0  # of the semaphore when it arrived
    wait_queue: WaitQueue | None = None  # where it waits


WaitQueue = OrderedDict[SlotRequest, None]


@define
class _KeySlots:
    """Those of one key.

    :param taken: places of its own that are used: those who are in, and who could come in next.
    :param passed: how many of them went to a waiting request.
    """

    taken: int = 0
    passed: int = 0
    key_queues: list[WaitQueue] = field(factory=list)  # by priority, those for whom none is left


@define(eq=False)
class PrioritySemaphore:
    """Limits of the granted requests, of those of one key, and of the waiting ones.

    :param fairness: every *fairness*-th slot for a waiting request goes to the one that has
        waited longest, of whatever lane; 0: never.  So does that of a key, among those who wait
        for one of its places.
    :param ramp: what the limit is on its way to; None: it stays.
    """

    limit: int
    queue: int
    priorities: int
    per_key: int | None
    fairness: int
    in_use: int = 0
    waiting: int = 0
    arrived: int = 0
    admitted: int = 0  # so far, as the rejected ones
    rejected: int = 0
    passed: int = 0
    ramp: LimitRamp | None = None
    epoch: int = 0
    keys: dict[Hashable, _KeySlots] = field(init=False)
    _ready: list[WaitQueue] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin an era: forget all tickets; those of earlier eras change nothing from now on."""
        self.epoch += 1
        self.in_use = self.waiting = 0
        self.keys = {}
        self._ready = [WaitQueue() for _ in range(self.priorities)]

    def acquire(self, request: SlotRequest, *, wait: bool) -> bool:
        """Grant the request, or queue it if the queue is not full; False: neither."""
        self.arrived += 1
        request.number, request.epoch = self.arrived, self.epoch
        if self.in_use < self.limit and self._take_key_slot(request):
            self._admit_request(request)
            self.admitted += 1
            return True
        if not wait or self.waiting >= self.queue:
            return False
        request.state = "waiting"
        self.waiting += 1
        self._enqueue(request)
        return True

    def reject(self) -> None:
        """Count a call that was not admitted."""
        self.rejected += 1

    def record_wait_end(self, request: SlotRequest) -> bool:
        """Whether the ticket is in at the end of its wait; then it counts as admitted."""
        is_in = request.state == "in"
        self.admitted += is_in
        return is_in

    def acquire_fast(self) -> int:
        """Enter without a ticket and a key; the era, or 0 where a ticket is needed."""
        if self.in_use >= self.limit or self.ramp is not None:
            return 0
        self.in_use += 1
        self.admitted += 1
        return self.epoch

    def release_fast(self) -> list[SlotRequest]:
        """End a call of this era that has no ticket; return the tickets that are admitted then."""
        self.in_use -= 1
        return self.admit() if self.waiting else []

    def release(self, request: SlotRequest) -> list[SlotRequest]:
        """Release a granted or waiting request; return the requests that are granted for it."""
        was, request.state = request.state, "gone"
        if request.epoch != self.epoch:
            return []
        if was == "in":
            self.in_use -= 1
            self._release_key_slot(request.key)
        elif was == "waiting":
            self.waiting -= 1
            assert request.wait_queue is not None
            del request.wait_queue[request]
            if request.wait_queue is self._ready[request.priority]:
                self._release_key_slot(request.key)
        return self.admit() if self.waiting else []

    def admit(self) -> list[SlotRequest]:
        """Grant the requests that fit."""
        admitted = []
        while self.in_use < self.limit and (request := self._next()) is not None:
            self.waiting -= 1
            self._admit_request(request)
            admitted.append(request)
        return admitted

    # Another limit.

    def resize(self, limit: int, now: float, over: float) -> list[SlotRequest]:
        """A lower limit at once, a higher one in the course of some time."""
        admitted = self.apply_ramp(now)
        if over and limit > self.limit:
            self.ramp = LimitRamp(self.limit, limit, now, over)
        else:
            self.limit, self.ramp = limit, None
        return admitted + self.admit()

    def apply_ramp(self, now: float) -> list[SlotRequest]:
        """Admit the requests for which the limit has grown by now."""
        if self.ramp is None:
            return []
        self.limit = max(self.limit, self.ramp.at(now))  # another thread's clock may be ahead
        if self.limit == self.ramp.to:
            self.ramp = None
        return self.admit()

    def queued(self) -> list[SlotRequest]:
        """All who wait."""
        wait_queues = [
            *self._ready,
            *(wait_queue for each in self.keys.values() for wait_queue in each.key_queues),
        ]
        return [request for wait_queue in wait_queues for request in wait_queue]

    # Who is next.

    def _next(self) -> SlotRequest | None:
        request = self._pop_next(self._ready, self.passed + 1)
        if request is not None:
            self.passed += 1
        return request

    def _pop_next(self, wait_queues: list[WaitQueue], turn: int) -> SlotRequest | None:
        """Remove and return the next request."""
        first = [next(iter(wait_queue)) for wait_queue in wait_queues if wait_queue]
        if not first:
            return None
        by_age = self.fairness and turn % self.fairness == 0
        request = min(first, key=lambda each: each.number) if by_age else first[0]
        del wait_queues[request.priority][request]
        return request

    def _admit_request(self, request: SlotRequest) -> None:
        request.state = "in"
        self.in_use += 1

    # Places of a key.

    def _take_key_slot(self, request: SlotRequest) -> bool:
        if self.per_key is None or request.key is None:
            return True
        key_slots = self.keys.setdefault(request.key, _KeySlots())
        if key_slots.taken >= self.per_key:
            return False
        key_slots.taken += 1
        return True

    def _enqueue(self, request: SlotRequest) -> None:
        if self._take_key_slot(request):
            request.wait_queue = self._ready[request.priority]
        else:
            key_slots = self.keys[request.key]
            if not key_slots.key_queues:
                key_slots.key_queues = [WaitQueue() for _ in range(self.priorities)]
            request.wait_queue = key_slots.key_queues[request.priority]
        request.wait_queue[request] = None

    def _release_key_slot(self, key: Hashable) -> None:
        if self.per_key is None or key is None:
            return
        key_slots = self.keys[key]
        key_slots.taken -= 1
        request = self._pop_next(key_slots.key_queues, key_slots.passed + 1)
        if request is not None:
            key_slots.passed += 1
            self._enqueue(request)
        elif not key_slots.taken:
            del self.keys[key]  # nothing is kept for an unused key


# Waiting calls wake at each step, so their number is bounded.
MAX_STEPS = 100


@frozen
class LimitRamp:
    """From one number to a higher one, evenly, by one at a time or in a hundred steps.

    >>> ramp = LimitRamp(2, 5, since=0.0, over=30.0)
    >>> [ramp.at(now) for now in (0.0, 9.9, 10.0, 20.0, 30.0, 90.0)]
    [2, 2, 3, 4, 5, 5]
    >>> ramp.wait(12.0)
    8.0
    """

    start: int
    to: int
    since: float
    over: float
    _steps: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_steps", min(self.to - self.start, MAX_STEPS))

    def at(self, now: float) -> int:
        """The present limit."""
        return self.start + (self.to - self.start) * self._done(now) // self._steps

    def wait(self, now: float) -> float:
        """Seconds until the next step; 0: no step is left."""
        done = self._done(now)
        return self._when(done + 1) - now if done < self._steps else 0.0

    def _done(self, now: float) -> int:
        return bisect_right(range(1, self._steps + 1), now, key=self._when)

    def _when(self, step: int) -> float:
        return self.since + self.over * step / self._steps
