"""The registry of live components, and gauges of real components."""

import asyncio
import gc

import pytest

from retrytemplate import Rejected
from retrytemplate.batch import ChunkStep, JobRepository, SkipPolicy
from retrytemplate.control import (
    Bulkhead,
    CircuitBreaker,
    Consecutive,
    KillSwitch,
    ProcessGate,
    RateLimiter,
    RetryBudget,
)
from retrytemplate.observe import InMemoryMetrics, Registry
from retrytemplate.testing import VirtualClock
from retrytemplate.workers import TaskSupervisor, WorkerRuntime
from retrytemplate.workers.testing import MemorySource


def gauges(*components):
    return InMemoryMetrics().gauges(Registry(*components))


def fail():
    raise ConnectionError


def repository(folder, **settings):
    return JobRepository(f"sqlite:///{folder}/jobs.db", **settings)


def copy(jobs, name="copy"):
    """A run of a step of which one item has a dead letter."""
    ChunkStep(
        name,
        reader=[0, 1],
        processor=lambda number: 1 / number,
        writer=lambda items, transaction: None,
        repository=jobs,
        skip=SkipPolicy(on=ZeroDivisionError),
    ).run()


def test_breaker_gauges_show_the_state_and_the_failure_ratio():
    breaker = CircuitBreaker("billing", minimum_calls=4)
    for call in (int, int, int, fail):
        breaker.outcome(call)
    shown = gauges(breaker)
    assert shown["circuit_breaker.failure_ratio"] == {("billing",): 0.25}
    breaker.force_open(by="kim", reason="maintenance")
    assert shown["circuit_breaker.state"] | {("billing", "closed"): 0.0} == dict.fromkeys(
        [
            ("billing", each)
            for each in ("closed", "open", "half_open", "forced_open", "disabled", "metrics_only")
        ],
        0.0,
    )
    assert gauges(breaker)["circuit_breaker.state"]["billing", "forced_open"] == 1.0


def test_breaker_gauges_follow_a_breaker_that_opens():
    breaker = CircuitBreaker("billing", window=Consecutive(1))
    breaker.outcome(fail)
    states = gauges(breaker)["circuit_breaker.state"]
    assert (states["billing", "open"], states["billing", "closed"]) == (1.0, 0.0)


def test_bulkhead_gauges_show_slots_in_use():
    bulkhead = Bulkhead("llm", limit=3)
    with bulkhead.slot():
        shown = gauges(bulkhead)
    assert shown == {
        "bulkhead.usage": {("llm",): 1},
        "bulkhead.waiting": {("llm",): 0},
        "bulkhead.limit": {("llm",): 3},
    }


def test_rate_limiter_gauges_show_free_permits():
    limiter = RateLimiter("api", permits=5, clock=VirtualClock())
    limiter.acquire(2)
    assert gauges(limiter) == {
        "rate_limiter.available": {("api",): 3},
        "rate_limiter.waiting": {("api",): 0},
    }


def test_budget_gauge_shows_available_retries():
    budget = RetryBudget(ratio=0.1, min_per_second=1, ttl=10, name="api", clock=VirtualClock())
    before = gauges(budget)["retry_budget.available"]["api",]
    budget.withdraw()
    assert gauges(budget) == {"retry_budget.available": {("api",): before - 1}}


def test_kill_switch_gauge_shows_the_stopped_share():
    switch = KillSwitch(name="main")
    name = "kill_switch.stopped_ratio"
    assert gauges(switch) == {name: {("main", "global", ""): 0.0}}
    switch.stop(feature="export", by="kim", reason="wrong totals, incident 4712", permanent=True)
    assert gauges(switch)[name] == {
        ("main", "global", ""): 0.0,
        ("main", "feature", "export"): 1.0,
    }


async def test_supervisor_gauge_shows_running_tasks():
    async with TaskSupervisor("shop") as supervisor:
        handle = supervisor.start(asyncio.Event().wait)
        assert gauges(supervisor) == {"task.active": {("shop", handle.operation): 1}}
        await supervisor.stop()


async def test_runtime_gauge_shows_suspects():
    runtime = WorkerRuntime(MemorySource(), print, name="worker", gate=ProcessGate())
    assert gauges(runtime) == {"message.suspects": {(runtime.source.name,): 0}}


def test_repository_gauges_show_progress_and_open_letters(tmp_path):
    with repository(tmp_path) as jobs:
        copy(jobs)
        assert gauges(jobs) == {
            "step.progress_ratio": {("copy",): 1.0},
            "dead_letter.backlog": {("copy",): 1},
        }


