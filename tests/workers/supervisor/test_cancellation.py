"""``cancel_reason``, and handlers of cancellations."""

import asyncio

import pytest

from retrytemplate import CancelReason, Deadline, DeadlineExceededError
from retrytemplate.workers import TaskSupervisor, cancel_reason
from tests.support.supervised import (
    cancel_after_a_second,
    notes_reason,
)


def reason_seen_by(loop, clock, cancel, *, body=None):
    """The reason that a task sees which is cancelled in this manner."""
    seen = []

    async def work():
        try:
            await (body or loop.forever)()
        finally:
            seen.append(cancel_reason())

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(work)
            await clock.sleep_async(1)
            await cancel(supervisor, task)

    loop.run_virtually(main, clock)
    return seen


@pytest.mark.statement("S1-142")
@pytest.mark.parametrize("reason", CancelReason)
def test_task_sees_the_reason_of_its_cancellation(loop, clock, reason):
    async def cancel(supervisor, task):
        task.cancel(reason)

    assert reason_seen_by(loop, clock, cancel) == [reason]


@pytest.mark.statement("S1-142")
def test_cancel_reasons_are_six():
    assert [str(each) for each in CancelReason] == [
        "client_disconnected",
        "deadline_exceeded",
        "server_shutdown",
        "parent_failed",
        "sibling_failed",
        "manual",
    ]


def test_cancel_without_a_reason_is_manual(loop, clock):
    async def cancel(supervisor, task):
        task.cancel()

    assert reason_seen_by(loop, clock, cancel) == ["manual"]


def test_reason_of_a_stop_can_be_given(loop, clock):
    async def cancel(supervisor, task):
        await supervisor.stop(reason=CancelReason.SIBLING_FAILED)

    assert reason_seen_by(loop, clock, cancel) == ["sibling_failed"]


def test_first_reason_is_kept(loop, clock):
    async def cancel(supervisor, task):
        task.cancel(CancelReason.CLIENT_DISCONNECTED)
        await supervisor.stop()

    assert reason_seen_by(loop, clock, cancel) == ["client_disconnected"]


def test_unknown_reason_is_rejected_and_cancels_nothing(loop, clock):
    async def cancel(supervisor, task):
        with pytest.raises(ValueError, match="boredom"):
            task.cancel("boredom")
        await clock.sleep_async(1)
        assert not task.done

    assert reason_seen_by(loop, clock, cancel) == ["server_shutdown"]


def test_tasks_that_a_task_starts_see_its_reason(loop, clock):
    seen = []

    async def group():
        part = notes_reason(loop, seen)
        await loop.together(part, part)

    async def cancel(supervisor, task):
        await supervisor.stop()

    assert reason_seen_by(loop, clock, cancel, body=group) == ["server_shutdown"]
    assert seen == ["server_shutdown"] * 2


def test_task_that_a_task_starts_at_the_supervisor_does_not_see_its_reason(loop, clock):
    seen = []

    async def other(ends):
        await ends.wait()
        seen.append(cancel_reason())

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            ends = loop.event()

            async def work():
                supervisor.start(other, ends)
                await loop.forever()

            task = supervisor.start(work)
            await clock.sleep_async(1)
            task.cancel(CancelReason.CLIENT_DISCONNECTED)
            await clock.sleep_async(1)
            ends.set()
            await clock.sleep_async(1)

    loop.run_virtually(main, clock)
    assert seen == [CancelReason.MANUAL]


def test_plain_cancel_of_a_task_without_a_supervisor_is_manual():
    seen = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(cancel_reason())

    async def main():
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel("a text")
        await asyncio.wait([task])

    asyncio.run(main())
    assert seen == ["manual"]


def test_no_cancellation_is_manual():
    assert cancel_reason() is CancelReason.MANUAL


@pytest.mark.statement("S1-142")
@pytest.mark.parametrize("supervised", [False, True])
def test_time_limit_of_the_library_is_a_reason(loop, clock, supervised):
    seen = []

    async def work():
        with pytest.raises(DeadlineExceededError):
            async with Deadline(2, clock=clock):
                try:
                    await loop.forever()
                finally:
                    seen.append(cancel_reason())
        assert cancel_reason() == "manual"

    async def supervise():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(work)
            await task.wait()
            task.result()

    loop.run_virtually(supervise if supervised else work, clock)
    assert seen == ["deadline_exceeded"]


@pytest.mark.statement("S1-10", "S1-152")
def test_handler_that_raises_again_after_its_cleanup_ends_cancelled(loop, clock):
    cleaned = []

    async def work():
        try:
            await loop.forever()
        except loop.CANCELLED:
            cleaned.append(cancel_reason())
            raise

    cancel_after_a_second(loop, clock, work)
    assert cleaned == ["manual"]
