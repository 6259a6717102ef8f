"""``TaskSupervisor``: starts, limits, keys, failures and the stop, in asyncio and trio."""

import asyncio
import concurrent.futures
import gc
import logging
import os
import signal
import threading
import warnings
from contextlib import nullcontext
from contextvars import ContextVar
from datetime import timedelta

import pytest
import trio

from retrytemplate import CancelReason, MisuseError, Rejected
from retrytemplate.control import CallRejected
from retrytemplate.workers import (
    SupervisorStoppedError,
    TaskCancelled,
    TaskFailed,
    TaskInProgressError,
    TaskLimitError,
    TaskStarted,
    TaskStuck,
    TaskSupervisor,
    cancel_reason,
    shielded,
)
from tests.support.event_loops import LOOPS
from tests.support.gc_probe import no_collector
from tests.support.supervised import (
    Broken,
    Listening,
    fails,
    notes_reason,
    succeeds,
    swallows,
)

REQUEST = ContextVar("request", default=None)


# -- starts --------------------------------------------------------------------------------------


@pytest.mark.statement("S1-01", "S1-106")
def test_task_with_arguments_returns_its_result(loop, clock):
    async def add(one, *, other):
        return one + other

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(add, 4, other=5, name="sum", key="k")
            assert (task.done, task.name, task.key) == (False, "sum", "k")
            await task.wait()
            assert (task.done, task.cancelled, task.exception()) == (True, False, None)
            return task.result()

    assert loop.run_virtually(main, clock) == 9


def test_task_of_a_coroutine_object_runs(loop, clock):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(succeeds(3))
            await task.wait()
            return task.result(), task.operation

    assert loop.run_virtually(main, clock) == (3, f"{succeeds.__module__}.succeeds")


def test_operation_is_the_qualified_name_of_the_function(loop, clock):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            return supervisor.start(succeeds).operation

    assert loop.run_virtually(main, clock) == f"{succeeds.__module__}.succeeds"


@pytest.mark.statement("S1-04")
def test_task_sees_the_context_of_the_start_and_not_later_changes(loop, clock):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            REQUEST.set("r-1")

            async def work():
                seen = REQUEST.get()
                REQUEST.set("of the task")
                return seen

            task = supervisor.start(work)
            REQUEST.set("r-2")
            await task.wait()
            return task.result(), REQUEST.get()

    assert loop.run_virtually(main, clock) == ("r-1", "r-2")


@pytest.mark.statement("S1-02")
def test_task_without_other_references_survives_the_collector(clock):
    ended = []

    async def work():
        # Only this coroutine refers to the future, and only the future to the task.
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(5, lambda: futures.pop().set_result(None))
        futures.append(future)
        await future
        ended.append(True)

    futures = []

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            supervisor.start(work)
            await clock.sleep_async(1)
            gc.collect()
            await clock.sleep_async(10)
            assert supervisor.snapshot().active == {}

    LOOPS[0].run_virtually(main, clock)
    assert ended == [True]


@pytest.mark.parametrize("work", [5, None, "text", object()])
def test_work_of_another_type_is_rejected(loop, clock, work):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            with pytest.raises(TypeError, match="work must be a coroutine function or a coroutine"):
                supervisor.start(work)

    loop.run_virtually(main, clock)


def test_function_that_returns_no_coroutine_is_rejected(loop, clock):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            with pytest.raises(TypeError, match="returned no coroutine"):
                supervisor.start(int)
            assert supervisor.snapshot().started == 0

    loop.run_virtually(main, clock)


def test_arguments_for_a_coroutine_object_are_rejected_and_close_it(loop, clock):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            work = succeeds()
            with pytest.raises(TypeError, match="to get arguments"):
                supervisor.start(work, 5)
            assert work.cr_frame is None

    loop.run_virtually(main, clock)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": ""}, "name must be"),
        ({"name": 5}, "name must be"),
        ({"on_duplicate": "wait"}, "on_duplicate must be 'reject' or 'join', got 'wait'"),
        ({"key": []}, "unhashable"),
    ],
)
def test_invalid_arguments_are_rejected_and_close_the_coroutine(loop, clock, arguments, text):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            work = succeeds()
            with pytest.raises((TypeError, ValueError), match=text):
                supervisor.start(work, **arguments)
            assert work.cr_frame is None

    loop.run_virtually(main, clock)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": " "},
        {"limit": 0},
        {"limit": 1.5},
        {"stop_timeout": -1},
        {"stop_timeout": float("inf")},
        {"on_failure": fails},
        {"listeners": [5]},
        {"clock": 5},
    ],
)
def test_invalid_settings_are_rejected(settings):
    with pytest.raises((TypeError, ValueError), match=next(iter(settings))):
        TaskSupervisor(**settings)


