"""A cluster of workers in one event loop, on virtual time, with scripted crashes and outages."""

from __future__ import annotations

import asyncio
import gc
from contextvars import Context
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.validation import check_at_least_one, check_delay
from retrytemplate.errors import RetryError
from retrytemplate.testing.clock import VirtualClock
from retrytemplate.workers.testing.faults import Faults, StallingLoop
from retrytemplate.workers.testing.invariants import ClusterReport, Observations
from retrytemplate.workers.testing.memory_cache import LeasedMemoryCache
from retrytemplate.workers.testing.memory_source import MemoryQueue
from retrytemplate.workers.testing.simulated_worker import CURRENT_WORKER, SimulatedWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from retrytemplate.workers.runtime.runtime import WorkerRuntime

OTHER_TASKS = 16
RECONNECT = 0.1
"""The shortest time in seconds until the restart of a worker that could not connect."""
OUTAGES = (OSError, RetryError)


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
    :param duplicates: share of the messages that the queue delivers twice, default 0.
    :param reordering: share of the deliveries that overtake others, default 0.
    :param keep_events: whether the report lists the events, default True; False: a million messages
        need 200 MB less.

    ``before_call`` may be replaced by a function of ("queue" or "store", operation), which raises
    an exception to fail the call.

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
        duplicates: float = 0.0,
        reordering: float = 0.0,
        keep_events: bool = True,
    ) -> None:
        check_at_least_one("workers", workers)
        check_delay("restart_after", restart_after)
        check_delay("crashes_per_hour", crashes_per_hour)
        self.clock = VirtualClock()
        self.queue = MemoryQueue(
            "simulated",
            visibility_timeout=visibility_timeout,
            duplicates=duplicates,
            reordering=reordering,
            random=Random(f"{seed}/queue"),
            clock=self.clock,
        )
        self.cache = LeasedMemoryCache(lease, clock=self.clock)
        self.seed = seed
        self.seen = Observations(max_crashes=max_crashes, keeps_events=keep_events)
        self.faults = Faults()
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
        self._stopping: set[WorkerRuntime] = set()
        self._error: BaseException | None = None

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call a function at a virtual time, in seconds from the start."""
        self._script.append((time, call))

    def outage(self, part: str, begin: float, end: float) -> None:
        """Make the "queue" or the "store" unreachable between two virtual times."""
        self.faults.add_outage(part, begin, end)
        self.at(end, self.seen.disturbed_now)

    def crash_at_step(self, step: str, message_id: str, *, after: bool = False) -> None:
        """Crash the first worker that reaches a step of a message, from outside.

        :param step: "begin" (the claim), "succeed", "fail" or "release" (the end of the attempt),
            "acknowledge" or "dead_letter".
        :param after: whether the step is done before the crash; default False.
        """
        self.faults.add_step(step, message_id, after)

    def stall(self, number: int, seconds: float) -> None:
        """Stop a worker for a time, as SIGSTOP and SIGCONT do; its leases may end meanwhile."""
        worker, loop = self.workers[number], self._loop
        loop.stop_worker(worker)
        # After the callbacks of the worker that are ready: they may claim a key, or end a claim.
        loop.call_soon(self.seen.interrupted, worker.claims, worker.inside, context=Context())
        loop.call_later(seconds, self._continue, worker, context=Context())

    def _continue(self, worker: SimulatedWorker) -> None:
        self.seen.disturbed_now()
        self._loop.continue_worker(worker)

    def stop(self, number: int) -> None:
        """Stop a worker in order, as SIGTERM does; it starts again ``restart_after`` later."""
        runtime = self.workers[number].runtime
        if runtime is not None:
            runtime.stop()
            self._stopping.add(runtime)

    def call(self, part: str, operation: str) -> None:
        """Called before each operation of the queue and the store."""
        if self.faults.outages:
            self.faults.check(part, self.clock.monotonic())
        self.before_call(part, operation)

    def run(self, messages: int | Sequence[str], *, timeout: float = 3600.0) -> ClusterReport:
        """Process messages until the queue is empty, or for *timeout* virtual seconds.

        :param messages: their ids, or their number.
        """
        ids = [f"m-{each}" for each in range(messages)] if isinstance(messages, int) else messages
        for each in ids:
            self.queue.put(b"", id=each)
        is_enabled = gc.isenabled()
        gc.disable()  # the objects of a simulation live until its end
        self._loop = StallingLoop(self.clock)
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main(timeout))
        finally:
            if is_enabled:
                gc.enable()
        seen, letters = self.seen, self.queue.letters
        seen.finish(ids, letters, {each.message.id for each in self.queue._entries.values()})
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
            if self._error is not None:
                raise self._error
            self._check_tasks()
            self.seen.sample(self.clock.monotonic(), bool(self.queue._ready))
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
        if self._is_over:
            return
        self.starts += 1
        worker = self.workers[number] = SimulatedWorker(self, number)
        runtime = self._factory(worker)
        worker.runtime = runtime
        token = CURRENT_WORKER.set(worker)
        try:
            task = asyncio.get_running_loop().create_task(runtime.run())
        finally:
            CURRENT_WORKER.reset(token)
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
        task.add_done_callback(partial(self._restart, worker), context=Context())

    def _restart(self, worker: SimulatedWorker, run: asyncio.Task[Any]) -> None:
        """Start a worker again that was stopped in order, or that an outage has ended."""
        if not worker.is_alive or self._is_over or run.cancelled():
            return
        error, delay = run.exception(), self._restart_after
        if isinstance(error, OUTAGES):
            delay = max(delay, RECONNECT)  # virtual time passes only if no callback is ready
        elif error is not None:
            self._error = error
            return
        elif worker.runtime not in self._stopping:
            return
        worker.is_alive = False  # it cannot crash until it is started again
        self._loop.call_later(delay, self._start, worker.number, context=Context())

    def crash(self, worker: SimulatedWorker, key: Any = None) -> None:
        """Crash a worker: nothing that it does has an effect from now on.

        Its tasks are cancelled; code of a handler that handles a cancellation runs, but reaches
        neither queue nor store.

        :param key: the cause; None: from outside.
        """
        if not worker.is_alive:
            return
        worker.is_alive = False
        exclusive = worker.inside if key is None else {}
        self.seen.interrupted(worker.claims, exclusive)
        self.seen.crashed(key, self.queue.copied.get(str(key), 0))
        self.queue.disconnect(worker.source)
        loop = self._loop
        loop.continue_worker(worker)
        loop.call_soon(_cancel_all, worker, 100, context=Context())
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
    worker, context = CURRENT_WORKER.get(), options.get("context")
    if worker is not None and context is not None:
        context.run(CURRENT_WORKER.set, worker)
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
