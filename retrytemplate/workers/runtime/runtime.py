"""The settings of a worker runtime, and its start and end."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.cancel_reason import CancelReason
from retrytemplate._internal.cancel_scope import wait_shielded
from retrytemplate._internal.validation import (
    check_at_least_one,
    check_function,
    check_limit,
    check_methods,
    check_span,
    check_text,
    check_text_or_none,
    read_seconds,
)
from retrytemplate.backends.durable import AwaitedCache
from retrytemplate.backoff.base import Backoff
from retrytemplate.backoff.exponential import ExponentialBackoff
from retrytemplate.caches.base import METHODS
from retrytemplate.clock import Clock, given_or_system
from retrytemplate.control.crash_loop import CrashLoopError
from retrytemplate.control.events import ControlListener, Observable, to_listeners
from retrytemplate.control.isolation_gate.gate import PROCESS_GATE
from retrytemplate.errors import MisuseError
from retrytemplate.workers.crash_attribution import RedeliveryPolicy
from retrytemplate.workers.registry import Registry
from retrytemplate.workers.runtime.lint import lint
from retrytemplate.workers.runtime.run import Run
from retrytemplate.workers.runtime.shutdown import Shutdown, ShutdownReport, shut_down
from retrytemplate.workers.runtime.snapshot import RuntimeSnapshot, snapshot_of
from retrytemplate.workers.sources.base import METHODS as SOURCE_METHODS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from random import Random

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.control.pipeline.lint import LintWarning
    from retrytemplate.workers.message import Message
    from retrytemplate.workers.sources.base import Source

SIGNALS = signal.SIGTERM, signal.SIGINT
BACKOFF = ExponentialBackoff(initial=1.0, maximum=300.0, jitter="full")


class WorkerRuntime(Observable):
    """Receives messages from a queue and runs a handler for each, with stateful retry.

    Every attempt is recorded before it runs.  A message whose attempt is lost with its process runs
    in exclusive attempts from then on, so that a crash is attributed to the message that caused it.

    :param source: the queue.
    :param handler: ``async def handle(message, context)``, or a plain function, which runs in a
        thread; it returns an outcome, or any other value to acknowledge the message.  A plain
        function with a further parameter ``stop`` gets a ``threading.Event``, which is set when its
        attempt ends before it returns.
    :param name: names the runtime in logs and events; the scope of its keys.  A runtime of another
        name starts every key with its first attempt.
    :param cache: an asynchronous context cache; None: that of the source.
    :param concurrency: concurrent attempts, default 10, at least 1.
    :param prefetch: messages that are received and not settled, those in flight included; None:
        twice the concurrency, or the concurrency if the source has a ``delivery_limit``.
    :param attempt_timeout: seconds for the handler, default 30.  A plain function is not
        interrupted: its thread continues, see ``RuntimeSnapshot.abandoned_threads``.
    :param retry: default ``RedeliveryPolicy()``.
    :param backoff: before the next attempt; default exponential from 1 s to 300 s with jitter.
    :param key: a function of the message; None: its id.
    :param decode: a function of the message, whose result the handler gets in its place; an
        exception dead-letters the message.
    :param remember: seconds for which a success is remembered, default 300: longer than the
        visibility timeout, so that a redelivery is acknowledged without a second run.
    :param gate: None: the ``ProcessGate`` that all runtimes of this process share; a ``HostGate``
        if several processes crash together.
    :param shutdown: the limits of the shutdown.
    :param settle_timeout: seconds for each settlement, default 5.
    :param receive_wait: seconds that one call of ``receive`` waits, default 1.
    :param max_local_delay: seconds, default 60: for a longer delay a message is left to its
        visibility timeout, if the source cannot delay.
    :param guards: asked before each attempt.
    :param listeners: objects with ``on_event``.
    :param code_version: of the program, such as a tag or a commit; stored with dead letters.
    :param clock: None: the clock of the system.
    :param random: for jitter; None: a generator of its own.
    :raises MisuseError: if there is no cache, or the cache blocks.

    >>> import asyncio
    >>> from retrytemplate.workers.testing import MemorySource
    >>> source = MemorySource()
    >>> source.queue.put(b"order-17")
    'memory-1'
    >>> async def charge(message, context):
    ...     print(message.body, context.attempt)
    ...     runtime.stop()
    >>> runtime = WorkerRuntime(source, charge, name="billing")
    >>> report = asyncio.run(runtime.run())
    b'order-17' 1
    >>> report.settled, report.clean, len(source.queue)
    (1, True, 0)
    """

    _run: Run | None = None
    _stop: asyncio.Event | None = None
    _hurry: asyncio.Event | None = None
    _opening: asyncio.Timeout | None = None
    _reason = CancelReason.MANUAL

    def __init__(
        self,
        source: Source,
        handler: Callable[[Any, Any], Any],
        *,
        name: str,
        cache: Any = None,
        concurrency: int = 10,
        prefetch: int | None = None,
        attempt_timeout: Seconds = 30.0,
        retry: RedeliveryPolicy | None = None,
        backoff: Backoff = BACKOFF,
        key: Callable[[Message], Any] | None = None,
        decode: Callable[[Message], Any] | None = None,
        remember: Seconds = 300.0,
        gate: Any = None,
        shutdown: Shutdown | None = None,
        settle_timeout: Seconds = 5.0,
        receive_wait: Seconds = 1.0,
        max_local_delay: Seconds = 60.0,
        guards: Iterable[Any] = (),
        listeners: Iterable[ControlListener] = (),
        code_version: str | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        _check(source, handler, name, code_version)
        check_at_least_one("concurrency", concurrency)
        self.source = source
        self.handler = handler
        self.name = name
        self.concurrency = concurrency
        self._prefetch = _prefetch(prefetch)
        self.attempt_timeout: float = read_seconds("attempt_timeout", attempt_timeout, check_span)
        self.remember: float = read_seconds("remember", remember, check_limit)
        self.settle_timeout: float = read_seconds("settle_timeout", settle_timeout, check_span)
        self.receive_wait: float = read_seconds("receive_wait", receive_wait, check_span)
        self.max_local_delay: float = read_seconds("max_local_delay", max_local_delay, check_limit)
        self.retry = _instance("retry", retry, RedeliveryPolicy)
        self.shutdown = _instance("shutdown", shutdown, Shutdown)
        self.backoff = _instance("backoff", backoff, Backoff)
        self.key = _function("key", key)
        self.decode = _function("decode", decode)
        self.gate = gate
        self.guards = tuple(guards)
        self.listeners = to_listeners(listeners)
        self.code_version = code_version
        self.clock, self.random = given_or_system(clock), random
        self.cache = self._checked_cache(cache)
        self._track()

    @property
    def prefetch(self) -> int:
        """Messages that are received and not settled, at most."""
        if self._prefetch is not None:
            return self._prefetch
        # A broker with a delivery limit also counts the messages that a crash finds prefetched.
        is_limited = getattr(self.source, "delivery_limit", None) is not None
        return self.concurrency if is_limited else 2 * self.concurrency

    def _checked_cache(self, cache: Any) -> Any:
        if cache is None:
            cache = self.source.default_cache()
        if cache is None:
            raise MisuseError(
                f"cache must be given, because {type(self.source).__name__} has no default one: "
                "pass an asynchronous context cache, such as AsyncSQLRetryContextCache"
            )
        check_methods("cache", cache, *METHODS, "close")
        if getattr(cache, "blocking", False):
            twin = getattr(cache, "asynchronous_twin", None) or "an asynchronous cache"
            raise MisuseError(
                f"cache must not block the event loop of the runtime, got {type(cache).__name__}: "
                f"use {twin}"
            )
        return cache

    async def run(self) -> ShutdownReport:
        """Run until ``stop``; return how the shutdown went.

        A cancellation stops the runtime without a grace period, and is raised afterwards.

        :raises MisuseError: if the runtime is running.
        :raises CrashLoopError: if five processes of this name crashed before their first message
            within ten minutes; known with a durable cache.
        """
        if self._stop is not None:
            raise MisuseError(
                f"the runtime {self.name!r} runs already: wait for its end, or create another one"
            )
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._main(self._stop, self._hurry))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            self._hurry.set()
            self.stop()
            await wait_shielded([task])
            if not task.cancelled():
                task.exception()  # marks it as retrieved
            raise
        finally:
            self._stop = self._hurry = None
        return task.result()

    async def _main(self, stop: asyncio.Event, hurry: asyncio.Event) -> ShutdownReport:
        loop = asyncio.get_running_loop()
        self._run = None
        run = self._run = await self._open(stop, hurry)
        receiving = loop.create_task(run.intake.run())
        maintaining = loop.create_task(run.maintain())
        stopped = loop.create_task(stop.wait())
        failed = loop.create_task(run.failed.wait())
        done, _ = await asyncio.wait(
            [receiving, maintaining, stopped, failed], return_when=asyncio.FIRST_COMPLETED
        )
        for task in (receiving, maintaining):
            if task in done and task.exception() is not None:
                run.fail(task.exception() or RuntimeError())
        reason = self._reason if stop.is_set() else CancelReason.SIBLING_FAILED
        tasks = [maintaining, stopped, failed]
        return await shut_down(run, self.cache, receiving, tasks, reason, hurry)

    async def _open(self, stop: asyncio.Event, hurry: asyncio.Event) -> Run:
        """Open the source, and enter the registry; ``stop`` ends it after a time."""
        gate = PROCESS_GATE if self.gate is None else self.gate
        registry, is_one = None, False
        self._opening = opening = asyncio.timeout(self._opening_limit(stop, hurry))
        try:
            async with opening:
                await self.source.open()
                if opening.expired():  # it has ignored its cancellation: no further step
                    raise TimeoutError
                shares_database = getattr(self.source, "shares_database", None)
                is_one = shares_database is not None and await shares_database(self.cache)
                if isinstance(self.cache, AwaitedCache):  # other processes can read it there
                    registry = Registry(self.cache, self.name, self.snapshot, self.clock)
                    await self._enter(registry)
        except TimeoutError:
            if not opening.expired():
                raise
        finally:
            self._opening = None
        run = Run(self, self.cache, gate, registry, settles_in_transaction=is_one)
        if stop.is_set():
            run.intake.stop()
        return run

    def _opening_limit(self, stop: asyncio.Event, hurry: asyncio.Event) -> float | None:
        """Seconds from now on for which the source may be opened; None: no limit."""
        if hurry.is_set():
            return 0.0
        return self.shutdown.intake if stop.is_set() else None

    async def _enter(self, registry: Registry) -> None:
        try:
            await registry.enter()
        except CrashLoopError:
            await self.source.close()
            await self.cache.close()
            raise

    def stop(self, reason: CancelReason = CancelReason.SERVER_SHUTDOWN) -> None:
        """Begin the shutdown; a second call ends its grace period.

        Call it in the thread of the event loop.  A runtime that is not running ignores it.
        """
        if self._stop is None or self._hurry is None:
            return
        if self._stop.is_set():
            self._hurry.set()
        self._reason = CancelReason(reason)
        self._stop.set()
        if self._opening is not None and not self._opening.expired():
            limit = self._opening_limit(self._stop, self._hurry) or 0.0
            self._opening.reschedule(asyncio.get_running_loop().time() + limit)

    def lint(self) -> tuple[LintWarning, ...]:
        """Check the settings against each other, the source and the cache.

        >>> from retrytemplate.workers.testing import MemorySource
        >>> runtime = WorkerRuntime(
        ...     MemorySource(), print, name="billing", remember=30, shutdown=Shutdown(grace=90)
        ... )
        >>> [warning.rule for warning in runtime.lint()][:3]
        ['grace-exceeds-visibility', 'remember-below-visibility', 'shutdown-exceeds-orchestrator']
        """
        return lint(self, 0.0 if self._run is None else self._run.longest_stall)

    def snapshot(self) -> RuntimeSnapshot:
        """The state and the counts; callable from any thread, and before the start."""
        if self._run is None:
            return RuntimeSnapshot(
                name=self.name,
                queue_name=self.source.name,
                state="starting",
                concurrency=self.concurrency,
            )
        return snapshot_of(self._run)

    def signals(self) -> AbstractAsyncContextManager[None]:
        """Within the block SIGTERM and SIGINT stop the runtime; the second ends the grace period.

        For the main thread.

        >>> async def main(runtime):
        ...     async with runtime.signals():
        ...         return await runtime.run()
        """
        return _handled_signals(self.stop)


@asynccontextmanager
async def _handled_signals(call: Callable[[], None]) -> AsyncIterator[None]:
    """Call a function at each SIGTERM and SIGINT, in the event loop; restore the handlers after.

    An ignored SIGINT stays ignored: a shell starts background processes so.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heeded = [signal.SIGTERM]
    if before[signal.SIGINT] is not signal.SIG_IGN:
        heeded.append(signal.SIGINT)
    for number in heeded:
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])


def _check(source: Any, handler: Any, name: Any, code_version: Any) -> None:
    check_methods("source", source, *SOURCE_METHODS)
    check_text("name", name)
    check_text_or_none("code_version", code_version)
    if not callable(handler):
        raise TypeError(f"handler must be a function of (message, context), got {handler!r}")


def _prefetch(prefetch: int | None) -> int | None:
    if prefetch is not None:
        check_at_least_one("prefetch", prefetch)
    return prefetch


def _function(name: str, value: Any) -> Any:
    if value is not None:
        check_function(name, value)
    return value


def _instance(name: str, value: Any, kind: type[Any]) -> Any:
    """The value, or an object with the defaults for None."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {value!r}")
    return value
