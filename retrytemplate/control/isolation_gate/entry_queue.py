"""Rules of a gate: the entries inside, and those that wait.

An entry is in one of the sets shared, exclusive, waiting, or in none. Each change is one operation
on a set: a signal handler that raises in between leaves no wrong count, and an entry may leave
twice.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from attrs import define, field

from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable


@define(eq=False, repr=False)
class Entry:
    """A request to enter a gate.

    :param outer: the entry of the same gate that its thread or task is in, or waits for.
    :param waiter: wakes the caller when it is granted.
    """

    is_exclusive: bool = field(kw_only=True)
    outer: Entry | None = field(default=None, init=False)
    waiter: Any = field(default=None, init=False)


class EntryQueue:
    """The entries inside a gate and those that wait, first come, first served."""

    def __init__(self) -> None:
        self.shared: set[Entry] = set()
        self.exclusive: set[Entry] = set()
        self.waiting: OrderedDict[Entry, None] = OrderedDict()

    def clear(self) -> None:
        """Forget all entries: in a child process they are the parent's."""
        self.shared.clear()
        self.exclusive.clear()
        self.waiting.clear()

    def is_open(self) -> bool:
        """Whether a shared entry would be granted at once."""
        return not self.exclusive and not self.waiting

    def is_inside(self, entry: Entry) -> bool:
        """Whether the entry was granted."""
        return entry in self.shared or entry in self.exclusive

    def enter(self, entry: Entry, waiter: Callable[[], Any] | None = None) -> bool:
        """Grant the entry; or let it wait, if there is a waiter for it."""
        if not self.is_inside(entry):
            self._try_to_admit(entry)
        if waiter is not None:
            entry.waiter = waiter()
            if not self.is_inside(entry):
                self.waiting[entry] = None
        return self.look(entry)

    def _try_to_admit(self, entry: Entry) -> None:
        outer = entry.outer
        if outer is not None and self.is_inside(outer):
            if entry.is_exclusive and not self.exclusive:
                raise MisuseError(
                    "exclusive entry inside a shared entry of the same gate would wait for itself; "
                    "give the inner work a gate of its own"
                )
            self._admit(entry)
        elif self._fits(entry) and (outer is not None or not self.waiting):
            self._admit(entry)

    def look(self, entry: Entry) -> bool:
        """Whether the entry is granted by now."""
        return self.is_inside(entry)

    def leave(self, entry: Entry) -> None:
        """End an entry, granted or waiting; grant those that this lets in."""
        self.waiting.pop(entry, None)
        self.exclusive.discard(entry)
        self.shared.discard(entry)
        while self.waiting:
            first = next(iter(self.waiting))
            if not self.is_inside(first) and not self._fits(first):
                return
            self._admit(first)
            if not first.waiter.wake():  # its loop is closed
                self.exclusive.discard(first)
                self.shared.discard(first)
            self.waiting.pop(first, None)

    def _fits(self, entry: Entry) -> bool:
        return not self.exclusive and not (entry.is_exclusive and self.shared)

    def _admit(self, entry: Entry) -> None:
        (self.exclusive if entry.is_exclusive else self.shared).add(entry)
