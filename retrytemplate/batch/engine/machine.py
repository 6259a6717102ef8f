"""The rules of a run: the next read, process or write, and the handling of failures.

A generator of effects: no I/O, no clock, no threads, no asyncio.  A driver performs each effect and
sends its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from retrytemplate._internal.failure_text import to_recorded_failure, type_name
from retrytemplate.batch.engine.checkpoint import Checkpoint, ranges_of
from retrytemplate.batch.engine.chunk import Chunk
from retrytemplate.batch.engine.effects import (
    AfterCommit,
    Commit,
    EnterGate,
    Fatal,
    Process,
    Read,
    ReadRecords,
    Try,
    Write,
    WriteJournal,
    failing,
)
from retrytemplate.batch.engine.fault_search import FaultSearch
from retrytemplate.batch.engine.rules import Rules, make_letter
from retrytemplate.batch.errors import (
    JobRepositoryError,
    ProcessCrashedError,
    ReaderError,
    ReadError,
    SkipLimitExceededError,
)
from retrytemplate.batch.events import EmitEvents, Event, EventFactory
from retrytemplate.batch.journal.run import JournalUpdate, Run
from retrytemplate.batch.outbox import deliver
from retrytemplate.batch.readers.base import Records
from retrytemplate.caches.worker_id import parse_worker_id
from retrytemplate.control.crash_loop import CrashLoopError
from retrytemplate.errors import RecordedFailure
from retrytemplate.history import AttemptRecord, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Sequence

    from retrytemplate.batch.engine.effects import Processed
    from retrytemplate.batch.report import Status

    Steps = Generator[Any, Any, None]
    Tried = tuple[Sequence[int], Outcome[Any]]


@define
class Machine:
    """One run, from the state in its journal on.

    :param stopping: checked between chunks: True ends the run.
    """

    rules: Rules
    run: Run
    stopping: Callable[[], bool]
    _events: EventFactory = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._events = EventFactory(self.run)

    def steps(self) -> Generator[Any, Any, Status]:
        """The effects of the run, to its end; returns its status."""
        yield from self._emit(self._events.run_started())
        try:
            yield from self._enter_gate()
            yield from self.send(others=True)
            status = yield from self._chunks()
        except Fatal as fatal:
            (failure,) = fatal.args
            self.run.exception, self.run.error = failure, to_recorded_failure(failure)
            status = "failed"
        yield from self._emit(self._events.run_ended(status))
        return status

    def _chunks(self) -> Generator[Any, Any, Status]:
        while not self.stopping():
            chunk = yield from self._read()
            if chunk is None:
                return "completed"
            yield from self._run_chunk(chunk)
            if not self.run.checkpoint.entered:
                yield from self._enter_gate()
        return "stopped"

    def _enter_gate(self) -> Steps:
        """Enter the gate, and record it before the first effect of the chunk."""
        checkpoint = self.run.checkpoint
        self._check_crash_loop(checkpoint)
        if not self.stopping():
            yield EnterGate(checkpoint.isolating)
            if not checkpoint.entered:
                yield WriteJournal(JournalUpdate(evolve(checkpoint, entered=True)))

    # Notifications.

    def _emit(self, events: Iterable[Event]) -> Steps:
        if self.rules.has_listeners:
            yield EmitEvents(list(events))

    def send(self, *, others: bool = False) -> Steps:
        """Send the unsent messages of the run; *others*: also those of other runs."""
        if self.rules.outbox is not None:
            stopping = self.stopping if others else None  # a chunk's own messages are sent
            _, failures = yield from deliver(
                self.run.request.step, self.run.id, others=others, stopping=stopping
            )
            yield from self._emit(self._events.not_sent(failures))

    def _write_journal(
        self, chunk: Chunk, update: JournalUpdate, done: Sequence[int] = ()
    ) -> Steps:
        """Write to the journal alone."""
        yield WriteJournal(update)
        chunk.apply(done, self.run.checkpoint)
        yield from self._emit(self._events.committed(chunk, (), update))

    # The next chunk.

    def _read(self) -> Generator[Any, Any, Chunk | None]:
        checkpoint, is_open = self.run.checkpoint, self.run.request.gate_is_open
        with failing():
            if checkpoint.payloads is not None:
                return Chunk(self._restored_records(checkpoint.payloads), checkpoint, is_open)
            read: ReadRecords = yield Read(
                checkpoint.position, checkpoint.count or self.rules.chunk_size
            )
        if not isinstance(read.records, Records):
            raise Fatal(ReaderError(f"a cursor must read Records, got {read.records!r}"))
        checkpoint = self._matched(read, checkpoint)
        if not read.records.items:
            return None
        chunk = Chunk(read, checkpoint, is_open)
        yield from self._emit(self._events.read(chunk))
        return chunk

    def _check_crash_loop(self, checkpoint: Checkpoint) -> None:
        """End the run if the process crashes repeatedly with no item isolated."""
        if checkpoint.unattributed_crashes > self.rules.max_crashes:
            raise Fatal(
                CrashLoopError(
                    f"the process crashed {checkpoint.unattributed_crashes} times in this chunk, "
                    "with no item isolated"
                )
            )

    def _matched(self, read: ReadRecords, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint for these records; end the run if they are not of the chunk in progress.

        Other records are accepted while none of the chunk is done: its crashes are forgotten.
        """
        if checkpoint.count is None:
            return checkpoint
        found = len(read.records.items)
        if found != checkpoint.count:
            raise Fatal(
                ReaderError(
                    f"{read.records.source} has {found} items, but the chunk in progress had "
                    f"{checkpoint.count}; give the step its former source, or restart the run"
                )
            )
        if checkpoint.fingerprint in (None, read.records.fingerprint):
            return checkpoint
        if checkpoint.waiting < found:
            raise Fatal(
                ReaderError(
                    f"{read.records.source} has other items than the chunk in progress, of which "
                    "some are done; give the step its former items, without a condition on what "
                    "the job changes, or restart the run"
                )
            )
        return evolve(checkpoint, crashes={})

    def _restored_records(self, payloads: Sequence[str]) -> ReadRecords:
        """The items in the journal; their source is in the position."""
        problems = self.run.checkpoint.broken
        source, first, position = self.run.checkpoint.position
        items = [
            payload if index in problems else self._decode_payload(index, payload)
            for index, payload in enumerate(payloads)
        ]
        broken = {
            index: ReadError(problem, text=items[index], source=source, number=first + index)
            for index, problem in problems.items()
        }
        return ReadRecords(Records(items, source, first, broken), position)

    def _decode_payload(self, index: int, payload: str) -> Any:
        try:
            return self.rules.codec.decode(payload)
        except Exception as exc:
            raise JobRepositoryError(
                f"run {self.run.id}, column checkpoint: the codec cannot decode payloads[{index}]: "
                f"{exc!r}"
            ) from exc

    def _journal_items(self, chunk: Chunk) -> Steps:
        """Write the items of a chunk to the journal before its first effect."""
        records, encode = chunk.read.records, self.rules.codec.encode
        broken, text = records.broken, self.run.request.limits.text
        with failing():
            payloads = tuple(
                broken[index].text if index in broken else encode(item)
                for index, item in enumerate(records.items)
            )
        update = chunk.journal_update()
        kept = evolve(
            chunk.checkpoint,
            position=[records.source, records.first, chunk.read.position],
            count=chunk.size,
            pending=ranges_of(chunk.remaining),
            payloads=payloads,
            broken={index: text(error.problem) for index, error in broken.items()},
        )
        yield from self._write_journal(chunk, evolve(update, checkpoint=kept))

    def _run_chunk(self, chunk: Chunk) -> Steps:
        try:
            if self.rules.stores_payloads and chunk.checkpoint.payloads is None:
                yield from self._journal_items(chunk)
            if chunk.checkpoint.isolating:
                yield from self._process_items_individually(chunk)
            else:
                yield from self._process_chunk(chunk)
        except Fatal:
            # Decisions are kept: these items are not processed again, and they count.
            yield from self._write_journal(chunk, chunk.journal_update())
            raise

    # All items at once.

    def _process_chunk(self, chunk: Chunk) -> Steps:
        broken = chunk.read.records.broken
        if broken:
            for index in sorted(broken.keys() & set(chunk.remaining)):
                self._give_up(chunk, index, "read", broken[index])
        yield from self._process(chunk, chunk.waiting)
        outcome = yield from self._write(chunk, chunk.waiting)
        if not outcome.ok:
            yield from self._find_faulty_items(chunk, outcome)

    def _process(self, chunk: Chunk, indexes: Sequence[int]) -> Steps:
        if not self.rules.uses_processor:
            return
        every = len(indexes) == chunk.size
        items = chunk.read.records.items if every else chunk.items(indexes)
        with failing():  # the driver asks the skip policy, too
            done: Processed = yield Process(items)
        yield from self._emit(self._events.processed(chunk, indexes, done))
        chunk.values = done.values
        if not every:
            chunk.values = [None] * chunk.size
            for index, value in zip(indexes, done.values, strict=False):
                chunk.values[index] = value
        if done.retries:
            chunk.count(retries=done.retries)
        for at, history in done.histories.items():
            chunk.histories[indexes[at]] = history
        for at in sorted(done.failures):
            if at in done.fatal:
                raise Fatal(done.failures[at])
            self._give_up(chunk, indexes[at], "process", done.failures[at])

    def _write(
        self,
        chunk: Chunk,
        done: Sequence[int],
        *,
        once: bool = False,
        isolated_item: int | None = None,
    ) -> Generator[Any, Any, Outcome[Any]]:
        """Write these, and close them together with the filtered ones among them."""
        items = chunk.values_to_write(chunk.unfiltered(done))
        update = chunk.journal_update(done, len(items), isolated_item)
        outcome: Outcome[Any] = yield Write(items, update, once, self._is_attributable(items))
        yield from self._emit(self._events.wrote(chunk, done, update, outcome))
        if outcome.ok:
            chunk.apply(done, self.run.checkpoint)
            yield from self._after_commit((outcome.value or {}).values())
        else:
            chunk.count(retries=max(outcome.attempts - 1, 0), rollbacks=outcome.attempts)
        return outcome

    def _after_commit(self, written: Collection[Any]) -> Steps:
        if self.rules.after_commit and written:
            yield AfterCommit(list(written))
        if written:
            yield from self.send()

    # The search for items at fault.

    def _find_faulty_items(self, chunk: Chunk, outcome: Outcome[Any]) -> Steps:
        written = chunk.unfiltered(chunk.waiting)
        if len(written) > 1 and self._should_search(outcome):
            share_transaction = self.rules.savepoints
            while not (yield from self._search(chunk, written, share_transaction)):
                share_transaction = False
                waiting = set(chunk.waiting)
                written = [index for index in written if index in waiting]
        else:
            for index in written:
                self._mark_faulty(chunk, index, outcome)
        rest = chunk.waiting
        if rest or chunk.letters:  # filtered items, and the result of the last part
            yield from self._write_journal(chunk, chunk.journal_update(rest), rest)

    def _search(
        self, chunk: Chunk, written: Sequence[int], share_transaction: bool
    ) -> Generator[Any, Any, bool]:
        """Write the items part by part, and give up those at fault.

        :param share_transaction: in one transaction as far as it goes.
        :returns: False: the transaction was lost; search the items that still wait again.
        """
        search = FaultSearch(written, halving=self.rules.fault_search == "bisect")
        tried: list[Tried] = []
        try:
            while part := search.part():
                outcome: Outcome[Any] | None
                if share_transaction and (len(part) > 1 or not self.rules.may_wait):
                    outcome = yield from self._try_part(chunk, part, tried)
                elif tried and not (yield from self._commit(chunk, tried)):
                    return False
                else:
                    outcome = yield from self._write(chunk, part, once=len(part) > 1)
                if outcome is None:
                    return False
                if outcome.ok:
                    search.part_succeeded()
                elif search.part_failed():
                    self._mark_faulty(chunk, part[0], outcome)
        except Fatal:
            # Good parts are kept; decisions in a lost transaction are made again.
            if tried and not (yield from self._commit(chunk, tried)):
                return False
            raise
        if not tried:
            return True
        good = {index for part, outcome in tried if outcome.ok for index in part}
        rest = [index for index in chunk.waiting if index not in good]
        return (yield from self._commit(chunk, tried, rest))

    def _try_part(
        self, chunk: Chunk, part: Sequence[int], tried: list[Tried]
    ) -> Generator[Any, Any, Outcome[Any] | None]:
        """Write these in the transaction of the search; None: it is lost."""
        items = chunk.values_to_write(part)
        outcome: Outcome[Any] | None = yield Try(items, len(part) > 1, self._is_attributable(items))
        if outcome is None:
            yield from self._on_transaction_lost(chunk, tried)
            return None
        tried.append((part, outcome))
        failed = len(outcome.history)
        chunk.count(retries=failed if outcome.ok else max(failed - 1, 0), rollbacks=failed)
        return outcome

    def _commit(
        self, chunk: Chunk, tried: list[Tried], filtered: Sequence[int] = ()
    ) -> Generator[Any, Any, bool]:
        """Commit the parts that were tried; False: they are lost.

        :param filtered: items that the processor left out, which are done with it.
        """
        good = [(part, outcome.value or {}) for part, outcome in tried if outcome.ok]
        done = [*(index for part, _ in good for index in part), *filtered]
        values = [value for _, written in good for value in written.values()]
        update = chunk.journal_update(done, len(values))
        try:
            committed: bool = yield Commit(update)
        except Fatal:
            yield from self._on_transaction_lost(chunk, tried)
            raise
        if not committed:
            yield from self._on_transaction_lost(chunk, tried)
            return False
        chunk.apply(done, self.run.checkpoint)
        yield from self._emit(self._events.searched(chunk, tried, update))
        tried.clear()
        yield from self._after_commit(values)
        return True

    def _on_transaction_lost(self, chunk: Chunk, tried: list[Tried]) -> Steps:
        # They may have failed because of parts that are rolled back with them.
        chunk.undo_skips(part[0] for part, outcome in tried if not outcome.ok and len(part) == 1)
        chunk.count(rollbacks=1)
        yield from self._emit(self._events.searched(chunk, tried))
        tried.clear()

    def _is_attributable(self, items: Sequence[Any]) -> bool:
        """Whether an item may be given up for a failure of all of them."""
        return len(items) == 1 or self.rules.fault_search == "chunk"

    def _should_search(self, outcome: Outcome[Any]) -> bool:
        """Whether an item may be given up for it, or did not have its own attempts yet.

        If several items of a chunk fail now and then, each may need its own attempts.
        """
        assert outcome.exception is not None
        covered = self._is_skippable(outcome.exception)
        return self.rules.fault_search != "chunk" and (covered or outcome.attempts > 1)

    def _mark_faulty(self, chunk: Chunk, index: int, outcome: Outcome[Any]) -> None:
        assert outcome.exception is not None
        self._give_up(chunk, index, "write", outcome.exception, outcome.history)

    # Item by item, after a crash.

    def _process_items_individually(self, chunk: Chunk) -> Steps:
        for index in list(chunk.remaining):
            crashes = chunk.checkpoint.crashes.get(index, ())
            if len(crashes) >= self.rules.max_crashes:
                self._dead_letter_crashing_item(chunk, index, crashes)
            else:
                yield from self._process_isolated_item(chunk, index)
        if chunk.letters:
            yield from self._write_journal(chunk, chunk.journal_update())

    def _process_isolated_item(self, chunk: Chunk, index: int) -> Steps:
        if chunk.checkpoint.isolated_item != index:
            yield from self._write_journal(chunk, chunk.journal_update(isolated_item=index))
        broken = chunk.read.records.broken
        if index in broken:
            self._give_up(chunk, index, "read", broken[index])
            return
        yield from self._process(chunk, [index])
        if index in chunk.letters:
            return
        outcome = yield from self._write(
            chunk, [index], isolated_item=self._next_isolated_item(chunk, index)
        )
        if not outcome.ok:
            self._mark_faulty(chunk, index, outcome)

    def _next_isolated_item(self, chunk: Chunk, index: int) -> int | None:
        """The next item to isolate: one transaction ends this one and begins that one."""
        crashes, most = chunk.checkpoint.crashes, self.rules.max_crashes
        later = (each for each in chunk.remaining if each > index)
        return next((each for each in later if len(crashes.get(each, ())) < most), None)

    # Giving up.

    def _give_up(
        self,
        chunk: Chunk,
        index: int,
        phase: str,
        failure: BaseException,
        attempts: Sequence[AttemptRecord] = (),
    ) -> None:
        """Skip an item, or end the run if its failure is not skippable."""
        # The driver has asked the policy about failures of the processor.
        if phase != "process" and not self._is_skippable(failure):
            raise Fatal(failure)
        skip, counts = self.rules.skip, self.run.counts + chunk.counts
        if not skip.has_room(skipped=counts.skipped, read=counts.read):
            error = SkipLimitExceededError(
                f"{counts.skipped} items are skipped of {counts.read}, and the policy allows no "
                f"more: {skip!r}"
            )
            error.__cause__ = failure
            raise Fatal(error)
        recorded = to_recorded_failure(failure)
        letter = make_letter(self.rules, chunk, index, phase, recorded, attempts)
        chunk.dead_letter(index, letter, skipped=True)

    def _is_skippable(self, failure: BaseException) -> bool:
        with failing():
            return self.rules.skip.covers(failure)

    def _dead_letter_crashing_item(
        self, chunk: Chunk, index: int, crashes: Sequence[tuple[str, float]]
    ) -> None:
        name = type_name(ProcessCrashedError)
        text = "the process crashed while this item was isolated"
        attempts = [
            AttemptRecord(number, None, at, name, text, "", *parse_worker_id(worker))
            for number, (worker, at) in enumerate(crashes, 1)
        ]
        recorded = RecordedFailure(name, text, None)
        letter = make_letter(self.rules, chunk, index, "crash", recorded, attempts)
        chunk.dead_letter(index, letter, skipped=False)
