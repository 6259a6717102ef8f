"""Records of failed attempts, the outcome of an execution, and why it made no further attempt."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar, get_args

from attrs import frozen

from retrytemplate._internal.values import Value

__all__ = [
    "HISTORY_FIRST",
    "HISTORY_LAST",
    "NO_FAILURES",
    "RESTORED",
    "STOP_REASONS",
    "STOP_REASON_TEXTS",
    "AttemptRecord",
    "Outcome",
    "Phase",
    "StopReason",
    "truncate_history",
]


HISTORY_FIRST = 3
HISTORY_LAST = 13

# Of a failed attempt: its number, and when it started and ended (monotonic).
FailureStamp = tuple[int, float | None, float]
# A failure that is not the last one: its class and text.
EarlierFailure = tuple[FailureStamp, type[BaseException], str]

RESTORED: FailureStamp = (-1, None, 0.0)  # the last failure's record is among the kept ones
NO_FAILURES: list[EarlierFailure] = []


@frozen(eq=False, repr=False)
class AttemptRecord(Value):
    """One failed attempt, as text and numbers.

    :param number: the number of the attempt, from 1.
    :param started: when it started, in seconds since the epoch; None if it was not measured.
    :param ended: when it failed, in seconds since the epoch.
    :param type_name: qualified name of the exception's class.
    :param message: the exception's text.
    :param traceback: the traceback's text, if a context cache keeps the record; else empty.
    :param host: the name of the machine, if a context cache keeps the record; else empty.
    :param process: the process id, if a context cache keeps the record; else None.

    >>> from retrytemplate import RetryTemplate
    >>> record = RetryTemplate().outcome(int, "x").history[0]
    >>> record.number, record.type_name, record.message
    (1, 'ValueError', "invalid literal for int() with base 10: 'x'")
    """

    number: int
    started: float | None
    ended: float | None
    type_name: str
    message: str
    traceback: str = ""
    host: str = ""
    process: int | None = None

    @property
    def duration(self) -> float | None:
        """The duration of the attempt, in seconds; None if its start is not known."""
        if self.started is None or self.ended is None:
            return None
        return self.ended - self.started


def truncate_history(history: tuple[AttemptRecord, ...]) -> tuple[AttemptRecord, ...]:
    """The first three records and the last thirteen."""
    if len(history) <= HISTORY_FIRST + HISTORY_LAST:
        return history
    return history[:HISTORY_FIRST] + history[-HISTORY_LAST:]


T = TypeVar("T")


@frozen(eq=False, repr=False)
class Outcome(Value, Generic[T]):
    """The result of a call: its value or its exception.

    ``attempts`` is the number of attempts, ``history`` the records of the failed ones, ``elapsed``
    the duration in seconds.  ``stop_reason`` is why no further attempt was made; None after a
    success and a cancellation.

    >>> from retrytemplate import RetryTemplate
    >>> outcome = RetryTemplate().outcome(int, "17")
    >>> outcome.ok, outcome.value, outcome.attempts
    (True, 17, 1)
    >>> outcome = RetryTemplate().outcome(int, "seventeen")
    >>> outcome.ok, type(outcome.exception).__name__, outcome.attempts
    (False, 'ValueError', 3)
    >>> outcome.stop_reason
    'attempts_exhausted'
    """

    value: T | None
    exception: BaseException | None
    attempts: int
    history: tuple[AttemptRecord, ...]
    elapsed: float
    stop_reason: StopReason | None = None

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.exception is None

    def unwrap(self) -> T:
        """Return the value, or raise the exception."""
        if self.exception is not None:
            try:
                raise self.exception
            finally:
                del self  # the exception's traceback holds this frame
        return self.value  # type: ignore[return-value]  # ok: there is a value


# Of a stored record: no attempt runs, one runs, the recovery runs, the work is done.
Phase = Literal["idle", "attempting", "recovering", "done"]

StopReason = Literal[
    "not_retryable",
    "attempts_exhausted",
    "time_limit",
    "deadline",
    "budget_exhausted",
    "guard",
    "rejected",
    "gave_up",
    "recovery_failed",
    "terminated",
    "inactive",
]
"""Why an execution made no further attempt: the values of ``RetryContext.stop_reason``."""

STOP_REASONS: tuple[StopReason, ...] = get_args(StopReason)
STOP_REASON_TEXTS: dict[StopReason, str] = {
    **{each: each.replace("_", " ") for each in STOP_REASONS},
    "terminated": "a policy, backoff, listener or context cache raised an exception",
    "inactive": "retries are switched off",
}
