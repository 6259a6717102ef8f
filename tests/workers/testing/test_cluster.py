"""Simulated clusters: the invariants with crashes, and their failure without the gate."""

import asyncio
from contextlib import nullcontext

import pytest

from retrytemplate.errors import CacheUnavailableError
from retrytemplate.workers import WorkerRuntime
from retrytemplate.workers.testing import SimulatedCluster

ERRORS = {"queue": ConnectionError, "store": CacheUnavailableError}
POISONS = {"m-0", "m-60", "m-120", "m-180", "m-240"}


class NoGate:
    """Lets every attempt in at once."""

    def shared(self, timeout=None):
        return nullcontext()

    exclusive = shared


def factory(poisons=POISONS, *, gate=None, **options):
    def make(worker):
        async def handle(message, context):
            await asyncio.sleep(worker.random.uniform(0.5, 1.5))
            if message.id in poisons:
                await worker.crash()

        return WorkerRuntime(
            worker.source,
            handle,
            name="billing",
            cache=worker.cache,
            gate=worker.gate if gate is None else gate,
            clock=worker.clock,
            random=worker.random,
            listeners=[worker],
            concurrency=16,
            **options,
        )

    return make


def seeds(usual, stress):
    marked = [pytest.param(each, marks=pytest.mark.stress) for each in range(usual, stress)]
    return [*range(usual), *marked]


@pytest.mark.parametrize("seed", seeds(8, 200))
def test_only_poison_messages_are_dead_lettered(seed):
    report = SimulatedCluster(factory(), workers=3, seed=seed).run(300)
    report.raise_for_violations()
    assert {letter.message.id for letter in report.letters} == POISONS
    assert {letter.phase for letter in report.letters} == {"crash"}
    assert (report.acknowledged, report.remaining) == (295, 0)
    assert max(report.crashes.values()) <= 3


def test_without_the_gate_bystanders_are_dead_lettered():
    report = SimulatedCluster(factory(gate=NoGate()), workers=3, seed=3).run(300)
    assert any(text.startswith("I4") for text in report.violations)
    assert any(text.startswith("I5") for text in report.violations)


def test_runs_with_one_seed_are_equal_event_for_event():
    def run():
        cluster = SimulatedCluster(factory(), workers=3, seed=7, crashes_per_hour=200.0)
        events = cluster.run(200).events
        # Without the reason: it has the names of workers, which are unique.
        return [
            (time, type(event), getattr(event, "key", None), getattr(event, "action", None))
            for time, event in events
        ]

    assert run() == run()


def test_random_crashes_from_outside_lose_no_message():
    cluster = SimulatedCluster(factory(set()), workers=3, seed=5, crashes_per_hour=200.0)
    report = cluster.run(1000)
    report.raise_for_violations()
    assert report.crashes[None] > 0
    assert report.acknowledged == 1000


@pytest.mark.parametrize("kind", ["queue", "store"])
def test_outage_loses_no_message_and_attributes_nothing(kind):
    cluster = SimulatedCluster(factory(set()), workers=3, seed=5)

    def before_call(part, operation):
        if part == kind and 1.0 < cluster.clock.monotonic() < 20.0:
            raise ERRORS[kind]("unreachable")

    cluster.before_call = before_call
    report = cluster.run(200)
    report.raise_for_violations()
    assert report.remaining == 0
    assert not report.attributed


@pytest.mark.stress
def test_hundred_workers_process_100_000_messages_and_100_poisons():
    poisons = {f"m-{number}" for number in range(0, 100_000, 1000)}
    report = SimulatedCluster(factory(poisons), workers=100, seed=1).run(100_000)
    report.raise_for_violations()
    assert {letter.message.id for letter in report.letters} == poisons
    assert report.remaining == 0


def test_percentile_is_of_the_latencies():
    report = SimulatedCluster(factory(set()), workers=1, seed=1).run(16)
    assert 0.5 <= report.percentile(50) <= report.percentile(99) <= 2.0
