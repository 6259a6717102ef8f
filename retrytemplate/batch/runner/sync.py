"""The synchronous driver of a step."""

from __future__ import annotations

import threading
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import define

from retrytemplate._internal.awaitables import close_unawaited, is_awaitable
from retrytemplate._internal.threads import Threads
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
from retrytemplate.batch.runner.base import (
    _awaitable,
    _check_values,
    _Driver,
    _logged,
    _no_awaitable,
)
from retrytemplate.batch.runner.failure_capture import Watched, record_of
from retrytemplate.classify.exceptions import is_never_retried
from retrytemplate.errors import MisuseError
from retrytemplate.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from retrytemplate.batch.outbox import UnsentMessage

__all__ = ["Driver"]


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
                if effect.once and not is_never_retried(exc):
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
