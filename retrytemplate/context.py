"""What an execution knows: its context, the records of its attempts, its state and its outcome."""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from attrs import field, frozen

from retrytemplate._checks import check_at_least, duration
from retrytemplate._values import Value
from retrytemplate.errors import InconsistentKeyError, MisuseError, RecordedFailure

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from datetime import timedelta

    from retrytemplate.caches.base import Claim
    from retrytemplate.plan import Plan
    from retrytemplate.policies.base import RetryPolicy

__all__ = [
    "AttemptRecord",
    "Outcome",
    "RetryContext",
    "RetryState",
    "current_context",
    "encode_key",
]

T = TypeVar("T")

HISTORY_FIRST = 3
HISTORY_LAST = 13

# All that travels with a call, one variable for all of it.  A cell is a list made afresh for each
# call (so that child tasks never share what they write): the context or None while nobody asked for
# it; who makes it on demand; the deadline in force; the cell outside; the settings it began with.
Cell = list[Any]
CONTEXT, OWNER, DEADLINE, OUTER, PLAN = range(5)
CURRENT: ContextVar[Cell | None] = ContextVar("retrytemplate", default=None)


def leave(token: Any) -> None:
    """Reset the current cell, also where a suspended coroutine is closed from another context."""
    with suppress(ValueError):
        CURRENT.reset(token)


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


def context_of(cell: Cell | None) -> RetryContext | None:
    """The context of the nearest cell that has one, made now if nobody asked before."""
    while cell is not None:
        context: RetryContext | None = cell[CONTEXT]
        if context is None and cell[OWNER] is not None:
            context = cell[CONTEXT] = RetryContext(cell[OWNER], cell[OUTER], cell[PLAN])
            context.attempt = 1
        if context is not None:
            context._shared = True
            return context
        cell = cell[OUTER]
    return None


NO_TEXT = "<no text: str() failed>"

# Of a failed attempt: its number, and when it started and ended (monotonic).
Stamp = tuple[int, float | None, float]
# A failure that another one followed: its class and text.
Past = tuple[Stamp, type[BaseException], str]

NO_STAMP: Stamp = (0, None, 0.0)
KEPT_STAMP: Stamp = (-1, None, 0.0)  # the last failure's record is among the kept ones
NO_PAST: list[Past] = []


def type_name(failure: BaseException | type[BaseException]) -> str:
    """The qualified name of an exception's class; a builtin's without its module."""
    if isinstance(failure, RecordedFailure):
        return failure.type_name
    kind = failure if isinstance(failure, type) else type(failure)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def message_of(exception: BaseException) -> str:
    """The exception's text, whatever its ``__str__`` does."""
    if isinstance(exception, RecordedFailure):
        return exception.message
    try:
        return str(exception)
    except Exception:
        return NO_TEXT


def recorded(exception: BaseException, depth: int = 8) -> RecordedFailure:
    """The exception as text; its causes down to *depth*."""
    if isinstance(exception, RecordedFailure):
        return exception
    cause = exception.__cause__
    return RecordedFailure(
        type_name(exception),
        message_of(exception),
        recorded(cause, depth - 1) if cause is not None and depth else None,
    )


