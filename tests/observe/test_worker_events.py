"""Events of tasks, messages, queues and workers."""

import asyncio
import logging
import os

import pytest

from retrytemplate import CancelReason, Deadline, DeadlineExceededError, RetryTemplate
from retrytemplate.observe import LogSink, MemorySink, Observer
from retrytemplate.testing import VirtualClock, capture_events, run
from retrytemplate.workers import (
    MessageExclusiveTimedOut,
    RedeliveryPolicy,
    Release,
    TaskSupervisor,
    shielded,
)
from retrytemplate.workers.testing import SimulatedCluster
from tests.observe.test_event_sources import checked
from tests.support.simulated_workers import factory
from tests.workers.runtime.conftest import World

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


async def forever():
    await asyncio.sleep(3600)


def supervised(work, reason=None):
    """The events of a task of a supervisor, which is cancelled if there is a reason."""

    async def main(clock):
        async with TaskSupervisor("mailer", stop_timeout=5.0, clock=clock) as supervisor:
            task = supervisor.start(work)
            await asyncio.sleep(1)
            if reason is not None:
                task.cancel(reason)
            await asyncio.sleep(1)
            await task.wait() if reason is None else None

    clock = VirtualClock()
    with capture_events() as captured:
        run(main(clock), clock=clock)
    assert checked(captured.events, "task.started")[0].subject == "mailer"
    return captured.events[1:]


LEVELS = {
    CancelReason.CLIENT_DISCONNECTED: DEBUG,
    CancelReason.MANUAL: DEBUG,
    CancelReason.PARENT_FAILED: DEBUG,
    CancelReason.SIBLING_FAILED: DEBUG,
    CancelReason.SERVER_SHUTDOWN: INFO,
    CancelReason.DEADLINE_EXCEEDED: WARNING,
}


@pytest.mark.statement("S1-13")
@pytest.mark.statement("S1-143")
@pytest.mark.parametrize("reason", CancelReason)
def test_cancelled_task_has_the_level_of_its_reason(reason):
    [event] = checked(supervised(forever, reason), "task.cancelled")
    assert (event.severity, event.data["reason"]) == (LEVELS[reason], reason.value)
    assert event.data["cleanup"] is True


@pytest.mark.statement("S1-13")
@pytest.mark.parametrize("reason", CancelReason)
def test_cancelled_call_has_the_level_of_its_reason(reason):
    async def work():
        await RetryTemplate(name="send").call_async(forever)

    events = supervised(work, reason)
    [event] = checked(events, "call.cancelled")
    assert (event.severity, event.data["reason"]) == (LEVELS[reason], reason.value)


async def too_slow():
    async with Deadline(0.5, kind="mail", clock=VirtualClock()):
        raise DeadlineExceededError(kind="mail", limit=0.5)


@pytest.mark.statement("S1-143")
def test_task_that_ends_by_its_own_limit_has_timed_out():
    [event] = checked(supervised(too_slow), "task.timed_out")
    assert (event.severity, event.subject) == (WARNING, "mailer")
    assert (event.data["timeout_type"], event.data["limit"]) == ("mail", 0.5)
    assert event.data["reason"] == "deadline_exceeded"


def test_task_that_fails_otherwise_has_not_timed_out():
    async def work():
        raise ValueError("no address")

    assert [event.type for event in supervised(work)] == []


@pytest.mark.statement("S1-143")
def test_failed_cleanup_of_a_task_is_an_error():
    async def fails():
        raise OSError("reset")

    async def work():
        try:
            await forever()
        finally:
            await shielded(fails, resource="connection 4")

    events = supervised(work, CancelReason.MANUAL)
    [failed] = checked(events, "task.cleanup_failed")
    assert (failed.severity, failed.data["resource"]) == (ERROR, "connection 4")
    [cancelled] = checked(events, "task.cancelled")
    assert cancelled.data["cleanup"] is False


@pytest.mark.statement("S1-143")
def test_swallowed_cancellation_that_blocks_the_stop_is_an_error():
    async def work():
        for _ in range(20):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue

    events = supervised(work, CancelReason.SERVER_SHUTDOWN)
    assert [event.severity for event in checked(events, "task.cleanup_failed")] == [ERROR]


