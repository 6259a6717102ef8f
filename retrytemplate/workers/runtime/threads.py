"""The threads of a handler that is a plain function."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate._engine.attempt_timeout import accepts_stop

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor, Future

    from retrytemplate.control.isolation_gate.gate import ProcessGate


def takes_stop_flag(handler: Callable[..., Any]) -> bool:
    """Whether a handler has a further parameter ``stop``."""
    return accepts_stop(handler, (None, None))  # the message and the context


@define(eq=False)
class HandlerThreads:
    """Calls a handler that is a plain function in threads.

    A thread cannot be cancelled.  If its attempt ends first, at the attempt timeout or in a
    shutdown, the thread is abandoned: it continues, and its result is not used.  It stays inside
    the gate until it ends: an exclusive attempt waits for it, because a crash of the process could
    be the thread's.

    :param limit: concurrent attempts.  As many threads again may be abandoned, so that they keep no
        attempt waiting.
    :param on_exhausted: called with an error if as many threads are abandoned.
    """

    _handler: Callable[..., Any]
    _name: str
    _limit: int
    _gate: ProcessGate
    _on_exhausted: Callable[[Exception], None]
    _takes_stop: bool = field(init=False)
    _abandoned: set[Future[Any]] = field(init=False, factory=set)
    _executor: Executor | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self._takes_stop = takes_stop_flag(self._handler)

    @property
    def abandoned(self) -> int:
        """Abandoned threads that still run."""
        return len(self._abandoned)

    async def call(self, payload: Any, context: Any) -> Any:
        """Call the handler in a thread, in a copy of this context; abandon it if cancelled."""
        stop = threading.Event()
        keywords = {"stop": stop} if self._takes_stop else {}
        call = partial(copy_context().run, self._call, payload, context, **keywords)
        running = self._threads().submit(call)
        try:
            return await asyncio.wrap_future(running)
        finally:
            if not running.done() and not running.cancel():  # cancel: it has not begun
                stop.set()
                self._abandon(running)

    def _call(self, payload: Any, context: Any, **keywords: Any) -> Any:
        # Inside the entry of the attempt this one is granted at once.  If the attempt has ended
        # already, it may be rejected: the handler is not called.
        with self._gate.shared(0):
            return self._handler(payload, context, **keywords)

    def _abandon(self, running: Future[Any]) -> None:
        self._abandoned.add(running)
        running.add_done_callback(self._abandoned.discard)
        count = self.abandoned
        if count >= self._limit:
            error = (
                f"{count} threads continue after the end of their attempts: let the handler read "
                "its parameter stop, or set timeouts in the calls that it makes"
            )
            self._on_exhausted(RuntimeError(error))

    def _threads(self) -> Executor:
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(
                2 * self._limit, thread_name_prefix=f"{self._name}-handler"
            )
        return self._executor

    def close(self) -> None:
        """End the idle threads; an abandoned one ends with its call."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
