"""A rate limit in a store, and the local one that replaces it while the store is unavailable."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import define

from retrytemplate._internal.locks import Monitor
from retrytemplate._storage.fork_safety import register
from retrytemplate.control._poller import BackgroundPoller
from retrytemplate.control._threads import run_in_thread_shielded
from retrytemplate.control.events import notify_listeners
from retrytemplate.control.rate_limiter.events import RateLimitStoreLost, RateLimitStoreRecovered
from retrytemplate.errors import RateLimitStoreError

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from retrytemplate.control.rate_limiter.gcra import Reservation
    from retrytemplate.control.rate_limiter.redis.store import (
        RateLimitRecord,
        RedisRateLimitStore,
        StoredLimit,
    )

LOG = logging.getLogger("retrytemplate.control")
POLL = 0.5
"""Seconds between two attempts to reach a store that was lost."""


@define(eq=False, repr=False, slots=False)
class SharedLimit:
    """The limit of one name.

    :param local_allowed: True: this process applies the limit by itself until the store is
        available again; False: ``RateLimitStoreError``.
    :param rate: interval and burst.
    :param monotonic: its ``now()`` measures outages.
    """

    _store: RedisRateLimitStore
    _name: str
    _local_allowed: bool
    _rate: tuple[float, int]
    _monotonic: Any
    _listeners: Sequence[Any]

    def __attrs_post_init__(self) -> None:
        self.set_rate(*self._rate)
        self._poller = BackgroundPoller(self.poll, POLL, name="retrytemplate-rate-limit")
        self._begin()
        register(self)

    def _begin(self) -> None:
        self._monitor = Monitor()
        self._unavailable_since: float | None = None

    def _forked(self) -> None:
        self._begin()
        self._poller.forked()

    def set_rate(self, interval: float, burst: int) -> None:
        """Change the rate of this process."""
        self._rate = interval, burst
        self._single = self._store.limit(self._name, None, interval, burst)

    @property
    def is_local(self) -> bool:
        """Whether this process applies the limit by itself."""
        return self._unavailable_since is not None and self._local_allowed

    def take(self, key: Hashable, tokens: int, longest: float) -> tuple[float, int] | None:
        """As that of the store; None: this process decides."""
        if not self.is_local:
            with self:
                return self._store.take(self._limit(key), tokens, longest)
        return None

    async def take_async(
        self, key: Hashable, tokens: int, longest: float
    ) -> tuple[float, int] | None:
        """The same for a task."""
        if not self.is_local:
            with self:
                return await self._store.take_async(self._limit(key), tokens, longest)
        return None

    def __enter__(self) -> None:
        """A use of the store, whose outage is noted at its end.

        :raises RateLimitStoreError: the store is unavailable, and this process must not decide.
        """

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> bool:
        if error is None:
            self._note_success()
        elif isinstance(error, RateLimitStoreError):
            self._note_failure(error)
            return self._local_allowed
        return False

    def give_up(self, reservation: Reservation) -> None:
        """Return a reservation, if the store is available and nothing was reserved after it."""
        if self._unavailable_since is None:
            with suppress(RateLimitStoreError):  # the permits are forfeited
                self._store.give_up(
                    self._limit(reservation.key), reservation.tokens, reservation.number
                )

    async def give_up_async(self, reservation: Reservation) -> None:
        """The same for a task, also for one that is cancelled."""
        await run_in_thread_shielded(self.give_up, reservation)

    def pause(self, seconds: float) -> None:
        """Hold back the calls of all processes."""
        interval, burst = self._rate
        with self:
            self._store.pause(self._limit(None), seconds, interval * burst)

    def fetch(self) -> RateLimitRecord | None:
        """The record of the calls without a key; None: this process decides."""
        if not self.is_local:
            with self:
                return self._store.fetch(self._name)
        return None

    def poll(self) -> bool:
        """Check whether a lost store is available again; False: no further check is needed."""
        try:
            self._store.fetch(self._name)
        except RateLimitStoreError:
            return True
        self._note_success()
        return False

    def _limit(self, key: Hashable) -> StoredLimit:
        return self._single if key is None else self._store.limit(self._name, key, *self._rate)

    def _note_failure(self, error: RateLimitStoreError) -> None:
        if self._monitor.post(self._begin_outage, self._monotonic.now()):
            LOG.warning("rate limiter %r: the store is unavailable: %s", self._name, error)
            event = RateLimitStoreLost(name=self._name, error=error)
            notify_listeners(self._listeners, [event])
        if self._local_allowed:
            self._poller.ensure_running()

    def _begin_outage(self, now: float) -> bool:
        if self._unavailable_since is not None:
            return False
        self._unavailable_since = now
        return True

    def _note_success(self) -> None:
        if self._unavailable_since is not None:
            outage = self._monitor.post(self._end_outage, self._monotonic.now())
            if outage is not None:
                event = RateLimitStoreRecovered(name=self._name, outage=outage)
                notify_listeners(self._listeners, [event])

    def _end_outage(self, now: float) -> float | None:
        since, self._unavailable_since = self._unavailable_since, None
        return None if since is None else now - since

    def close(self) -> None:
        """End the thread that polls a lost store."""
        self._poller.close()