def test_start_outside_of_the_block_is_rejected():
    work = succeeds()
    with pytest.raises(MisuseError, match="was not entered"):
        TaskSupervisor().start(work)
    assert work.cr_frame is None


def test_second_entry_is_rejected(loop, clock):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            with pytest.raises(MisuseError, match="entered before"):
                async with supervisor:
                    pass

    loop.run_virtually(main, clock)


@pytest.mark.parametrize("inside", [False, True], ids=["thread", "loop"])
def test_start_in_another_thread_is_rejected(loop, clock, inside):
    errors = []

    def attempt(supervisor):
        async def other():
            supervisor.start(succeeds)

        try:
            loop.run(other) if inside else supervisor.start(succeeds)
        except MisuseError as error:
            errors.append(str(error))

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            thread = threading.Thread(target=attempt, args=[supervisor])
            thread.start()
            thread.join()

    loop.run_virtually(main, clock)
    assert len(errors) == 1
    assert "another event loop or thread" in errors[0]


# -- limits and keys -----------------------------------------------------------------------------


@pytest.mark.statement("S1-05")
def test_start_above_the_limit_is_rejected_and_closes_the_coroutine(loop, clock):
    async def main():
        listening = Listening()
        async with TaskSupervisor("jobs", limit=1, listeners=[listening], clock=clock) as jobs:
            jobs.start(loop.forever)
            work = succeeds()
            with pytest.raises(TaskLimitError, match="'jobs' runs 1 task") as caught:
                jobs.start(work)
            assert isinstance(caught.value, Rejected)
            assert (caught.value.name, work.cr_frame) == ("jobs", None)
            assert listening.kinds() == [TaskStarted, CallRejected]

    loop.run_virtually(main, clock)


@pytest.mark.statement("S1-05")
def test_second_task_of_a_key_is_rejected_until_the_first_has_ended(loop, clock, sleep):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            supervisor.start(sleep, 1, key="report")
            work = succeeds()
            with pytest.raises(TaskInProgressError) as caught:
                supervisor.start(work, key="report")
            assert (caught.value.key, work.cr_frame) == ("report", None)
            await sleep(2)
            supervisor.start(succeeds, key="report")

    loop.run_virtually(main, clock)


@pytest.mark.statement("S1-05")
def test_second_task_of_a_key_joins_the_first(loop, clock):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            first = supervisor.start(loop.forever, key="report")
            work = succeeds()
            assert supervisor.start(work, key="report", on_duplicate="join") is first
            assert work.cr_frame is None
            assert supervisor.snapshot().started == 1

    loop.run_virtually(main, clock)


def test_start_when_free_serves_callers_in_their_order(loop, clock, sleep):
    started = []

    async def main():
        async with TaskSupervisor(limit=2, clock=clock) as supervisor:

            async def caller(number):
                await sleep(number / 10)
                await supervisor.start_when_free(sleep, 5)
                started.append((number, clock.monotonic()))

            async def intruder():
                await sleep(5)
                for _ in range(5):
                    with pytest.raises(TaskLimitError):
                        supervisor.start(sleep, 5)
                    await loop.checkpoint()

            await loop.together(*(lambda n=n: caller(n) for n in range(5)), intruder)

    loop.run_virtually(main, clock)
    assert [number for number, _ in started] == [0, 1, 2, 3, 4]
    assert [round(moment, 1) for _, moment in started] == [0, 0.1, 5, 5.1, 10]


def test_cancelled_start_when_free_leaves_its_place_to_the_next(loop, clock, sleep):
    started = []

    async def main():
        async with TaskSupervisor(limit=1, clock=clock) as supervisor:
            supervisor.start(sleep, 5)
            work, waiting = succeeds(), []

            async def first():
                waiting.append(True)
                await supervisor.start_when_free(work)

            async def second():
                await loop.checkpoint()
                await supervisor.start_when_free(succeeds)
                started.append(clock.monotonic())

            await loop.together(lambda: loop.cancelled(first, lambda: waiting), second)
            assert work.cr_frame is None

    loop.run_virtually(main, clock)
    assert started == [5]


