"""The table of states in the documentation of the batch engine, row by row."""

import re
from pathlib import Path

import pytest
from attrs import evolve

import retrytemplate.batch.engine as engine
from retrytemplate.batch import CrashLoopError, JsonCodec, ReaderError, Records, SkipPolicy
from retrytemplate.batch.engine.checkpoint import Checkpoint
from retrytemplate.batch.engine.effects import (
    Commit,
    EnterGate,
    Fatal,
    Process,
    Processed,
    Read,
    ReadRecords,
    Try,
    Write,
    WriteJournal,
)
from retrytemplate.batch.engine.machine import Machine
from retrytemplate.batch.engine.rules import Rules
from retrytemplate.batch.journal.letters import RecordLimits
from retrytemplate.batch.journal.run import Counts, Run, RunRequest
from retrytemplate.history import AttemptRecord, Outcome

PAGE = Path(__file__).resolve().parents[3] / "docs" / "internals" / "chunk_step.md"
SIZE = 4
MAX_CRASHES = 2


class Failure(Exception):
    """A failure of an item that may be skipped."""


def new_run(checkpoint, gate_is_open=lambda: True):
    request = RunRequest(
        step="copy",
        parameters="{}",
        worker="worker",
        lease=30.0,
        on_existing="resume",
        resumable=True,
        exactly_once=True,
        code_version=None,
        limits=RecordLimits(None, 65536),
        gate_is_open=gate_is_open,
    )
    counts = Counts(read=SIZE if checkpoint.count else 0)
    return Run(1, request, 1, 1, "running", counts, checkpoint)


class StepProcess:
    """A process with a run of two chunks of four items, whose journal is in memory."""

    fingerprint = None  # of each chunk

    def __init__(self, checkpoint=None, **rules):
        rules = {"skip": SkipPolicy(on=Failure), "uses_processor": False} | rules
        self.gate_is_open = True
        started = checkpoint or Checkpoint(position=0, entered=True)
        self.run = new_run(started, lambda: self.gate_is_open)
        self.machine = Machine(
            Rules(
                chunk_size=SIZE,
                max_crashes=MAX_CRASHES,
                fault_search="bisect",
                key=None,
                codec=JsonCodec(),
                stores_payloads=False,
                **rules,
            ),
            self.run,
            lambda: False,
        )
        self.steps = self.machine.steps()
        self.effect = next(self.steps)
        self.enter()

    def enter(self):
        """Enter the gate, and commit the record of it."""
        assert type(self.effect) is EnterGate
        self.entry = self.effect
        if type(self.send()) is WriteJournal:
            self.commit()

    @property
    def journal(self):
        return self.run.checkpoint

    def send(self, answer=None):
        """Send the result of the effect; return the next effect, None after the end."""
        try:
            self.effect = self.steps.send(answer)
        except StopIteration as end:
            self.effect, self.status = None, end.value
        return self.effect

    def read(self):
        """Supply the items of a read effect from its position on."""
        assert type(self.effect) is Read
        items = list(range(self.effect.position, min(self.effect.position + self.effect.limit, 8)))
        first, fingerprint = self.effect.position + 1, self.fingerprint
        records = Records(items, "numbers", first, fingerprint=fingerprint)
        return self.send(ReadRecords(records, self.effect.position + len(items)))

    def commit(self):
        """Commit the transaction of the effect."""
        effect = self.effect
        self.run.apply(effect.update)
        answers = {Commit: True, WriteJournal: None}
        written = dict(enumerate(getattr(effect, "items", ())))
        return self.send(answers.get(type(effect), Outcome(written, None, 1, (), 0.0)))

    def fail(self, failure=None):
        """Roll back the attempts at the effect."""
        record = AttemptRecord(1, None, None, "Failure", "no value")
        return self.send(Outcome(None, failure or Failure("no value"), 1, (record,), 0.0))

    def succeed(self):
        """Write a part in the transaction of a search."""
        return self.send(Outcome(dict(enumerate(self.effect.items)), None, 1, (), 0.0))

    def kill(self):
        """The checkpoint as the next process finds it."""
        return self.journal.after_crash("worker", 17.0)


