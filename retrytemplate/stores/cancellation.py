"""What has to end before a task that is cancelled goes on.

A statement that still runs on a connection that others use already may be committed by them; cut
off in a file of SQLite, it keeps the lock until the collector finds what is left of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Collection, Coroutine
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["over", "whole"]


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