def test_two_repositories_on_one_database_are_counted_once(tmp_path, caplog):
    with repository(tmp_path) as jobs, repository(tmp_path) as other:
        copy(jobs)
        registry = Registry(jobs, other)
        assert [*registry.snapshots()] == [("job_repository", jobs.name)]
        shown = [*registry.gauges("dead_letter.backlog")]
    assert shown == [("dead_letter.backlog", ("copy",), 1)]


def test_two_prefixes_in_one_database_are_two_repositories(tmp_path):
    with repository(tmp_path) as jobs, repository(tmp_path, prefix="other") as other:
        copy(jobs)
        copy(other, "clean")
        shown = gauges(jobs, other)["dead_letter.backlog"]
    assert shown == {("copy",): 1, ("clean",): 1}


def test_repository_that_cannot_be_read_is_left_out_and_logged_once(tmp_path, caplog):
    (tmp_path / "jobs.db").write_text("no database" * 100)
    clock = VirtualClock()
    with repository(tmp_path, clock=clock) as jobs:
        registry = Registry(jobs)
        for _ in range(3):
            assert [*registry.gauges()] == []
            clock.advance(15.0)
        assert [each.getMessage() for each in caplog.records] == [
            f"no snapshot of the job_repository {jobs.name!r}"
        ]


# The registry.


def test_registry_finds_a_component_by_kind_and_name():
    billing, search = CircuitBreaker("billing"), CircuitBreaker("search")
    registry = Registry(billing)
    registry.add(search, Bulkhead("gone"))
    assert registry.find("circuit_breaker", "search") is search
    assert registry.find("bulkhead", "search") is None
    assert registry.snapshots() == {
        ("circuit_breaker", "billing"): billing.snapshot(),
        ("circuit_breaker", "search"): search.snapshot(),
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: CircuitBreaker("x"),
        lambda: Bulkhead("x"),
        lambda: RateLimiter("x", permits=1),
        lambda: RetryBudget(ratio=1, name="x"),
        lambda: KillSwitch(name="x"),
        lambda: TaskSupervisor("x"),
        lambda: WorkerRuntime(MemorySource(), print, name="x", gate=ProcessGate()),
        lambda: JobRepository("sqlite:///missing/jobs.db"),
    ],
)
def test_registry_does_not_keep_a_component_alive(make):
    component = make()
    registry = Registry(component)
    assert len(registry.snapshots()) == 1
    del component
    gc.collect()
    assert registry.snapshots() == {}


def test_registry_shows_the_newest_of_two_with_one_warning(caplog):
    first, second = Bulkhead("x", limit=1), Bulkhead("x", limit=2)
    registry = Registry(first, second)
    registry.add(second)
    assert registry.find("bulkhead", "x") is second
    registry.add(first)
    assert registry.find("bulkhead", "x") is first
    assert [each.getMessage() for each in caplog.records] == [
        "two live components: bulkhead 'x'; the newest is shown"
    ]


def test_registry_shows_the_older_one_after_the_newest_is_gone():
    first, second = Bulkhead("x", limit=1), Bulkhead("x", limit=2)
    registry = Registry(first, second)
    del second
    gc.collect()
    assert registry.find("bulkhead", "x") is first


def test_registry_of_another_object_raises_type_error():
    with pytest.raises(TypeError, match=r"component must be one of CircuitBreaker, .* got 17"):
        Registry(17)


def test_registry_knows_a_subclass_of_a_component():
    class Mine(Bulkhead):
        pass

    mine = Mine("x")
    assert Registry(mine).find("bulkhead", "x") is mine


def test_failing_snapshot_is_left_out_and_logged_once(caplog):
    class Broken(Bulkhead):
        def snapshot(self):
            raise Rejected("no answer")

    broken, works = Broken("broken"), Bulkhead("works")
    registry = Registry(broken, works)
    for _ in range(3):
        assert [*registry.snapshots()] == [("bulkhead", "works")]
    assert [each.getMessage() for each in caplog.records] == [
        "no snapshot of the bulkhead 'broken'"
    ]


def test_component_names_beyond_the_limit_become_other():
    bulkheads = [Bulkhead(f"x{number}", limit=number) for number in range(1, 6)]
    shown = InMemoryMetrics(max_label_values=2).gauges(Registry(*bulkheads))
    assert shown["bulkhead.limit"] == {("x1",): 1, ("x2",): 2, ("_other",): 5}


def test_own_gauges_stand_beside_those_of_components():
    metrics = InMemoryMetrics()
    metrics.add("task.active", {"owner": "shop", "operation": "pay"}, 3)
    bulkhead = Bulkhead("x")
    shown = metrics.gauges(Registry(bulkhead))
    assert shown["task.active"] == {("shop", "pay"): 3.0}
    assert shown["bulkhead.usage"] == {("x",): 0}
