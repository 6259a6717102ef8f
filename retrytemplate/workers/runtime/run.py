"""One run of a runtime: its slots, its intake, and the renewal of visibility."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.failure_text import summary, type_name
from retrytemplate._internal.formatting import format_count
from retrytemplate.control.events import notify_listeners
from retrytemplate.errors import CacheUnavailableError
from retrytemplate.workers import events
from retrytemplate.workers.engine import OUTCOMES, Action, Emit, Outcome, Result, Rules
from retrytemplate.workers.message import DamagedMessage, DeadLetter, Message
from retrytemplate.workers.runtime.attempts import Attempts, Delivery
from retrytemplate.workers.runtime.intake import Intake
from retrytemplate.workers.runtime.slots import Slot
from retrytemplate.workers.runtime.snapshot import LastFailure
from retrytemplate.workers.runtime.threads import HandlerThreads
from retrytemplate.workers.settlement import Settlement, undecodable_letter
from retrytemplate.workers.settling_cache import SettlingCache

if TYPE_CHECKING:
    from retrytemplate.workers.registry import Registry

LOG = logging.getLogger("retrytemplate.workers")

GATE_MARGIN = 5.0
"""Seconds beyond the attempt timeout that a suspect waits for the attempts beside it."""
STUCK_AFTER = 1.0  # seconds after the cancellation of an attempt
LONGEST_TICK = 5.0


class Run:
    """The state of a runtime between its start and its end.

    :param runtime: the ``WorkerRuntime``, for its settings.
    :param settles_in_transaction: whether source and cache are in one database.
    """

    def __init__(
        self,
        runtime: Any,
        cache: Any,
        gate: Any,
        registry: Registry | None = None,
        *,
        settles_in_transaction: bool = False,
    ) -> None:
        source, clock = runtime.source, runtime.clock
        self.runtime = runtime
        self.source = source
        self.clock = clock
        self.gate = gate
        self.gate_timeout = runtime.attempt_timeout + GATE_MARGIN
        by_connection, longest = source.visibility_timeout is None, runtime.max_local_delay
        self.rules = Rules(runtime.retry, source.supports_delay, by_connection, longest)
        self.permits = runtime.concurrency
        self.counts: Counter[str] = Counter()
        self.slots: set[Slot] = set()
        self.suspects: dict[Any, float] = {}
        self.last_failure: LastFailure | None = None
        self.longest_stall = 0.0
        self.is_over = False
        self.error: BaseException | None = None
        self.failed = asyncio.Event()
        self.quiet = asyncio.Event()
        # Of the runtime's start: a slot is created wherever a message is dispatched, also inside an
        # attempt, whose context it must not inherit.
        self.context = copy_context()
        self._idle: list[Slot] = []
        self.threads = HandlerThreads(
            runtime.handler, runtime.name, runtime.concurrency, gate, self._threads_exhausted
        )
        self.settlement = Settlement(source, runtime.settle_timeout, self._ack_failed)
        if settles_in_transaction:
            cache = SettlingCache(cache, source, self.settlement)
        self.attempts = Attempts(self, cache)
        self.intake = Intake(self)
        self.registry = registry
        self.intake.on_first = None if registry is None else registry.received

    # -- messages --------------------------------------------------------------------------------

    def deliver(self, message: Message) -> Delivery:
        """A received message: its key, its decoded body, or why it has neither."""
        runtime = self.runtime
        delivery = Delivery(message, message.id, message)
        try:
            if runtime.key is not None:
                delivery.key = runtime.key(message)
            self.attempts.template.scoped_key(delivery.key)
            if isinstance(message, DamagedMessage):
                raise ValueError(message.damage)
            if runtime.decode is not None:
                delivery.payload = runtime.decode(message)
        except Exception as exc:
            delivery.key, delivery.error = message.id, exc
        return delivery

    def free_places(self) -> int:
        prefetch: int = self.runtime.prefetch
        return prefetch - len(self.intake.ready) - self.busy

    @property
    def busy(self) -> int:
        """Messages that were received and not settled, without those that wait."""
        return len(self.slots) - len(self._idle)

    @property
    def has_no_idle_slot(self) -> bool:
        """Whether every slot is busy: none would add to the collected acknowledgements."""
        return not self._idle and len(self.slots) >= 2 * self.runtime.concurrency

    def dispatch(self) -> None:
        """Give waiting messages to slots, as far as permits and slots are free."""
        ready = self.intake.ready
        if not ready:
            return
        while ready and self.permits and self.intake.is_open:
            if self._idle:
                slot = self._idle.pop()
            elif len(self.slots) < 2 * self.runtime.concurrency:
                slot = Slot(self)
                self.slots.add(slot)
                slot.task.add_done_callback(partial(self._slot_ended, slot))
            else:
                return
            self.permits -= 1
            slot.start(ready.popleft())
        if not ready:
            self.intake.notify()

    def idle(self, slot: Slot) -> None:
        """A slot has no message."""
        self._idle.append(slot)
        self.dispatch()
        self.intake.notify()
        if not self.busy:
            self.quiet.set()

    def release_permit(self) -> None:
        """An attempt ended; another one may begin."""
        self.permits += 1
        self.dispatch()

    def ended(self, result: Result) -> Delivery | None:
        """A message was processed; the slot's next one, or None."""
        self.intake.note(result)
        ready = self.intake.ready
        following = None
        if ready and self.permits and self.intake.is_open:
            self.permits -= 1
            following = ready.popleft()
            self.intake.notify()
        return following

    def delay(self, delivery: Delivery, seconds: float) -> None:
        """Keep a message until its next attempt."""
        if not delivery.is_lost:
            self.intake.delay(delivery, seconds)

    def _slot_ended(self, slot: Slot, task: asyncio.Task[None]) -> None:
        self.slots.discard(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        if not self.busy:
            self.quiet.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:  # an error of this library, or a BaseException of a handler
            self.fail(error)
        self.intake.notify()

    def fail(self, error: BaseException) -> None:
        """Stop the runtime with an error."""
        if self.error is None:
            self.error = error
            LOG.error("%s: the runtime stops: %s", self.runtime.name, summary(error))
        self.failed.set()

    def undecodable(self, delivery: Delivery, reason: str) -> DeadLetter:
        """The dead letter of a message that cannot be decoded."""
        key = self.attempts.template.scoped_key(delivery.key)
        now, code_version = self.clock.time(), self.runtime.code_version
        return undecodable_letter(delivery.message, key, reason, now, code_version)

    def _threads_exhausted(self, error: Exception) -> None:
        if not self.intake.is_stopped:  # else a shutdown has cancelled the attempts
            self.fail(error)

    # -- maintenance -----------------------------------------------------------------------------

    def owned(self) -> list[Delivery]:
        """All messages that were received and not settled."""
        active = [slot.delivery for slot in self.slots if slot.delivery is not None]
        return [*self.intake.ready, *self.intake.delayed, *active]

    async def maintain(self) -> None:
        """Renew the visibility of all messages; find stuck attempts and stalls of the loop."""
        visibility = self.source.visibility_timeout
        tick = LONGEST_TICK if visibility is None else min(LONGEST_TICK, visibility / 3)
        renewed = self.clock.monotonic()
        while True:
            slept = self.clock.monotonic()
            await asyncio.sleep(tick)
            now = self.clock.monotonic()
            self.longest_stall = max(self.longest_stall, now - slept - tick)
            self._find_stuck(now)
            if visibility is not None and now - renewed >= visibility / 3 - tick / 2:
                renewed = now if await self._extend() else renewed

    async def _extend(self) -> bool:
        """Renew the visibility timeout of all messages; False: try again at the next tick."""
        owned = self.owned()
        if not owned:
            return True
        by_message = {id(delivery.message): delivery for delivery in owned}
        try:
            lost = await self.source.extend([delivery.message for delivery in owned])
        except Exception as exc:  # not a cancellation
            LOG.warning(
                "%s: cannot extend the visibility timeout of %s: %s; the worker tries again; "
                "a message whose timeout ends before is delivered to another worker",
                self.runtime.name,
                format_count(len(owned), "message"),
                summary(exc),
            )
            return False
        deliveries = [by_message[id(message)] for message in lost if id(message) in by_message]
        for delivery in deliveries:
            delivery.is_lost = True
        self.intake.drop(deliveries)
        return True

    def _find_stuck(self, now: float) -> None:
        limit = self.runtime.attempt_timeout + STUCK_AFTER
        for slot in self.slots:
            delivery = slot.delivery
            if delivery is None or slot.is_stuck or not delivery.may_cancel:
                continue
            if delivery.began is not None and now - delivery.began > limit:
                slot.is_stuck = True
                slot.report_stuck()
        if self.stuck >= self.runtime.concurrency:
            self.fail(RuntimeError(f"all {self.stuck} attempts ignore their cancellation"))

    @property
    def stuck(self) -> int:
        """Attempts that ignore their cancellation."""
        return sum(slot.is_stuck for slot in self.slots)

    # -- reports ---------------------------------------------------------------------------------

    def emit(self, event: events.QueueEvent) -> None:
        """Notify the listeners."""
        notify_listeners(self.runtime.listeners, [event])

    def report(self, delivery: Delivery, effect: Emit) -> None:
        """Count, log and publish a step of a message."""
        runtime, result = self.runtime, effect.result
        if effect.event == "suspected":
            self.suspects[delivery.key] = self.clock.time()
            self._log(delivery, OUTCOMES[Outcome.LOST_SHARED].level, result)
            if runtime.listeners:
                self.emit(events.MessageSuspected(**self._of(delivery)))
            return
        self._log(delivery, _level_of(result), result)
        if effect.event == "exclusive_timed_out":
            self.emit(events.MessageExclusiveTimedOut(**self._of(delivery)))
            return
        self.counts[result.action] += 1
        if result.action is not Action.RELEASE:
            self.suspects.pop(delivery.key, None)
        if isinstance(result.error, Exception):
            self._note_failure(delivery, result, summary(result.error))
        elif result.action is Action.DEAD_LETTER:
            self._note_failure(delivery, result, result.reason)
        if runtime.listeners:
            self.emit(
                events.MessageSettled(
                    **self._of(delivery),
                    action=result.action.value,
                    outcome=result.outcome.value,
                    attempt=delivery.attempt,
                    crashes=delivery.crashes,
                    reason=result.reason,
                    error_type=_error_type(result),
                )
            )

    def _note_failure(self, delivery: Delivery, result: Result, error: str) -> None:
        self.last_failure = LastFailure(
            at=self.clock.time(),
            key=str(delivery.key),
            attempt=delivery.attempt,
            max_attempts=self.runtime.retry.max_attempts,
            error=error,
            action=result.action.value,
            delay=result.delay,
        )

    def _log(self, delivery: Delivery, level: int | None, result: Result) -> None:
        if level is None or not LOG.isEnabledFor(level):
            return
        error = "" if result.error is None else summary(result.error)
        delay = f" after {result.delay:.3g} s" if result.delay else ""
        LOG.log(
            level,
            "%s key=%s: attempt %s of %s: %s; %s%s",
            self.runtime.name,
            delivery.key,
            delivery.attempt,
            self.runtime.retry.max_attempts,
            error or result.reason or result.outcome.value,
            result.action.value,
            delay,
        )

    def exclusive_ended(self, delivery: Delivery, waited: float, ran: float) -> None:
        """Publish the end of an exclusive attempt."""
        self.emit(events.MessageExclusive(**self._of(delivery), waited=waited, ran=ran))

    def crash_attributed(self, delivery: Delivery) -> None:
        self.counts["crashes"] += 1
        LOG.warning(
            "%s key=%s: its process crashed in an exclusive attempt, crash %s of %s",
            self.runtime.name,
            delivery.key,
            delivery.crashes,
            self.runtime.retry.max_crashes,
        )
        self.emit(events.MessageCrashAttributed(**self._of(delivery), crashes=delivery.crashes))

    def paused(self, reason: str, seconds: float) -> None:
        self.emit(events.QueuePaused(**self.queue(), reason=reason, seconds=seconds))

    def _ack_failed(self, reason: str, count: int) -> None:
        self.counts["ack_failed"] += count
        then = "the queue delivers each again: check its server, or raise settle_timeout"
        if reason == "rejected":
            then = "the queue has delivered each to another worker, which settles it"
        messages = format_count(count, "message")
        LOG.warning("%s: cannot settle %s: %s; %s", self.runtime.name, messages, reason, then)
        self.emit(events.QueueAckFailed(**self.queue(), reason=reason, count=count))

    def receive_failed(self, error: Exception) -> None:
        self.counts["receive_failed"] += 1
        self.emit(events.QueueReceiveFailed(**self.queue(), error=error))

    def queue(self) -> dict[str, Any]:
        return {"name": self.runtime.name, "queue_name": self.source.name}

    def _of(self, delivery: Delivery) -> dict[str, Any]:
        return {**self.queue(), "key": delivery.key}


def _level_of(result: Result) -> int | None:
    is_store = result.outcome is Outcome.STORE_UNAVAILABLE
    if is_store and not isinstance(result.error, CacheUnavailableError):
        return logging.ERROR  # of a guard or a listener: it concerns this message
    return OUTCOMES[result.outcome].level


def _error_type(result: Result) -> str | None:
    if result.error is not None:
        return type_name(result.error)
    history = () if result.letter is None else result.letter.history
    return history[-1].type_name if history else None
