"""The registry of worker runtimes: their snapshots, and crashes before the first message.

It is kept in the context cache of the runtimes, under the keys of ``REGISTRY``:

- ``@workers/{name}/{worker}``: the snapshot of a runtime, a completion marker that expires;
- ``@workers/{name}``: the runtimes of this name that have received no message yet, and the times at
  which those started that crashed in this state.  ``receive`` crashes at each start if the client
  library crashes on a message: no attempt begins, so the crash cannot be attributed to the message.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from retrytemplate._internal.failure_text import summary
from retrytemplate._storage.process_liveness import is_process_gone, process_fingerprint
from retrytemplate.caches.record import Record
from retrytemplate.caches.worker_id import worker_name
from retrytemplate.control.crash_loop import CrashLoopError
from retrytemplate.errors import RetryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from retrytemplate.backends.inspection import ContextInspector, Entry
    from retrytemplate.clock import Clock
    from retrytemplate.workers.runtime.snapshot import RuntimeSnapshot

    # The runtimes without a message by worker, with process and start; the times of crashes.
    State = tuple[dict[str, Any], list[float]]

LOG = logging.getLogger("retrytemplate.workers")

REGISTRY = "@workers/"
"""The beginning of the keys in the context cache."""
WRITE_INTERVAL, EXPIRY = 5.0, 15.0
"""Seconds between two writes of a snapshot, and until it expires."""
MAX_CRASHES, CRASH_WINDOW = 5, 600.0
"""Crashes before the first message within these seconds, at which no runtime starts."""
LEASE = 5.0
PAGE = 1000


class Registry:
    """Writes the entries of one runtime into its context cache.

    A store that is unavailable delays no message: it is logged, and the next write is tried.

    :param cache: asynchronous; open as long as the registry is used.
    :param name: of the runtime.
    :param snapshot: returns its present snapshot.
    """

    def __init__(
        self, cache: Any, name: str, snapshot: Callable[[], RuntimeSnapshot], clock: Clock
    ) -> None:
        self.worker = worker_name()
        self._cache = cache
        self._name = name
        self._key = f"{REGISTRY}{name}"
        self._snapshot = snapshot
        self._clock = clock
        self._started = clock.time()
        self._is_failing = False
        self._writing: asyncio.Task[None] | None = None

    async def enter(self) -> None:
        """Register the runtime, and write its snapshot again and again until it leaves.

        :raises CrashLoopError: too many processes of this name crashed before their first message.
        """
        crashes: list[float] = []
        try:
            await self._write()  # first: a runtime without a snapshot counts as crashed
            crashes = await self._change(self._add)
        except RetryError as exc:
            self._failed(exc)
        if len(crashes) >= MAX_CRASHES:
            await self.leave()
            raise CrashLoopError(
                f"{len(crashes)} processes of the worker {self._name!r} crashed before their first "
                f"message within {CRASH_WINDOW / 60:g} minutes; mend the cause, then wait, or "
                f"start at once after: retrytemplate context forget '{self._key}' "
                f"--store-prefix {self._cache.prefix}"
            )
        self._writing = asyncio.get_running_loop().create_task(self._keep())

    async def received(self) -> None:
        """Note that messages were received: later crashes are attributed to them."""
        try:
            await self._change(self._remove)
        except RetryError as exc:
            self._failed(exc)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(WRITE_INTERVAL)
            try:
                await self._write()
                self._is_failing = False
            except RetryError as exc:
                self._failed(exc)

    async def leave(self) -> None:
        """Remove the runtime: it ends in order."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
        try:
            await self._cache.forget(self._entry(self.worker))
            await self._change(self._remove)
        except RetryError as exc:
            self._failed(exc)

    def _failed(self, error: RetryError) -> None:
        if not self._is_failing:
            self._is_failing = True
            LOG.warning("%s: the registry is not written: %s", self._name, summary(error))

    def _entry(self, worker: str) -> str:
        return f"{self._key}/{worker}"

    async def _write(self) -> None:
        """Write the snapshot, as the record of a completion marker."""
        entry = {
            "worker": self.worker,
            "process": process_fingerprint(),
            "started": self._started,
            "snapshot": self._snapshot().as_json(),
        }
        claim = await self._cache.begin(
            self._entry(self.worker), worker=self.worker, lease=LEASE, fresh=True
        )
        record = Record(phase="done", name=self._name, attributes=entry)
        await self._cache.succeed(claim, remember=EXPIRY, record=record)

    async def _change(self, change: Callable[..., Awaitable[State]]) -> list[float]:
        """Apply a change to the record of the name; return the times of the crashes."""
        while True:
            record = await self._cache.peek(self._key)
            before = {} if record is None else dict(record.attributes or {})
            idle: dict[str, Any] = dict(before.get("idle", {}))
            crashes: list[float] = list(before.get("crashes", []))
            idle, crashes = await change(idle, crashes)
            after = {"idle": idle, "crashes": crashes}
            if after == before:
                return crashes
            version = 0 if record is None else record.version
            changed = evolve(
                record or Record(name=self._name), attributes=after, version=version + 1
            )
            if await self._cache.swap(self._key, changed, version):
                return crashes

    async def _add(self, idle: dict[str, Any], crashes: list[float]) -> State:
        """Add this runtime; move those that have crashed to the crashes."""
        since = self._clock.time() - CRASH_WINDOW
        for worker, (process, started) in list(idle.items()):
            if await self._is_gone(worker, process):
                del idle[worker]
                crashes.append(started)
        idle[self.worker] = [process_fingerprint(), self._started]
        return idle, sorted(each for each in crashes if each > since)

    async def _is_gone(self, worker: str, process: str | None) -> bool:
        if is_process_gone(process):  # known on this machine only
            return True
        return await self._cache.peek(self._entry(worker)) is None

    async def _remove(self, idle: dict[str, Any], crashes: list[float]) -> State:
        idle.pop(self.worker, None)
        return idle, crashes


@frozen
class RunningWorker:
    """A runtime in the registry.

    :param started: seconds since the epoch.
    :param age: seconds since it has written its snapshot, by the clock of the store.
    :param now: the time of the store.
    """

    worker: str
    started: float
    age: float
    now: float
    snapshot: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The snapshot with the other facts."""
        facts = {"worker": self.worker, "started": self.started, "age": round(self.age, 3)}
        return facts | self.snapshot


def running_workers(entries: ContextInspector, name: str | None = None) -> Iterator[RunningWorker]:
    """The runtimes in the registry of a store.

    :param name: only those of this name; None: all.
    """
    prefix, after = REGISTRY if name is None else f"{REGISTRY}{name}/", ""
    while page := entries.page(prefix=prefix, after=after, limit=PAGE):
        for entry in page:
            worker = _worker(entry)
            if worker is not None and name in (None, worker.snapshot["name"]):
                yield worker
        after = page[-1].key


def _worker(entry: Entry) -> RunningWorker | None:
    """The runtime of a snapshot's key; None for another key, or one that cannot be read."""
    found = entry.record.attributes or {}
    snapshot = found.get("snapshot")
    if not isinstance(snapshot, dict) or entry.phase != "done":
        return None
    age = entry.now - (entry.updated or entry.now)
    if entry.updated is None and entry.expires is not None:  # Redis keeps no time of the write
        age = EXPIRY - (entry.expires - entry.now)
    return RunningWorker(found["worker"], found["started"], max(age, 0.0), entry.now, snapshot)
