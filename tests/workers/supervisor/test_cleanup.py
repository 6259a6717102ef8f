"""``shielded``: cleanups that a cancellation does not interrupt."""

import asyncio
import gc
from datetime import timedelta

import pytest
import trio

from retrytemplate import Deadline, DeadlineExceededError
from retrytemplate.workers import (
    TaskCleanupFailed,
    TaskStuck,
    TaskSupervisor,
    cancel_reason,
    shielded,
)
from tests.support.event_loops import LOOPS
from tests.support.supervised import (
    Broken,
    Listening,
    cancel_after_a_second,
    fails,
    succeeds,
    swallows,
)

# -- without a cancellation ----------------------------------------------------------------------


def test_cleanup_gets_its_arguments_and_its_result_is_dropped(loop):
    seen = []

    async def close(*args):
        seen.append(args)
        return "a result"

    async def main():
        return [
            await shielded(close, 1, 2, resource="r"),
            await shielded(close(3), resource="r", timeout=timedelta(seconds=1)),
        ]

    assert loop.run(main) == [True, True]
    assert seen == [(1, 2), (3,)]


@pytest.mark.statement("S1-92")
def test_value_of_shielded_work_never_reaches_the_caller(loop):
    async def main():
        return await shielded(succeeds, "a result", resource="r")

    assert loop.run(main) is True


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": 0},
        {"timeout": 60.1},
        {"timeout": float("inf")},
        {"timeout": "5"},
        {"resource": ""},
        {"operation": 5},
        {"on_failed": fails},
    ],
)
def test_invalid_settings_are_rejected_and_close_the_coroutine(loop, settings):
    async def main():
        work = succeeds()
        with pytest.raises((TypeError, ValueError), match=next(iter(settings))):
            await shielded(work, **{"resource": "r", **settings})
        assert work.cr_frame is None

    loop.run(main)


def test_plain_function_as_cleanup_is_rejected(loop):
    async def main():
        with pytest.raises(TypeError, match="returned no coroutine"):
            await shielded(dict, resource="r")

    loop.run(main)


# -- cancellations -------------------------------------------------------------------------------


@pytest.mark.statement("S1-90", "S1-94")
@pytest.mark.parametrize("cancels", [1, 2, 5])
def test_cleanup_completes_however_often_its_task_is_cancelled(clock, sleep, cancels):
    ends = []

    async def rollback():
        await sleep(3)
        ends.append(clock.monotonic())

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            await shielded(rollback, resource="connection")

    async def main():
        task = asyncio.create_task(work())
        for _ in range(cancels):
            await sleep(0.5)
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    LOOPS[0].run_virtually(main, clock)
    assert ends == [3.5]


@pytest.mark.statement("S1-90")
def test_cleanup_of_a_cancelled_task_completes(loop, clock, sleep):
    ends = []

    async def rollback():
        await sleep(3)
        ends.append((clock.monotonic(), cancel_reason()))

    async def work():
        try:
            await loop.forever()
        finally:
            assert await shielded(rollback, resource="connection")

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(work)
            await sleep(1)
            report = await supervisor.stop()
            assert (report.clean, task.cancelled) == (True, True)

    loop.run_virtually(main, clock)
    assert ends == [(4, "server_shutdown")]


@pytest.mark.statement("S1-90")
def test_all_cleanups_of_a_cancelled_task_complete(loop, clock, sleep):
    ends = []

    async def release(resource):
        await sleep(1)
        ends.append((resource, clock.monotonic()))

    async def work():
        try:
            await loop.forever()
        finally:
            for resource in ("lock", "connection"):
                await shielded(release, resource, resource=resource)

    cancel_after_a_second(loop, clock, work)
    assert ends == [("lock", 2), ("connection", 3)]


def test_cancellation_that_comes_during_the_cleanup_follows_it(loop, clock, sleep):
    steps = []

    async def work():
        steps.append("begin")
        await shielded(sleep, 3, resource="connection")
        steps.append("not reached")

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(work)
            await sleep(1)
            task.cancel()
            await task.wait()
            assert (task.cancelled, clock.monotonic()) == (True, 3)

    loop.run_virtually(main, clock)
    assert steps == ["begin"]


