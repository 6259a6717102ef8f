"""The isolation gate of a run: its entries, and the record of them in the journal."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from attrs import evolve
from sqlalchemy import select

from retrytemplate import MisuseError
from retrytemplate.batch import SkipPolicy
from retrytemplate.batch.engine.checkpoint import Checkpoint
from retrytemplate.control import GateSnapshot, HostGate, ProcessGate
from retrytemplate.control.isolation_gate.gate import PROCESS_GATE
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.control.isolation_gate.test_gate import EMPTY, Caller, until
from tests.support.step_fixture import run


class Bad(Exception):
    """The error of a failing item."""


def checkpoint(world):
    """The checkpoint of the only run."""
    with world.jobs.transaction() as transaction:
        [row] = transaction.execute(select(world.jobs.tables.runs))
        return Checkpoint.from_json(json.loads(row.checkpoint))


def suspect(world):
    """Change the only run to one whose process crashed and which isolates its items."""
    runs = world.jobs.tables.runs
    text = json.dumps(evolve(checkpoint(world), isolating=True).to_json())
    with world.jobs.transaction() as transaction:
        transaction.execute(runs.update().values(checkpoint=text))


def failed_run(world, **settings):
    """A run that failed at its first item."""

    def fail(item):
        raise Bad

    report = world.step([1, 2, 3], process=fail, **settings).run()
    assert (report.status, report.pending) == ("failed", 3)
    world.calls.clear()


@pytest.mark.parametrize("kind", [ProcessGate, HostGate])
@pytest.mark.parametrize("isolating", [False, True])
def test_chunk_runs_inside_the_gate(sqlite, mode, kind, isolating, tmp_path):
    gate, seen = kind() if kind is ProcessGate else kind(directory=tmp_path), []
    if isolating:
        failed_run(sqlite)
        suspect(sqlite)

    def process(item):
        seen.append(gate.snapshot())
        return item

    report = run(sqlite.step([1, 2, 3], process=process, gate=gate), mode)
    assert report.written == 3
    inside = GateSnapshot(shared=not isolating, exclusive=isolating, waiting=0)
    assert seen == [inside] * 3
    assert gate.snapshot() == EMPTY


def test_step_without_a_gate_enters_that_of_the_process(sqlite, mode):
    seen = []

    def process(item):
        seen.append(PROCESS_GATE.snapshot().shared)
        return item

    run(sqlite.step([1], process=process), mode)
    assert seen == [1]
    assert PROCESS_GATE.snapshot() == EMPTY


def test_wrong_gate_is_rejected(sqlite):
    with pytest.raises(TypeError, match="gate must be a ProcessGate, a HostGate or None, got 17"):
        sqlite.step([1], gate=17)


@pytest.mark.parametrize("end", [Bad, KeyboardInterrupt])
def test_gate_is_left_however_the_run_ends(sqlite, end):
    gate = ProcessGate()

    def fail(item):
        raise end

    step = sqlite.step([1], process=fail, gate=gate)
    if end is Bad:
        assert step.run().status == "failed"
    else:
        with pytest.raises(end):
            step.run()
    assert gate.snapshot() == EMPTY
    assert not checkpoint(sqlite).entered


def test_run_leaves_the_gate_between_chunks_for_a_waiting_exclusive_entry(sqlite, mode):
    gate, callers = ProcessGate(), []

    def process(item):
        if item == 2:  # of the first chunk
            callers.append(Caller(gate, "exclusive"))
            until(lambda: gate.snapshot().waiting == 1)
            callers[0].released.set()
        if item == 4:
            assert callers[0].inside.is_set()
            assert checkpoint(sqlite).entered
        return item

    assert run(sqlite.step(range(1, 7), process=process, gate=gate), mode).written == 6
    assert gate.snapshot() == EMPTY


@pytest.fixture
def waiting(sqlite):
    """Start a run that waits for the gate; it is in the journal when this returns."""
    with ThreadPoolExecutor(1) as pool:

        def start(gate, holder, **settings):
            step = sqlite.step([1, 2, 3], gate=gate, **settings)
            report = pool.submit(step.run)
            until(lambda: gate.snapshot().waiting == 1)
            return step, report

        yield start


@pytest.mark.parametrize("isolating", [False, True])
def test_waiting_run_is_recorded_as_not_in_progress(sqlite, waiting, isolating):
    gate = ProcessGate()
    if isolating:
        failed_run(sqlite)
        suspect(sqlite)
    holder = Caller(gate, "exclusive")
    assert holder.inside.wait(JOIN_TIMEOUT)
    _, report = waiting(gate, holder)
    before = checkpoint(sqlite)
    assert (before.entered, before.isolating) == (False, isolating)
    assert before.after_crash("worker", 17.0) == before
    holder.release()
    assert report.result(JOIN_TIMEOUT).written == 3


def test_stop_of_a_waiting_run_begins_no_chunk(sqlite, waiting):
    gate = ProcessGate()
    holder = Caller(gate, "exclusive")
    assert holder.inside.wait(JOIN_TIMEOUT)
    step, report = waiting(gate, holder)
    step.stop()
    holder.release()
    assert report.result(JOIN_TIMEOUT).status == "stopped"
    assert sqlite.calls == []


def test_cancelled_run_leaves_the_queue_of_the_gate(sqlite):
    gate = ProcessGate()
    holder = Caller(gate, "exclusive")
    assert holder.inside.wait(JOIN_TIMEOUT)

    async def main():
        task = asyncio.ensure_future(sqlite.step([1], gate=gate).run_async())
        while not gate.snapshot().waiting:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
    assert gate.snapshot() == GateSnapshot(shared=0, exclusive=1, waiting=0)
    holder.release()
    assert run(sqlite.step([1], gate=gate), "sync").crashes == 0


# -- steps inside steps, replays -------------------------------------------------------------------


def inner_step(world, gate, **settings):
    return world.step([1, 2, 3], name="inner", writer=lambda *_: None, gate=gate, **settings)


def test_step_inside_another_step_enters_with_it(sqlite):
    gate = ProcessGate()

    def process(item):
        with ThreadPoolExecutor(1) as pool:
            suspect = pool.submit(gate.exclusive(timeout=0.01).__enter__)
            until(lambda: gate.snapshot().waiting == 1 or suspect.done())
            assert inner_step(sqlite, gate).run({"item": item}).written == 3
            suspect.exception(JOIN_TIMEOUT)
        return item

    outer = sqlite.step([1], process=process, writer=lambda *_: None, gate=gate)
    assert outer.run().written == 1


def test_isolated_step_inside_a_shared_chunk_is_misuse(sqlite):
    gate = ProcessGate()
    failed_run(sqlite, name="inner")
    suspect(sqlite)

    def process(item):
        return inner_step(sqlite, gate).run() and item

    outer = sqlite.step([1], process=process, gate=gate)
    report = outer.run()
    assert isinstance(report.exception, MisuseError)
    assert "give the inner work a gate of its own" in str(report.error)
    assert evolve(outer, gate=ProcessGate()).run().written == 1


def test_replay_enters_the_gate(sqlite, mode):
    gate, seen = ProcessGate(), []

    def fail(item):
        raise Bad

    run(sqlite.step([1, 2], process=fail, skip=SkipPolicy(on=Bad, limit=2)), "sync")

    def process(item):
        seen.append(gate.snapshot().shared)
        return item

    step = sqlite.step([], process=process, gate=gate)
    report = step.replay() if mode == "sync" else asyncio.run(step.replay_async())
    assert (len(report.replayed), seen) == (2, [1, 1])
    assert gate.snapshot() == EMPTY
