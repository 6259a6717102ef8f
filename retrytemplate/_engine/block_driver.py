"""The third driver: an execution whose attempts are the turns of a loop."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from retrytemplate._engine.context import (
    CURRENT,
    DEADLINE,
    OUTER,
    enclosing_frame,
    exit_frame,
    reset_frame,
)
from retrytemplate._engine.drivers import ASYNC, SYNC, awaitable_error, is_awaitable
from retrytemplate._internal.awaitables import close_unawaited
from retrytemplate.errors import AttemptTimeoutError

if TYPE_CHECKING:
    from retrytemplate._engine.context import ExecutionFrame
    from retrytemplate._engine.execution import Driver, Effect, Execution, Reply

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
    """Stands for the block in the engine's effects; the loop hands control to the user instead."""


def limited_block() -> None:
    """The same for a block with a limit."""


class BlockAdapter:
    """How a block waits and is bounded: the loop sees to the limit itself."""

    def __init__(self, driver: Driver) -> None:
        self.awaits = driver.awaits
        self.sleep = driver.sleep
        self.shielded = driver.shielded

    def limit_attempt(self, execution: Execution, effect: Effect) -> Effect:
        return limited_block, ()


SYNC_BLOCK, ASYNC_BLOCK = BlockAdapter(SYNC), BlockAdapter(ASYNC)


class BlockDriver:
    """The third driver: performs the engine's effects between the blocks."""

    __slots__ = (
        "asynchronous",
        "began",
        "closing",
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
        self.steps = execution.run(failure)
        self.asynchronous = asynchronous
        self.state = NEW
        self.closing = False
        self.limit: tuple[float, bool] | None = None  # of the attempt that is due
        self.began = 0.0
        self.pending: Any = None
        self.outcome: Reply = (None, None)

    def advance(self, reply: Any) -> int:
        """Perform effects until an attempt is due, something must be awaited, or it is over."""
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
        while True:
            try:
                function, arguments = self.steps.send(reply)
            except StopIteration as stop:
                self.state, self.outcome = ENDED, stop.value
                del reply  # a traceback from here leads back to this frame
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
                    if self.asynchronous and not self.closing:
                        self.state, self.pending = WAITING, value
                        return
                    error = awaitable_error(function, value)
                    reply = (None, None if self.closing else error)

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
                self.close((None, exc))
                raise
            except BaseException as exc:
                reply = (None, exc)
            finally:
                exit_frame(frame, token)
                self.pending = None
            self.advance(reply)
            del reply
        return self.state

    def take_outcome(self) -> Reply:
        """The outcome, which nothing here holds any more: its traceback may lead back to here."""
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
        """How the block went, as the engine wants to hear it."""
        if exception is not None and not is_expired:
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

    def close(self, reply: Any) -> int:
        """End an execution that is left: listeners are closed, the key is freed; nothing waits."""
        self.closing = True
        # The garbage collector may have ended a wait: then the engine begins another attempt.
        while self.advance(reply) == ATTEMPT_DUE:
            reply = (None, GeneratorExit())
        return self.state

    def __del__(self) -> None:
        if getattr(self, "state", ENDED) in (ATTEMPT_DUE, WAITING):
            close_unawaited(self.pending)
            # In a context of its own: the collector may run while this one is being changed.
            copy_context().run(self.close, (None, GeneratorExit()))
