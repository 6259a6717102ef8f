"""A cluster of workers in one event loop, on virtual time, with scripted crashes and outages."""

from __future__ import annotations

import asyncio
import gc
from contextvars import Context, ContextVar
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from retrytemplate._internal.validation import check_at_least_one, check_delay
from retrytemplate.control.isolation_gate.gate import ProcessGate
from retrytemplate.testing import VirtualClock, run
from retrytemplate.workers.testing.invariants import ClusterReport, Observations
from retrytemplate.workers.testing.memory_cache import LeasedMemoryCache
from retrytemplate.workers.testing.memory_source import MemoryQueue, MemorySource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from retrytemplate.caches.base import Claim
    from retrytemplate.workers.message import DeadLetter, Message
    from retrytemplate.workers.runtime.runtime import WorkerRuntime

__all__ = ["SimulatedCluster", "SimulatedWorker"]


OTHER_TASKS = 16

_worker: ContextVar[SimulatedWorker | None] = ContextVar("simulated_worker", default=None)


class SimulatedWorker:
    """One process of the cluster, from its start until it crashes or stops.

    ``source``, ``cache``, ``gate``, ``clock`` and ``random`` are for the runtime that the factory
    makes; ``crash`` is for its handler.
    """

    def __init__(self, cluster: SimulatedCluster, number: int) -> None:
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

    def on_event(self, event: Any) -> None:
        """Note an event: pass the worker as a listener of its runtime."""
        if self.is_alive:
            self.cluster.seen.event(self.clock.monotonic(), event)


class _Source(MemorySource):
    """The worker's connection to the queue."""

    def __init__(self, worker: SimulatedWorker) -> None:
        super().__init__(worker.cluster.queue, before=self._before_call)
        self.worker = worker

    def _before_call(self, operation: str) -> None:
        self.worker.check()
        self.worker.cluster.before_call("queue", operation)

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        worker, seen = self.worker, self.worker.cluster.seen
        claimed = set(worker.claims.values())
        rejected = await super().acknowledge(messages)
        now = worker.clock.time()
        for message in messages:
            if message.id not in claimed:
                seen.violated("I10", f"{message.id} was acknowledged outside of the gate")
            if message not in rejected:
                if not seen.successes[message.id]:
                    seen.violated("I1", f"{message.id} was acknowledged without a success")
                seen.latencies.append(now - (message.enqueued_at or now))
        return rejected


class _Cache(LeasedMemoryCache):
    """The worker's connection to the context cache."""

    def __init__(self, worker: SimulatedWorker) -> None:
        shared = worker.cluster.cache
        super().__init__(shared.lease, shared.ttl, clock=worker.clock)
        self._rows, self._fence = shared._rows, shared._fence
        self.worker = worker

    def _check(self, operation: str) -> None:
        self.worker.check()
        self.worker.cluster.before_call("store", operation)

    def begin(self, key: str, **options: Any) -> Claim:
        worker, task = self.worker, asyncio.current_task()
        if task not in worker.inside:
            worker.cluster.seen.violated("I10", f"{key} was claimed outside of the gate")
        worker.claims[task] = message_id(key)
        self._check("begin")
        return super().begin(key, **options)

    def renew(self, claim: Claim) -> None:
        self._check("renew")
        super().renew(claim)

    def fail(self, claim: Claim, record: Any) -> None:
        if record.worker is None:
            self._renewer.drop(claim)
        self._check("fail")
        super().fail(claim, record)
        if record.worker is None:
            self.worker.cluster.seen.ended(message_id(claim.key), claim.fence)

    def succeed(self, claim: Claim, **options: Any) -> None:
        self._renewer.drop(claim)
        self._check("succeed")
        super().succeed(claim, **options)
        seen = self.worker.cluster.seen
        is_success = options.get("remember") is not None
        (seen.succeeded if is_success else seen.ended)(message_id(claim.key), claim.fence)

    def release(self, claim: Claim) -> None:
        self._renewer.drop(claim)
        self._check("release")
        super().release(claim)


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
        self._task = task
        if any(worker.inside.values()) or (self._exclusive and worker.inside):
            worker.cluster.seen.violated("I10", "an exclusive attempt is not alone")
        worker.inside[task] = self._exclusive

    def __exit__(self, *error: object) -> None:
        self._worker.inside.pop(self._task, None)
        self._worker.claims.pop(self._task, None)
        self._entry.__exit__(*error)


