"""Logging of retries, recoveries, executions that failed, and failures of the context cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.failure_text import message_of, summary, type_name
from retrytemplate._internal.formatting import one_line, printable, subject, with_text
from retrytemplate.errors import Rejected
from retrytemplate.history import STOP_REASON_TEXTS
from retrytemplate.listeners.base import RetryListener

if TYPE_CHECKING:
    import logging

    from retrytemplate._engine.context import RetryContext
    from retrytemplate.history import StopReason

__all__ = ["LoggingListener"]

LOGGER = "retrytemplate"
# The numbers of the logging module, which is not imported until a listener is made.
WARNING, INFO = 30, 20


def _logger(value: logging.Logger | str | None) -> logging.Logger:
    import logging

    if value is None or isinstance(value, str):
        return logging.getLogger(value or LOGGER)
    if isinstance(value, logging.Logger):
        return value
    raise TypeError(f"logger must be a logging.Logger, its name or None, got {value!r}")


def _level(value: int | str | None) -> int | None:
    """The number of a level given by name; other values unchanged, for the validator."""
    import logging

    names: dict[Any, Any] = logging.getLevelNamesMapping()
    return names.get(value, value) if isinstance(value, str) else value


def _known_level(instance: Any, attribute: Any, value: Any) -> None:
    import logging

    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return
    names = ", ".join(logging.getLevelNamesMapping())
    allowed = f"{attribute.name} must be a number, None or one of {names}"
    kind = ValueError if isinstance(value, str) else TypeError
    raise kind(f"{allowed}, got {value!r}")


@frozen
class LoggingListener(RetryListener):
    """Write a log record for each retry, and one when an execution ends without success.

    Only a template with this listener logs:

    ===============  ===============================================================  =============
    ``event``        when                                                             default level
    ===============  ===============================================================  =============
    ``retry``        before the wait for the next attempt                             ``WARNING``
    ``deferred``     a stateful failure is re-raised, and no attempt remains          ``WARNING``
    ``overrun``      an attempt returned after its limit                              ``WARNING``
    ``recovered``    a recovery returned                                              ``WARNING``
    ``store_error``  the context cache failed, and ``on_store_error`` was called      ``WARNING``
    ``rejected``     a guard rejected the call, or a component its only attempt       ``INFO``
    ``given_up``     every other end with a ``stop_reason``                           ``INFO``
    ===============  ===============================================================  =============

    A success and a cancellation write no record.

    Each record is one line: template and function, key, attempt and maximum, the first line of the
    exception's text, and the delay or the reason.  Control characters are escaped, also in the
    fields.  Every record has all fields, as ``extra`` sets them: ``event``, ``template`` (its
    name), ``operation``, ``key``, ``attempt``, ``max_attempts``, ``elapsed`` (seconds),
    ``exception_type``, ``exception_message``, ``delay`` (seconds; None if no retry follows),
    ``reason`` (the context's ``stop_reason``), and for a rejection ``component``,
    ``component_name`` and ``retry_after`` (seconds).  No traceback: the exception that is raised
    has it.  Put a filter on your logger if messages or keys may contain secrets.

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

    logs_overruns = True  # so that the template does not log them a second time

    logger: logging.Logger = field(default=None, converter=_logger)
    level: int | None = field(default=WARNING, converter=_level, validator=_known_level)
    recovery_level: int | None = field(
        default=WARNING, converter=_level, validator=_known_level, kw_only=True
    )
    store_error_level: int | None = field(
        default=WARNING, converter=_level, validator=_known_level, kw_only=True
    )
    failure_level: int | None = field(
        default=INFO, converter=_level, validator=_known_level, kw_only=True
    )

    def on_backoff(self, context: RetryContext, delay: float) -> None:
        failure = context.last_exception
        if failure is not None and context.rethrows(failure):
            then = "; next attempt at the next delivery"
            if delay > 0:
                then += f", in {_digits(delay)} s or later"
        elif context.keeps_context and context._state is not None:
            return  # no attempt follows this wait
        else:
            then = f"; next attempt in {_digits(delay)} s"
        self._log(
            self.level, "retry", context, failure, _failure_text(context, failure) + then, delay
        )

    def on_overrun(self, context: RetryContext, limit: float, elapsed: float) -> None:
        text = (
            f"attempt {context.attempt} returned after {_digits(elapsed)} s, "
            f"over its limit of {_digits(limit)} s; its value is used"
        )
        self._log(self.level, "overrun", context, None, text)

    def on_recovery(self, context: RetryContext, result: Any) -> None:
        failure = context.last_exception
        text = f"recovered {_end_text(context, failure)}"
        self._log(self.recovery_level, "recovered", context, failure, text)

    def on_store_error(self, context: RetryContext, exception: BaseException) -> None:
        when = _attempt(context) if context.attempt else "before the first attempt"
        text = f"{when}: the context cache failed: {summary(exception)}; "
        if context._unguarded:
            text += "the execution continues without a claim"
        else:
            text += "its record of this execution may be incomplete"
        self._log(self.store_error_level, "store_error", context, exception, text)

    def close(self, context: RetryContext, exception: BaseException | None) -> None:
        reason, last, error = context.stop_reason, context.last_exception, context._final_error
        if reason is None or context.recovered:
            return
        if last is None or reason in ("recovery_failed", "terminated"):
            failure = error or last
        else:
            failure = last
        if _is_rejected(context, reason, failure):
            text = f"rejected by {_component(failure)}{_retry_after(failure)}"
            self._log(self.failure_level, "rejected", context, failure, text)
        elif last is not None and not context.closed and error is last and context.rethrows(last):
            text = f"{_failure_text(context, last)}; {_next_delivery(context)}"
            self._log(self.level, "deferred", context, last, text)
        else:
            text = f"gave up {_end_text(context, failure)}"
            self._log(self.failure_level, "given_up", context, failure, text, rejection=error)

    def _log(
        self,
        level: int | None,
        event: str,
        context: RetryContext,
        failure: BaseException | None,
        text: str,
        delay: float | None = None,
        rejection: BaseException | None = None,
    ) -> None:
        if level is None or not self.logger.isEnabledFor(level):
            return
        fields = _fields(event, context, failure, delay, rejection or failure)
        self.logger.log(level, "%s: %s", subject(context), text, extra=fields)


def _attempt(context: RetryContext) -> str:
    number, most = context.attempt, context.max_attempts
    return f"attempt {number}" if most is None else f"attempt {number} of {most}"


def _failure_text(context: RetryContext, failure: BaseException | None) -> str:
    """The failure of an attempt, or the component that rejected it."""
    if isinstance(failure, Rejected):
        return f"{_attempt(context)} rejected by {_component(failure)}"
    what = "" if failure is None else summary(failure)
    return f"{_attempt(context)} failed: {what}"


def _end_text(context: RetryContext, failure: BaseException | None) -> str:
    """After which attempt, with which failure, and why."""
    if context.attempt:
        when = f"after {_attempt(context)} in {_digits(context.elapsed)} s"
    else:
        when = "before the first attempt"
    what = "" if failure is None else f": {summary(failure)}"
    reason = context.stop_reason
    why = "" if reason is None else f"; reason: {STOP_REASON_TEXTS[reason]}"
    if reason in ("guard", "budget_exhausted") and isinstance(context._final_error, Rejected):
        why += f" ({_component(context._final_error)})"
    return f"{when}{what}{why}"


def _is_rejected(context: RetryContext, reason: StopReason, failure: BaseException | None) -> bool:
    """Whether a guard rejected the call, or a component its only attempt."""
    return (
        reason in ("guard", "rejected")
        and context.retry_count <= 1
        and isinstance(failure, Rejected)
    )


def _component(rejection: Any) -> str:
    name = getattr(rejection, "name", None)
    if name is not None:
        return printable(f"{rejection.component} {name}")
    return with_text(rejection.component, one_line(message_of(rejection)))


def _retry_after(rejection: Any) -> str:
    after = getattr(rejection, "retry_after", None)
    return f"; retry after {_digits(after)} s" if isinstance(after, int | float) else ""


def _next_delivery(context: RetryContext) -> str:
    if context._recovery is not None and not context.no_recovery:
        return "the next delivery runs the recovery"
    return "the next delivery fails without an attempt"


def _digits(seconds: float) -> str:
    """Seconds without an exponent, with three significant digits below 100."""
    if 0.001 <= seconds < 100:
        return f"{seconds:.3g}"
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.6f}".rstrip("0").rstrip(".")


def _fields(
    event: str,
    context: RetryContext,
    failure: BaseException | None,
    delay: float | None,
    rejection: BaseException | None,
) -> dict[str, Any]:
    """The fields of a record; none of the names is an attribute of every ``LogRecord``."""
    name, key = context.name, context.key
    by = rejection if isinstance(rejection, Rejected) else None
    component = getattr(by, "name", None)
    return {
        "event": event,
        "template": None if name is None else printable(str(name)),
        "operation": printable(context.operation),
        "key": printable(key) if isinstance(key, str) else key,
        "attempt": context.attempt,
        "max_attempts": context.max_attempts,
        "elapsed": context.elapsed,
        "exception_type": None if failure is None else type_name(failure),
        "exception_message": "" if failure is None else printable(message_of(failure)),
        "delay": delay,
        "reason": context.stop_reason,
        "component": getattr(by, "component", None),
        "component_name": None if component is None else printable(str(component)),
        "retry_after": getattr(by, "retry_after", None),
    }