def test_task_above_the_limit_is_rejected():
    async def main():
        async with TaskSupervisor("mailer", limit=1) as supervisor:
            supervisor.start(forever)
            with pytest.raises(Exception, match="runs 1 task"):
                supervisor.start(forever)

    with capture_events() as captured:
        asyncio.run(main())
    assert checked(captured.events, "task_supervisor.rejected")[0].subject == "mailer"


# Messages, queues, workers.


def worked(handle, **options):
    """The events of a runtime with one message."""
    world = World()
    world.queue.put(b"", id="m-9")
    before = options.pop("fail_until", None)
    if before is not None:
        world.fail_until(*before)
    with capture_events() as captured:
        world.run(handle, **options)
    return captured.events


async def fails(message, context):
    raise ConnectionError("unreachable")


async def succeeds(message, context):
    pass


def test_message_that_fails_finally_is_settled_with_a_warning():
    events = worked(fails, retry=RedeliveryPolicy(max_attempts=2))
    requeued, dead = checked(events, "message.settled")
    assert (requeued.data["action"], requeued.severity) == ("requeue", INFO)
    assert (dead.data["action"], dead.severity, dead.data["key"]) == ("dead_letter", WARNING, "m-9")


def test_stop_of_a_worker_has_its_numbers():
    events = worked(succeeds)
    assert checked(events, "worker.stopping")[0].severity == INFO
    [stopped] = checked(events, "worker.stopped")
    assert (stopped.severity, stopped.data["settled"]) == (INFO, 0)


def test_second_release_pauses_the_queue():
    released = []

    async def handle(message, context):
        released.append(message.id)
        return Release("later") if len(released) < 3 else None

    [paused] = checked(worked(handle), "queue.paused")
    assert (paused.data["queue_name"], paused.data["reason"]) == ("orders", "later")


@pytest.mark.statement("S1-140")
@pytest.mark.parametrize(
    ("operation", "kind"), [("receive", "receive_failed"), ("acknowledge", "ack_failed")]
)
def test_failing_queue_has_an_event(operation, kind):
    events = worked(succeeds, fail_until=(operation, 20.0))
    event = checked(events, f"queue.{kind}")[0]
    assert (event.severity, event.data["queue_name"]) == (WARNING, "orders")
    assert event.data["reason"]


def test_poison_message_is_suspected_isolated_and_attributed():
    with capture_events() as captured:
        SimulatedCluster(factory({"m-0"}), workers=2, seed=1).run(8)
    for kind in ("suspected", "exclusive", "crash_attributed"):
        assert checked(captured.events, f"message.{kind}")[0].data["key"] == "m-0"


def test_suspect_that_gets_no_exclusive_attempt_has_an_event():
    observer = Observer(sinks=[kept := MemorySink()])
    observer.on_event(MessageExclusiveTimedOut(name="w", queue_name="orders", key="m-9"))
    assert checked(kept.events, "message.exclusive_timed_out")[0].severity == WARNING


# Tasks of the program's own.


class Mailer:
    """An observer, with tasks."""

    def __init__(self, log=False):
        self.kept, self.clock = MemorySink(), VirtualClock()
        sinks = [self.kept, LogSink()] if log else [self.kept]
        self.observer = Observer(
            sinks=sinks, clock=self.clock, correlation=lambda: {"request_id": "r-1"}
        )

    def task(self, **settings):
        values = {"owner": "mailer", "operation": "send", "message_id": "m-9"} | settings
        return self.observer.task(**values)

    def run(self, work, reason=None, **settings):
        """Run work in a task, which is cancelled if there is a reason; return the events."""

        async def main():
            async with self.task(**settings):
                await work()

        async def cancelled():
            task = asyncio.ensure_future(main())
            await asyncio.sleep(0)
            if reason is not None:
                task.cancel(reason)
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is not None or reason is None

        run(cancelled(), clock=self.clock)
        return self.kept.events


def test_block_that_succeeds_has_only_a_start():
    mailer = Mailer()
    with mailer.task():
        assert [*mailer.observer.active_tasks.values()] == [("mailer", "send")]
    assert mailer.observer.active_tasks == {}
    [event] = mailer.kept.events
    assert (event.type, event.severity, event.subject) == ("task.started", DEBUG, "mailer")
    assert (event.data["operation"], event.data["message_id"]) == ("send", "m-9")


@pytest.mark.parametrize("reason", CancelReason)
def test_cancelled_block_has_the_level_of_its_reason(reason):
    _, event = Mailer().run(forever, reason)
    assert (event.type, event.severity) == ("task.cancelled", LEVELS[reason])


