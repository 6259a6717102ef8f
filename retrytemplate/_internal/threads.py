"""Threads that an interrupt of the thread waiting for them cannot block.

Python runs signal handlers in the main thread, between any two instructions.  A
``KeyboardInterrupt`` raised inside ``Event.set``, ``Condition.wait``, ``Thread.start`` or
``Future.result``, which are written in Python, can leave their lock held; each thread that needs
the lock then waits forever.  Here the waiting thread uses only ``start_new_thread`` and raw locks,
which are written in C.  Other threads, where no signal handler runs, do everything else.
"""

from __future__ import annotations

from _thread import TIMEOUT_MAX, allocate_lock, get_ident, start_new_thread
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from queue import SimpleQueue
    from threading import Thread

__all__ = ["Threads", "repeat_until_stopped", "repeated", "uninterrupted"]

T = TypeVar("T")


class Threads:
    """One thread for each function.

    :param name: of the thread; several threads get a number each.
    :param daemon: True: the end of the interpreter does not wait for the threads.

    ``start`` and ``wait`` may be interrupted at any instruction, and ``wait`` be called again.
    """

    def __init__(
        self, name: str, works: Sequence[Callable[[], object]], *, daemon: bool = True
    ) -> None:
        self._name = name
        self._works = works
        self._daemon = daemon
        self._errors: list[BaseException | None] = [None] * len(works)
        self._begun = False
        self._claim = allocate_lock()  # of the right to start them, or to decide that none starts
        self._threads: list[Thread] = []
        self._lock = allocate_lock()
        self._running = len(works)
        self._over = False
        self._latch = allocate_lock()
        self._latch.acquire()

    def start(self) -> None:
        """Start the threads, once; an interrupt starts all or none."""
        start_new_thread(self._start_all, ())
        self._begun = True  # only now: see wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether all threads have ended, after *timeout* seconds at most.

        :param timeout: None: no limit.
        """
        if not self._begun and self._claim.acquire(blocking=False):
            self._over = True  # start() was interrupted: the threads do not start any more
        limit = -1 if timeout is None else max(0.0, timeout)
        if not self._over and not self._latch.acquire(timeout=limit):
            return False
        for thread in self._threads:
            thread.join()
        return True

    def check(self) -> None:
        """Raise the first error of the threads, once."""
        errors, self._errors = self._errors, []  # a traceback that leads here would be a cycle
        for error in errors:
            if error is not None:
                try:
                    raise error
                finally:
                    del error, errors

    def _start_all(self) -> None:
        """Run in a thread that ``threading`` does not know: do not call ``current_thread`` here."""
        from threading import Thread

        if not self._claim.acquire(blocking=False):
            return
        for place in range(len(self._works)):
            name = self._name if len(self._works) == 1 else f"{self._name}-{place + 1}"
            thread = Thread(target=self._work, args=(place,), name=name, daemon=self._daemon)
            self._threads.append(thread)  # before it can end: wait() joins all of them then
            try:
                thread.start()
            except RuntimeError as error:  # the system has no thread left
                self._threads.remove(thread)
                self._end(place, error)

    def _work(self, place: int) -> None:
        try:
            self._works[place]()
        except BaseException as error:  # check() raises it
            self._end(place, error)
            del self  # the error's traceback leads to this frame
        else:
            self._end(place, None)

    def _end(self, place: int, error: BaseException | None) -> None:
        with self._lock:
            self._errors[place] = error
            self._running -= 1
            if self._running:
                return
        self._over = True
        self._latch.release()


def repeat_until_stopped(end: SimpleQueue[None], seconds: float) -> Iterator[None]:
    """Yield after every *seconds* seconds, until an item is put into the queue."""
    from queue import Empty

    while True:
        try:
            return end.get(timeout=min(seconds, TIMEOUT_MAX))
        except Empty:
            yield


@contextmanager
def repeated(name: str, step: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call a function after every *seconds* seconds in a thread, during the block."""
    from queue import SimpleQueue

    end = SimpleQueue[None]()

    def repeat() -> None:
        for _ in repeat_until_stopped(end, seconds):
            step()

    threads = Threads(name, [repeat])
    try:
        threads.start()
        yield
    finally:
        end.put(None)
        threads.wait()
    threads.check()


def uninterrupted(fn: Callable[..., T], *args: object) -> T:
    """Call the function, which may take locks, where no signal handler runs.

    In the main thread that is another thread: an interrupt of the wait for it does not interrupt
    the function, unless it comes before the function is called.
    """
    from threading import main_thread

    if get_ident() != main_thread().ident:
        return fn(*args)
    values: list[T] = []
    context = copy_context()
    # A thread that the function starts is a daemon if this one is.
    threads = Threads(
        "retrytemplate-call", [lambda: values.append(context.run(fn, *args))], daemon=False
    )
    threads.start()
    threads.wait()
    threads.check()
    return values[0]
