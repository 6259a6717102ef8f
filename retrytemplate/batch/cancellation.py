"""What has to end before a task that is cancelled goes on, or a thread that a signal interrupts.

A statement that still runs on a connection that others use already may be committed by them.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from retrytemplate.batch.errors import JobRepositoryError

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Collection, Coroutine
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["over", "uncut", "whole"]


async def over(tasks: Collection[Task[Any]], *, cut: bool = False) -> None:
    """Wait for their end, however often this task is cancelled; only then is it so.

    :param cut: cancel them with it, once: what they do about it is not to be cut off too.
    """
    import asyncio

    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            await asyncio.wait(tasks)
            break
        except asyncio.CancelledError as exc:
            cancelled = exc
            for task in tasks:
                if cut and not task.cancelling():
                    task.cancel()
    if cancelled is not None:
        raise cancelled


async def whole(work: Coroutine[Any, Any, T], *, cut: bool = False) -> T:
    """A step on the database that a cancellation waits for; see ``over``."""
    import asyncio

    running = asyncio.ensure_future(work)
    try:
        await over([running], cut=cut)
    except asyncio.CancelledError:
        if not running.cancelled():
            running.exception()  # seen: it has no other reader
        raise
    return running.result()


def uncut(work: Callable[[], object]) -> None:
    """A last step on the database, tried in a thread of its own: signals interrupt the main one.

    What interrupts the waiting for it is raised at its end.
    """
    taken, done = threading.Lock(), threading.Event()
    interrupted: BaseException | None = None

    def work_once() -> None:
        if taken.acquire(blocking=False):
            try:
                with suppress(JobRepositoryError):
                    work()
            finally:
                done.set()

    while not done.is_set():
        try:
            if not taken.locked():  # also where the start was interrupted
                threading.Thread(target=work_once, name="retrytemplate-end").start()
            done.wait()
        except Exception:  # there is no thread to be had
            raise
        except BaseException as exc:
            interrupted = exc
    if interrupted is not None:
        raise interrupted
