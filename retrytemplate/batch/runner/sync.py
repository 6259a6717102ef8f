"""The synchronous driver of a step."""

from __future__ import annotations

import threading
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import define

from retrytemplate._internal.awaitables import close_unawaited, is_awaitable
from retrytemplate._internal.threads import Threads
from retrytemplate._storage.operation_runner import perform
from retrytemplate.batch.engine.effects import Processed
from retrytemplate.batch.runner.base import BaseDriver
from retrytemplate.batch.runner.failure_capture import FailureCapture
from retrytemplate.batch.runner.transactions import Transactions, checked_result

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from retrytemplate.control.isolation_gate.gate import GateEntry
    from retrytemplate.history import Outcome
    from retrytemplate.template import RetryTemplate


@define
class Driver(BaseDriver):
    """Performs a run in this thread, with up to ``concurrency`` threads for the processor."""

    transactions_type: ClassVar = Transactions
    capture_type: ClassVar = FailureCapture

    def perform(self, steps: Generator[Any, Any, Any]) -> Any:
        """Perform the effects to the end of the steps, and return their result."""
        with self._alive:
            return perform(self._operation(steps))

    def _enter(self, entry: GateEntry) -> Any:
        return entry.__enter__()

    def _result(self, piece: str, value: Any) -> Any:
        return checked_result(piece, value)

    def _outcome(self, template: RetryTemplate, function: Any, *arguments: Any) -> Outcome[Any]:
        return template.outcome(function, *arguments)

    def _process_items(self, items: Sequence[Any]) -> Processed:
        if self.concurrency > 1 and len(items) > 1:
            done = self._in_threads(items)
        else:
            done = Processed()
            if self._needs_template:
                for index, item in enumerate(items):
                    if not self._retry(done, index, FailureCapture(self.processor), item):
                        break
            else:
                self._directly(items, done)
        _check_values(done.values)
        return done

    def _directly(self, items: Sequence[Any], done: Processed) -> None:
        """Call the processor without the template until it fails."""
        processor = self.processor
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
        """Call it by the template; False: start no further item."""
        outcome = self.template.outcome(capture, item)
        return self._record_outcome(done, index, capture, outcome)

    def _in_threads(self, items: Sequence[Any]) -> Processed:
        """Concurrently; each thread takes the next item in order."""
        done = Processed([None] * len(items))
        lock = threading.Lock()
        left: Iterator[tuple[int, Any]] = iter(enumerate(items))
        over = False

        def work() -> None:
            nonlocal over
            while not over:
                with lock:
                    index, item = next(left, (-1, None))
                if index < 0:
                    return
                try:
                    if not self._process_item(done, index, item):
                        over = True
                except BaseException:
                    over = True
                    raise

        workers = min(self.concurrency, len(items))
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
        return done

    def _process_item(self, done: Processed, index: int, item: Any) -> bool:
        """Process an item in a thread; False: start no further one."""
        capture = FailureCapture(self.processor)
        if not self._needs_template:
            try:
                done.values[index] = self.processor(item)
                return True
            except Exception as exc:
                capture = FailureCapture(self.processor, exc)
        return self._retry(done, index, capture, item)


def _check_values(values: list[Any]) -> None:
    first = next((value for value in values if value is not None), None)
    if is_awaitable(first):
        for value in values:
            close_unawaited(value)
        checked_result("processor", first)
