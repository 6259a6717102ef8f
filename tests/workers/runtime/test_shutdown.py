"""Stopping a runtime: order, limits, and what becomes of each message."""

import asyncio
import gc
import os
import signal
from contextlib import suppress
from contextvars import Context

import pytest

from retrytemplate.control import ProcessGate
from retrytemplate.errors import MisuseError
from retrytemplate.workers import (
    Cleanup,
    QueueAckFailed,
    Shutdown,
    WorkerRuntime,
    WorkerStopped,
    WorkerStopping,
)
from retrytemplate.workers.testing import MemorySource


def put(world, count=1):
    for number in range(count):
        world.queue.put(b"", id=f"m-{number}")


def ready(world):
    """The messages that another worker could receive now."""
    return [message.id for message in world.queue.take(MemorySource(world.queue), 100)]


async def sleep(message, context):
    await asyncio.sleep(15.0)


async def stopped_at(world, runtime, moment):
    task = asyncio.create_task(runtime.run())
    await asyncio.sleep(moment)
    runtime.stop()
    return await task


@pytest.mark.statement("S1-100")
def test_stop_releases_what_waits_and_awaits_what_runs(world):
    put(world, 5)

    async def handle(message, context):
        world.calls.append(message.id)
        await asyncio.sleep(5.0)

    runtime = world.runtime(handle, concurrency=2)
    report = world.run_main(stopped_at(world, runtime, 1.0))
    assert world.calls == ["m-0", "m-1"]
    assert (report.settled, report.released, report.cancelled) == (2, 2, 0)
    assert report.clean
    assert sorted(ready(world)) == ["m-2", "m-3", "m-4"]
    assert [event.step for event in world.of(WorkerStopping)] == ["intake", "grace", "cleanup"]
    assert [event.report["clean"] for event in world.of(WorkerStopped)] == [True]


async def fail(message, context):
    raise ConnectionError


@pytest.mark.parametrize("hangs", [False, True])
def test_messages_that_the_queue_does_not_take_back_are_not_counted_as_released(
    world, monkeypatch, hangs
):
    put(world, 3)
    limits = Shutdown(intake=0.1, grace=1.8, cancel=0.3, cleanup=0.5)
    runtime = world.runtime(fail, shutdown=limits, settle_timeout=5.0)

    async def release(messages):
        if hangs:
            await asyncio.sleep(3600.0)
        raise ConnectionError("unreachable")

    monkeypatch.setattr(runtime.source, "release", release)
    report = world.run_main(stopped_at(world, runtime, 1.0))
    assert report.released == 0
    assert report.elapsed <= limits.total
    assert sum(event.count for event in world.of(QueueAckFailed)) == 3


@pytest.mark.parametrize("late_by", [0.5, 1.5])
def test_messages_of_a_receive_that_ends_late_are_released(world, monkeypatch, late_by):
    put(world)
    runtime = world.runtime(sleep, shutdown=Shutdown(intake=5.0))
    receive, calls = runtime.source.receive, []

    async def receive_late(number, wait):
        calls.append(number)
        if len(calls) == 1:
            return await receive(number, wait)
        try:
            await asyncio.sleep(3600.0)
        except asyncio.CancelledError:
            await asyncio.sleep(late_by)
        world.queue.put(b"", id="late")
        return await receive(number, 0.0)

    monkeypatch.setattr(runtime.source, "receive", receive_late)
    report = world.run_main(stopped_at(world, runtime, 1.0))
    assert (report.settled, report.released) == (1, 1)
    assert ready(world) == ["late"]


def test_cleanups_without_time_of_their_own_have_a_second(world):
    put(world)
    done = []

    async def flush():
        await asyncio.sleep(0.5)
        done.append("metrics")

    limits = Shutdown(cleanup=0.0, cleanups=[Cleanup(flush, "metrics")])
    report = world.run_main(stopped_at(world, world.runtime(world.note, shutdown=limits), 1.0))
    assert (done, report.clean) == (["metrics"], True)


