"""Who holds a claim: machine, process, execution."""

from __future__ import annotations

import os
from functools import lru_cache
from itertools import count

__all__ = ["host_name", "worker_name"]


@lru_cache
def host_name() -> str:
    """This machine's name."""
    import platform

    return platform.node()


_executions = count(1)
_place = ""


def worker_name() -> str:
    """A name for one execution: machine, process, number."""
    return f"{_place or _here()}{next(_executions)}"


def _here() -> str:
    global _place
    _place = f"{host_name()}:{os.getpid()}:"
    return _place


def _elsewhere() -> None:
    global _place
    _place = ""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_elsewhere)
