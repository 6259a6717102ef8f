"""A function whose failures are recorded while a template calls it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from attrs import evolve

from retrytemplate._internal.failure_text import message_of, type_name
from retrytemplate.batch.journal.letters import NAME_LIMIT
from retrytemplate.caches.record import brief, describe, shortened
from retrytemplate.caches.worker_id import host_name
from retrytemplate.errors import AttemptTimeoutError, RetryError, UnacceptableResultError
from retrytemplate.history import HISTORY_FIRST, HISTORY_LAST, AttemptRecord, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable


# Errors of the template about an attempt that was made.
TEMPLATE_ERRORS = (AttemptTimeoutError, UnacceptableResultError)


class _FailureCapture:
    """Keeps the exceptions of failed calls, as many as a history has.

    :param failure: the exception of a first call that was made already; the first call raises it
        again.  So the first attempt of nearly every item costs no more than the call itself.
    """

    __slots__ = ("_calls", "_failure", "_raised", "func")

    def __init__(self, function: Callable[..., Any], failure: Exception | None = None) -> None:
        self.func = function
        self._failure = failure
        self._calls = 0
        self._raised: dict[int, Exception] = {}

    def __enter__(self) -> None:
        self._calls += 1
        failure, self._failure = self._failure, None
        if failure is not None:
            self._record_failure(failure)
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame

    def __exit__(self, kind: object, failure: BaseException | None, traceback: object) -> None:
        if isinstance(failure, Exception):
            self._record_failure(failure)

    def _record_failure(self, failure: Exception) -> None:
        self._raised[self._calls] = failure
        if self._calls > HISTORY_FIRST + HISTORY_LAST:
            self._raised.pop(self._calls - HISTORY_LAST, None)

    def is_rejection(self, outcome: Outcome[Any]) -> bool:
        """Whether the exception is a rejection by the template, not a failure of a call.

        By a guard or a deadline: no item is at fault.
        """
        failure = outcome.exception
        called = any(failure is each for each in self._raised.values())
        return (
            not called
            and isinstance(failure, RetryError)
            and not isinstance(failure, TEMPLATE_ERRORS)
        )

    def history(
        self,
        outcome: Outcome[Any],
        redact: Callable[[str], str] | None,
        with_tracebacks: bool = True,
    ) -> tuple[AttemptRecord, ...]:
        """The failed attempts; with their tracebacks, if no attempt is left.

        :param redact: applied to messages and tracebacks.
        :param with_tracebacks: False: without tracebacks, which cost more than the attempt.
        """
        raised, self._raised = self._raised, {}  # whose tracebacks hold this object
        if outcome.ok or not with_tracebacks:
            raised = {}
        return tuple(_record(each, raised.get(each.number), redact) for each in outcome.history)


def first_attempt_record(failure: Exception, redact: Callable[[str], str] | None) -> AttemptRecord:
    """A first attempt that failed, without its traceback."""
    name = shortened(type_name(failure), NAME_LIMIT)
    return AttemptRecord(1, None, None, name, brief(message_of(failure), redact))


def _record(
    attempt: AttemptRecord, failure: Exception | None, redact: Callable[[str], str] | None
) -> AttemptRecord:
    return evolve(
        attempt,
        type_name=shortened(attempt.type_name, NAME_LIMIT),
        message=brief(attempt.message, redact),
        traceback="" if failure is None else describe(failure, redact),
        host=host_name(),
        process=os.getpid(),
    )


class FailureCapture(_FailureCapture):
    """Called like the function."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        with self:
            return self.func(*arguments)


class AsyncFailureCapture(_FailureCapture):
    """Awaited like the function."""

    __slots__ = ()

    async def __call__(self, *arguments: Any) -> Any:
        with self:
            return await self.func(*arguments)
