"""One worker of a simulated cluster, and its connections to the queue, the store and the gate."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from retrytemplate.control.isolation_gate.gate import ProcessGate
from retrytemplate.workers.events import WorkerStopped
from retrytemplate.workers.testing.memory_cache import LeasedMemoryCache
from retrytemplate.workers.testing.memory_source import MemorySource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retrytemplate.caches.base import Claim
    from retrytemplate.workers.message import DeadLetter, Message
    from retrytemplate.workers.runtime.runtime import WorkerRuntime

CURRENT_WORKER: ContextVar[SimulatedWorker | None] = ContextVar("simulated_worker", default=None)


class SimulatedWorker:
    """One process of the cluster, from its start until it crashes or stops.

    ``source``, ``cache``, ``gate``, ``clock`` and ``random`` are for the runtime that the factory
    makes; ``crash`` is for its handler.

    :param cluster: the ``SimulatedCluster``.
    :param number: of the worker; a worker that is started again keeps it.
    """

    def __init__(self, cluster: Any, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.clock = cluster.clock
        self.random = Random(f"{cluster.seed}/{number}/{cluster.starts}")
        self.source = _Source(self)
        self.cache = _Cache(self)
        self.gate = _Gate(self)
        self.runtime: WorkerRuntime | None = None
        self.is_alive = True
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        # By task: the gate entry, and the key of the claim.
        self.inside: dict[Any, bool] = {}
        self.claims: dict[Any, str] = {}

    async def crash(self) -> NoReturn:
        """Crash this worker from inside a handler; the key of its attempt is the cause."""
        self.cluster.crash(self, self.claims.get(asyncio.current_task()))
        await asyncio.Event().wait()
        raise AssertionError

    def check(self) -> None:
        """Raise if the worker has crashed: nothing that it does has an effect."""
        if not self.is_alive:
            raise asyncio.CancelledError

    def step(self, step: str, key: str | None, *, after: bool) -> None:
        """Crash before or after a step of a message, if the script says so."""
        script = self.cluster.faults.steps
        if script and (step, key, after) in script:
            script.remove((step, key, after))
            self.cluster.crash(self)
        self.check()

    def on_event(self, event: Any) -> None:
        """Note an event: pass the worker as a listener of its runtime."""
        if self.is_alive:
            limit = 0.0
            if isinstance(event, WorkerStopped) and self.runtime is not None:
                self.cluster.seen.lost.update(self.claims.values())  # of stuck attempts
                limit = self.runtime.shutdown.total
            self.cluster.seen.event(self.clock.monotonic(), event, limit)


class _Source(MemorySource):
    """The worker's connection to the queue."""

    def __init__(self, worker: SimulatedWorker) -> None:
        super().__init__(worker.cluster.queue, before=self._before_call)
        self.worker = worker

    def _before_call(self, operation: str) -> None:
        self.worker.check()
        self.worker.cluster.call("queue", operation)

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        worker, seen = self.worker, self.worker.cluster.seen
        claimed = set(worker.claims.values())
        for message in messages:
            worker.step("acknowledge", message.id, after=False)
        rejected = await super().acknowledge(messages)
        now = worker.clock.time()
        for message in messages:
            if message.id not in claimed:
                seen.violated("I10", f"{message.id} was acknowledged outside of the gate")
            if message not in rejected:
                seen.acknowledged(message.id, now - (message.enqueued_at or now))
        for message in messages:
            worker.step("acknowledge", message.id, after=True)
        return rejected

    async def dead_letter(self, message: Message, letter: DeadLetter) -> None:
        self.worker.step("dead_letter", message.id, after=False)
        await super().dead_letter(message, letter)
        self.worker.step("dead_letter", message.id, after=True)


class _Cache(LeasedMemoryCache):
    """The worker's connection to the context cache."""

    def __init__(self, worker: SimulatedWorker) -> None:
        shared = worker.cluster.cache
        super().__init__(shared.lease, shared.ttl, clock=worker.clock)
        self._rows, self._fence = shared._rows, shared._fence
        self._remembered = shared._remembered
        self.worker = worker

    def _check(self, operation: str, key: str) -> None:
        worker = self.worker
        self._step(operation, key, after=False)
        try:
            worker.cluster.call("store", operation)
        except Exception:  # the end of an attempt cannot be recorded, so it may be lost
            worker.cluster.seen.lost.update(worker.claims.values())
            raise

    def _step(self, operation: str, key: str, *, after: bool) -> None:
        worker = self.worker
        if worker.cluster.faults.steps:
            worker.step(operation, message_id(key), after=after)
        else:
            worker.check()

    def begin(self, key: str, **options: Any) -> Claim:
        worker, task = self.worker, asyncio.current_task()
        if task not in worker.inside:
            worker.cluster.seen.violated("I10", f"{key} was claimed outside of the gate")
        worker.claims[task] = message_id(key)
        self._check("begin", key)
        claim = super().begin(key, **options)
        self._step("begin", key, after=True)
        return claim

    def renew(self, claim: Claim) -> None:
        self._check("renew", claim.key)
        super().renew(claim)

    def fail(self, claim: Claim, record: Any) -> None:
        if record.worker is None:
            self._renewer.drop(claim)
        self._check("fail", claim.key)
        super().fail(claim, record)
        if record.worker is None:
            self.worker.cluster.seen.ended(message_id(claim.key), claim.fence)
        self._step("fail", claim.key, after=True)

    def succeed(self, claim: Claim, **options: Any) -> None:
        self._renewer.drop(claim)
        self._check("succeed", claim.key)
        super().succeed(claim, **options)
        seen, remember = self.worker.cluster.seen, options.get("remember")
        key = message_id(claim.key)
        if remember is not None:
            now = self.worker.clock.monotonic()
            seen.succeeded(key, now + remember, now)
        seen.ended(key, claim.fence)
        self._step("succeed", claim.key, after=True)

    def release(self, claim: Claim) -> None:
        self._renewer.drop(claim)
        self._check("release", claim.key)
        super().release(claim)
        self._step("release", claim.key, after=True)


def message_id(key: str) -> str:
    """The id of the message in a stored key: ``billing/s:m-1``."""
    return key.partition("/s:")[2]


class _Gate:
    """A ``ProcessGate`` that checks the order of steps."""

    def __init__(self, worker: SimulatedWorker) -> None:
        self._gate = ProcessGate()
        self._worker = worker

    def shared(self, timeout: Any = None) -> _Entry:
        return _Entry(self._worker, self._gate.shared(timeout), exclusive=False)

    def exclusive(self, timeout: Any = None) -> _Entry:
        return _Entry(self._worker, self._gate.exclusive(timeout), exclusive=True)


class _Entry:
    def __init__(self, worker: SimulatedWorker, entry: Any, *, exclusive: bool) -> None:
        self._worker = worker
        self._entry = entry
        self._exclusive = exclusive
        self._task: Any = None

    async def __aenter__(self) -> None:
        worker, task = self._worker, asyncio.current_task()
        if task in worker.claims:
            worker.cluster.seen.violated("I10", f"{worker.claims[task]} waits with a claim")
        await self._entry.__aenter__()
        worker.check()
        self._task = task
        if any(worker.inside.values()) or (self._exclusive and worker.inside):
            worker.cluster.seen.violated("I10", "an exclusive attempt is not alone")
        worker.inside[task] = self._exclusive

    def __exit__(self, *error: object) -> None:
        self._worker.inside.pop(self._task, None)
        self._worker.claims.pop(self._task, None)
        self._entry.__exit__(*error)
