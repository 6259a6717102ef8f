"""Parts of the drivers of a step that need no ``await``."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from retrytemplate._internal.awaitables import close_unawaited, is_awaitable
from retrytemplate.batch.engine.effects import Fatal, Processed, Try, Write
from retrytemplate.batch.runner.transactions import ENDING
from retrytemplate.errors import MisuseError
from retrytemplate.policies.basic import NeverRetryPolicy
from retrytemplate.policies.result import ResultRetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from retrytemplate._internal.values import JSON
    from retrytemplate.batch.outbox import Outbox
    from retrytemplate.batch.readers.base import Reader
    from retrytemplate.history import Outcome
    from retrytemplate.template import RetryTemplate


LOG = logging.getLogger("retrytemplate.batch")


class FailuresOnly(ResultRetryPolicy):
    """The policy without its rules on results."""

    def result_rules(self) -> tuple[ResultRetryPolicy, ...]:
        return ()


def _awaitable_error(piece: str) -> MisuseError:
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
    _needs_template: bool = field(init=False)
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
        self._needs_template = not self.template._plan.inline_first_attempt

    @property
    def _redact(self) -> Callable[[str], str] | None:
        redact: Callable[[str], str] | None = self.transactions.repository.limits.redact
        return redact

    def _cursor_at(self, position: JSON) -> tuple[Any, Any]:
        """The cursor that has been at another position, if there is one; and the one to read."""
        old = self._cursor
        if old is not None and old.position == position:
            return None, old
        self._cursor = self.reader.open(position)
        return old, self._cursor

    def _template_for(self, attempts: Any, effect: Write | Try) -> RetryTemplate:
        """The template that retries these attempts."""
        template = self._once if effect.once else self._writing
        if attempts.keeps_transaction and not effect.once:
            return template.with_(guards=(*template.guards, attempts))
        return template

    def _record_outcome(
        self, done: Processed, index: int, capture: Any, outcome: Outcome[Any]
    ) -> bool:
        """Write down how an item went that took more than a call; False: begin nothing further."""
        if index == len(done.values):
            done.values.append(outcome.value)
        else:
            done.values[index] = outcome.value
        with self._lock:
            done.retries += max(outcome.attempts - 1, 0)
        refused = capture.is_rejection(outcome)
        if outcome.history:
            done.histories[index] = capture.history(outcome, self._redact)
        if outcome.exception is None:
            return True
        done.failures[index] = outcome.exception
        if refused or self.is_fatal(outcome.exception):
            done.fatal.add(index)
            return False
        return True

    def _write_outcome(self, attempts: Any, capture: Any, outcome: Outcome[Any]) -> Outcome[Any]:
        checked = self._check_outcome(attempts, capture, outcome)
        if outcome.ok:
            self.run.apply(attempts.journal_update)
        return checked

    def _check_outcome(self, attempts: Any, capture: Any, outcome: Outcome[Any]) -> Outcome[Any]:
        if isinstance(outcome.value, ENDING):
            raise outcome.value
        if capture is None:  # called without the template
            return outcome
        if not outcome.ok and capture.is_rejection(outcome):
            raise Fatal(outcome.exception)
        history = capture.history(outcome, self._redact, attempts.effect.with_tracebacks)
        return evolve(outcome, history=history)


def _guard_stop_iteration(processor: Callable[[Any], Any], item: Any) -> Any:
    """What it gives; a future cannot hold the end of an iterator."""
    try:
        return processor(item)
    except StopIteration as exc:
        raise RuntimeError("the processor raised StopIteration") from exc


@contextmanager
def _log_errors(hook: Any) -> Iterator[None]:
    """What a hook raises after the fact changes nothing."""
    try:
        yield
    except MisuseError:
        raise
    except Exception:
        LOG.exception("%r failed; the run goes on", hook)


def _reject_awaitable(piece: str, value: Any) -> None:
    if is_awaitable(value):
        close_unawaited(value)
        raise _awaitable_error(piece)


def _check_values(values: list[Any]) -> None:
    first = next((value for value in values if value is not None), None)
    if is_awaitable(first):
        for value in values:
            close_unawaited(value)
        raise _awaitable_error("processor")
