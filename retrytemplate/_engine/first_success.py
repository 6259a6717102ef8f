"""The end of an inline success, and calls of ``on_first_success``."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.context import first_context
from retrytemplate._engine.deadline import log_failed_hook, warn_of_overrun
from retrytemplate._engine.frames import (
    CONTEXT,
    FUNCTION,
    OWNER,
    PLAN,
    STARTED,
    close_context,
)
from retrytemplate._internal.awaitables import close_unawaited, is_awaitable
from retrytemplate._internal.formatting import operation_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from retrytemplate._engine.context import RetryContext
    from retrytemplate._engine.frames import ExecutionFrame

__all__ = ["finish_frame", "finish_success", "notify_first_success", "with_context_arguments"]


def finish_success(frame: ExecutionFrame, limit: float = inf) -> None:
    """Call the hooks of an inline success, and close its context.

    :param limit: the seconds that a timed attempt had; a success after them is reported.
    """
    plan = frame[PLAN]
    try:
        if limit < inf:
            elapsed = plan.monotonic_source.now() - frame[STARTED]
            if elapsed > limit:
                warn_of_overrun(frame[CONTEXT] or first_context(frame), limit, elapsed)
        if plan.on_first_success:
            elapsed = plan.monotonic_source.now() - frame[STARTED]
            context = frame[CONTEXT]
            if context is not None:
                name = context.name or context.operation
            else:
                name = frame[OWNER].label or operation_of(frame[FUNCTION])
            notify_first_success(plan.on_first_success, name, elapsed)
    finally:
        finish_frame(frame)


def finish_frame(frame: ExecutionFrame) -> None:
    """Close the context of an inline execution; its elapsed time is final."""
    context = frame[CONTEXT]
    close_context(frame)
    if context is not None:
        context._release_exceptions()


def notify_first_success(hooks: Iterable[Callable[..., Any]], name: str, elapsed: float) -> None:
    """Call the hooks of a first success; every hook is called, whatever another one raises."""
    interrupt: BaseException | None = None
    for hook in hooks:
        try:
            result = hook(name, elapsed)
            if result is not None and is_awaitable(result):
                close_unawaited(result)
                raise TypeError("on_first_success returned an awaitable; it must be synchronous")
        except Exception as exc:
            log_failed_hook(hook, exc)
        except BaseException as exc:  # a signal or a cancellation, raised after the last hook
            interrupt = interrupt or exc
    if interrupt is not None:
        try:
            raise interrupt
        finally:
            del interrupt  # its traceback holds this frame


def with_context_arguments(hooks: Iterable[Callable[..., Any]]) -> tuple[Callable[..., Any], ...]:
    """The hooks of a first success with the arguments of ``on_end`` and ``close``."""
    return tuple(partial(_report, hook) for hook in hooks)


def _report(hook: Callable[..., Any], context: RetryContext, exception: None) -> None:
    notify_first_success((hook,), context.name or context.operation, context.elapsed)
