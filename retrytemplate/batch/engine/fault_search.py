"""Which part of a failed chunk to write next, until the items at fault are found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Sequence

FaultSearchMode = Literal["bisect", "linear", "chunk"]
FAULT_SEARCHES: tuple[FaultSearchMode, ...] = ("bisect", "linear", "chunk")

# Halving pays while few items are at fault: with more than one of four, one by one is cheaper.
DENSE = 0.25
# Number of decided items before their failure density is used.
KNOWN = 5


@define
class FaultSearch:
    """Finds the items at fault among *items*, which together have failed.

    Each part is run before an item of it is given up, also the second half of a failed part whose
    first half succeeded: the failure may have been transient.  The first half is run first, so that
    good items are written in the order of the source.

    >>> search = FaultSearch([1, 2, 3, 4])
    >>> at_fault = []
    >>> while part := search.part():
    ...     if 3 not in part:
    ...         search.part_succeeded()
    ...     elif search.part_failed():
    ...         at_fault += part
    >>> at_fault
    [3]
    """

    items: Sequence[int]
    halving: bool = True
    _parts: list[tuple[int, int]] = field(init=False)
    _succeeded: int = field(init=False, default=0)
    _failed: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self._parts = []
        self._split(0, len(self.items))

    def part(self) -> Sequence[int]:
        """The items to write next; empty at the end."""
        if not self._parts:
            return ()
        low, high = self._parts[-1]
        if high - low > 1 and not self._halves():
            self._parts[-1:] = [(low + 1, high), (low, low + 1)]
            high = low + 1
        return self.items[low:high]

    def part_succeeded(self) -> None:
        """The part was written."""
        low, high = self._parts.pop()
        self._succeeded += high - low

    def part_failed(self) -> bool:
        """The part failed.  True: it is one item, and that is at fault."""
        low, high = self._parts.pop()
        if high - low == 1:
            self._failed += 1
            return True
        self._split(low, high)
        return False

    def _split(self, low: int, high: int) -> None:
        if high - low < 2:
            self._parts.append((low, high))
            return
        middle = (low + high) // 2
        self._parts += [(middle, high), (low, middle)]

    def _halves(self) -> bool:
        known = self._succeeded + self._failed
        return self.halving and not (self._failed >= KNOWN and self._failed > DENSE * known)
