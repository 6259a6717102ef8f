"""The presets for classes of work, each with the part of the library that it is for."""

import asyncio
import logging

import pytest

from retrytemplate import Deadline, DeadlineExceededError, MisuseError
from retrytemplate.batch import ChunkStep, JobRepository
from retrytemplate.control import OperationResult, Operations, ProcessGate
from retrytemplate.testing import VirtualClock, no_waiting, run
from retrytemplate.workers import (
    BATCH,
    CLEANUP,
    MUTATION,
    USER_READ,
    WORKER,
    WorkerRuntime,
    gather_all,
    shielded,
)
from retrytemplate.workers.presets import Mutation
from retrytemplate.workers.testing import LeasedMemoryCache, MemoryQueue, MemorySource

pytestmark = pytest.mark.statement("S1-160")


@pytest.fixture
def clock():
    """The clock of the system, which the presets use, on virtual time."""
    made = VirtualClock()
    with no_waiting(made):
        yield made


def test_user_read_is_cancelled_at_its_limit_with_its_child_work(clock):
    ended = []

    async def part(name):
        try:
            await asyncio.sleep(60.0)
        finally:
            ended.append((name, clock.monotonic()))

    async def load():
        await gather_all(part("prices"), part("stock"), on_failure="cancel")

    with pytest.raises(DeadlineExceededError) as caught:
        run(USER_READ.call_async(load), clock=clock)
    assert caught.value.kind == "user_read"
    assert sorted(ended) == [("prices", 2.0), ("stock", 2.0)]


@pytest.mark.parametrize("found", [OperationResult("receipt 1"), None], ids=["effect", "none"])
def test_mutation_of_unknown_outcome_is_looked_up_before_a_second_call(clock, found):
    calls, lookups = [], []

    def lookup(key):
        lookups.append(key)
        return found

    async def charge(order):
        calls.append((order, clock.monotonic()))
        if len(calls) == 1:
            await asyncio.sleep(60.0)
        return "receipt 2"

    async def main():
        payments = MUTATION.pipeline(Operations(lookup=lookup), key=lambda order: order)
        with pytest.raises(DeadlineExceededError) as caught:
            await payments.call_async(charge, "order-17")
        assert (caught.value.kind, caught.value.outcome_unknown) == ("mutation", True)
        return [await payments.call_async(charge, "order-17") for _ in range(2)]

    expected = "receipt 1" if found else "receipt 2"
    assert run(main(), clock=clock) == [expected] * 2
    assert lookups == ["order-17"]
    assert calls == [("order-17", 0.0), ("order-17", 5.0)][: 1 if found else 2]


def test_mutation_without_a_lookup_is_rejected():
    with pytest.raises(MisuseError, match="operations must have a lookup"):
        MUTATION.pipeline(Operations(), key=str)


def test_wrong_limit_of_a_mutation_is_named():
    with pytest.raises(ValueError, match="limit must be"):
        Mutation(0)


def test_worker_limits_each_message_and_redelivers_a_cancelled_one():
    clock = VirtualClock()
    queue, calls = MemoryQueue(clock=clock), []
    cache = LeasedMemoryCache(clock=clock)
    queue.put(b"")

    async def handle(message, context):
        calls.append((context.attempt, clock.monotonic()))
        if len(calls) < 3:
            await asyncio.sleep(60.0)

    async def main():
        for until in (35.0, 3600.0):
            runtime = WorkerRuntime(
                MemorySource(queue),
                handle,
                name="billing",
                cache=cache.connect(),
                gate=ProcessGate(),
                clock=clock,
                **WORKER,
            )
            task = asyncio.create_task(runtime.run())
            while len(queue) and clock.monotonic() < until:
                await asyncio.sleep(0.5)
            task.cancel()
            await asyncio.wait([task])

    run(main(), clock=clock)
    attempts, times = zip(*calls, strict=True)
    assert attempts == (1, 2, 2)  # the first one timed out, the second one was cancelled
    assert 30.0 <= times[1] <= 32.0
    assert queue.acknowledged == 1


def test_worker_has_the_defaults_of_a_runtime():
    given = WorkerRuntime(MemorySource(), print, name="billing", **WORKER)
    default = WorkerRuntime(MemorySource(), print, name="billing")
    for name in WORKER:
        assert getattr(given, name) == getattr(default, name), name


def test_batch_limits_each_item_and_resumes_after_the_last_chunk(tmp_path):
    processed, written, limits = [], [], []

    def process(item):
        limits.append(Deadline.current().remaining())
        processed.append(item)
        if item == 3 and len(processed) == 4:
            raise ValueError("bad row")
        return item

    def write(items, transaction):
        written.append(items)

    with JobRepository(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        step = ChunkStep(
            "copy",
            reader=range(4),
            processor=process,
            writer=write,
            repository=jobs,
            **BATCH | {"chunk_size": 2},
        )
        assert step.run().status == "failed"
        assert written == [[0, 1]]
        assert step.run().status == "completed"
    assert written == [[0, 1], [2, 3]]
    assert processed == [0, 1, 2, 3, 2, 3]
    assert all(0.0 < limit <= 5.0 for limit in limits)


def test_cleanup_beyond_its_limit_is_logged_with_its_resource(caplog):
    clock, failed = VirtualClock(), []

    async def unlock():
        await asyncio.sleep(60.0)

    async def main():
        def repair(resource, error):
            failed.append((resource, clock.monotonic()))

        return await shielded(unlock, resource="lock 4", on_failed=repair, **CLEANUP)

    with caplog.at_level(logging.ERROR, "retrytemplate.workers"):
        assert run(main(), clock=clock) is False
    assert failed == [("lock 4", 1.0)]
    assert "cleanup of lock 4 (cleanup) failed" in caplog.text


@pytest.mark.parametrize("preset", [WORKER, BATCH, CLEANUP])
def test_preset_cannot_be_changed(preset):
    with pytest.raises(TypeError):
        preset["timeout"] = 5.0
