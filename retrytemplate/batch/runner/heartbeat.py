"""Heartbeat of a run: its lease is renewed while its process works."""

from __future__ import annotations

from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from retrytemplate._internal.cancel_scope import wait_shielded
from retrytemplate._internal.threads import Threads, repeat_until_stopped
from retrytemplate.batch.errors import RunLostError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

# Of a lease: two of them may fail.
SHARE = 1 / 3


def never() -> None:
    """Renew nothing."""


class _Heartbeat:
    """Renews a run's lease until it is left.

    A renewal that fails is tried again with the next one.  Where another process has taken the run
    over, ``check`` raises.
    """

    def __init__(self, renew: Callable[[], Any], lease: float) -> None:
        self._renew = renew
        self._rest = lease * SHARE
        self._lost: RunLostError | None = None

    def check(self) -> None:
        """Raise ``RunLostError`` if another process holds the run."""
        if self._lost is not None:
            raise self._lost


class Heartbeat(_Heartbeat):
    """Renews in a thread."""

    def __init__(self, renew: Callable[[], object], lease: float) -> None:
        super().__init__(renew, lease)
        self._over = SimpleQueue[None]()
        self._thread = Threads("retrytemplate-run", [self._run])

    def _run(self) -> None:
        for _ in repeat_until_stopped(self._over, self._rest):
            try:
                self._renew()
            except RunLostError as lost:
                self._lost = lost
                return
            except Exception:  # the database is away, or a transaction holds it
                continue

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except BaseException:  # a signal, with the thread begun perhaps
            self._over.put(None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._over.put(None)
        self._thread.wait()


class AsyncHeartbeat(_Heartbeat):
    """Renews in a task: what blocks the event loop stops it too."""

    _task: asyncio.Task[None]

    async def _run(self, over: asyncio.Event) -> None:
        import asyncio

        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rest):
                    await over.wait()
                return
            try:
                await self._renew()
            except RunLostError as lost:
                self._lost = lost
                return
            except Exception:
                continue

    async def __aenter__(self) -> Self:
        import asyncio

        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._run(self._over), name="retrytemplate-run")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await wait_shielded([self._task])  # a renewal in progress completes
