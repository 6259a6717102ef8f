"""The bulkhead: so many calls of one thing at once, and the others wait or are refused."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

from attrs import define, field, frozen

from retrytemplate._checks import (
    at_least_one,
    check_at_least,
    checked_by,
    delay,
    duration,
    is_awaitable,
    text,
    whole,
)
from retrytemplate.clock import SystemClock, check_clock, ticking
from retrytemplate.control.events import CallRejected, check_listeners, listeners_of, tell
from retrytemplate.control.room import Room, Ticket
from retrytemplate.control.stops import ask, ask_async
from retrytemplate.control.strategy import Wraps, refuse_awaitable
from retrytemplate.control.waiters import ThreadWaiter, task_waiter
from retrytemplate.deadline import Deadline
from retrytemplate.errors import BulkheadFullError, MisuseError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterator
    from types import TracebackType
    from typing import ParamSpec, Self, TypeVar

    from retrytemplate._checks import Seconds

    P = ParamSpec("P")
    T = TypeVar("T")

__all__ = ["Bulkhead", "BulkheadSnapshot", "Slot"]


def _wait(name: str, value: Any) -> None:
    check_at_least(name, value, 0.0, finite=True)


def _whole_from_0(name: str, value: Any) -> None:
    whole(name, value, 0)


def _per_key(name: str, value: Any) -> None:
    if value is not None:
        at_least_one(name, value)


def _lanes(value: Any) -> Any:
    """Their names as a tuple; what is no collection of them is left to the check."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _names(name: str, value: Any) -> None:
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be a list or tuple of names, got {value!r}")
    if not value:
        raise ValueError(f"{name} must have at least one, got {value!r}")
    for each in value:
        text(f"{name}: each", each)
    if len(set(value)) < len(value):
        raise ValueError(f"{name} must differ, got {value!r}")


@frozen(kw_only=True)
class BulkheadSnapshot:
    """How a bulkhead stands.

    :param inside: calls under way, of ``limit`` at this moment; ``waiting``: those in the queue.
    :param keys: how many keys are in use.
    :param admitted: calls that got a slot, and ``refused``: those that did not, so far.
    """

    name: str
    limit: int
    inside: int
    waiting: int
    keys: int
    admitted: int
    refused: int


