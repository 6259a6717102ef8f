"""The block form: a loop whose turns are attempts, and a ``with`` that tells how each one went."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from retrytemplate._engine import context as _context
from retrytemplate._engine.block_driver import (
    ASYNC_BLOCK,
    INLINE,
    INSIDE,
    INSIDE_INLINE,
    INSIDE_NESTED,
    NEW,
    OUT,
    OVER,
    RUNNING,
    STATEFUL,
    SYNC_BLOCK,
    WAITING,
    Loop,
    block,
)
from retrytemplate._engine.context import (
    CURRENT,
    DEADLINE,
    OUTER,
    RetryContext,
    enclosing_frame,
    exit_frame,
)
from retrytemplate._engine.entry import prepare, warn_unbounded
from retrytemplate._engine.execution import Execution
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from types import TracebackType
    from typing import Self

    from retrytemplate._engine.context import ExecutionFrame
    from retrytemplate.state import RetryState

__all__ = ["NEW", "STATEFUL", "Attempts"]

_get, _set, _reset = CURRENT.get, CURRENT.set, CURRENT.reset

# What the loop tells of an execution whose context is another object: it leads back to no loop, so
# that one which is left ends at once.
SHOWN = (
    *("attempt", "retry_count", "gave_up", "exhausted", "recovered", "no_recovery", "closed"),
    *(
        "_attributes",
        "_claim",
        "_ended",
        "_restored_history",
        "_last",
        "_last_stamp",
        "_max_attempts",
    ),
    *("_earlier_failures", "_policy", "_repeat_count", "_started", "_state", "_stop", "_unguarded"),
)


class Attempts(RetryContext):
    """The block form of an execution: its loop, the attempt under way, and what is known of it.

    ``result`` is yours to set inside the block where a policy looks at results; afterwards it is
    the last result, or the recovery's value.

    Use it once: ``for attempt in template.attempts():`` with ``with attempt as context:``, in
    asynchronous code ``async for`` and ``async with``.

    >>> from retrytemplate import RetryTemplate
    >>> attempts = RetryTemplate().attempts()
    >>> for attempt in attempts:
    ...     with attempt:
    ...         attempts.result = int("17")
    >>> attempts.result, attempts.retry_count
    (17, 0)
    """

    # One object for loop, attempt and the inline attempt's context: three would cost more than the
    # rest of the way.
    __slots__ = ("_stand", "_token")

    _stand: int
    _token: Any

    result: Any = None
    _wanted: RetryState | None = None
    _asynchronous: bool = False
    _loop: Loop | None = None
    _cut: Any = None
    _frame: Any = None

    @property
    def _exited(self) -> bool:  # type: ignore[override]  # read only here
        return self._stand == OVER

    @property
    def attributes(self) -> MutableMapping[str, Any]:
        """Your own values; they live across attempts, and across executions when stateful."""
        loop = self._loop
        if loop is None or loop.execution.context is self:
            return super().attributes
        return loop.execution.context.attributes

    def give_up(self) -> None:
        """Make no attempt after this one (Spring's ``setExhaustedOnly``)."""
        self.gave_up = True
        if self._loop is not None:
            self._loop.execution.context.gave_up = True

    def __iter__(self) -> Self:
        if self._stand == OVER:
            raise MisuseError("this loop is over: call attempts() again for another one")
        return self

    def __aiter__(self) -> Self:
        self.__iter__()
        self._asynchronous = True
        return self

    def __next__(self) -> Self:
        if self._stand == NEW:
            outer = self._outer = _get()
            if self._plan.inline and (outer is None or outer[DEADLINE] is None):
                self.attempt = 1
                self._is_exposed = True
                self._stand = INLINE
                return self
        if self._stand <= STATEFUL:
            self._follow(self._begin().advance(None))
        elif self._stand in OUT:
            raise self._misused()
        if self._stand == OVER:
            raise StopIteration
        self._stand = RUNNING
        self.result = None
        return self

    async def __anext__(self) -> Self:
        if self._stand == NEW:
            outer = self._outer = _get()
            if self._plan.inline and (outer is None or outer[DEADLINE] is None):
                self.attempt = 1
                self._is_exposed = True
                self._stand = INLINE
                return self
        if self._stand <= STATEFUL:
            self._follow(await self._begin().advance_async(None))
        elif self._stand in OUT:
            raise self._misused()
        elif self._stand == WAITING:
            self._follow(await self._engine().go_on())
        if self._stand == OVER:
            raise StopAsyncIteration
        self._stand = RUNNING
        self.result = None
        return self

    def _begin(self) -> Loop:
        """The engine, begun with an execution of its own."""
        ways = ASYNC_BLOCK if self._asynchronous else SYNC_BLOCK
        execution, frame = prepare(self._owner, block, (), self._recovery, self._wanted, ways)
        execution.context._is_exposed = True
        execution.context._function = None  # a block has none
        self._loop = Loop(execution, frame, self._asynchronous)
        return self._loop

    def _engine(self) -> Loop:
        assert self._loop is not None
        return self._loop

    def _follow(self, stand: int) -> BaseException | None:
        """Stand where the engine stands; raise what leaves when it is over."""
        error = self._arrive(stand)
        if error is None:
            return None
        try:
            if isinstance(error, StopIteration | StopAsyncIteration):  # it would end the loop
                raise RuntimeError(f"{type(error).__name__} out of an execution") from error
            raise error
        finally:
            del error

    def _arrive(self, stand: int) -> BaseException | None:
        self._stand = stand
        context = self._engine().execution.context
        if context is not self:
            for name in SHOWN:
                setattr(self, name, getattr(context, name, None))
        if stand != OVER:
            return None
        value, error = self._engine().taken()
        self._loop = None  # it leads back here: left in place, that would be a cycle
        if error is None:
            self.result = value
        return error

    # -- one attempt -------------------------------------------------------------------------------

    def __enter__(self) -> RetryContext:
        if self._stand == INLINE:
            if self._outer is not None or _context.any_deadline_entered:
                return self._enter_nested()
            self._stand = INSIDE_INLINE
            try:
                self._token = _set([self, None, None, None, None])
            except BaseException:  # a signal: there will be no exit
                _set(None)
                raise
            return self
        if self._stand != RUNNING:
            raise self._misused()
        self._stand = INSIDE
        loop = self._engine()
        self._enter(loop.attempt_frame())
        return loop.execution.context

    def _enter_nested(self) -> RetryContext:
        outer = self._outer = enclosing_frame()
        deadline = None if outer is None else outer[DEADLINE]
        self._stand = INSIDE_NESTED
        self._enter([self, None, deadline, outer, None])
        return self

    def _enter(self, frame: ExecutionFrame) -> None:
        self._frame = frame
        try:
            self._token = _set(frame)
        except BaseException:  # a signal: there will be no exit
            _set(frame[OUTER])
            raise

    def _on_nested_entry(self, frame: ExecutionFrame) -> None:
        """Something else is entered within the block: it may be left after this."""
        if self._stand == INSIDE_INLINE:
            self._frame, self._stand = frame, INSIDE_NESTED

    async def __aenter__(self) -> RetryContext:
        context = self.__enter__()
        limit = None if self._loop is None else self._loop.limit
        if limit is not None:
            from retrytemplate._internal.cancel_scope import cut_after

            cut = cut_after(limit[0])
            try:
                cut.__enter__()
            except BaseException:
                self._leave()
                raise
            self._cut = cut
        return context

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._stand == INSIDE_INLINE:
            try:  # noqa: SIM105  # suppress() would cost more than all the rest here
                _reset(self._token)
            except ValueError:  # left in another context
                pass
            if exception is None:
                self.closed = True
                self._stand = OVER
                return False
            if self._passes(exception):
                return False
            reply = None  # the engine begins with the failure
        elif self._stand == INSIDE_NESTED:
            self._leave()
            if self._passes(exception):
                return False
            reply = None  # the engine begins with the failure
        else:
            self._leave()
            reply = self._engine().reply(self.result, exception)
        stand = self._engine().advance(reply)
        del reply  # what is late is raised from here: that would be a cycle
        return self._left(stand, exception)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        cut, self._cut = self._cut, None
        given = exception
        if cut is not None:
            try:
                cut.__exit__(kind, exception, traceback)
            except BaseException as rest:  # of a group, without the cancellation at the limit
                exception = rest
        if self._stand in (INSIDE_INLINE, INSIDE_NESTED):
            if self._stand == INSIDE_NESTED:
                self._leave()
            else:
                with suppress(ValueError):
                    _reset(self._token)
            if self._passes(exception):
                return False
            reply = None
        else:
            self._leave()
            fired = cut is not None and cut.fired
            reply = self._engine().reply(self.result, exception, fired)
        if isinstance(exception, GeneratorExit):  # nothing can be awaited any more
            stand = self._engine().close(reply)
        else:
            stand = await self._engine().advance_async(reply)
        del reply, exception
        return self._left(stand, given)

    def _leave(self) -> None:
        frame, self._frame = self._frame, None  # it leads back here: kept, that would be a cycle
        try:
            exit_frame(frame, self._token)
        except BaseException:  # a signal
            if _get() is frame is not None:
                _set(frame[OUTER])
            raise

    def _passes(self, exception: BaseException | None) -> bool:
        """Whether an inline attempt ends the loop; if not, the engine takes over."""
        if not isinstance(exception, Exception):
            self.closed = True
            self._stand = OVER
            return True
        if self._plan.unbounded:
            warn_unbounded(self._plan)
        ways = ASYNC_BLOCK if self._asynchronous else SYNC_BLOCK
        execution = Execution(self._plan, self, block, (), self._recovery, ways)
        frame = [self, self._owner, None, self._outer, self._plan]
        self._loop = Loop(execution, frame, self._asynchronous, exception)
        return False

    def _left(self, stand: int, exception: BaseException | None) -> bool:
        """Whether the block's exception is swallowed; another one that leaves is raised."""
        error = self._arrive(stand)
        if error is None:
            return True
        if error is exception:
            return False
        try:
            raise error
        finally:
            del error, exception

    def _misused(self) -> MisuseError:
        if self._stand in (INLINE, RUNNING):
            return MisuseError("every turn of the loop needs its block: with attempt: ...")
        if self._stand in OUT:
            return MisuseError("the attempt was entered before: each turn has one block")
        return MisuseError(
            "enter an attempt inside the loop: for attempt in attempts: with attempt:"
        )
