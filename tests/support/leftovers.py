"""Threads and processes that a test leaves behind; and the end of a run that hangs."""

import ctypes
import faulthandler
import gc
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["KNOWN", "Leftovers", "Watchdog", "adopt_orphans", "kill_when_a_block_fails"]

KNOWN = (
    # Threads that stay for the next call, by their names.
    "Trio thread",
    # Processes that start others, by their command lines.
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
    "tests.support.forked_python",
    # The servers, which some tests kill and start again.
    "/postgres -D",
    "/valkey-server",
)
"""Leftovers that belong to the run."""

PR_SET_CHILD_SUBREAPER = 36
SHORT, SOON = 0.02, 10.0
"""Seconds for what is ending, before and after the garbage collection."""


def adopt_orphans():
    """Let the processes that a killed child has started be children of this one (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_when_a_block_fails():
    """Let ``with Popen(...)`` kill its process on an error: a wait for it may never end."""
    leave = subprocess.Popen.__exit__

    def kill_and_leave(process, kind, *raised):
        if kind is not None:
            process.kill()
        leave(process, kind, *raised)

    subprocess.Popen.__exit__ = kill_and_leave


def children():
    """The processes that the main thread has started, or adopted."""
    with suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children", "rb") as listed:
        return set(map(int, listed.read().split()))
    return set()


def command(pid):
    """Its command line; empty while it is about to run another program."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


def has_ended(pid):
    """Whether it is gone, or a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def is_known(name):
    return any(each in name for each in KNOWN)


class Leftovers:
    """Compares what is there after a test with what was there before."""

    def __init__(self):
        self.start()

    def start(self):
        """Remember what is there."""
        self._threads, self._children = set(threading.enumerate()), children()

    def adopt(self, before):
        """Let what is new since then belong to a fixture of a module or of the run."""
        self._threads |= set(threading.enumerate()) - before._threads
        self._children |= children() - before._children

    def found(self, arguments):
        """What is there now and was not, by name; processes are killed.

        :param arguments: the test's: what they hold ends with them.
        """
        if not Leftovers()._is_more_than(self):
            return []
        arguments.clear()
        self._wait(SHORT)
        if Leftovers()._is_more_than(self):
            gc.collect()
            self._wait(SOON)
        names = [f"the thread {each.name!r}" for each in self._new_threads()]
        names += [f"the process {each!r}" for each in map(self._killed, self._new_children())]
        return names

    def _is_more_than(self, before):
        return not (self._threads <= before._threads and self._children <= before._children)

    def _wait(self, seconds):
        until = time.monotonic() + seconds
        while (self._new_threads() or self._new_children()) and time.monotonic() < until:
            time.sleep(0.001)

    def _new_threads(self):
        new = set(threading.enumerate()) - self._threads
        return [each for each in new if not is_known(each.name)]

    def _new_children(self):
        return [pid for pid in children() - self._children if not self._is_over(pid)]

    def _is_over(self, pid):
        if has_ended(pid):  # an orphan: this process adopted it
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            return True
        return is_known(command(pid))

    def _killed(self, pid):
        name = command(pid)
        os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        return name


class Watchdog:
    """Prints all stacks and ends the process where a test and its own limit both hang.

    :param file: of the stacks.
    """

    MARGIN = 60.0
    """Seconds over the limit of a test, at least."""

    def __init__(self, file):
        self._file, self._until = file, 0.0

    def reset(self, limit):
        """Begin again for a test with this limit, in seconds."""
        now = time.monotonic()
        if self._until < now + limit + self.MARGIN:  # seldom: it starts a thread
            seconds = limit + 2 * self.MARGIN
            self._until = now + seconds
            faulthandler.dump_traceback_later(seconds, exit=True, file=self._file)