@frozen
class AttemptRecord:
    """One failed attempt, as text and numbers.

    :param number: which attempt it was, from 1.
    :param started: when it began, seconds since the epoch; None where nobody measured.
    :param ended: when it failed, seconds since the epoch.
    :param type_name: qualified name of the exception's class.
    :param message: the exception's text.
    :param traceback: the traceback's text, where a context cache keeps the record; else empty.
    :param host: the machine, where a cache keeps the record.
    :param process: the process id, likewise.
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
        """How long the attempt took, in seconds; None where its start is not known."""
        if self.started is None or self.ended is None:
            return None
        return self.ended - self.started


class Hold:
    """What a stateful execution holds: its state, cache (None: untracked), claim on the key."""

    __slots__ = ("cache", "claim", "completed", "scoped", "state")

    def __init__(self, state: RetryState, cache: Any, scoped: str, claim: Claim | None) -> None:
        self.state = state
        self.cache = cache
        self.scoped = scoped
        self.claim = claim
        self.completed = False


class RetryContext:
    """What is known of one execution; the callback, the listeners and the recovery get it.

    ``attempt``
        the attempt under way, from 1; 0 in ``open``; in ``on_error`` and ``on_backoff`` the one
        that failed.
    ``retry_count``
        failures so far.
    ``last_exception``
        the last failure: the exception while the execution runs, a ``RecordedFailure`` afterwards.
    ``history``
        records of the failed attempts: the first three and the last thirteen.
    ``attributes``
        a mutable mapping that lives across attempts; in a stateful retry also across executions,
        and then of JSON values.
    ``max_attempts``, ``is_last_attempt``
        None where nobody knows.

    Source: ``org.springframework.retry.RetryContext``.
    """

    # What nearly every failing call touches lies in slots, the rest in class-level defaults until
    # it differs: the cheapest mixture that was measured.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_hold",
        "_last",
        "_last_stamp",
        "_opened",
        "_outer",
        "_past",
        "_plan",
        "_same",
        "_shared",
        "_started",
        "attempt",
        "closed",
        "exhausted",
        "gave_up",
        "name",
        "retry_count",
    )

    recovered: bool = False
    no_recovery: bool = False

    _attributes: dict[str, Any] | None = None
    _kept: tuple[AttemptRecord, ...] = ()
    _ended: float | None = None
    _max_attempts: int | None = None
    _recovery: Callable[[RetryContext], Any] | None = None  # of this call
    _policy: RetryPolicy | None = None  # with its run-time numbers read
    _verdict: bool = True
    _policy_state: Any = None
    _backoff_state: Any = None
    _backoff_started: bool = False
    _not_before: float | None = None

    def __init__(self, owner: Any, outer: Cell | None, plan: Plan) -> None:
        self._plan = plan
        self._outer = outer
        self.name: str | None = owner.label
        self.attempt = 0
        self.retry_count = 0
        self.gave_up = self.exhausted = self.closed = False
        self._opened = False  # past the listeners' open
        self._hold: Hold | None = None  # of a stateful execution
        self._shared = False  # somebody looks at this context
        self._started: float | None = None
        self._last: BaseException | None = None
        self._last_stamp: Stamp = NO_STAMP
        self._past: list[Past] = NO_PAST
        self._same = 0  # earlier failures in a row that were the very same object

    @property
    def parent(self) -> RetryContext | None:
        """The context of the execution around this one, or None."""
        return context_of(self._outer)

    @property
    def last_exception(self) -> BaseException | None:
        """The last failure, None before the first."""
        return self._last

    @property
    def attributes(self) -> MutableMapping[str, Any]:
        """Your own values; they live across attempts, and across executions when stateful."""
        if self._attributes is None:
            self._attributes = {}
        return self._attributes

    @property
    def history(self) -> tuple[AttemptRecord, ...]:
        """The failed attempts, oldest first: the first three, then the last thirteen."""
        if self._last is None or self._last_stamp is KEPT_STAMP:
            return self._kept
        return bounded(self._kept + self._records())

    @property
    def max_attempts(self) -> int | None:
        """What the policy declares, from the first attempt on; None: unknown, or not yet due."""
        if self._max_attempts is None and (self.attempt or self._opened):
            return (self._policy or self._plan.policy).max_attempts
        return self._max_attempts

    @max_attempts.setter
    def max_attempts(self, number: int | None) -> None:
        self._max_attempts = number

    @property
    def is_last_attempt(self) -> bool | None:
        """True or False where the policy bounds the attempts, None where nobody knows."""
        if self.gave_up:
            return True
        limit = (self._policy or self._plan.policy).attempt_limit
        return None if limit is None else self.attempt >= limit

    @property
    def keeps_context(self) -> bool:
        """Whether what is known outlives success and exhaustion, as a circuit breaker's does."""
        return self._plan.keeps_context

    @property
    def elapsed(self) -> float:
        """Seconds since the start where somebody needs it, else since the first failure."""
        if self._started is None:
            return 0.0
        end = self._plan.monotonic() if self._ended is None else self._ended
        return end - self._started

    def give_up(self) -> None:
        """Make no attempt after this one (Spring's ``setExhaustedOnly``)."""
        self.gave_up = True

    @property
    def key(self) -> Any:
        """The key of a stateful execution; None: stateless, or untracked."""
        hold = self._hold
        return None if hold is None or hold.cache is None else hold.state.key

    @property
    def fence(self) -> int | None:
        """A number that only grows per key, for the caller's own writes; None where none is."""
        hold = self._hold
        return None if hold is None or hold.claim is None else hold.claim.fence

    def still_mine(self) -> bool:
        """Whether this execution still holds its key: advice, true at the moment of asking."""
        hold = self._held("still_mine()")
        mine: bool = hold.cache.holds(hold.claim)
        return mine

    def complete_in(self, connection: Any) -> None:
        """Let the attempt's end commit together with the caller's own work.

        :param connection: an open transaction on the database of the context cache.
        """
        hold = self._held("complete_in()")
        hold.cache.succeed(hold.claim, connection=connection, remember=hold.state.remember)
        hold.completed = True

    def _held(self, wanted: str) -> Hold:
        hold = self._hold
        if hold is None or hold.claim is None:
            raise MisuseError(f"{wanted} needs a stateful execution with a key")
        return hold

    def __repr__(self) -> str:
        return (
            f"<RetryContext name={self.name!r} key={self.key!r} attempt={self.attempt} "
            f"retry_count={self.retry_count} last_exception={self._last!r}>"
        )

    # -- what the engine writes ------------------------------------------------------------------

    def _fail(self, exception: BaseException, started: float | None, now: float) -> None:
        """Count a failure: the one before becomes text, so that only the last is kept alive."""
        previous = self._last
        stamp = self._last_stamp
        if previous is not None and stamp is not KEPT_STAMP:
            try:
                text = str(previous)
            except Exception:
                text = NO_TEXT
            past = (stamp, type(previous), text)
            if self._past is NO_PAST:
                self._past = [past]
            else:
                self._past.append(past)
                if len(self._past) > HISTORY_FIRST + HISTORY_LAST - 1:
                    del self._past[HISTORY_FIRST]
        self._same = self._same + 1 if previous is exception else 0
        if self._started is None:
            self._started = now
        self._last = exception
        self._last_stamp = (self.attempt, started, now)
        self.retry_count += 1

    def _records(self) -> tuple[AttemptRecord, ...]:
        """Records of the failures of this execution that are not among the kept ones."""
        clock = self._plan.clock
        offset = clock.time() - clock.monotonic()
        last = self._last
        assert last is not None
        texts = [(stamp, type_name(kind), text) for stamp, kind, text in self._past]
        texts.append((self._last_stamp, type_name(last), message_of(last)))
        return tuple(
            AttemptRecord(
                number, None if started is None else started + offset, ended + offset, name, text
            )
            for (number, started, ended), name, text in texts
        )

    def _keep(self, records: tuple[AttemptRecord, ...]) -> None:
        """The failures so far are at rest as text."""
        self._kept = bounded(self._kept + records)
        self._past = NO_PAST
        self._last_stamp = KEPT_STAMP

    def _finish(self) -> None:
        """Let go of every live exception; a context that somebody holds keeps the text."""
        if self._shared and self._started is not None:
            self._ended = self._plan.monotonic()
        last = self._last
        if last is None:
            return
        if self._shared:
            if self._last_stamp is not KEPT_STAMP:
                self._keep(self._records())
            self._last = recorded(last)
        else:
            self._last = None
            self._past = NO_PAST


