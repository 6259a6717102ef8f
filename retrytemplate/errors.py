"""Every error of the library, flat.  Each says who raises it and what to do about it."""

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
    "ExhaustedRetryError",
    "IdempotencyKeyReusedError",
    "IdempotencyRequiredError",
    "InconsistentKeyError",
    "KillSwitchActiveError",
    "LeaseLostError",
    "MissingExtraError",
    "MisuseError",
    "NestedRetryError",
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
    """The root of everything this library raises; catch it to catch them all.

    ``history`` holds the records of the attempts made so far (bounded: the first three and the
    last thirteen), ``attempts`` their number; both are empty where no attempt was made.
    """

    history: tuple[AttemptRecord, ...] = ()
    attempts: int = 0

    def __reduce__(self) -> Any:
        # Exception's own way calls the class with ``args``, which is not what every one takes.
        whole: Any = super().__reduce__()
        _, args, *state = whole
        return _again, (type(self), args), *state


def _again(kind: type[RetryError], args: tuple[Any, ...]) -> RetryError:
    """An error as it is before its attributes are given back, in another process maybe."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class ExhaustedRetryError(RetryError):
    """No attempt is left and nobody recovers.

    Raised by a template for a stateful execution without recovery, and for any execution that ends
    without an exception of its own to raise.  The last failure is the ``__cause__``.  Give a
    recovery, or handle the error where the message or request is finally given up.
    """


class TerminatedRetryError(RetryError):
    """The execution was ended from outside the policy.

    Raised by a template when a listener vetoes in ``open``, or when a failure could not be recorded
    (the policy raised, the context cache refused it: see ``__cause__``).  The callback's own
    exception, if there was one, is reachable through ``__context__``.
    """


class BackoffInterruptedError(RetryError):
    """The wait between two attempts was ended early; no further attempt is made.

    Raised by a template when the clock's sleep raises an ``Exception`` (a stop event, for one).
    What ended the sleep is the ``__cause__``.  Treat it as a shutdown: leave the work for later.
    """


class UnacceptableResultError(RetryError):
    """The callback returned, but a ``ResultRetryPolicy`` does not accept the value.

    Counted like a failure; raised by a template when attempts run out.  ``result`` is the last
    value.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class RetryContextCacheFullError(RetryError):
    """The context cache has no room for a new key.

    Raised by a cache that refuses instead of evicting; a template raises it wrapped in
    ``TerminatedRetryError``.  Raise the capacity, set a TTL, or use ``when_full="evict"``.
    """


class InconsistentKeyError(RetryError):
    """A key that cannot serve for stateful retry, nor for the check of a kill switch.

    Raised by ``RetryState`` and ``KillSwitch`` for a key that is no ``str``, ``int``, ``bytes`` or
    tuple of those (None, a float, a list), or is an int too large to be written as text.  Use a
    business key.
    """


class IdempotencyKeyReusedError(RetryError):
    """A key of an operation came again with another request than the first time.

    Raised by the library's ``Operations`` before anything is called: one of the two requests has
    the key of the other.  Each operation needs one of its own.
    """


