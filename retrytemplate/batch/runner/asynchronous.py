"""The asynchronous driver of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from attrs import define

from retrytemplate._internal.awaitables import is_async
from retrytemplate._internal.cancel_scope import wait_shielded
from retrytemplate._storage.operation_runner import awaited, perform_async
from retrytemplate.batch.engine.effects import Processed
from retrytemplate.batch.runner.base import BaseDriver
from retrytemplate.batch.runner.failure_capture import AsyncFailureCapture
from retrytemplate.batch.runner.transactions import AsyncTransactions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence

    from retrytemplate.control.isolation_gate.gate import GateEntry
    from retrytemplate.template import RetryTemplate


@define
class AsyncDriver(BaseDriver):
    """Performs a run in a task, with up to ``concurrency`` calls of the processor at once."""

    transactions_type: ClassVar = AsyncTransactions
    capture_type: ClassVar = AsyncFailureCapture

    async def perform(self, steps: Generator[Any, Any, Any]) -> Any:
        """Perform the effects to the end of the steps, and return their result."""
        async with self._alive:
            return await perform_async(self._operation(steps))

    def _enter(self, entry: GateEntry) -> Any:
        return entry.__aenter__()

    def _result(self, piece: str, value: Any) -> Any:
        return value

    def _outcome(self, template: RetryTemplate, function: Any, *arguments: Any) -> Any:
        return template.outcome_async(function, *arguments)

    async def _process_items(self, items: Sequence[Any]) -> Processed:
        done = Processed([None] * len(items))
        left = iter(enumerate(items))
        over = False
        call = self._as_async(self.processor)

        async def work() -> None:
            nonlocal over
            for index, item in left:
                if over:
                    return
                if not await self._process_item(done, index, call, item):
                    over = True

        if self.concurrency == 1:
            await work()
        else:
            await _gather([work() for _ in range(min(self.concurrency, len(items)))])
        return done

    async def _process_item(
        self, done: Processed, index: int, call: Callable[[Any], Awaitable[Any]], item: Any
    ) -> bool:
        """Process an item; False: start no further one."""
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
        """The processor as a coroutine function; concurrent calls of a blocking one use threads."""
        import asyncio

        if is_async(processor):
            return processor
        if self.concurrency > 1:

            async def in_thread(item: Any) -> Any:
                return await awaited(
                    await asyncio.to_thread(_guard_stop_iteration, processor, item)
                )

            return in_thread

        async def call(item: Any) -> Any:
            return await awaited(processor(item))

        return call


async def _gather(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run them concurrently; the first error cancels the others, and is raised after they ended.

    A task group would take a cancellation raised in one of them for its own.
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


def _guard_stop_iteration(processor: Callable[[Any], Any], item: Any) -> Any:
    """Its result; a future cannot hold a StopIteration."""
    try:
        return processor(item)
    except StopIteration as exc:
        raise RuntimeError("the processor raised StopIteration") from exc
