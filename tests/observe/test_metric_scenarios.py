"""Every row of the table of metrics occurs in a scenario, in synchronous and asynchronous code."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from threading import Event

import pytest

from retrytemplate import (
    Deadline,
    DeadlineExceededError,
    FixedBackoff,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import (
    Bulkhead,
    CircuitBreaker,
    Fallback,
    Hedge,
    KillSwitch,
    RateLimiter,
    RetryBudget,
    SQLSwitchStore,
    Timeout,
)
from retrytemplate.observe import INSTRUMENTS, InMemoryMetrics, MemorySink, Observer, Registry
from retrytemplate.testing import VirtualClock
from retrytemplate.workers import TaskSupervisor, shielded
from tests.batch.test_scenarios import always, skipping
from tests.config.test_reload import TEXT, change
from tests.support.configs import load_text
from tests.support.failing_cache import Down
from tests.support.step_fixture import empty_world, run
from tests.workers.runtime.conftest import World

SCENARIOS = {}


def scenario(*rows):
    """A scenario of these metrics."""

    def register(function):
        SCENARIOS[function.__name__] = (rows, function)
        return function

    return register


class Scene:
    """An observer of components, and calls in one of both modes."""

    def __init__(self, mode, folder, request):
        self.mode, self.folder, self.request = mode, folder, request
        self.clock, self.metrics = VirtualClock(), InMemoryMetrics()
        self.kept = MemorySink()
        self.observer = Observer(sinks=[self.kept], metrics=[self.metrics], deadlines=True)
        self.observed = {"listeners": [self.observer], "clock": self.clock}
        self.registry = Registry()
        self.registry.add(self.observer)

    def template(self, **settings):
        policy = SimpleRetryPolicy(2, retry_on=OSError)
        values = {"policy": policy, "backoff": FixedBackoff(0.5), "name": "charge"} | settings
        return RetryTemplate(**values, **self.observed)

    def call(self, strategy, function):
        """Call the function through a strategy; its failure is the scenario's."""

        async def asynchronous():
            return function()

        async def main():
            with suppress(Exception):
                await strategy.call_async(asynchronous)

        if self.mode == "async":
            asyncio.run(main())
        else:
            with suppress(Exception):
                strategy.call(function)

    def shown(self, name):
        if INSTRUMENTS[name].kind == "gauge":
            return self.metrics.gauges(self.registry, name).get(name, {})
        return self.metrics.read(name)


def fail():
    raise OSError("down")


@scenario("call.duration", "attempt.duration", "retries", "call.failures", "backoff.time")
def failing_call(scene):
    scene.call(scene.template(), fail)


@scenario("attempt.lost")
def lost_attempt(scene):
    cache = Down(lambda step, record: False)
    cache.lost = "gone:1"
    scene.call(scene.template(cache=cache).bind(state=RetryState("order-17")), int)


@scenario("attempt.overruns")
def overrun(scene):
    scene.call(scene.template(attempt_timeout=1.0), lambda: scene.clock.advance(2.0))


@scenario("deadline.remaining")
def call_in_a_deadline(scene):
    with Deadline(10.0, clock=scene.clock):
        scene.call(scene.template(), int)


@scenario("timeouts")
def slow_call(scene):
    scene.call(Timeout(1.0, **scene.observed), lambda: scene.clock.advance(2.0))


@scenario(
    "rejections",
    "circuit_breaker.state",
    "circuit_breaker.transitions",
    "circuit_breaker.failure_ratio",
)
def open_circuit(scene):
    scene.breaker = CircuitBreaker("billing", **scene.observed)
    scene.breaker.force_open(by="ada", reason="incident")
    scene.call(scene.breaker, int)


@scenario("bulkhead.usage", "bulkhead.waiting", "bulkhead.limit")
def used_bulkhead(scene):
    scene.bulkhead = Bulkhead("llm", **scene.observed)
    scene.call(scene.bulkhead, int)


@scenario("rate_limiter.available", "rate_limiter.waiting", "rate_limiter.wait.duration")
def delayed_call(scene):
    scene.limiter = RateLimiter("api", permits=1, per=10, max_wait=60, **scene.observed)
    for _ in range(2):
        scene.call(scene.limiter, int)


@scenario("retry_budget.available")
def spent_budget(scene):
    scene.budget = RetryBudget(ratio=0.1, min_per_second=1, ttl=10, name="api", **scene.observed)
    scene.call(scene.template(guards=[scene.budget]), fail)


