"""The shutdown of a run: its steps, their limits, and the report."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from attrs import Factory, asdict, define, field, frozen, validators

from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.validation import (
    check_delay,
    check_span,
    check_text,
    checked_by,
    to_seconds,
)
from retrytemplate.workers import events
from retrytemplate.workers.engine import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from retrytemplate._internal.cancel_reason import CancelReason
    from retrytemplate.workers.message import Message
    from retrytemplate.workers.runtime.run import Run

LOG = logging.getLogger("retrytemplate.workers")
AT_LEAST = 1.0
"""Seconds for the cleanups if their limit is 0, and for a release after its limit."""


def _seconds(default: float, check: Callable[..., None] = check_delay) -> Any:
    return field(default=default, converter=to_seconds, validator=checked_by(check))


@frozen
class Cleanup:
    """A step at the end of a shutdown, such as closing a client.

    :param run: called without arguments; may be a coroutine function.
    :param resource: what stays open if the step fails, for logs and the report.
    :param timeout: seconds, or a ``timedelta``, above 0; default 2.
    """

    run: Callable[[], Any] = field(validator=validators.is_callable())
    resource: str = field(validator=checked_by(check_text))
    timeout: float = _seconds(2.0, check_span)


def _to_cleanups(given: Iterable[Cleanup]) -> tuple[Cleanup, ...]:
    return tuple(given)  # a function of ours: mypy does not infer the converter tuple


@frozen
class Shutdown:
    """The limits of a shutdown, in seconds (or ``timedelta``), each at least 0.

    :param intake: for the call of ``receive`` in progress, default 1.
    :param grace: for the attempts in flight, default 18.
    :param cancel: for the attempts that are cancelled after it, default 3.
    :param cleanup: for collected acknowledgements, the cleanups, the source and the cache, default
        5; with 0 they have 1 s.
    :param orchestrator: seconds after which the process is killed from outside, default 30; checked
        by ``WorkerRuntime.lint``.
    :param cleanups: run in order at the end.

    >>> Shutdown(grace=10.0).total
    19.0
    """

    intake: float = _seconds(1.0)
    grace: float = _seconds(18.0)
    cancel: float = _seconds(3.0)
    cleanup: float = _seconds(5.0)
    orchestrator: float = _seconds(30.0, check_span)
    cleanups: tuple[Cleanup, ...] = field(default=(), converter=_to_cleanups)

    @property
    def total(self) -> float:
        """The longest duration of a shutdown, in seconds.

        If ``grace`` is below 2 s, a queue that does not answer can add up to 2 s.
        """
        return self.intake + self.grace + self.cancel + (self.cleanup or AT_LEAST)


@frozen
class ShutdownReport:
    """How a shutdown went.

    :param settled: messages that were settled during the shutdown.
    :param released: messages that were released.
    :param cancelled: attempts that were cancelled at the end of the grace period; not those whose
        end or settlement was in progress.
    :param stuck: attempts that ignored the cancellation; their leases expire.
    :param cleanups_failed: resources whose cleanup failed.
    :param elapsed: seconds.
    :param grace_expired: whether attempts were still in flight at the end of the grace period.
    :param error: what stopped the runtime, if it was not a request.
    """

    settled: int
    released: int
    cancelled: int
    stuck: int
    cleanups_failed: tuple[str, ...]
    elapsed: float
    grace_expired: bool
    error: BaseException | None = None

    @property
    def clean(self) -> bool:
        """Whether all messages in flight were settled in the grace period, and all is closed."""
        failed = self.grace_expired or self.stuck or self.cleanups_failed
        return not failed and self.error is None


@define(eq=False)
class _Steps:
    """The steps of one shutdown, in order."""

    run: Run
    cache: Any
    reason: CancelReason
    hurry: asyncio.Event
    limits: Shutdown
    began: float
    has_received: bool = False
    cancelled: int = 0
    stuck: int = 0
    cleanups_failed: list[str] = Factory(list)

    def _announce(self, step: str) -> None:
        run = self.run
        LOG.info("%s: stopping (%s): %s", run.runtime.name, self.reason.value, step)
        run.emit(events.WorkerStopping(**run.queue(), step=step, reason=self.reason))

    async def end_intake(self, receiving: asyncio.Task[Sequence[Message]]) -> None:
        """Receive nothing more; release the prefetched and delayed messages."""
        self._announce("intake")
        self.run.intake.stop()
        if not receiving.done():
            await asyncio.wait([receiving], timeout=self.limits.intake)
        if not receiving.done():
            receiving.cancel()
            await asyncio.wait([receiving], timeout=AT_LEAST)
        rest = self.began + self.limits.intake - self.run.clock.monotonic()
        late = self._received_by(receiving)
        await self._release([*late, *self.run.intake.clear()], max(rest, AT_LEAST))

    def _received_by(self, receiving: asyncio.Task[Sequence[Message]]) -> Sequence[Message]:
        """The messages of the last receive, once it has ended."""
        if self.has_received or not receiving.done():
            return ()
        self.has_received = True
        if receiving.cancelled() or receiving.exception() is not None:
            return ()
        return receiving.result()

    async def _release(self, messages: list[Message], limit: float) -> None:
        if messages and await self.run.settlement.release(messages, limit):
            self.run.counts[Action.RELEASE] += len(messages)

    async def await_attempts(self) -> bool:
        """Wait for the messages in flight; whether the grace period ended before them."""
        self._announce("grace")
        run = self.run
        if run.busy:
            run.quiet.clear()
            ends = [asyncio.ensure_future(each.wait()) for each in (run.quiet, self.hurry)]
            end = self.began + self.limits.intake + self.limits.grace
            rest = max(0.0, end - run.clock.monotonic())
            await asyncio.wait(ends, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            for each in ends:
                each.cancel()
        return run.busy > 0

    async def cancel_attempts(self) -> None:
        """Cancel the rest, and wait for it."""
        busy = [slot.delivery for slot in self.run.slots if slot.delivery is not None]
        if busy:
            self._announce("cancel")
        self.cancelled = sum(delivery.may_cancel for delivery in busy)
        for slot in list(self.run.slots):
            slot.cancel(self.reason)
        tasks = [slot.task for slot in self.run.slots]
        if tasks:
            await asyncio.wait(tasks, timeout=self.limits.cancel if busy else AT_LEAST)
        self.run.is_over = True
        for slot in self.run.slots:
            if slot.delivery is not None and slot.delivery.may_cancel:
                self.stuck += 1
                slot.report_stuck()

    async def clean_up(
        self, receiving: asyncio.Task[Sequence[Message]], tasks: Sequence[asyncio.Task[Any]]
    ) -> None:
        """Send collected acknowledgements, run the cleanups, close source and cache."""
        self._announce("cleanup")
        for task in tasks:
            task.cancel()
        run = self.run
        limit = self.limits.cleanup or AT_LEAST
        end = run.clock.monotonic() + limit
        late = self._received_by(receiving)
        await self._release([*late, *run.intake.clear()], min(AT_LEAST, limit / 2))
        steps = [
            Cleanup(run.settlement.end, "acknowledgements", limit),
            *self.limits.cleanups,
            Cleanup(run.source.close, "source", limit),
            Cleanup(self.cache.close, "cache", limit),
        ]
        if run.registry is not None:  # before the source: the cache may use its connections
            steps.insert(-2, Cleanup(run.registry.leave, "registry", limit))
        for step in steps:
            await self._clean(step, end)
        run.threads.close()
        for slot in run.slots:
            if slot.delivery is not None and not slot.delivery.may_cancel:
                LOG.warning(
                    "%s key=%s: the message is not settled in time; the queue may deliver it again",
                    run.runtime.name,
                    slot.delivery.key,
                )

    async def _clean(self, step: Cleanup, end: float) -> None:
        rest = max(0.0, end - self.run.clock.monotonic())
        try:
            async with asyncio.timeout(min(step.timeout, rest)):
                value = step.run()
                if hasattr(value, "__await__"):
                    await value
        except Exception as exc:  # no cancellation: run() is shielded from it
            self.cleanups_failed.append(step.resource)
            LOG.error(
                "%s: the cleanup of %s failed: %s",
                self.run.runtime.name,
                step.resource,
                summary(exc),
            )


async def shut_down(
    run: Run,
    cache: Any,
    receiving: asyncio.Task[Sequence[Message]],
    tasks: Sequence[asyncio.Task[Any]],
    reason: CancelReason,
    hurry: asyncio.Event,
) -> ShutdownReport:
    """Stop a run in order.

    :param receiving: the task of the intake.
    :param tasks: cancelled before the cleanups: the renewal of visibility.
    :param hurry: set: the grace period ends at once.
    """
    steps = _Steps(run, cache, reason, hurry, run.runtime.shutdown, run.clock.monotonic())
    before = dict(run.counts)
    await steps.end_intake(receiving)
    expired = await steps.await_attempts()
    await steps.cancel_attempts()
    await steps.clean_up(receiving, tasks)
    settled = (Action.ACKNOWLEDGE, Action.REQUEUE, Action.DEAD_LETTER)
    report = ShutdownReport(
        settled=sum(run.counts[each] - before.get(each, 0) for each in settled),
        released=run.counts[Action.RELEASE] - before.get(Action.RELEASE, 0),
        cancelled=steps.cancelled,
        stuck=steps.stuck,
        cleanups_failed=tuple(steps.cleanups_failed),
        elapsed=run.clock.monotonic() - steps.began,
        grace_expired=expired,
        error=run.error,
    )
    level = logging.INFO if report.clean else logging.ERROR
    LOG.log(level, "%s: stopped: %s", run.runtime.name, report)
    numbers = asdict(report, filter=lambda field, _: field.name != "error")
    numbers |= {"clean": report.clean}
    run.emit(events.WorkerStopped(**run.queue(), reason=reason, report=numbers))
    return report
