"""A runtime in this process, and the same in several processes."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.threads import repeated
from retrytemplate.cli.errors import CommandFailed, UsageError
from retrytemplate.cli.signals import INTERRUPTED
from retrytemplate.control.process_group import (
    ProcessCrashed,
    ProcessEnded,
    ProcessGroup,
    ProcessMessage,
)
from retrytemplate.errors import RetryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from retrytemplate.cli.commands.worker.fleet import Reporter
    from retrytemplate.workers import RuntimeSnapshot, ShutdownReport, WorkerRuntime

FAILED = 1
SIGNALS = signal.SIGINT, signal.SIGTERM


class StopSignals:
    """SIGINT and SIGTERM: the first stops the work, the second ends its grace period.

    The third one ends the process at once.

    :param stop: called in the signal handler, like *kill*: both must take no lock.
    """

    def __init__(self, stop: Callable[[], None], kill: Callable[[], None]) -> None:
        self.stop, self.kill = stop, kill
        self.interrupted = False
        """Whether the second signal, or a later one, was SIGINT."""
        self._count = 0

    def __call__(self, number: int, frame: Any) -> None:
        self._count += 1
        if self._count > 1 and number == signal.SIGINT:
            self.interrupted = True
        (self.stop if self._count < 3 else self.kill)()

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals in the block; one that is ignored stays ignored."""
        heeded = [each for each in SIGNALS if self._is_heeded(each)]
        before = {each: signal.signal(each, self) for each in heeded}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _is_heeded(self, number: int) -> bool:
        return signal.getsignal(number) is not signal.SIG_IGN


class MemberSignals(StopSignals):
    """The same in a process of a group: the parent sends SIGTERM, then SIGINT.

    The terminal and the service manager may send the same signals to all processes.  So SIGINT is
    ignored before SIGTERM, and a second SIGTERM, too.
    """

    def __call__(self, number: int, frame: Any) -> None:
        if (number == signal.SIGINT) == bool(self._count):
            self._count += 1
            self.stop()

    def _is_heeded(self, number: int) -> bool:
        return True


def run_here(
    runtime: WorkerRuntime,
    report: Callable[[RuntimeSnapshot], None],
    interval: float,
    kind: type[StopSignals] = StopSignals,
) -> int:
    """Run until a signal; report from a thread, which a slow terminal may block.

    :return: the exit code.
    :raises CommandFailed: the runtime cannot start.
    """
    signals = kind(lambda: None, lambda: os._exit(INTERRUPTED))
    runner = asyncio.Runner()

    def report_state() -> None:
        with suppress(OSError):  # the output is closed
            report(runtime.snapshot())

    try:
        with repeated("retrytemplate-worker", report_state, interval):
            ended = runner.run(_run(runtime, signals))
    except RetryError as error:
        runner.close()
        raise CommandFailed(str(error)) from error
    report(runtime.snapshot())
    if ended.error is not None:
        print(f"retrytemplate worker: {summary(ended.error)}", file=sys.stderr)
    if ended.clean:  # else a task that ignores its cancellation would be awaited
        runner.close()
    return INTERRUPTED if signals.interrupted else 0 if ended.clean else FAILED


async def _run(runtime: WorkerRuntime, signals: StopSignals) -> ShutdownReport:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.call_soon_threadsafe(runtime.stop)

    signals.stop = stop
    with signals.handled():
        return await runtime.run()


def leave(code: int) -> int:
    """The exit code; if it is not 0, end the process without waiting for threads."""
    if code:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    return code


# -- several processes ---------------------------------------------------------------------------


@frozen
class Output:
    """A line that a process wrote to its standard output or error."""

    text: str


class _Lines(io.TextIOBase):
    """A stream that sends each line to the parent: it would destroy the table on the terminal."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.send = send
        self._rest = ""
        self._lock = threading.RLock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self.send(Output(line))
        return len(text)


def serve(
    send: Callable[[Any], None],
    make: Callable[..., WorkerRuntime],
    args: tuple[Any, ...],
    interval: float,
    as_json: bool,
    sends_output: bool,
) -> int:
    """The work of one process: run a runtime, and send its snapshots; returns the exit code.

    :param make: a function of a module that returns the runtime.
    :param as_json: True: standard output is written to standard error.
    :param sends_output: True: lines of the standard streams are sent, too.
    """
    lock = threading.RLock()

    def send_one(message: Any) -> None:
        with lock:
            send(message)

    lines: Any = _Lines(send_one) if sends_output else None
    output = sys.stderr if as_json else lines
    with (
        redirect_stdout(output) if output else nullcontext(),
        redirect_stderr(lines) if lines else nullcontext(),
    ):
        try:
            return leave(run_here(make(*args), send_one, interval, MemberSignals))
        except (CommandFailed, UsageError) as error:
            print(f"retrytemplate worker: {error}", file=sys.stderr)
            return FAILED


def run_group(
    group: ProcessGroup, reporter: Reporter, is_done: Callable[[], bool] = lambda: False
) -> int:
    """Report the events of a group until its processes have ended; the exit code.

    A process that fails by itself stops the others.

    :param is_done: asked regularly; True: the group stops.
    """
    signals = StopSignals(group.stop, group.kill)
    failed = stopping = False
    with signals.handled(), group:
        while not group.is_over:
            for event in group.poll(reporter.tick):
                failed |= _report(event, reporter)
            if not stopping and (failed or is_done()):
                stopping = True
                group.stop()
            reporter.show()
    return INTERRUPTED if signals.interrupted else FAILED if failed else 0


def _report(event: ProcessMessage | ProcessCrashed | ProcessEnded, reporter: Reporter) -> bool:
    """Pass an event on; whether it is a failure of the whole command."""
    if isinstance(event, ProcessMessage):
        if isinstance(event.message, Output):
            reporter.notice(event.message.text)
        else:
            reporter.fleet.add(event.number, event.message)
        return False
    reporter.fleet.remove(event.number)
    if isinstance(event, ProcessEnded):
        return event.exit_code != 0
    reporter.fleet.process_crashes += 1
    reporter.crashed(event)
    return event.delay is None
