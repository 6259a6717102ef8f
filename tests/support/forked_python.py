"""``subprocess.Popen`` of a Python program, forked from a server that has imported the library.

The program is a process of its own, with its own standard streams, environment, folder and end of
the interpreter.  It saves the import of the library and its extras, half a second each time.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import re
import runpy
import socket
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import retrytemplate
import tests.support.unflushed  # noqa: F401  # registers a hook

__all__ = ["Popen", "run"]

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_REQUEST = 100_000
EXTRAS = """
    aiosqlite psycopg redis rich.console rich.live rich.progress rich.table rich.traceback
    sqlalchemy.dialects.postgresql.psycopg sqlalchemy.dialects.sqlite.aiosqlite
    sqlalchemy.ext.asyncio
""".split()


class Popen(subprocess.Popen):
    """Starts ``[sys.executable, *options, "-m", module, *arguments]``.

    The only options are ``-W`` and its value.  ``-c`` and a text, or a file, replace the module.
    """

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        *_, stdin, to_stdin, from_stdout, stdout, from_stderr, stderr = rest[:9]
        pipes = (stdin, to_stdin, from_stdout, stdout, from_stderr, stderr)
        streams = [
            usual if given == -1 else given for usual, given in enumerate((stdin, stdout, stderr))
        ]
        environment = dict(os.environ if env is None else env)
        words = list(map(os.fspath, args))
        assert words[0] == sys.executable, words
        request = json.dumps([words[1:], environment, os.fspath(cwd or os.getcwd())])
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(server(), [request.encode()], [*streams, theirs.fileno()])
        self.pid = int(self._answers.recv(20))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags):
        try:
            status = self._answers.recv(20, socket.MSG_DONTWAIT if wait_flags else 0)
        except BlockingIOError:
            return 0, 0
        self._answers.close()
        return self.pid, int(status)

    def _internal_poll(self, *_, **__):
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


def run(args, *, timeout=None, **options):
    """The completed process; its output is text."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(args, text=True, **streams | options) as process:
        output = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(args, process.returncode, *output)


@cache
def server():
    """The socket of the server, which ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        command = [sys.executable, "-m", __name__, str(number)]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[number])

    @atexit.register
    def end():
        ours.close()
        process.wait()

    return ours


# -- in the server ---------------------------------------------------------------------------------


def serve(requests):
    """Return the request in each forked process."""
    running = 0
    while True:
        request, numbers, *_ = socket.recv_fds(requests, LONGEST_REQUEST, 4)
        while running and os.waitpid(-1, os.WNOHANG if request else 0)[0]:
            running -= 1
        if not request:
            sys.exit()
        running += 1
        if not os.fork():
            requests.close()
            return begin(json.loads(request), numbers)
        for number in numbers:
            os.close(number)


def begin(request, numbers):
    """Fork again; send the number of the process and, at its end, its status."""
    *streams, answers = numbers
    pid = os.fork()
    if pid:
        for number in streams:
            os.close(number)
        with socket.socket(fileno=answers) as client:
            client.send(str(pid).encode())
            _, status = os.waitpid(pid, 0)
            client.send(str(status).encode())
        os._exit(0)
    os.close(answers)
    for usual, number in enumerate(streams):
        os.dup2(number, usual)
        os.close(number)
    return request


def become(words, environment, folder):
    """Run as an interpreter started with these arguments."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = folder
    encoding = environment.get("PYTHONIOENCODING", "utf-8").partition(":")[0]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode, errors = "w" if number else "r", "backslashreplace" if number == 2 else "strict"
        line_by_line = {"buffering": 1} if number == 2 or os.isatty(number) else {}
        stream = open(  # noqa: SIM115  # stays open
            number, mode, encoding=encoding, errors=errors, closefd=False, **line_by_line
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    while words[0] == "-W":
        _, option, *words = words
        sys.warnoptions.append(option)
        warnings._processoptions([option])
    if words[0] == "-c":
        kind, what, *sys.argv[1:] = words
        sys.argv[0] = kind
        exec(what, {"__name__": "__main__"})  # noqa: S102  # as python -c
    elif words[0] == "-m":
        _, what, *sys.argv[1:] = words
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def preload():
    """Import the extras and the library, except its programs and modules used by tests only."""
    modules = pkgutil.walk_packages(retrytemplate.__path__, "retrytemplate.")
    names = [each.name for each in modules if not re.search(r"__main__|\.testing\.", each.name)]
    for name in EXTRAS + names:
        importlib.import_module(name)
    gc.freeze()


if __name__ == "__main__":
    preload()
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))
