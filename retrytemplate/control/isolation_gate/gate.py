"""The gates of a process and of a host, and the entries of attempts."""

from __future__ import annotations

import math
import os
import re
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from attrs import define, field, frozen

from retrytemplate._engine.deadline import Deadline
from retrytemplate._internal.formatting import format_limit
from retrytemplate._internal.locks import Monitor, Reentered, is_interrupted
from retrytemplate._internal.validation import check_limit, checked_by, instance_of, read_seconds
from retrytemplate.control._waiters import ThreadWaiter, task_waiter
from retrytemplate.control.isolation_gate.entry_queue import Entry, EntryQueue
from retrytemplate.control.isolation_gate.host_queue import HostQueue, user_directory
from retrytemplate.errors import GateTimeoutError, MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from retrytemplate._internal.validation import Seconds

NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
FIRST_POLL, LONGEST_POLL = 0.001, 0.05
"""Seconds between two looks at a file lock that another process holds."""

_innermost: ContextVar[GateEntry | None] = ContextVar("retrytemplate_gate_entry", default=None)


@frozen
class GateSnapshot:
    """The entries of this process at a gate: inside, and waiting."""

    shared: int
    exclusive: int
    waiting: int


class _Core:
    """The entries of a gate, and the monitor in which they change."""

    def __init__(self, queue: EntryQueue) -> None:
        self.queue = queue
        self.monitor = Monitor()
        self.monitor.forked = queue.clear


@define(eq=False, repr=False)
class GateEntry(Entry):
    """One attempt at a gate: ``with gate.shared():``, or ``async with``.

    It can be entered again after it was left.
    """

    _core: _Core
    _timeout: float
    # The entry of any gate that this one is inside of.
    _around: GateEntry | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self._check_unused()
        try:
            if not self._request(ThreadWaiter):
                for seconds in self._waits():
                    self.waiter.wait(seconds)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    async def __aenter__(self) -> Self:
        self._check_unused()
        try:
            if not self._request(task_waiter):
                for seconds in self._waits():
                    await self.waiter.wait(seconds)
        except BaseException:  # a cancellation, too: an entry granted meanwhile is passed on
            self._leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _is_held(self) -> bool:
        queue = self._core.queue
        return queue.is_inside(self) or self in queue.waiting

    def _check_unused(self) -> None:
        if self._is_held():
            raise MisuseError(
                "this entry is in use; enter with a new gate.shared() or gate.exclusive()"
            )

    def _request(self, waiter: Callable[[], Any]) -> bool:
        """Whether it is inside; else it waits.

        :raises GateTimeoutError: it may not wait.
        """
        self._around = around = _held_from(_innermost.get())
        while around is not None and around._core is not self._core:
            around = _held_from(around._around)
        self.outer = around
        _innermost.set(self)
        run, enter = self._core.monitor.run, self._core.queue.enter
        try:
            if run(enter, self):
                return True
            if self.outer is None and self._timeout > 0 and not is_interrupted():
                return run(enter, self, waiter)
        except Reentered:
            pass
        raise self._rejection()

    def _waits(self) -> Iterator[float]:
        """Seconds of each wait until it is inside.

        :raises GateTimeoutError: the timeout has passed.
        :raises DeadlineExceededError: the enclosing deadline has passed.
        """
        core, now, poll = self._core, self.waiter.now, FIRST_POLL
        deadline = Deadline.current()
        left = math.inf if deadline is None else deadline.remaining()
        until = now() + min(left, self._timeout)
        while (left := until - now()) > 0:
            if core.queue.is_inside(self):  # it waits for other processes
                yield min(left, poll)
                poll = min(2 * poll, LONGEST_POLL)
            else:
                yield left
            if core.monitor.run(core.queue.look, self):
                return
        if deadline is not None and deadline.expired():
            raise deadline.error("the deadline is over: the isolation gate was not entered in time")
        raise self._rejection()

    def _rejection(self) -> GateTimeoutError:
        queue = self._core.queue
        inside = len(queue.shared) + len(queue.exclusive) - queue.is_inside(self)
        kind = "exclusive" if self.is_exclusive else "shared"
        return GateTimeoutError(
            f"no {kind} entry to the isolation gate within {format_limit(self._timeout)}: in this "
            f"process {inside} inside, {len(queue.waiting)} waiting"
        )

    def _leave(self) -> None:
        try:
            self._end()
        except BaseException:  # a signal handler raised: to end twice does no harm
            self._end()
            raise

    def _end(self) -> None:
        if _innermost.get() is self:
            _innermost.set(self._around)
        self._core.monitor.post(self._core.queue.leave, self)


