"""The asynchronous driver of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define

from retrytemplate._internal.awaitables import is_async, is_awaitable
from retrytemplate._internal.cancel_scope import wait_shielded
from retrytemplate.batch import outbox
from retrytemplate.batch.engine.effects import (
    AfterCommit,
    Commit,
    EmitEvents,
    FindUnsent,
    Process,
    Processed,
    Read,
    ReadRecords,
    SendOutbox,
    Try,
    Write,
    WriteJournal,
    failing,
)
from retrytemplate.batch.runner.base import _Driver, _guard_stop_iteration, _log_errors
from retrytemplate.batch.runner.failure_capture import AsyncFailureCapture, first_attempt_record
from retrytemplate.classify.exceptions import is_never_retried
from retrytemplate.errors import MisuseError
from retrytemplate.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable

    from retrytemplate.batch.outbox import UnsentMessage

__all__ = ["AsyncDriver"]


@define
class AsyncDriver(_Driver):
    """Performs a run in a task; of the processor as many calls at once as are wanted."""

    async def perform(self, steps: Generator[Any, Any, Any]) -> Any:
        """Do what the rules ask for, to their end; what they return."""
        does: Any = {
            Read: self._read,
            Process: self._process,
            Write: self._write,
            Try: self._try,
            Commit: self._commit,
            WriteJournal: self._write_journal,
            EmitEvents: self._emit_events,
            AfterCommit: self._after_commit,
            FindUnsent: self._find_unsent,
            SendOutbox: self._send_outbox,
        }
        try:
            effect = next(steps)
            while True:
                self.heartbeat.check()
                try:
                    answer = await does[type(effect)](effect)
                except Exception as exc:
                    effect = steps.throw(exc)
                else:
                    effect = steps.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            await self._close_shared()
            if self._cursor is not None:
                with _log_errors(self._cursor.close):
                    await _awaited(self._cursor.close())

    async def _read(self, effect: Read) -> ReadRecords:
        old, cursor = self._cursor_at(effect.position)
        if old is not None:
            await _awaited(old.close())
        records = await _awaited(cursor.read(effect.limit))
        return ReadRecords(records, cursor.position, getattr(cursor, "progress", None))

    async def _process(self, effect: Process) -> Processed:
        done = Processed([None] * len(effect.items))
        items = iter(enumerate(effect.items))
        over = False
        call = self._as_async(self.processor)

        async def work() -> None:
            nonlocal over
            for index, item in items:
                if over:
                    return
                if not await self._process_item(done, index, call, item):
                    over = True

        if self.concurrency == 1:
            await work()
        else:
            await _gather([work() for _ in range(min(self.concurrency, len(effect.items)))])
        return done

    async def _process_item(
        self, done: Processed, index: int, call: Callable[[Any], Awaitable[Any]], item: Any
    ) -> bool:
        """False: begin nothing further."""
        capture = AsyncFailureCapture(call)
        if not self._needs_template:
            try:
                done.values[index] = await call(item)
                return True
            except Exception as exc:
                capture = AsyncFailureCapture(call, exc)
        outcome = await self.template.outcome_async(capture, item)
        return self._record_outcome(done, index, capture, outcome)

    def _as_async(self, processor: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
        """The processor, to be awaited; of one that blocks several calls at once go in threads."""
        import asyncio

        if is_async(processor):
            return processor
        if self.concurrency > 1:

            async def in_thread(item: Any) -> Any:
                return await _awaited(
                    await asyncio.to_thread(_guard_stop_iteration, processor, item)
                )

            return in_thread

        async def call(item: Any) -> Any:
            return await _awaited(processor(item))

        return call

    async def _verify(self) -> None:
        """End the run if the source of what is to be committed has changed."""
        with failing():
            verify = getattr(self._cursor, "verify", None)
            if verify is not None:
                await _awaited(verify())

    async def _write(self, effect: Write) -> Outcome[Any]:
        async with self.transactions.attempts(self.run, effect, self._verify) as attempts:
            template, capture = (
                self._template_for(attempts, effect),
                AsyncFailureCapture(attempts.run_attempt),
            )
            outcome: Outcome[Any] = await template.outcome_async(capture)
        return self._write_outcome(attempts, capture, await attempts.resolve_outcome(outcome))

    async def _try(self, effect: Try) -> Outcome[Any] | None:
        if self._shared is None:
            self._shared = self.transactions.shared(self.run, self._verify)
        attempts = self.transactions.attempts(self.run, effect, self._verify, self._shared)
        capture, outcome = await self._attempt(attempts, effect)
        shared = attempts.shared_outcome(outcome)
        if shared is None:
            await self._close_shared()
            return None
        return self._check_outcome(attempts, capture, shared)

    async def _attempt(
        self, attempts: Any, effect: Try
    ) -> tuple[AsyncFailureCapture | None, Outcome[Any]]:
        """The outcome of a call, made by the template only where that fails and may be retried."""
        failure = None
        if not self._needs_template:
            try:
                return None, Outcome(await attempts.run_attempt(), None, 1, (), 0.0)
            except Exception as exc:
                if effect.once and not is_never_retried(exc):
                    record = first_attempt_record(exc, self._redact)
                    return None, Outcome(None, exc, 1, (record,), 0.0)
                failure = exc
        capture = AsyncFailureCapture(attempts.run_attempt, failure)
        del failure  # its traceback holds this frame
        return capture, await self._template_for(attempts, effect).outcome_async(capture)

    async def _commit(self, effect: Commit) -> bool:
        committed: bool = await self._shared.commit(effect.update)
        await self._close_shared()
        if committed:
            self.run.apply(effect.update)
        return committed

    async def _close_shared(self) -> None:
        if self._shared is not None:
            await self._shared.close()
            self._shared = None

    async def _write_journal(self, effect: WriteJournal) -> None:
        await self._close_shared()
        await self._verify()
        await self.transactions.run_in_transaction(
            self.transactions.ledger.close, self.run, effect.update
        )
        self.run.apply(effect.update)

    async def _emit_events(self, effect: EmitEvents) -> None:
        for listener in self.listeners:
            for event in effect.events:
                with _log_errors(listener.on_event):
                    await _awaited(listener.on_event(event))

    async def _after_commit(self, effect: AfterCommit) -> None:
        assert self.after_commit is not None
        with _log_errors(self.after_commit):
            await _awaited(self.after_commit(effect.items))

    async def _find_unsent(self, effect: FindUnsent) -> list[UnsentMessage]:
        found: list[UnsentMessage] = await self.transactions.run_in_transaction(
            outbox.unsent, effect
        )
        return found

    async def _send_outbox(self, effect: SendOutbox) -> BaseException | None:
        assert self.outbox is not None
        sent = await self._sending.outcome_async(self.outbox.send, effect.message.message)
        if isinstance(sent.exception, MisuseError):
            raise sent.exception
        if sent.exception is None:
            await self.transactions.run_in_transaction(outbox.delete, effect.message.id)
        return sent.exception


async def _gather(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at once; the first that raises ends the others, and they are over before it is raised.

    A group of tasks would take a cancellation that comes out of one of them for its own end.
    """
    import asyncio

    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await wait_shielded(tasks)
    for task in ended:
        task.result()


async def _awaited(value: Any) -> Any:
    return await value if is_awaitable(value) else value