def test_place_handed_to_a_cancelled_caller_goes_to_the_next(clock, sleep):
    async def main():
        async with TaskSupervisor(limit=1, clock=clock) as supervisor:
            running = supervisor.start(asyncio.Event().wait)
            first, second = (
                asyncio.create_task(supervisor.start_when_free(succeeds)) for _ in range(2)
            )
            await sleep(1)
            running.cancel()
            await running.wait()  # its end has reserved the place for the first caller
            first.cancel()
            await sleep(1)
            assert (first.cancelled(), second.done()) == (True, True)

    LOOPS[0].run_virtually(main, clock)


def test_start_when_free_ends_when_the_supervisor_stops(loop, clock):
    async def main():
        async with TaskSupervisor(limit=1, clock=clock) as supervisor:
            supervisor.start(loop.forever)
            work = succeeds()

            async def waits():
                with pytest.raises(SupervisorStoppedError):
                    await supervisor.start_when_free(work)

            async def stops():
                await loop.checkpoint()
                await supervisor.stop()

            await loop.together(waits, stops)
            assert work.cr_frame is None

    loop.run_virtually(main, clock)


def test_start_when_free_of_an_active_key_does_not_wait(loop, clock):
    async def main():
        async with TaskSupervisor(limit=1, clock=clock) as supervisor:
            first = supervisor.start(loop.forever, key="k")
            joined = await supervisor.start_when_free(succeeds, key="k", on_duplicate="join")
            assert joined is first

    loop.run_virtually(main, clock)


# -- failures ------------------------------------------------------------------------------------


@pytest.mark.statement("S1-01", "S1-106")
def test_unobserved_failure_is_logged_once_with_its_traceback(loop, clock, sleep, caplog):
    async def main():
        async with TaskSupervisor("jobs", clock=clock) as supervisor:
            with no_collector():
                supervisor.start(fails)
                await sleep(1)
                assert len(caplog.records) == 1

    loop.run_virtually(main, clock)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert (
        record.getMessage() == f"task jobs-1 ({fails.__module__}.fails) failed: Broken: no answer"
    )
    assert record.exc_info[0] is Broken


def test_failure_behind_a_kept_handle_is_logged_at_the_stop(loop, clock, sleep, errors):
    async def main():
        async with TaskSupervisor("jobs", clock=clock) as supervisor:
            task = supervisor.start(fails)
            await sleep(1)
            assert errors() == []
        return task

    task = loop.run_virtually(main, clock)
    del task
    assert len(errors()) == 1


def test_observed_failure_is_not_logged(loop, clock, errors):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(fails)
            await task.wait()
            with pytest.raises(Broken) as caught:
                task.result()
            assert task.exception() is caught.value

    loop.run_virtually(main, clock)
    gc.collect()
    assert errors() == []


def test_on_failure_gets_the_task_and_its_failure_instead_of_the_log(loop, clock, sleep, errors):
    failures = []

    def on_failure(task, error):
        failures.append((task.name, type(error)))

    async def main():
        async with TaskSupervisor("jobs", on_failure=on_failure, clock=clock) as supervisor:
            supervisor.start(fails)
            await sleep(1)

    loop.run_virtually(main, clock)
    assert failures == [("jobs-1", Broken)]
    assert errors() == []


def test_failure_in_cyclic_garbage_is_logged_once(loop, clock, sleep, errors):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            cycle = [supervisor.start(fails)]
            cycle.append(cycle)
            await sleep(1)
            del cycle
            gc.collect()
            assert len(errors()) == 1

    loop.run_virtually(main, clock)
    assert len(errors()) == 1


def test_failure_is_logged_when_on_failure_raises(loop, clock, sleep, errors):
    def on_failure(task, error):
        raise OSError("pager")

    async def main():
        async with TaskSupervisor("jobs", on_failure=on_failure, clock=clock) as supervisor:
            supervisor.start(fails)
            await sleep(1)

    loop.run_virtually(main, clock)
    assert len(errors()) == 2


def test_failure_does_not_cancel_other_tasks_or_the_block(loop, clock, sleep, errors):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            other = supervisor.start(sleep, 2)
            supervisor.start(fails)
            await other.wait()
            assert not other.cancelled

    loop.run_virtually(main, clock)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupt_in_a_task_ends_the_event_loop(loop, clock, sleep, interrupt, errors):
    ends = []

    async def interrupts():
        raise interrupt

    async def other():
        try:
            await sleep(60)
        finally:
            ends.append(True)

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            supervisor.start(other)
            await sleep(1)
            supervisor.start(interrupts)
            await sleep(60)

    with pytest.raises((interrupt, BaseExceptionGroup)) as caught:
        loop.run_virtually(main, clock)
    if loop is LOOPS[1]:
        assert caught.group_contains(interrupt)
    assert (ends, errors()) == ([True], [])


