"""Mutual exclusion that its own thread may re-enter, and that survives a fork.

A thread can be interrupted between any two instructions by code that it does not call itself: the
garbage collector closes an abandoned generator, a finalizer runs, a signal handler runs. That code
may use the same object whose lock the interrupted code holds. With a plain lock it waits forever;
with a reentrant lock it sees and changes a state that is half written.

A ``Monitor`` never lets that code wait and never lets it write:

- ``run`` raises ``Reentered`` instead. The caller then uses the present state, or rejects.
- ``post`` appends the step to a queue. The thread that holds the lock applies the queue: on entry,
  so that a later step sees the earlier ones, and after its release, so that the queue is
  empty then. ``deque.append`` and ``deque.popleft`` are atomic.

No deadlock is possible: a thread that holds a monitor never waits for a monitor, neither for the
same one (it owns the lock) nor for another one (``_wait`` looks for a critical section among its
own callers before it waits). So every thread that waits holds none, and every holder proceeds.

Steps must be short, must not call code of the user, and must not use another monitor.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

__all__ = ["Monitor", "Reentered", "is_interrupted"]

T = TypeVar("T")
MAX_DEFERRED = 100
FORK_WAIT = 1.0
"""Seconds that a fork waits for one lock; a critical section takes microseconds."""


class Reentered(Exception):
    """The calling thread was interrupted inside a critical section and must not wait."""


class Monitor:
    """Runs steps one at a time, whichever thread they come from.

    ``lock`` is for code that its own thread may re-enter; ``forked`` is run in every child process.

    >>> monitor, numbers = Monitor(), []
    >>> def interrupted():
    ...     monitor.post(numbers.append, 2)  # as a finalizer may
    ...     numbers.append(1)
    >>> monitor.run(interrupted)
    >>> numbers
    [1, 2]
    """

    __slots__ = (
        "__weakref__",
        "_acquire",
        "_owned",
        "_release",
        "forked",
        "lock",
        "posted",
        "reinit",
    )

    def __init__(self) -> None:
        make: Any = RLock
        lock = make()
        self.lock = lock
        self.forked: Callable[[], object] | None = None
        # Written in C: no signal handler runs between the effect of a call and its return.
        self._acquire: Callable[..., bool] = lock.acquire
        self._release: Callable[[], None] = lock.release
        self._owned: Callable[[], bool] = lock._is_owned
        self.reinit: Callable[[], None] = lock._at_fork_reinit
        self.posted: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        _monitors.add(ref(self, _monitors.discard))

    def run(self, step: Callable[..., T], *args: Any) -> T:
        """Run the step while no other one runs.

        :raises Reentered: this thread is inside a critical section already; nothing was run.
        """
        if self._owned():
            raise Reentered
        try:
            if not self._acquire(False):
                self._wait()
            if self.posted:
                self._apply()
            return step(*args)
        finally:
            try:
                self._release()
            except RuntimeError:  # it was not acquired
                pass
            if self.posted:
                self._drain()

    def post(self, step: Callable[..., T], *args: Any) -> T | None:
        """Run the step now; or let the thread that holds the lock run it, and return None."""
        if self._owned():
            self.posted.append((step, args))
            return None
        try:  # the code of run(), since a call of it would double the cost
            if not self._acquire(False):
                self._wait()
            if self.posted:
                self._apply()
            return step(*args)
        except Reentered:
            self.posted.append((step, args))
            return None
        finally:
            try:
                self._release()
            except RuntimeError:  # it was not acquired
                pass
            if self.posted:
                self._drain()

    def later(self, step: Callable[..., object], *args: Any) -> None:
        """Let the thread that holds the lock run the step; run it here if no thread holds it."""
        self.posted.append((step, args))
        self._drain()

    def defer(self, step: Callable[..., object], *args: Any) -> None:
        """Run the step at the latest before the next one: for counts that are not read at once."""
        self.posted.append((step, args))
        if len(self.posted) >= MAX_DEFERRED:
            self._drain()

    def read(self, step: Callable[..., T], *args: Any) -> T:
        """The result of a step that changes nothing; without the lock if it cannot wait for it."""
        try:
            return self.run(step, *args)
        except Reentered:
            return step(*args)

    def guarded(self, step: Callable[[], T], reentered: Callable[[], T]) -> Callable[[], T]:
        """``run`` of one step, as a function that is faster.

        :param reentered: called where *step* must not run now.
        """
        owned, acquire, release, posted = self._owned, self._acquire, self._release, self.posted

        def run() -> T:
            if owned():
                return reentered()
            try:
                if not acquire(False):
                    self._wait()
                if posted:
                    self._apply()
                return step()
            except Reentered:
                return reentered()
            finally:
                try:
                    release()
                except RuntimeError:  # it was not acquired
                    pass
                if posted:
                    self._drain()

        _critical.add(run.__code__)
        return run

    def _wait(self) -> None:
        """Acquire the lock, which another thread has, unless this thread has one itself."""
        if is_interrupted(2):
            raise Reentered
        self._acquire()

    def _apply(self) -> None:
        while self.posted:
            step, args = self.posted.popleft()
            step(*args)

    def _drain(self) -> None:
        """Apply the posted steps, unless the present holder of the lock will do so."""
        while self.posted and not self._owned():
            try:
                if not self._acquire(False):
                    return
                self._apply()
            finally:
                try:
                    self._release()
                except RuntimeError:  # it was not acquired
                    pass


def is_interrupted(depth: int = 1) -> bool:
    """Whether this thread is inside a critical section, and therefore must not wait.

    :param depth: of the caller's frames that are not looked at.
    """
    frame: FrameType | None = sys._getframe(depth + 1)
    while frame is not None:
        if frame.f_code in _critical:
            return True
        frame = frame.f_back
    return False


# Not a WeakSet: its methods are written in Python, and may be interrupted half-way.
_monitors: set[ref[Monitor]] = set()
_forking = RLock()
_held: list[list[tuple[Monitor, bool]]] = []  # by the forks in progress


def _before_fork() -> None:
    """Wait until no thread is in a critical section: the child would copy a half-written state."""
    _forking.acquire()
    held: list[tuple[Monitor, bool]] = []
    _held.append(held)
    for each in _monitors.copy():
        monitor = each()
        if monitor is not None:
            held.append((monitor, monitor._acquire(True, FORK_WAIT)))


def _after_in_parent() -> None:
    for monitor, acquired in _held.pop():
        if acquired:
            monitor._release()
            monitor._drain()
    _forking.release()


def _after_in_child() -> None:
    held = _held[-1]
    for monitor, acquired in held:
        if not acquired:  # its holder is not in this process
            monitor.reinit()
    _after_in_parent()
    for monitor, _ in held:
        if monitor.forked is not None:
            monitor.post(monitor.forked)


_critical: set[CodeType] = {
    each.__code__
    for each in (Monitor.run, Monitor.post, Monitor._drain, _before_fork, _after_in_parent)
}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_in_parent,
        after_in_child=_after_in_child,
    )
