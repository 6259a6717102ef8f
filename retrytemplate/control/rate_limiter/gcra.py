"""Rules of a rate limiter: the generic cell rate algorithm (GCRA) with reservations.

One number per key is kept, the theoretical arrival time ``tat``: the moment at which all permits
that were granted so far have been earned back.  With ``interval = per / permits`` and
``capacity = burst * interval``, a request for *n* permits at *now* gives

    new  = max(now, tat) + n * interval
    wait = new - capacity - now

If ``wait`` is 0 or less it is granted, and ``tat`` becomes ``new``.  Else it is reserved, or it is
rejected and changes nothing.  In every window of length *w* at most ``burst + w / interval``
permits fall due.

Reservations of a key stand in a queue, in the order of their arrival, and each falls due before the
next one.  Those that are granted while others wait stand there, too: a cancelled reservation leaves
the queue, and the moments of the others are computed again from the first one on.

Free of clocks and threads: the caller passes the time, one call at a time.

Source: ATM Forum, Traffic Management Specification 4.0; reservations as in ``x/time/rate`` of Go.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Any

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

TOLERANCE = 1e-3
"""Share of an interval by which sums of floats may be off."""
ABANDONED = 60.0
"""Seconds after which a reservation that fell due and was not used no longer holds up the queue."""
EXPIRED_PER_KEY = 2
"""Keys that are looked at for each new key: more than one, so that their number falls again."""
MAX_SKIPPED = 10
"""Keys with a queue that an eviction passes over."""


@define(eq=False)
class Reservation:
    """Permits that are granted for a moment to come.

    :param due: the moment; it moves when an earlier reservation is cancelled, and with a pause.
    :param latest: the latest moment that the caller waits for.
    :param waiter: wakes the caller; the rules do not use it.
    """

    tokens: int
    arrived: float
    latest: float
    due: float
    tat: float  # after it
    bucket: Bucket | None = None
    waiter: Any = None
    is_waiting: bool = False  # whether the caller waits; else the permits are used or returned
    is_woken: bool = False  # since its caller last read the moment
    key: Hashable = None  # of a reservation in a store, and its number there
    number: int = 0


@define(eq=False)
class Bucket:
    """The permits of one key.

    :param tat: infinite while there is a queue: then only the queue decides.
    :param base: ``tat`` without the queue.
    """

    tat: float
    base: float = -inf
    queue: OrderedDict[Reservation, None] | None = None
    is_stale: bool = False  # reservations have left the queue since the moments were computed


@define(eq=False)
class GCRA:
    """The state of all keys, and the counts.

    :param capacity: seconds that the permits of a burst are worth.
    :param paused_until: no permit falls due before.
    """

    interval: float
    burst: int
    max_keys: int
    capacity: float = field(init=False)
    threshold: float = field(init=False)
    paused_until: float = -inf
    waiting: int = 0
    admitted: int = 0
    delayed: int = 0
    rejected: int = 0
    evicted: int = 0
    single: Bucket = field(init=False)
    buckets: OrderedDict[Hashable, Bucket] = field(factory=OrderedDict)

    def __attrs_post_init__(self) -> None:
        self.single = Bucket(-inf)
        self._measure()

    def _measure(self) -> None:
        self.capacity = self.burst * self.interval
        self.threshold = self.capacity + TOLERANCE * self.interval

    # Requests.

    def fast_function(self, source: Any) -> Callable[[], bool]:
        """A function that takes a permit without a key, if one is free and no caller waits.

        :param source: its ``now()`` is the time; read inside, since another call costs as much as
            all the rest.
        """
        bucket = self.single

        def acquire_fast() -> bool:
            now = source.now()
            tat = bucket.tat
            tat = (tat if tat > now else now) + self.interval
            if tat - now > self.threshold:
                return False
            bucket.tat = tat
            self.admitted += 1
            return True

        return acquire_fast

    def acquire(
        self,
        bucket: Bucket,
        tokens: int,
        now: float,
        longest: float,
        made: list[Reservation],
    ) -> float:
        """Grant the permits now (0.0), or reserve them; else the time until they are free.

        :param longest: seconds that the caller waits at most.
        :param made: gets the reservation, before anything else does: if a signal interrupts this
            code, the caller returns it.
        """
        tat = self._last(bucket, now)
        after = (tat if tat > now else now) + tokens * self.interval
        wait = after - now - self.capacity
        if after - now <= self.threshold:
            self.admitted += 1
            if bucket.queue:
                bucket.queue[Reservation(tokens, now, now, now, after)] = None
            else:
                bucket.tat = after
            return 0.0
        if wait > longest:
            self.rejected += 1
            return wait
        due = after - self.capacity
        reserved = Reservation(tokens, now, max(due, now + longest), due, after, bucket)
        made.append(reserved)
        if bucket.queue:
            bucket.queue[reserved] = None
        else:
            queue = OrderedDict[Reservation, None]()
            queue[reserved] = None
            bucket.base, bucket.queue, bucket.tat = tat, queue, inf
        reserved.is_waiting = True
        self.waiting += 1
        return wait

    def count(self, wait: float, reserved: Reservation | None) -> None:
        """Count a request that a store has answered."""
        if reserved is not None:
            reserved.is_waiting = True
            self.waiting += 1
        elif wait:
            self.rejected += 1
        else:
            self.admitted += 1

    def due(self, reservation: Reservation, now: float) -> float:
        """The present moment at which a reservation falls due."""
        reservation.is_woken = False
        if reservation.bucket is not None and reservation.bucket.is_stale:
            self._compute(reservation.bucket, now)
        return reservation.due

    def use(self, reservation: Reservation) -> None:
        """The caller of a reservation waits no longer, and makes its call."""
        self.admitted += 1
        self.delayed += 1
        self._end_wait(reservation)
        bucket = reservation.bucket
        if bucket is not None and bucket.queue:
            self._settle(bucket)

    def _end_wait(self, reservation: Reservation) -> None:
        self.waiting -= reservation.is_waiting
        reservation.is_waiting = False

    def cancel(self, reservation: Reservation) -> list[Reservation]:
        """Return the permits of a waiting caller; those behind it, whose moments have moved."""
        bucket, was_waiting = reservation.bucket, reservation.is_waiting
        self._end_wait(reservation)
        if not was_waiting or bucket is None or not bucket.queue:
            return []
        if reservation not in bucket.queue:
            return []
        del bucket.queue[reservation]
        bucket.is_stale = True
        self._settle(bucket)
        return self._to_wake(bucket, reservation.due)

    # Another rate.

    def pause(self, until: float, now: float) -> list[Reservation]:
        """Let no permit fall due before that moment, and none of a burst at it."""
        self.paused_until = max(self.paused_until, until)
        moved = []
        for bucket in self._all():
            self._settle(bucket, now)
            if bucket.queue:
                bucket.base = max(bucket.base, self._floor())
                moved += self._move(bucket, now)
            else:
                bucket.tat = max(bucket.tat, self._floor())
        return moved

    def resize(self, interval: float, burst: int, now: float) -> list[Reservation]:
        """Change the rate; the free permits stay free, at most those of the new burst."""
        if self.paused_until <= now:
            self.paused_until = -inf
        start, free = max(now, self.paused_until), list[float]()
        for bucket in self._all():
            self._settle(bucket, now)
            tat = bucket.base if bucket.queue else bucket.tat
            free.append(self.burst - max(0.0, tat - start) / self.interval)
        self.interval, self.burst = interval, burst
        self._measure()
        moved = list[Reservation]()
        for bucket, permits in zip(self._all(), free, strict=True):
            tat = start + (burst - min(permits, burst)) * interval
            if bucket.queue:
                bucket.base = tat
                moved += self._move(bucket, now)
            else:
                bucket.tat = tat
        return moved

    def clear_waiting(self) -> None:
        """Forget the queues: their callers are in another process."""
        self.waiting = 0
        for bucket in self._all():
            if bucket.queue:
                bucket.queue, bucket.tat, bucket.is_stale = None, bucket.base, False

    def available(self, bucket: Bucket, now: float) -> int:
        """The permits that are free at once."""
        if bucket.queue:
            return 0
        used = max(0.0, bucket.tat - now) / self.interval
        return max(0, int(self.burst - used + TOLERANCE))

    # Keys.

    def bucket(self, key: Hashable, now: float) -> Bucket:
        """The permits of a key, which becomes the newest."""
        found = self.buckets.get(key)
        if found is not None:
            self.buckets.move_to_end(key)
            return found
        self.expire(now, EXPIRED_PER_KEY)
        if len(self.buckets) >= self.max_keys:
            self._evict()
        made = self.buckets[key] = Bucket(self._floor())
        return made

    def expire(self, now: float, most: int) -> None:
        """Remove the oldest keys whose permits are all free: they are equal to new ones."""
        for _ in range(min(most, len(self.buckets))):
            key, bucket = next(iter(self.buckets.items()))
            if bucket.tat > now:
                return
            del self.buckets[key]

    def _evict(self) -> None:
        for _ in range(min(MAX_SKIPPED, len(self.buckets))):
            key, bucket = next(iter(self.buckets.items()))
            if not bucket.queue:
                del self.buckets[key]
                self.evicted += 1
                return
            self.buckets.move_to_end(key)

    # Queues.

    def _all(self) -> list[Bucket]:
        return [self.single, *self.buckets.values()]

    def _floor(self) -> float:
        """The least ``tat`` after the latest pause."""
        return self.paused_until + self.capacity

    def _last(self, bucket: Bucket, now: float) -> float:
        """``tat`` after the last reservation."""
        if not bucket.queue:
            return bucket.tat
        if bucket.is_stale:
            self._compute(bucket, now)
        self._settle(bucket, now - ABANDONED)
        return next(reversed(bucket.queue)).tat if bucket.queue else bucket.tat

    def _settle(self, bucket: Bucket, used_until: float = -inf) -> None:
        """Remove the used reservations from the front of the queue.

        :param used_until: those that fell due up to this moment are taken for used.
        """
        queue = bucket.queue
        while queue:
            first = next(iter(queue))
            if first.is_waiting and first.due > used_until:
                return
            bucket.base = max(bucket.base, first.due) + first.tokens * self.interval
            del queue[first]
        if queue is not None:
            bucket.queue, bucket.tat, bucket.is_stale = None, bucket.base, False

    def _compute(self, bucket: Bucket, now: float) -> None:
        """Compute the moments of a queue again; those that have come stay as they are."""
        bucket.is_stale = False
        tat = bucket.base
        for each in bucket.queue or ():
            cost = each.tokens * self.interval
            if each.due <= now or not each.is_waiting:
                tat = max(tat, each.due) + cost
            else:
                tat = max(tat, now) + cost
                each.due = max(now, tat - self.capacity)
            each.tat = tat

    def _move(self, bucket: Bucket, now: float) -> list[Reservation]:
        """Compute the moments of a queue at once: read late, an earlier one would have come."""
        self._compute(bucket, now)
        return self._to_wake(bucket, -inf)

    def _to_wake(self, bucket: Bucket, behind: float) -> list[Reservation]:
        """The callers behind a moment that have to read theirs again, and do not know it yet."""
        found = [
            each
            for each in bucket.queue or ()
            if each.due > behind and each.is_waiting and not each.is_woken
        ]
        for each in found:
            each.is_woken = True
        return found
