"""All errors of the library.  Each docstring says what raises the error and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from retrytemplate.history import AttemptRecord

__all__ = [
    "AlreadyCompletedError",
    "AttemptInProgressError",
    "AttemptLostError",
    "AttemptTimeoutError",
    "BackoffInterruptedError",
    "BulkheadFullError",
    "CacheUnavailableError",
    "CircuitOpenError",
    "CircuitStoreError",
    "DeadlineExceededError",
    "ExclusiveRequiredError",
    "ExhaustedRetryError",
    "GateTimeoutError",
    "IdempotencyKeyReusedError",
    "IdempotencyRequiredError",
    "InconsistentKeyError",
    "KillSwitchActiveError",
    "LeaseLostError",
    "MissingExtraError",
    "MisuseError",
    "NestedRetryError",
    "RateLimitStoreError",
    "RateLimitedError",
    "RecordedFailure",
    "Rejected",
    "RetryBudgetExhaustedError",
    "RetryContextCacheFullError",
    "RetryError",
    "RetryLater",
    "SwitchRefusedError",
    "SwitchStoreError",
    "TerminatedRetryError",
    "TriggerRefusedError",
    "UnacceptableResultError",
    "UnboundedRetryWarning",
    "UnknownScopeError",
    "UnsafeRetryError",
    "Veto",
]


class RetryError(Exception):
    """Base class of all errors that this library raises.

    ``attempts`` is the number of attempts made so far, ``history`` the records of the failed ones
    (the first three and the last thirteen).
    """

    history: tuple[AttemptRecord, ...] = ()
    attempts: int = 0

    def __reduce__(self) -> Any:
        # Exception.__reduce__ calls the class with ``args``; some classes have other parameters.
        whole: Any = super().__reduce__()
        _, args, *state = whole
        return _again, (type(self), args), *state


def _again(kind: type[RetryError], args: tuple[Any, ...]) -> RetryError:
    """An error without its attributes, which pickle and copy set afterwards."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class ExhaustedRetryError(RetryError):
    """Attempts are exhausted and no recovery is configured.

    Raised by a template for a stateful execution without recovery, and for every execution that
    ends without an exception to re-raise.  The last failure is the ``__cause__``.  Configure a
    recovery, or handle the error where the message or request is finally given up.
    """


class TerminatedRetryError(RetryError):
    """The execution was ended by a listener or an error of a component, not by the policy.

    Raised by a template when a listener vetoes in ``open``, or when a failure could not be recorded
    (the policy or the context cache raised: see ``__cause__``).  The callback's exception, if there
    is one, is in the chain of ``__context__``.  Fix the component named by the cause.
    """


class BackoffInterruptedError(RetryError):
    """The wait between two attempts, or for a permit, was interrupted; no attempt follows.

    Raised by a template or a rate limiter when the clock's sleep raises, for example because its
    stop event was set.  That exception is the ``__cause__``.  Treat it as a shutdown: leave the
    work for later.
    """


