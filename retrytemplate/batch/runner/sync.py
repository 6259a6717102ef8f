"""The synchronous driver of a step."""

from __future__ import annotations

import threading
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import define

from retrytemplate._internal.awaitables import close_unawaited, is_awaitable
from retrytemplate._internal.threads import Threads
from retrytemplate.batch.engine.effects import Processed
from retrytemplate.batch.runner.base import BaseDriver
from retrytemplate.batch.runner.failure_capture import FailureCapture
from retrytemplate.batch.runner.operations import perform
from retrytemplate.batch.runner.transactions import Transactions
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from retrytemplate.history import Outcome
    from retrytemplate.template import RetryTemplate

__all__ = ["Driver"]


@define
class Driver(BaseDriver):
    """Performs a run in this thread, with up to ``concurrency`` threads for the processor."""

    transactions_type: ClassVar = Transactions

    def perform(self, steps: Generator[Any, Any, Any]) -> Any:
        """Perform the effects to the end of the steps, and return their result."""
        with self._alive:
            return perform(self._operation(steps))

    def _result(self, piece: str, value: Any) -> Any:
        if is_awaitable(value):
            close_unawaited(value)
            raise _awaitable_error(piece)
        return value

    def _outcome(self, template: RetryTemplate, function: Any, *arguments: Any) -> Outcome[Any]:
        return template.outcome(function, *arguments)

    def _capture(self, function: Any, failure: Exception | None = None) -> FailureCapture:
        return FailureCapture(function, failure)

    def _process_items(self, items: Sequence[Any]) -> Processed:
        if self.concurrency > 1 and len(items) > 1:
            done = self._in_threads(items, self.processor)
        else:
            done = Processed()
            if self._needs_template:
                for index, item in enumerate(items):
                    if not self._retry(done, index, FailureCapture(self.processor), item):
                        break
            else:
                self._directly(items, self.processor, done)
        _check_values(done.values)
        return done

    def _directly(
        self, items: Sequence[Any], processor: Callable[[Any], Any], done: Processed
    ) -> None:
        """Call it without the template until it fails."""
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

    def _in_threads(self, items: Sequence[Any], processor: Callable[[Any], Any]) -> Processed:
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
                    if not self._process_item(done, index, processor, item):
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

    def _process_item(
        self, done: Processed, index: int, processor: Callable[[Any], Any], item: Any
    ) -> bool:
        """Process an item in a thread; False: start no further one."""
        capture = FailureCapture(processor)
        if not self._needs_template:
            try:
                done.values[index] = processor(item)
                return True
            except Exception as exc:
                capture = FailureCapture(processor, exc)
        return self._retry(done, index, capture, item)


def _awaitable_error(piece: str) -> MisuseError:
    return MisuseError(f"the {piece} returned an awaitable; use run_async()")


def _check_values(values: list[Any]) -> None:
    first = next((value for value in values if value is not None), None)
    if is_awaitable(first):
        for value in values:
            close_unawaited(value)
        raise _awaitable_error("processor")