@pytest.mark.statement("S1-101")
def test_keyboard_interrupt_of_the_block_awaits_its_tasks(loop):
    ends = []

    async def work():
        try:
            await loop.forever()
        finally:
            await shielded(loop.checkpoint, resource="connection")
            ends.append(cancel_reason())

    async def main():
        async with TaskSupervisor() as supervisor:
            supervisor.start(work)
            for _ in range(3):
                await loop.checkpoint()
            signal.raise_signal(signal.SIGINT)
            await loop.forever()

    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)):
        loop.run(main)
    assert ends == ["server_shutdown"]


def test_supervisor_copied_by_a_fork_starts_no_task():
    async def main():
        async with TaskSupervisor() as supervisor:
            with warnings.catch_warnings(action="ignore"):  # of threads of the test runner
                child = os.fork()
            if not child:
                try:
                    supervisor.start(succeeds)
                except MisuseError:
                    os._exit(17)
                finally:
                    os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17

    asyncio.run(main())


@pytest.mark.parametrize("work", [fails, succeeds])
def test_ended_task_leaves_no_cycle(loop, clock, work, errors):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:

            async def one():
                await supervisor.start(work).wait()

            await one()  # the first use of a loop leaves objects of its own
            gc.collect()
            with no_collector():
                for _ in range(20):
                    await one()
                await loop.checkpoint()
                return gc.collect()

    assert loop.run_virtually(main, clock) < 20


# -- cancellation --------------------------------------------------------------------------------


def test_cancelled_task_has_neither_a_result_nor_an_exception(loop, clock):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(loop.forever)
            for read in (task.result, task.exception):
                with pytest.raises(MisuseError, match="has not ended"):
                    read()
            task.cancel()
            await task.wait()
            assert (task.done, task.cancelled) == (True, True)
            for read in (task.result, task.exception):
                with pytest.raises(concurrent.futures.CancelledError):
                    read()
            task.cancel()  # of a task that has ended: no effect

    loop.run_virtually(main, clock)


def test_task_cancelled_before_its_first_step_does_not_run(loop, clock):
    ran = []

    async def work():
        ran.append(True)

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(work)
            task.cancel()
            await task.wait()
            assert task.cancelled

    loop.run_virtually(main, clock)
    assert ran == []


@pytest.mark.statement("S1-106")
def test_cancelled_task_is_not_logged(loop, clock, errors):
    async def main():
        listening = Listening()
        async with TaskSupervisor("jobs", listeners=[listening], clock=clock) as supervisor:
            task = supervisor.start(loop.forever, name="t")
            await clock.sleep_async(1)
            task.cancel(CancelReason.CLIENT_DISCONNECTED)
            await task.wait()
        _, event = listening.events
        assert (type(event), event.name, event.task) == (TaskCancelled, "jobs", "t")
        assert (event.reason, event.elapsed) == ("client_disconnected", 1)

    loop.run_virtually(main, clock)
    gc.collect()
    assert errors() == []


def test_cancelled_waiter_does_not_cancel_the_task(loop, clock, sleep):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(sleep, 5)
            waiting = []

            async def waiter():
                waiting.append(True)
                await task.wait()

            await loop.cancelled(waiter, lambda: waiting)
            assert not task.done
            await task.wait()
            assert not task.cancelled

    loop.run_virtually(main, clock)


@pytest.mark.statement("S1-11", "S1-151")
def test_worker_with_except_exception_ends_when_cancelled(loop, clock, sleep):
    async def worker():
        while True:
            try:
                await sleep(1)
                raise Broken
            except Exception:
                continue

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(worker)
            await sleep(3.5)
            task.cancel()
            await task.wait()
            assert task.cancelled

    loop.run_virtually(main, clock)


def test_cancellation_of_the_block_cancels_the_tasks_and_passes(loop, clock, sleep):
    reasons = []

    async def block():
        async with TaskSupervisor(clock=clock) as supervisor:
            supervisor.start(notes_reason(loop, reasons))
            await loop.forever()

    async def main():
        async with TaskSupervisor(clock=clock) as outer:
            task = outer.start(block)
            await sleep(1)
            task.cancel(CancelReason.CLIENT_DISCONNECTED)
            await task.wait()
            assert task.cancelled

    loop.run_virtually(main, clock)
    assert reasons == ["client_disconnected"]


