"""A job file for the command, and the command in a child process."""

import json
import os
import pty
import select
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

from tests.support import forked_python
from tests.support.polling import wait_until

COMMAND = (sys.executable, "-W", "error", "-m", "retrytemplate.cli")
PATIENCE = 50.0

# At the item in GATE the processor writes a file, and waits for another one.
JOB = """
import asyncio, os, time
from pathlib import Path
from sqlalchemy import text
from retrytemplate import SimpleRetryPolicy
from retrytemplate.batch import ChunkStep, JobRepository, SkipPolicy
import beside

HERE = Path(__file__).parent
GATE = int(os.environ.get("GATE", -1))
BAD = int(os.environ.get("BAD", -1))

class Odd(Exception):
    pass

def wait():
    (HERE / "arrived").touch()
    # The test is another process: a file is its signal, and its test limits the wait.
    while not (HERE / "go").exists():
        time.sleep(0.01)  # the interval of the polls

def process(item):
    print("processing", item)
    if item == BAD:
        raise Odd(f"item {item}")
    if item == GATE:
        wait()
    return item

async def process_awaited(item):
    if item == GATE:
        (HERE / "arrived").touch()
        while not (HERE / "go").exists():
            await asyncio.sleep(0.01)  # as in wait()
    return item

def stubborn(item):
    while item == GATE:
        try:
            wait()
            return item
        except KeyboardInterrupt:
            (HERE / "caught").touch()
    return item

def write(items, transaction):
    rows = [{"id": item} for item in items]
    transaction.execute(text("INSERT INTO squares VALUES (:id)"), rows)

jobs = JobRepository(os.environ["JOBS"])
with jobs.transaction() as transaction:
    transaction.execute(text("CREATE TABLE IF NOT EXISTS squares (id INTEGER PRIMARY KEY)"))

settings = {
    "reader": range(12), "writer": write, "chunk_size": beside.CHUNK, "repository": jobs,
    "retry": SimpleRetryPolicy(2),
}
step = ChunkStep("copy", processor=process, **settings)
awaited = ChunkStep("awaited", processor=process_awaited, **settings)
hard = ChunkStep("hard", processor=stubborn, **settings)
skipping = ChunkStep("skipping", processor=process, skip=SkipPolicy(on=Odd), **settings)
number = 17

def make():
    return step

def broken():
    raise LookupError("no settings")
"""


class Place:
    """A folder with the job and its database."""

    def __init__(self, folder):
        self.folder = folder
        self.job = folder / "job.py"
        self.job.write_text(JOB)
        (folder / "beside.py").write_text("CHUNK = 4\n")
        self.database = folder / "jobs.db"
        self.url = f"sqlite:///{self.database}"
        self.environment = {**os.environ, "JOBS": self.url, "RETRYTEMPLATE_STORE": self.url}

    def run(self, *args, **variables):
        """Run the command to its end."""
        command = [*COMMAND, *map(str, args)]
        return forked_python.run(command, timeout=PATIENCE, env=self.environment | variables)

    def start(self, *args, **variables):
        """Start the command."""
        return forked_python.Popen(
            [*COMMAND, *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment | variables,
        )

    def in_a_terminal(self, *args, when=None, limit=PATIENCE, **variables):
        """The exit code, and what a terminal is given to draw.

        *when*: a text, and a function that is called once it is drawn.
        """
        ours, theirs = pty.openpty()
        drawn = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        process = forked_python.Popen(
            [*COMMAND, *map(str, args)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=self.environment | drawn | variables,
        )
        os.close(theirs)
        shown = b""
        until = time.monotonic() + limit
        while time.monotonic() < until:
            if not select.select([ours], [], [], 1.0)[0]:
                continue
            try:
                part = os.read(ours, 65_536)
            except OSError:  # the other side is closed: on Linux that is an EIO
                break
            if not part:
                break
            shown += part
            if when is not None and when[0].encode() in shown:
                when[1]()
                when = None
        os.close(ours)
        return process.wait(limit), shown.decode()

    def arrived(self, name="arrived"):
        """Wait until the job has reached its gate."""
        wait_until((self.folder / name).exists)

    def let_go(self):
        (self.folder / "go").touch()

    def rows(self):
        return self._sql("SELECT id FROM squares ORDER BY id")

    def counted(self, column):
        [value] = self._sql(f"SELECT {column} FROM batch_runs ORDER BY id DESC LIMIT 1")
        return value

    def _sql(self, statement):
        with closing(sqlite3.connect(self.database)) as connection:
            return [value for (value,) in connection.execute(statement)]


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]
