"""Steps on a key complete in a cancelled task; results of failed steps."""

import asyncio

import pytest
import trio
from attrs import evolve

from retrytemplate import (
    CacheUnavailableError,
    ExponentialBackoff,
    LeaseLostError,
    MemoryRetryContextCache,
    MisuseError,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
)
from retrytemplate.testing import VirtualClock, run, run_trio
from retrytemplate.testing.clock import checkpoint
from tests.support.failing_cache import Down
from tests.support.runners import Script, in_thread, made

STATE = RetryState("key", rollback_for=())
KEY = "work/s:key"


class Awaited:
    """A cache in memory with asynchronous steps; *seconds* is the duration of each."""

    def __init__(self, clock, **seconds):
        self.cache = MemoryRetryContextCache()
        self.clock = clock
        self.seconds = seconds
        self.late = []

    def end_later(self, function, arguments):
        self.late.append((function, arguments))

    async def step(self, name, *arguments, **options):
        await checkpoint()
        await self.clock.sleep_async(self.seconds.get(name, 0.0))
        made = getattr(self.cache, name)(*arguments, **options)
        await checkpoint()
        return made

    async def begin(self, key, **options):
        return await self.step("begin", key, **options)

    async def renew(self, claim):
        return await self.step("renew", claim)

    async def fail(self, claim, record):
        return await self.step("fail", claim, record)

    async def succeed(self, claim, **options):
        return await self.step("succeed", claim, **options)

    async def release(self, claim):
        return await self.step("release", claim)

    async def forget(self, key):
        return await self.step("forget", key)

    async def peek(self, key):
        return await self.step("peek", key)

    async def swap(self, key, record, version):
        return await self.step("swap", key, record, version)

    async def holds(self, claim):
        return await self.step("holds", claim)


@pytest.fixture
def clock():
    return VirtualClock()


def template_on(cache, clock, attempts=2):
    return RetryTemplate(SimpleRetryPolicy(attempts), cache=cache, name="work", clock=clock)


def fail(context):
    raise ValueError("no price")


async def cancelled_after(seconds, execution, clock, times=1):
    task = asyncio.create_task(execution)
    await clock.sleep_async(seconds)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])
    return task


# -- cancelled in asyncio ------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["begin", "succeed"])
@pytest.mark.parametrize("times", [1, 2, 50])
def test_step_in_cancelled_task_ends_and_the_cancellation_leaves(clock, step, times):
    cache = Awaited(clock, **{step: 2.0})

    async def main():
        execution = template_on(cache, clock).execute_async(lambda context: "value", state=STATE)
        task = await cancelled_after(1.0, execution, clock, times)
        assert task.cancelled()
        assert task.cancelling() == times
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main(), clock=clock)
    assert cache.cache._claims == {}
    assert cache.late == []


def test_failure_that_is_written_during_a_cancellation_is_counted(clock):
    cache = Awaited(clock, fail=2.0)

    async def main():
        execution = template_on(cache, clock).execute_async(fail, state=STATE)
        task = await cancelled_after(1.0, execution, clock, 3)
        assert task.cancelled()

    run(main(), clock=clock)
    record = cache.cache.peek(KEY)
    assert (record.failures, record.worker) == (1, None)


def test_recovery_cancelled_before_it_runs_is_repeated(clock):
    cache = Awaited(clock)
    recoveries = []

    async def main():
        template = template_on(cache, clock, 1)
        execution = template.execute_async(fail, recovery=recoveries.append, state=STATE)
        fail_step = cache.fail

        async def slow(claim, record):
            if record.phase == "recovering":
                await clock.sleep_async(2.0)
            return await fail_step(claim, record)

        cache.fail = slow
        assert (await cancelled_after(1.0, execution, clock)).cancelled()
        assert recoveries == []
        await template.execute_async(fail, recovery=recoveries.append, state=STATE)

    run(main(), clock=clock)
    assert len(recoveries) == 1
    assert cache.cache._claims == {}


def test_outer_timeout_during_the_last_write_is_a_timeout_error(clock):
    cache = Awaited(clock, succeed=2.0)

    async def main():
        template = template_on(cache, clock)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await template.execute_async(lambda context: "value", state=STATE)
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0)  # no cancellation is left for later

    run(main(), clock=clock)
    assert cache.cache._claims == {}
    assert clock.monotonic() == 2.0


def test_group_that_fails_waits_for_a_settling_execution(clock):
    cache = Awaited(clock, succeed=2.0)

    async def fails():
        await clock.sleep_async(1.0)
        raise OSError

    async def main():
        template = template_on(cache, clock)
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(template.execute_async(lambda context: 1, state=STATE))
                group.create_task(fails())
        assert [type(error) for error in caught.value.exceptions] == [OSError]

    run(main(), clock=clock)
    assert cache.cache._claims == {}


@pytest.mark.parametrize("step", ["begin", "succeed"])
@pytest.mark.parametrize("timeout", [None, 3.0])
def test_step_that_does_not_end_is_left_to_the_cache(clock, step, timeout):
    cache = Awaited(clock, **{step: 3600.0})
    if timeout is not None:
        cache.timeout = timeout

    async def main():
        execution = template_on(cache, clock).execute_async(lambda context: "value", state=STATE)
        assert (await cancelled_after(1.0, execution, clock, 2)).cancelled()

    run(main(), clock=clock)
    assert clock.monotonic() == 1.0 + (timeout or 5.0)
    assert [getattr(function, "func", function).__name__ for function, _ in cache.late] == [step]


