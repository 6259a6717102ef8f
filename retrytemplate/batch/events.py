"""Events of a step, and their delivery to its listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attrs import asdict, define, frozen

from retrytemplate._internal.failure_text import to_recorded_failure
from retrytemplate._internal.validation import check_index, check_methods
from retrytemplate.errors import RecordedFailure
from retrytemplate.listeners.defaults import listener_type, with_defaults

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from retrytemplate.batch.engine.chunk import Chunk
    from retrytemplate.batch.engine.effects import Processed
    from retrytemplate.batch.journal.run import JournalUpdate, Run
    from retrytemplate.history import AttemptRecord, Outcome

    Kind = Literal[
        "started",
        "read",
        "processed",
        "filtered",
        "failed",
        "rolled_back",
        "written",
        "dead_lettered",
        "crashed",
        "not_sent",
        "ended",
        "replayed",
        "discarded",
    ]


@frozen(kw_only=True)
class Event:
    """One thing that happened in a run, or to one of its dead letters.

    :param kind: "started", "ended": the run; "read": *numbers* were; "processed", "filtered":
        items were; "failed": an attempt to process an item did; "rolled_back": an attempt to write
        *numbers* was; "written": *numbers* were; "dead_lettered": an item has a dead letter;
        "crashed": the process that had the run; "not_sent": a message is still in the outbox;
        "replayed", "discarded": a dead letter was.
    :param phase: "read", "process", "write" or "crash".
    :param numbers: of the items in their source, from 1.
    :param attempt: which attempt of this item, or of this part, from 1.
    :param transaction: the number of the transaction in this process, from 1; None: outside
        of one.
    :param committed: True: that transaction is committed.  False: it was rolled back, and the event
        has no effect.  None: it happened outside of a transaction.
    :param status: with "ended" how the run ended.
    :param counts: with "started", "crashed", "ended" the counts of the run's report.
    :param letter: the number of the dead letter; *by* is the operator, *reason* that of a
        "discarded".
    """

    kind: Kind
    step: str
    run_id: int
    source: str | None = None
    numbers: Sequence[int] = ()
    phase: str | None = None
    attempt: int | None = None
    transaction: int | None = None
    committed: bool | None = None
    error: RecordedFailure | None = None
    status: str | None = None
    counts: Mapping[str, int] | None = None
    letter: int | None = None
    by: str | None = None
    reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As a JSON object."""
        named = {name: getattr(self, name) for name in NAMES.split()}
        return named | {"numbers": list(self.numbers), "error": error_as_json(self.error)}


def error_as_json(error: RecordedFailure | None) -> dict[str, str] | None:
    """A failure as a JSON object."""
    return None if error is None else {"type": error.type_name, "message": error.message}


NAMES = "kind step run_id source phase attempt transaction committed status counts letter by reason"


@listener_type
class StepListener:
    """Notified of each event of a run after it happened; it cannot change the run.

    Under ``run_async`` the method may be a coroutine function.  Its exceptions are logged, and the
    run continues.

    >>> class Watch(StepListener):
    ...     def on_event(self, event):
    ...         print(event.kind, *event.numbers)
    """

    def on_event(self, event: Event) -> Any:
        """Called in the order of the events."""


class Observable:
    """Adds ``register_listener`` to a step."""

    __slots__ = ()

    if TYPE_CHECKING:
        listeners: tuple[Any, ...]

    def register_listener(self, listener: Any, index: int | None = None) -> None:
        """Add a listener, at the end or before position *index*.

        Runs in progress keep the listeners they started with.

        :param listener: an object with ``on_event(event)``.
        :param index: its place in the order; None: the end.
        :raises TypeError: the listener has no such method, or the index is not an int.
        """
        check_index("index", index)
        check_methods("listener", listener, "on_event")
        listeners = list(self.listeners)
        listeners.insert(len(listeners) if index is None else index, listener)
        object.__setattr__(self, "listeners", tuple(listeners))

    def _current_listeners(self) -> list[Any]:
        """The default listeners, then the step's own."""
        return with_defaults(self.listeners, StepListener)


@frozen
class EmitEvents:
    """Notify the listeners.  Answer: None."""

    events: Sequence[Event]