class SimulatedCluster:
    """Workers with the real runtime, a queue and a context cache in memory, on virtual time.

    :param runtime_factory: returns the runtime of a ``SimulatedWorker``, made of its ``source``,
        ``cache``, ``gate``, ``clock`` and ``random``, and with the worker among the ``listeners``.
    :param workers: number of workers, default 100.
    :param seed: of the random numbers; two runs with one seed are equal, event for event.
    :param restart_after: virtual seconds until a crashed worker is started again, default 0.1.
    :param crashes_per_hour: random crashes of each worker from outside, default 0.
    :param lease: seconds of the leases of the context cache, default 30.
    :param visibility_timeout: seconds, default 60.
    :param max_crashes: of the policy of the runtimes, for the check of I3.

    ``before_call`` may be replaced by a function of ("queue" or "store", operation), which raises
    an exception during an outage.

    >>> def make(worker):
    ...     async def handle(message, context):
    ...         await asyncio.sleep(0.1)
    ...     return WorkerRuntime(
    ...         worker.source, handler=handle, name="billing", cache=worker.cache,
    ...         gate=worker.gate, clock=worker.clock, random=worker.random, listeners=[worker],
    ...     )
    >>> import asyncio
    >>> from retrytemplate.workers import WorkerRuntime
    >>> report = SimulatedCluster(make, workers=2, seed=1).run(20)
    >>> report.acknowledged, report.violations
    (20, ())
    """

    def __init__(
        self,
        runtime_factory: Callable[[SimulatedWorker], WorkerRuntime],
        workers: int = 100,
        seed: int = 0,
        *,
        restart_after: float = 0.1,
        crashes_per_hour: float = 0.0,
        lease: float = 30.0,
        visibility_timeout: float | None = 60.0,
        max_crashes: int = 2,
    ) -> None:
        check_at_least_one("workers", workers)
        check_delay("restart_after", restart_after)
        check_delay("crashes_per_hour", crashes_per_hour)
        self.clock = VirtualClock()
        self.queue = MemoryQueue(
            "simulated", visibility_timeout=visibility_timeout, clock=self.clock
        )
        self.cache = LeasedMemoryCache(lease, clock=self.clock)
        self.seed = seed
        self.seen = Observations(max_crashes=max_crashes)
        self.before_call: Callable[[str, str], None] = _nothing
        self.starts = 0
        self.workers: dict[int, SimulatedWorker] = {}
        self._factory = runtime_factory
        self._count = workers
        self._restart_after = restart_after
        self._crashes_per_hour = crashes_per_hour
        self._random = Random(seed)
        self._script: list[tuple[float, Callable[[], None]]] = []
        self._runs: set[asyncio.Task[Any]] = set()
        self._is_over = False

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call a function at a virtual time, in seconds from the start."""
        self._script.append((time, call))

    def run(self, messages: int | Sequence[str], *, timeout: float = 3600.0) -> ClusterReport:
        """Process messages until the queue is empty, or for *timeout* virtual seconds.

        :param messages: their ids, or their number.
        """
        ids = [f"m-{each}" for each in range(messages)] if isinstance(messages, int) else messages
        for each in ids:
            self.queue.put(b"", id=each)
        is_enabled = gc.isenabled()
        gc.disable()  # the objects of a simulation live until its end
        try:
            run(self._main(timeout), clock=self.clock)
        finally:
            if is_enabled:
                gc.enable()
        letters: list[DeadLetter] = self.queue.letters
        self.seen.finish(len(ids), self.queue.acknowledged, letters, len(self.queue))
        seen = self.seen
        return ClusterReport(
            acknowledged=self.queue.acknowledged,
            letters=letters,
            remaining=len(self.queue),
            crashes=seen.crashes,
            attributed=seen.attributed,
            suspects=len(seen.suspects),
            exclusive_seconds=seen.exclusive_seconds,
            latencies=sorted(seen.latencies),
            elapsed=self.clock.monotonic(),
            events=seen.events,
            violations=tuple(seen.violations),
        )

    async def _main(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(_task_factory)
        for time, call in self._script:
            loop.call_later(time, call)
        for number in range(self._count):
            self._start(number)
        if self._crashes_per_hour:
            self._schedule_crash()
        while len(self.queue) and self.clock.monotonic() < timeout:
            await asyncio.sleep(0.5)
            self._check_tasks()
        self._is_over = True
        for worker in self.workers.values():
            if worker.runtime is not None:
                worker.runtime.stop()
        while self._runs:
            await asyncio.wait(self._runs)
        loop.set_task_factory(None)

    def _check_tasks(self) -> None:
        """I9: the number of tasks of a worker does not grow with the number of messages."""
        for worker in self.workers.values():
            if worker.runtime is None:
                continue
            # Two slots for each attempt, and in an outage a settlement of each slot.
            most = 4 * worker.runtime.concurrency + OTHER_TASKS
            if len(worker.tasks) > most:
                alive = sum(not task.done() for task in worker.tasks)
                if alive > most:
                    self.seen.violated("I9", f"worker {worker.number} has {alive} tasks")

    def _start(self, number: int) -> None:
        self.starts += 1
        worker = self.workers[number] = SimulatedWorker(self, number)
        runtime = self._factory(worker)
        worker.runtime = runtime
        token = _worker.set(worker)
        try:
            task = asyncio.get_running_loop().create_task(runtime.run())
        finally:
            _worker.reset(token)
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)

    def crash(self, worker: SimulatedWorker, key: Any = None) -> None:
        """Crash a worker: nothing that it does has an effect from now on.

        Its tasks are cancelled; code of a handler that handles a cancellation runs, but reaches
        neither queue nor store.

        :param key: the cause; None: from outside.
        """
        if not worker.is_alive:
            return
        worker.is_alive = False
        if key is None:
            self.seen.hit |= {
                worker.claims[task]
                for task, is_exclusive in worker.inside.items()
                if is_exclusive and task in worker.claims
            }
        self.seen.crashed(key)
        self.queue.disconnect(worker.source)
        loop = asyncio.get_running_loop()
        loop.call_soon(_cancel_all, worker, 100)
        if not self._is_over:
            # In a context of its own: this one is that of the attempt, with its deadline.
            loop.call_later(self._restart_after, self._start, worker.number, context=Context())

    def crash_random(self) -> None:
        """Crash a worker from outside."""
        alive = [worker for worker in self.workers.values() if worker.is_alive]
        if alive:
            self.crash(self._random.choice(alive))

    def _schedule_crash(self) -> None:
        rate = self._crashes_per_hour * self._count / 3600.0
        asyncio.get_running_loop().call_later(self._random.expovariate(rate), self._crash_next)

    def _crash_next(self) -> None:
        if not self._is_over:
            self.crash_random()
            self._schedule_crash()


def _nothing(kind: str, operation: str) -> None:
    """No outage."""


def _task_factory(loop: Any, coroutine: Any, **options: Any) -> Any:
    """Make a task, and note which worker it belongs to."""
    worker = _worker.get()
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    if worker is not None:
        worker.tasks.add(task)
    return task


def _cancel_all(worker: SimulatedWorker, rounds: int) -> None:
    """Cancel the tasks of a crashed worker until they have ended."""
    alive = [task for task in worker.tasks if not task.done()]
    for task in alive:
        task.cancel()
    if alive and rounds:
        asyncio.get_running_loop().call_soon(_cancel_all, worker, rounds - 1)
