"""Warnings about the settings of a runtime, and its snapshot."""

import asyncio
import sys

import pytest

from retrytemplate.workers import RedeliveryPolicy, Shutdown, WorkerRuntime
from retrytemplate.workers.testing import MemorySource
from tests.support import forked_python

CHILD = """
import multiprocessing
from tempfile import TemporaryDirectory
from retrytemplate.control import HostGate
from retrytemplate.workers import WorkerRuntime
from retrytemplate.workers.testing import MemorySource

async def handle(message, context): ...

def check():
    with TemporaryDirectory() as folder:
        for gate in (None, HostGate(directory=folder)):
            runtime = WorkerRuntime(MemorySource(), handle, name="billing", gate=gate)
            print(*([each.rule for each in runtime.lint()] or ["none"]), flush=True)

child = multiprocessing.get_context("fork").Process(target=check)
child.start()
child.join()
"""


async def handle(message, context):
    await asyncio.sleep(5.0)


def rules(runtime):
    return {warning.rule for warning in runtime.lint()}


def test_default_settings_have_no_warning(world):
    assert rules(world.runtime(handle)) == set()


@pytest.mark.statement("S1-74")
@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"shutdown": Shutdown(grace=61.0, orchestrator=90.0)}, "grace-exceeds-visibility"),
        ({"shutdown": Shutdown(orchestrator=20.0)}, "shutdown-exceeds-orchestrator"),
        ({"remember": 60.0}, "remember-below-visibility"),
    ],
)
def test_setting_that_contradicts_another_is_warned_about(world, options, rule):
    [warning] = world.runtime(handle, **options).lint()
    assert warning.rule == rule
    assert warning.reason
    assert warning.remedy


@pytest.mark.statement("S1-74")
def test_attempt_beyond_the_visibility_timeout_is_warned_about_without_extension(world):
    runtime = world.runtime(handle, attempt_timeout=56.0)
    assert rules(runtime) == set()
    runtime.source.can_extend = False
    assert rules(runtime) == {"timeout-exceeds-visibility"}


def test_missing_target_of_dead_letters_is_warned_about(world):
    runtime = world.runtime(handle)
    runtime.source.dead_letters = None
    assert rules(runtime) == {"no-dead-letter-target"}


@pytest.mark.parametrize(("limit", "warned"), [(3, True), (31, True), (32, False)])
def test_low_delivery_limit_of_the_broker_is_warned_about(world, limit, warned):
    runtime = world.runtime(handle, retry=RedeliveryPolicy(5, max_crashes=2))
    runtime.source.delivery_limit = limit
    assert rules(runtime) == ({"broker-delivery-limit-low"} if warned else set())


@pytest.mark.parametrize(("limit", "prefetch"), [(None, 20), (50, 10)])
def test_default_prefetch_is_the_concurrency_with_a_delivery_limit(limit, prefetch):
    source = MemorySource()
    source.delivery_limit = limit
    assert WorkerRuntime(source, handle, name="billing").prefetch == prefetch


def test_gate_of_a_process_is_warned_about_in_a_child_process():
    done = forked_python.run([sys.executable, "-c", CHILD], timeout=60)
    assert done.stdout.split() == ["gate-too-small", "none"], done.stderr


def test_plain_function_is_warned_about(world):
    assert rules(world.runtime(print)) == {"sync-handler-without-client-timeout"}


def test_plain_function_with_a_stop_flag_is_not_warned_about(world):
    def handle(message, context, *, stop): ...

    assert rules(world.runtime(handle)) == set()


def test_lease_below_the_longest_stall_is_warned_about(world):
    async def stall(message, context):
        await asyncio.sleep(1.0)
        world.clock.advance(15.0)

    world.queue.put(b"")
    runtime = world.runtime(stall)
    world.run_main(world.run_async(runtime, until=40.0))
    assert rules(runtime) == {"lease-below-stall"}


def test_snapshot_shows_state_and_counts(world):
    for number in range(5):
        world.queue.put(b"", id=f"m-{number}")
    runtime = world.runtime(handle, concurrency=2)
    assert runtime.snapshot().state == "starting"

    async def main():
        task = asyncio.create_task(world.run_async(runtime, until=5.5))
        await asyncio.sleep(2.0)
        early = runtime.snapshot()
        await asyncio.sleep(4.0)
        late = runtime.snapshot()
        await task
        return early, late

    early, late = world.run_main(main())
    assert (early.state, early.in_flight, early.prefetched) == ("running", 2, 2)
    assert early.oldest_attempt == 2.0
    assert (late.state, late.acknowledged) == ("draining", 2)
    assert runtime.snapshot().state == "stopped"


def test_snapshot_shows_the_last_failure(world):
    async def fail(message, context):
        raise ConnectionError("unreachable\nat night")

    world.queue.put(b"", id="m-1")
    runtime = world.runtime(fail)
    world.run_main(world.run_async(runtime, until=5.0))
    failure = runtime.snapshot().last_failure
    assert (failure.key, failure.attempt, failure.max_attempts) == ("m-1", 1, 5)
    assert (failure.error, failure.action) == ("ConnectionError: unreachable", "requeue")
    assert failure.delay == 10.0
    assert runtime.snapshot().as_json()["last_failure"]["key"] == "m-1"
