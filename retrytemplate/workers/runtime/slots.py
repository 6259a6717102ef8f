"""Slots: the tasks that process messages; each performs the effects of the engine, one by one."""

from __future__ import annotations

import asyncio
import logging
from io import StringIO
from typing import TYPE_CHECKING, Any

from retrytemplate.errors import GateTimeoutError
from retrytemplate.workers.engine import (
    Action,
    Emit,
    EnterGate,
    Execute,
    LeaveGate,
    Settle,
    process,
    process_undecodable,
)
from retrytemplate.workers.settlement import NotSettledError, Settlement

if TYPE_CHECKING:
    from retrytemplate._internal.cancel_reason import CancelReason
    from retrytemplate.workers.engine import Delay, Reply, Result
    from retrytemplate.workers.runtime.attempts import Delivery

LOG = logging.getLogger("retrytemplate.workers")
DONE: Reply = None, None


class Slot:
    """A task that processes one message after the other.

    A slot holds one of the run's permits from the gate until the end of the attempt, so that a slot
    that waits for a settlement does not keep the next attempt waiting.

    :param run: the ``Run`` that it belongs to.
    """

    def __init__(self, run: Any) -> None:
        self.delivery: Delivery | None = None
        self.is_stuck = False
        self._run = run
        self._entry: Any = None
        self._is_exclusive = False
        self._entered = self._waited = 0.0
        self._has_permit = False
        self._next: asyncio.Future[None] | None = None
        self.task = asyncio.get_running_loop().create_task(self._loop(), context=run.context.copy())

    @property
    def began(self) -> float | None:
        """When the handler was called (monotonic); None: it does not run."""
        delivery = self.delivery
        return None if delivery is None else delivery.began

    @property
    def exclusive_since(self) -> float | None:
        """When it entered the gate exclusively (monotonic); None: it is not inside."""
        return self._entered if self._is_exclusive and self._entry is not None else None

    def start(self, delivery: Delivery) -> None:
        """Process a message; the slot is idle."""
        self.delivery, self._has_permit = delivery, True
        if self._next is not None:
            self._next.set_result(None)

    def cancel(self, reason: CancelReason) -> None:
        """Cancel what may be cancelled: the wait for the gate, or the handler."""
        if self.delivery is None or self.delivery.may_cancel:
            self.task.cancel(reason)

    def report_stuck(self) -> None:
        """Log the attempt, which ignores its cancellation, with its stack."""
        text = StringIO()
        self.task.print_stack(file=text)
        key = None if self.delivery is None else self.delivery.key
        LOG.error(
            "%s key=%s: the attempt ignores its cancellation\n%s",
            self._run.runtime.name,
            key,
            text.getvalue(),
        )

    async def _loop(self) -> None:
        run, loop = self._run, asyncio.get_running_loop()
        while not run.is_over:
            if self.delivery is None:
                self._next = loop.create_future()
                run.idle(self)
                await self._next
                self._next = None
            delivery = self.delivery
            assert delivery is not None
            try:
                result = await self._process(delivery)
            finally:
                self._leave_gate()
                self._release_permit()
                self.delivery = None
                self.is_stuck = False
            if result.error is not None and not isinstance(result.error, Exception):
                raise result.error
            self.delivery = run.ended(result)
            self._has_permit = self.delivery is not None
            del delivery, result  # an idle slot keeps no claim alive through a traceback

    async def _process(self, delivery: Delivery) -> Result:
        """Perform the effects of a message, one after the other."""
        run = self._run
        delivery.may_cancel, delivery.began = True, None
        if delivery.error is None:
            steps = process(run.rules, delivery.is_suspect)
        else:
            steps = process_undecodable(str(delivery.error) or type(delivery.error).__name__)
        reply: Reply | None = None
        try:
            while True:
                effect = steps.send(reply)  # type: ignore[arg-type]  # None starts it
                reply = DONE
                if isinstance(effect, EnterGate):
                    reply = None, await self._enter(effect.exclusive)
                elif isinstance(effect, Execute):
                    reply = await run.attempts.execute(delivery, effect.exclusive), None
                elif isinstance(effect, Settle):
                    delivery.may_cancel = False
                    self._release_permit()
                    reply = None, await self._settle(delivery, effect)
                elif isinstance(effect, LeaveGate):
                    self._leave_gate(delivery)
                elif isinstance(effect, Emit):
                    run.report(delivery, effect)
                else:
                    self._delay(delivery, effect)
        except StopIteration as end:
            result: Result = end.value
            return result

    def _delay(self, delivery: Delivery, effect: Delay) -> None:
        delivery.is_suspect, delivery.may_cancel = effect.is_suspect, True
        self._release_permit()
        self._run.delay(delivery, effect.delay)

    async def _enter(self, exclusive: bool) -> BaseException | None:
        run = self._run
        asked = run.clock.monotonic()
        entry = run.gate.exclusive(run.gate_timeout) if exclusive else run.gate.shared()
        try:
            await entry.__aenter__()
        except (GateTimeoutError, asyncio.CancelledError) as exc:  # the engine releases the message
            return exc
        self._entry, self._is_exclusive = entry, exclusive
        self._entered = run.clock.monotonic()
        self._waited = self._entered - asked
        return None

    def _leave_gate(self, delivery: Delivery | None = None) -> None:
        entry, self._entry = self._entry, None
        if entry is None:
            return
        entry.__exit__(None, None, None)
        if self._is_exclusive and delivery is not None:
            self._run.exclusive_ended(
                delivery, self._waited, self._run.clock.monotonic() - self._entered
            )

    def _release_permit(self) -> None:
        if self._has_permit:
            self._has_permit = False
            self._run.release_permit()

    async def _settle(self, delivery: Delivery, effect: Settle) -> BaseException | None:
        run, message = self._run, delivery.message
        settlement: Settlement = run.settlement
        if delivery.is_settled:  # by the transaction that ended the attempt
            return None
        if run.is_over:  # the attempt was stuck
            return NotSettledError("the runtime has stopped")
        if delivery.is_lost:
            return None  # another worker settles it
        if effect.action is Action.ACKNOWLEDGE:
            at_once = self._is_exclusive or run.has_no_idle_slot
            return await settlement.acknowledge(message, at_once=at_once)
        if effect.action is Action.REQUEUE:
            return await settlement.perform(
                run.source.requeue, message, effect.delay, effect.reason
            )
        if effect.action is Action.DEAD_LETTER:
            letter = run.undecodable(delivery, effect.reason)
            return await settlement.perform(run.source.dead_letter, message, letter)
        return await settlement.perform(run.source.release, [message])
