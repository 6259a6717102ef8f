"""Names of workers: machine, process, execution."""

from __future__ import annotations

import os
from functools import lru_cache
from itertools import count

__all__ = ["host_name", "is_exclusive", "next_number", "parse_worker_id", "worker_name"]


@lru_cache
def host_name() -> str:
    """This machine's name."""
    import platform

    return platform.node()


# Of a process; int() cannot read any number of them.
MOST_DIGITS = 19
EXCLUSIVE = "!"

next_number = count(1).__next__
_worker_prefix = ""


def worker_name(number: int | None = None, *, exclusive: bool = False) -> str:
    """A unique name for one execution: machine, process, number.

    :param number: of ``next_number()``; None: the next one.
    :param exclusive: whether to mark the name: its attempts are exclusive.
    """
    if number is None:
        number = next_number()
    mark = EXCLUSIVE if exclusive else ""
    return f"{_worker_prefix or _make_worker_prefix()}{number}{mark}"


def is_exclusive(worker: str) -> bool:
    """Whether the name is marked as that of exclusive attempts.

    >>> is_exclusive("host-3:4711:17!"), is_exclusive("host-3:4711:17")
    (True, False)
    """
    return worker.endswith(EXCLUSIVE)


def parse_worker_id(worker: str) -> tuple[str, int | None]:
    """The machine and the process in a worker's name; ``("", None)`` for another name.

    >>> parse_worker_id("host-3:4711:17"), parse_worker_id("me")
    (('host-3', 4711), ('', None))
    """
    host, *numbers = worker.rsplit(":", 2)
    if len(numbers) < 2 or not numbers[0].isdecimal() or len(numbers[0]) > MOST_DIGITS:
        return "", None
    return host, int(numbers[0])


def _make_worker_prefix() -> str:
    global _worker_prefix
    # A restarted container has the same machine name and process number as before.
    _worker_prefix = f"{host_name()}:{os.getpid()}:{os.urandom(4).hex()}-"
    return _worker_prefix


def _reset_after_fork() -> None:
    global _worker_prefix
    _worker_prefix = ""


os.register_at_fork(after_in_child=_reset_after_fork)
