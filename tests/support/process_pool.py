"""Processes by the dozen: forked from one that has all modules loaded and no threads."""

import os
import sys
import traceback
from contextlib import contextmanager

from tests.support.fork_server import processes

__all__ = ["Nursery", "nursery"]


class Nursery:
    """The parent of all processes, which waits for each of them."""

    def __init__(self):
        self._here, there = processes.Pipe()
        self._parent = processes.Process(target=serve, args=(there,), daemon=True)
        self._parent.start()
        there.close()

    def run(self, function, *arguments):
        """The exit code of a process that calls it; minus the signal if it was killed."""
        self._here.send((function, arguments))
        return self._here.recv()

    def warm(self, function, *arguments):
        """Call it in the parent, which then has loaded its modules."""
        self._here.send((None, (function, *arguments)))
        self._here.recv()

    def close(self):
        self._here.close()
        self._parent.join()


def serve(requests):
    while True:
        try:
            function, arguments = requests.recv()
        except EOFError:
            return
        if function is None:
            function, *arguments = arguments
            requests.send(function(*arguments) and None)
        else:
            requests.send(born(function, arguments))


def born(function, arguments):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            function(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def nursery():
    made = Nursery()
    try:
        yield made
    finally:
        made.close()