def table():
    lines = re.findall(r"^\| (.+) \|$", engine.__doc__, re.MULTILINE)
    return [tuple(cell.strip() for cell in line.split(" | ")) for line in lines[1:]]


def waiting(**state):
    """A process that waits for the gate."""
    process = StepProcess.__new__(StepProcess)
    process.enter = lambda: None
    process.__init__(Checkpoint(position=0, **state))
    return process


def reading():
    return StepProcess()


def processing():
    process = StepProcess(uses_processor=True)
    process.read()
    return process


def writing(**settings):
    process = StepProcess(**settings)
    process.read()
    return process


def searching():
    process = writing()
    process.fail()
    return process


def isolating():
    process = StepProcess(Checkpoint(position=0, isolating=True))
    process.read()
    return process


def isolated():
    process = isolating()
    process.commit()
    return process


def is_isolating(checkpoint):
    """Whether the chunk is read again and no crash is attributed."""
    return checkpoint.isolating and checkpoint.isolated_item is None and not checkpoint.crashes


@pytest.mark.parametrize("exclusive", [False, True])
def test_waiting_run_is_in_no_crash(exclusive):
    process = waiting(isolating=exclusive)
    before = process.journal
    assert process.effect == EnterGate(exclusive)
    assert process.kill() == before
    process.send()
    assert process.kill() == before
    process.commit()
    assert process.journal == evolve(before, entered=True)
    assert type(process.effect) is Read


def test_closed_gate_is_entered_again_before_the_next_chunk():
    process = reading()
    process.gate_is_open = False
    process.read()
    assert process.commit() == EnterGate(exclusive=False)
    assert process.journal == process.kill() == Checkpoint(position=4)


def test_isolated_chunk_leaves_the_gate_at_its_end():
    process = isolated()
    for _ in range(3):
        assert process.entry == EnterGate(exclusive=True)
        process.commit()
    assert process.commit() == EnterGate(exclusive=False)
    assert process.journal == Checkpoint(position=4)


def test_reading_items_leaves_the_journal_unchanged():
    process = reading()
    before = process.journal
    assert type(process.read()) is Write
    assert process.journal == before
    assert is_isolating(process.kill())


def test_reading_no_items_ends_the_run():
    process = StepProcess(Checkpoint(position=8, entered=True))
    assert is_isolating(process.kill())
    assert process.read() is None
    assert (process.status, process.journal.position) == ("completed", 8)


@pytest.mark.parametrize(
    "done",
    [
        Processed([0, 1, 2, 3]),
        Processed([0, None, 2, 3]),
        Processed([0, None, 2, 3], failures={1: Failure("no value")}),
    ],
    ids=["processed", "filtered", "skipped"],
)
def test_processing_leaves_the_journal_unchanged(done):
    process = processing()
    before = process.journal
    assert type(process.effect) is Process
    assert type(process.send(done)) is Write
    assert process.journal == before
    assert is_isolating(process.kill())


def test_processing_failure_that_is_not_skippable_keeps_decided_items():
    process = processing()
    failures = {1: Failure("no value"), 2: KeyError("a defect")}
    done = Processed([0, None, None, 3], failures=failures, fatal={2})
    assert type(process.send(done)) is WriteJournal
    assert is_isolating(process.kill())
    assert [letter.number for letter in process.effect.update.letters] == [2]
    assert process.commit() is None
    assert (process.status, process.journal.pending) == ("failed", ((0, 1), (2, 4)))


def test_write_that_commits_moves_the_position():
    process = writing()
    assert is_isolating(process.kill())
    assert process.effect.update.counts == Counts(read=4, written=4)
    assert type(process.commit()) is Read
    assert process.journal == Checkpoint(position=4, entered=True)


def test_write_of_one_item_that_fails_writes_its_dead_letter():
    process = StepProcess(Checkpoint(position=0, count=4, pending=((3, 4),)))
    process.read()
    assert process.effect.items == [3]
    assert type(process.fail()) is WriteJournal
    assert is_isolating(process.kill())
    assert [letter.number for letter in process.effect.update.letters] == [4]
    process.commit()
    assert process.journal == Checkpoint(position=4, entered=True)


