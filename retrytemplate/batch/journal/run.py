"""A run, and the updates of its journal, as this process knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import asdict, define, field, frozen

from retrytemplate.batch.journal.rows import COUNTS
from retrytemplate.batch.report import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retrytemplate.batch.engine.checkpoint import Checkpoint
    from retrytemplate.batch.journal.letters import Letter, RecordLimits
    from retrytemplate.batch.report import Status
    from retrytemplate.errors import RecordedFailure

__all__ = ["Counts", "JournalUpdate", "Run", "RunRequest"]


@frozen
class Counts:
    """How many items, attempts, transactions and crashes."""

    read: int = 0
    written: int = 0
    filtered: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    retries: int = 0
    rollbacks: int = 0
    crashes: int = 0

    @property
    def done(self) -> int:
        """Number of items that are decided."""
        return self.written + self.filtered + self.dead_lettered

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, name) + getattr(other, name) for name in COUNTS))


@frozen
class RunRequest:
    """The identity of a run, and the worker that takes it."""

    step: str
    parameters: str
    worker: str
    lease: float
    on_existing: str
    resumable: bool
    exactly_once: bool
    code_version: str | None
    limits: RecordLimits


@define
class Run:
    """A run as its row has it, held by this process.

    :param unsent: its messages that wait in the outbox, once it has ended.
    """

    id: int
    request: RunRequest
    fence: int
    seq: int
    status: Status
    counts: Counts
    checkpoint: Checkpoint
    error: RecordedFailure | None = None
    exception: BaseException | None = field(default=None, eq=False)
    unsent: int = 0
    already_completed: bool = False

    def apply(self, update: JournalUpdate) -> None:
        """Adopt an update that was committed."""
        counts = self.counts + update.counts
        # At once: no signal may come in between.
        self.seq, self.counts, self.checkpoint = self.seq + 1, counts, update.checkpoint

    def report(self) -> Report:
        """How it stands."""
        return Report(
            name=self.request.step,
            run_id=self.id,
            status=self.status,
            pending=self.checkpoint.waiting,
            exactly_once=self.request.exactly_once,
            error=self.error,
            exception=self.exception,
            unsent=self.unsent,
            already_completed=self.already_completed,
            **asdict(self.counts),
        )


@frozen
class JournalUpdate:
    """The changes of a run in one transaction: the next checkpoint, counts, letters, messages."""

    checkpoint: Checkpoint
    counts: Counts = Counts()
    letters: Sequence[Letter] = ()
    messages: Sequence[str] = ()
    progress: float | None = None
