"""A group of tasks in asyncio or trio: the failure of one cancels the others.

Not ``asyncio.TaskGroup``: up to Python 3.12 it leaves ``Task.cancelling()`` at 1 after a failure,
and a cancellation from outside is lost if a task fails meanwhile.
"""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.awaitables import in_trio
from retrytemplate._internal.cancel_reason import CancelReason
from retrytemplate._internal.cancel_scope import wait_shielded
from retrytemplate._internal.failure_text import summary
from retrytemplate.classify.exceptions import iter_leaf_exceptions
from retrytemplate.workers.supervisor.cancellation import Cancellation, cancel_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    Function = Callable[[], Coroutine[Any, Any, None]]
    # The failures, and the cancellation of the caller or of a single task.
    Ended = tuple[Sequence[BaseException], BaseException | None]

LOG = logging.getLogger("retrytemplate.workers")


def _nothing() -> None:
    pass


async def run_group(
    functions: Sequence[Function], name: str, on_cancel: Callable[[], object] = _nothing
) -> None:
    """Run the functions in a task each, and wait until all have ended.

    :param name: of the group, in its errors and in the log.
    :param on_cancel: called when the tasks are cancelled: a task may swallow that.
    :raises ExceptionGroup: tasks failed; the others were cancelled.

    A cancellation of the caller cancels the tasks and is raised unchanged, as are exceptions that
    do not derive from ``Exception``.  Other failures are then logged.
    """
    outer = Cancellation.current()
    cancellation = Cancellation(None if outer is None else outer.supervisor, outer)
    run = _in_trio if in_trio() else _in_asyncio
    failures, cancelled = await run(functions, on_cancel, cancellation)
    passing = next((each for each in failures if not isinstance(each, Exception)), cancelled)
    try:
        if passing is None and failures:
            raise BaseExceptionGroup(f"{name} failed", failures)
        if passing is not None:
            for each in failures:
                if each is not passing:
                    LOG.warning("%s: a task failed during a cancellation: %s", name, summary(each))
            raise passing
    finally:
        del failures, cancelled, passing  # their tracebacks refer to this frame


async def _in_asyncio(
    functions: Sequence[Function], on_cancel: Callable[[], object], cancellation: Cancellation
) -> Ended:
    import asyncio

    is_cancelled = False

    def cancel(reason: CancelReason) -> None:
        nonlocal is_cancelled
        if not is_cancelled:  # a second cancellation would interrupt the cleanup of a task
            is_cancelled = True
            cancellation.reason = reason
            on_cancel()
            for task in tasks:
                task.cancel()

    def on_end(task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            cancel(CancelReason.SIBLING_FAILED)

    tasks = [
        asyncio.create_task(function(), context=cancellation.context()) for function in functions
    ]
    for task in tasks:
        task.add_done_callback(on_end)
    cancelled = None
    try:
        await wait_shielded(tasks, grace=0, cancel=lambda _: cancel(cancel_reason()))
    except asyncio.CancelledError as exc:
        cancelled = exc
    errors = [task.exception() for task in tasks if not task.cancelled()]
    failures = [each for each in errors if each is not None]
    try:
        if cancelled is None and not failures and len(errors) < len(tasks):
            cancelled = asyncio.CancelledError()  # a task was cancelled, but not by its group
        return failures, cancelled
    finally:
        del errors, failures, cancelled


async def _in_trio(
    functions: Sequence[Function], on_cancel: Callable[[], object], cancellation: Cancellation
) -> Ended:
    import trio

    async def run(function: Function) -> None:
        try:
            await function()
        except BaseException:  # a cancellation, too
            if trio.current_effective_deadline() > -inf:
                cancellation.reason = CancelReason.SIBLING_FAILED
            on_cancel()
            raise
        finally:
            del function  # from Python 3.12 on the traceback of a failure leads to this frame

    failures: Sequence[BaseException] = ()
    cancelled: BaseException | None = None
    try:
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            for function in functions:
                cancellation.context().run(nursery.start_soon, run, function)
    except BaseExceptionGroup as group:
        failures, cancelled = _parts_of(group, trio.Cancelled)
    try:
        if failures and cancelled is None:
            # The nursery drops the cancellation of the caller if its tasks have replaced it.
            await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled as exc:
        cancelled = exc
    try:
        return failures, cancelled
    finally:
        del failures, cancelled


def _parts_of(group: BaseExceptionGroup[Any], cancellation: type[BaseException]) -> Ended:
    cancelled, failed = group.split(cancellation)
    return (
        () if failed is None else failed.exceptions,
        None if cancelled is None else next(iter_leaf_exceptions(cancelled)),
    )