@pytest.mark.parametrize("cleanup", [5.0, 0.5])
def test_release_that_hangs_leaves_time_for_the_cleanups(world, monkeypatch, cleanup):
    put(world)

    async def fail_late(message, context):
        await asyncio.sleep(2.0)
        raise ConnectionError

    async def hang(messages):
        await asyncio.sleep(3600.0)

    done = []

    async def flush():
        await asyncio.sleep(0.1)
        done.append(1)

    limits = Shutdown(cleanup=cleanup, cleanups=[Cleanup(flush, "metrics")])
    runtime = world.runtime(fail_late, shutdown=limits)
    monkeypatch.setattr(runtime.source, "release", hang)
    report = world.run_main(stopped_at(world, runtime, 1.0))
    assert (report.cleanups_failed, report.released, done) == ((), 0, [1])
    assert [(event.reason, event.count) for event in world.of(QueueAckFailed)] == [("timeout", 1)]


@pytest.mark.statement("S1-71", "S1-105")
def test_attempts_beyond_the_grace_period_are_cancelled_and_released(world):
    put(world)
    seen = []

    async def handle(message, context):
        world.calls.append((context.attempt, context.key))
        try:
            await asyncio.sleep(25.0)
        except asyncio.CancelledError as exc:
            seen.append(str(exc.args[0]))
            raise

    async def main():
        first = await stopped_at(world, world.runtime(handle, attempt_timeout=60.0), 1.0)
        second = await world.run_async(world.runtime(handle, attempt_timeout=60.0))
        return first, second

    first, second = world.run_main(main())
    assert (first.cancelled, first.grace_expired, first.error, first.clean) == (
        *(1, True, None),
        False,
    )
    assert 18.0 <= first.elapsed <= 22.0
    # The same attempt and key again: the cancelled one is not counted.
    assert world.calls == [(1, "m-0")] * 2
    assert seen == ["server_shutdown"]
    assert second.clean


def test_stuck_attempt_delays_the_stop_by_the_limits_only(world):
    put(world)

    async def handle(message, context):
        while True:
            try:
                await asyncio.sleep(3600.0)
            except asyncio.CancelledError:
                continue

    runtime = world.runtime(handle, attempt_timeout=10_000.0)

    async def main():
        report = await stopped_at(world, runtime, 1.0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.get_coro().close()
        return report

    # asyncio.Runner would wait for the stuck task.
    from retrytemplate.testing import virtual_loop

    loop = virtual_loop(world.clock)
    report = loop.run_until_complete(main())
    loop.close()
    assert (report.stuck, report.clean) == (1, False)
    assert report.elapsed <= 27.0


def test_second_stop_ends_the_grace_period(world):
    put(world)

    runtime = world.runtime(sleep)

    async def main():
        task = asyncio.create_task(runtime.run())
        await asyncio.sleep(1.0)
        runtime.stop()
        await asyncio.sleep(2.0)
        runtime.stop()
        return await task

    report = world.run_main(main())
    assert (report.cancelled, report.elapsed < 5.0) == (1, True)


def test_cancelled_run_stops_at_once_and_raises(world):
    put(world)

    runtime = world.runtime(sleep)

    async def main():
        task = asyncio.create_task(runtime.run())
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    world.run_main(main())
    assert world.settled() == [("release", "cancelled")]
    assert world.clock.monotonic() < 3.0
    assert ready(world) == ["m-0"]


@pytest.mark.statement("S1-71")
def test_message_cancelled_before_its_handler_has_no_attempt(world):
    put(world, 1)

    async def handle(message, context):
        world.calls.append(context.attempt)

    gate = ProcessGate()

    async def main():
        entry = gate.exclusive()
        Context().run(entry.__enter__)  # as another task
        runtime = world.runtime(handle, gate=gate, shutdown=Shutdown(grace=0.0))
        report = await stopped_at(world, runtime, 1.0)
        entry.__exit__()
        await world.run_async(world.runtime(handle))
        return report

    report = world.run_main(main())
    assert report.cancelled == 1
    assert world.calls == [1]


@pytest.mark.statement("S1-71")
def test_message_stopped_between_effect_and_acknowledgement_is_acknowledged(world):
    put(world)

    async def handle(message, context):
        world.calls.append(message.id)

    runtime = world.runtime(handle, shutdown=Shutdown(grace=0.0))
    acknowledge = runtime.source.acknowledge

    async def slow(messages):
        runtime.stop()
        await asyncio.sleep(2.0)
        return await acknowledge(messages)

    runtime.source.acknowledge = slow
    report = world.run_main(world.run_async(runtime))
    assert world.settled() == [("acknowledge", "completed")]
    assert report.settled == 1


@pytest.mark.statement("S1-71")
def test_message_cancelled_while_its_success_is_recorded_is_acknowledged(world):
    put(world)

    async def handle(message, context):
        world.calls.append(message.id)

    cache = world.cache.connect()
    succeed = cache.succeed

    def slow(claim, **options):
        async def later():
            runtime.stop()
            await asyncio.sleep(2.0)
            succeed(claim, **options)

        return later()

    cache.succeed = slow
    runtime = world.runtime(handle, cache=cache, shutdown=Shutdown(grace=0.0))
    world.run_main(world.run_async(runtime))
    assert world.settled() == [("acknowledge", "completed")]


def test_failed_attempt_of_a_stopping_runtime_is_counted_and_released(world):
    put(world)

    async def handle(message, context):
        world.calls.append((context.attempt, world.clock.monotonic()))
        await asyncio.sleep(5.0)
        if context.attempt == 1:
            raise ConnectionError("unreachable")

    async def main():
        await stopped_at(world, world.runtime(handle), 1.0)
        await world.run_async(world.runtime(handle))

    world.run_main(main())
    assert world.calls == [(1, 0.0), (2, 15.0)]


@pytest.mark.statement("S1-103")
def test_stopping_runtime_waits_for_the_receive_in_progress(world):
    async def handle(message, context):
        world.calls.append(message.id)

    async def main():
        runtime = world.runtime(handle, receive_wait=0.8)
        task = asyncio.create_task(runtime.run())
        await asyncio.sleep(0.1)
        runtime.stop()
        await asyncio.sleep(0.1)
        world.queue.put(b"", id="late")
        return await task

    report = world.run_main(main())
    assert (report.released, world.calls) == (1, [])
    assert ready(world) == ["late"]


@pytest.mark.statement("S1-104")
def test_message_received_in_the_tick_of_the_stop_is_not_lost(world):
    async def handle(message, context):
        world.calls.append(message.id)

    async def main():
        runtime = world.runtime(handle, receive_wait=60.0)
        task = asyncio.create_task(runtime.run())
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, world.queue.put, b"")  # the limit of the intake ends then, too
        runtime.stop()
        return await task

    world.run_main(main())
    assert len(ready(world)) == 1