@define(eq=False)
class Bulkhead(Wraps):
    """Lets so many calls in at once, so that one slow dependency does not take every thread.

    :param name: of what is called; in errors and events.
    :param limit: calls at once.
    :param queue: so many more may wait; beyond, a call is refused at once.
    :param max_wait: seconds a call waits, at most; less where a ``Deadline`` leaves less.
    :param per_key: calls of one key at once; None: no limit of their own.
    :param priorities: the lanes of the queue, the one that goes first before the others.  A slot
        asks for one of them; without, for the last.
    :param fairness: every so many'th slot that becomes free goes to whoever has waited longest, of
        whatever lane, so that none starves; 0: never.
    :param listeners: told of refusals.
    :param clock: measures how far a limit has grown.
    :raises ValueError: for a number that makes no sense.
    :raises TypeError: for what is none.

    Threads and tasks, of asyncio and trio, share it.  Nothing is remembered of a key that nobody
    uses.  Whoever is cancelled while it waits, or just as it was let in, leaves no slot taken.

    >>> from retrytemplate import BulkheadFullError
    >>> llm = Bulkhead("llm", limit=1, queue=0)
    >>> with llm.slot():
    ...     try:
    ...         llm.call(print, "not printed")
    ...     except BulkheadFullError as error:
    ...         print(error)
    the bulkhead 'llm' is full: 1 of 1 slots are taken, 0 of 0 wait
    >>> llm.call(int, "17")
    17
    """

    name: str = field(validator=checked_by(text))
    limit: int = field(default=50, kw_only=True, validator=checked_by(at_least_one))
    queue: int = field(default=100, kw_only=True, validator=checked_by(_whole_from_0))
    max_wait: float = field(
        default=1.0, kw_only=True, converter=duration, validator=checked_by(_wait)
    )
    per_key: int | None = field(default=None, kw_only=True, validator=checked_by(_per_key))
    priorities: tuple[str, ...] = field(
        default=("vip", "normal"), kw_only=True, converter=_lanes, validator=checked_by(_names)
    )
    fairness: int = field(default=10, kw_only=True, validator=checked_by(_whole_from_0))
    listeners: tuple[Any, ...] = field(
        default=(), kw_only=True, converter=listeners_of, validator=checked_by(check_listeners)
    )
    clock: Any = field(
        factory=SystemClock, kw_only=True, validator=checked_by(check_clock), repr=False
    )
    _room: Room = field(init=False, repr=False)
    _lock: threading.Lock = field(init=False, factory=threading.Lock, repr=False)
    _admitted: int = field(init=False, default=0, repr=False)
    _refused: int = field(init=False, default=0, repr=False)
    _ticks: Any = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._ticks = ticking(self.clock)
        self._room = Room(self.limit, self.queue, len(self.priorities), self.per_key, self.fairness)

    # Calls.

    def slot(self, *, key: Hashable = None, priority: str | None = None) -> Slot:
        """The block form: ``with bulkhead.slot():``, or ``async with``.

        :param key: whose call it is, for ``per_key``; None: nobody's.
        :param priority: one of the ``priorities``; None: the last.
        :raises ValueError: for another priority.
        """
        if priority is None:
            lane = len(self.priorities) - 1
        elif priority in self.priorities:
            lane = self.priorities.index(priority)
        else:
            words = ", ".join(map(repr, self.priorities))
            raise ValueError(f"priority must be one of {words} or None, got {priority!r}")
        return Slot(self, Ticket(key, lane))

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in a slot.

        :raises BulkheadFullError: there is none, nor will there be in time.
        :raises DeadlineExceededError: the deadline around the call is over first.
        """
        with self.slot():
            value = fn(*args, **kwargs)
            refuse_awaitable(value, fn)
            return value

    @overload
    async def call_async(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def call_async(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, in a slot, and await it."""
        async with self.slot():
            value = fn(*args, **kwargs)
            return await value if is_awaitable(value) else value

    def _function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Where a place is free no ticket is made out for a call that is nobody's."""
        step_in, step_out, lock = self._room.step_in, self._step_out, self._lock
        kind = type(None)  # of the last result: of this class none has to be awaited

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal kind
            with lock:
                stepped = step_in()
            if not stepped:
                return self.call(fn, *args, **kwargs)
            try:
                value = fn(*args, **kwargs)
                if type(value) is not kind:
                    refuse_awaitable(value, fn)
                    kind = type(value)
                return value
            finally:
                step_out()

        return wrapped

    def _coroutine(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        step_in, step_out, lock = self._room.step_in, self._step_out, self._lock

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            with lock:
                stepped = step_in()
            if not stepped:
                return await self.call_async(fn, *args, **kwargs)
            try:
                return await fn(*args, **kwargs)
            finally:
                step_out()

        return wrapped

    # By hand.

    def resize(self, limit: int, *, over: Seconds = 0.0) -> None:
        """Another number of slots; whoever is in stays, nobody waits for this.

        :param over: seconds in which more slots come, evenly, so that what is called is not
            overrun; fewer are in force at once.
        :raises ValueError: for a number that makes no sense.
        :raises TypeError: for what is none.

        >>> llm = Bulkhead("llm", limit=1)
        >>> llm.resize(2)
        >>> llm.snapshot().limit
        2
        """
        at_least_one("limit", limit)
        length = duration(over)
        delay("over", length)
        room, now = self._room, self._ticks.now()
        with self._lock:
            self.limit = limit
            awake = room.resize(limit, now, length)
            if room.growth is not None:  # whoever waits has to know when its first step is due
                awake += room.queued()
        self._wake(awake)

    def snapshot(self) -> BulkheadSnapshot:
        """All that can be known of it at this moment."""
        self._grow()
        room = self._room
        with self._lock:
            return BulkheadSnapshot(
                name=self.name,
                limit=room.limit,
                inside=room.inside,
                waiting=room.waiting,
                keys=len(room.keys),
                admitted=self._admitted + room.stepped,
                refused=self._refused,
            )

    # What the slots ask for, and calls that need none.

    def _step_out(self) -> None:
        """A call that needed no ticket has ended."""
        with self._lock:
            admitted = self._room.step_out()
        if admitted:
            self._wake(admitted)
        if self._room.growth is not None:
            self._grow()

    def _enter(
        self, slot: Slot, ticket: Ticket, patience: float, waiter: Callable[[], Any]
    ) -> bool:
        """Whether the ticket is in; else it waits.  Either way it is the slot's from now on.

        :raises BulkheadFullError: it does neither.
        :raises MisuseError: the slot has another one, which is in or waits.
        """
        self._grow()
        with self._lock:
            if slot._ticket.state in ("in", "waiting"):
                raise MisuseError(
                    f"this slot of the bulkhead {self.name!r} is in use: each call at the same "
                    "time takes a slot() of its own"
                )
            entered = self._room.enter(ticket, wait=patience > 0)
            if entered:
                slot._ticket = ticket
            if ticket.state == "in":
                self._admitted += 1
                return True
            if entered:
                try:
                    ticket.waiter = waiter()
                except BaseException:  # a signal
                    self._room.leave(ticket)
                    raise
        if not entered:
            raise self._refusal()
        return False

    def _leave(self, ticket: Ticket) -> None:
        with self._lock:
            admitted = self._room.leave(ticket)
        self._wake(admitted)
        self._grow()

    def _grow(self) -> None:
        """Let in those for whom the limit has grown by now."""
        if self._room.growth is not None:
            now = self._ticks.now()
            with self._lock:
                admitted = self._room.look(now)
            self._wake(admitted)

    def _wake(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            if not ticket.waiter.wake():  # its loop is closed: wake who comes in for it
                with self._lock:
                    tickets += self._room.leave(ticket)

    def _waits(self, ticket: Ticket, patience: float) -> Iterator[float]:
        """How long to wait next, until it is in or out of patience.

        The next step of a limit that grows wakes nobody: whoever waits looks when it is due.
        """
        until = ticket.waiter.now() + patience
        while True:
            self._grow()
            left, growth = until - ticket.waiter.now(), self._room.growth
            if ticket.state == "in" or left <= 0:
                return
            yield left if growth is None else min(left, growth.wait(self._ticks.now()))

    def _waited(self, ticket: Ticket, deadline: Deadline | None) -> None:
        """The wait is over.

        :raises BulkheadFullError: and nobody has let it in.
        """
        with self._lock:
            if ticket.state == "in":
                self._admitted += 1
                return
        self._leave(ticket)
        if deadline is not None and deadline.expired():
            raise deadline.error(
                f"the deadline is over: no slot of the bulkhead {self.name!r} was free in time"
            )
        raise self._refusal()

    def _refusal(self) -> BulkheadFullError:
        with self._lock:
            room = self._room
            self._refused += 1
            message = (
                f"the bulkhead {self.name!r} is full: {room.inside} of {room.limit} slots are "
                f"taken, {room.waiting} of {room.queue} wait"
            )
        error = BulkheadFullError(message, name=self.name)
        tell(self.listeners, [CallRejected(name=self.name, error=error)])
        return error

    def _patience(self) -> tuple[float, Deadline | None]:
        """How long to wait, and the deadline that says so."""
        deadline = Deadline.current()
        if deadline is None:
            return self.max_wait, None
        left = deadline.remaining()
        return (left, deadline) if left < self.max_wait else (self.max_wait, None)


class Slot:
    """One call's place, from the block's begin to its end; each slot is used once at a time.

    Entered once more meanwhile it is a ``MisuseError``, and the call that has it keeps its place.
    """

    __slots__ = ("_bulkhead", "_ticket")

    def __init__(self, bulkhead: Bulkhead, ticket: Ticket) -> None:
        self._bulkhead = bulkhead
        self._ticket = ticket

    def __enter__(self) -> Self:
        bulkhead = self._bulkhead
        ticket = Ticket(self._ticket.key, self._ticket.lane)
        patience, deadline = bulkhead._patience()
        if not bulkhead._enter(self, ticket, patience, ThreadWaiter):
            try:
                for seconds in bulkhead._waits(ticket, patience):
                    ticket.waiter.wait(seconds)
                ask()
            except BaseException:
                bulkhead._leave(ticket)
                raise
            bulkhead._waited(ticket, deadline)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bulkhead._leave(self._ticket)

    async def __aenter__(self) -> Self:
        bulkhead = self._bulkhead
        ticket = Ticket(self._ticket.key, self._ticket.lane)
        patience, deadline = bulkhead._patience()
        if not bulkhead._enter(self, ticket, patience, task_waiter):
            try:
                for seconds in bulkhead._waits(ticket, patience):
                    await ticket.waiter.wait(seconds)
                await ask_async()
            except BaseException:
                bulkhead._leave(ticket)
                raise
            bulkhead._waited(ticket, deadline)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bulkhead._leave(self._ticket)