def bounded(history: tuple[AttemptRecord, ...]) -> tuple[AttemptRecord, ...]:
    """The first three and the last thirteen."""
    if len(history) <= HISTORY_FIRST + HISTORY_LAST:
        return history
    return history[:HISTORY_FIRST] + history[-HISTORY_LAST:]


@frozen
class Outcome(Generic[T]):
    """How a call ended, without raising.

    >>> from retrytemplate import RetryTemplate
    >>> outcome = RetryTemplate().outcome(int, "17")
    >>> outcome.ok, outcome.value, outcome.attempts
    (True, 17, 1)
    >>> outcome = RetryTemplate().outcome(int, "seventeen")
    >>> outcome.ok, type(outcome.exception).__name__, outcome.attempts
    (False, 'ValueError', 3)
    """

    value: T | None
    exception: BaseException | None
    attempts: int
    history: tuple[AttemptRecord, ...]
    elapsed: float

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.exception is None

    def unwrap(self) -> T:
        """Return the value, or raise the exception."""
        if self.exception is not None:
            try:
                raise self.exception
            finally:
                del self  # the exception's traceback holds this frame
        return self.value  # type: ignore[return-value]  # ok: there is a value


KEY_TYPES = "a str, int, bytes, or a tuple of those"


def encode_key(key: Any) -> str:
    """A key as text, with its type: ``1``, ``"1"`` and ``True`` differ.

    :raises InconsistentKeyError: for anything that has no stable encoding.

    >>> encode_key("order-17"), encode_key(17), encode_key(("eu", 17))
    ('s:order-17', 'i:17', 't:s:eu,i:17')
    """
    if isinstance(key, str):
        return "s:" + key
    if isinstance(key, bool):
        return f"b:{int(key)}"
    if isinstance(key, int):
        try:
            return f"i:{int(key)}"
        except ValueError as exc:
            raise InconsistentKeyError("the key of a stateful retry is too large an int") from exc
    if isinstance(key, bytes):
        return "x:" + key.hex()
    if isinstance(key, tuple):
        return "t:" + ",".join(_escaped(encode_key(part)) for part in key)
    raise InconsistentKeyError(f"the key of a stateful retry must be {KEY_TYPES}, got {key!r}")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace(",", "%2C")


