"""The context of an execution, and how the current one is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._engine.frames import (
    CONTEXT,
    CURRENT,
    DEADLINE,
    FUNCTION,
    OUTER,
    OWNER,
    PLAN,
    STARTED,
    ExecutionFrame,
)
from retrytemplate._internal.failure_text import NO_TEXT, message_of, to_recorded_failure, type_name
from retrytemplate._internal.formatting import operation_of
from retrytemplate.errors import CacheUnavailableError, MisuseError
from retrytemplate.history import (
    HISTORY_FIRST,
    HISTORY_LAST,
    NO_FAILURES,
    RESTORED,
    AttemptRecord,
    truncate_history,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from typing import Protocol

    from retrytemplate.caches.base import Claim
    from retrytemplate.clock import Clock
    from retrytemplate.history import EarlierFailure, FailureStamp, StopReason
    from retrytemplate.policies.base import RetryPolicy
    from retrytemplate.state import RetryState

    class Plan(Protocol):
        """The prepared settings that a context reads."""

        policy: RetryPolicy
        cache: Any
        scope: str
        clock: Clock
        monotonic_source: Any
        raise_last: bool
        needs_state: bool
        keeps_context: bool
        admit: tuple[Callable[..., Any], ...]

    class Owner(Protocol):
        """The template of an execution, or a bound template."""

        @property
        def recovery(self) -> Callable[[RetryContext], Any] | None: ...
        @property
        def label(self) -> str | None: ...


__all__ = ["RetryContext", "context_of", "current_context", "first_context"]


def current_context() -> RetryContext | None:
    """Return the context of the innermost execution that runs here, or None.

    Works in threads, asyncio and trio tasks alike.

    >>> from retrytemplate import RetryTemplate
    >>> RetryTemplate().call(lambda: current_context().attempt)
    1
    >>> current_context() is None
    True
    """
    return context_of(CURRENT.get())


def context_of(frame: ExecutionFrame | None) -> RetryContext | None:
    """The context of the nearest frame that has one, made now if it is requested first."""
    while frame is not None:
        context: RetryContext | None = frame[CONTEXT]
        if context is None and frame[OWNER] is not None:
            context = first_context(frame)
        if context is not None and not context._exited:
            context._is_exposed = True
            return context
        frame = frame[OUTER]
    return None


def first_context(frame: ExecutionFrame) -> RetryContext:
    """Make the context of a first attempt that began without one."""
    context = frame[CONTEXT] = RetryContext(frame[OWNER], frame[OUTER], frame[PLAN])
    context._function = frame[FUNCTION]
    context.attempt = 1
    if frame[DEADLINE] is not None or frame[PLAN].times_first_attempt:
        context._started_at = frame[STARTED]
    return context


async def _completed(claim: Claim, done: Awaitable[None]) -> None:
    await done
    claim.completed = True


class RetryContext:
    """The state of one execution; the callback, the listeners and the recovery get it.

    ``attempt``
        the current attempt, from 1; 0 in ``open``; in ``on_error`` and ``on_backoff`` the one
        that failed.
    ``retry_count``
        failures so far.
    ``gave_up``
        whether ``give_up`` was called: there is no attempt after this one.
    ``exhausted``
        whether the attempts have run out.
    ``recovered``
        whether a recovery returned instead of the callback.
    ``no_recovery``
        whether the last failure must reach the caller without recovery.
    ``closed``
        whether the execution is over; False where its key is kept for the next delivery.

    The other properties have their own documentation.  The attributes of a stateful execution hold
    JSON values.

    Source: ``org.springframework.retry.RetryContext``.
    """

    # What nearly every failing call touches lies in slots, the rest in class-level defaults until
    # it differs: the cheapest mixture that was measured.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_claim",
        "_earlier_failures",
        "_ended_at",
        "_function",
        "_is_exposed",
        "_last_failure",
        "_last_stamp",
        "_outer",
        "_owner",
        "_plan",
        "_repeat_count",
        "_started_at",
        "_state",
        "_stop_reason",
        "attempt",
        "closed",
        "exhausted",
        "gave_up",
        "retry_count",
    )

    _ended_at: float | None  # set at the end
    _function: Callable[..., Any] | None  # set where there is one: a block has none
    # Set with the first failure.
    _last_stamp: FailureStamp
    _repeat_count: int  # consecutive earlier failures that were the same object

    recovered: bool = False
    no_recovery: bool = False

    _exited: bool = False  # as a block is; the others take their frame with them
    _name: str | None = None  # another than the owner's
    _operation: tuple[Any, str] | None = None  # of the function in it
    _is_opened: bool = False  # past the listeners' open
    _attributes: dict[str, Any] | None = None
    _restored_history: tuple[AttemptRecord, ...] = ()
    _max_attempts: int | None = None
    _recovery: Callable[[RetryContext], Any] | None = None  # of this call
    _policy: RetryPolicy | None = None  # with its run-time numbers read
    _unguarded: bool = False  # the store is unavailable; the execution runs without its key
    _retry_allowed: bool = True
    _policy_state: Any = None
    _backoff_state: Any = None
    _backoff_started: bool = False
    _not_before: float | None = None

    def __init__(self, owner: Owner, outer: ExecutionFrame | None, plan: Plan) -> None:
        self._plan = plan
        self._outer = outer
        self._owner = owner
        self.attempt = 0
        self.retry_count = 0
        self.gave_up = self.exhausted = self.closed = False
        self._state: RetryState | None = None
        self._claim: Claim | None = None  # on the key of a stateful execution
        self._is_exposed = False  # user code has this context
        self._started_at: float | None = None
        self._stop_reason: StopReason | None = None
        self._last_failure: BaseException | None = None
        self._earlier_failures: list[EarlierFailure] = NO_FAILURES

    @property
    def name(self) -> str | None:
        """The template's name, or the label bound to it; yours to change."""
        return self._name or self._owner.label

    @name.setter
    def name(self, name: str | None) -> None:
        self._name = name

    @property
    def operation(self) -> str:
        """The qualified name of the function that is called; of a lambda its file and line.

        In the block form the name of the template or its label, or ``"attempts"``.
        """
        function = getattr(self, "_function", None)
        if function is None:
            return self.name or "attempts"
        if self._operation is None or self._operation[0] is not function:
            self._operation = (function, operation_of(function))
        return self._operation[1]

    @property
    def stop_reason(self) -> StopReason | None:
        """Why no further attempt follows, one of the words of ``StopReason``.

        None while attempts continue (also with the next delivery), after a success and after a
        cancellation.  It stays where a recovery answers.
        """
        return self._stop_reason

    @property
    def parent(self) -> RetryContext | None:
        """The context of the execution around this one, or None."""
        return context_of(self._outer)

    @property
    def last_exception(self) -> BaseException | None:
        """The last failure, None before the first; a ``RecordedFailure`` after the execution."""
        return self._last_failure

    @property
    def attributes(self) -> MutableMapping[str, Any]:
        """Your own values; they live across attempts, and across executions when stateful."""
        if self._attributes is None:
            self._attributes = {}
        return self._attributes

    @property
    def history(self) -> tuple[AttemptRecord, ...]:
        """The failed attempts, oldest first: the first three, then the last thirteen."""
        if self._last_failure is None or self._last_stamp is RESTORED:
            return self._restored_history
        return truncate_history(self._restored_history + self._records())

    @property
    def max_attempts(self) -> int | None:
        """The policy's maximum of attempts; None: not known, or the first attempt has not begun."""
        if self._max_attempts is None and (self.attempt or self._is_opened):
            return (self._policy or self._plan.policy).max_attempts
        return self._max_attempts

    @max_attempts.setter
    def max_attempts(self, number: int | None) -> None:
        self._max_attempts = number

    @property
    def is_last_attempt(self) -> bool | None:
        """True or False where the policy bounds the attempts, else None."""
        if self.gave_up:
            return True
        limit = (self._policy or self._plan.policy).attempt_limit
        return None if limit is None else self.attempt >= limit

    @property
    def keeps_context(self) -> bool:
        """Whether the context outlives success and exhaustion, as that of a circuit breaker."""
        return self._plan.keeps_context

    @property
    def elapsed(self) -> float:
        """Seconds since the start where it is measured, else since the first failure."""
        if self._started_at is None:
            return 0.0
        end = getattr(self, "_ended_at", None)
        now: float = self._plan.monotonic_source.now() if end is None else end
        return now - self._started_at

    def give_up(self) -> None:
        """Make no attempt after this one (Spring's ``setExhaustedOnly``)."""
        self.gave_up = True

    def rethrows(self, failure: BaseException) -> bool:
        """Whether this failure is re-raised at once, and another execution makes the next attempt.

        So it is with a state, but for what its ``rollback_for`` leaves out.
        """
        state = self._state
        return state is not None and (state.rolls_back is None or state.rolls_back(failure))

    @property
    def key(self) -> Any:
        """The key of a stateful execution; None: stateless, or untracked."""
        state = self._state
        return None if state is None or not state.tracked else state.key

    @property
    def fence(self) -> int | None:
        """A number that only grows per key, for the caller's own writes; None where none is."""
        return None if self._claim is None else self._claim.fence

    def still_mine(self) -> bool:
        """Whether this execution still holds its key: advice, true at the moment of asking.

        With an asynchronous cache, await it.

        :raises MisuseError: where there is no key.
        """
        mine: bool = self._plan.cache.holds(self._require_claim("still_mine()"))
        return mine

    def complete_in(self, connection: Any) -> Any:
        """End the claim in the transaction of the caller.

        With an asynchronous cache, await it.

        :param connection: an open transaction on the database of the context cache.
        :raises MisuseError: where there is no key, or the cache has no database.
        :raises LeaseLostError: another execution has taken the key over: roll back.
        :raises CacheUnavailableError: the execution runs unguarded: it has no hold on its key.
        """
        claim = self._require_claim("complete_in()")
        if connection is None:
            raise MisuseError("complete_in() needs a connection with an open transaction, got None")
        done = self._plan.cache.succeed(claim, connection=connection, remember=self._remember)
        if hasattr(done, "__await__"):
            return _completed(claim, done)
        claim.completed = True
        return None

    @property
    def _remember(self) -> float | None:
        """Seconds for which this end of the key is remembered: only a success is."""
        state = self._state
        return None if state is None or self.exhausted else state.remember

    def _require_claim(self, wanted: str) -> Claim:
        if self._unguarded:
            raise CacheUnavailableError(f"{wanted}: the execution runs without a hold on its key")
        if self._claim is None:
            raise MisuseError(f"{wanted} needs a stateful execution with a key")
        return self._claim

    def __repr__(self) -> str:
        return (
            f"<RetryContext name={self.name!r} key={self.key!r} attempt={self.attempt} "
            f"retry_count={self.retry_count} last_exception={self._last_failure!r}>"
        )

    # -- what the engine writes ------------------------------------------------------------------

    def _count_failure(self, exception: BaseException, started: float | None, now: float) -> None:
        """Count a failure: the one before becomes text, so that only the last is kept alive."""
        previous = self._last_failure
        if previous is not None and (stamp := self._last_stamp) is not RESTORED:
            try:
                text = str(previous)
            except Exception:
                text = NO_TEXT
            past = (stamp, type(previous), text)
            if self._earlier_failures is NO_FAILURES:
                self._earlier_failures = [past]
            else:
                self._earlier_failures.append(past)
                if len(self._earlier_failures) > HISTORY_FIRST + HISTORY_LAST - 1:
                    del self._earlier_failures[HISTORY_FIRST]
        self._repeat_count = self._repeat_count + 1 if previous is exception else 0
        if self._started_at is None:
            self._started_at = now
        self._last_failure = exception
        self._last_stamp = (self.attempt, started, now)
        self.retry_count += 1

    def _records(self) -> tuple[AttemptRecord, ...]:
        """Records of the failures of this execution that are not among the kept ones."""
        clock = self._plan.clock
        offset = clock.time() - clock.monotonic()
        last = self._last_failure
        assert last is not None
        texts = [(stamp, type_name(kind), text) for stamp, kind, text in self._earlier_failures]
        texts.append((self._last_stamp, type_name(last), message_of(last)))
        return tuple(
            AttemptRecord(
                number, None if started is None else started + offset, ended + offset, name, text
            )
            for (number, started, ended), name, text in texts
        )

    def _is_timed(self) -> bool:
        """Whether the start of the first attempt in the history was measured, if there is one."""
        kept = self._restored_history
        if kept or self._last_failure is None or self._last_stamp is RESTORED:
            return not kept or kept[0].started is not None
        stamps = [stamp for stamp, _, _ in self._earlier_failures[:1]] or [self._last_stamp]
        return stamps[0][1] is not None

    def _keep(self, records: tuple[AttemptRecord, ...]) -> None:
        """Keep the failures as text."""
        self._restored_history = truncate_history(self._restored_history + records)
        self._earlier_failures = NO_FAILURES
        self._last_stamp = RESTORED

    def _release_exceptions(self) -> None:
        """Replace every exception object by its text, for contexts that user code keeps."""
        if self._is_exposed and self._started_at is not None:
            self._ended_at = self._plan.monotonic_source.now()
        last = self._last_failure
        if last is None:
            return
        if self._is_exposed:
            if self._last_stamp is not RESTORED:
                self._keep(self._records())
            self._last_failure = to_recorded_failure(last)
        else:
            self._last_failure = None
            self._earlier_failures = NO_FAILURES