@pytest.mark.statement("S1-12", "S1-150")
@pytest.mark.parametrize("held", [False, True], ids=["waiting", "held"])
def test_lock_is_released_once_and_only_if_it_was_acquired(loop, clock, sleep, held):
    calls = []

    async def release():
        await sleep(1)
        calls.append("released")

    async def acquire():
        await sleep(1)
        calls.append("acquired")

    async def with_lock():
        await acquire()
        try:
            with_timeout = Deadline(3, clock=clock)
            async with with_timeout:
                await sleep(60)  # the remote call
        finally:
            await shielded(release, resource="lock")

    async def main():
        async with TaskSupervisor(on_failure=print, clock=clock) as supervisor:
            task = supervisor.start(with_lock)
            await sleep(10 if held else 0.5)
            task.cancel()
            await task.wait()
            assert task.cancelled is not held

    loop.run_virtually(main, clock)
    assert calls == (["acquired", "released"] if held else [])


def test_limit_around_a_cleanup_ends_after_it(loop, clock, sleep):
    async def main():
        with pytest.raises(DeadlineExceededError):
            async with Deadline(2, clock=clock):
                await shielded(sleep, 4, resource="connection")
        return clock.monotonic()

    assert loop.run_virtually(main, clock) == 4


# -- failures ------------------------------------------------------------------------------------


@pytest.mark.statement("S1-91", "S1-96")
def test_failed_cleanup_is_logged_counted_and_passed_to_on_failed(loop, clock, sleep, errors):
    failed, listening = [], Listening()

    async def work():
        done = await shielded(
            fails,
            resource="connection 4",
            operation="rollback",
            on_failed=lambda *args: failed.append(args),
        )
        return done

    async def main():
        async with TaskSupervisor("jobs", listeners=[listening], clock=clock) as supervisor:
            task = supervisor.start(work)
            await task.wait()
            assert supervisor.snapshot().cleanups_failed == 1
            return task.result()

    assert loop.run_virtually(main, clock) is False
    [(resource, error)] = failed
    assert (resource, type(error)) == ("connection 4", Broken)
    gc.collect()
    assert errors() == ["cleanup of connection 4 (rollback) failed: Broken: no answer"]
    event = listening.events[-1]
    assert event == TaskCleanupFailed(
        name="jobs",
        operation="rollback",
        task="cleanup of connection 4",
        resource="connection 4",
        error=error,
    )


@pytest.mark.statement("S1-91")
def test_cancellation_passes_after_a_failed_cleanup(loop, clock, sleep, errors):
    async def work():
        try:
            await loop.forever()
        finally:
            await shielded(fails, resource="connection")

    cancel_after_a_second(loop, clock, work)
    assert len(errors()) == 1


@pytest.mark.statement("S1-91")
def test_exception_of_the_work_passes_after_a_failed_cleanup(loop, errors):
    async def main():
        with pytest.raises(OSError, match="of the work"):
            try:
                raise OSError("of the work")
            finally:
                await shielded(fails, resource="connection")

    loop.run(main)
    assert len(errors()) == 1


def test_on_failed_that_raises_is_logged(loop, errors, caplog):
    def on_failed(resource, error):
        raise OSError("pager")

    async def main():
        return await shielded(fails, resource="connection", on_failed=on_failed)

    assert loop.run(main) is False
    assert len(caplog.records) == 2


@pytest.mark.statement("S1-90")
def test_cleanup_is_cancelled_at_its_limit(loop, clock, sleep, errors):
    failed, seen = [], []

    async def slow():
        try:
            await sleep(60)
        finally:
            seen.append(cancel_reason())

    async def main():
        done = await shielded(
            slow, timeout=2, resource="cache", on_failed=lambda *args: failed.append(args)
        )
        return done, clock.monotonic()

    assert loop.run_virtually(main, clock) == (False, 2)
    [(resource, error)] = failed
    assert (resource, type(error), str(error)) == ("cache", TimeoutError, "longer than 2 s")
    assert seen == ["deadline_exceeded"]
    assert errors() == ["cleanup of cache (cleanup) failed: TimeoutError: longer than 2 s"]


def test_error_of_a_cleanup_cancelled_at_its_limit_is_the_cause(loop, clock, sleep, errors):
    failed = []

    async def slow():
        try:
            await sleep(60)
        finally:
            raise Broken

    async def main():
        await shielded(slow, timeout=2, resource="cache", on_failed=lambda _, e: failed.append(e))

    loop.run_virtually(main, clock)
    assert isinstance(failed[0].__cause__, Broken)
    gc.collect()
    assert len(errors()) == 1