def test_plain_cancel_of_the_block_is_a_shutdown_for_its_tasks(loop, clock, sleep):
    reasons, started = [], []

    async def work():
        started.append(True)
        try:
            await loop.forever()
        finally:
            reasons.append(cancel_reason())

    async def block():
        async with TaskSupervisor(clock=clock) as supervisor:
            supervisor.start(work)
            await loop.forever()

    async def main():
        await loop.cancelled(block, lambda: started)

    loop.run_virtually(main, clock)
    assert reasons == ["server_shutdown"]


def test_handle_is_not_used_in_another_loop(loop, clock):
    errors = []

    def use(handle):
        for use in (handle.wait, succeeds):
            try:
                loop.run(use) if use is handle.wait else handle.cancel()
            except MisuseError as error:
                errors.append(str(error))

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            thread = threading.Thread(target=use, args=[supervisor.start(loop.forever)])
            thread.start()
            thread.join()

    loop.run_virtually(main, clock)
    assert len(errors) == 2
    assert all("another event loop or thread" in text for text in errors)


# -- stop ----------------------------------------------------------------------------------------


@pytest.mark.statement("S1-101", "S1-106")
def test_stop_cancels_and_awaits_all_tasks(loop, clock, sleep):
    ends = []

    async def work(cleanup):
        try:
            await loop.forever()
        finally:
            with trio.CancelScope(shield=True) if loop is LOOPS[1] else nullcontext():
                await sleep(cleanup)
            ends.append(cancel_reason())

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            for cleanup in (1, 2, 3):
                supervisor.start(work, cleanup)
            await sleep(1)
            report = await supervisor.stop()
            assert (report.ended, report.failed, report.stuck) == (3, (), ())
            assert (report.elapsed, report.clean) == (3, True)
            assert supervisor.snapshot().active == {}

    loop.run_virtually(main, clock)
    assert ends == ["server_shutdown"] * 3


@pytest.mark.statement("S1-101")
def test_leaving_the_block_stops_the_tasks(loop, clock):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(loop.forever)
        assert task.cancelled

    loop.run_virtually(main, clock)


def test_exception_of_the_block_stops_the_tasks_and_passes(loop, clock):
    reasons = []

    async def main():
        error = Broken()
        with pytest.raises(Broken) as caught:
            async with TaskSupervisor(clock=clock) as supervisor:
                supervisor.start(notes_reason(loop, reasons))
                await clock.sleep_async(1)
                raise error
        assert caught.value is error

    loop.run_virtually(main, clock)
    assert reasons == ["parent_failed"]


@pytest.mark.statement("S1-107")
def test_start_after_stop_is_rejected_and_closes_the_coroutine(loop, clock):
    async def main():
        async with TaskSupervisor("jobs", clock=clock) as supervisor:
            await supervisor.stop()
            work = succeeds()
            with pytest.raises(SupervisorStoppedError, match="'jobs' is stopping or has stopped"):
                supervisor.start(work)
            assert work.cr_frame is None
        with pytest.raises(SupervisorStoppedError):
            supervisor.start(succeeds)

    loop.run_virtually(main, clock)


def test_failure_during_the_stop_is_reported_and_logged(loop, clock, errors):
    async def work():
        try:
            await loop.forever()
        finally:
            raise Broken("rollback")

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(work)
            await clock.sleep_async(1)
            report = await supervisor.stop()
            assert (report.ended, report.failed, report.clean) == (1, (task,), False)

    loop.run_virtually(main, clock)
    assert len(errors()) == 1


@pytest.mark.statement("S1-106")
def test_task_that_swallows_its_cancel_is_reported_at_the_limit(loop, clock, sleep, errors):
    async def main():
        listening, until = Listening(), loop.event()
        async with TaskSupervisor("jobs", listeners=[listening], clock=clock) as supervisor:
            task = supervisor.start(swallows(until))
            other = supervisor.start(loop.forever)
            await sleep(1)
            report = await supervisor.stop(timedelta(seconds=5))
            assert clock.monotonic() == 6
            assert (report.ended, report.stuck, report.elapsed) == (1, (task,), 5)
            assert (report.clean, other.cancelled) == (False, True)
            assert supervisor.snapshot().stuck == 1
            stuck = listening.events[-1]
            assert (type(stuck), stuck.reason, stuck.elapsed) == (TaskStuck, "server_shutdown", 5)
            assert "in work" in stuck.stack
            assert "await until.wait()" in stuck.stack
            until.set()
        await task.wait()

    loop.run_virtually(main, clock)
    [message] = errors()
    assert message.startswith("task jobs-1 (")
    assert "has not ended 5 s after its cancellation (server_shutdown); stack:\n" in message


