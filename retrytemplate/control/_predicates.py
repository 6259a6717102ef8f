"""Predicates of exceptions: the rules of a policy, applied to one call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.deadline import Deadline
from retrytemplate._engine.failure_rules import is_kill_switch_rejection, is_unlisted_library_error
from retrytemplate._engine.final_error import with_cause
from retrytemplate.classify.exceptions import ExceptionClassifier, is_never_retried
from retrytemplate.errors import Rejected
from retrytemplate.policies.simple import (
    EVERY_EXCEPTION,
    SimpleRetryPolicy,
    check_retryable,
    types_or_predicate,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANY = SimpleRetryPolicy(2)


def exception_predicate(
    name: str, wanted: Any, *, rejections: bool = True
) -> Callable[[BaseException], bool]:
    """Whether an exception is one of those.

    :param name: of the setting that says it, for the errors.
    :param wanted: exception classes, a predicate, or an ``ExceptionClassifier``.
    :param rejections: whether another guard's ``Rejected`` counts where it is not named; that of a
        kill switch never does.
    """
    if isinstance(wanted, ExceptionClassifier):
        rules = SimpleRetryPolicy(2, classifier=wanted)
    else:
        wanted = types_or_predicate(wanted)
        check_retryable(name, wanted)
        rules = ANY if wanted == EVERY_EXCEPTION else SimpleRetryPolicy(2, retry_on=wanted)

    def matches(exc: BaseException) -> bool:
        if is_kill_switch_rejection(rules, exc):
            return False
        if (
            not rejections
            and isinstance(exc, Rejected)
            and is_unlisted_library_error(rules, exc, None)
        ):
            return False
        return rules.allows(1, exc)

    return matches


def terminal_error(
    matches: Callable[[BaseException], Any], failure: BaseException
) -> BaseException | None:
    """The error of a call after a failure: the failure, or the exception of the predicate.

    None: the predicate covers the failure, and the call continues.
    """
    try:
        return None if matches(failure) else failure
    except Exception as exc:
        if is_never_retried(exc):
            raise
        return with_cause(exc, failure)


def _cancellations() -> Iterator[type[BaseException]]:
    """The exceptions of cancelled tasks, of the loaded libraries."""
    for module, name in (("asyncio.exceptions", "CancelledError"), ("trio", "Cancelled")):
        if module in sys.modules:
            yield getattr(sys.modules[module], name)


def without_cancellation(exc: BaseException | None) -> BaseException | None:
    """The error without the cancellations in it; None if nothing else is left."""
    kinds = tuple(_cancellations())
    if isinstance(exc, kinds):
        return None
    if isinstance(exc, BaseExceptionGroup) and kinds:
        return exc.split(kinds)[1]
    return exc


def counted_failure(exc: BaseException) -> BaseException | None:
    """The failure by which a call that raised this exception is classified; None: no failure.

    The exception itself, if it is an ordinary one.  Of a group with cancellations or interrupts:
    what remains without them.  Of a cancellation alone: the error of the limit in force, where its
    time is over.
    """
    if not is_never_retried(exc):
        return exc
    if isinstance(exc, BaseExceptionGroup):
        rest = exc.split(
            lambda each: not isinstance(each, BaseExceptionGroup) and is_never_retried(each)
        )[1]
        if rest is not None:
            return rest
    deadline = Deadline.current()
    if deadline is None or not deadline.expired() or without_cancellation(exc) is not None:
        return None
    return deadline.error("the time limit expired before the call returned")