def _rollback_function(value: Any) -> Callable[[BaseException], bool]:
    """A classifier, a function or a type (or tuple of types) as a function of the exception."""
    classify = getattr(value, "classify", None)
    if classify is not None:
        return classify  # type: ignore[no-any-return]
    kinds = value if isinstance(value, tuple) else (value,)
    if all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        return lambda exception: isinstance(exception, kinds)
    if callable(value) and not isinstance(value, type) and not iscoroutinefunction(value):
        return value  # type: ignore[no-any-return]
    raise TypeError(
        "rollback_for must be an ExceptionClassifier, an exception type (or tuple of them), "
        f"a function of the exception, or None, got {value!r}"
    )


@frozen(init=False, eq=False, repr=False, slots=False)
class RetryState(Value):
    """What makes an execution stateful: the key under which its context is kept.

    :param key: names the work that may come again: a str, int, bytes or tuple of those.
    :param force_refresh: forget what is kept under the key and begin afresh.
    :param rollback_for: which failures are rethrown at once (a classifier, an exception type, a
        function); the others are retried in place.  None: every failure is rethrown.
    :param defer_backoff: None sleeps before the failure is rethrown; "wait" rethrows at once, and
        an early redelivery waits out the rest; "raise" rethrows at once, and an early redelivery
        gets ``RetryLater``.
    :param remember: seconds for which a success leaves a mark: a redelivery then is an
        ``AlreadyCompletedError``.

    Source: ``org.springframework.retry.support.DefaultRetryState``.
    """

    key: Any
    force_refresh: bool = False
    rollback_for: Any = None
    defer_backoff: Literal["wait", "raise"] | None = None
    remember: float | None = None
    tracked: bool = field(default=True, kw_only=True, init=False)
    rolls_back: Callable[[BaseException], bool] | None = field(default=None, init=False, eq=False)

    # Written out, since one is made for nearly every delivery: attrs' own takes four times as long.
    def __init__(
        self,
        key: Any,
        force_refresh: bool = False,
        rollback_for: Any = None,
        defer_backoff: Literal["wait", "raise"] | None = None,
        remember: float | timedelta | None = None,
        *,
        tracked: bool = True,
    ) -> None:
        if type(key) is not str and tracked:
            encode_key(key)
        if not isinstance(force_refresh, bool):
            raise TypeError(f"force_refresh must be True or False, got {force_refresh!r}")
        if defer_backoff is not None and defer_backoff not in ("wait", "raise"):
            raise ValueError(
                f"defer_backoff must be None, 'wait' or 'raise', got {defer_backoff!r}"
            )
        if remember is not None:
            remember = duration(remember)
            check_at_least("remember", remember, 0, allowed="a number of seconds >= 0, or None")
        fields = self.__dict__
        fields["key"] = key
        fields["force_refresh"] = force_refresh
        fields["rollback_for"] = rollback_for
        fields["defer_backoff"] = defer_backoff
        fields["remember"] = remember
        fields["tracked"] = tracked
        fields["rolls_back"] = None if rollback_for is None else _rollback_function(rollback_for)

    @classmethod
    def untracked(cls, force_refresh: bool = False, rollback_for: Any = None) -> RetryState:
        """A state that remembers nothing: each delivery is a first one."""
        return cls(None, force_refresh, rollback_for, tracked=False)
