"""The bulkhead: a limit of concurrent calls; the others wait or are rejected."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import field, frozen
from attrs.validators import optional

from retrytemplate._engine.deadline import Deadline
from retrytemplate._internal.awaitables import is_awaitable
from retrytemplate._internal.formatting import format_count, format_limit
from retrytemplate._internal.locks import Monitor, Reentered, is_interrupted
from retrytemplate._internal.validation import (
    check_at_least,
    check_at_least_one,
    check_int,
    check_text,
    checked_by,
    read_seconds,
    to_seconds,
)
from retrytemplate.clock import fast_monotonic
from retrytemplate.control._enclosing import check_enclosing_guards, check_enclosing_guards_async
from retrytemplate.control._fields import Observed
from retrytemplate.control._strategy import (
    StrategyBase,
    immutable,
    reject_awaitable,
    returns_result,
)
from retrytemplate.control._waiters import ThreadWaiter, task_waiter
from retrytemplate.control.bulkhead.priority_semaphore import PrioritySemaphore, SlotRequest
from retrytemplate.control.events import CallRejected, notify_listeners
from retrytemplate.errors import BulkheadFullError, MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from typing import Self

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.control._strategy import P, T


def _as_tuple(value: Any) -> Any:
    """A collection of names as a tuple; the check rejects other values."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _names(name: str, value: Any) -> None:
    if not isinstance(value, tuple):
        raise TypeError(f"{name} must be a list or tuple of names, got {value!r}")
    if not value:
        raise ValueError(f"{name} must contain at least one name, got {value!r}")
    for each in value:
        check_text(f"{name}: each", each)
    if len(set(value)) < len(value):
        raise ValueError(f"{name} must differ, got {value!r}")


@frozen(kw_only=True)
class BulkheadSnapshot:
    """State and counts of a bulkhead.

    :param in_use: calls in progress, of ``limit`` at present; ``waiting``: calls in the queue.
    :param keys: how many keys are in use.
    :param admitted: calls that got a slot, and ``rejected``: those that did not, so far.
    """

    name: str
    limit: int
    in_use: int
    waiting: int
    keys: int
    admitted: int
    rejected: int