@pytest.mark.statement("S1-102")
def test_cleanups_run_in_order_each_within_its_limit(world):
    async def hang():
        world.calls.append("hang")
        await asyncio.sleep(60.0)

    def fail():
        world.calls.append("fail")
        raise OSError("gone")

    async def handle(message, context):
        pass

    cleanups = (
        Cleanup(hang, "client", timeout=2.0),
        Cleanup(fail, "file"),
        Cleanup(lambda: world.calls.append("last"), "log"),
    )
    runtime = world.runtime(handle, shutdown=Shutdown(cleanups=cleanups))
    report = world.run_main(world.run_async(runtime, until=1.0))
    assert world.calls == ["hang", "fail", "last"]
    assert report.cleanups_failed == ("client", "file")
    assert not report.clean


def test_runtime_whose_attempts_are_all_stuck_stops_with_an_error(world):
    put(world, 2)

    async def handle(message, context):
        while world.clock.monotonic() < 60.0:
            try:
                await asyncio.sleep(60.0)
            except asyncio.CancelledError:
                continue

    runtime = world.runtime(handle, concurrency=2, attempt_timeout=1.0)
    report = world.run_main(world.run_async(runtime, until=30.0))
    assert "ignore their cancellation" in str(report.error)


@pytest.mark.statement("S1-109")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_runtime_and_handlers_are_restored(number):
    before = signal.getsignal(number)
    source = MemorySource()
    source.queue.put(b"")

    async def handle(message, context):
        os.kill(os.getpid(), number)

    async def main():
        runtime = WorkerRuntime(source, handle, name="billing", gate=ProcessGate())
        async with runtime.signals():
            return await runtime.run()

    report = asyncio.run(main())
    assert (source.queue.acknowledged, report.clean) == (1, True)
    assert signal.getsignal(number) is before


def test_running_runtime_cannot_be_run_again(world):
    async def handle(message, context):
        pass

    async def main():
        runtime = world.runtime(handle)
        task = asyncio.create_task(runtime.run())
        await asyncio.sleep(0.1)
        with pytest.raises(MisuseError, match="the runtime 'billing' runs already"):
            await runtime.run()
        runtime.stop()
        await task

    world.run_main(main())


