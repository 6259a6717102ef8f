"""What has to end before a task that is cancelled goes on.

A statement that still runs on a connection that others use already may be committed by them; cut
off in a file of SQLite, it keeps the lock until the collector finds what is left of it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.cancel_scope import wait_shielded

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["run_to_completion", "wait_shielded"]


async def run_to_completion(work: Coroutine[Any, Any, T], *, cut: bool = False) -> T:
    """A step on the database that a cancellation waits for; see ``over``."""
    import asyncio

    running = asyncio.ensure_future(work)
    try:
        await wait_shielded([running], grace=0.0 if cut else inf)
    except asyncio.CancelledError:
        if not running.cancelled():
            running.exception()  # seen: it has no other reader
        raise
    return running.result()