def test_write_of_several_items_that_fails_begins_the_search():
    process = writing()
    before = process.journal
    assert type(process.fail()) is Try
    assert process.effect.items == [0, 1]
    assert process.journal == before
    assert is_isolating(process.kill())


def test_parts_of_a_search_leave_the_journal_unchanged():
    process = searching()
    before = process.journal
    process.succeed()
    process.fail()
    assert type(process.effect) is Try
    assert process.journal == before
    assert is_isolating(process.kill())


def test_search_that_decides_each_item_commits_once():
    process = searching()
    process.succeed()
    process.fail()
    process.succeed()
    assert type(process.fail()) is Commit
    assert is_isolating(process.kill())
    update = process.effect.update
    assert [letter.number for letter in update.letters] == [4]
    counts = update.counts
    assert (counts.written, counts.skipped, counts.retries, counts.rollbacks) == (3, 1, 0, 3)
    process.commit()
    assert process.journal == Checkpoint(position=4, entered=True)


def test_search_that_ends_the_run_commits_its_good_parts_once():
    process = searching()
    process.succeed()
    process.fail()
    assert type(process.fail(KeyError("a defect"))) is Commit
    assert type(process.commit()) is WriteJournal
    assert process.commit() is None
    assert (process.status, process.journal.pending) == ("failed", ((2, 4),))


def test_commit_of_a_search_that_ends_the_run_is_not_repeated():
    process = writing(may_wait=True)
    process.fail()
    process.succeed()
    assert type(process.fail()) is Commit
    process.effect = process.steps.throw(Fatal(ReaderError("another file")))
    assert type(process.effect) is WriteJournal
    assert process.commit() is None
    assert (process.status, process.journal.pending) == ("failed", ((0, 4),))


def test_search_whose_transaction_is_lost_writes_each_part_by_itself():
    process = searching()
    before = process.journal
    process.succeed()
    assert type(process.send(None)) is Write
    assert process.effect.items == [0, 1]
    assert process.journal == before
    assert is_isolating(process.kill())


def test_crash_between_parts_of_a_search_is_attributed_to_no_item():
    process = writing(may_wait=True)
    process.fail()
    process.succeed()
    assert type(process.fail()) is Commit  # the good half, before the attempts at one item
    assert type(process.commit()) is Write
    assert process.journal.pending == ((2, 4),)
    assert is_isolating(process.kill())
    assert type(process.commit()) is Write
    assert process.journal.pending == ((3, 4),)
    assert is_isolating(process.kill())


def test_isolating_writes_the_isolated_item_to_the_journal():
    process = isolating()
    assert type(process.effect) is WriteJournal
    assert is_isolating(process.kill())
    assert type(process.commit()) is Write
    assert (process.effect.items, process.journal.isolated_item) == ([0], 0)


def test_isolated_item_that_is_written_names_the_next_one():
    process = isolated()
    assert process.kill().crashes == {0: (("worker", 17.0),)}
    process.commit()
    assert (process.journal.isolated_item, process.journal.pending) == (1, ((1, 4),))


def test_isolated_item_that_fails_is_dead_lettered():
    process = isolated()
    assert process.kill().crashes == {0: (("worker", 17.0),)}
    assert type(process.fail()) is WriteJournal
    assert [letter.phase for letter in process.effect.update.letters] == ["write"]
    process.commit()
    assert (process.journal.isolated_item, process.journal.pending) == (1, ((1, 4),))


def test_isolated_item_with_max_crashes_is_dead_lettered():
    crashes = {0: (("worker", 17.0),) * MAX_CRASHES}
    known = Checkpoint(position=0, count=4, pending=((0, 4),), isolating=True, crashes=crashes)
    process = StepProcess(known)
    process.read()
    assert type(process.effect) is WriteJournal
    assert process.kill() == evolve(known, unattributed_crashes=1)
    assert [letter.phase for letter in process.effect.update.letters] == ["crash"]
    process.commit()
    assert (process.journal.isolated_item, process.journal.pending) == (1, ((1, 4),))


