"""What the rules of a run ask for, performed: in this thread, or awaited."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from retrytemplate._internal.awaitables import close_unawaited, is_async, is_awaitable
from retrytemplate._internal.threads import Threads
from retrytemplate._storage.cancellation import over
from retrytemplate.batch import outbox
from retrytemplate.batch.effects import (
    After,
    Commit,
    Fatal,
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
from retrytemplate.batch.transactions import ENDING
from retrytemplate.batch.watched import AsyncWatched, Watched, record_of
from retrytemplate.classify.exceptions import is_hard
from retrytemplate.errors import MisuseError
from retrytemplate.history import Outcome
from retrytemplate.policies.basic import NeverRetryPolicy
from retrytemplate.policies.result import ResultRetryPolicy

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Coroutine,
        Generator,
        Iterable,
        Iterator,
        Sequence,
    )

    from retrytemplate._internal.values import JSON
    from retrytemplate.batch.outbox import Outbox, UnsentMessage
    from retrytemplate.batch.readers.base import Reader
    from retrytemplate.template import RetryTemplate

__all__ = ["AsyncDriver", "Driver"]

LOG = logging.getLogger("retrytemplate.batch")


class FailuresOnly(ResultRetryPolicy):
    """The policy without its rules on results."""

    def result_rules(self) -> tuple[ResultRetryPolicy, ...]:
        return ()


def _awaitable(piece: str) -> MisuseError:
    return MisuseError(f"the {piece} gives what must be awaited: use run_async()")


@define
class _Driver:
    """What both drivers are made of.

    :param is_fatal: whether a failure of the processor ends the run.
    """

    reader: Reader
    processor: Any
    template: RetryTemplate
    concurrency: int
    is_fatal: Callable[[BaseException], bool]
    transactions: Any
    heartbeat: Any
    run: Any
    listeners: Sequence[Any] = ()
    after_commit: Callable[[Any], Any] | None = None
    outbox: Outbox | None = None
    _cursor: Any = field(init=False, default=None)
    _shared: Any = field(init=False, default=None)
    """The transaction of a search, while one is open."""
    _lock: threading.Lock = field(init=False, factory=threading.Lock)
    _sending: RetryTemplate = field(init=False)
    _writing: RetryTemplate = field(init=False)
    _once: RetryTemplate = field(init=False)
    _whole: bool = field(init=False)
    """Whether the template has to know of every attempt: for listeners, guards, time limits."""

    def __attrs_post_init__(self) -> None:
        # Of a write there is no result to look at, and none that a recovery could give; and what
        # is cut off by a limit of time may be in the database all the same.
        policy = self.template.policy
        if policy.result_rules():
            policy = FailuresOnly(bool, policy)
        self._sending = self.template.with_(policy=policy, recovery=None)
        self._writing = self._sending.with_(attempt_timeout=None)
        self._once = self._writing.with_(policy=NeverRetryPolicy())
        self._whole = not self.template._plan.inline

    @property
    def _redact(self) -> Callable[[str], str] | None:
        redact: Callable[[str], str] | None = self.transactions.repository.limits.redact
        return redact

    def _at(self, position: JSON) -> tuple[Any, Any]:
        """The cursor that has been at another position, if there is one; and the one to read."""
        old = self._cursor
        if old is not None and old.position == position:
            return None, old
        self._cursor = self.reader.open(position)
        return old, self._cursor

    def _for(self, attempts: Any, effect: Write | Try) -> RetryTemplate:
        """The template that retries these attempts."""
        template = self._once if effect.once else self._writing
        if attempts.holds and not effect.once:
            return template.with_(guards=(*template.guards, attempts))
        return template

    def _note(self, done: Processed, index: int, watched: Any, outcome: Outcome[Any]) -> bool:
        """Write down how an item went that took more than a call; False: begin nothing further."""
        if index == len(done.values):
            done.values.append(outcome.value)
        else:
            done.values[index] = outcome.value
        with self._lock:
            done.retries += max(outcome.attempts - 1, 0)
        refused = watched.is_refused(outcome)
        if outcome.history:
            done.histories[index] = watched.history(outcome, self._redact)
        if outcome.exception is None:
            return True
        done.failures[index] = outcome.exception
        if refused or self.is_fatal(outcome.exception):
            done.fatal.add(index)
            return False
        return True

    def _wrote(self, attempts: Any, watched: Any, outcome: Outcome[Any]) -> Outcome[Any]:
        checked = self._checked(attempts, watched, outcome)
        if outcome.ok:
            self.run.took(attempts.closing)
        return checked

    def _checked(self, attempts: Any, watched: Any, outcome: Outcome[Any]) -> Outcome[Any]:
        if isinstance(outcome.value, ENDING):
            raise outcome.value
        if watched is None:  # called without the template
            return outcome
        if not outcome.ok and watched.is_refused(outcome):
            raise Fatal(outcome.exception)
        history = watched.history(outcome, self._redact, attempts.effect.described)
        return evolve(outcome, history=history)


@define
class Driver(_Driver):
    """Performs a run in this thread; of the processor as many calls at once as are wanted."""

    def perform(self, steps: Generator[Any, Any, Any]) -> Any:
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
                    answer = does[type(effect)](effect)
                except Exception as exc:
                    effect = steps.throw(exc)
                else:
                    effect = steps.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            self._close_shared()
            if self._cursor is not None:
                with _logged(self._cursor.close):
                    close_unawaited(self._cursor.close())

    def _read(self, effect: Read) -> ReadRecords:
        old, cursor = self._at(effect.position)
        if old is not None:
            old.close()
        records = cursor.read(effect.limit)
        if is_awaitable(records):
            close_unawaited(records)
            raise _awaitable("reader")
        return ReadRecords(records, cursor.position, getattr(cursor, "progress", None))

    def _process(self, effect: Process) -> Processed:
        if self.concurrency > 1 and len(effect.items) > 1:
            return self._in_threads(effect, self.processor)
        done = Processed()
        if self._whole:
            for index, item in enumerate(effect.items):
                if not self._retry(done, index, Watched(self.processor), item):
                    break
        else:
            self._directly(effect.items, self.processor, done)
        _check_values(done.values)
        return done

    def _directly(
        self, items: Sequence[Any], processor: Callable[[Any], Any], done: Processed
    ) -> None:
        """Call it, and the template only where that fails."""
        append, left, item = done.values.append, iter(items), None
        more = True
        while more:
            try:
                for item in left:
                    append(processor(item))
                return
            except Exception as exc:
                watched = Watched(processor, exc)
            more = self._retry(done, len(done.values), watched, item)

    def _retry(self, done: Processed, index: int, watched: Watched, item: Any) -> bool:
        """Let the template call it; False: begin nothing further."""
        outcome = self.template.outcome(watched, item)
        return self._note(done, index, watched, outcome)

    def _in_threads(self, effect: Process, processor: Callable[[Any], Any]) -> Processed:
        """As many at once as are wanted; each thread takes the next item in order."""
        done = Processed([None] * len(effect.items))
        lock = threading.Lock()
        items: Iterator[tuple[int, Any]] = iter(enumerate(effect.items))
        over = False

        def work() -> None:
            nonlocal over
            while not over:
                with lock:
                    index, item = next(items, (-1, None))
                if index < 0:
                    return
                try:
                    if not self._one(done, index, processor, item):
                        over = True
                except BaseException:
                    over = True
                    raise

        workers = min(self.concurrency, len(effect.items))
        # A deadline around the run holds in the threads too.
        works = [partial(copy_context().run, work) for _ in range(workers)]
        threads = Threads("retrytemplate-batch", works)
        try:
            threads.start()
            threads.wait()
        finally:  # after an interrupt the calls in progress end; a second interrupt leaves them
            over = True
            threads.wait()
        threads.check()
        _check_values(done.values)
        return done

    def _one(self, done: Processed, index: int, processor: Callable[[Any], Any], item: Any) -> bool:
        """An item in a thread of its own; False: begin nothing further."""
        watched = Watched(processor)
        if not self._whole:
            try:
                done.values[index] = processor(item)
                return True
            except Exception as exc:
                watched = Watched(processor, exc)
        return self._retry(done, index, watched, item)

    def _verify(self) -> None:
        """End the run if the source of what is to be committed has changed."""
        with failing():
            verify = getattr(self._cursor, "verify", None)
            if verify is not None:
                verify()

    def _write(self, effect: Write) -> Outcome[Any]:
        self._close_shared()
        attempts = self.transactions.attempts(self.run, effect, self._verify)
        watched = Watched(attempts.make)
        with attempts:
            outcome: Outcome[Any] = self._for(attempts, effect).outcome(watched)
        return self._wrote(attempts, watched, attempts.settle(outcome))

    def _try(self, effect: Try) -> Outcome[Any] | None:
        if self._shared is None:
            self._shared = self.transactions.shared(self.run, self._verify)
        attempts = self.transactions.attempts(self.run, effect, self._verify, self._shared)
        watched, outcome = self._tried(attempts, effect)
        shared = attempts.share(outcome)
        if shared is None:
            self._close_shared()
            return None
        return self._checked(attempts, watched, shared)

    def _tried(self, attempts: Any, effect: Try) -> tuple[Watched | None, Outcome[Any]]:
        """The outcome of a call, made by the template only where that fails and may be retried."""
        failure = None
        if not self._whole:
            try:
                return None, Outcome(attempts.make(), None, 1, (), 0.0)
            except Exception as exc:
                if effect.once and not is_hard(exc):
                    record = record_of(exc, self._redact)
                    return None, Outcome(None, exc, 1, (record,), 0.0)
                failure = exc
        watched = Watched(attempts.make, failure)
        del failure  # its traceback holds this frame
        return watched, self._for(attempts, effect).outcome(watched)

    def _commit(self, effect: Commit) -> bool:
        committed: bool = self._shared.commit(effect.closing)
        self._close_shared()
        if committed:
            self.run.took(effect.closing)
        return committed

    def _close_shared(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def _mark(self, effect: Mark) -> None:
        self._close_shared()
        self._verify()
        self.transactions.alone(self.transactions.ledger.close, self.run, effect.closing)
        self.run.took(effect.closing)

    def _tell(self, effect: Tell) -> None:
        for listener in self.listeners:
            for event in effect.events:
                with _logged(listener.on_event):
                    _no_awaitable("listener", listener.on_event(event))

    def _after(self, effect: After) -> None:
        assert self.after_commit is not None
        with _logged(self.after_commit):
            _no_awaitable("after_commit hook", self.after_commit(effect.items))

    def _find_unsent(self, effect: FindUnsent) -> list[UnsentMessage]:
        found: list[UnsentMessage] = self.transactions.alone(outbox.unsent, effect)
        return found

    def _send(self, effect: Send) -> BaseException | None:
        assert self.outbox is not None
        sent = self._sending.outcome(self.outbox.send, effect.message.message)
        if isinstance(sent.exception, MisuseError):
            raise sent.exception
        if sent.exception is None:
            self.transactions.alone(outbox.delete, effect.message.id)
        return sent.exception


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
        await self._close_shared()
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
                if effect.once and not is_hard(exc):
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
        await over(tasks)
    for task in ended:
        task.result()


def _unstopped(processor: Callable[[Any], Any], item: Any) -> Any:
    """What it gives; a future cannot hold the end of an iterator."""
    try:
        return processor(item)
    except StopIteration as exc:
        raise RuntimeError("the processor raised StopIteration") from exc


@contextmanager
def _logged(hook: Any) -> Iterator[None]:
    """What a hook raises after the fact changes nothing."""
    try:
        yield
    except MisuseError:
        raise
    except Exception:
        LOG.exception("%r failed; the run goes on", hook)


def _no_awaitable(piece: str, value: Any) -> None:
    if is_awaitable(value):
        close_unawaited(value)
        raise _awaitable(piece)


async def _awaited(value: Any) -> Any:
    return await value if is_awaitable(value) else value


def _check_values(values: list[Any]) -> None:
    first = next((value for value in values if value is not None), None)
    if is_awaitable(first):
        for value in values:
            close_unawaited(value)
        raise _awaitable("processor")