@scenario("fallback.calls")
def used_fallback(scene):
    weather = Fallback(lambda: "cached", name="weather", **scene.observed)
    scene.call(weather, fail)
    scene.call(weather, int)


@scenario("hedges")
def slow_first_call(scene):
    numbers, second = count(1), Event()

    def call():
        if next(numbers) == 1:
            second.wait(10)
        second.set()

    async def main():
        done = asyncio.Event()

        async def call():
            if next(numbers) == 1:
                await done.wait()
            done.set()

        await Hedge(0.001, idempotent=True, name="search", listeners=[scene.observer]).call_async(
            call
        )

    if scene.mode == "async":
        asyncio.run(main())
        return
    with ThreadPoolExecutor(2) as pool:
        settings = {"idempotent": True, "executor": pool, "listeners": [scene.observer]}
        Hedge(0.001, name="search", **settings).call(call)


@scenario("kill_switch.stopped_ratio", "store.up")
def stopped_feature(scene):
    scene.store = SQLSwitchStore(f"sqlite:///{scene.folder}/switch.db")
    scene.switch = KillSwitch(scene.store, name="main", listeners=[scene.observer])
    scene.switch.stop(
        feature="export", by="kim", reason="wrong totals, incident 47", permanent=True
    )
    scene.shown("store.up")
    scene.metrics.add("task.active", {"owner": "", "operation": ""}, 0)
    found = {name: scene.shown(name) for name in SCENARIOS["stopped_feature"][0]}
    scene.shown = found.__getitem__
    scene.switch.close()
    scene.store.close()


@scenario("step.items", "step.progress_ratio", "dead_letter.backlog")
def step_with_bad_items(scene):
    with empty_world("sqlite", scene.request) as world:
        step = world.step([1, 2, 3], process=always(1), listeners=[scene.observer], **skipping())
        run(step, scene.mode)
        found = {name: scene.shown(name) for name in SCENARIOS["step_with_bad_items"][0]}
    scene.shown = found.__getitem__


def supervised(scene, *works):
    """Run the works in a supervisor, and the gauge of tasks after their start."""

    async def main():
        async with TaskSupervisor("shop", listeners=[scene.observer]) as supervisor:
            tasks = [supervisor.start(work) for work in works]
            scene.running = scene.shown("task.active")
            await asyncio.sleep(0)
            tasks[0].cancel()
            for each in tasks:
                await each.wait()

    asyncio.run(main())


async def wait():
    await asyncio.Event().wait()


@scenario("task.started", "task.active", "task.cancelled", "task.timed_out", "task.cleanup_failed")
def tasks_that_end_badly(scene):
    async def over():
        raise DeadlineExceededError("over", kind="request")

    async def release():
        raise OSError("no answer")

    async def close():
        await shielded(release, resource="connection", operation="rollback")

    supervised(scene, wait, over, close)
    read = scene.shown
    scene.shown = lambda name: scene.running if name == "task.active" else read(name)


@scenario("queue.ack_failed", "queue.receive_failed", "message.settled")
def worker_with_an_unavailable_queue(scene):
    for operation in ("acknowledge", "receive"):
        world = World()
        world.queue.put(b"", id="m-0")
        world.fail_until(operation, 20.0)
        world.run(world.note, listeners=[scene.observer])


@scenario("message.suspects", "message.exclusive.duration")
def exclusive_attempt(scene):
    world = World()
    world.queue.put(b"", id="m-0")

    async def main():
        crashed = world.cache.connect()
        crashed.begin("billing/s:m-0", worker="host:1:abc-1")
        await crashed.close()
        await asyncio.sleep(30.0)
        scene.runtime = world.runtime(world.note, listeners=[scene.observer])
        await world.run_async(scene.runtime)

    world.run_main(main())


@scenario("queue.depth")
def watched_queue(scene):
    scene.observer.watch_queue("orders", lambda: 17)


@scenario("config.reloads")
def changed_configuration(scene):
    config = load_text(scene.folder, TEXT, clock=scene.clock)
    config.register_listener(scene.observer)
    change(scene.folder, ("max_attempts: 2", "max_attempts: 4"))
    config.reload()


