"""The driver of a step: what both kinds of it do for each effect."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import define, evolve, field

from retrytemplate.batch.engine.effects import (
    AfterCommit,
    Commit,
    EnterGate,
    Fatal,
    Process,
    Processed,
    Read,
    ReadRecords,
    Try,
    Write,
    WriteJournal,
    failing,
)
from retrytemplate.batch.events import EmitEvents
from retrytemplate.batch.journal.message_rows import delete_messages
from retrytemplate.batch.outbox import FindUnsent, Outbox, SendOutbox, UnsentMessage, unsent
from retrytemplate.batch.runner.attempts import ENDING, Attempts, Shared
from retrytemplate.batch.runner.failure_capture import first_attempt_record
from retrytemplate.classify.exceptions import is_never_retried
from retrytemplate.errors import MisuseError
from retrytemplate.history import Outcome
from retrytemplate.policies.basic import NeverRetryPolicy
from retrytemplate.policies.result import ResultRetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate.batch.readers.base import Reader
    from retrytemplate.control.isolation_gate.gate import GateEntry, ProcessGate
    from retrytemplate.template import RetryTemplate


LOG = logging.getLogger("retrytemplate.batch")


class FailuresOnly(ResultRetryPolicy):
    """The policy without its rules on results."""

    def result_rules(self) -> tuple[ResultRetryPolicy, ...]:
        return ()


@define
class BaseDriver:
    """Performs the effects of a run.  A kind of driver says how it calls the components.

    :param is_fatal: whether a failure of the processor ends the run.
    """

    capture_type: ClassVar[Any]
    """Its kind of ``FailureCapture``."""

    reader: Reader
    processor: Any
    template: RetryTemplate
    concurrency: int
    is_fatal: Callable[[BaseException], bool]
    transactions: Any
    run: Any
    gate: ProcessGate
    heartbeat: Any = None
    listeners: Sequence[Any] = ()
    after_commit: Callable[[Any], Any] | None = None
    outbox: Outbox | None = None
    _cursor: Any = field(init=False, default=None)
    _entry: GateEntry | None = field(init=False, default=None)
    _shared: Shared | None = field(init=False, default=None)
    """The transaction of a search, while one is open."""
    _lock: threading.Lock = field(init=False, factory=threading.Lock)
    _sending: RetryTemplate = field(init=False)
    _writing: RetryTemplate = field(init=False)
    _once: RetryTemplate = field(init=False)

    def __attrs_post_init__(self) -> None:
        # A write has no result for a policy or a recovery, and a write that a time limit
        # interrupts may be in the database nevertheless.
        policy = self.template.policy
        if policy.result_rules():
            policy = FailuresOnly(bool, policy)
        self._sending = self.template.with_(policy=policy, recovery=None)
        self._writing = self._sending.with_(attempt_timeout=None)
        self._once = self._writing.with_(policy=NeverRetryPolicy())

    @property
    def _needs_template(self) -> bool:
        """Whether the template has to know of every attempt: for listeners, guards, limits."""
        return not self.template._plan.is_unobserved

    @property
    def _redact(self) -> Callable[[str], str] | None:
        redact: Callable[[str], str] | None = self.transactions.repository.limits.redact
        return redact

    def _operation(self, steps: Generator[Any, Any, Any]) -> Operation[Any]:
        """Perform the effects to the end of the steps, and return their result."""
        does: dict[type, Callable[[Any], Operation[Any]]] = {
            EnterGate: self._enter_gate,
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
                if self.heartbeat is not None:
                    self.heartbeat.check()
                try:
                    answer = yield from does[type(effect)](effect)
                except Exception as exc:
                    effect = steps.throw(exc)
                else:
                    effect = steps.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            try:
                yield from self._close_shared()
                if self._cursor is not None:
                    with _log_errors(self._cursor.close):
                        yield self._result("reader", self._cursor.close())
            finally:
                self._leave_gate()

    @property
    def _alive(self) -> Any:
        """The context of a run: its heartbeat, if it has one."""
        return nullcontext() if self.heartbeat is None else self.heartbeat

    def _enter(self, entry: GateEntry) -> Any:
        """Enter the gate."""
        raise NotImplementedError

    def _result(self, piece: str, value: Any) -> Any:
        """The result of a component, as this kind of driver yields it."""
        raise NotImplementedError

    def _outcome(self, template: RetryTemplate, function: Any, *arguments: Any) -> Any:
        """The outcome of a call that a template retries."""
        raise NotImplementedError

    def _process_items(self, items: Sequence[Any]) -> Any:
        """Call the processor with each item."""
        raise NotImplementedError

    def _enter_gate(self, effect: EnterGate) -> Operation[None]:
        self._leave_gate()
        self._entry = self.gate.exclusive() if effect.exclusive else self.gate.shared()
        yield self._enter(self._entry)

    def _leave_gate(self) -> None:
        if self._entry is not None:
            self._entry.__exit__()
            self._entry = None

    def _read(self, effect: Read) -> Operation[ReadRecords]:
        cursor = self._cursor
        if cursor is None or cursor.position != effect.position:
            old, self._cursor = cursor, self.reader.open(effect.position)
            cursor = self._cursor
            if old is not None:
                yield self._result("reader", old.close())
        records = yield self._result("reader", cursor.read(effect.limit))
        return ReadRecords(records, cursor.position, getattr(cursor, "progress", None))

    def _process(self, effect: Process) -> Operation[Processed]:
        done: Processed = yield self._process_items(effect.items)
        return done

    def _verify(self) -> Operation[None]:
        """End the run if the source of the items to commit has changed."""
        with failing():
            verify = getattr(self._cursor, "verify", None)
            if verify is not None:
                yield self._result("reader", verify())

    def _write(self, effect: Write) -> Operation[Outcome[Any]]:
        attempts = Attempts(self.transactions, self.run, effect, self._verify)
        capture = self.capture_type(attempts.run_attempt)
        try:
            outcome = yield self._outcome(self._template_for(attempts, effect), capture)
        finally:
            yield from attempts.close()
        resolved = yield from attempts.resolve_outcome(outcome)
        checked = self._check_outcome(attempts, capture, resolved)
        if resolved.ok:
            self.run.apply(attempts.journal_update)
        return checked

    def _try(self, effect: Try) -> Operation[Outcome[Any] | None]:
        if self._shared is None:
            self._shared = Shared(self.transactions, self.run, self._verify)
        attempts = Attempts(self.transactions, self.run, effect, self._verify, self._shared)
        capture, outcome = yield from self._attempt(attempts, effect)
        shared = attempts.shared_outcome(outcome)
        if shared is None:
            yield from self._close_shared()
            return None
        return self._check_outcome(attempts, capture, shared)

    def _attempt(self, attempts: Attempts, effect: Try) -> Operation[tuple[Any, Outcome[Any]]]:
        """The outcome of a call; the template is used after a retryable first failure only."""
        failure = None
        if not self._needs_template:
            try:
                return None, Outcome((yield from attempts.attempt()), None, 1, (), 0.0)
            except Exception as exc:
                if effect.once and not is_never_retried(exc):
                    record = first_attempt_record(exc, self._redact)
                    return None, Outcome(None, exc, 1, (record,), 0.0)
                failure = exc
        capture = self.capture_type(attempts.run_attempt, failure)
        del failure  # its traceback holds this frame
        return capture, (yield self._outcome(self._template_for(attempts, effect), capture))

    def _commit(self, effect: Commit) -> Operation[bool]:
        assert self._shared is not None
        committed = yield from self._shared.commit(effect.update)
        yield from self._close_shared()
        if committed:
            self.run.apply(effect.update)
        return committed

    def _close_shared(self) -> Operation[None]:
        if self._shared is not None:
            yield from self._shared.close()
            self._shared = None

    def _write_journal(self, effect: WriteJournal) -> Operation[None]:
        yield from self._close_shared()
        yield from self._verify()
        yield self.transactions.run_in_transaction(
            self.transactions.ledger.close, self.run, effect.update
        )
        self.run.apply(effect.update)

    def _emit_events(self, effect: EmitEvents) -> Operation[None]:
        for listener in self.listeners:
            for event in effect.events:
                with _log_errors(listener.on_event):
                    yield self._result("listener", listener.on_event(event))

    def _after_commit(self, effect: AfterCommit) -> Operation[None]:
        assert self.after_commit is not None
        with _log_errors(self.after_commit):
            yield self._result("after_commit hook", self.after_commit(effect.items))

    def _find_unsent(self, effect: FindUnsent) -> Operation[list[UnsentMessage]]:
        found: list[UnsentMessage] = yield self.transactions.run_in_transaction(unsent, effect)
        return found

    def _send_outbox(self, effect: SendOutbox) -> Operation[BaseException | None]:
        assert self.outbox is not None
        sent = yield self._outcome(self._sending, self.outbox.send, effect.message.message)
        if isinstance(sent.exception, MisuseError):
            raise sent.exception
        if sent.exception is None:
            yield self.transactions.run_in_transaction(delete_messages, effect.message.id)
        failure: BaseException | None = sent.exception
        return failure

    def _template_for(self, attempts: Any, effect: Write | Try) -> RetryTemplate:
        """The template that retries these attempts."""
        template = self._once if effect.once else self._writing
        if attempts.keeps_transaction and not effect.once:
            return template.with_(guards=(*template.guards, attempts))
        return template

    def _record_outcome(
        self, done: Processed, index: int, capture: Any, outcome: Outcome[Any]
    ) -> bool:
        """Record the outcome of an item; False: start no further one."""
        if index == len(done.values):
            done.values.append(outcome.value)
        else:
            done.values[index] = outcome.value
        with self._lock:
            done.retries += max(outcome.attempts - 1, 0)
        rejected = capture.is_rejection(outcome)
        if outcome.history:
            done.histories[index] = capture.history(outcome, self._redact)
        if outcome.exception is None:
            return True
        done.failures[index] = outcome.exception
        if rejected or self.is_fatal(outcome.exception):
            done.fatal.add(index)
            return False
        return True

    def _check_outcome(self, attempts: Any, capture: Any, outcome: Outcome[Any]) -> Outcome[Any]:
        if isinstance(outcome.value, ENDING):
            raise outcome.value
        if capture is None:  # called without the template
            return outcome
        if not outcome.ok and capture.is_rejection(outcome):
            raise Fatal(outcome.exception)
        history = capture.history(outcome, self._redact, attempts.effect.with_tracebacks)
        return evolve(outcome, history=history)


@contextmanager
def _log_errors(hook: Any) -> Iterator[None]:
    """Log the exceptions of a hook."""
    try:
        yield
    except MisuseError:
        raise
    except Exception:
        LOG.exception("%r raised an exception; the run continues", hook)