class UnacceptableResultError(RetryError):
    """The callback returned a value that a ``ResultRetryPolicy`` rejects.

    It counts as a failure; a template raises it when attempts are exhausted.  ``result`` is the
    last value.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class RetryContextCacheFullError(RetryError):
    """The context cache is full and does not accept a new key.

    Raised by a cache that does not evict; a template raises ``TerminatedRetryError`` with this as
    its cause.  Increase the capacity, set a TTL, or use ``when_full="evict"``.
    """


class InconsistentKeyError(RetryError):
    """A key has a type that has no stable encoding.

    Raised by ``RetryState`` and ``KillSwitch`` for a key other than a ``str``, ``int``, ``bytes``
    or tuple of those, or too large an int.  Use a business key, such as the id of an order.
    """


class IdempotencyKeyReusedError(RetryError):
    """An idempotency key was used before, with a different request.

    Raised by the library's ``Operations`` before anything is called.  Each operation needs its key.
    """


class AttemptInProgressError(RetryError):
    """Another execution holds the claim on this key.

    Raised by a stateful execution before the callback is called.  ``lease_until`` is the end of the
    holder's lease in seconds since the epoch (None: until the holder ends), ``worker`` its name.
    Leave the message unacknowledged, and redeliver it after the lease.
    """

    def __init__(
        self, message: str, *, worker: str | None = None, lease_until: float | None = None
    ) -> None:
        super().__init__(message)
        self.worker, self.lease_until = worker, lease_until
        self.process: str | None = None  # fingerprint of the holder's process, if a store has it


class AttemptLostError(RetryError):
    """An attempt started and recorded no result: its worker crashed, or its lease expired.

    Not raised by a call: a template records it as the failure of the lost attempt, and passes it to
    the recovery if the last attempt was lost.  ``worker`` is the name of the worker that made the
    attempt, ``exclusive`` whether it ran with ``RetryState(exclusive=True)``.
    """

    def __init__(self, message: str, *, worker: str | None = None, exclusive: bool = False) -> None:
        super().__init__(message)
        self.worker = worker
        self.exclusive = exclusive


class ExclusiveRequiredError(RetryError):
    """The key has a lost attempt, and the execution may run beside others.

    Raised by a template with ``RetryState(exclusive=False)`` before the callback; nothing was
    counted.  Execute it with ``exclusive=True`` when no other attempt runs in the process.
    """


class AlreadyCompletedError(RetryError):
    """The key has a completion marker: an earlier delivery succeeded.

    Raised by a template before the callback is called, for the seconds given as
    ``RetryState(remember=...)``.  Acknowledge the message.
    """


class LeaseLostError(RetryError):
    """The execution lost its lease, and another one has claimed the key.

    Raised by a cache when the former holder writes.  The other execution repeats the work: roll
    back the effects of the late attempt where that is possible.
    """


class CacheUnavailableError(RetryError):
    """The store of a context cache is unavailable, or returned a record that cannot be read.

    Raised by durable caches before the callback; no attempt was counted: redeliver the message when
    the store is available.  If it fails later, the caller gets the callback's result or exception.
    """


class RetryLater(RetryError):
    """It is too early for the next attempt; the callback was not called.

    Raised by a stateful execution with ``defer_backoff="raise"`` when the redelivery is earlier
    than the backoff allows.  Redeliver the message after ``retry_after`` seconds.
    """

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Rejected(RetryError):
    """The call was rejected; the callback was not called.

    Raised by a guard or a strategy: ``name`` is its name, ``component`` its kind, ``retry_after``
    the seconds until a call may be admitted (None: not known).  Not retried unless a rule names it.
    """

    component: ClassVar[str] = "guard"

    def __init__(
        self, message: str = "", *, name: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.name = name
        self.retry_after = retry_after


class CircuitOpenError(Rejected):
    """Raised by an open circuit breaker.  Use a fallback, or call after ``retry_after`` seconds."""

    component = "circuit breaker"


class BulkheadFullError(Rejected):
    """Raised by a bulkhead whose slots and queue are full.  Drop the call, or call again later."""

    component = "bulkhead"


class RateLimitedError(Rejected):
    """Raised by a rate limiter without a permit.  Drop the call, or wait ``retry_after`` s."""

    component = "rate limiter"


class GateTimeoutError(Rejected):
    """Raised by an isolation gate that is not entered in time.  Begin the work later."""

    component = "isolation gate"


class RetryBudgetExhaustedError(Rejected):
    """Raised by an exhausted retry budget: too many calls fail.  Look at the last failure.

    ``available`` is the balance of the budget; None: not known.
    """

    component = "retry budget"
    available: float | None = None


class KillSwitchActiveError(Rejected):
    """Raised by a kill switch that stops this work, for ``retry_after`` seconds or until resume."""

    component = "kill switch"


class SwitchRefusedError(RetryError, ValueError):
    """The rules of a kill switch reject a command; nothing was changed.

    Raised by a kill switch, for example for a stop without an expiry or a reason.  The message
    names the missing argument.
    """


class UnknownScopeError(SwitchRefusedError):
    """A scope is not declared; nothing was changed, and no call was admitted.

    Raised by a kill switch with declared ``scopes`` for any other name.  The message lists them.
    """


class TriggerRefusedError(SwitchRefusedError):
    """An automatic trigger may not stop this scope; nothing was changed.

    Raised by a kill switch's ``trigger``; the message lists allowed scopes.  Notify an operator.
    """


class SwitchStoreError(RetryError):
    """The store of a kill switch is unavailable, or returned a record that cannot be read.

    Raised by a store and by the commands of a kill switch.  Nothing was changed, unless the message
    says that this is unknown.  A check does not raise it, but uses the last known state.  Repeat
    the command when the store is available.
    """


class CircuitStoreError(RetryError):
    """The store of a shared circuit is unavailable, or its record has other settings.

    Raised by a circuit breaker with a store: by commands, and, with ``on_store_error="raise"``, by
    ``state``, by ``snapshot`` and before a call, which is not made then.  Repair the store; give
    another name to a circuit with other settings.
    """


class RateLimitStoreError(RetryError):
    """The store of a shared rate limiter is unavailable, or its record cannot be read.

    Raised by a rate limiter with ``on_store_error="raise"`` before a call, which is not made then,
    and by its ``pause`` and ``snapshot``.  Call again when the store is available.
    """


class NestedRetryError(Rejected):
    """A nesting guard rejected a retry inside another retry.

    The template runs the recovery or raises the failure instead.  Retry in one layer only.
    """

    component = "nesting guard"


class IdempotencyRequiredError(Rejected):
    """Raised by a guard that allows no retry of a call without an idempotency key.

    It is not known whether the failed call had an effect.  Send a key to allow retries.
    """

    component = "idempotency guard"


class DeadlineExceededError(RetryError, TimeoutError):
    """The deadline of the operation has expired, or is too near for the next attempt.

    Raised by a template, a ``Deadline`` or a ``Timeout``.  The last failure, if any, is the
    ``__cause__``.  ``kind`` is the name of the limit, if it has one, and ``limit`` its seconds.
    ``outcome_unknown`` is True if a call was in progress and may have had its effect: check it, or
    repeat the call with the same idempotency key.  If False, the rejected call was not started.
    """

    def __init__(
        self,
        message: str = "",
        *,
        kind: str | None = None,
        limit: float | None = None,
        outcome_unknown: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.limit = limit
        self.outcome_unknown = outcome_unknown


class AttemptTimeoutError(RetryError, TimeoutError):
    """An attempt was cancelled, abandoned or discarded at its ``attempt_timeout``.

    Raised by a template instead of the attempt's result; retried like any other ``TimeoutError``.
    """


class Veto(RetryError):
    """To be raised in a listener's ``open``: rejects the execution, with a reason.

    The caller gets a ``TerminatedRetryError`` with this as its cause.
    """


class MissingExtraError(RetryError, ImportError):
    """Raised on first use of a part of the library whose optional packages are not installed.

    The message names the extra to install.
    """


class MisuseError(RetryError, TypeError):
    """A component or callback was used where it cannot work: an error in the program, not retried.

    Raised by a template, for example for an awaitable in synchronous code or a blocking store in
    asynchronous code.  The message names the component and the alternative.
    """


class UnsafeRetryError(RetryError, ValueError):
    """A strict template lacks a setting that production needs: a limit, jitter, a budget.

    Raised by ``strict`` and strict presets.  ``missing`` lists the settings to add.
    """

    def __init__(self, message: str = "", *, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


class RecordedFailure(RetryError):
    """A failure as it was recorded: its text, not the exception object.

    It is the ``RetryContext.last_exception`` after the call, and in a redelivery the failure of
    the earlier delivery: ``type_name`` (qualified), ``message``, and ``cause``, recorded or None.
    Raised only with ``raise_last=True``, for a failure of an earlier execution.
    """

    def __init__(
        self, type_name: str, message: str = "", cause: RecordedFailure | None = None
    ) -> None:
        super().__init__(f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name
        self.message = message
        self.cause = cause
        self.__cause__ = cause

    def __reduce__(self) -> Any:
        again, arguments, state = super().__reduce__()
        return again, arguments, {**state, "__cause__": self.cause}


class UnboundedRetryWarning(UserWarning):
    """Given once by a template without delay and deadline whose policy never stops retrying."""
