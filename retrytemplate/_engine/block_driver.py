"""The driver of blocks: the attempts of the execution are the iterations of a loop."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.drivers import ASYNC, SYNC, awaitable_error, finish_closed, is_awaitable
from retrytemplate._engine.frames import (
    CURRENT,
    DEADLINE,
    OUTER,
    enclosing_frame,
    exit_frame,
    reset_frame,
)
from retrytemplate._internal.awaitables import close_unawaited
from retrytemplate.errors import AttemptTimeoutError

if TYPE_CHECKING:
    from retrytemplate._engine.execution import Execution
    from retrytemplate._engine.execution_state import Driver, Effect, ExecutionState, Reply
    from retrytemplate._engine.frames import ExecutionFrame

__all__ = [
    "ASYNC_BLOCK",
    "ATTEMPT_DUE",
    "ENDED",
    "INLINE",
    "INSIDE",
    "INSIDE_INLINE",
    "INSIDE_NESTED",
    "IN_ATTEMPT",
    "NEW",
    "RUNNING",
    "STATEFUL",
    "SYNC_BLOCK",
    "WAITING",
    "BlockDriver",
    "block",
]

_get, _set = CURRENT.get, CURRENT.set

# Where the loop stands: not begun (STATEFUL: with a state, so with the engine), an inline attempt
# is due, in its block, in its block with something around or within that may be left out of order,
# one by the engine is due, out and in its block, something must be awaited first, or it is over.
(
    NEW,
    STATEFUL,
    INLINE,
    INSIDE_INLINE,
    INSIDE_NESTED,
    ATTEMPT_DUE,
    RUNNING,
    INSIDE,
    WAITING,
    ENDED,
) = range(10)
# An attempt is out: neither the next one nor the end can come before its block has ended.
IN_ATTEMPT = (INLINE, INSIDE_INLINE, INSIDE_NESTED, RUNNING, INSIDE)


def block() -> None:
    """Effect that represents the block; the loop returns control to the user instead."""


def limited_block() -> None:
    """The same for a block with a limit."""


class BlockAdapter:
    """Driver of a block: the loop itself applies the limit of an attempt."""

    def __init__(self, driver: Driver) -> None:
        self.awaits = driver.awaits
        self.sleep = driver.sleep
        self.shielded = driver.shielded

    def limit_attempt(self, execution: ExecutionState, effect: Effect) -> Effect:
        return limited_block, ()


SYNC_BLOCK, ASYNC_BLOCK = BlockAdapter(SYNC), BlockAdapter(ASYNC)


class BlockDriver:
    """The third driver: performs the engine's effects between the blocks."""

    __slots__ = (
        "asynchronous",
        "began",
        "execution",
        "frame",
        "limit",
        "outcome",
        "pending",
        "state",
        "steps",
    )

    def __init__(
        self,
        execution: Execution,
        frame: ExecutionFrame,
        asynchronous: bool,
        failure: BaseException | None = None,
    ) -> None:
        self.execution = execution
        self.frame = frame
        steps = execution.run(failure)
        self.steps = finish_closed(steps, failure) if isinstance(failure, GeneratorExit) else steps
        self.asynchronous = asynchronous
        self.state = NEW
        self.limit: tuple[float, bool] | None = None  # of the attempt that is due
        self.began = 0.0
        self.pending: Any = None
        self.outcome: Reply = (None, None)

    def advance(self, reply: Any) -> int:
        """Perform effects until an attempt is due, something must be awaited, or it is over.

        After a ``GeneratorExit`` the execution ends: its listeners are closed, its key is released.
        """
        if reply is not None and isinstance(reply[1], GeneratorExit):
            self.steps, reply = finish_closed(self.steps, reply[1]), None
        outer, token = _get(), None
        try:
            token = _set(self.frame)
            self._perform(reply)
        except BaseException as exc:
            if not getattr(self.steps, "gi_suspended", False):
                raise
            # A signal between two effects: the engine has not seen it, and has things to close.
            self._perform((None, exc))
        finally:
            reset_frame(token, outer)
            del reply
        return self.state

    def _perform(self, reply: Any) -> None:
        function: Any = None
        arguments: Any = ()
        while True:
            try:
                function, arguments = self.steps.send(reply)
            except StopIteration as stop:
                self.state, self.outcome = ENDED, stop.value
                # A traceback from here leads back to this frame.
                del reply, function, arguments
                return
            if self._is_block(function):
                self.state = ATTEMPT_DUE
                return
            try:
                value = function(*arguments)
            except BaseException as exc:
                reply = (None, exc)
            else:
                reply = (value, None)
                if is_awaitable(value):
                    if self.asynchronous:
                        self.state, self.pending = WAITING, value
                        del reply, function, arguments, value
                        return
                    reply = (None, awaitable_error(function, value))

    async def advance_async(self, reply: Any) -> int:
        """The same, with awaitable effects awaited."""
        state = self.advance(reply)
        return await self.await_pending() if state == WAITING else state

    async def await_pending(self) -> int:
        """Await the pending effect and the awaitable effects after it."""
        while self.state == WAITING:
            frame = self.frame.copy()
            token = _set(frame)
            reply: Reply
            try:
                reply = (await self.pending, None)
            except GeneratorExit as exc:  # closed while it waited: nothing can be awaited any more
                self.advance((None, exc))
                raise
            except BaseException as exc:  # the engine raises a cancellation again
                reply = (None, exc)
            finally:
                exit_frame(frame, token)
                self.pending = None
            self.advance(reply)
            del reply
        return self.state

    def take_outcome(self) -> Reply:
        """Return the outcome and drop it: its traceback may refer to this object."""
        outcome, self.outcome = self.outcome, (None, None)
        return outcome

    def _is_block(self, function: Any) -> bool:
        if function is block:
            self.limit = None
            return True
        if function is limited_block:
            from retrytemplate._engine.attempt_timeout import attempt_limit

            self.limit = attempt_limit(self.execution)
            return True
        return False

    def attempt_frame(self) -> ExecutionFrame:
        """The frame of an attempt; the rest of its limit, if it has one, is in force inside."""
        outer = enclosing_frame()
        if self.limit is not None:
            from retrytemplate._engine.attempt_timeout import limited_frame

            self.began = self.execution.plan.monotonic_source.now()
            return limited_frame(self.execution, self.limit[0], outer)
        frame = self.frame.copy()
        frame[OUTER] = outer
        if outer is not None and outer[DEADLINE] is not None:
            from retrytemplate._engine.deadline import with_inherited_guards

            frame[DEADLINE] = with_inherited_guards(
                outer[DEADLINE], self.execution.plan.inheritable_guards
            )
        return frame

    def reply(self, result: Any, exception: BaseException | None, is_expired: bool = False) -> Any:
        """The result of the block as a reply to the engine."""
        if exception is not None and (not is_expired or isinstance(exception, GeneratorExit)):
            return None, exception
        if self.limit is not None:
            from retrytemplate._engine.attempt_timeout import limit_error, record_overrun

            if is_expired:
                return None, limit_error(self.execution, *self.limit, exception)
            elapsed = self.execution.plan.monotonic_source.now() - self.began
            try:
                record_overrun(self.execution, self.limit[0], elapsed)
            except AttemptTimeoutError as error:
                return None, error
        return result, None

    def __del__(self) -> None:
        if getattr(self, "state", ENDED) in (ATTEMPT_DUE, WAITING):
            close_unawaited(self.pending)
            # In a context of its own: the collector may run while this one is being changed.
            copy_context().run(self.advance, (None, GeneratorExit()))
