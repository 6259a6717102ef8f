"""Admission of calls by a rate limiter: permits at once, a wait, or a rejection."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate._engine.deadline import Deadline
from retrytemplate._internal.formatting import format_limit
from retrytemplate._internal.locks import Monitor, Reentered, is_interrupted
from retrytemplate._internal.validation import check_at_least_one
from retrytemplate.clock import SystemClock, fast_monotonic
from retrytemplate.control._enclosing import check_enclosing_guards, check_enclosing_guards_async
from retrytemplate.control._waiters import new_task_waiter, new_thread_waiter
from retrytemplate.control.events import CallRejected, notify_listeners
from retrytemplate.control.rate_limiter.events import CallDelayed
from retrytemplate.control.rate_limiter.gcra import GCRA, Reservation
from retrytemplate.errors import BackoffInterruptedError, MisuseError, RateLimitedError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from retrytemplate.clock import Clock
    from retrytemplate.control.rate_limiter.redis.shared import SharedLimit


def _longest_wait(deadline: Deadline | None) -> float:
    """The seconds after which a call can still begin before the deadline and those around it."""
    longest = inf
    while deadline is not None:
        longest = min(longest, deadline.remaining() - deadline.floor)
        deadline = deadline._outer
    return longest


@define(eq=False)
class Admission:
    """The permits of a limiter, and the calls that wait for them.

    :param rate: the rate as text, for messages.
    :param take: takes a permit if one is free; without a key, and on the clock of the system.
    """

    name: str
    rate: str
    max_wait: float
    per_key: bool
    listeners: Sequence[Any]
    clock: Clock
    limits: GCRA
    shared: SharedLimit | None
    monitor: Monitor = field(init=False, factory=Monitor)
    monotonic: Any = field(init=False)
    take: Callable[[], bool] = field(init=False, default=bool)  # False: no permit

    def __attrs_post_init__(self) -> None:
        self.monotonic = fast_monotonic(self.clock)
        self.monitor.forked = self.limits.clear_waiting
        if not self.per_key and self.shared is None and type(self.clock) is SystemClock:
            acquire_fast = self.limits.fast_function(self.monotonic)
            self.take = self.monitor.guarded(acquire_fast, bool)

    def acquire(self, tokens: int, key: Hashable) -> None:
        """Take permits, and wait for them if they are free in time."""
        self.check(tokens, key)
        made: list[Reservation] = []
        longest = self._longest()
        try:
            found = None if self.shared is None else self.shared.take(key, tokens, longest)
            self._admit(self._grant(found, tokens, key, longest, made), made)
            if not made:
                return
            waiter = made[0].waiter = new_thread_waiter(self.clock)
            for seconds in self._intervals(made[0]):
                try:
                    waiter.wait(seconds)
                except Exception as exc:
                    raise self._interrupted() from exc
            check_enclosing_guards()
            self.monitor.post(self.limits.use, made[0])
        except BaseException:
            self._return(made)
            raise
        self._notify_delay(made[0])

    async def acquire_async(self, tokens: int, key: Hashable) -> None:
        """The same for a task."""
        self.check(tokens, key)
        made: list[Reservation] = []
        longest, shared = self._longest(), self.shared
        try:
            found = None if shared is None else await shared.take_async(key, tokens, longest)
            self._admit(self._grant(found, tokens, key, longest, made), made)
            if not made:
                return
            waiter = made[0].waiter = new_task_waiter(self.clock)
            for seconds in self._intervals(made[0]):
                try:
                    await waiter.wait(seconds)
                except Exception as exc:
                    raise self._interrupted() from exc
            await check_enclosing_guards_async()
            self.monitor.post(self.limits.use, made[0])
        except GeneratorExit:  # nothing can be awaited any more
            self.monitor.post(self._cancel_all, made)
            raise
        except BaseException:  # a cancellation, too
            await self._return_async(made)
            raise
        self._notify_delay(made[0])

    def try_acquire(self, tokens: int, key: Hashable) -> bool:
        """Take permits if they are free now."""
        self.check(tokens, key)
        found = None if self.shared is None else self.shared.take(key, tokens, 0.0)
        return self._grant(found, tokens, key, 0.0, []) == 0.0

    def pause(self, seconds: float) -> None:
        """Hold back all calls."""
        now = self.monotonic.now()
        self.monitor.post(self._wake_moved, self.limits.pause, now + seconds, now)
        if self.shared is not None:
            self.shared.pause(seconds)

    def resize(
        self, permits: int, per: float, max_wait: float, interval: float, burst: int
    ) -> None:
        """Change the rate, and the longest wait of later calls."""
        self.max_wait = max_wait
        self.rate = f"{permits} per {format_limit(per)}"
        if self.shared is not None:
            self.shared.set_rate(interval, burst)
        now = self.monotonic.now()
        self.monitor.post(self._wake_moved, self.limits.resize, interval, burst, now)

    def check(self, tokens: Any, key: Hashable) -> None:
        """Raise unless a call may ask for this number of permits, with this key."""
        if tokens == 1 and key is None:
            return
        check_at_least_one("tokens", tokens)
        if tokens > self.limits.burst:
            raise ValueError(
                f"tokens must be at most {self.limits.burst}, the burst of the rate limiter "
                f"{self.name!r}, got {tokens!r}"
            )
        if key is not None:
            self.check_key()

    def check_key(self) -> None:
        """Raise unless each key has a limit of its own."""
        if not self.per_key:
            raise MisuseError(
                f"the rate limiter {self.name!r} has one limit for all keys; "
                "make it with per_key=True, or leave the key out"
            )

    def _longest(self) -> float:
        """The seconds that a call may wait now."""
        if not self.max_wait or is_interrupted():
            return 0.0
        return min(self.max_wait, _longest_wait(Deadline.current()))

    def _admit(self, wait: float, made: list[Reservation]) -> None:
        if wait and not made:
            raise self._rejection(wait)

    def _grant(
        self,
        found: tuple[float, int] | None,
        tokens: int,
        key: Hashable,
        longest: float,
        made: list[Reservation],
    ) -> float:
        """The seconds until the permits are free, reserved if *made* is no longer empty.

        Infinite: this thread must not look.

        :param found: what the store has granted, reserved or rejected; None: this process decides.
        """
        now = self.monotonic.now()
        if found is None:
            try:
                return self.monitor.run(self._reserve, tokens, key, now, longest, made)
            except Reentered:
                self.monitor.post(self._count_rejection)
                return inf
        (wait, number), reserved = found, None
        if number:
            latest = now + max(wait, longest)
            reserved = Reservation(tokens, now, latest, now + wait, 0.0, key=key, number=number)
        self.monitor.post(self._count_taken, wait, reserved, made)
        return wait

    def _count_taken(
        self, wait: float, reserved: Reservation | None, made: list[Reservation]
    ) -> None:
        if reserved is not None:
            made.append(reserved)
        self.limits.count(wait, reserved)

    def _reserve(
        self, tokens: int, key: Hashable, now: float, longest: float, made: list[Reservation]
    ) -> float:
        limits = self.limits
        bucket = limits.bucket(key, now) if self.per_key else limits.single
        return limits.acquire(bucket, tokens, now, longest, made)

    def _intervals(self, reservation: Reservation) -> Iterator[float]:
        """Yield the seconds to wait next, until the permits fall due.

        :raises RateLimitedError: a pause or another rate has moved that moment too far.
        """
        due, now = reservation.due, self.monotonic.now()
        until = reservation.waiter.now() + due - now
        while True:
            # Read here, before the first wait: until then nothing could wake it.
            moved = self.monitor.run(self.limits.due, reservation, now)
            until, due = until + moved - due, moved
            if due > reservation.latest:
                self.monitor.post(self._count_rejection)
                raise self._rejection(due - now)
            left = until - reservation.waiter.now()
            if left <= 0:
                return
            yield left
            now = self.monotonic.now()

    def _notify_delay(self, reservation: Reservation) -> None:
        if self.listeners:
            wait = max(0.0, self.monotonic.now() - reservation.arrived)
            notify_listeners(self.listeners, [CallDelayed(name=self.name, wait=wait)])

    def _return(self, made: list[Reservation]) -> None:
        self.monitor.post(self._cancel_all, made)
        for each in made:
            if self.shared is not None and each.number:
                self.shared.give_up(each)

    async def _return_async(self, made: list[Reservation]) -> None:
        self.monitor.post(self._cancel_all, made)
        for each in made:
            if self.shared is not None and each.number:
                await self.shared.give_up_async(each)

    def _cancel_all(self, made: list[Reservation]) -> None:
        for each in made:
            self._wake_moved(self.limits.cancel, each)

    def _wake_moved(self, step: Callable[..., list[Reservation]], *args: Any) -> None:
        """Wake the callers whose moments a step moves; in the monitor, since waking never waits."""
        moved = step(*args)
        for each in moved:
            if each.waiter is not None and not each.waiter.wake():  # its loop is closed
                moved += self.limits.cancel(each)

    def _count_rejection(self) -> None:
        self.limits.rejected += 1

    def _rejection(self, wait: float) -> RateLimitedError:
        free = f"the next one is free in {wait:.3g} s"
        if wait == inf:
            free = "this thread was interrupted inside of it"
        message = f"the rate limiter {self.name!r} ({self.rate}) has no permit: {free}"
        retry_after = None if wait == inf else wait
        error = RateLimitedError(message, name=self.name, retry_after=retry_after)
        notify_listeners(self.listeners, [CallRejected(name=self.name, error=error)])
        return error

    def _interrupted(self) -> BackoffInterruptedError:
        return BackoffInterruptedError(
            f"the wait for a permit of the rate limiter {self.name!r} was interrupted"
        )
