"""The block form: a loop whose iterations are attempts, each in a ``with`` block."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from retrytemplate._engine import frames as _frames
from retrytemplate._engine.block_driver import (
    ASYNC_BLOCK,
    ENDED,
    IN_ATTEMPT,
    INLINE,
    INSIDE,
    INSIDE_INLINE,
    INSIDE_NESTED,
    NEW,
    RUNNING,
    STATEFUL,
    SYNC_BLOCK,
    WAITING,
    BlockDriver,
    block,
)
from retrytemplate._engine.context import RetryContext
from retrytemplate._engine.entry import prepare, warn_unbounded
from retrytemplate._engine.execution import Execution
from retrytemplate._engine.frames import CURRENT, DEADLINE, OUTER, enclosing_frame, exit_frame
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from types import TracebackType
    from typing import Self

    from retrytemplate._engine.frames import ExecutionFrame
    from retrytemplate._engine.plan import ExecutionPlan
    from retrytemplate.state import RetryState

__all__ = ["NEW", "STATEFUL", "Attempts"]

_get, _set, _reset = CURRENT.get, CURRENT.set, CURRENT.reset

# Fields copied from an execution whose context is another object: it leads back to no loop, so
# that one which is left ends at once.
MIRRORED_FIELDS = (
    *("attempt", "retry_count", "gave_up", "exhausted", "recovered", "no_recovery", "closed"),
    *(
        "_attributes",
        "_claim",
        "_ended_at",
        "_restored_history",
        "_last_failure",
        "_last_stamp",
        "_max_attempts",
    ),
    *(
        "_earlier_failures",
        "_policy",
        "_repeat_count",
        "_started_at",
        "_state",
        "_stop_reason",
        "_unguarded",
    ),
)


class Attempts(RetryContext):
    """The block form of an execution: its loop, its current attempt and its context.

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
    __slots__ = ("_loop_state", "_token")

    _loop_state: int
    _token: Any
    _plan: ExecutionPlan

    result: Any = None
    _requested_state: RetryState | None = None
    _asynchronous: bool = False
    _driver: BlockDriver | None = None
    _cancel_scope: Any = None
    _frame: Any = None

    @property
    def _exited(self) -> bool:  # type: ignore[override]  # read only here
        return self._loop_state == ENDED

    @property
    def attributes(self) -> MutableMapping[str, Any]:
        """Your own values; they live across attempts, and across executions when stateful."""
        driver = self._driver
        if driver is None or driver.execution.context is self:
            return super().attributes
        return driver.execution.context.attributes

    def give_up(self) -> None:
        """Make no attempt after this one (Spring's ``setExhaustedOnly``)."""
        self.gave_up = True
        if self._driver is not None:
            self._driver.execution.context.gave_up = True

    def __iter__(self) -> Self:
        if self._loop_state == ENDED:
            raise MisuseError("this loop has ended; call attempts() again for another one")
        return self

    def __aiter__(self) -> Self:
        self.__iter__()
        self._asynchronous = True
        return self

    def __next__(self) -> Self:
        if self._loop_state == NEW:
            outer = self._outer = _get()
            if self._plan.untimed_first_attempt and (outer is None or outer[DEADLINE] is None):
                self.attempt = 1
                self._is_exposed = True
                self._loop_state = INLINE
                return self
        if self._loop_state <= STATEFUL:
            self._apply_state(self._start_driver().advance(None))
        elif self._loop_state in IN_ATTEMPT:
            raise self._misuse_error()
        if self._loop_state == ENDED:
            raise StopIteration
        self._loop_state = RUNNING
        self.result = None
        return self

    async def __anext__(self) -> Self:
        if self._loop_state == NEW:
            outer = self._outer = _get()
            if self._plan.untimed_first_attempt and (outer is None or outer[DEADLINE] is None):
                self.attempt = 1
                self._is_exposed = True
                self._loop_state = INLINE
                return self
        if self._loop_state <= STATEFUL:
            self._apply_state(await self._start_driver().advance_async(None))
        elif self._loop_state in IN_ATTEMPT:
            raise self._misuse_error()
        elif self._loop_state == WAITING:
            self._apply_state(await self._require_driver().await_pending())
        if self._loop_state == ENDED:
            raise StopAsyncIteration
        self._loop_state = RUNNING
        self.result = None
        return self

    def _start_driver(self) -> BlockDriver:
        """Create the execution and the driver of the block."""
        adapter = ASYNC_BLOCK if self._asynchronous else SYNC_BLOCK
        execution, frame = prepare(
            self._owner, block, (), self._recovery, self._requested_state, adapter
        )
        execution.context._is_exposed = True
        execution.context._function = None  # a block has none
        self._driver = BlockDriver(execution, frame, self._asynchronous)
        return self._driver

    def _require_driver(self) -> BlockDriver:
        assert self._driver is not None
        return self._driver

    def _apply_state(self, state: int) -> BaseException | None:
        """Adopt the state of the engine; raise its error at the end."""
        error = self._sync_from_engine(state)
        if error is None:
            return None
        try:
            if isinstance(error, StopIteration | StopAsyncIteration):  # it would end the loop
                raise RuntimeError(
                    f"the execution raised {type(error).__name__}, which would end the attempts() "
                    "loop"
                ) from error
            raise error
        finally:
            del error

    def _sync_from_engine(self, state: int) -> BaseException | None:
        self._loop_state = state
        context = self._require_driver().execution.context
        if context is not self:
            for name in MIRRORED_FIELDS:
                setattr(self, name, getattr(context, name, None))
        if state != ENDED:
            return None
        value, error = self._require_driver().take_outcome()
        self._driver = None  # it leads back here: left in place, that would be a cycle
        if error is None:
            self.result = value
        return error

    # -- one attempt -------------------------------------------------------------------------------

    def __enter__(self) -> RetryContext:
        if self._loop_state == INLINE:
            if self._outer is not None or _frames.any_deadline_entered:
                return self._enter_nested()
            self._loop_state = INSIDE_INLINE
            try:
                self._token = _set([self, None, None, None, None])
            except BaseException:  # a signal: there will be no exit
                _set(None)
                raise
            return self
        if self._loop_state != RUNNING:
            raise self._misuse_error()
        self._loop_state = INSIDE
        driver = self._require_driver()
        self._enter(driver.attempt_frame())
        return driver.execution.context

    def _enter_nested(self) -> RetryContext:
        outer = self._outer = enclosing_frame()
        deadline = None if outer is None else outer[DEADLINE]
        self._loop_state = INSIDE_NESTED
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
        """Called when another frame is entered inside the block, which may end after it."""
        if self._loop_state == INSIDE_INLINE:
            self._frame, self._loop_state = frame, INSIDE_NESTED

    async def __aenter__(self) -> RetryContext:
        context = self.__enter__()
        limit = None if self._driver is None else self._driver.limit
        if limit is not None:
            from retrytemplate._internal.cancel_scope import cancel_after

            cancel_scope = cancel_after(limit[0])
            try:
                cancel_scope.__enter__()
            except BaseException:
                self._leave()
                raise
            self._cancel_scope = cancel_scope
        return context

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._loop_state == INSIDE_INLINE:
            try:  # noqa: SIM105  # suppress() would cost more than all the rest here
                _reset(self._token)
            except ValueError:  # left in another context
                pass
            if exception is None:
                self.closed = True
                self._loop_state = ENDED
                return False
            if self._ends_inline(exception):
                return False
            reply = None  # the engine begins with the failure
        elif self._loop_state == INSIDE_NESTED:
            self._leave()
            if self._ends_inline(exception):
                return False
            reply = None  # the engine begins with the failure
        else:
            self._leave()
            reply = self._require_driver().reply(self.result, exception)
        state = self._require_driver().advance(reply)
        del reply  # an exception raised from here would make a cycle
        return self._finish_attempt(state, exception)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        cancel_scope, self._cancel_scope = self._cancel_scope, None
        given = exception
        if cancel_scope is not None:
            try:
                cancel_scope.__exit__(kind, exception, traceback)
            except BaseException as rest:  # of a group, without the cancellation at the limit
                exception = rest
        if self._loop_state in (INSIDE_INLINE, INSIDE_NESTED):
            if self._loop_state == INSIDE_NESTED:
                self._leave()
            else:
                with suppress(ValueError):
                    _reset(self._token)
            if self._ends_inline(exception):
                return False
            reply = None
        else:
            self._leave()
            expired = cancel_scope is not None and cancel_scope.expired
            reply = self._require_driver().reply(self.result, exception, expired)
        state = await self._require_driver().advance_async(reply)
        del reply, exception
        return self._finish_attempt(state, given)

    def _leave(self) -> None:
        frame, self._frame = self._frame, None  # it leads back here: kept, that would be a cycle
        try:
            exit_frame(frame, self._token)
        except BaseException:  # a signal
            if _get() is frame is not None:
                _set(frame[OUTER])
            raise

    def _ends_inline(self, exception: BaseException | None) -> bool:
        """Whether an inline attempt ends the loop; if not, the engine takes over."""
        if exception is None or not (isinstance(exception, Exception) or self._plan.notifies_end):
            self.closed = True
            self._loop_state = ENDED
            return True
        if self._plan.unbounded:
            warn_unbounded(self._plan)
        adapter = ASYNC_BLOCK if self._asynchronous else SYNC_BLOCK
        execution = Execution(self._plan, self, block, (), self._recovery, adapter)
        frame = [self, self._owner, None, self._outer, self._plan]
        self._driver = BlockDriver(execution, frame, self._asynchronous, exception)
        return False

    def _finish_attempt(self, state: int, exception: BaseException | None) -> bool:
        """Whether the block's exception is suppressed; another final exception is raised."""
        error = self._sync_from_engine(state)
        if error is None:
            return True
        if error is exception:
            return False
        try:
            raise error
        finally:
            del error, exception

    def _misuse_error(self) -> MisuseError:
        if self._loop_state in (INLINE, RUNNING):
            return MisuseError("enter the attempt in every iteration: with attempt: ...")
        if self._loop_state in IN_ATTEMPT:
            return MisuseError("the attempt was entered before; enter it once in each iteration")
        return MisuseError(
            "enter an attempt inside the loop: for attempt in attempts: with attempt:"
        )
