"""The exception that an execution raises: its type, its cause and its history."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from retrytemplate._internal.failure_text import message_of, summary, type_name
from retrytemplate._internal.formatting import one_line, printable, with_text
from retrytemplate.classify.exceptions import KNOWN_RETRYABLE_TYPES, is_never_retried
from retrytemplate.errors import (
    BackoffInterruptedError,
    CacheUnavailableError,
    ExhaustedRetryError,
    RetryError,
    TerminatedRetryError,
)
from retrytemplate.history import HISTORY_FIRST, RESTORED, STOP_REASON_TEXTS

if TYPE_CHECKING:
    from retrytemplate._engine.context import RetryContext
    from retrytemplate.history import StopReason

__all__ = [
    "COMPLETED",
    "EXHAUSTED",
    "NOT_STARTED",
    "RELEASED",
    "RETAINED",
    "final_exception",
    "finalize_error",
    "interruption_error",
    "recording_error",
    "safe_repr",
    "set_note",
    "unusable_state_error",
    "with_cause",
    "with_context",
]


# How an execution ends.  COMPLETED: its key is forgotten.  RETAINED: the count stays.
# RELEASED: the attempt is not counted.  EXHAUSTED: no attempt is left, recovery is next.
# NOT_STARTED: it never began.
COMPLETED, RETAINED, RELEASED, EXHAUSTED, NOT_STARTED = (
    "completed",
    "retained",
    "released",
    "exhausted",
    "not_started",
)


def final_exception(context: RetryContext, refusal: BaseException | None = None) -> BaseException:
    """The exception of an execution whose attempts are exhausted, without recovery."""
    last = context._last_failure
    if last is None:
        return ExhaustedRetryError(
            "no attempt was made: the policy allows none, or the execution was given up"
        )
    if context._state is None or context._plan.raise_last or context.no_recovery:
        return last if refusal is None else refusal
    message = (
        f"retries exhausted after {context.retry_count} failed attempts and no recovery is "
        f"configured; last failure: {with_text(type_name(last), one_line(message_of(last)))}"
    )
    return with_cause(ExhaustedRetryError(message), last)


def finalize_error(context: RetryContext, error: BaseException | None, for_good: bool) -> None:
    """Write the history on the final exception; release live exceptions."""
    if error is not None:
        if isinstance(error, RetryError):
            with suppress(Exception):
                error.history = context.history
                error.attempts = context.retry_count
        if for_good and context.retry_count > 1:
            _add_failures_note(context, error)
    context._release_exceptions()


def with_cause(error: BaseException, cause: BaseException | None) -> BaseException:
    """Set the cause of the error, unless it has one."""
    if cause is not None and error.__cause__ is None and cause is not error:
        with suppress(Exception):  # an exception that takes no attributes goes without
            error.__cause__ = cause
    return error


def with_context(failure: BaseException | None, raised: BaseException) -> BaseException:
    """The exception of a listener, with the failure that it replaces as its context."""
    if raised.__context__ is None and raised is not failure:
        with suppress(Exception):
            raised.__context__ = failure
    return raised


def safe_repr(value: object) -> str:
    """A value's representation, whatever its ``__repr__`` does."""
    try:
        return repr(value)
    except Exception:
        return f"a {type(value).__qualname__}"


def recording_error(cause: BaseException, failure: BaseException | None) -> BaseException:
    """The error of a failure that could not be recorded; the failure is in its chain."""
    message = f"the failure could not be recorded: {summary(cause)}"
    error = with_cause(TerminatedRetryError(message), cause)
    with_context(failure, cause)
    error.__context__ = failure
    return error


def unusable_state_error(context: RetryContext, error: Exception) -> CacheUnavailableError:
    """A policy or a backoff could not use its state from a record: the record is damaged."""
    what = summary(error)
    return CacheUnavailableError(f"the state kept under {context.key!r} cannot be used: {what}")


def interruption_error(error: BaseException) -> BaseException:
    if is_never_retried(error):
        return error
    return with_cause(
        BackoffInterruptedError(f"the backoff was interrupted: {summary(error)}"), error
    )


NOTE = "retry: "
LINE = "\n  "
FAILED: dict[StopReason | None, str] = {None: " attempts failed"}
FAILED |= {each: f"{FAILED[None]}; reason: {text}" for each, text in STOP_REASON_TEXTS.items()}
MAX_NOTE_LENGTH = 8 * 1024


def _add_failures_note(context: RetryContext, error: BaseException) -> None:
    """Add the earlier failures to the exception, as one note that replaces an older one."""
    count, earlier = context.retry_count, []
    for stamp, kind, text in context._earlier_failures:
        # The name of a known class is printable: to look at its characters again costs more.
        if kind in KNOWN_RETRYABLE_TYPES and text and text.isprintable():
            earlier.append(f"{stamp[0]}. {kind.__qualname__}: {text}")
        else:
            earlier.append(_line(stamp[0], kind.__qualname__, text))
    # Nearly always these are all there were but the one that leaves.
    if len(earlier) + 1 != count or error is not context._last_failure or context._repeat_count:
        earlier = _earlier_lines(error, context, earlier)
    before = "; before this one:\n  " if earlier else ""
    text = f"{NOTE}{count}{FAILED[context._stop_reason]}{before}{LINE.join(earlier)}"
    if len(text) > MAX_NOTE_LENGTH:
        text = f"{text[:MAX_NOTE_LENGTH]} [{len(text) - MAX_NOTE_LENGTH} characters cut]"
    set_note(error, text, NOTE)


def _line(number: int, kind: str, message: str) -> str:
    text = with_text(kind, message)
    if not text.isprintable():
        text = with_text(printable(kind), one_line(message))
    return f"{number}. {text}"


def _earlier_lines(error: BaseException, context: RetryContext, past: list[str]) -> list[str]:
    """The stored failures, those of this execution, and the last one unless it is the error."""
    lines = [_line(kept.number, kept.type_name, kept.message) for kept in context._restored_history]
    lines += past
    last = context._last_failure
    leaves = error is last or error.__cause__ is last
    omitted = context.retry_count - len(lines)
    own = context._repeat_count if leaves else 0  # the same object is not its own history
    if last is None or context._last_stamp is RESTORED:
        own += leaves
    else:
        omitted -= 1
        if not leaves:
            number = context._last_stamp[0]
            lines.append(_line(number, type(last).__qualname__, message_of(last)))
    if omitted > 0:
        lines.insert(HISTORY_FIRST, f"... {omitted} more")
    return lines[:-own] if own else lines


def set_note(error: BaseException, text: str, instead_of: str | None = None) -> None:
    """Add a note to an exception; it replaces one that begins with *instead_of*."""
    try:
        notes = getattr(error, "__notes__", None)
        if notes is None:
            error.__notes__ = [text]
        elif isinstance(notes, list):
            for position, old in enumerate(notes):
                if instead_of and isinstance(old, str) and old.startswith(instead_of):
                    notes[position] = text
                    return
            notes.append(text)
    except Exception:  # an exception that takes no attributes goes without
        return
