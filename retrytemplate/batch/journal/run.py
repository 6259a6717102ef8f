"""A run as this process knows it, the updates of its journal, and the request to stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import Factory, asdict, define, field, frozen

from retrytemplate.batch.journal.rows import COUNTS
from retrytemplate.batch.report import Report, Status
from retrytemplate.batch.validation import one_of

if TYPE_CHECKING:
    from retrytemplate.batch.engine.checkpoint import Checkpoint
    from retrytemplate.batch.journal.letters import Letter, RecordLimits
    from retrytemplate.errors import RecordedFailure

ON_EXISTING = ("resume", "restart", "refuse")


def encode_parameters(parameters: Any) -> str:
    """The parameters of a run as JSON; None: {}."""
    parameters = {} if parameters is None else parameters
    allowed = "parameters must be a mapping of JSON values"
    try:
        if not isinstance(parameters, Mapping) or not all(isinstance(n, str) for n in parameters):
            raise TypeError("names must be strings")
        return json.dumps(dict(parameters), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise TypeError(f"{allowed}, got {parameters!r}") from exc
    except RecursionError:
        raise ValueError(f"{allowed}, got values that are nested too deeply") from None


@frozen
class Counts:
    """Numbers of items, attempts, transactions and crashes."""

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
    """The identity of a run, and the worker that takes it.

    :param gate_is_open: whether a shared entry to the isolation gate is granted at once.
    """

    step: str
    parameters: str
    worker: str
    lease: float
    on_existing: str = field(validator=one_of(*ON_EXISTING))
    resumable: bool
    exactly_once: bool
    code_version: str | None
    limits: RecordLimits
    gate_is_open: Callable[[], bool] = field(eq=False)


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
        """The present report of the run."""
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


@define
class StopFlag:
    """Whether a stop was requested, and the workers that it applies to.

    It has no lock: a signal handler would deadlock with the code that it interrupts.
    """

    requested: bool = False
    runs: set[str] = Factory(set)

    @contextmanager
    def active(self, worker: str) -> Iterator[None]:
        """While this worker runs; the last one clears the request."""
        self.runs.add(worker)
        try:
            yield
        finally:
            self.runs.discard(worker)
            if not self.runs:
                self.requested = False
