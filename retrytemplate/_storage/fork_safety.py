"""Caches after a fork: connections, lease renewals and claims belong to the parent."""

from __future__ import annotations

import os
from typing import Any, Protocol
from weakref import WeakSet


class Forked(Protocol):
    """A cache that starts from an empty state in a child process."""

    def _forked(self) -> None: ...


_open: WeakSet[Forked] = WeakSet()
# Released, they would be closed by the child, which also closes them for the parent.
_parent_resources: list[Any] = []


def register(cache: Forked) -> None:
    """Call ``_forked()`` of the cache in every child of this process."""
    _open.add(cache)


def retain(inherited: Any) -> None:
    """Keep a resource of the parent as long as this process lives."""
    _parent_resources.append(inherited)


def _after_fork() -> None:
    for cache in _open:
        cache._forked()


os.register_at_fork(after_in_child=_after_fork)
