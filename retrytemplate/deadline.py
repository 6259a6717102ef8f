"""How long an operation may take: a budget that travels with the call, and the cut at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate import context as _context
from retrytemplate._checks import duration, limit, text_or_none
from retrytemplate.clock import given_or_system, in_trio
from retrytemplate.context import CURRENT, DEADLINE, entered, leave
from retrytemplate.errors import AttemptTimeoutError, DeadlineExceededError, MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from retrytemplate._checks import Seconds
    from retrytemplate.clock import Clock

__all__ = ["Deadline", "cut_after"]


class Deadline:
    """The whole operation's budget, from entry; what is called inside inherits it.

    :param seconds: the budget.
    :param kind: what limit it is, for the errors: ``"request"``, ``"shutdown"``, any name.
    :param floor: what an attempt needs, at least: with less left none is begun, and no wait that
        would leave less.
    :param clock: measures it.
    :raises ValueError: for a budget or a floor below 0.
    :raises TypeError: for what is no time, no name, or no clock.

    Nested ones only shrink it.  A template inside refuses an attempt or a wait that does not fit,
    and bounds each attempt by what is left.  ``with`` only tells; ``async with`` also cuts the
    block at the limit.  Either way the error is ``DeadlineExceededError``.

    >>> with Deadline(2.0) as deadline:
    ...     0.0 < deadline.remaining() <= 2.0
    True
    """

    def __init__(
        self,
        seconds: Seconds,
        *,
        kind: str | None = None,
        floor: Seconds = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.seconds: float = duration(seconds)
        limit("seconds", self.seconds)
        self.floor: float = duration(floor)
        limit("floor", self.floor)
        text_or_none("kind", kind)
        self.kind = kind
        self.is_shortened = False  # by the one around it, which is the limit in force then
        self.limit = self.seconds  # of whichever is in force
        self._clock = given_or_system(clock)
        self._until: float | None = None
        self._outer: Deadline | None = None
        self._cell: Any = None
        self._token: Any = None
        self._cut: Any = None

    @classmethod
    def after(
        cls,
        seconds: Seconds,
        *,
        kind: str | None = None,
        floor: Seconds = 0.0,
        clock: Clock | None = None,
    ) -> Deadline:
        """A deadline that runs from now on, to be passed on explicitly."""
        deadline = cls(seconds, kind=kind, floor=floor, clock=clock)
        deadline._start()
        return deadline

    @classmethod
    def current(cls) -> Deadline | None:
        """The deadline in force here, or None."""
        cell = CURRENT.get()
        return None if cell is None else cell[DEADLINE]

    def remaining(self) -> float:
        """Seconds left, never negative; the whole budget before entry."""
        if self._until is None:
            return self.seconds
        return max(0.0, self._until - self._clock.monotonic())

    def expired(self) -> bool:
        """Whether nothing is left."""
        return self.remaining() <= 0.0

    def fits(self, delay: float = 0.0) -> bool:
        """Whether what begins in so many seconds has time left, and no less than the floor.

        >>> deadline = Deadline(2.0, floor=0.5)
        >>> deadline.fits(1.5), deadline.fits(1.6)
        (True, False)
        """
        left = self.remaining() - delay
        outer = self._outer
        return left > 0 and left >= self.floor and (outer is None or outer.fits(delay))

    def cuts_here(self) -> bool:
        """Whether it is this very task that is cut when nothing is left."""
        return self._cut is not None and self._cut.is_here()

    def ensure(self, minimum: Seconds = 0.05) -> None:
        """Raise where less than that is left: what cannot end in time is not begun.

        :raises DeadlineExceededError: less is left.

        >>> Deadline(2.0).ensure(minimum=0.5)
        """
        least = duration(minimum)
        limit("minimum", least)
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

    def _start(self) -> None:
        if self._until is not None:
            raise MisuseError("a Deadline runs once: make a new one for each operation")
        now = self._clock.monotonic()
        left, outer = self.seconds, Deadline.current()
        self._outer = outer  # its floor holds, too, and its error where it is the nearer one
        if outer is not None and outer.remaining() <= left:
            left, self.kind, self.limit = outer.remaining(), outer.kind, outer.limit
            self.is_shortened = True
        self._until = now + left

    def __enter__(self) -> Self:
        self._start()
        _context.deadlines = True
        self._cell = [None, None, self, entered(), None]
        self._token = CURRENT.set(self._cell)
        return self

    def _leave(self) -> None:
        leave(self._cell, self._token)
        self._cell = self._token = None  # the cell holds this deadline: that would be a cycle

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()

    async def __aenter__(self) -> Self:
        self.__enter__()
        self._cut = cut_after(self.remaining())
        try:
            await self._cut.__aenter__()
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            swallowed = await self._cut.__aexit__(kind, exception, traceback)
        finally:
            self._leave()
        if self._cut.fired:
            raise self.error(
                f"the deadline of {self.limit:g} seconds is over", outcome_unknown=True
            )
        return bool(swallowed)

    def __repr__(self) -> str:
        return f"<Deadline {self.remaining():.3f} of {self.seconds:g} seconds left>"


def cut_after(seconds: float) -> _AsyncioCut | _TrioCut:
    """An asynchronous context manager that cancels its body after *seconds* (asyncio or trio).

    ``fired`` tells afterwards whether it did; a cancellation from outside wins and passes.
    """
    return _TrioCut(seconds) if in_trio() else _AsyncioCut(seconds)


class _Cut:
    _current_task: Callable[[], Any]
    _task: Any

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.fired = False

    def is_here(self) -> bool:
        """Whether it is this task that entered it."""
        try:
            return self._current_task() is self._task
        except RuntimeError:  # no task, or one of another kind
            return False


class _AsyncioCut(_Cut):
    async def __aenter__(self) -> Self:
        import asyncio

        self._current_task, self._task = asyncio.current_task, asyncio.current_task()
        self._timeout = asyncio.timeout(self.seconds)
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> bool:
        try:
            await self._timeout.__aexit__(*failure)
        except TimeoutError:
            self.fired = True
        else:  # the body has swallowed it: it is over all the same
            self.fired = failure[0] is None and self._timeout.expired()
        return self.fired


class _TrioCut(_Cut):
    async def __aenter__(self) -> Self:
        import trio

        self._current_task = trio.lowlevel.current_task
        self._task = self._current_task()
        self._scope = trio.move_on_after(self.seconds)
        self._scope.__enter__()
        return self

    async def __aexit__(self, *failure: Any) -> bool:
        swallowed = bool(self._scope.__exit__(*failure))
        self.fired = self._scope.cancelled_caught
        return swallowed
