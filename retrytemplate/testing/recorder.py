"""Listeners that record the calls of their hooks."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from retrytemplate.listeners.base import HOOKS, RetryListener
from retrytemplate.testing.clock import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.context import RetryContext
    from retrytemplate.errors import AttemptLostError

__all__ = ["AsyncRecorder", "Event", "Recorder"]


class Event(NamedTuple):
    """One call of a hook.

    ``value`` is the argument of the hook: the result, the exception, the delay, the pair of limit
    and elapsed seconds of ``on_overrun``, the pair of name and elapsed seconds of
    ``on_first_success``; None for ``open`` and ``before_attempt``.  An event equals a tuple of its
    three parts.
    """

    hook: str
    attempt: int
    value: Any = None


class Recorder(RetryListener):
    """A listener that records every hook, for assertions in tests.

    >>> from retrytemplate import FixedBackoff, RetryTemplate
    >>> from retrytemplate.testing import VirtualClock
    >>> recorder = Recorder()
    >>> template = RetryTemplate(
    ...     backoff=FixedBackoff(0.5), listeners=[recorder], clock=VirtualClock()
    ... )
    >>> template.call(iter([0, 1]).__next__)
    0
    >>> recorder.events
    [Event(hook='open', attempt=0, value=None), \
Event(hook='before_attempt', attempt=1, value=None), \
Event(hook='on_success', attempt=1, value=0), \
Event(hook='on_first_success', attempt=1, value=('list_iterator.__next__', 0.0)), \
Event(hook='close', attempt=1, value=None)]
    >>> recorder.clear()
    >>> outcome = template.outcome(int, "seventeen")
    >>> recorder.hooks
    ['open', 'before_attempt', 'on_error', 'on_backoff', 'before_attempt', 'on_error', \
'on_backoff', 'before_attempt', 'on_error', 'on_end', 'close']
    >>> recorder.delays, len(recorder.errors)
    ([0.5, 0.5], 3)
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def clear(self) -> None:
        """Forget all events."""
        self.events.clear()

    @property
    def hooks(self) -> list[str]:
        """The names of the hooks, in the order in which they were called."""
        return [event.hook for event in self.events]

    @property
    def delays(self) -> list[float]:
        """The delays of ``on_backoff``, in seconds."""
        return self.values("on_backoff")

    @property
    def errors(self) -> list[BaseException]:
        """The exceptions of ``on_error``."""
        return self.values("on_error")

    @property
    def results(self) -> list[Any]:
        """The results of ``on_success``."""
        return self.values("on_success")

    def values(self, hook: str) -> list[Any]:
        """The values of the calls of one hook."""
        return [event.value for event in self.events if event.hook == hook]

    def _note(self, hook: str, context: RetryContext, value: Any = None) -> None:
        self.events.append(Event(hook, context.attempt, value))

    def open(self, context: RetryContext) -> Any:
        self._note("open", context)

    def on_attempt_lost(self, context: RetryContext, error: AttemptLostError) -> Any:
        self._note("on_attempt_lost", context, error)

    def before_attempt(self, context: RetryContext) -> Any:
        self._note("before_attempt", context)

    def on_overrun(self, context: RetryContext, limit: float, elapsed: float) -> Any:
        self._note("on_overrun", context, (limit, elapsed))

    def on_success(self, context: RetryContext, result: Any) -> Any:
        self._note("on_success", context, result)

    def on_error(self, context: RetryContext, exception: BaseException) -> Any:
        self._note("on_error", context, exception)

    def on_backoff(self, context: RetryContext, delay: float) -> Any:
        self._note("on_backoff", context, delay)

    def on_recovery(self, context: RetryContext, result: Any) -> Any:
        self._note("on_recovery", context, result)

    def on_store_error(self, context: RetryContext, exception: BaseException) -> Any:
        self._note("on_store_error", context, exception)

    def on_first_success(self, name: str, elapsed: float) -> None:
        self.events.append(Event("on_first_success", 1, (name, elapsed)))

    def on_end(self, context: RetryContext, exception: BaseException | None) -> Any:
        self._note("on_end", context, exception)

    def close(self, context: RetryContext, exception: BaseException | None) -> Any:
        self._note("close", context, exception)


def _after_checkpoint(hook: Callable[..., Any]) -> Any:
    """The hook as a coroutine function that first lets other tasks run."""

    @wraps(hook)
    async def hook_async(*args: Any) -> None:
        await checkpoint()
        hook(*args)

    hook_async.__qualname__ = f"AsyncRecorder.{hook.__name__}"  # which errors show
    return hook_async


class AsyncRecorder(Recorder):
    """A ``Recorder`` whose hooks are coroutine functions and let other tasks run.

    ``on_first_success`` is synchronous, as in every listener.
    """


for _hook in HOOKS:
    setattr(AsyncRecorder, _hook, _after_checkpoint(getattr(Recorder, _hook)))