@scenario("sink.dropped", "sink.errors")
def full_buffer(scene):
    from retrytemplate.observe import BufferedSink, CallbackSink, RateLimitedSink

    def raises(event):
        raise OSError("full")

    sink = BufferedSink(CallbackSink(raises))
    scene.observer = Observer(sinks=[RateLimitedSink(sink)], metrics=[scene.metrics])
    scene.observed = {"listeners": [scene.observer], "clock": scene.clock}
    scene.call(scene.template(), fail)
    scene.observer.shutdown()


@scenario("label.overflows")
def many_templates(scene):
    scene.metrics = InMemoryMetrics(max_label_values=1)
    scene.observed["listeners"] = [Observer(metrics=[scene.metrics])]
    for name in ("a", "b"):
        scene.call(scene.template(name=name), int)


@pytest.fixture(params=["sync", "async"])
def scene(request, tmp_path):
    return Scene(request.param, tmp_path, request)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_measures_its_metrics(scene, name):
    rows, play = SCENARIOS[name]
    play(scene)
    assert [row for row in rows if not scene.shown(row)] == []


def test_every_metric_has_a_scenario():
    played = [row for rows, _ in SCENARIOS.values() for row in rows]
    assert len(played) == len({*played})
    assert {*played} == INSTRUMENTS.keys()


@pytest.mark.statement("S1-140")
def test_metrics_of_tasks_have_owner_operation_and_reason(scene):
    tasks_that_end_badly(scene)
    place = f"{__name__}.tasks_that_end_badly.<locals>"
    started = {("shop", f"{__name__}.wait"), ("shop", f"{place}.over"), ("shop", f"{place}.close")}
    assert scene.shown("task.started").keys() == started
    assert scene.shown("task.active").keys() == started
    assert scene.shown("task.cancelled") == {("manual", f"{__name__}.wait"): 1.0}
    assert scene.shown("task.timed_out") == {("request", f"{place}.over"): 1.0}
    assert scene.shown("task.cleanup_failed") == {("connection", "rollback"): 1.0}


@pytest.mark.statement("S1-140")
def test_metrics_of_queues_have_name_and_reason(scene):
    scene.observer.watch_queue("orders", lambda: 17)
    scene.observer.ack_failed("orders", "timeout")
    assert scene.shown("queue.depth") == {("orders",): 17}
    assert scene.shown("queue.ack_failed") == {("orders", "timeout"): 1.0}
    assert [(each.type, each.subject) for each in scene.kept.events] == [
        ("queue.ack_failed", "orders")
    ]


@pytest.mark.statement("S4-48")
def test_answers_of_a_fallback_are_counted_by_source(scene):
    weather = Fallback(lambda: "cached", name="weather", **scene.observed)
    for function in (fail, int, int, int):
        scene.call(weather, function)
    assert scene.shown("fallback.calls") == {
        ("weather", "<lambda>"): 1.0,
        ("weather", "primary"): 3.0,
    }


@pytest.mark.statement("S1-132")
def test_timeout_is_counted_by_operation_type_and_retryable(scene):
    def slow():
        scene.clock.advance(2.0)

    Timeout(1.0, kind="database", **scene.observed).call(slow)
    operation = f"{__name__}.{slow.__qualname__}"
    assert scene.shown("timeouts") == {(operation, "database", "false"): 1.0}


@pytest.mark.statement("S4-100")
def test_retries_and_a_spent_budget_are_counted_apart(scene):
    budget = RetryBudget(ratio=0, min_per_second=0.1, ttl=10, name="api", **scene.observed)
    for _ in range(2):
        scene.call(scene.template(guards=[budget]), fail)
    types = [each.type for each in scene.kept.events]
    assert scene.shown("retries") == {("charge", "OSError"): types.count("retry.scheduled")}
    assert scene.shown("rejections") == {
        ("retry_budget", "api"): types.count("retry_budget.rejected")
    }
    assert {"retry.scheduled", "retry_budget.rejected"} <= {*types}


@pytest.mark.statement("S4-100")
def test_timeout_after_a_retry_is_marked_as_caused_by_it(scene):
    answers = iter([fail, int])

    def call():
        scene.clock.advance(1.0)
        return next(answers)()

    with suppress(DeadlineExceededError):
        Timeout(2.0, **scene.observed).call(scene.template().call, call)
    [timeout] = [each for each in scene.kept.events if each.type == "timeout.exceeded"]
    assert (timeout.data["retries"], timeout.data["caused_by_retries"]) == (1, True)
