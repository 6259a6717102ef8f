"""Check that the process which held a run has ended."""

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
    """Record a worker of this process while it has a run."""
    _active_workers.add(worker)
    try:
        yield
    finally:
        _active_workers.discard(worker)


def process_fingerprint() -> str | None:
    """Identify this process, so that another one can check whether it runs; None: unknown.

    Boot of the machine, PID namespace (containers reuse the same numbers), number and start time.
    """
    proc = Path("/proc")
    with suppress(OSError):
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{_namespace()} {boot} {os.getpid()} {_start(os.getpid())}"
    return None


def is_this_process(fingerprint: str | None) -> bool:
    """Whether the fingerprint is that of this process."""
    return fingerprint is not None and fingerprint == process_fingerprint()


def is_process_gone(worker: str, fingerprint: str | None) -> bool:
    """True: the process has ended without a report.  False: it runs, or that is unknown."""
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
    """Start time in ticks since the boot: the system reuses process numbers."""
    stat = Path(f"/proc/{number}/stat").read_text()
    # The name in parentheses may hold anything.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":  # ended, and not yet waited for by its parent
        raise ProcessLookupError(number)
    return fields[19]
