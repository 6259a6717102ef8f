"""Simulated clusters: the invariants with crashes, and their failure without the gate."""

import asyncio
from contextlib import suppress

import pytest

from retrytemplate.workers import Release, Shutdown, WorkerStopped
from retrytemplate.workers.testing import SimulatedCluster
from tests.support.simulated_workers import NoGate, factory

POISONS = {"m-0", "m-60", "m-120", "m-180", "m-240"}


def seeds(usual, stress):
    marked = [pytest.param(each, marks=pytest.mark.stress) for each in range(usual, stress)]
    return [*range(usual), *marked]


@pytest.mark.parametrize("seed", seeds(8, 200))
def test_only_poison_messages_are_dead_lettered(seed):
    report = SimulatedCluster(factory(POISONS), workers=3, seed=seed).run(300)
    report.raise_for_violations()
    assert {letter.message.id for letter in report.letters} == POISONS
    assert {letter.phase for letter in report.letters} == {"crash"}
    assert (report.acknowledged, report.remaining) == (295, 0)
    assert max(report.crashes.values()) <= 3


def test_without_the_gate_bystanders_are_dead_lettered():
    report = SimulatedCluster(factory(POISONS, gate=NoGate()), workers=3, seed=3).run(300)
    assert any(text.startswith("I4") for text in report.violations)
    assert any(text.startswith("I5") for text in report.violations)


def test_runs_with_one_seed_are_equal_event_for_event():
    def run():
        cluster = SimulatedCluster(
            factory(POISONS),
            workers=3,
            seed=7,
            crashes_per_hour=200.0,
            duplicates=0.1,
            reordering=0.3,
        )
        cluster.outage("store", 3.0, 5.0)
        cluster.outage("queue", 6.0, 9.0)
        cluster.crash_at_step("acknowledge", "m-17", after=True)
        cluster.at(10.0, lambda: cluster.stall(1, 40.0))
        cluster.at(20.0, lambda: cluster.stop(2))
        report = cluster.run(200)
        report.raise_for_violations()
        events = report.events
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


@pytest.mark.parametrize("part", ["queue", "store"])
def test_outage_loses_no_message_and_attributes_nothing(part):
    cluster = SimulatedCluster(factory(set()), workers=3, seed=5)
    cluster.outage(part, 1.0, 20.0)
    report = cluster.run(200)
    report.raise_for_violations()
    assert report.remaining == 0
    assert not report.attributed


def test_worker_that_starts_in_an_outage_of_the_queue_is_started_again():
    cluster = SimulatedCluster(factory(set()), workers=1, seed=5, restart_after=0.0)
    cluster.outage("queue", 1.0, 20.0)
    cluster.at(2.0, cluster.crash_random)
    report = cluster.run(200)
    report.raise_for_violations()
    assert report.remaining == 0


def test_error_of_a_worker_other_than_an_outage_ends_the_simulation():
    cluster = SimulatedCluster(factory(set()), workers=2, seed=5)

    def fail(part, operation):
        if operation == "open":
            raise ValueError("no such part")

    cluster.before_call = fail
    with pytest.raises(ValueError, match="no such part"):
        cluster.run(20)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["begin", "succeed", "fail", "release", "acknowledge"])
def test_crash_at_a_step_loses_no_message_and_attributes_nothing(step, after):
    outcomes = {"fail": ConnectionError(), "release": Release("later")}
    calls = []

    async def handle(message):
        if message.id == "m-7" and step in outcomes and "m-7" not in calls:
            calls.append(message.id)
            if isinstance(outcomes[step], Exception):
                raise outcomes[step]
            return outcomes[step]
        return None

    cluster = SimulatedCluster(factory(set(), then=handle), workers=2, seed=1)
    cluster.crash_at_step(step, "m-7", after=after)
    report = cluster.run(60)
    report.raise_for_violations()
    assert (report.acknowledged, report.remaining) == (60, 0)
    assert report.crashes == {None: 1}
    assert not report.attributed


@pytest.mark.parametrize("after", [False, True])
def test_crash_at_a_dead_letter_writes_it_once(after):
    cluster = SimulatedCluster(factory({"m-0"}), workers=2, seed=1)
    cluster.crash_at_step("dead_letter", "m-0", after=after)
    report = cluster.run(60)
    report.raise_for_violations()
    assert [letter.message.id for letter in report.letters] == ["m-0"]
    assert (report.acknowledged, report.crashes[None]) == (59, 1)


