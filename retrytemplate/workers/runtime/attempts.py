"""Executions of one message: the template around the handler, and its recovery, the dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from attrs import define

from retrytemplate._internal.awaitables import is_async
from retrytemplate._internal.failure_text import to_recorded_failure
from retrytemplate.backoff.base import Backoff, RandomSource
from retrytemplate.classify.exceptions import is_never_retried
from retrytemplate.errors import (
    AttemptInProgressError,
    AttemptLostError,
    AttemptTimeoutError,
    Rejected,
    RetryLater,
)
from retrytemplate.listeners.base import RetryListener
from retrytemplate.state import RetryState
from retrytemplate.template import RetryTemplate
from retrytemplate.workers.crash_attribution import RetryRequested
from retrytemplate.workers.engine import Attempted, DeadLettered, Interrupted
from retrytemplate.workers.message import DeadLetter, Message, Reject, Release, Retry
from retrytemplate.workers.settlement import Settlement, is_reject, letter_of
from retrytemplate.workers.settling_cache import SettlingCache

if TYPE_CHECKING:
    from retrytemplate._engine.context import RetryContext

DEFAULT_DELAY = 1.0
"""Seconds until a message is processed again where nothing says when."""
SHORTEST_DELAY = 0.01


@define(eq=False)
class Delivery:
    """One delivery of a message, from ``receive`` until it is settled.

    :param payload: given to the handler: the message, or its decoded body.
    :param error: why the body cannot be decoded.
    :param is_lost: whether the source does not own the message any more.
    :param is_settled: whether the transaction that ended the attempt settled the message.
    :param may_cancel: a cancellation reaches the handler and the steps before it, never the end of
        an attempt or the settlement.
    :param began: when the handler was called (monotonic).
    """

    message: Message
    key: Any
    payload: Any = None
    error: Exception | None = None
    is_suspect: bool = False
    is_lost: bool = False
    is_settled: bool = False
    attempt: int = 0
    crashes: int = 0
    letter_state: Any = None
    may_cancel: bool = True
    began: float | None = None


class RequestedDelayBackoff(Backoff):
    """The delay that a handler's ``Retry`` asks for, else that of another backoff."""

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff

    def start(self) -> Any:
        return self.backoff.start()

    def next(
        self, state: Any, failure: BaseException, random: RandomSource
    ) -> tuple[float | None, Any]:
        if isinstance(failure, RetryRequested) and failure.delay is not None:
            return failure.delay, state
        return self.backoff.next(state, failure, random)


class _Hooks(RetryListener):
    """Notes the delays, and ends an execution whose end the store could not record.

    A success that is not recorded is never acknowledged, unless the cache says "run_unguarded".
    """

    def __init__(self, is_guarded: bool) -> None:
        self.delays: WeakKeyDictionary[RetryContext, float] = WeakKeyDictionary()
        self._is_guarded = is_guarded

    def on_backoff(self, context: RetryContext, delay: float) -> None:
        self.delays[context] = delay

    def on_store_error(self, context: RetryContext, exception: BaseException) -> None:
        if self._is_guarded:
            raise exception


class Attempts:
    """Executes messages with the template of a runtime.

    :param run: the ``Run``, whose settlement, threads and counts of crashes it uses.
    """

    def __init__(self, run: Any, cache: Any) -> None:
        runtime = run.runtime
        self.run = run
        self.runtime = runtime
        self.settlement: Settlement = run.settlement
        self._is_async = is_async(runtime.handler)
        self._hooks = _Hooks(getattr(cache, "on_store_error", "raise") != "run_unguarded")
        self.settling = cache if isinstance(cache, SettlingCache) else None
        self.template = RetryTemplate(
            policy=runtime.retry,
            backoff=RequestedDelayBackoff(runtime.backoff),
            name=runtime.name,
            listeners=(self._hooks,),
            guards=runtime.guards,
            cache=cache,
            attempt_timeout=runtime.attempt_timeout,
            clock=runtime.clock,
            random=runtime.random,
        )

    async def execute(self, delivery: Delivery, exclusive: bool) -> Attempted:
        """Claim the key, run the handler, end the attempt; or run the recovery."""
        execution = _Execution(self, delivery)
        remember = self.runtime.remember
        state = RetryState(
            delivery.key, defer_backoff="raise", remember=remember, exclusive=exclusive
        )
        try:
            value = await self.template.execute_async(
                execution.run, recovery=execution.recover, state=state
            )
            await execution.write_letter()
            return Attempted(value)
        except GeneratorExit:
            raise
        except BaseException as exc:  # a cancellation, too: it ends the generator of the message
            return self._failed(execution, exc)
        finally:
            if self.settling is not None:
                self.settling.forget_ending(execution)
            # Both refer to this execution: without the cycles it is freed at once.
            execution.context = execution.failure = None

    def _failed(self, execution: _Execution, error: BaseException) -> Attempted:
        context = execution.context
        is_timeout = context is not None and isinstance(error, AttemptTimeoutError)
        is_handlers = error is execution.failure or is_timeout
        return Attempted(
            None,
            error,
            is_handlers=is_handlers,
            is_recoverys=execution.is_recovering,
            is_last=is_handlers and context is not None and context.stop_reason is not None,
            delay=self._delay(execution, error),
        )

    def _delay(self, execution: _Execution, error: BaseException) -> float:
        """Seconds until the message is processed again."""
        if execution.is_recovering:
            return self._letter_delay(execution.delivery, error)
        cause = error.cause if isinstance(error, Interrupted) else error
        if isinstance(cause, Rejected | RetryLater):
            return DEFAULT_DELAY if cause.retry_after is None else cause.retry_after
        if isinstance(cause, AttemptInProgressError):
            if cause.lease_until is None:
                return DEFAULT_DELAY
            return max(cause.lease_until - self.template.clock.time(), SHORTEST_DELAY)
        if execution.context is None:
            return 0.0
        return self.deferred_delay(execution.context) or 0.0

    def deferred_delay(self, context: RetryContext) -> float | None:
        """Seconds until the attempt of a later delivery; None: no attempt follows."""
        return self._hooks.delays.get(context)

    def _letter_delay(self, delivery: Delivery, error: BaseException) -> float:
        backoff: Backoff = self.runtime.backoff
        state = backoff.start() if delivery.letter_state is None else delivery.letter_state
        delay, delivery.letter_state = backoff.next(state, error, self.template.random)
        return DEFAULT_DELAY if delay is None else delay

    async def call(self, delivery: Delivery, context: RetryContext) -> Any:
        """Call the handler; a plain function runs in a thread."""
        if self._is_async:
            return await self.runtime.handler(delivery.payload, context)
        return await self.run.threads.call(delivery.payload, context)