def test_block_that_ends_by_a_time_limit_has_timed_out():
    mailer = Mailer()
    with pytest.raises(DeadlineExceededError), mailer.task():
        raise DeadlineExceededError(kind="mail", limit=2.0)
    event = mailer.kept.events[-1]
    assert (event.type, event.data["timeout_type"]) == ("task.timed_out", "mail")


def test_exception_that_replaces_a_cancellation_is_a_failed_cleanup():
    async def work():
        try:
            await forever()
        finally:
            raise OSError("reset")

    events = Mailer().run(work, CancelReason.MANUAL)
    assert [event.type for event in events] == ["task.started", "task.cleanup_failed"]
    assert (events[-1].severity, events[-1].data["error_type"]) == (ERROR, "OSError")


@pytest.mark.statement("S1-143")
@pytest.mark.parametrize(("will_retry", "severity"), [(True, WARNING), (False, ERROR)])
def test_reported_cleanup_has_the_level_of_a_further_try(will_retry, severity):
    mailer = Mailer()
    with mailer.task() as task:
        task.cleanup_failed("connection 4", OSError("reset"), will_retry=will_retry)
    event = mailer.kept.events[-1]
    assert (event.type, event.severity) == ("task.cleanup_failed", severity)
    assert event.data["resource"] == "connection 4"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupt_of_a_block_is_no_cancellation(error):
    mailer = Mailer()
    with pytest.raises(error), mailer.task():
        raise error
    assert [event.type for event in mailer.kept.events] == ["task.started"]


@pytest.mark.statement("S1-141")
def test_record_of_a_task_has_request_owner_limit_and_reason(caplog):
    caplog.set_level(DEBUG)
    mailer = Mailer(log=True)
    deadline = Deadline.after(5.0, clock=mailer.clock)
    mailer.clock.advance(2.0)
    mailer.run(forever, CancelReason.SERVER_SHUTDOWN, deadline=deadline)
    record = caplog.records[-1]
    assert (record.event, record.request_id, record.owner) == ("task.cancelled", "r-1", "mailer")
    assert (record.operation, record.message_id) == ("send", "m-9")
    assert (record.cancel_reason, record.cleanup) == ("server_shutdown", True)
    assert record.remaining == 3.0
    assert record.deadline == mailer.clock.time() + 3.0


@pytest.mark.statement("S1-141")
def test_record_of_an_execution_has_the_time_left(caplog):
    clock = VirtualClock()
    observer = Observer(sinks=[LogSink()], clock=clock)
    template = RetryTemplate(name="charge", clock=clock, listeners=[observer])
    with Deadline(5.0, clock=clock):
        template.outcome(int, "x")
    records = [each for each in caplog.records if each.name == "retrytemplate"]
    assert [each.remaining for each in records] == [5.0, 5.0, 5.0]
    assert {each.deadline for each in records} == {clock.time() + 5.0}


def test_depth_of_a_queue_is_kept_and_a_failed_ack_reported():
    observer = Observer(sinks=[kept := MemorySink()])
    observer.watch_queue("mails", lambda: 17)
    observer.ack_failed("mails", "timeout")
    assert observer.queue_depths["mails"]() == 17
    [event] = checked(kept.events, "queue.ack_failed")
    assert (event.subject, event.data["reason"]) == ("mails", "timeout")


@pytest.mark.parametrize(
    "values", [{"owner": ""}, {"operation": 7}, {"message_id": 7}, {"deadline": 5.0}]
)
def test_argument_of_a_task_with_another_type_is_named(values):
    [name] = values
    with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
        Mailer().task(**values)


@pytest.mark.parametrize("wrong", [{"error": "reset"}, {"will_retry": 1}])
def test_argument_of_a_failed_cleanup_with_another_type_is_named(wrong):
    task = Observer().task(owner="mailer", operation="send")
    given = {"error": OSError("reset"), **wrong}
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be"):
        task.cleanup_failed("connection 4", **given)


def test_child_process_does_not_show_the_tasks_of_its_parent():
    observer = Observer()
    with observer.task(owner="mailer", operation="send"):
        child = os.fork()
        if not child:
            os._exit(len(observer.snapshot().active_tasks))
        assert os.waitpid(child, 0)[1] == 0
        assert observer.snapshot().active_tasks == {("mailer", "send"): 1}