@pytest.mark.parametrize("name", ["intake", "grace", "cancel", "cleanup", "orchestrator"])
def test_wrong_limit_is_named(name):
    with pytest.raises(ValueError, match=name):
        Shutdown(**{name: -1.0})


class Opening:
    """A queue that takes its time to open."""

    def __init__(self, runtime, seconds, error=None):
        self.steps = []
        self._seconds, self._error = seconds, error
        self._close = runtime.source.close
        runtime.source.open, runtime.source.close = self.open, self.close

    async def open(self):
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.steps.append("cancelled")
            raise
        self.steps.append("opened")
        if self._error is not None:
            raise self._error

    async def close(self):
        self.steps.append("closed")
        await self._close()


@pytest.mark.parametrize(
    ("seconds", "steps"), [(1.5, ["opened", "closed"]), (3600.0, ["cancelled", "closed"])]
)
def test_stop_while_the_queue_is_opened_is_bounded(world, seconds, steps):
    put(world)
    runtime = world.runtime(world.note)
    opening = Opening(runtime, seconds)
    report = world.run_main(stopped_at(world, runtime, 1.0))
    assert opening.steps == steps
    assert report.elapsed <= 1.0
    assert (report.clean, world.calls, ready(world)) == (True, [], ["m-0"])


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.5])  # before the stop, with it, and after it
@pytest.mark.parametrize("error", [ConnectionError, TimeoutError])
def test_queue_that_cannot_be_opened_raises_its_error(world, seconds, error):
    runtime = world.runtime(world.note)
    opening = Opening(runtime, seconds, error("unreachable"))
    with pytest.raises(error, match="unreachable"):
        world.run_main(stopped_at(world, runtime, 1.0))
    assert opening.steps == ["opened"]


def test_opening_that_ignores_its_cancellation_is_followed_by_no_further_step(world, monkeypatch):
    runtime = world.runtime(world.note)
    asked = []

    async def open_late():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600.0)

    async def shares_database(cache):
        asked.append(cache)

    monkeypatch.setattr(runtime.source, "open", open_late)
    monkeypatch.setattr(runtime.source, "shares_database", shares_database, raising=False)
    report = world.run_main(stopped_at(world, runtime, 1.0))
    assert (report.clean, asked) == (True, [])


def test_second_stop_cancels_the_opening_at_once(world):
    runtime = world.runtime(world.note, shutdown=Shutdown(intake=60.0))
    opening = Opening(runtime, 3600.0)

    async def main():
        task = asyncio.create_task(runtime.run())
        for _ in range(2):
            await asyncio.sleep(1.0)
            runtime.stop()
        return await task

    assert world.run_main(main()).clean
    assert opening.steps == ["cancelled", "closed"]
    assert world.clock.monotonic() < 3.0


def test_error_of_an_opening_that_was_cancelled_is_not_reported_by_the_loop(world, monkeypatch):
    runtime = world.runtime(world.note)
    reported = []

    async def open_and_fail():
        try:
            await asyncio.sleep(3600.0)
        except asyncio.CancelledError:
            raise ConnectionError("unreachable") from None

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await runtime.run()
        gc.collect()

    monkeypatch.setattr(runtime.source, "open", open_and_fail)
    world.run_main(main())
    assert reported == []


def test_cancelled_run_cancels_the_opening_of_its_queue(world):
    runtime = world.runtime(world.note)
    opening = Opening(runtime, 3600.0)

    async def main():
        async with asyncio.timeout(1.0):
            await runtime.run()

    with pytest.raises(TimeoutError):
        world.run_main(main())
    assert opening.steps == ["cancelled", "closed"]
    assert world.clock.monotonic() < 3.0


def test_settlement_beyond_the_grace_period_is_neither_cancelled_nor_stuck(
    world, monkeypatch, caplog
):
    put(world)
    runtime = world.runtime(world.note, shutdown=Shutdown(grace=2.0), settle_timeout=60.0)

    async def acknowledge(messages):
        await asyncio.sleep(3600.0)

    monkeypatch.setattr(runtime.source, "acknowledge", acknowledge)
    report = world.run_main(stopped_at(world, runtime, 1.0))
    assert (report.cancelled, report.stuck, report.clean) == (0, 0, False)
    assert "key=m-0: the message is not settled" in caplog.text
    assert "ignores its cancellation" not in caplog.text
