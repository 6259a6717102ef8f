"""The file locks by which the processes of a host share a gate."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from stat import S_ISDIR

from retrytemplate.control.isolation_gate.entry_queue import Entry, EntryQueue
from retrytemplate.errors import MisuseError

if sys.platform != "win32":
    from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock

GATE, TURNSTILE = 0, 1


class HostQueue(EntryQueue):
    """The same with two locked files, for the processes of a host.

    A process holds the lock GATE while an entry of it is inside: shared or exclusive, as the entry.
    The lock TURNSTILE is taken to get in, and kept by an exclusive entry until it leaves: a process
    that waits for exclusive entry stops all entries after it.

    The locks belong to this process, not to an entry. So at most one entry of it is *passing* the
    turnstile at a time.
    """

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__()
        self.paths = directory / f"{name}.lock", directory / f"{name}.turnstile"
        self.files: list[int] = []
        self.locked: set[Entry] = set()
        self.passing: Entry | None = None
        self._open()

    def __del__(self) -> None:
        self._close()

    def clear(self) -> None:
        """Also close the inherited files: a lock lasts until each process has closed its file."""
        super().clear()
        self.locked.clear()
        self.passing = None
        self._close()

    def is_open(self) -> bool:
        if not super().is_open() or self.passing is not None:
            return False
        self._open()
        free = self._lock(TURNSTILE, exclusive=False)
        if free:
            self._unlock(TURNSTILE)
        return free

    def look(self, entry: Entry) -> bool:
        if not self.is_inside(entry):
            return False
        if entry in self.locked:
            return True
        if entry.outer not in self.locked and not self._pass(entry):
            return False
        self.locked.add(entry)
        return True

    def _pass(self, entry: Entry) -> bool:
        """Pass the turnstile and lock the gate, unless other processes prevent it."""
        self._open()
        if self.passing is not entry:
            self.passing = entry  # before the lock: leave() unlocks it
            if not self._lock(TURNSTILE, exclusive=entry.is_exclusive):
                self.passing = None
                return False
        passed = bool(self.locked) or self._lock(GATE, exclusive=entry.is_exclusive)
        if passed and not self.locked and self._is_deleted():
            self._close()
            self.passing, passed = None, False
        if not entry.is_exclusive:
            self._end_passing(entry)
        return passed

    def _end_passing(self, entry: Entry) -> None:
        if self.passing is entry:
            self._unlock(TURNSTILE)
            self.passing = None

    def leave(self, entry: Entry) -> None:
        self.locked.discard(entry)
        if not self.locked and self.files:
            self._unlock(GATE)
        elif entry.is_exclusive and not any(each.is_exclusive for each in self.locked):
            # Shared entries inside it stay.  The turnstile is still locked: no other process can
            # lock the gate in between.
            self._lock(GATE, exclusive=False)
        self._end_passing(entry)
        super().leave(entry)

    # The files.

    def _open(self) -> None:
        if not self.files:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            try:
                for path in self.paths:
                    self.files.append(os.open(path, flags, 0o600))
            except OSError as exc:
                self._close()
                raise MisuseError(f"cannot create the files of a HostGate: {exc}") from exc

    def _close(self) -> None:
        while self.files:
            os.close(self.files.pop())

    def _is_deleted(self) -> bool:
        """Whether a cleaner of temporary files has deleted it: other processes use a new one."""
        return os.fstat(self.files[GATE]).st_nlink == 0

    def _lock(self, file: int, *, exclusive: bool) -> bool:
        try:
            flock(self.files[file], (LOCK_EX if exclusive else LOCK_SH) | LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(self, file: int) -> None:
        flock(self.files[file], LOCK_UN)


def user_directory() -> Path:
    """The user's own directory for gates, in the system's temporary directory."""
    try:
        path = Path(tempfile.gettempdir(), f"retrytemplate-{os.geteuid()}")
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as exc:
        raise MisuseError(f"cannot create the directory of a HostGate: {exc}") from exc
    if not S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise MisuseError(
            f"{path} must be a directory of this user with mode 0700; remove it, or give the "
            "HostGate a directory="
        )
    return path