def test_crashes_of_a_chunk_that_now_has_other_items_are_forgotten():
    crashes = {0: (("worker", 17.0),) * MAX_CRASHES}
    known = Checkpoint(position=0, count=4, pending=((0, 4),), isolating=True, crashes=crashes)
    process = StepProcess(evolve(known, fingerprint=1))
    process.fingerprint = 2
    process.read()
    assert not process.effect.update.letters
    process.commit()
    assert (process.journal.isolated_item, process.journal.crashes) == (0, {})


@pytest.mark.parametrize("fingerprint", [None, 1])
def test_crashes_of_a_chunk_with_the_same_items_are_kept(fingerprint):
    crashes = {0: (("worker", 17.0),) * MAX_CRASHES}
    known = Checkpoint(position=0, count=4, pending=((0, 4),), isolating=True, crashes=crashes)
    process = StepProcess(evolve(known, fingerprint=fingerprint))
    process.fingerprint = 1
    process.read()
    assert [letter.phase for letter in process.effect.update.letters] == ["crash"]


def test_partly_written_chunk_without_fingerprint_is_resumed():
    process = StepProcess(Checkpoint(position=0, count=4, pending=((3, 4),)))
    process.fingerprint = 1
    process.read()
    assert process.effect.items == [3]


def test_item_with_max_crashes_is_not_the_next_isolated_one():
    crashes = {1: (("worker", 17.0),) * MAX_CRASHES}
    known = Checkpoint(position=0, count=4, pending=((0, 4),), isolating=True, crashes=crashes)
    process = StepProcess(known)
    process.read()
    process.commit()
    assert (process.effect.items, process.journal.isolated_item) == ([0], 0)
    process.commit()
    assert process.journal.isolated_item == 2


def test_last_isolated_item_with_max_crashes_ends_its_chunk():
    crashes = {3: (("worker", 17.0),) * MAX_CRASHES}
    known = Checkpoint(position=0, count=4, pending=((3, 4),), isolating=True, crashes=crashes)
    process = StepProcess(known)
    process.read()
    assert [letter.phase for letter in process.effect.update.letters] == ["crash"]
    process.commit()
    assert (process.journal.position, process.journal.pending) == (4, ())


def test_letter_of_a_crashing_item_has_each_crash_as_attempt():
    crashes = {0: (("worker", 17.0), ("worker", 18.0))}
    known = Checkpoint(position=0, count=4, pending=((0, 4),), isolating=True, crashes=crashes)
    process = StepProcess(known)
    process.read()
    [letter] = process.effect.update.letters
    assert [(each.number, each.ended) for each in letter.attempts] == [(1, 17.0), (2, 18.0)]


def test_crash_that_is_attributed_resets_the_number_of_the_others():
    checkpoint = Checkpoint(
        entered=True, isolating=True, isolated_item=0, unattributed_crashes=MAX_CRASHES
    )
    assert checkpoint.after_crash("worker", 17.0).unattributed_crashes == 0


def test_crashes_that_are_attributed_to_no_item_end_the_run():
    checkpoint = Checkpoint(position=0)
    for _ in range(MAX_CRASHES + 1):
        checkpoint = evolve(checkpoint, entered=True).after_crash("worker", 17.0)
    process = StepProcess(checkpoint)
    assert type(process.effect) is Read
    run = new_run(evolve(checkpoint, entered=True).after_crash("worker", 17.0))
    assert list(Machine(process.machine.rules, run, lambda: False).steps()) == []
    assert type(run.exception) is CrashLoopError


def test_table_in_the_page_is_the_one_of_the_engine():
    drawn = re.search(r"^\| state .*?(?=\n\n)", engine.__doc__, re.MULTILINE | re.DOTALL).group()
    assert drawn in PAGE.read_text(encoding="utf-8")


def test_each_state_is_in_the_table():
    states = ["WAITING", "READING", "PROCESSING", "WRITING", "SEARCHING", "ISOLATING", "ISOLATED"]
    assert list(dict.fromkeys(row[0] for row in table())) == states