@immutable(limit="use resize()", queue="use resize()", max_wait="use resize()")
@frozen(eq=False)
class Bulkhead(Observed, StrategyBase):
    """Limits the concurrent calls, so that one slow dependency does not take every thread.

    :param name: name of the called service; in errors and events.
    :param limit: concurrent calls; default 50, at least 1.
    :param queue: calls that may wait; beyond it a call is rejected at once; default 100.
    :param max_wait: seconds a call waits, at most; less where a ``Deadline`` leaves less.
    :param per_key: calls of one key at once; None: no limit of their own.
    :param priorities: the lanes of the queue, the one that goes first before the others.  A slot
        asks for one of them; without, for the last.
    :param fairness: every *fairness*-th slot that becomes free goes to the longest waiting call, of
        whatever lane, so that none starves; 0: never.
    :param listeners: notified of rejections.
    :param clock: measures how far a limit has grown.
    :raises ValueError: a number is out of its range.

    Threads and tasks, of asyncio and trio, share it.  Nothing is kept for a key that is not in
    use.  A call that is cancelled while it waits, or just after its admission, releases its slot.

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

    name: str = field(validator=checked_by(check_text))
    limit: int = field(default=50, kw_only=True, validator=checked_by(check_at_least_one))
    queue: int = field(default=100, kw_only=True, validator=checked_by(check_int, 0))
    max_wait: float = field(
        default=1.0,
        kw_only=True,
        converter=to_seconds,
        validator=checked_by(check_at_least, 0.0, finite=True),
    )
    per_key: int | None = field(
        default=None, kw_only=True, validator=optional(checked_by(check_at_least_one))
    )
    priorities: tuple[str, ...] = field(
        default=("vip", "normal"), kw_only=True, converter=_as_tuple, validator=checked_by(_names)
    )
    fairness: int = field(default=10, kw_only=True, validator=checked_by(check_int, 0))
    _semaphore: PrioritySemaphore = field(init=False, repr=False)
    _monitor: Monitor = field(init=False, factory=Monitor, repr=False)
    _monotonic: Any = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        semaphore = PrioritySemaphore(
            self.limit, self.queue, len(self.priorities), self.per_key, self.fairness
        )
        object.__setattr__(self, "_monotonic", fast_monotonic(self.clock))
        object.__setattr__(self, "_semaphore", semaphore)
        self._monitor.forked = semaphore.clear  # the calls are the parent's
        self._track()

    # Calls.

    def slot(self, *, key: Hashable = None, priority: str | None = None) -> Slot:
        """The block form: ``with bulkhead.slot():``, or ``async with``.

        :param key: the owner of the call, for ``per_key``; None: no owner.
        :param priority: one of the ``priorities``; None: the last.
        :raises ValueError: for another priority.
        """
        if priority is None:
            index = len(self.priorities) - 1
        elif priority in self.priorities:
            index = self.priorities.index(priority)
        else:
            words = ", ".join(map(repr, self.priorities))
            raise ValueError(f"priority must be one of {words} or None, got {priority!r}")
        return Slot(self, SlotRequest(key, index))

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in a slot.

        :raises BulkheadFullError: no slot becomes free in time.
        :raises DeadlineExceededError: the enclosing deadline passes first.
        """
        with self.slot():
            value = fn(*args, **kwargs)
            reject_awaitable(value, fn)
            return value

    @returns_result
    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, in a slot, and await it."""
        async with self.slot():
            value = fn(*args, **kwargs)
            return await value if is_awaitable(value) else value

    def _function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """While a slot is free no request is created for a call without a key."""
        acquire_fast, release_fast, semaphore = *self._fast_functions(), self._semaphore
        kind = type(None)  # of the last result: of this class none has to be awaited

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal kind
            epoch = acquire_fast()
            if not epoch:
                return self.call(fn, *args, **kwargs)
            try:
                value = fn(*args, **kwargs)
                if type(value) is not kind:
                    reject_awaitable(value, fn)
                    kind = type(value)
                return value
            finally:
                admitted = release_fast() if epoch == semaphore.epoch else None
                if admitted or semaphore.ramp is not None:
                    self._wake_admitted(admitted)

        return wrapped

    def _coroutine(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        acquire_fast, release_fast, semaphore = *self._fast_functions(), self._semaphore

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            epoch = acquire_fast()
            if not epoch:
                return await self.call_async(fn, *args, **kwargs)
            try:
                return await fn(*args, **kwargs)
            finally:
                admitted = release_fast() if epoch == semaphore.epoch else None
                if admitted or semaphore.ramp is not None:
                    self._wake_admitted(admitted)

        return wrapped

    def _fast_functions(self) -> tuple[Callable[[], int], Callable[[], list[SlotRequest] | None]]:
        """In and out, for calls that need no ticket."""
        monitor, release_fast = self._monitor, self._semaphore.release_fast
        return (
            monitor.guarded(self._semaphore.acquire_fast, int),  # 0: no slot
            monitor.guarded(release_fast, partial(monitor.later, self._wake, release_fast)),
        )

    def _wake_admitted(self, admitted: list[SlotRequest] | None) -> None:
        if admitted:
            self._monitor.post(self._wake, list, admitted)
        self._advance_ramp()

    def _wake(self, step: Callable[..., list[SlotRequest]], *args: Any) -> None:
        """Wake the callers that a step admits; in the monitor, since waking never waits."""
        requests = step(*args)
        for request in requests:
            if not request.waiter.wake():  # its loop is closed: admit another one instead
                requests += self._semaphore.release(request)

    def describe(self) -> str:
        """Its effect on a call, with its limits."""
        wait = "none waits"
        if self.queue:
            wait = f"{self.queue} more wait up to {format_limit(self.max_wait)}"
        keys = "" if self.per_key is None else f", {self.per_key} of each key"
        return f"{format_count(self.limit, 'call')} at once{keys}, {wait}"

    def worst_case(self, inside: float, call: float, late: float) -> float:
        """The longest call after the longest wait."""
        return inside + (self.max_wait if self.queue else 0.0)

    # By hand.

    def resize(
        self,
        limit: int | None = None,
        *,
        queue: int | None = None,
        max_wait: Seconds | None = None,
        over: Seconds = 0.0,
    ) -> None:
        """Change the number of slots; running calls continue, and this call does not wait.

        Waiting calls stay in the queue, and wait as long as they would have.

        :param limit, queue, max_wait: as those of the bulkhead; None, the default: unchanged.
        :param over: seconds over which more slots are added evenly, to spare the called service; a
            lower limit is in force at once.
        :raises ValueError: a number is out of its range.

        >>> llm = Bulkhead("llm", limit=1)
        >>> llm.resize(2)
        >>> llm.snapshot().limit
        2
        """
        if limit is not None:
            check_at_least_one("limit", limit)
        if queue is not None:
            check_int("queue", queue, 0)
        wait = self.max_wait if max_wait is None else to_seconds(max_wait)
        check_at_least("max_wait", wait, 0.0, finite=True)
        length = read_seconds("over", over)
        object.__setattr__(self, "max_wait", wait)
        self._monitor.post(self._resize, limit, queue, self._monotonic.now(), length)

    def _resize(self, limit: int | None, queue: int | None, now: float, length: float) -> None:
        semaphore = self._semaphore
        if queue is not None:
            object.__setattr__(self, "queue", queue)
            semaphore.queue = queue
        if limit is None:
            return
        object.__setattr__(self, "limit", limit)
        awake = semaphore.resize(limit, now, length)
        if semaphore.ramp is not None:  # waiting callers have to know when its first step is due
            awake += semaphore.queued()
        self._wake(list, awake)

    def snapshot(self) -> BulkheadSnapshot:
        """The present state and counts."""
        self._advance_ramp()
        return self._monitor.read(self._shown)

    def _shown(self) -> BulkheadSnapshot:
        semaphore = self._semaphore
        return BulkheadSnapshot(
            name=self.name,
            limit=semaphore.limit,
            in_use=semaphore.in_use,
            waiting=semaphore.waiting,
            keys=len(semaphore.keys),
            admitted=semaphore.admitted,
            rejected=semaphore.rejected,
        )

    # What the slots ask for.

    def _acquire(
        self, slot: Slot, request: SlotRequest, timeout: float, waiter: Callable[[], Any]
    ) -> bool:
        """Whether the ticket is in; else it waits.  Either way it is the slot's from now on.

        :raises BulkheadFullError: it does neither.
        :raises MisuseError: the slot has another one, which is in or waits.
        """
        if self._semaphore.ramp is not None:
            self._advance_ramp()
        run = self._monitor.run
        try:
            state = run(self._admit, slot, request, None)
            if not state and timeout > 0 and not is_interrupted():
                state = run(self._admit, slot, request, waiter)
        except Reentered:
            state = ""
        if not state:
            raise self._rejection()
        return state == "in"  # not the ticket's: another thread may have admitted it by now

    def _admit(self, slot: Slot, request: SlotRequest, waiter: Callable[[], Any] | None) -> str:
        """The state of the ticket, "in" or "waiting"; empty where it is rejected."""
        if slot._request.state in ("in", "waiting"):
            raise MisuseError(
                f"this slot of the bulkhead {self.name!r} is in use: each call at the same "
                "time takes a slot() of its own"
            )
        semaphore = self._semaphore
        if not semaphore.acquire(request, wait=waiter is not None):
            return ""
        slot._request = request
        if waiter is not None and request.state == "waiting":
            try:
                request.waiter = waiter()
            except BaseException:  # a signal
                semaphore.release(request)
                raise
        return request.state

    def _release(self, request: SlotRequest) -> None:
        self._monitor.post(self._release_and_wake, request)
        if self._semaphore.ramp is not None:
            self._advance_ramp()

    def _release_and_wake(self, request: SlotRequest) -> None:
        admitted = self._semaphore.release(request)
        if admitted:  # rarely: the usual call spares this one, 4% of a slot
            self._wake(list, admitted)

    def _advance_ramp(self) -> None:
        """Admit the calls for which the limit has grown by now."""
        if self._semaphore.ramp is not None:
            self._monitor.post(self._wake, self._semaphore.apply_ramp, self._monotonic.now())

    def _wait_intervals(self, request: SlotRequest, timeout: float) -> Iterator[float]:
        """Yield the seconds to wait next, until the request is granted or the time is over.

        The next step of a growing limit wakes no caller: each waits at most until it is due.
        """
        until = request.waiter.now() + timeout
        while True:
            self._advance_ramp()
            left, ramp = until - request.waiter.now(), self._semaphore.ramp
            if request.state == "in" or left <= 0:
                return
            yield left if ramp is None else min(left, ramp.wait(self._monotonic.now()))

    def _on_wait_over(self, request: SlotRequest, deadline: Deadline | None) -> None:
        """The wait is over.

        :raises BulkheadFullError: the request was not granted.
        """
        if self._monitor.post(self._semaphore.record_wait_end, request):
            return
        self._release(request)
        if deadline is not None and deadline.expired():
            raise deadline.error(
                f"the deadline is over: no slot of the bulkhead {self.name!r} was free in time"
            )
        raise self._rejection()

    def _rejection(self) -> BulkheadFullError:
        semaphore = self._semaphore
        self._monitor.post(semaphore.reject)
        message = (
            f"the bulkhead {self.name!r} is full: {semaphore.in_use} of {semaphore.limit} slots "
            f"are taken, {semaphore.waiting} of {semaphore.queue} wait"
        )
        error = BulkheadFullError(message, name=self.name)
        notify_listeners(self.listeners, [CallRejected(name=self.name, error=error)])
        return error

    def _wait_timeout(self) -> tuple[float, Deadline | None]:
        """The seconds to wait, and the deadline that limits them, if one does."""
        deadline = Deadline.current()
        if deadline is None:
            return self.max_wait, None
        left = deadline.remaining()
        return (left, deadline) if left < self.max_wait else (self.max_wait, None)


class Slot:
    """One call's place, from the block's begin to its end; each slot is used once at a time.

    Entered once more meanwhile it is a ``MisuseError``, and the call that has it keeps its place.
    """

    __slots__ = ("_bulkhead", "_request")

    def __init__(self, bulkhead: Bulkhead, request: SlotRequest) -> None:
        self._bulkhead = bulkhead
        self._request = request

    def __enter__(self) -> Self:
        bulkhead = self._bulkhead
        request = SlotRequest(self._request.key, self._request.priority)
        timeout, deadline = bulkhead._wait_timeout()
        if not bulkhead._acquire(self, request, timeout, ThreadWaiter):
            try:
                for seconds in bulkhead._wait_intervals(request, timeout):
                    request.waiter.wait(seconds)
                check_enclosing_guards()
            except BaseException:
                bulkhead._release(request)
                raise
            bulkhead._on_wait_over(request, deadline)
        return self

    def __exit__(self, *_: object) -> None:
        self._bulkhead._release(self._request)

    async def __aenter__(self) -> Self:
        bulkhead = self._bulkhead
        request = SlotRequest(self._request.key, self._request.priority)
        timeout, deadline = bulkhead._wait_timeout()
        if not bulkhead._acquire(self, request, timeout, task_waiter):
            try:
                for seconds in bulkhead._wait_intervals(request, timeout):
                    await request.waiter.wait(seconds)
                await check_enclosing_guards_async()
            except BaseException:
                bulkhead._release(request)
                raise
            bulkhead._on_wait_over(request, deadline)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._bulkhead._release(self._request)
