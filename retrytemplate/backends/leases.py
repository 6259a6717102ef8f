"""Leases of the claims that a cache holds, and the thread or task that renews them."""

from __future__ import annotations

import logging
import math
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import ref

from attrs import define, field

from retrytemplate._internal.cancel_scope import wait_shielded
from retrytemplate.caches.base import Claim
from retrytemplate.errors import LeaseLostError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

LOG = logging.getLogger("retrytemplate.backends")
# Fractions of a lease: a renewal after a third leaves time for another one; after a failed renewal
# the next one is made sooner.
USUALLY, AFTER_FAILURE = 1 / 3, 1 / 10


class LeasedClaim(Claim):
    """A claim with a lease of ``lease`` seconds.

    ``process`` took it: a child process has a copy, and must not end it.
    """

    __slots__ = ("__weakref__", "lease", "process")

    lease: float

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self.process = os.getpid()


@define
class Lease:
    """A held claim: the time of its next renewal, and the end of its lease.

    The claim belongs to the execution that took it.  A claim that was garbage-collected is not
    renewed.
    """

    claim: ref[LeasedClaim]
    due: float
    end: float


class Leases:
    """The held claims, by key.

    A finalizer or a signal handler may end a claim between any two instructions here: each step
    changes the table by one operation, which succeeds if the entry is gone.
    """

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._has_new_claims = False  # since the last call of next_wakeup()
        self._shortest = math.inf
        self.thread: threading.Thread | None = None  # renews them, if a thread does

    def add(self, claim: LeasedClaim, now: float) -> float:
        """Add a claim that was taken or renewed; return the time of its renewal."""
        rest = claim.lease * USUALLY
        self._has_new_claims = True
        self._shortest = min(self._shortest, rest)
        self._leases[claim.key] = Lease(ref(claim), now + rest, now + claim.lease)
        return now + rest

    def failed(self, claim: LeasedClaim, now: float) -> None:
        """Note a failed renewal: it is repeated until the lease ends."""
        lease = self._leases.get(claim.key)
        if lease is None or lease.claim() is not claim:
            return
        lease.due = now + claim.lease * AFTER_FAILURE
        if lease.due >= lease.end:
            self._leases.pop(claim.key, None)

    def drop(self, claim: Claim) -> None:
        """Remove a claim that has ended, or is lost."""
        if self.has(claim):
            self._leases.pop(claim.key, None)

    def has(self, claim: Claim) -> bool:
        """Whether this claim is held, and not a later one of the same key."""
        lease = self._leases.get(claim.key)
        return lease is not None and lease.claim() is claim

    def due_for_renewal(self, now: float) -> list[LeasedClaim]:
        """The claims whose renewal is due."""
        claims = []
        # A copy: the garbage collector may close an execution meanwhile, which drops its claim.
        for key, lease in list(self._leases.items()):
            claim = lease.claim()
            if claim is None:
                self._leases.pop(key, None)
            elif lease.due <= now:
                claims.append(claim)
        return claims

    def next(self) -> float | None:
        """Time of the next renewal; None: no claim is held."""
        return min((lease.due for lease in list(self._leases.values())), default=None)

    def next_wakeup(self, now: float) -> float | None:
        """Time when the renewer wakes up without a notification; None: only when notified.

        While claims are taken and ended, it is the earliest time when one could be due: most claims
        end before, and the next one needs no notification.
        """
        at = self.next()
        if at is None and self._has_new_claims:
            at = now + self._shortest
        self._has_new_claims = False
        return at


@define(eq=False, repr=False, slots=False)
class _Renewer:
    """Renews the leases of claims.

    :param renew: renews the lease of one claim.
    :param monotonic: returns the time in seconds.
    :param end_left: ends the claims that finalizers have left; called at each wake-up.
    """

    _renew: Callable[[LeasedClaim], Any]
    _monotonic: Callable[[], float]
    _end_left: Callable[[], Any]
    _leases: Leases = field(init=False, factory=Leases)
    _next_wakeup: float = field(init=False, default=math.inf)  # without a notification

    def _seconds_to_wakeup(self, now: float) -> float | None:
        """Set the next wake-up; None: only a notification ends the wait."""
        at = self._leases.next_wakeup(now)
        self._next_wakeup = math.inf if at is None else at
        return None if at is None else at - now

    def _record(self, claim: LeasedClaim, error: Exception | None) -> None:
        """Note the result of a renewal, unless the claim has ended meanwhile."""
        if not self._leases.has(claim):
            return
        if error is None:
            self._leases.add(claim, self._monotonic())
        elif isinstance(error, LeaseLostError):
            self._leases.drop(claim)
        else:
            self._leases.failed(claim, self._monotonic())