@pytest.mark.statement("S1-93")
def test_stuck_cleanup_is_handed_to_the_supervisor(loop, clock, sleep, errors):
    listening, until = Listening(), loop.event()

    async def work():
        started = clock.monotonic()
        assert not await shielded(swallows(until), timeout=2, resource="cache")
        return clock.monotonic() - started

    async def main():
        async with TaskSupervisor("jobs", listeners=[listening], clock=clock) as supervisor:
            task = supervisor.start(work)
            await task.wait()
            assert task.result() == 3
            assert (supervisor.snapshot().active, supervisor.snapshot().stuck) == (
                {"cleanup": 1},
                1,
            )
            report = await supervisor.stop(1)
            assert [each.name for each in report.stuck] == ["cleanup of cache"]
            until.set()
            await sleep(1)
            assert supervisor.snapshot().active == {}

    loop.run_virtually(main, clock)
    assert TaskStuck in map(type, listening.events)
    assert any(
        "has not ended 1 s after its cancellation (deadline_exceeded)" in e for e in errors()
    )


@pytest.mark.statement("S1-93")
def test_late_failure_of_a_stuck_cleanup_is_logged(clock, sleep, errors):
    until = []

    async def stuck():
        while not until:
            try:
                await sleep(1)
            except asyncio.CancelledError:
                continue
        raise Broken

    async def main():
        assert not await shielded(stuck, timeout=2, resource="cache")
        assert clock.monotonic() == 3
        gc.collect()
        until.append(True)
        await sleep(2)

    LOOPS[0].run_virtually(main, clock)
    gc.collect()
    assert "failed: Broken" in errors()[-1]
    assert len(errors()) == 3


def test_stuck_cleanup_in_trio_without_a_supervisor_is_reported_and_awaited(clock, sleep, errors):
    async def main():
        until = trio.Event()

        async def release():
            await sleep(30)
            until.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(release)
            assert not await shielded(swallows(until), timeout=2, resource="cache")
            return clock.monotonic()

    assert LOOPS[1].run_virtually(main, clock) == 30
    assert len(errors()) == 2


@pytest.mark.statement("S1-93")
def test_task_of_a_cleanup_survives_the_collector(clock, sleep):
    ended = []

    async def close():
        # Only this coroutine refers to the future, and only a timer refers to the list.
        future = asyncio.get_running_loop().create_future()
        futures.append(future)
        await future
        ended.append(True)

    futures = []

    async def main():
        asyncio.get_running_loop().call_later(3, lambda: futures.pop().set_result(None))
        cleanup = shielded(close, resource="cache")
        task = asyncio.create_task(cleanup)
        await sleep(1)
        task.cancel()
        gc.collect()
        await asyncio.wait([task])

    LOOPS[0].run_virtually(main, clock)
    assert ended == [True]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupt_in_a_cleanup_passes(loop, interrupt, errors):
    async def interrupts():
        raise interrupt

    async def main():
        await shielded(interrupts, resource="cache")

    with pytest.raises((interrupt, BaseExceptionGroup)) as caught:
        loop.run(main)
    assert isinstance(caught.value, interrupt) or caught.group_contains(interrupt)


def test_cleanup_that_raises_a_cancellation_has_failed(errors):
    async def waits_for_a_cancelled_future():
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async def main():
        return await shielded(waits_for_a_cancelled_future, resource="cache")

    assert asyncio.run(main()) is False
    [message] = errors()
    assert message.startswith("cleanup of cache (cleanup) failed: CancelledError: ")


# -- the end of the event loop -------------------------------------------------------------------


@pytest.mark.statement("S1-94")
def test_cleanup_completes_when_the_loop_ends_and_cancels_all_tasks(clock, sleep):
    ends = []

    async def rollback():
        await sleep(3)
        ends.append(clock.monotonic())

    async def work():
        await shielded(rollback, resource="connection")

    async def main():
        task = asyncio.create_task(work())
        await sleep(1)
        assert not task.done()

    LOOPS[0].run_virtually(main, clock)
    assert ends == [3]


def test_stuck_cleanup_is_cancelled_when_the_loop_ends(clock, sleep, errors):
    cancels = []

    async def stuck():
        while len(cancels) < 2:
            try:
                await sleep(60)
            except asyncio.CancelledError:
                cancels.append(clock.monotonic())

    async def main():
        assert not await shielded(stuck, timeout=2, resource="cache")

    LOOPS[0].run_virtually(main, clock)
    assert cancels == [2, 3]
