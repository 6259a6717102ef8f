"""The timeout: a limit that each call has anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from retrytemplate._checks import checked_by, duration, is_async, is_awaitable, span, text
from retrytemplate.clock import SystemClock, check_clock
from retrytemplate.control.strategy import Wraps, refuse_awaitable
from retrytemplate.deadline import Deadline
from retrytemplate.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Timeout"]

RAISE: Final = object()


@frozen(eq=False)
class Timeout(Wraps):
    """Opens a ``Deadline`` around each call: one limit for all that happens in it.

    :param seconds: the limit; a number or a ``timedelta``.
    :param kind: what limit it is; it is on the error, as ``kind``, so that a request that took too
        long can be told from a database that did.
    :param on_timeout: the answer when it is over, or a function of no argument that gives it; left
        out: the error is raised.
    :param clock: measures.
    :raises ValueError: for a limit that is not above 0.
    :raises TypeError: for what is no time, or no name.

    Asynchronous calls are cut.  Synchronous code cannot be cut from outside: what it calls inherits
    the deadline, and a call that took too long is a ``DeadlineExceededError`` when it ends.  Either
    way ``outcome_unknown`` says that something was under way.

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
    clock: Any = field(
        factory=SystemClock, kw_only=True, validator=checked_by(check_clock), repr=False
    )

    def __attrs_post_init__(self) -> None:
        if is_async(self.on_timeout):
            raise TypeError(f"on_timeout must not have to be awaited, got {self.on_timeout!r}")

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the limit in force, and look at the clock when it ends.

        :raises DeadlineExceededError: it took too long.
        """
        deadline = self._deadline()
        try:
            with deadline:
                value = fn(*args, **kwargs)
                refuse_awaitable(value, fn)
            if deadline.expired():
                raise deadline.error(
                    f"the call took longer than {self.seconds:g} seconds", outcome_unknown=True
                )
        except DeadlineExceededError as error:
            return self._instead(deadline, error)
        return value

    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, await it, and cut it at the limit.

        :raises DeadlineExceededError: it took too long.
        """
        deadline = self._deadline()
        try:
            async with deadline:
                value = fn(*args, **kwargs)
                return await value if is_awaitable(value) else value
        except DeadlineExceededError as error:
            return self._instead(deadline, error)

    def _deadline(self) -> Deadline:
        return Deadline(self.seconds, kind=self.kind, clock=self.clock)

    def _instead(self, deadline: Deadline, error: DeadlineExceededError) -> Any:
        """The other answer, where it was this limit, not one around it or one inside."""
        if self.on_timeout is RAISE or deadline.is_shortened or not deadline.expired():
            raise error
        return self.on_timeout() if callable(self.on_timeout) else self.on_timeout
