"""The base class of listeners, and the names of the hooks."""

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
    """Is notified of the events of an execution.  Override the hooks you need.

    Under ``execute_async`` every hook may be a coroutine function.  ``open`` and ``before_attempt``
    run in the order of the listeners, all others in reverse order.

    >>> from retrytemplate import RetryTemplate
    >>> class PrintAttempts(RetryListener):
    ...     def close(self, context, exception):
    ...         print("attempts:", context.attempt)
    >>> RetryTemplate(listeners=[PrintAttempts()]).call(int, "17")
    attempts: 1
    17

    Source: ``org.springframework.retry.RetryListener``, which has no ``before_attempt``,
    ``on_overrun``, ``on_backoff``, ``on_recovery`` and ``on_store_error``.
    """

    def open(self, context: RetryContext) -> Any:
        """Before the first attempt.  Return False (or raise ``Veto``) to reject the execution."""

    def before_attempt(self, context: RetryContext) -> Any:
        """Before every attempt.  If it raises, the attempt fails and the callback is not called."""

    def on_overrun(self, context: RetryContext, limit: float, elapsed: float) -> Any:
        """After an attempt that returned later than its limit; its value is used.

        Called before ``on_success``.  An exception is logged and changes nothing.

        :param limit: the limit, in seconds.
        :param elapsed: the duration of the attempt, in seconds.
        """

    def on_success(self, context: RetryContext, result: Any) -> Any:
        """After an attempt that returned.  If it raises, the attempt has failed."""

    def on_error(self, context: RetryContext, exception: BaseException) -> Any:
        """After a failed attempt was counted.  If it raises, the execution ends with that error."""

    def on_backoff(self, context: RetryContext, delay: float) -> Any:
        """Before a wait of *delay* seconds.  If it raises, the execution ends with that error."""

    def on_recovery(self, context: RetryContext, result: Any) -> Any:
        """After a recovery that returned.  If it raises, the execution ends with that error."""

    def on_store_error(self, context: RetryContext, exception: BaseException) -> Any:
        """After a failure of the context cache that does not replace the result.

        The execution continues without a claim or without its record, or ends with its result or
        failure, which could not be recorded.  If the hook raises, the execution ends with that
        error.
        """

    def close(self, context: RetryContext, exception: BaseException | None) -> Any:
        """At the end of every execution, with its last failure or None."""
