"""The base class of listeners, and the names of the hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrytemplate._engine.context import RetryContext
    from retrytemplate.errors import AttemptLostError

__all__ = ["HOOKS", "RetryListener"]

HOOKS = (
    "open",
    "on_attempt_lost",
    "before_attempt",
    "on_overrun",
    "on_success",
    "on_error",
    "on_backoff",
    "on_recovery",
    "on_store_error",
    "on_end",
    "close",
)
"""The hooks with a context by name, in the order in which an execution reaches them.

``on_first_success``, which has none, is not among them.
"""


class RetryListener:
    """Is notified of the events of an execution.  Override the hooks you need.

    Under ``execute_async`` every hook but ``on_first_success`` may be a coroutine function.
    ``open`` and ``before_attempt`` run in the order of the listeners, all others in reverse order.

    A listener without ``open``, ``before_attempt``, ``on_success``, ``close`` and
    ``on_first_success`` adds nothing to a success, except the start time that ``on_end`` needs.

    >>> from retrytemplate import RetryTemplate
    >>> class PrintAttempts(RetryListener):
    ...     def close(self, context, exception):
    ...         print("attempts:", context.attempt)
    >>> RetryTemplate(listeners=[PrintAttempts()]).call(int, "17")
    attempts: 1
    17

    Source: ``org.springframework.retry.RetryListener``, which has ``open``, ``on_success``,
    ``on_error`` and ``close``.
    """

    needs_start_time: bool = True
    """Whether the time of the start is read for ``on_end``, so that ``elapsed`` and ``history``
    include the first attempt.  Set it to False if ``on_end`` does without: a success then costs
    nothing."""

    def open(self, context: RetryContext) -> Any:
        """Before the first attempt.  Return False (or raise ``Veto``) to reject the execution."""

    def on_attempt_lost(self, context: RetryContext, error: AttemptLostError) -> Any:
        """After an earlier attempt of the key, lost with its process, was counted.

        Called before the next attempt.  If it raises, the execution ends with that error, and the
        lost attempt stays counted.
        """

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

    def on_first_success(self, name: str, elapsed: float) -> None:
        """After an execution without a failure, in this delivery or an earlier one.

        Each execution calls either this hook or ``on_end``.  It is called with no context, is never
        awaited, and its exceptions are logged.

        :param name: the template's name or label, else the qualified name of the function.
        :param elapsed: the duration of the execution, in seconds.

        >>> from retrytemplate import RetryTemplate
        >>> class Ends(RetryListener):
        ...     def on_first_success(self, name, elapsed):
        ...         print(name, "succeeded at once")
        ...     def on_end(self, context, exception):
        ...         print(context.name, context.retry_count, repr(exception))
        >>> template = RetryTemplate(name="parse", listeners=[Ends()])
        >>> template.call(int, "17")
        parse succeeded at once
        17
        >>> template.outcome(int, "x").attempts
        parse 3 ValueError("invalid literal for int() with base 10: 'x'")
        3
        """

    def on_end(self, context: RetryContext, exception: BaseException | None) -> Any:
        """At every other end, also after a cancellation, a rejection or a retry.

        Called before ``close``.  If the key cannot be claimed or the settings cannot be read, it is
        called without ``open`` and ``close``.

        :param exception: the exception that leaves the execution; None: a value is returned.
        """

    def close(self, context: RetryContext, exception: BaseException | None) -> Any:
        """At the end of every execution, with its last failure or None."""
