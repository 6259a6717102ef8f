"""Logging of retries, recoveries, executions that failed, and failures of the context cache.

The functions ``*_event`` make an event, a type and its data, from the arguments of a hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.failure_text import message_of, type_name
from retrytemplate._internal.formatting import key_text
from retrytemplate._internal.validation import checked_by
from retrytemplate.errors import Rejected
from retrytemplate.listeners.base import RetryListener
from retrytemplate.listeners.log_records import (
    check_level,
    record_fields,
    record_line,
    to_level,
    to_logger,
)

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    from retrytemplate._engine.context import RetryContext

    EventData = tuple[str, Mapping[str, Any]]

__all__ = ["LoggingListener", "attempt_data", "end_event", "overrun_event", "retry_event"]
__all__ += ["store_error_event"]

# The numbers of the logging module, which is not imported until a listener is made.
WARNING, INFO = 30, 20
_known_level = checked_by(check_level)


@frozen
class LoggingListener(RetryListener):
    """Write a log record for each retry, and one when an execution ends without success.

    It replaces the built-in log, which writes the same lines at ``INFO``:

    ======================  ========================================================  =============
    ``event``               when                                                      default level
    ======================  ========================================================  =============
    ``retry.scheduled``     before the wait for the next attempt                      ``WARNING``
    ``retry.deferred``      a stateful failure is re-raised for a redelivery          ``WARNING``
    ``attempt.overrun``     an attempt returned after its limit                       ``WARNING``
    ``call.recovered``      a recovery returned                                       ``WARNING``
    ``store.unavailable``   the context cache failed; ``on_store_error`` was called   ``WARNING``
    ``call.rejected``       a guard rejected the call, or a component its only        ``INFO``
                            attempt
    ``call.failed``         every other end with a ``stop_reason``                    ``INFO``
    ======================  ========================================================  =============

    A success and a cancellation write no record.

    Each record is one line: template and function, key, attempt and maximum, the first line of the
    exception's text, and the delay or the reason.  Control characters are escaped, also in the
    fields.  Every record has all fields, as ``extra`` sets them, and None for a value that its
    event does not have: ``event``, ``subject`` (template or function), ``template`` (its name),
    ``operation``, ``key``, ``attempt``, ``max_attempts``, ``elapsed`` (seconds), ``error_type``,
    ``error_message``, ``delay`` (seconds; None if no retry follows), ``reason`` (the context's
    ``stop_reason``), and for a rejection ``component``, ``component_name`` and ``retry_after``
    (seconds).  No traceback: the exception that is raised has it.  Put a filter on your logger if
    messages or keys may contain secrets.

    :param logger: a ``logging.Logger`` or its name; default ``"retrytemplate"``.
    :param level: level of retries, deferred failures and overruns: a number, the name of a level,
        or None for no record; default ``WARNING``.
    :param recovery_level: level of recoveries, default ``WARNING``.
    :param store_error_level: level of failures of the context cache, default ``WARNING``.
    :param failure_level: level of executions given up or rejected, default ``INFO``.
    :raises ValueError: if ``logging`` does not know the name of a level.

    >>> LoggingListener("shop.payments", level="INFO", failure_level=None).level
    20
    """

    writes_log = True  # so that nothing is logged a second time

    logger: logging.Logger = field(default=None, converter=to_logger)
    level: int | None = field(default=WARNING, converter=to_level, validator=_known_level)
    recovery_level: int | None = field(
        default=WARNING, converter=to_level, validator=_known_level, kw_only=True
    )
    store_error_level: int | None = field(
        default=WARNING, converter=to_level, validator=_known_level, kw_only=True
    )
    failure_level: int | None = field(
        default=INFO, converter=to_level, validator=_known_level, kw_only=True
    )

    def on_backoff(self, context: RetryContext, delay: float) -> None:
        self._log(self.level, context, retry_event(context, delay))

    def on_overrun(self, context: RetryContext, limit: float, elapsed: float) -> None:
        self._log(self.level, context, overrun_event(context, limit, elapsed))

    def on_store_error(self, context: RetryContext, exception: BaseException) -> None:
        self._log(self.store_error_level, context, store_error_event(context, exception))

    def on_end(self, context: RetryContext, exception: BaseException | None) -> None:
        if context.stop_reason is None:  # a success or a cancellation, most of the time
            return
        event = end_event(context, exception)
        if event is not None:
            level = {
                "retry.deferred": self.level,
                "call.recovered": self.recovery_level,
                "call.cancelled": None,
            }.get(event[0], self.failure_level)
            self._log(level, context, event)

    def _log(self, level: int | None, context: RetryContext, event: EventData | None) -> None:
        if event is None or level is None or not self.logger.isEnabledFor(level):
            return
        kind, data = event
        name = context.name or context.operation
        fields = record_fields(kind, name, data)
        self.logger.log(level, "%s", record_line(kind, name, data), extra=fields)


def retry_event(context: RetryContext, delay: float) -> EventData | None:
    """The event of ``on_backoff``; None if no attempt follows the wait."""
    failure = context.last_exception
    data = {**attempt_data(context), "delay": delay, **_failure(failure), **_component(failure)}
    if failure is not None and context.rethrows(failure):
        return "retry.deferred", {**data, "recovery_next": False}
    if context.keeps_context and context._state is not None:
        return None
    return "retry.scheduled", data


def overrun_event(context: RetryContext, limit: float, elapsed: float) -> EventData:
    """The event of ``on_overrun``."""
    measured = {"attempt": context.attempt, "limit": limit, "elapsed": elapsed}
    return "attempt.overrun", _execution(context) | measured


def store_error_event(context: RetryContext, exception: BaseException) -> EventData:
    """The event of ``on_store_error``."""
    return "store.unavailable", {
        **attempt_data(context),
        "kind": "context_cache",
        "without_claim": context._unguarded,
        **_failure(exception),
    }


def end_event(context: RetryContext, exception: BaseException | None) -> EventData | None:
    """The event of ``on_end``.

    None where no attempt was counted, or the next delivery makes the next one: then an earlier
    event has reported it.

    :param exception: the exception that leaves the execution, if there is one.
    """
    reason, last = context.stop_reason, context.last_exception
    if exception is None and context.recovered:
        return "call.recovered", _end(context, last, None)
    if exception is None and reason is None:
        return "call.succeeded_after_retry", _numbers(context)
    if exception is not None and not isinstance(exception, Exception):
        measured = {"attempt": context.attempt, "elapsed": _elapsed(context)}
        return "call.cancelled", _execution(context) | measured
    if reason is None:
        return None
    failure = last
    if last is None or reason in ("recovery_failed", "terminated"):
        failure = exception or last
    if _is_rejected(context, failure):
        return "call.rejected", {
            **_execution(context),
            **_component(failure),
            "reason": reason,
            "retry_after": getattr(failure, "retry_after", None),
            **_failure(failure),
        }
    is_same = last is not None and exception is last
    if last is not None and is_same and not context.closed and context.rethrows(last):
        recovers = context._recovery is not None and not context.no_recovery
        data = {**attempt_data(context), "delay": None, "recovery_next": recovers}
        return "retry.deferred", data | _failure(last) | _component(last)
    return "call.failed", _end(context, failure, exception)


def _is_rejected(context: RetryContext, failure: BaseException | None) -> bool:
    """Whether a guard rejected the call, or a component its only attempt."""
    return (
        context.stop_reason in ("guard", "rejected")
        and context.retry_count <= 1
        and isinstance(failure, Rejected)
    )


def _execution(context: RetryContext) -> dict[str, Any]:
    key = context.key
    return {"operation": context.operation, "key": None if key is None else key_text(key)}


def attempt_data(context: RetryContext) -> dict[str, Any]:
    """The execution and its attempt."""
    number = {"attempt": context.attempt, "max_attempts": context.max_attempts}
    return _execution(context) | number


def _end(
    context: RetryContext, failure: BaseException | None, error: BaseException | None
) -> dict[str, Any]:
    failed = {"reason": context.stop_reason, **_failure(failure), **_component(error)}
    return _numbers(context) | failed


def _numbers(context: RetryContext) -> dict[str, Any]:
    return {
        **_execution(context),
        "attempts": context.attempt,
        "max_attempts": context.max_attempts,
        "elapsed": _elapsed(context),
    }


def _elapsed(context: RetryContext) -> float | None:
    """The duration of the execution; None if the start of its first attempt was not measured."""
    return context.elapsed if context._is_timed() else None


def _failure(failure: BaseException | None) -> dict[str, Any]:
    if failure is None:
        return {"error_type": None, "error_message": None}
    return {"error_type": type_name(failure), "error_message": message_of(failure)}


def _component(failure: BaseException | None) -> dict[str, Any]:
    """The component that rejected the call, and its name."""
    if not isinstance(failure, Rejected):
        return {"component": None, "name": None}
    name = getattr(failure, "name", None)
    return {"component": failure.component, "name": None if name is None else str(name)}
