"""The timeout: a limit that each call has anew."""

from __future__ import annotations

from inspect import unwrap
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, overload

from attrs import field, frozen

from retrytemplate._checks import (
    checked_by,
    close_unawaited,
    duration,
    is_async,
    is_awaitable,
    limit,
    span,
    text,
)
from retrytemplate.clock import SystemClock, check_clock
from retrytemplate.control.client_errors import timeout_kind
from retrytemplate.control.events import ControlEvent, check_listeners, listeners_of, tell
from retrytemplate.control.strategy import Wraps, refuse_awaitable
from retrytemplate.deadline import Deadline
from retrytemplate.errors import DeadlineExceededError, MisuseError
from retrytemplate.history import message_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

__all__ = ["TimedOut", "Timeout", "tell_of"]

RAISE: Final = object()


@frozen(kw_only=True)
class TimedOut(ControlEvent):
    """A call took too long.

    :param operation: the function's name.
    :param kind: which limit it was.
    :param limit: the seconds that it had.
    :param elapsed: the seconds until its caller heard of it: what was called cleaned up meanwhile.
    :param error: what it came to; its cause is that of the client that was cut, if one was.
    """

    operation: str
    kind: str | None
    limit: float
    elapsed: float
    error: DeadlineExceededError


@frozen(eq=False)
class Timeout(Wraps):
    """Opens a ``Deadline`` around each call: one limit for all that happens in it.

    :param seconds: the limit; a number or a ``timedelta``.
    :param kind: what limit it is; it is on the error, as ``kind``, so that a request that took too
        long can be told from a database that did.
    :param on_timeout: the answer when it is over, or a function of no argument that gives it, and
        that nobody has to await; left out: the error is raised.
    :param floor: what an attempt inside needs, at least: with less left a template begins none.
    :param name: in events.
    :param listeners: told of each call that took too long, with a ``TimedOut``.
    :param clock: measures.
    :raises ValueError: for a limit that is not above 0, or a floor below it.
    :raises TypeError: for what is no time, or no name.

    Asynchronous calls are cut.  Synchronous code cannot be cut from outside: what it calls inherits
    the deadline, and a call that took too long is a ``DeadlineExceededError`` when it ends.  Either
    way ``outcome_unknown`` says that something was under way.  A client's own timeout that comes
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

    seconds: float = field(converter=duration, validator=checked_by(span))
    kind: str = field(default="request", kw_only=True, validator=checked_by(text))
    on_timeout: Any = field(default=RAISE, kw_only=True, repr=False)
    floor: float = field(default=0.0, kw_only=True, converter=duration, validator=checked_by(limit))
    name: str = field(default="timeout", kw_only=True, validator=checked_by(text))
    listeners: tuple[Any, ...] = field(
        default=(),
        kw_only=True,
        converter=listeners_of,
        validator=checked_by(check_listeners),
        repr=False,
    )
    clock: Any = field(
        factory=SystemClock, kw_only=True, validator=checked_by(check_clock), repr=False
    )

    _deadline: Deadline = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if is_async(self.on_timeout):
            raise TypeError(f"on_timeout must not have to be awaited, got {self.on_timeout!r}")
        deadline = Deadline(self.seconds, kind=self.kind, floor=self.floor, clock=self.clock)
        object.__setattr__(self, "_deadline", deadline)

    # Calls.  ``on_timeout`` may give anything: hence ``T | Any``.

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | Any:
        """Call the function with the limit in force, and look at the clock when it ends.

        :raises DeadlineExceededError: it took too long.
        """
        deadline = self._deadline.anew()
        try:
            with deadline:
                try:
                    value = fn(*args, **kwargs)
                    refuse_awaitable(value, fn)
                except Exception as exc:
                    if _means(exc, deadline):
                        raise _error(exc, deadline) from exc
                    raise
                return _in_time(value, deadline)
        except DeadlineExceededError as error:
            self._tell(fn, deadline, error)
            if self._is_not_answered(deadline):
                raise
            return self._answer()

    @overload
    async def call_async(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T | Any: ...

    @overload
    async def call_async(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T | Any: ...

    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, await it, and cut it at the limit.

        :raises DeadlineExceededError: it took too long.
        """
        return await self._coroutine(fn)(*args, **kwargs)

    def _coroutine(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            deadline = self._deadline.anew()
            try:
                async with deadline:
                    try:
                        value = fn(*args, **kwargs)
                        if type(value) is CoroutineType or is_awaitable(value):
                            return await value
                    except Exception as exc:
                        if _means(exc, deadline):
                            raise _error(exc, deadline) from exc
                        raise
                    return _in_time(value, deadline)
            except DeadlineExceededError as error:
                self._tell(fn, deadline, error)
                if self._is_not_answered(deadline):
                    raise
                return self._answer()

        return wrapped

    def _tell(self, fn: Any, deadline: Deadline, error: DeadlineExceededError) -> None:
        """Tell of it where it was this limit, not another one inside."""
        if deadline.expired() or (error.kind, error.limit) == (deadline.kind, deadline.limit):
            tell_of(error, self, fn, deadline)

    def _is_not_answered(self, deadline: Deadline) -> bool:
        return self.on_timeout is RAISE or deadline.is_shortened or not deadline.expired()

    def _answer(self) -> Any:
        if not callable(self.on_timeout):
            return self.on_timeout
        value = self.on_timeout()
        if is_awaitable(value):
            close_unawaited(value)
            raise MisuseError(f"on_timeout must not have to be awaited, got {self.on_timeout!r}")
        return value


def tell_of(error: DeadlineExceededError, limits: Any, fn: Any, deadline: Deadline) -> None:
    """Tell the listeners of these limits what a call of the function came to."""
    called = unwrap(fn, stop=lambda each: hasattr(each, "__qualname__"))
    event = TimedOut(
        name=limits.name,
        operation=getattr(called, "__qualname__", type(called).__qualname__),
        kind=error.kind,
        limit=deadline.limit,
        elapsed=deadline.elapsed(),
        error=error,
    )
    tell(limits.listeners, [event])


def _in_time(value: Any, deadline: Deadline) -> Any:
    """What a function gave that nobody could cut, unless it is too late."""
    if deadline.expired():
        raise deadline.error(
            f"the call took longer than {deadline.granted:.3g} seconds", outcome_unknown=True
        )
    return value


def _means(exc: Exception, deadline: Deadline) -> bool:
    """Whether a client's timeout comes because the deadline is over."""
    if isinstance(exc, DeadlineExceededError) or not deadline.expired():
        return False
    return timeout_kind(exc) is not None


def _error(exc: Exception, deadline: Deadline) -> Exception:
    message = f"the deadline of {deadline.limit:g} seconds is over: {message_of(exc)}"
    return deadline.error(message, outcome_unknown=True)