def test_release_that_does_not_end_is_left_to_the_cache(clock):
    cache = Awaited(clock, release=3600.0)

    async def wait(context):
        await clock.sleep_async(2.0)

    async def main():
        execution = template_on(cache, clock).execute_async(wait, state=STATE)
        task = asyncio.create_task(execution)
        for _ in range(2):  # the second one while the key is released
            await clock.sleep_async(1.0)
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(main(), clock=clock)
    assert clock.monotonic() == 2.0 + 5.0
    [(function, _)] = cache.late
    assert getattr(function, "func", function).__name__ == "release"


def test_unguarded_execution_does_not_begin_in_a_cancelled_task(clock):
    cache, calls = Awaited(clock, begin=3600.0), []
    cache.on_store_error = "run_unguarded"

    async def main():
        execution = template_on(cache, clock).execute_async(calls.append, state=STATE)
        assert (await cancelled_after(1.0, execution, clock)).cancelled()

    run(main(), clock=clock)
    assert calls == []


# -- cancelled in trio ---------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["begin", "succeed", "fail"])
def test_step_in_cancelled_scope_of_trio_ends(clock, step):
    cache = Awaited(clock, **{step: 2.0})
    callback = fail if step == "fail" else lambda context: "value"

    async def main():
        template = template_on(cache, clock)
        with trio.move_on_after(1.0) as scope:
            await template.execute_async(callback, state=STATE)
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught

    run_trio(main, clock=clock)
    assert cache.cache._claims == {}
    assert clock.monotonic() == (4.0 if step == "fail" else 2.0)


@pytest.mark.parametrize("step", ["begin", "succeed"])
def test_step_that_does_not_end_in_trio_is_left_to_the_cache(clock, step):
    cache = Awaited(clock, **{step: 3600.0})

    async def main():
        template = template_on(cache, clock)
        with trio.move_on_after(1.0):
            await template.execute_async(lambda context: "value", state=STATE)

    run_trio(main, clock=clock)
    assert clock.monotonic() == 6.0
    assert len(cache.late) == 1


def test_error_of_a_step_in_trio_is_in_no_group(clock):
    cache = Awaited(clock)

    async def away(*_, **__):
        raise CacheUnavailableError("away")

    cache.begin = away

    async def main():
        with pytest.raises(CacheUnavailableError, match="away"):
            await template_on(cache, clock).execute_async(fail, state=STATE)

    run_trio(main, clock=clock)


# -- where a step fails --------------------------------------------------------------------------


@pytest.mark.parametrize("error", [LeaseLostError, MisuseError])
def test_failure_that_a_taken_key_rejects_leaves_as_that_error(error):
    failure = ValueError("no price")
    template = made(3, cache=Down(lambda step, record: step == "fail", error))
    with pytest.raises(error) as caught:
        in_thread(template, Script(failure), state=STATE)
    assert type(caught.value) is error
    assert caught.value.__cause__ is failure


def test_success_whose_key_was_taken_over_is_a_lost_lease():
    template = made(3, cache=Down(lambda step, record: step == "succeed", LeaseLostError))
    with pytest.raises(LeaseLostError):
        in_thread(template, Script("value"), state=STATE)


def test_success_that_the_store_cannot_record_is_returned():
    template = made(3, cache=Down(lambda step, record: step == "succeed"))
    assert in_thread(template, Script("value"), state=STATE) == "value"


def test_failure_whose_key_was_taken_over_at_the_end_leaves_with_a_note():
    failure = ValueError("no price")
    ends = Down(lambda step, record: step == "fail" and record.worker is None, error=LeaseLostError)
    with pytest.raises(ValueError) as caught:
        in_thread(made(3, cache=ends), Script(failure), state=RetryState("key"))
    assert caught.value is failure
    assert "LeaseLostError" in caught.value.__notes__[-1]


@pytest.mark.parametrize("damage", ["abc", {"a": 1}, [[], {}]])
@pytest.mark.parametrize("field", ["policy_state", "backoff_state"])
def test_kept_state_that_cannot_be_used_is_a_typed_error(field, damage):
    template = made(
        policy=SimpleRetryPolicy(9) & TimeoutRetryPolicy(60),
        backoff=ExponentialBackoff(0.1),
        name="work",
    )
    callback = Script(ValueError("no price"))
    with pytest.raises(ValueError):
        in_thread(template, callback, state=RetryState("key"))
    cache = template.cache
    claim = cache.begin(KEY, worker="one")
    damaged = evolve(claim.record, version=claim.version + 1, worker=None, **{field: damage})
    cache.fail(claim, damaged)
    with pytest.raises(CacheUnavailableError, match="the state kept under 'key' cannot be used"):
        in_thread(template, callback, state=RetryState("key"))
    cache.forget(KEY)
    with pytest.raises(ValueError):
        in_thread(template, callback, state=RetryState("key"))
