"""Exceptions as text: the name of the class, the message, one line, a ``RecordedFailure``."""

from __future__ import annotations

from retrytemplate._internal.formatting import one_line, with_text
from retrytemplate.errors import RecordedFailure

__all__ = ["NO_TEXT", "message_of", "summary", "to_recorded_failure", "type_name"]

NO_TEXT = "<no text: str() failed>"
NO_NAME = "<no name: its class gives none>"


def type_name(failure: BaseException | type[BaseException]) -> str:
    """The qualified name of an exception's class; a builtin's without its module."""
    if isinstance(failure, RecordedFailure):
        return failure.type_name
    kind = failure if isinstance(failure, type) else type(failure)
    try:
        module, name = kind.__module__, kind.__qualname__
    except Exception:  # a metaclass of its own
        return NO_NAME
    return name if module == "builtins" else f"{module}.{name}"


def message_of(exception: BaseException) -> str:
    """The exception's text, whatever its ``__str__`` does."""
    if isinstance(exception, RecordedFailure):
        return exception.message
    try:
        return str(exception)
    except Exception:
        return NO_TEXT


def summary(exception: BaseException) -> str:
    """The exception in one line: its class without the module, the first line of its text.

    >>> summary(ValueError("no such order\\nsee the log")), summary(StopIteration())
    ('ValueError: no such order', 'StopIteration')
    """
    name = type_name(exception).rpartition(".")[2]
    return with_text(one_line(name), one_line(message_of(exception)))


def to_recorded_failure(exception: BaseException, depth: int = 8) -> RecordedFailure:
    """The exception as text; its causes down to *depth*."""
    if isinstance(exception, RecordedFailure):
        return exception
    try:
        cause = exception.__cause__
    except Exception:  # a property of its own
        cause = None
    return RecordedFailure(
        type_name(exception),
        message_of(exception),
        to_recorded_failure(cause, depth - 1) if cause is not None and depth else None,
    )