@pytest.mark.statement("S1-106")
def test_block_of_asyncio_ends_at_the_limit_and_that_of_trio_with_the_task(loop, clock, errors):
    async def main():
        until = loop.event()

        async def release():
            await clock.sleep_async(30)
            until.set()

        async def block():
            async with TaskSupervisor(stop_timeout=4, clock=clock) as supervisor:
                task = supervisor.start(swallows(until))
                await clock.sleep_async(1)
            left.append(clock.monotonic())
            await task.wait()

        left = []
        await loop.together(release, block)
        return left

    assert loop.run_virtually(main, clock) == [5 if loop is LOOPS[0] else 30]
    assert len(errors()) == 1


def test_second_stop_cancels_a_stuck_task_once_more(clock, errors):
    cancels = []

    async def work():
        while len(cancels) < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancels.append(clock.monotonic())

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            supervisor.start(work)
            await clock.sleep_async(1)
            assert not (await supervisor.stop(0.5)).clean
            assert not (await supervisor.stop(0.6)).clean  # cancelled 0.5 s ago: not yet stuck
            assert (await supervisor.stop(1)).clean

    LOOPS[0].run_virtually(main, clock)
    assert cancels == [1, pytest.approx(2.1)]


def test_stop_completes_when_its_caller_is_cancelled(loop, clock, sleep):
    async def work():
        try:
            await loop.forever()
        finally:
            with trio.CancelScope(shield=True) if loop is LOOPS[1] else nullcontext():
                await sleep(5)

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(work)
            await sleep(1)
            stopping = []

            async def stops():
                stopping.append(True)
                await supervisor.stop()

            await loop.cancelled(stops, lambda: stopping)
            assert (task.cancelled, clock.monotonic()) == (True, 6)

    loop.run_virtually(main, clock)


def test_stop_in_a_task_of_the_supervisor_is_rejected(loop, clock):
    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(supervisor.stop)
            await task.wait()
            assert isinstance(task.exception(), MisuseError)

    loop.run_virtually(main, clock)


def test_stop_outside_of_the_block_is_rejected(loop):
    with pytest.raises(MisuseError, match="was not entered"):
        loop.run(TaskSupervisor().stop)


# -- snapshot and events -------------------------------------------------------------------------


def test_snapshot_counts_tasks_by_operation(loop, clock, sleep, errors):
    async def main():
        async with TaskSupervisor("jobs", clock=clock) as supervisor:
            assert supervisor.snapshot().oldest is None
            supervisor.start(sleep, 60)
            await sleep(2)
            supervisor.start(sleep, 60)
            supervisor.start(loop.forever).cancel()
            supervisor.start(fails)
            supervisor.start(succeeds)
            await sleep(1)
            shot = supervisor.snapshot()
            assert sorted(shot.active.values()) == [2]
            assert next(iter(shot.active)).endswith("VirtualClock.sleep_async")
            assert (shot.name, shot.oldest, shot.started) == ("jobs", 3, 5)
            assert (shot.failed, shot.cancelled, shot.stuck) == (1, 1, 0)

    loop.run_virtually(main, clock)


def test_listener_gets_the_start_and_the_failure(loop, clock, sleep, errors):
    async def main():
        listening = Listening()
        async with TaskSupervisor("jobs", listeners=[listening], clock=clock) as supervisor:
            supervisor.start(fails, name="one")
            await sleep(1)
        started, failed = listening.events
        assert started == TaskStarted(
            name="jobs", operation=f"{fails.__module__}.fails", task="one"
        )
        assert (type(failed), failed.task, failed.elapsed) == (TaskFailed, "one", 0)
        assert isinstance(failed.error, Broken)

    loop.run_virtually(main, clock)


def test_closed_coroutine_of_a_block_cancels_its_tasks():
    cancelled = []

    async def block():
        async with TaskSupervisor() as supervisor:
            task = supervisor.start(asyncio.Event().wait)
            tasks.append(task)
            await asyncio.Event().wait()

    tasks = []

    async def main():
        body = block()
        body.send(None)
        return body

    with asyncio.Runner() as runner:
        body = runner.run(main())
        body.close()  # no loop runs here
        runner.run(asyncio.sleep(0))
        cancelled = [task.cancelled for task in tasks]
    assert cancelled == [True]
