"""The chunk in progress: the state of each of its items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import Factory, define, evolve, field

from retrytemplate.batch.engine.checkpoint import Checkpoint, indexes_of, ranges_of
from retrytemplate.batch.journal.run import Counts, JournalUpdate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from retrytemplate.batch.engine.effects import ReadRecords
    from retrytemplate.batch.journal.letters import Letter
    from retrytemplate.history import AttemptRecord


@define
class Chunk:
    """The items of a chunk by their index in it.

    :param checkpoint: its state in the journal.
    :param gate_is_open: whether the next chunk may begin without another entry to the gate.
    :param remaining: those that are neither written nor filtered nor given up.
    :param counts: changes that the journal does not have yet; *letters*: dead letters likewise.
    :param values: results of the processor, None for a filtered or failed item; None as a whole if
        items are written unchanged, or processed in the transaction.
    """

    read: ReadRecords
    checkpoint: Checkpoint
    gate_is_open: Callable[[], bool]
    remaining: Sequence[int] = field(init=False)
    counts: Counts = field(init=False)
    values: list[Any] | None = None
    histories: dict[int, tuple[AttemptRecord, ...]] = Factory(dict)
    letters: dict[int, Letter] = Factory(dict)

    def __attrs_post_init__(self) -> None:
        size = len(self.read.records.items)
        known = self.checkpoint.count is not None
        self.remaining = indexes_of(self.checkpoint.pending) if known else range(size)
        self.counts = Counts(read=0 if known else size)

    @property
    def size(self) -> int:
        """Number of items, finished ones included."""
        return len(self.read.records.items)

    @property
    def waiting(self) -> Sequence[int]:
        """The remaining items that were not given up."""
        if not self.letters:
            return self.remaining
        return [index for index in self.remaining if index not in self.letters]

    def items(self, indexes: Iterable[int]) -> list[Any]:
        """These items as they were read."""
        every = self.read.records.items
        return [every[index] for index in indexes]

    def unfiltered(self, indexes: Sequence[int]) -> Sequence[int]:
        """The items to write; the others are filtered."""
        if self.values is None:
            return indexes
        values = self.values
        return [index for index in indexes if values[index] is not None]

    def values_to_write(self, indexes: Sequence[int]) -> list[Any]:
        """The values that the writer gets for these."""
        every = self.read.records.items
        values = every if self.values is None else self.values
        if len(indexes) == len(every):
            return list(values)
        return [values[index] for index in indexes]

    def count(self, **numbers: int) -> None:
        """Add to the counts of the next update of the journal."""
        self.counts += Counts(**numbers)

    def dead_letter(self, index: int, letter: Letter, *, skipped: bool) -> None:
        """This item is dead-lettered with the next closing."""
        self.letters[index] = letter
        self.count(dead_lettered=1, skipped=int(skipped))

    def undo_skips(self, indexes: Iterable[int]) -> None:
        """Those of them that were skipped wait again."""
        for index in indexes:
            if self.letters.pop(index, None) is not None:
                self.count(dead_lettered=-1, skipped=-1)

    def journal_update(
        self, done: Collection[int] = (), written: int = 0, isolated_item: int | None = None
    ) -> JournalUpdate:
        """The update of the journal.

        :param done: items that are done, as many as *written* of them written, the others filtered.
        :param isolated_item: the item that is processed exclusively after the update.
        """
        return JournalUpdate(
            checkpoint=self._checkpoint(done, isolated_item),
            counts=self.counts + Counts(written=written, filtered=len(done) - written),
            letters=tuple(self.letters.values()),
            progress=self.read.progress,
        )

    def _is_done(self, done: Collection[int]) -> bool:
        return len(done) + len(self.letters) == len(self.remaining)

    def _checkpoint(self, done: Collection[int], isolated_item: int | None) -> Checkpoint:
        if self._is_done(done):
            stays = not self.checkpoint.isolating and self.gate_is_open()
            return Checkpoint(position=self.read.position, entered=stays)
        decided = {*done, *self.letters}
        pending = ranges_of(index for index in self.remaining if index not in decided)
        return evolve(
            self.checkpoint,
            count=self.size,
            fingerprint=self.read.records.fingerprint,
            pending=pending,
            isolated_item=isolated_item,
        )

    def apply(self, done: Collection[int], checkpoint: Checkpoint) -> None:
        """The journal has it."""
        if self._is_done(done):
            self.remaining = ()
        else:
            decided = {*done, *self.letters}
            self.remaining = [index for index in self.remaining if index not in decided]
        self.checkpoint, self.counts, self.letters = checkpoint, Counts(), {}
