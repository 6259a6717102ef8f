"""The timeout: a time limit of each call."""

from __future__ import annotations

from inspect import unwrap
from math import inf
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import field, frozen

from retrytemplate._engine.attempt_timeout import is_discarded
from retrytemplate._engine.deadline import Deadline, log_overrun
from retrytemplate._internal.awaitables import close_unawaited, is_async, is_awaitable
from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.formatting import format_limit, operation_of
from retrytemplate._internal.validation import (
    check_late_result,
    check_limit,
    check_span,
    check_text,
    checked_by,
    to_seconds,
)
from retrytemplate.control._fields import Observed
from retrytemplate.control._strategy import (
    StrategyBase,
    apply,
    apply_async,
    may_substitute,
    reject_awaitable,
)
from retrytemplate.control.classification.timeouts import timeout_kind
from retrytemplate.control.events import ControlEvent, notify_listeners
from retrytemplate.errors import DeadlineExceededError, MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.control._strategy import P, T

RERAISE: Final = object()


@frozen(kw_only=True)
class TimedOut(ControlEvent):
    """A call exceeded its timeout.

    :param operation: the function's name.
    :param kind: which limit it was.
    :param limit: the seconds that it had.
    :param elapsed: the seconds until its caller got the error or the value; after a cancellation
        that includes the cleanup.
    :param abandoned: False: the call returned after the limit, and its value is used.  True: there
        is no value, because the call was cancelled, not begun, or its value discarded.
    :param error: why there is no value, with a client's own timeout as its cause; None where
        ``abandoned`` is False.
    :param retries: of templates inside the call; above 0, the retries may have caused the timeout.
    """

    operation: str
    kind: str | None
    limit: float
    elapsed: float
    abandoned: bool
    error: DeadlineExceededError | None
    retries: int = 0


