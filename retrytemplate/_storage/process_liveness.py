"""Check that the process which held a claim or a run has ended."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_active_workers: set[str] = set()


@contextmanager
def register_active_worker(worker: str) -> Iterator[None]:
    """Record a worker of this process while it has a run."""
    _active_workers.add(worker)
    try:
        yield
    finally:
        _active_workers.discard(worker)


@cache
def process_fingerprint() -> str | None:
    """Identify this process, so that another one can check whether it runs; None: unknown.

    PID namespace (containers reuse the same numbers), boot of the machine, number and start time.
    """
    with suppress(OSError):
        number, start = _process("self")
        # Another number: /proc shows the processes of another namespace.
        if number == str(os.getpid()):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return f"{os.readlink('/proc/self/ns/pid')} {boot} {number} {start}"
    return None


os.register_at_fork(after_in_child=process_fingerprint.cache_clear)


def is_this_process(fingerprint: str | None) -> bool:
    """Whether the fingerprint is that of this process."""
    return fingerprint is not None and fingerprint == process_fingerprint()


def is_worker_gone(worker: str, fingerprint: str | None) -> bool:
    """Whether a registered worker, perhaps of this process, has ended without a report."""
    if is_this_process(fingerprint):
        return worker not in _active_workers
    return is_process_gone(fingerprint)


def is_process_gone(fingerprint: str | None) -> bool:
    """True: the process has ended.  False: it runs, or that is unknown."""
    own_fingerprint = process_fingerprint()
    if fingerprint is None or own_fingerprint is None:
        return False
    where, number, start = (*fingerprint.rsplit(" ", 2), "", "")[:3]
    if where != own_fingerprint.rsplit(" ", 2)[0] or not number.isdecimal():
        return False
    try:
        return _process(number)[1] != start
    except FileNotFoundError:
        return not _exists(int(number))
    except ProcessLookupError:
        return True
    except OSError:
        return False


def _exists(number: int) -> bool:
    """Whether there is such a process: /proc may be mounted to hide those of other users."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _process(name: str) -> tuple[str, str]:
    """Number and start time, in ticks since the boot: the system reuses process numbers."""
    stat = Path(f"/proc/{name}/stat").read_text()
    # The name in parentheses may hold anything.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":  # ended, and not yet waited for by its parent
        raise ProcessLookupError(name)
    return stat.partition(" ")[0], fields[19]
