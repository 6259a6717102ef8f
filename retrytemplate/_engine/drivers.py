"""The drivers, which perform the effects of the engine: one calls, the other also awaits."""

from __future__ import annotations

from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.execution_state import Torn
from retrytemplate._internal.awaitables import PLAIN, close_unawaited, is_awaitable
from retrytemplate._internal.cancel_scope import Shielded, deferred_step
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from retrytemplate._engine.execution_state import Effect, ExecutionState, Reply
    from retrytemplate._engine.plan import ExecutionPlan

    Steps = Generator[Effect, Reply, tuple[Any, BaseException | None]]

__all__ = [
    "ASYNC",
    "CLOSED",
    "PLAIN",
    "SYNC",
    "awaitable_error",
    "finish_closed",
    "is_awaitable",
    "perform",
    "perform_async",
    "reject_awaitable",
]

CANCELLATION_GRACE = 5.0
"""Seconds that a step on a key has to end after a cancellation, where the cache has no timeout."""


def awaitable_error(function: Callable[..., Any], value: Any) -> MisuseError:
    """The error of an awaitable in synchronous use; it names the function that returned it."""
    close_unawaited(value)
    function = getattr(function, "func", function)  # of a partial
    name = getattr(function, "__qualname__", None) or repr(function)
    return MisuseError(
        f"{name} returned an awaitable in synchronous use; "
        "use execute_async(), call_async(), or a synchronous component"
    )


def reject_awaitable(function: Callable[..., Any], value: Any) -> None:
    """Raise where a synchronous call returned an awaitable."""
    if is_awaitable(value):
        raise awaitable_error(function, value)


def perform(steps: Steps) -> Any:
    """Drive an execution in this thread; return its value or raise its exception."""
    reply: Reply | None = None
    function: Any = None
    arguments: Any = ()
    send = steps.send
    try:
        while True:
            function, arguments = send(reply)  # type: ignore[arg-type]  # None starts it
            try:
                value = function(*arguments)
            except BaseException as exc:
                reply = (None, exc)
            else:
                kind = type(value)
                if kind not in PLAIN and is_awaitable(value):
                    reply = (None, awaitable_error(function, value))
                else:
                    reply = (value, None)
    except StopIteration as stop:
        value, error = stop.value
    except BaseException as exc:
        if not getattr(steps, "gi_suspended", False):
            raise
        # A signal between two effects: the engine has not seen it, and has things to close.
        return perform(finish_closed(steps, exc))
    if error is None:
        return value
    try:
        raise error
    finally:
        # A frame that holds the exception whose traceback holds the frame would be a cycle.
        del error, reply, value, send, steps, function, arguments


async def perform_async(steps: Steps) -> Any:
    """Drive an execution in this task, asyncio's or trio's; await whatever is awaitable."""
    reply: Reply | None = None
    function: Any = None
    arguments: Any = ()
    send = steps.send
    try:
        while True:
            function, arguments = send(reply)  # type: ignore[arg-type]  # None starts it
            try:
                value = function(*arguments)
                kind = type(value)
                if kind not in PLAIN and is_awaitable(value):
                    value = await value
            except GeneratorExit:  # the coroutine is closed: the handler below ends the execution
                raise
            except BaseException as exc:  # the engine raises a cancellation again
                reply = (None, exc)
            else:
                reply = (value, None)
    except StopIteration as stop:
        value, error = stop.value
    except BaseException as exc:
        if not getattr(steps, "gi_suspended", False):
            raise
        return perform(finish_closed(steps, exc))
    if error is None:
        return value
    try:
        raise error
    finally:
        del error, reply, value, send, steps, function, arguments


def finish_closed(steps: Steps, exc: BaseException) -> Steps:
    """The rest of an execution whose coroutine or loop is closed, or that a signal interrupted.

    The steps of an execution that begins with this exception are not started yet.

    Nothing can be awaited: awaitables are closed, and their effects are left out without an error.
    """
    resume: Any = steps.send
    reply: Any = (None, exc) if getattr(steps, "gi_suspended", True) else None  # not started
    if _is_torn(steps):
        resume, reply = steps.throw, Torn()
    while True:
        try:
            function, arguments = resume(reply)
        except StopIteration as stop:
            # None: the garbage collector has closed the engine first.
            value, error = stop.value or (None, exc)
            return value, exc if isinstance(error, Torn) else error
        reply = yield _without_waiting, (function, arguments)
        resume = steps.send


def _is_torn(steps: Any) -> bool:
    """Whether the garbage collector has closed an inner generator first.

    The generator around it would continue as after a normal return, and start another attempt.
    """
    inner = steps.gi_yieldfrom
    while isinstance(inner, GeneratorType):
        if inner.gi_frame is None:
            return True
        inner = inner.gi_yieldfrom
    return False


def _without_waiting(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    value = function(*arguments)
    if is_awaitable(value):
        awaitable_error(function, value)  # closes it
        return None
    return value


class _SyncDriver:
    awaits = False

    def sleep(self, plan: ExecutionPlan) -> Callable[[float], Any]:
        return plan.clock.sleep

    def limit_attempt(self, execution: ExecutionState, effect: Effect) -> Effect:
        return _run_limited, (execution, effect)

    def shielded(self, effect: Effect, waiter: Any, cache: Any) -> Effect:
        return effect


class _ClosingDriver(_SyncDriver):
    def shielded(self, effect: Effect, waiter: Any, cache: Any) -> Effect:
        return deferred_step(cache, effect)


def _run_limited(execution: ExecutionState, effect: Effect) -> Any:
    from retrytemplate._engine.attempt_timeout import run_limited

    value = run_limited(execution, effect)
    reject_awaitable(effect[0], value)
    return value


class _AsyncDriver:
    awaits = True

    def sleep(self, plan: ExecutionPlan) -> Callable[[float], Any]:
        return plan.clock.sleep_async

    def limit_attempt(self, execution: ExecutionState, effect: Effect) -> Effect:
        from retrytemplate._engine.attempt_timeout import run_limited_async

        return run_limited_async, (execution, effect)

    def shielded(self, effect: Effect, waiter: Any, cache: Any) -> Effect:
        return _shielded, (*effect, waiter, cache)


def _shielded(
    function: Callable[..., Any], arguments: tuple[Any, ...], waiter: Any, cache: Any
) -> Any:
    value = function(*arguments)
    if not is_awaitable(value):
        return value
    timeout = getattr(cache, "timeout", None)
    grace = timeout if isinstance(timeout, int | float) else CANCELLATION_GRACE
    end_later = getattr(cache, "end_later", _nothing)
    return Shielded(value, waiter, grace, partial(end_later, function, arguments))


def _nothing(*_: Any) -> None:
    """Do nothing: the lease ends, if the cache has one."""


SYNC = _SyncDriver()
ASYNC = _AsyncDriver()
CLOSED = _ClosingDriver()
"""For the last steps where nothing may wait, as in finalizers of the garbage collector."""
