"""Deadlines: a time budget that nested calls inherit, and the cancellation at its end."""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from math import inf
from typing import TYPE_CHECKING, Any

from retrytemplate._engine import frames as _frames
from retrytemplate._engine.frames import CURRENT, DEADLINE, enclosing_frame, exit_frame
from retrytemplate._internal.cancel_scope import cancel_after
from retrytemplate._internal.formatting import subject
from retrytemplate._internal.validation import check_limit, check_text_or_none, to_seconds
from retrytemplate.clock import fast_monotonic, given_or_system
from retrytemplate.errors import AttemptTimeoutError, DeadlineExceededError, MisuseError
from retrytemplate.guards import excluding

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from retrytemplate._engine.context import RetryContext
    from retrytemplate._internal.cancel_scope import CancelScope
    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock

__all__ = [
    "MINIMUM",
    "Deadline",
    "inline_limit",
    "log_failed_hook",
    "log_overrun",
    "remaining_time",
    "warn_of_overrun",
    "with_inherited_guards",
]

MINIMUM = 0.05
"""Seconds: with less left a client makes no call, since it would be over when it has begun."""


class Deadline:
    """The whole operation's budget, from entry; calls inside inherit it.

    :param seconds: the budget.
    :param kind: what limit it is, for the errors: ``"request"``, ``"shutdown"``, any name.
    :param floor: what an attempt needs, at least: with less left none is begun, and no wait that
        would leave less.
    :param clock: measures it.
    :raises ValueError: for a budget or a floor below 0.

    Nested ones only shrink it.  A template inside rejects an attempt or a wait that does not fit,
    and cancels an asynchronous attempt at the limit; ``async with`` also cancels the block.  Either
    way the error is ``DeadlineExceededError``.  A synchronous attempt runs to its end, and its
    value is used, however late it is.

    >>> with Deadline(2.0) as deadline:
    ...     0.0 < deadline.remaining() <= 2.0
    True
    """

    # Of one that has not begun.
    is_shortened = False  # by the one around it, which is the limit in force then
    _until: float | None = None
    _outer: Deadline | None = None
    inherited_guards: tuple[Any, ...] = ()  # checked before every attempt inside
    guards_only = False  # it is there for the guards alone
    _frame: Any = None
    _token: Any = None
    cancel_scope: CancelScope | None = None  # of the task that entered it
    retries: int = 0  # made since it was entered
    _original: Deadline | None = None  # of a copy

    def __init__(
        self,
        seconds: Seconds,
        *,
        kind: str | None = None,
        floor: Seconds = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.seconds: float = to_seconds(seconds)
        check_limit("seconds", self.seconds)
        self.floor: float = to_seconds(floor)
        check_limit("floor", self.floor)
        check_text_or_none("kind", kind)
        self.kind = kind
        self.limit = self.granted = self.seconds  # of the deadline in force, and its remaining time
        self._monotonic_source = fast_monotonic(given_or_system(clock))

    @classmethod
    def after(
        cls,
        seconds: Seconds,
        *,
        kind: str | None = None,
        floor: Seconds = 0.0,
        clock: Clock | None = None,
    ) -> Deadline:
        """Create a deadline that begins now, to be passed as an argument."""
        deadline = cls(seconds, kind=kind, floor=floor, clock=clock)
        deadline._start(_current_deadline())
        return deadline

    @classmethod
    def _begun(cls, seconds: float, monotonic_source: Any) -> Deadline:
        """``after`` without checks, for the limit of an attempt: each attempt makes one."""
        deadline = cls.__new__(cls)
        deadline.seconds = deadline.limit = seconds
        deadline.floor, deadline.kind = 0.0, None
        deadline._monotonic_source = monotonic_source
        deadline._start(_current_deadline())
        return deadline

    def _unstarted_copy(self) -> Deadline:
        """A copy with the same settings that has not begun."""
        made = Deadline.__new__(Deadline)
        made.seconds = made.limit = made.granted = self.seconds
        made.floor, made.kind, made._monotonic_source = (
            self.floor,
            self.kind,
            self._monotonic_source,
        )
        return made

    @classmethod
    def current(cls) -> Deadline | None:
        """The deadline in force here, or None."""
        deadline = _current_deadline()
        return None if deadline is None or deadline.guards_only else deadline

    def remaining(self) -> float:
        """Seconds left, never negative; the whole budget before entry."""
        if self._until is None:
            return self.seconds
        left: float = self._until - self._monotonic_source.now()
        return left if left > 0.0 else 0.0

    def expired(self) -> bool:
        """Whether the time is over."""
        return self.remaining() <= 0.0

    def elapsed(self) -> float:
        """Seconds since entry."""
        return (
            0.0
            if self._until is None
            else self._monotonic_source.now() - self._until + self.granted
        )

    def fits(self, delay: Seconds = 0.0) -> bool:
        """Whether a step that begins after *delay* seconds has at least the floor left.

        >>> deadline = Deadline(2.0, floor=0.5)
        >>> deadline.fits(1.5), deadline.fits(1.6)
        (True, False)
        """
        return self.remaining_after(delay) > 0

    def remaining_after(self, delay: Seconds = 0.0) -> float:
        """The remaining seconds after *delay* seconds; 0 if less than the floor.

        >>> deadline = Deadline(2.0, floor=0.5)
        >>> deadline.remaining_after(1.0), deadline.remaining_after(1.6)
        (1.0, 0.0)
        """
        seconds: float = delay if type(delay) is float else to_seconds(delay)
        until, outer = self._until, self._outer
        left: float = (
            self.seconds if until is None else until - self._monotonic_source.now()
        ) - seconds
        if (
            left > 0.0
            and left >= self.floor
            and (outer is None or outer.remaining_after(seconds) > 0.0)
        ):
            return left
        return 0.0

    def count_retry(self) -> None:
        """Count a retry in this deadline and the ones around it."""
        deadline: Deadline | None = self
        while deadline is not None:
            (deadline._original or deadline).retries += 1
            deadline = deadline._outer

    def ensure(self, minimum: Seconds = MINIMUM) -> None:
        """Raise if less than this time is left.

        :raises DeadlineExceededError: less is left.

        >>> Deadline(2.0).ensure(minimum=0.5)
        """
        least = to_seconds(minimum)
        check_limit("minimum", least)
        left = self.remaining()
        if left < least or left <= 0:
            raise self.error(f"{left:.3g} seconds are left, and {least:g} are needed")

    def error(
        self, message: str, *, outcome_unknown: bool = False
    ) -> DeadlineExceededError | AttemptTimeoutError:
        """The error of the limit in force: of an attempt's, where that is the nearest."""
        if self.is_shortened and self._outer is not None:
            return self._outer.error(message, outcome_unknown=outcome_unknown)
        return self._error(message, outcome_unknown)

    def _error(
        self, message: str, outcome_unknown: bool
    ) -> DeadlineExceededError | AttemptTimeoutError:
        return DeadlineExceededError(
            message, kind=self.kind, limit=self.limit, outcome_unknown=outcome_unknown
        )

    def _start(self, outer: Deadline | None) -> float:
        """Begin, inside another one or not; the seconds that there are."""
        if self._until is not None:
            raise MisuseError("a Deadline must be entered only once; create one for each operation")
        now, left = self._monotonic_source.now(), self.seconds
        if outer is not None:
            self.inherited_guards = outer.inherited_guards
        if outer is not None and not outer.guards_only:
            self._outer = outer  # its floor holds, too, and its error where it is the nearer one
            if outer.remaining() <= left:
                left, self.kind, self.limit = outer.remaining(), outer.kind, outer.limit
                self.is_shortened = True
        self.granted, self._until = left, now + left
        return left

    def _enter(self) -> float:
        outer = CURRENT.get()
        if outer is not None:
            outer = enclosing_frame()
        left = self._start(None if outer is None else outer[DEADLINE])
        _frames.any_deadline_entered = True
        self._frame = frame = [None, None, self, outer, None]
        self._token = CURRENT.set(frame)
        return left

    def __enter__(self) -> Self:
        self._enter()
        return self

    def _leave(self) -> None:
        exit_frame(self._frame, self._token)
        self._frame = self._token = None  # the frame holds this deadline: that would be a cycle

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()

    async def __aenter__(self) -> Self:
        self.cancel_scope = cancel_scope = cancel_after(self._enter())
        try:
            cancel_scope.__enter__()
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        cancel_scope = self.cancel_scope
        assert cancel_scope is not None
        try:
            cancel_scope.__exit__(
                kind, exception, traceback
            )  # swallows nothing, unless it has fired
        finally:
            self._leave()
        if cancel_scope.expired:
            raise self.error(
                f"the deadline of {self.limit:g} seconds is over", outcome_unknown=True
            )

    def __repr__(self) -> str:
        return f"<Deadline {self.remaining():.3f} of {self.seconds:g} seconds left>"


def _current_deadline() -> Deadline | None:
    frame = CURRENT.get()
    return None if frame is None else frame[DEADLINE]


class _GuardScope(Deadline):
    """Placeholder of a deadline, where only guards are inherited."""

    guards_only = True

    def __init__(self) -> None:
        super().__init__(inf)


def with_inherited_guards(deadline: Deadline | None, guards: tuple[Any, ...]) -> Deadline | None:
    """The deadline in force in a template with these inherited guards."""
    if not guards:
        return deadline
    made = _GuardScope() if deadline is None else copy(deadline)
    made._frame = made._token = None  # of the block that entered the other one
    made._original = None if deadline is None else deadline._original or deadline
    made.inherited_guards = (*made.inherited_guards, *excluding(guards, made.inherited_guards))
    return made


def inline_limit(deadline: Deadline, plan: Any, *, of_this_task: bool) -> float:
    """The seconds that a deadline leaves to an inline first attempt; 0: the engine has to make it.

    :param of_this_task: whether the deadline has to be one that cancels the current task.
    """
    if deadline.inherited_guards or plan.reports_overruns:
        return 0.0
    if of_this_task and (
        deadline.cancel_scope is None or not deadline.cancel_scope.is_current_task()
    ):
        return 0.0
    return deadline.remaining_after()


def remaining_time(deadline: Deadline | None, minimum: Any) -> float:
    """Seconds left of the given deadline, or of the one in force; infinite without a deadline."""
    if deadline is not None and not isinstance(deadline, Deadline):
        raise TypeError(f"deadline must be a Deadline or None, got {deadline!r}")
    least = to_seconds(minimum)
    check_limit("minimum", least)
    nearest = Deadline.current() if deadline is None else deadline
    if nearest is None:
        return inf
    left = nearest.remaining()  # before it is looked at: to some clients 0 would be no limit
    nearest.ensure(least)
    return left


def warn_of_overrun(context: RetryContext, limit: float, elapsed: float) -> None:
    """Log an overrun of a template's attempt; used where no listener logs overruns."""
    log_overrun(f"{subject(context)}: attempt {context.attempt}", limit, elapsed)


def log_overrun(what: str, limit: float, elapsed: float) -> None:
    """Log a call that returned after its limit."""
    text = "%s returned after %.3g s, over its limit of %.3g s; its value is used"
    _log().warning(text, what, elapsed, limit)


def log_failed_hook(hook: Any, error: BaseException) -> None:
    """Log the exception of a hook that cannot change the result."""
    text = "the hook %s raised an exception, which is ignored"
    with suppress(Exception):  # a handler of the log raises, or the stack is full
        name = getattr(hook, "__qualname__", None) or repr(hook)
        _log().error(text, name, exc_info=error)


def _log() -> Any:
    import logging

    return logging.getLogger("retrytemplate")
