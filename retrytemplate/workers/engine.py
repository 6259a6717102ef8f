"""The rules of one message: the order of its steps, and what becomes of it.

``process`` is a generator of effects; a driver performs each one and sends back a ``Reply``: a
value or an exception.  Nothing here reads a clock, does I/O or awaits.  The order is gate, claim,
handler, end of the attempt, settlement, gate left: while it waits for the gate, a message has no
claim, so the crash of the message inside is not attributed to it.

A *suspect*, a message with a lost attempt, runs in exclusive attempts only: no other attempt is in
flight in its failure domain.  The claim shows it: the message then leaves the gate and enters it
again, exclusively.

``OUTCOMES`` is the table of all outcomes of a handler or the runtime, with their consequences.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import frozen

from retrytemplate.errors import (
    AlreadyCompletedError,
    AttemptInProgressError,
    AttemptTimeoutError,
    ExclusiveRequiredError,
    LeaseLostError,
    Rejected,
    RetryLater,
)
from retrytemplate.workers.crash_attribution import RedeliveryPolicy, RetryRequested
from retrytemplate.workers.message import DeadLetter, Release

if TYPE_CHECKING:
    from collections.abc import Generator


class Outcome(StrEnum):
    """What an execution of a message came to: a row of the table."""

    COMPLETED = "completed"
    RETRY_REQUESTED = "retry_requested"
    REJECTED = "rejected"
    RELEASED = "released"
    FAILED = "failed"
    FAILED_UNLISTED = "failed_unlisted"
    EXHAUSTED = "exhausted"
    TIMED_OUT = "timed_out"
    DEFERRED = "deferred"
    IN_PROGRESS = "in_progress"
    ALREADY_COMPLETED = "already_completed"
    LEASE_LOST = "lease_lost"
    STORE_UNAVAILABLE = "store_unavailable"
    UNDECODABLE = "undecodable"
    CANCELLED = "cancelled"
    LOST_SHARED = "lost_shared"
    LOST_EXCLUSIVE = "lost_exclusive"
    CRASHED = "crashed"
    LETTER_NOT_WRITTEN = "letter_not_written"
    GATE_TIMED_OUT = "gate_timed_out"


class Action(StrEnum):
    """The settlement of a message."""

    ACKNOWLEDGE = "acknowledge"
    REQUEUE = "requeue"
    DEAD_LETTER = "dead_letter"
    RELEASE = "release"
    NONE = "none"


class Row(NamedTuple):
    """A row of the table.

    :param cause: in words, for the documentation.
    :param context: what the context cache keeps of the attempt, in words.
    :param action: the settlement of the message.
    :param level: of the log record; None: no record.
    """

    cause: str
    context: str
    action: Action
    level: int | None


DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
O, A = Outcome, Action  # noqa: E741  # the columns of the table

OUTCOMES: dict[Outcome, Row] = {
    O.COMPLETED: Row("returns a value, or `Acknowledge()`", "success", A.ACKNOWLEDGE, None),
    O.RETRY_REQUESTED: Row("returns `Retry(delay, reason)`", "failure", A.REQUEUE, INFO),
    O.REJECTED: Row("returns or raises `Reject(reason)`", "deleted", A.DEAD_LETTER, WARNING),
    O.RELEASED: Row("returns `Release(reason)`", "unchanged", A.RELEASE, INFO),
    O.FAILED: Row("raises an exception in `retry_on`", "failure", A.REQUEUE, INFO),
    O.FAILED_UNLISTED: Row("raises an unlisted exception", "failure", A.REQUEUE, ERROR),
    O.EXHAUSTED: Row(
        "raises an exception in `not_on`, or fails the last attempt",
        "deleted",
        A.DEAD_LETTER,
        WARNING,
    ),
    O.TIMED_OUT: Row("exceeds `attempt_timeout`", "failure", A.REQUEUE, WARNING),
    O.DEFERRED: Row("raises `Rejected` or `RetryLater`", "unchanged", A.REQUEUE, INFO),
    O.IN_PROGRESS: Row(
        "another worker runs the attempt (`AttemptInProgressError`)", "unchanged", A.REQUEUE, INFO
    ),
    O.ALREADY_COMPLETED: Row(
        "a remembered success (`AlreadyCompletedError`)", "unchanged", A.ACKNOWLEDGE, DEBUG
    ),
    O.LEASE_LOST: Row(
        "another worker took the message over (`LeaseLostError`)", "unchanged", A.NONE, WARNING
    ),
    # The intake logs an outage, once; an error of a guard or a listener is logged at ERROR.
    O.STORE_UNAVAILABLE: Row("the context cache fails", "unknown", A.RELEASE, None),
    O.UNDECODABLE: Row("the body cannot be decoded", "none", A.DEAD_LETTER, ERROR),
    O.CANCELLED: Row("is cancelled", "unchanged", A.RELEASE, None),
    O.LOST_SHARED: Row("crash, shared attempt", "lost attempt", A.NONE, WARNING),
    O.LOST_EXCLUSIVE: Row(
        "an attributed crash before the `max_crashes`-th", "lost attempt", A.NONE, WARNING
    ),
    O.CRASHED: Row("the `max_crashes`-th attributed crash", "deleted", A.DEAD_LETTER, ERROR),
    O.LETTER_NOT_WRITTEN: Row("cannot write the dead letter", "recovering", A.REQUEUE, ERROR),
    O.GATE_TIMED_OUT: Row(
        "waits too long for an exclusive attempt", "unchanged", A.RELEASE, WARNING
    ),
}


class EnterGate(NamedTuple):
    """Enter the isolation gate; an exception: a ``GateTimeoutError``, or a cancellation."""

    exclusive: bool


class Execute(NamedTuple):
    """Claim the key, run the handler and end the attempt; the value is an ``Attempted``."""

    exclusive: bool


class Settle(NamedTuple):
    """Settle the message; an exception: the queue did not do it, and delivers it again."""

    action: Action
    delay: float
    reason: str


class LeaveGate(NamedTuple):
    """Leave the isolation gate."""


class Delay(NamedTuple):
    """Keep the message for a time, then process it again; the last effect."""

    delay: float
    is_suspect: bool


class Emit(NamedTuple):
    """Report a step: "suspected", "exclusive_timed_out" or "settled"."""

    event: str
    result: Result


Effect = EnterGate | Execute | Settle | LeaveGate | Delay | Emit
LEAVE_GATE = LeaveGate()
Reply = tuple[Any, BaseException | None]


class Interrupted(BaseException):
    """Ends an attempt without counting it.  Derived from ``BaseException``, so that the template
    gives the key back as it was.

    :param cause: the ``Release``, or the ``Rejected`` or ``RetryLater`` that the handler raised.
    """

    def __init__(self, cause: Release | Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class DeadLettered(NamedTuple):
    """The value of an execution whose recovery wrote the dead letter."""

    letter: DeadLetter
    is_rejected: bool


@frozen
class Attempted:
    """How an execution ended.

    :param value: of the handler, or a ``DeadLettered``.
    :param error: the exception that left the execution; None: it returned the value.
    :param is_handlers: whether the handler raised it.
    :param is_recoverys: whether the recovery raised it: the dead letter was not written.
    :param is_last: whether no attempt is left, so that the next execution runs the recovery.
    :param delay: seconds until the next attempt may begin.
    """

    value: Any = None
    error: BaseException | None = None
    is_handlers: bool = False
    is_recoverys: bool = False
    is_last: bool = False
    delay: float = 0.0


@frozen
class Rules:
    """The settings that the rules need.

    :param supports_delay: of the source.
    :param keeps: whether the source's messages are owned without a time limit.
    :param max_local_delay: the longest delay for which the runtime keeps a message, in seconds.
    """

    policy: RedeliveryPolicy
    supports_delay: bool = False
    keeps: bool = False
    max_local_delay: float = 60.0


class Result(NamedTuple):
    """What became of a message.

    :param delay: seconds until it is processed again, as far as it is known.
    :param error: the failure, or the cancellation, which continues.
    """

    outcome: Outcome
    action: Action
    delay: float = 0.0
    reason: str = ""
    error: BaseException | None = None
    letter: DeadLetter | None = None


def process(rules: Rules, is_suspect: bool = False) -> Generator[Effect, Reply, Result]:
    """Process one delivery.

    :param is_suspect: whether an earlier delivery showed a lost attempt.
    """
    while True:
        _, error = yield EnterGate(is_suspect)
        if error is not None:
            return (yield from _leave_unprocessed(error))
        attempted, _ = yield Execute(is_suspect)
        result = _result_of(rules.policy, attempted)
        if is_suspect or result.outcome is not Outcome.LOST_SHARED:
            break
        is_suspect = True
        yield LEAVE_GATE
        yield Emit("suspected", result)
    if attempted.is_last:  # the key is ended in the same delivery: its recovery runs now
        attempted, _ = yield Execute(is_suspect)
        result = _result_of(rules.policy, attempted)
    result, is_kept = _placed(rules, result)
    error = None
    if not is_kept and result.letter is None and result.action is not Action.NONE:
        _, error = yield Settle(result.action, result.delay, result.reason)
    yield LEAVE_GATE
    if error is None:
        yield Emit("settled", result)
    if is_kept:
        yield Delay(result.delay, is_suspect)
    return result


def process_undecodable(reason: str) -> Generator[Effect, Reply, Result]:
    """Dead-letter a message whose body cannot be decoded; it has no attempt."""
    result = Result(Outcome.UNDECODABLE, Action.DEAD_LETTER, reason=reason)
    _, error = yield Settle(Action.DEAD_LETTER, 0.0, reason)
    if error is None:
        yield Emit("settled", result)
    return result


def _leave_unprocessed(error: BaseException) -> Generator[Effect, Reply, Result]:
    """Release a message that did not get through the gate."""
    outcome = Outcome.GATE_TIMED_OUT if isinstance(error, Exception) else Outcome.CANCELLED
    result = Result(outcome, Action.RELEASE, error=error)
    _, failed = yield Settle(Action.RELEASE, 0.0, "")
    if outcome is Outcome.GATE_TIMED_OUT:
        yield Emit("exclusive_timed_out", result)
    elif failed is None:
        yield Emit("settled", result)
    return result


def _placed(rules: Rules, result: Result) -> tuple[Result, bool]:
    """Where a message waits for its next attempt, and whether the runtime keeps it."""
    if result.action is not Action.REQUEUE or rules.supports_delay:
        return result, False
    if result.delay > rules.max_local_delay and not rules.keeps:
        return result._replace(action=Action.NONE), False  # its visibility timeout ends
    return result, True


def _result_of(policy: RedeliveryPolicy, attempted: Attempted) -> Result:
    """The row of the table for the end of an execution, and its numbers."""
    error = attempted.error
    if error is None:
        if not isinstance(attempted.value, DeadLettered):
            return _result(Outcome.COMPLETED)
        letter, is_rejected = attempted.value
        outcome = Outcome.REJECTED if is_rejected else Outcome.EXHAUSTED
        if letter.phase == "crash":
            outcome = Outcome.CRASHED
        return _result(outcome, reason=letter.reason, letter=letter)
    reason = str(error) or type(error).__name__
    if isinstance(error, Interrupted):
        cause = error.cause
        if isinstance(cause, Release):
            return _result(Outcome.RELEASED, reason=cause.reason)
        return _result(Outcome.DEFERRED, attempted.delay, str(cause), cause)
    if not isinstance(error, Exception):
        outcome = Outcome.CANCELLED
    elif attempted.is_handlers:
        outcome = _failure(policy, error)
    elif attempted.is_recoverys:
        outcome = Outcome.LETTER_NOT_WRITTEN
    else:
        outcome = next(row for kinds, row in TEMPLATE_ERRORS if isinstance(error, kinds))
    return _result(outcome, attempted.delay, reason, error)


def _result(
    outcome: Outcome,
    delay: float = 0.0,
    reason: str = "",
    error: BaseException | None = None,
    letter: DeadLetter | None = None,
) -> Result:
    return Result(outcome, OUTCOMES[outcome].action, delay, reason, error, letter)


def _failure(policy: RedeliveryPolicy, error: BaseException) -> Outcome:
    """The row for a counted failure of the handler."""
    if isinstance(error, RetryRequested):
        return Outcome.RETRY_REQUESTED
    if isinstance(error, AttemptTimeoutError):
        return Outcome.TIMED_OUT
    is_unlisted = policy.policy is None and policy.verdict(error) == "unlisted"
    return Outcome.FAILED_UNLISTED if is_unlisted else Outcome.FAILED


TEMPLATE_ERRORS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Outcome], ...] = (
    (ExclusiveRequiredError, Outcome.LOST_SHARED),
    (AlreadyCompletedError, Outcome.ALREADY_COMPLETED),
    (AttemptInProgressError, Outcome.IN_PROGRESS),
    (LeaseLostError, Outcome.LEASE_LOST),
    ((Rejected, RetryLater), Outcome.DEFERRED),
    # CacheUnavailableError, a full cache, a listener or guard that fails.
    (Exception, Outcome.STORE_UNAVAILABLE),
)