class RenewingThread(_Renewer):
    """Renews in a daemon thread, which the first claim starts."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        # Used directly, not through the condition: that is written in Python, and a signal handler
        # may leave it locked.
        self._lock: Any = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def add(self, claim: LeasedClaim) -> None:
        """Renew this claim until it is dropped."""
        with self._lock:
            leases = self._leases
            if leases.add(claim, self._monotonic()) < self._next_wakeup:
                self._changed.notify()
            is_first = leases.thread is None
        if is_first:
            # Without the lock: finalizers may run in the new thread, and wait, before it has begun.
            thread = threading.Thread(
                target=self._run, args=(leases,), name="retrytemplate-leases", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # the program ends, or has too many threads
                LOG.warning(
                    "cannot start the thread that renews leases: %s; no lease is renewed until the "
                    "next claim, which tries again",
                    error,
                )
                return
            if not self._renews(thread, leases) and not self._lock._is_owned():
                thread.join()  # it ends at once: another thread was the first, or stop() was called

    def _renews(self, thread: threading.Thread, leases: Leases) -> bool:
        """Let the first thread for these leases renew them; whether it is this one."""
        with self._lock:
            if leases is not self._leases:
                return False
            if leases.thread is None:
                leases.thread = thread
            return leases.thread is thread

    def drop(self, claim: Claim) -> None:
        """Stop the renewal of this claim."""
        with self._lock:
            self._leases.drop(claim)

    def stop(self) -> None:
        """Drop all claims; return when the thread has ended.

        Inside an interrupted step it does not wait: the thread needs the lock to end.
        """
        with self._lock:
            leases, self._leases = self._leases, Leases()
            self._changed.notify_all()
        if leases.thread is not None and not self._lock._is_owned():
            leases.thread.join()

    def _run(self, leases: Leases) -> None:
        while True:
            with self._lock:
                due = self._wait(leases)
            if due is None:
                return
            self._end_left()
            for claim in due:
                self._renew_one(claim)

    def _wait(self, leases: Leases) -> list[LeasedClaim] | None:
        """The claims that are due, after a wait if there are none; None: the thread must end."""
        if not self._renews(threading.current_thread(), leases):
            return None
        now = self._monotonic()
        due = self._leases.due_for_renewal(now)
        if not due:
            rest = self._seconds_to_wakeup(now)
            # A thread can wait for at most 292 years.
            self._changed.wait(None if rest is None else min(rest, threading.TIMEOUT_MAX))
            if self._leases is leases:
                self._next_wakeup = -math.inf
        return due

    def _renew_one(self, claim: LeasedClaim) -> None:
        with self._lock:
            if not self._leases.has(claim):
                return
        error: Exception | None = None
        try:
            self._renew(claim)
        except Exception as exc:  # the next renewal may succeed
            error = exc
        with self._lock:
            self._record(claim, error)


class RenewingTask(_Renewer):
    """Renews in a task of the event loop in which the first claim is taken."""

    _task: asyncio.Task[None] | None = None
    _changed: asyncio.Event | None = None

    def add(self, claim: LeasedClaim) -> None:
        """Renew this claim until it is dropped."""
        import asyncio
        from contextvars import Context

        due = self._leases.add(claim, self._monotonic())
        if self._task is None or self._changed is None or self._task.done():
            self._changed = asyncio.Event()
            loop = asyncio.get_running_loop()
            # In a new context: the context of this execution would live as long as the task.
            self._task = loop.create_task(
                self._run(self._changed), name="retrytemplate-leases", context=Context()
            )
        elif due < self._next_wakeup:
            self._changed.set()

    def drop(self, claim: Claim) -> None:
        """Stop the renewal of this claim."""
        self._leases.drop(claim)

    async def stop(self) -> None:
        """Drop all claims; return when the task has ended.

        A renewal in progress is not cancelled: its connection could not be used afterwards.
        """
        task, self._task = self._task, None
        self._leases = Leases()
        if self._changed is not None:
            self._changed.set()
        if task is not None and not task.done():
            await wait_shielded([task])

    async def _run(self, changed: asyncio.Event) -> None:
        import asyncio

        while self._task is asyncio.current_task():
            await self._end_left()
            for claim in self._leases.due_for_renewal(self._monotonic()):
                await self._renew_one(claim)
            rest = self._seconds_to_wakeup(self._monotonic())
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await changed.wait()
            changed.clear()
            self._next_wakeup = -math.inf

    async def _renew_one(self, claim: LeasedClaim) -> None:
        if not self._leases.has(claim):
            return
        error: Exception | None = None
        try:
            await self._renew(claim)
        except Exception as exc:  # the next renewal may succeed; a cancellation ends the task
            error = exc
        self._record(claim, error)
