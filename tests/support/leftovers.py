"""Threads, processes and open files that a test leaves behind; the end of a run that hangs."""

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
    # Fonts that matplotlib keeps open, by their paths.
    "/matplotlib/mpl-data/fonts/",
)
"""Leftovers that belong to the run."""

PR_SET_CHILD_SUBREAPER = 36
SHORT, SOON = 0.02, 10.0
"""Seconds for tasks that are ending, before and after the garbage collection."""
CLOSING = 1.0
"""Seconds for a thread to close its files and sockets."""


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


def descriptors():
    """The numbers of the open files, sockets and pipes (Linux)."""
    with suppress(OSError):
        numbers = set(map(int, os.listdir("/proc/self/fd")))
        listing = os.open("/", os.O_RDONLY)  # gets the number that the listing itself had
        os.close(listing)
        return numbers - {listing}
    return set()


def target(number):
    """What a descriptor is open on; empty when it is closed."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{number}")
    return ""


def command(pid):
    """Its command line; empty while it is about to run another program."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


def has_ended(pid):
    """Whether the process has ended or is a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def is_known(name):
    return any(each in name for each in KNOWN)


class Leftovers:
    """Compares threads, processes and files after a test with those before it."""

    def __init__(self):
        self.start()

    def start(self):
        """Record the present state."""
        self._threads, self._children = set(threading.enumerate()), children()
        self._descriptors = descriptors()

    def adopt(self, before):
        """Attribute everything new since then to a fixture of a module or of the run."""
        self._threads |= set(threading.enumerate()) - before._threads
        self._children |= children() - before._children
        self._descriptors |= descriptors() - before._descriptors

    def found(self, arguments):
        """The names of new leftovers; processes are killed.

        :param arguments: the test's; objects that they hold end with them.
        """
        if not Leftovers()._is_more_than(self):
            return []
        arguments.clear()
        self._wait(SHORT, self._new_tasks)
        if not Leftovers()._is_more_than(self):
            return []
        gc.collect()
        self._wait(SOON, self._new_tasks)
        self._wait(CLOSING, self._new_targets)
        self._wait(SOON, self._new_tasks)  # a listing of children may miss one while others end
        names = [f"the thread {each.name!r}" for each in self._new_threads()]
        names += [f"the process {each!r}" for each in map(self._killed, self._new_children())]
        names += [f"the open {each!r}" for each in self._new_targets()]
        return names

    def _is_more_than(self, before):
        return not (
            self._threads <= before._threads
            and self._children <= before._children
            and self._descriptors <= before._descriptors
        )

    def _wait(self, seconds, new):
        until = time.monotonic() + seconds
        while new() and time.monotonic() < until:
            time.sleep(0.001)  # polled: an unknown thread or process cannot be joined

    def _new_tasks(self):
        return self._new_threads() or self._new_children()

    def _new_targets(self):
        targets = map(target, descriptors() - self._descriptors)
        return [each for each in targets if each and not is_known(each)]

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
