"""Telling the log of retries, recoveries, executions given up and trouble with the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate.history import message_of, type_name
from retrytemplate.listeners.base import RetryListener

if TYPE_CHECKING:
    import logging

    from retrytemplate.context import RetryContext

__all__ = ["LoggingListener"]

LOGGER = "retrytemplate"
# The numbers of the logging module, which is not imported until a listener is made.
WARNING, INFO = 30, 20
FAILED = "%s: attempt %d failed with %s"


def _logger(value: logging.Logger | str | None) -> logging.Logger:
    import logging

    if value is None or isinstance(value, str):
        return logging.getLogger(value or LOGGER)
    if isinstance(value, logging.Logger):
        return value
    raise TypeError(f"logger must be a logging.Logger, its name or None, got {value!r}")


def _level(value: int | str | None) -> int | None:
    """The number of a level that is given by name; what is no level is left to the validator."""
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
    """Writes one log record for each retry, and one where retrying ended without success.

    Nothing is logged unless a template has this listener, and then:

    ========================  ==========================================  ================
    when                      who else would tell                         level by default
    ========================  ==========================================  ================
    a retry, before its wait  nobody: a later success hides it            ``WARNING``
    an attempt overran        nobody: the caller sees a value             ``WARNING``
    a recovery has answered   nobody: the caller sees a value             ``WARNING``
    the context cache failed  nobody: the execution goes on without it    ``WARNING``
    given up, nobody answers  the exception, which reaches the caller     ``INFO``
    ========================  ==========================================  ================

    A success, a stateful failure that is rethrown for a later delivery and a cancellation write
    no record of their own.

    Every record carries fields, as ``extra`` does it: ``event`` (``"retry"``, ``"overrun"``,
    ``"recovered"``, ``"store_error"``, ``"given_up"``), ``template`` (its name), ``key`` (of a
    stateful execution), ``attempt`` (the number of the one that failed; of a store error: the one
    under way), ``exception_type``, ``exception_message`` and ``delay`` (seconds; None where no
    retry follows).  No traceback: the exception that leaves has it.  The exception's text and the
    key are logged as they are; put a filter on your logger where they may hold secrets.

    :param logger: a ``logging.Logger`` or the name of one; None: ``"retrytemplate"``.
    :param level: of retries and overruns; a number, a level's name, or None for no record.
    :param recovery_level: of recoveries, likewise.
    :param store_error_level: of trouble with the context cache, likewise.
    :param failure_level: of executions given up, likewise.
    :raises TypeError: for what is no logger or no level.
    :raises ValueError: for a level's name that ``logging`` does not know.

    >>> LoggingListener("shop.payments", level="INFO", failure_level=None).level
    20
    """

    logs_overruns = True  # the template adds no record of its own

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
        fields = _fields("retry", context, context.attempt, context.last_exception)
        self._log(self.level, f"{FAILED}; the next one in %s s", fields, delay)

    def on_overrun(self, context: RetryContext, limit: float, elapsed: float) -> None:
        if self.level is not None:
            text = "%s: attempt %d returned after %s s, over its limit of %s s; its value is used"
            fields = {**_fields("overrun", context, context.attempt, None), "delay": None}
            values = context.name or "retry", context.attempt, _digits(elapsed), _digits(limit)
            self.logger.log(self.level, text, *values, extra=fields)

    def on_recovery(self, context: RetryContext, result: Any) -> None:
        fields = _fields("recovered", context, context.retry_count, context.last_exception)
        self._log(self.recovery_level, f"{FAILED}; recovered", fields)

    def on_store_error(self, context: RetryContext, exception: BaseException) -> None:
        fields = _fields("store_error", context, context.attempt, exception)
        text = "%s: in attempt %d the context cache failed with %s; going on without it"
        self._log(self.store_error_level, text, fields)

    def close(self, context: RetryContext, exception: BaseException | None) -> None:
        if _given_up(context, exception):
            failure = context.last_exception if exception is None else exception
            fields = _fields("given_up", context, context.retry_count, failure)
            self._log(self.failure_level, f"{FAILED}; given up", fields)

    def _log(
        self, level: int | None, text: str, fields: dict[str, Any], delay: float | None = None
    ) -> None:
        if level is None or not self.logger.isEnabledFor(level):
            return
        message = fields["exception_message"]
        what = f"{fields['exception_type']}: {message}" if message else fields["exception_type"]
        values = [fields["template"] or "retry", fields["attempt"], what]
        if delay is not None:
            values.append(_digits(delay))
        self.logger.log(level, text, *values, extra={**fields, "delay": delay})


def _digits(seconds: float) -> str:
    """Seconds without an exponent, as exactly as one reads them."""
    if 0.001 <= seconds < 100:
        return f"{seconds:.3g}"
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.6f}".rstrip("0").rstrip(".")


def _fields(
    event: str, context: RetryContext, attempt: int, failure: BaseException | None
) -> dict[str, Any]:
    return {
        "event": event,
        "template": context.name,
        "key": context.key,
        "attempt": attempt,
        "exception_type": None if failure is None else type_name(failure),
        "exception_message": "" if failure is None else message_of(failure),
    }


def _given_up(context: RetryContext, exception: BaseException | None) -> bool:
    if context.recovered or not (context.closed or context.exhausted):
        return False
    return context.exhausted if exception is None else isinstance(exception, Exception)
