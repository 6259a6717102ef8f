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
from retrytemplate.batch.runner.base import (
    _awaitable_error,
    _check_values,
    _Driver,
    _log_errors,
    _reject_awaitable,
)
from retrytemplate.batch.runner.failure_capture import FailureCapture, first_attempt_record
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
                with _log_errors(self._cursor.close):
                    close_unawaited(self._cursor.close())

    def _read(self, effect: Read) -> ReadRecords:
        old, cursor = self._cursor_at(effect.position)
        if old is not None:
            old.close()
        records = cursor.read(effect.limit)
        if is_awaitable(records):
            close_unawaited(records)
            raise _awaitable_error("reader")
        return ReadRecords(records, cursor.position, getattr(cursor, "progress", None))

    def _process(self, effect: Process) -> Processed:
        if self.concurrency > 1 and len(effect.items) > 1:
            return self._in_threads(effect, self.processor)
        done = Processed()
        if self._needs_template:
            for index, item in enumerate(effect.items):
                if not self._retry(done, index, FailureCapture(self.processor), item):
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
                capture = FailureCapture(processor, exc)
            more = self._retry(done, len(done.values), capture, item)

    def _retry(self, done: Processed, index: int, capture: FailureCapture, item: Any) -> bool:
        """Let the template call it; False: begin nothing further."""
        outcome = self.template.outcome(capture, item)
        return self._record_outcome(done, index, capture, outcome)

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
                    if not self._process_item(done, index, processor, item):
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

    def _process_item(
        self, done: Processed, index: int, processor: Callable[[Any], Any], item: Any
    ) -> bool:
        """An item in a thread of its own; False: begin nothing further."""
        capture = FailureCapture(processor)
        if not self._needs_template:
            try:
                done.values[index] = processor(item)
                return True
            except Exception as exc:
                capture = FailureCapture(processor, exc)
        return self._retry(done, index, capture, item)

    def _verify(self) -> None:
        """End the run if the source of what is to be committed has changed."""
        with failing():
            verify = getattr(self._cursor, "verify", None)
            if verify is not None:
                verify()

    def _write(self, effect: Write) -> Outcome[Any]:
        attempts = self.transactions.attempts(self.run, effect, self._verify)
        capture = FailureCapture(attempts.run_attempt)
        with attempts:
            outcome: Outcome[Any] = self._template_for(attempts, effect).outcome(capture)
        return self._write_outcome(attempts, capture, attempts.resolve_outcome(outcome))

    def _try(self, effect: Try) -> Outcome[Any] | None:
        if self._shared is None:
            self._shared = self.transactions.shared(self.run, self._verify)
        attempts = self.transactions.attempts(self.run, effect, self._verify, self._shared)
        capture, outcome = self._attempt(attempts, effect)
        shared = attempts.shared_outcome(outcome)
        if shared is None:
            self._close_shared()
            return None
        return self._check_outcome(attempts, capture, shared)

    def _attempt(self, attempts: Any, effect: Try) -> tuple[FailureCapture | None, Outcome[Any]]:
        """The outcome of a call, made by the template only where that fails and may be retried."""
        failure = None
        if not self._needs_template:
            try:
                return None, Outcome(attempts.run_attempt(), None, 1, (), 0.0)
            except Exception as exc:
                if effect.once and not is_never_retried(exc):
                    record = first_attempt_record(exc, self._redact)
                    return None, Outcome(None, exc, 1, (record,), 0.0)
                failure = exc
        capture = FailureCapture(attempts.run_attempt, failure)
        del failure  # its traceback holds this frame
        return capture, self._template_for(attempts, effect).outcome(capture)

    def _commit(self, effect: Commit) -> bool:
        committed: bool = self._shared.commit(effect.update)
        self._close_shared()
        if committed:
            self.run.apply(effect.update)
        return committed

    def _close_shared(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def _write_journal(self, effect: WriteJournal) -> None:
        self._close_shared()
        self._verify()
        self.transactions.run_in_transaction(
            self.transactions.ledger.close, self.run, effect.update
        )
        self.run.apply(effect.update)

    def _emit_events(self, effect: EmitEvents) -> None:
        for listener in self.listeners:
            for event in effect.events:
                with _log_errors(listener.on_event):
                    _reject_awaitable("listener", listener.on_event(event))

    def _after_commit(self, effect: AfterCommit) -> None:
        assert self.after_commit is not None
        with _log_errors(self.after_commit):
            _reject_awaitable("after_commit hook", self.after_commit(effect.items))

    def _find_unsent(self, effect: FindUnsent) -> list[UnsentMessage]:
        found: list[UnsentMessage] = self.transactions.run_in_transaction(outbox.unsent, effect)
        return found

    def _send_outbox(self, effect: SendOutbox) -> BaseException | None:
        assert self.outbox is not None
        sent = self._sending.outcome(self.outbox.send, effect.message.message)
        if isinstance(sent.exception, MisuseError):
            raise sent.exception
        if sent.exception is None:
            self.transactions.run_in_transaction(outbox.delete, effect.message.id)
        return sent.exception