def test_worker_that_stalls_past_its_lease_settles_nothing_of_it():
    cluster = SimulatedCluster(factory(set()), workers=2, seed=1)
    cluster.at(1.0, lambda: cluster.stall(0, 100.0))
    report = cluster.run(300)
    report.raise_for_violations()
    assert (report.acknowledged, report.remaining) == (300, 0)
    assert report.suspects > 0
    assert not report.attributed
    assert report.latencies[-1] > 30.0  # taken over when the lease had ended


def test_orderly_stop_leaves_no_suspect():
    short = Shutdown(intake=0.1, grace=0.1, cancel=1.0)
    cluster = SimulatedCluster(factory(set(), shutdown=short), workers=2, seed=1)
    for second in (1.0, 3.0, 5.0):
        cluster.at(second, lambda: cluster.stop(0))
    report = cluster.run(300)
    report.raise_for_violations()
    assert report.acknowledged == 300
    assert (report.suspects, report.crashes) == (0, {})
    stopped = [event for _, event in report.events if isinstance(event, WorkerStopped)]
    assert all(event.report["cancelled"] for event in stopped[:3])


def test_claim_that_a_stop_does_not_release_violates_an_invariant():
    def make(worker):
        worker.cache.release = lambda claim: None
        return factory(set(), shutdown=Shutdown(intake=0.1, grace=0.1, cancel=1.0))(worker)

    cluster = SimulatedCluster(make, workers=2, seed=1)
    cluster.at(1.0, lambda: cluster.stop(0))
    report = cluster.run(100)
    assert any(text.startswith("I6") for text in report.violations)


def test_attempt_that_ignores_its_cancellation_delays_a_stop_by_its_limit():
    calls = []

    async def handle(message):
        if message.id == "m-0" and not calls:
            calls.append(message.id)
            for _ in range(8):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(10.0)

    short = Shutdown(grace=5.0)
    cluster = SimulatedCluster(factory(set(), then=handle, shutdown=short), workers=2, seed=1)
    cluster.at(2.0, lambda: cluster.stop(0))
    report = cluster.run(100)
    report.raise_for_violations()
    stopped = [event for _, event in report.events if isinstance(event, WorkerStopped)]
    assert stopped[0].report["stuck"] == 1
    assert report.acknowledged == 100


def test_duplicates_and_reordering_double_no_success():
    cluster = SimulatedCluster(
        factory(POISONS), workers=3, seed=5, duplicates=0.2, reordering=0.5, crashes_per_hour=100.0
    )
    report = cluster.run(300)
    report.raise_for_violations()
    assert len(cluster.queue.copied) > 30
    assert {letter.message.id for letter in report.letters} == POISONS
    assert report.remaining == 0


def recovering(restart_after):
    cluster = SimulatedCluster(
        factory(set()),
        workers=3,
        seed=5,
        restart_after=restart_after,
        lease=3.0,
        visibility_timeout=6.0,
    )
    for second in (12.0, 13.0):
        cluster.at(second, cluster.crash_random)
    return cluster.run(3000, timeout=100.0)


def test_throughput_returns_after_the_last_crash():
    report = recovering(restart_after=0.1)
    report.raise_for_violations()
    assert report.acknowledged == 3000


def test_worker_that_does_not_start_again_violates_the_throughput():
    [text] = recovering(restart_after=1000.0).violations
    assert text.startswith("I11")


@pytest.mark.stress
@pytest.mark.timeout(600)  # half a minute of processor time, on a machine that may be shared
def test_hundred_workers_process_100_000_messages_and_100_poisons():
    poisons = {f"m-{number}" for number in range(0, 100_000, 1000)}
    report = SimulatedCluster(factory(poisons), workers=100, seed=1).run(100_000)
    report.raise_for_violations()
    assert {letter.message.id for letter in report.letters} == poisons
    assert report.remaining == 0


def test_percentile_is_of_the_latencies():
    report = SimulatedCluster(factory(set()), workers=1, seed=1).run(16)
    assert 0.5 <= report.percentile(50) <= report.percentile(99) <= 2.0
