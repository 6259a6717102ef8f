"""Steps on a database that end before a cancellation or a signal handler's exception is raised.

A statement that still runs on a connection in use by others may be committed by them.  In a file of
SQLite, an interrupted statement keeps the lock until the garbage collector closes its cursor.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from retrytemplate._internal.cancel_scope import wait_shielded
from retrytemplate._internal.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    T = TypeVar("T")


async def run_to_completion(work: Awaitable[T], *, cut: bool = False) -> T:
    """Await a step on the database to its end, also when the task is cancelled meanwhile.

    :param cut: True: a cancellation cancels the step, and is raised after the step has ended.
    """
    import asyncio

    running: Any = asyncio.ensure_future(work)
    try:
        await wait_shielded([running], grace=0.0 if cut else inf)
    except asyncio.CancelledError:
        if not running.cancelled():
            running.exception()  # marks it as retrieved: it has no other reader
        raise
    value: T = running.result()
    return value


def run_uninterrupted(
    work: Callable[[], object],
    limit: float | None = None,
    *,
    ignored: tuple[type[Exception], ...] = (),
) -> None:
    """Run a last step on the database in another thread: signals interrupt the main one.

    The first interrupt of the wait is raised when the step has ended, a second one immediately.

    :param limit: seconds to wait at most: a signal that interrupts a pool of SQLAlchemy can leave
        it locked.  None: no limit.
    :param ignored: errors of the step that are not raised.
    """

    def step() -> None:
        with suppress(*ignored):
            work()

    threads = Threads("retrytemplate-end", [step])
    try:
        threads.start()
        threads.wait(limit)
    except Exception:  # the system has no thread left
        raise
    except BaseException:
        threads.start()  # does nothing where it has started
        threads.wait(limit)
        raise
    threads.check()