def _held_from(entry: GateEntry | None) -> GateEntry | None:
    """This entry, or the nearest one around it that is held; others ended in another context."""
    while entry is not None and not entry._is_held():
        entry = entry._around
    return entry


def _process_core() -> _Core:
    return _Core(EntryQueue())


@frozen(eq=False)
class ProcessGate:
    """A fair shared/exclusive lock for all threads and event loops of this process.

    Entries are granted in order of arrival: one that waits for exclusive entry stops those after
    it. Threads and tasks (asyncio, trio) share a gate. An entry inside another one of the same
    thread or task never waits; it is a ``MisuseError`` if only the inner one is exclusive. A
    cancelled caller leaves the queue, or passes its entry on. In a forked child the gate is empty.

    >>> gate = ProcessGate()
    >>> with gate.shared(), gate.shared():
    ...     gate.snapshot()
    GateSnapshot(shared=2, exclusive=0, waiting=0)
    >>> with gate.exclusive(timeout=5.0):
    ...     gate.is_open()
    False

    Source: the no-starve readers-writers lock (Downey, The Little Book of Semaphores, 4.2.3).
    """

    _core: _Core = field(init=False, factory=_process_core, repr=False)

    def shared(self, timeout: Seconds | None = None) -> GateEntry:
        """An entry beside other shared ones: ``with gate.shared():``, or ``async with``.

        :param timeout: longest wait in seconds, at least 0; default None: no limit. An enclosing
            ``Deadline`` shortens it. With 0 the entry is granted at once, or not at all.
        :raises GateTimeoutError: by the block, if the entry is not granted in time, or must not
            wait, because it interrupts the gate's own code (a finalizer, a signal handler).
        :raises DeadlineExceededError: by the block, if the deadline passes first.
        """
        return GateEntry(self._core, _checked_timeout(timeout), is_exclusive=False)

    def exclusive(self, timeout: Seconds | None = None) -> GateEntry:
        """An entry while no other one is inside; parameters and errors as for ``shared``."""
        return GateEntry(self._core, _checked_timeout(timeout), is_exclusive=True)

    def is_open(self) -> bool:
        """Whether a shared entry would be granted at once: no exclusive one is inside or waits."""
        try:
            return self._core.monitor.run(self._core.queue.is_open)
        except Reentered:
            return False

    def snapshot(self) -> GateSnapshot:
        """The entries of this process."""
        queue = self._core.queue
        return GateSnapshot(len(queue.shared), len(queue.exclusive), len(queue.waiting))


def _checked_timeout(timeout: Any) -> float:
    return math.inf if timeout is None else read_seconds("timeout", timeout, check_limit)


def _check_name(name: str, value: Any) -> None:
    allowed = "1 to 100 letters, digits, '.', '_' or '-'"
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r}")
    if not NAME.fullmatch(value):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def _to_path(directory: Any) -> Any:
    return Path(directory) if isinstance(directory, str | os.PathLike) else directory


# By folder and name, so that an entry knows the one around it whichever object it came from.
_host_cores: WeakValueDictionary[tuple[Path, str], _Core] = WeakValueDictionary()


@frozen(eq=False)
class HostGate(ProcessGate):
    """The same for all processes of a host or container, by locks on two files.

    The kernel frees the locks of a crashed process. Use it where several processes crash together:
    a worker with its children, or a container with a memory limit. A process that waits for
    exclusive entry stops later entries in all processes; processes take turns in no fixed order.

    :param name: of the gate and its files; 1 to 100 letters, digits, ``.``, ``_`` or ``-``; default
        "retrytemplate". Processes with the same name and directory share the gate.
    :param directory: an existing directory for the files; default None: one of the user in the
        system's temporary directory, with mode 0700.
    :raises MisuseError: the files cannot be created, the default directory belongs to another user
        or is open to others, or the platform has no ``flock``.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, HostGate(directory=folder).exclusive():
    ...     HostGate(directory=folder).is_open()
    False
    """

    name: str = field(default="retrytemplate", validator=checked_by(_check_name))
    directory: Path | None = field(
        default=None,
        kw_only=True,
        converter=_to_path,
        validator=instance_of((Path, type(None)), "a path or None"),
    )
    _core: _Core = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if sys.platform == "win32":
            raise MisuseError(
                "a HostGate needs flock, which Windows does not have; use ProcessGate"
            )
        place = (self.directory or user_directory()).resolve(), self.name
        core = _host_cores.get(place)
        if core is None:
            core = _host_cores.setdefault(place, _Core(HostQueue(*place)))
        object.__setattr__(self, "_core", core)


PROCESS_GATE = ProcessGate()
"""The gate of this process where no other one is given."""