@frozen(eq=False)
class Timeout(Observed, StrategyBase):
    """Opens a ``Deadline`` around each call: one limit for all that happens in it.

    :param seconds: the limit; a number or a ``timedelta``.
    :param kind: what limit it is; it is on the error, as ``kind``, so that a request that took too
        long can be distinguished from a database that did.
    :param on_timeout: the value of a call that was cancelled or abandoned at the limit, or a
        synchronous function without parameters that returns it; left out: the error is raised.
    :param floor: what an attempt inside needs, at least: with less left a template begins none.
    :param name: in events.
    :param listeners: receive a ``TimedOut`` for each call that took too long.
    :param on_late_result: how the value of a call is used that returned after the limit, because
        nothing could cancel it.  ``"return"``, the default: it is returned, and wins over
        ``on_timeout``; the overrun is logged as a warning and reported as a ``TimedOut`` with
        ``abandoned=False``.  ``"discard"``: ``DeadlineExceededError``, also with ``on_timeout``;
        for calls that may be repeated.
    :param clock: measures.
    :raises ValueError: ``seconds`` is not above 0, ``floor`` is below 0, or ``on_late_result`` is
        another text.

    Asynchronous calls are cancelled at the limit.  A synchronous call cannot be cancelled: it runs
    to its end, and its own calls inherit the deadline.  ``outcome_unknown`` of the error says that
    the call had begun.  A client's own timeout that comes
    when the time is over is this limit, too, and the cause of the error; one that comes earlier is
    the client's, and passes.

    >>> import asyncio
    >>> fast = Timeout(0.01, kind="partner read")
    >>> try:
    ...     asyncio.run(fast.call_async(asyncio.sleep, 60))
    ... except TimeoutError as error:
    ...     print(error, "-", error.kind, error.outcome_unknown)
    the deadline of 0.01 seconds is over - partner read True
    >>> asyncio.run(Timeout(0.01, on_timeout="no answer").call_async(asyncio.sleep, 60))
    'no answer'
    """

    seconds: float = field(converter=to_seconds, validator=checked_by(check_span))
    kind: str = field(default="request", kw_only=True, validator=checked_by(check_text))
    on_timeout: Any = field(default=RERAISE, kw_only=True, repr=False)
    floor: float = field(
        default=0.0, kw_only=True, converter=to_seconds, validator=checked_by(check_limit)
    )
    name: str = field(default="timeout", kw_only=True, validator=checked_by(check_text))
    on_late_result: Literal["return", "discard"] = field(
        default="return", kw_only=True, validator=checked_by(check_late_result), repr=False
    )

    _deadline: Deadline = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if is_async(self.on_timeout):
            raise TypeError(f"on_timeout must be synchronous, got {self.on_timeout!r}")
        deadline = Deadline(self.seconds, kind=self.kind, floor=self.floor, clock=self.clock)
        object.__setattr__(self, "_deadline", deadline)

    def describe(self) -> str:
        """Its effect on a call, with its limit."""
        if self.seconds == inf:
            return "no limit"
        instead = "" if self.on_timeout is RERAISE else ", and on_timeout gives the value"
        late = ", and a late value is discarded" if self.on_late_result == "discard" else ""
        return (
            f"asynchronous calls are cancelled after {format_limit(self.seconds)}{instead}; "
            f"synchronous calls run to their end{late}"
        )

    def worst_case(self, inside: float, call: float, late: float) -> float:
        """The limit, or the longest call."""
        return min(self.seconds + late, inside)

    # Calls.  ``on_timeout`` may give anything: hence ``T | Any``.

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | Any:
        """Call the function with the limit in force.

        :raises DeadlineExceededError: something in the call kept to the limit and gave up, or its
            late value is discarded.
        """
        deadline, discards = self._deadline._unstarted_copy(), False
        try:
            with deadline:
                try:
                    value = fn(*args, **kwargs)
                    reject_awaitable(value, fn)
                except Exception as exc:
                    if _caused_by_deadline(exc, deadline):
                        raise _error(exc, deadline) from exc
                    raise
                elapsed = deadline.elapsed()
                discards = elapsed > deadline.granted and is_discarded(self, elapsed)
                if discards:
                    raise _late_error(deadline)
        except DeadlineExceededError as error:
            self._notify_timed_out(_operation(fn, *args), deadline, error)
            if discards or self._has_no_substitute(deadline):
                raise
            return self._substitute()
        if elapsed > deadline.granted:
            self._report_overrun(_operation(fn, *args), deadline, elapsed)
        return value

    @may_substitute
    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, await it, and cancel it at the limit.

        :raises DeadlineExceededError: it was cancelled, or its late value is discarded.
        """
        return await self._coroutine(fn)(*args, **kwargs)

    def _coroutine(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            deadline, discards = self._deadline._unstarted_copy(), False
            try:
                async with deadline:
                    try:
                        value = fn(*args, **kwargs)
                        if type(value) is CoroutineType or is_awaitable(value):
                            value = await value
                    except Exception as exc:
                        if _caused_by_deadline(exc, deadline):
                            raise _error(exc, deadline) from exc
                        raise
                    elapsed = deadline.elapsed()
                    discards = elapsed > deadline.granted and is_discarded(self, elapsed)
                    if discards:
                        raise _late_error(deadline)
            except DeadlineExceededError as error:
                self._notify_timed_out(_operation(fn, *args), deadline, error)
                if discards or self._has_no_substitute(deadline):
                    raise
                return self._substitute()
            if elapsed > deadline.granted:
                self._report_overrun(_operation(fn, *args), deadline, elapsed)
            return value

        return wrapped

    def _report_overrun(self, operation: str, deadline: Deadline, elapsed: float) -> None:
        log_overrun(f"{self.name}: {operation}", deadline.granted, elapsed)
        notify_timed_out(self, operation, deadline, elapsed)

    def _notify_timed_out(
        self, operation: str, deadline: Deadline, error: DeadlineExceededError
    ) -> None:
        """Report the error if it is of this limit, not of another one inside."""
        if deadline.expired() or (error.kind, error.limit) == (deadline.kind, deadline.limit):
            notify_timed_out(self, operation, deadline, deadline.elapsed(), error)

    def _has_no_substitute(self, deadline: Deadline) -> bool:
        return self.on_timeout is RERAISE or deadline.is_shortened or not deadline.expired()

    def _substitute(self) -> Any:
        if not callable(self.on_timeout):
            return self.on_timeout
        value = self.on_timeout()
        if is_awaitable(value):
            close_unawaited(value)
            raise MisuseError(f"on_timeout must be synchronous, got {self.on_timeout!r}")
        return value


def _late_error(deadline: Deadline) -> Exception:
    return deadline.error(
        f"the call took longer than {deadline.granted:.3g} seconds", outcome_unknown=True
    )


def notify_timed_out(
    limits: Any,
    operation: str,
    deadline: Deadline,
    elapsed: float,
    error: DeadlineExceededError | None = None,
) -> None:
    """Report a late call to the listeners of these limits; without an error, it has a value."""
    event = TimedOut(
        name=limits.name,
        operation=operation,
        kind=deadline.kind if error is None else error.kind,
        limit=deadline.granted,
        elapsed=elapsed,
        abandoned=error is not None,
        error=error,
        retries=deadline.retries,
    )
    notify_listeners(limits.listeners, [event])


def _operation(fn: Any, *args: Any) -> str:
    """The name of the function; a pipeline's own call is one of its first argument."""
    inner = unwrap(fn)
    return operation_of(args[0] if inner is apply or inner is apply_async else fn)


def _caused_by_deadline(exc: Exception, deadline: Deadline) -> bool:
    """Whether the deadline caused a client's timeout."""
    if isinstance(exc, DeadlineExceededError) or not deadline.expired():
        return False
    return timeout_kind(exc) is not None


def _error(exc: Exception, deadline: Deadline) -> Exception:
    message = f"the deadline of {deadline.limit:g} seconds is over: {summary(exc)}"
    return deadline.error(message, outcome_unknown=True)
