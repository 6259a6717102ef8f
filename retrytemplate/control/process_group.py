"""Processes that do the same work: crashed ones are started again, all end with their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import wait
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.validation import check_at_least_one
from retrytemplate.backoff.exponential import ExponentialBackoff
from retrytemplate.clock import given_or_system

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from typing import Self

    from retrytemplate.clock import Clock

RESTARTS = ExponentialBackoff(initial=0.1, maximum=5.0)
STABLE = 5.0
"""Seconds after which a crash of a process counts as its first one."""
LAST_EXIT_CODE = 2
"""A process that ends with a higher exit code, or by a signal, has crashed."""


@frozen
class ProcessMessage:
    """A process sent a message.

    :param number: of the process in the group, from 0; the process that replaces it has it, too.
    """

    number: int
    message: Any


@frozen
class ProcessCrashed:
    """A process crashed.

    :param exit_code: minus the signal that ended it, or an exit code above 2.
    :param delay: seconds until it is started again; None: the group stops.
    """

    number: int
    exit_code: int
    delay: float | None


@frozen
class ProcessEnded:
    """A process ended by itself, or was ended by ``stop`` before it handled signals.

    :param exit_code: 0 to 2; 0 after ``stop``.
    """

    number: int
    exit_code: int


class _Member:
    """A process of the group, and those that replace it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: BaseProcess | None = None
        self.messages: Connection | None = None
        self.began = 0.0
        self.restart_at: float | None = None
        self.backoff_state = RESTARTS.start()

    @property
    def is_over(self) -> bool:
        return self.process is None and self.restart_at is None


class ProcessGroup:
    """Starts processes with the same work, as a context manager; at its end none is left.

    A process that crashes is started again, after 0.1 to 5 seconds; one that returns is not.  It
    ignores SIGINT, which a terminal sends to all processes, unless the work installs a handler.  It
    gets SIGTERM when the parent ends.

    :param work: a function of a module, ``work(send, *args)``; it returns the exit code, 0 to 2.
        ``send`` sends a message to the parent.
    :param args: further arguments; pickled, as messages are.
    :param count: of processes, at least 1.
    :param preload: modules that are imported once, before processes are forked (not on Windows).
        They belong to the program: its one fork server has them, and blocks SIGTERM.
    :param clock: None: the clock of the system.
    """

    def __init__(
        self,
        work: Callable[..., int],
        args: Sequence[Any] = (),
        *,
        count: int,
        preload: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        check_at_least_one("count", count)
        self._work, self._args = work, tuple(args)
        self._monotonic = given_or_system(clock).monotonic
        self._random = Random()
        self._preload = list(preload)
        self._has_fork_server = "forkserver" in multiprocessing.get_all_start_methods()
        method = "forkserver" if self._has_fork_server else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        self._members = [_Member(number) for number in range(count)]
        self._is_stopping = False

    def __enter__(self) -> Self:
        if self._preload and self._has_fork_server:
            _start_fork_server(self._preload)
        try:
            for member in self._members:
                self._start(member)
        except BaseException:  # asynchronous code does not call it
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for member in self._members:
            if member.process is not None:
                member.process.join()
            self._close(member)

    @property
    def running(self) -> int:
        """The number of processes that run."""
        return sum(member.process is not None for member in self._members)

    @property
    def is_over(self) -> bool:
        """Whether all processes have ended, and none is started again."""
        return all(member.is_over for member in self._members)

    def stop(self) -> None:
        """Send SIGTERM to the processes, in a further call SIGINT; start none again.

        Callable in a signal handler.
        """
        number = signal.SIGINT if self._is_stopping else signal.SIGTERM
        self._is_stopping = True
        for member in self._members:
            member.restart_at = None
            process = member.process
            if process is not None and process.exitcode is None and process.pid is not None:
                os.kill(process.pid, number)

    def kill(self) -> None:
        """End the processes at once (SIGKILL); start none again.  Callable in a signal handler."""
        self._is_stopping = True
        for member in self._members:
            member.restart_at = None
            if member.process is not None:
                member.process.kill()

    def poll(self, timeout: float) -> list[ProcessMessage | ProcessCrashed | ProcessEnded]:
        """Wait for events, and start processes again that are due.

        :param timeout: longest wait in seconds.
        """
        now = self._monotonic()
        due = [each.restart_at for each in self._members if each.restart_at is not None]
        wait(self._awaited(), max(0.0, min([timeout, *(at - now for at in due)])))
        events: list[ProcessMessage | ProcessCrashed | ProcessEnded] = []
        for member in self._members:
            process = member.process
            is_over = process is not None and not process.is_alive()
            # After the check: nothing is sent later.
            events += [ProcessMessage(member.number, each) for each in _received(member)]
            if process is not None and is_over:
                events.append(self._ended(member, process))
            if member.restart_at is not None and member.restart_at <= self._monotonic():
                self._start(member)
        return events

    def _awaited(self) -> list[Any]:
        running = [each for each in self._members if each.process is not None]
        sentinels = [each.process.sentinel for each in running if each.process is not None]
        return [*sentinels, *(each.messages for each in running if each.messages is not None)]

    def _start(self, member: _Member) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        member.messages, member.restart_at, member.began = ours, None, self._monotonic()
        process = self._context.Process(target=_begin, args=(self._work, theirs, self._args))
        with theirs:
            process.start()
        member.process = process
        if self._is_stopping:  # a signal handler called stop() meanwhile
            process.terminate()

    def _ended(self, member: _Member, process: BaseProcess) -> ProcessCrashed | ProcessEnded:
        process.join()
        code = process.exitcode or 0
        self._close(member)
        if self._is_stopping and code == -signal.SIGTERM:
            code = 0
        if 0 <= code <= LAST_EXIT_CODE:
            return ProcessEnded(member.number, code)
        if self._is_stopping:
            return ProcessCrashed(member.number, code, None)
        now = self._monotonic()
        if now - member.began >= STABLE:
            member.backoff_state = RESTARTS.start()
        delay, member.backoff_state = RESTARTS.next(
            member.backoff_state, ChildProcessError(), self._random
        )
        assert delay is not None
        member.restart_at = now + delay
        return ProcessCrashed(member.number, code, delay)

    def _close(self, member: _Member) -> None:
        process, member.process = member.process, None  # a signal handler may call stop()
        if process is not None:
            process.close()
        if member.messages is not None:
            member.messages.close()
            member.messages = None


def _start_fork_server(preload: list[str]) -> None:
    """Start the server from which processes are forked, with SIGTERM blocked.

    A service manager may send the signal to all processes of a service.  The server must outlive
    those that it has forked, and ends with the parent.
    """
    from multiprocessing import forkserver, resource_tracker

    multiprocessing.set_forkserver_preload(preload)
    resource_tracker.ensure_running()  # unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _received(member: _Member) -> list[Any]:
    """The messages that a process has sent; the last one may be incomplete after a crash."""
    messages: list[Any] = []
    connection = member.messages
    try:
        while connection is not None and connection.poll():
            messages.append(connection.recv())
    except (EOFError, OSError):
        member.messages = None
        if connection is not None:
            connection.close()
    return messages


def _begin(work: Callable[..., int], connection: Connection, args: tuple[Any, ...]) -> None:
    """Run the work in a process of the group."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # the fork server blocks it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    Thread(target=_end_with_parent, name="retrytemplate-parent", daemon=True).start()
    sys.exit(work(connection.send, *args))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
