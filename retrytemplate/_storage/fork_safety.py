"""What becomes of caches in a child process: connections, renewals and claims are the parent's."""

from __future__ import annotations

import os
from typing import Any, Protocol
from weakref import WeakSet

__all__ = ["register", "retain"]


class Forked(Protocol):
    """A cache that is told, in the child, to begin anew."""

    def _forked(self) -> None: ...


_open: WeakSet[Forked] = WeakSet()
# Let go of here, the child would close them, and the parent's end of them with it.
_parent_resources: list[Any] = []


def register(cache: Forked) -> None:
    """Tell the cache in every child of this process."""
    _open.add(cache)


def retain(inherited: Any) -> None:
    """Hold on to what is the parent's, for the life of this process."""
    _parent_resources.append(inherited)


def _after_fork() -> None:
    for cache in _open:
        cache._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
