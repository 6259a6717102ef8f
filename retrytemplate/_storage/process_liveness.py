"""Whether the process that had a run is surely gone."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_process_gone", "is_this_process", "process_fingerprint", "register_active_worker"]

_active_workers: set[str] = set()


@contextmanager
def register_active_worker(worker: str) -> Iterator[None]:
    """While this worker of this process has a run."""
    _active_workers.add(worker)
    try:
        yield
    finally:
        _active_workers.discard(worker)


def process_fingerprint() -> str | None:
    """This process, so that another one can find out whether it lives; None: it could not.

    The machine's boot, the process's namespace (containers number their processes alike), its
    number and its start.
    """
    proc = Path("/proc")
    with suppress(OSError):
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{_namespace()} {boot} {os.getpid()} {_start(os.getpid())}"
    return None


def is_this_process(fingerprint: str | None) -> bool:
    """Whether it is this process."""
    return fingerprint is not None and fingerprint == process_fingerprint()


def is_process_gone(worker: str, fingerprint: str | None) -> bool:
    """True: it has ended without saying so.  False: it lives, or nobody here can tell."""
    own_fingerprint = process_fingerprint()
    if fingerprint is None or own_fingerprint is None:
        return False
    if fingerprint == own_fingerprint:
        return worker not in _active_workers
    *where, number, start = fingerprint.rsplit(" ", 2)
    if where != own_fingerprint.rsplit(" ", 2)[:-2] or not number.isdecimal():
        return False
    try:
        return _start(int(number)) != start
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _start(number: int) -> str:
    """When it started, in ticks since the boot; a number is used again."""
    stat = Path(f"/proc/{number}/stat").read_text()
    # The name in parentheses may hold anything.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":  # dead, and not fetched by its parent yet
        raise ProcessLookupError(number)
    return fields[19]