@define
class EventFactory:
    """Makes the events of a run, and numbers its transactions."""

    run: Run
    transactions: int = 0

    def event(self, kind: Kind, chunk: Chunk | None = None, **about: Any) -> Event:
        """An event of the run; with a chunk *numbers* are indexes in it."""
        if chunk is not None:
            records = chunk.read.records
            about["source"] = records.source
            about["numbers"] = [records.first + index for index in about["numbers"]]
        return Event(kind=kind, step=self.run.request.step, run_id=self.run.id, **about)

    def run_started(self) -> Iterator[Event]:
        """The run is taken, after a crash perhaps."""
        if self.run.checkpoint.isolating:
            yield self._of_run("crashed")
        yield self._of_run("started")

    def run_ended(self, status: str) -> Iterator[Event]:
        """The run has ended, with its error."""
        yield self._of_run("ended", error=self.run.error, status=status)

    def _of_run(self, kind: Kind, **about: Any) -> Event:
        return self.event(kind, counts=asdict(self.run.counts), **about)

    def read(self, chunk: Chunk) -> Iterator[Event]:
        """The remaining items of a chunk were read."""
        yield self.event("read", chunk, numbers=chunk.remaining)

    def processed(self, chunk: Chunk, indexes: Sequence[int], done: Processed) -> Iterator[Event]:
        """Each item with the attempts that failed."""
        for at, value in enumerate(done.values):
            numbers = [indexes[at]]
            for attempt in done.histories.get(at, ()):
                yield self._failed("failed", chunk, attempt, numbers=numbers, phase="process")
            if at not in done.failures:
                kind: Kind = "filtered" if value is None else "processed"
                yield self.event(kind, chunk, numbers=numbers, phase="process")

    def _failed(self, kind: Kind, chunk: Chunk, attempt: AttemptRecord, **about: Any) -> Event:
        error = RecordedFailure(attempt.type_name, attempt.message, None)
        return self.event(kind, chunk, attempt=attempt.number, error=error, **about)

    def wrote(
        self, chunk: Chunk, indexes: Sequence[int], update: JournalUpdate, outcome: Outcome[Any]
    ) -> Iterator[Event]:
        """The attempts to write these, each in a transaction of its own."""
        numbers = chunk.unfiltered(indexes)
        for attempt in outcome.history:
            self.transactions += 1
            yield self._rolled_back(chunk, numbers, attempt)
        if outcome.ok:
            written, filtered = _split_filtered(numbers, outcome)
            yield from self.committed(chunk, written, update, filtered)

    def searched(
        self,
        chunk: Chunk,
        tried: Sequence[tuple[Sequence[int], Outcome[Any]]],
        update: JournalUpdate | None = None,
    ) -> Iterator[Event]:
        """The transaction of a search, with each part that was tried in it.

        :param update: of the transaction; None: it was lost.
        """
        self.transactions += 1
        for numbers, outcome in tried:
            for attempt in outcome.history:
                yield self._rolled_back(chunk, numbers, attempt)
            if outcome.ok and update is not None:
                written, filtered = _split_filtered(numbers, outcome)
                yield from self._done(chunk, written, filtered)
        if update is not None:
            yield from self._letters(chunk, update)

    def _rolled_back(self, chunk: Chunk, numbers: Sequence[int], attempt: AttemptRecord) -> Event:
        about: dict[str, Any] = {"transaction": self.transactions, "committed": False}
        return self._failed("rolled_back", chunk, attempt, numbers=numbers, phase="write", **about)

    def committed(
        self,
        chunk: Chunk,
        numbers: Sequence[int],
        update: JournalUpdate,
        filtered: Sequence[int] = (),
    ) -> Iterator[Event]:
        """A transaction is committed, with the letters of those that were given up.

        :param filtered: those that the processor filtered in it.
        """
        self.transactions += 1
        yield from self._letters(chunk, update)
        yield from self._done(chunk, numbers, filtered)

    def _letters(self, chunk: Chunk, update: JournalUpdate) -> Iterator[Event]:
        for letter in update.letters:
            index = letter.number - chunk.read.records.first
            error = RecordedFailure(letter.error_type, letter.error_message, None)
            yield self._committed("dead_lettered", chunk, [index], letter.phase, error=error)

    def _done(
        self, chunk: Chunk, written: Sequence[int], filtered: Sequence[int]
    ) -> Iterator[Event]:
        for index in filtered:
            yield self._committed("filtered", chunk, [index], "process")
        if written:
            yield self._committed("written", chunk, written, "write")

    def _committed(
        self, kind: Kind, chunk: Chunk, numbers: Sequence[int], phase: str, **about: Any
    ) -> Event:
        about |= {"transaction": self.transactions, "committed": True}
        return self.event(kind, chunk, numbers=numbers, phase=phase, **about)

    def not_sent(self, failures: Sequence[Exception]) -> Iterator[Event]:
        """Messages that stay in the outbox."""
        for failure in failures:
            yield self.event("not_sent", error=to_recorded_failure(failure))


def _split_filtered(
    numbers: Sequence[int], outcome: Outcome[Any]
) -> tuple[Sequence[int], Sequence[int]]:
    """Those that were written, and those that were filtered in the transaction."""
    places = outcome.value or ()
    written = [index for at, index in enumerate(numbers) if at in places]
    filtered = [index for at, index in enumerate(numbers) if at not in places]
    return written, filtered