class AttemptInProgressError(RetryError):
    """Another execution holds this key right now.

    Raised by a template's stateful execution before the callback.  ``lease_until`` is the end of
    the holder's lease (seconds since the epoch, None: until it ends), ``worker`` names it.  Leave
    the message unacknowledged; it can be tried again after the lease.
    """

    def __init__(
        self, message: str, *, worker: str | None = None, lease_until: float | None = None
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.lease_until = lease_until


class AttemptLostError(RetryError):
    """An attempt that began and never reported: its worker died or stalled past its lease.

    Never raised in the place of the callback's exception: a template records it as the failure of
    the lost attempt, and it is what a recovery finds when the last attempt was lost.  ``worker``
    held it.
    """

    def __init__(self, message: str, *, worker: str | None = None) -> None:
        super().__init__(message)
        self.worker = worker


class AlreadyCompletedError(RetryError):
    """This key was completed before, and ``RetryState(remember=...)`` still remembers it.

    Raised by a template without calling the callback.  Acknowledge the message.
    """


class LeaseLostError(RetryError):
    """This execution no longer owns its key: another one has taken over since.

    Raised by a cache when a late holder writes.  What the late attempt did may happen again: roll
    it back where that is possible.
    """


class CacheUnavailableError(RetryError):
    """The store behind a context cache cannot be reached, or holds what cannot be read.

    Raised by durable caches, before the callback is called: nothing was counted.  Later on, what
    the callback came to leaves, and the listeners' ``on_store_error`` hears of this.
    """


class RetryLater(RetryError):
    """Too early for the next attempt; nothing was called.

    Raised by a stateful execution with ``defer_backoff="raise"`` whose redelivery came before the
    delay was over.  ``retry_after`` is the rest in seconds: redeliver after it.
    """

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Rejected(RetryError):
    """A guard refused the call; the callback was not called.

    Raised by a guard, through the template.  ``name`` says which guard, ``retry_after`` when to
    come back (seconds; None: not known), ``component`` what kind of guard it is, for logs.  Not
    retried unless a rule names it.
    """

    component: ClassVar[str] = "guard"

    def __init__(
        self, message: str = "", *, name: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.name = name
        self.retry_after = retry_after


class CircuitOpenError(Rejected):
    """Raised by a circuit breaker that is open: the service behind it is failing.

    Answer from elsewhere, or come back after ``retry_after``.
    """

    component = "circuit breaker"


class BulkheadFullError(Rejected):
    """Raised by a bulkhead whose slots and queue are taken.  Shed the call or come back later."""

    component = "bulkhead"


class RetryBudgetExhaustedError(Rejected):
    """Raised by a retry budget that grants no further retry.

    The last failure is what to look at: too many calls fail at present.
    """

    component = "retry budget"


class KillSwitchActiveError(Rejected):
    """Raised by a kill switch that stops this work.  An operator decides when it resumes.

    ``retry_after`` is the rest of the stop, where it ends by itself.
    """

    component = "kill switch"


class SwitchRefusedError(RetryError, ValueError):
    """A command to a kill switch that its rules refuse; nothing was changed.

    Raised by ``KillSwitch`` for a reason that says nothing, a stop without an expiry, a stop that
    is not there to be lifted, all at once after everything was stopped.  The message says what is
    missing.
    """


class UnknownScopeError(SwitchRefusedError):
    """A scope that the kill switch does not know; nothing was changed, nothing was let through.

    Raised by a ``KillSwitch`` with declared ``scopes`` for a name that is none of them: most likely
    a slip of the pen, which would stop nothing.  Use one of those that the message lists.
    """


class TriggerRefusedError(SwitchRefusedError):
    """Something automatic wanted to stop what only a human may stop; nothing was changed.

    Raised by a kill switch, from ``trigger``; the message shows the table of what is allowed.  Tell
    an operator.
    """


class SwitchStoreError(RetryError):
    """The store of a kill switch cannot be reached, or holds what cannot be read.

    Raised by a store, and by the commands of a ``KillSwitch``: nothing was changed.  A check does
    not raise it: it goes by what was last known.
    """


class CircuitStoreError(RetryError):
    """The store of a shared circuit cannot be reached, or holds what is no circuit of these rules.

    Raised by a ``CircuitBreaker`` with a store: by commands, by ``snapshot``, and, where the store
    says ``on_store_error="raise"``, before a call, which was not made then.  See to the store; a
    circuit that others use by other rules, give another name.
    """


class NestedRetryError(Rejected):
    """Raised by a nesting rule that allows no retry inside a retry.  Retry in one layer only.

    Refusing a retry, it does not leave the template: the failure itself does, for the one outside.
    """

    component = "nesting guard"


class IdempotencyRequiredError(Rejected):
    """Raised by a guard that allows no retry of what has no idempotency key.

    Whether the call had its effect is not known: look it up.  Send a key with it, and it is
    retried.
    """

    component = "idempotency guard"


class DeadlineExceededError(RetryError, TimeoutError):
    """The whole operation's time is used up, or what is left cannot hold the next attempt.

    Raised by a template, a ``Deadline`` or a ``Timeout``.  The last failure, if any, is the
    ``__cause__``.  ``kind`` says which limit it was, where that has a name, and ``limit`` how many
    seconds it had.  ``outcome_unknown``: something was under way, and whether it had its effect is
    not known: look it up, or repeat it with the same key.  False: what was refused has not begun.
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
    """One attempt was cancelled, abandoned or discarded at its ``attempt_timeout``.

    Raised by a template in the place of the attempt's result; retried like any other
    ``TimeoutError``.
    """


class Veto(RetryError):
    """Raise it in a listener's ``open`` to refuse the execution and say why.

    The caller gets a ``TerminatedRetryError`` with this as its cause.
    """


class MissingExtraError(RetryError, ImportError):
    """Raised on first use of a part whose optional packages are not installed.

    The message names the extra to install.
    """


class MisuseError(RetryError, TypeError):
    """A piece was used where it cannot work: the fault is in the program, so nothing is retried.

    Raised by a template: an awaitable where nothing awaits it, a blocking store under the
    asynchronous driver, a function without a parameter given to ``execute``.  The message says
    which piece and what to use instead.
    """


class UnsafeRetryError(RetryError, ValueError):
    """A retry that lacks something that production needs: a limit, jitter, a budget.

    Raised by ``strict`` and by presets that are strict, when they are made.  ``missing`` says all
    that is, in words.  Add it, or do not call it strict.
    """

    def __init__(self, message: str = "", *, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.missing = missing


class RecordedFailure(RetryError):
    """A failure as it was written down: text, not the live exception.

    What ``RetryContext.last_exception`` holds after the call, and what a redelivery finds as the
    failure of an earlier one.  ``type_name`` is the qualified name of the exception's class,
    ``message`` its text, ``cause`` the recorded ``__cause__`` or None.  Raised only by a template
    with ``raise_last=True`` whose last failure happened in an earlier execution.
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
    """Given once by a template whose policy never ends, with neither delay nor deadline."""
