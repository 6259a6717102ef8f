"""What a listener is: the seam to write one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrytemplate._engine.context import RetryContext

__all__ = ["HOOKS", "RetryListener"]

HOOKS = (
    "open",
    "before_attempt",
    "on_overrun",
    "on_success",
    "on_error",
    "on_backoff",
    "on_recovery",
    "on_store_error",
    "close",
)
"""The hooks by name, in the order in which an execution reaches them."""


class RetryListener:
    """Told of what happens in an execution.  Override the hooks you need; the others cost nothing.

    Under ``execute_async`` every hook may be a coroutine function.  ``open``, ``before_attempt``
    run in the order of the listeners, all others in reverse.

    >>> from retrytemplate import RetryTemplate
    >>> class Tell(RetryListener):
    ...     def close(self, context, exception):
    ...         print("over after", context.attempt)
    >>> RetryTemplate(listeners=[Tell()]).call(int, "17")
    over after 1
    17

    Source: ``org.springframework.retry.RetryListener``; ``before_attempt``, ``on_overrun``,
    ``on_backoff``, ``on_recovery`` and ``on_store_error`` are ours.
    """

    def open(self, context: RetryContext) -> Any:
        """Before the first attempt.  Return False (or raise ``Veto``) to refuse the execution."""

    def before_attempt(self, context: RetryContext) -> Any:
        """Before every attempt.  Raising fails the attempt without a call."""

    def on_overrun(self, context: RetryContext, limit: float, elapsed: float) -> Any:
        """After an attempt that returned later than its limit, in seconds; its value is used.

        Called before ``on_success``.  Raising is logged and changes nothing.
        """

    def on_success(self, context: RetryContext, result: Any) -> Any:
        """After an attempt that returned.  Raising makes it a failed attempt."""

    def on_error(self, context: RetryContext, exception: BaseException) -> Any:
        """After an attempt that failed, counted already.  Raising ends the execution with it."""

    def on_backoff(self, context: RetryContext, delay: float) -> Any:
        """Before the wait, with its exact length in seconds.  Raising ends the execution."""

    def on_recovery(self, context: RetryContext, result: Any) -> Any:
        """After a recovery that returned.  Raising replaces its result."""

    def on_store_error(self, context: RetryContext, exception: BaseException) -> Any:
        """The context cache failed, and the execution goes on.  Raising ends it instead.

        It runs unguarded, or what it came to could not be written down.
        """

    def close(self, context: RetryContext, exception: BaseException | None) -> Any:
        """At the end, whatever happened, with the last failure of this execution or None."""
