"""A log of events outside of a store: rows that processes append to a file, in order.

A written row stays even if the process is killed immediately after.
"""

import json
import os
import time

__all__ = ["EventLog"]

# All of one length that divides a page: no row is ever torn, by a kill or by another writer.
LENGTH = 512


class EventLog:
    """The rows of one file; any number of processes and threads may add to it."""

    def __init__(self, path):
        self.path = str(path)
        self._file = os.open(self.path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)

    def __reduce__(self):
        return EventLog, (self.path,)

    def add(self, what, key, **more):
        row = {"what": what, "key": key, "pid": os.getpid(), "at": time.monotonic()} | more
        text = json.dumps(row).encode().ljust(LENGTH - 1) + b"\n"
        assert len(text) == LENGTH, row
        os.write(self._file, text)

    def rows(self, *what, after=0):
        """The rows after the first *after* ones; only those of the given kinds."""
        with open(self.path, "rb") as file:
            file.seek(after * LENGTH)
            rows = [json.loads(line) for line in file]
        return [row for row in rows if not what or row["what"] in what]

    def __len__(self):
        return os.path.getsize(self.path) // LENGTH

    def close(self):
        os.close(self._file)
