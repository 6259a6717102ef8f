"""The asynchronous driver of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define

from retrytemplate._internal.awaitables import is_async, is_awaitable
from retrytemplate._storage.cancellation import wait_shielded
from retrytemplate.batch import outbox
from retrytemplate.batch.engine.effects import (
    After,
    Commit,
    FindUnsent,
    Mark,
    Process,
    Processed,
    Read,
    ReadRecords,
    Send,
    Tell,
    Try,
    Write,
    failing,
)
from retrytemplate.batch.runner.base import _Driver, _logged, _unstopped
from retrytemplate.batch.runner.failure_capture import AsyncWatched, record_of
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
            Mark: self._mark,
            Tell: self._tell,
            After: self._after,
            FindUnsent: self._find_unsent,
            Send: self._send,
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
                with _logged(self._cursor.close):
                    await _awaited(self._cursor.close())

    async def _read(self, effect: Read) -> ReadRecords:
        old, cursor = self._at(effect.position)
        if old is not None:
            await _awaited(old.close())
        records = await _awaited(cursor.read(effect.limit))
        return ReadRecords(records, cursor.position, getattr(cursor, "progress", None))

    async def _process(self, effect: Process) -> Processed:
        done = Processed([None] * len(effect.items))
        items = iter(enumerate(effect.items))
        over = False
        call = self._called(self.processor)

        async def work() -> None:
            nonlocal over
            for index, item in items:
                if over:
                    return
                if not await self._one(done, index, call, item):
                    over = True

        if self.concurrency == 1:
            await work()
        else:
            await _all([work() for _ in range(min(self.concurrency, len(effect.items)))])
        return done

    async def _one(
        self, done: Processed, index: int, call: Callable[[Any], Awaitable[Any]], item: Any
    ) -> bool:
        """False: begin nothing further."""
        watched = AsyncWatched(call)
        if not self._whole:
            try:
                done.values[index] = await call(item)
                return True
            except Exception as exc:
                watched = AsyncWatched(call, exc)
        outcome = await self.template.outcome_async(watched, item)
        return self._note(done, index, watched, outcome)

    def _called(self, processor: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
        """The processor, to be awaited; of one that blocks several calls at once go in threads."""
        import asyncio

        if is_async(processor):
            return processor
        if self.concurrency > 1:

            async def elsewhere(item: Any) -> Any:
                return await _awaited(await asyncio.to_thread(_unstopped, processor, item))

            return elsewhere

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
            template, watched = self._for(attempts, effect), AsyncWatched(attempts.make)
            outcome: Outcome[Any] = await template.outcome_async(watched)
        return self._wrote(attempts, watched, await attempts.settle(outcome))

    async def _try(self, effect: Try) -> Outcome[Any] | None:
        if self._shared is None:
            self._shared = self.transactions.shared(self.run, self._verify)
        attempts = self.transactions.attempts(self.run, effect, self._verify, self._shared)
        watched, outcome = await self._tried(attempts, effect)
        shared = attempts.share(outcome)
        if shared is None:
            await self._close_shared()
            return None
        return self._checked(attempts, watched, shared)

    async def _tried(self, attempts: Any, effect: Try) -> tuple[AsyncWatched | None, Outcome[Any]]:
        """The outcome of a call, made by the template only where that fails and may be retried."""
        failure = None
        if not self._whole:
            try:
                return None, Outcome(await attempts.make(), None, 1, (), 0.0)
            except Exception as exc:
                if effect.once and not is_never_retried(exc):
                    record = record_of(exc, self._redact)
                    return None, Outcome(None, exc, 1, (record,), 0.0)
                failure = exc
        watched = AsyncWatched(attempts.make, failure)
        del failure  # its traceback holds this frame
        return watched, await self._for(attempts, effect).outcome_async(watched)

    async def _commit(self, effect: Commit) -> bool:
        committed: bool = await self._shared.commit(effect.closing)
        await self._close_shared()
        if committed:
            self.run.took(effect.closing)
        return committed

    async def _close_shared(self) -> None:
        if self._shared is not None:
            await self._shared.close()
            self._shared = None

    async def _mark(self, effect: Mark) -> None:
        await self._close_shared()
        await self._verify()
        await self.transactions.alone(self.transactions.ledger.close, self.run, effect.closing)
        self.run.took(effect.closing)

    async def _tell(self, effect: Tell) -> None:
        for listener in self.listeners:
            for event in effect.events:
                with _logged(listener.on_event):
                    await _awaited(listener.on_event(event))

    async def _after(self, effect: After) -> None:
        assert self.after_commit is not None
        with _logged(self.after_commit):
            await _awaited(self.after_commit(effect.items))

    async def _find_unsent(self, effect: FindUnsent) -> list[UnsentMessage]:
        found: list[UnsentMessage] = await self.transactions.alone(outbox.unsent, effect)
        return found

    async def _send(self, effect: Send) -> BaseException | None:
        assert self.outbox is not None
        sent = await self._sending.outcome_async(self.outbox.send, effect.message.message)
        if isinstance(sent.exception, MisuseError):
            raise sent.exception
        if sent.exception is None:
            await self.transactions.alone(outbox.delete, effect.message.id)
        return sent.exception


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
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