class _Execution:
    """One execution of a message: the callback of the template, and its recovery.

    It is the ``Ending`` of its attempt.
    """

    def __init__(self, attempts: Attempts, delivery: Delivery) -> None:
        self.attempts = attempts
        self.delivery = delivery
        self.context: RetryContext | None = None
        self.failure: BaseException | None = None
        self.letter: DeadLetter | None = None
        self.is_recovering = False

    async def run(self, context: RetryContext) -> Any:
        """The callback: run the handler, turn its outcome into a value or a failure."""
        self._note(context)
        attempts, delivery = self.attempts, self.delivery
        delivery.began = attempts.runtime.clock.monotonic()
        try:
            value = await attempts.call(delivery, context)
        except Exception as exc:  # a cancellation passes: the template gives the key back
            delivery.may_cancel = False
            self.failure = self._failure(exc)
            raise self.failure from (None if self.failure is exc else exc)
        delivery.may_cancel = False
        if isinstance(value, Retry):
            self.failure = RetryRequested(value.reason, value.delay)
        elif isinstance(value, Reject):
            self.failure = value
        elif isinstance(value, Release):
            raise Interrupted(value)
        if self.failure is not None:
            raise self.failure
        return value

    def _failure(self, error: Exception) -> BaseException:
        """The failure that the template counts, or the interruption that it does not."""
        policy = self.attempts.runtime.retry
        if isinstance(error, Rejected | RetryLater) and not policy.names(error):
            return Interrupted(error)
        if is_never_retried(error):  # the template would not count it
            return to_recorded_failure(error)
        return error

    async def recover(self, context: RetryContext) -> DeadLettered:
        """The recovery: write the dead letter, then acknowledge the message."""
        self._note(context)
        attempts, delivery = self.attempts, self.delivery
        delivery.may_cancel = False
        letter = letter_of(
            delivery.message,
            attempts.template.scoped_key(delivery.key),
            context,
            attempts.runtime.clock.time(),
            attempts.runtime.code_version,
        )
        self.letter = letter
        if attempts.settling is None or context.fence is None:
            await self.write_letter()
        return DeadLettered(letter, is_reject(context.last_exception))

    async def write_letter(self) -> None:
        """Write the dead letter, unless the end of the attempt has settled the message."""
        attempts, delivery = self.attempts, self.delivery
        if self.letter is None or delivery.is_settled:
            return
        self.is_recovering = True
        error = await attempts.settlement.perform(
            attempts.runtime.source.dead_letter, delivery.message, self.letter
        )
        if error is not None:
            raise error
        self.is_recovering = False
        delivery.is_settled = True

    @property
    def message(self) -> Message:
        return self.delivery.message

    @property
    def is_lost(self) -> bool:
        return self.delivery.is_lost

    @property
    def is_dead_lettered(self) -> bool:
        return self.letter is not None

    @property
    def is_requeued(self) -> bool:
        context = self.context
        return context is not None and self.attempts.deferred_delay(context) is not None

    async def settle(self, connection: Any) -> None:
        source: Any = self.attempts.runtime.source
        context, message = self.context, self.message
        assert context is not None
        if self.letter is not None:
            await source.dead_letter(message, self.letter, connection=connection)
        elif self.is_requeued:
            failure = context.last_exception
            reason = str(failure) or type(failure).__name__
            delay = self.attempts.deferred_delay(context)
            await source.requeue(message, delay, reason, connection=connection)
        else:
            await message.acknowledge_in(connection)

    def settled(self, by_us: bool) -> None:
        self.delivery.is_settled, self.delivery.is_lost = by_us, not by_us

    def _note(self, context: RetryContext) -> None:
        self.context, delivery = context, self.delivery
        if self.attempts.settling is not None and context.fence is not None:
            key = self.attempts.template.scoped_key(delivery.key)
            self.attempts.settling.expect(key, context.fence, self)
        delivery.attempt = context.attempt
        if context.retry_count or context.last_exception is not None:
            delivery.crashes = context.attributes.get("crashes", 0)
            lost = context.last_exception
            if isinstance(lost, AttemptLostError) and lost.exclusive:
                self.attempts.run.crash_attributed(delivery)
