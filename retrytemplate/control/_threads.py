"""Blocking steps in worker threads, awaited by a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from retrytemplate._internal.awaitables import in_trio
from retrytemplate._storage.cancellation import run_to_completion

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def run_in_thread(fn: Callable[..., T], /, *args: object) -> T:
    """Call the function in a worker thread of asyncio or trio, and await its end.

    A cancellation is raised after the end of the step, so its caller knows its effect.  The waits
    of the step must be bounded.

    >>> import asyncio
    >>> asyncio.run(run_in_thread(int, "17"))
    17
    """
    if in_trio():
        import trio

        value = await trio.to_thread.run_sync(fn, *args)
        await trio.lowlevel.checkpoint_if_cancelled()
        return value
    import asyncio

    return await run_to_completion(asyncio.to_thread(fn, *args))


async def run_in_thread_shielded(fn: Callable[..., T], /, *args: object) -> T:
    """The same for a step that must run in any case: it starts in a cancelled task, too.

    >>> import asyncio
    >>> asyncio.run(run_in_thread_shielded(int, "17"))
    17
    """
    if in_trio():
        import trio

        with trio.CancelScope(shield=True):
            return await run_in_thread(fn, *args)
    return await run_in_thread(fn, *args)
