"""The queue in memory."""

import asyncio

import pytest

from retrytemplate.testing import VirtualClock, run
from retrytemplate.workers import Source
from retrytemplate.workers.testing import MemoryQueue, MemorySource


@pytest.fixture
def clock():
    return VirtualClock()


def two(clock, **options):
    queue = MemoryQueue("orders", clock=clock, **options)
    return queue, MemorySource(queue), MemorySource(queue)


def test_it_is_a_source():
    assert isinstance(MemorySource(), Source)


def test_unsettled_message_is_redelivered_after_the_visibility_timeout(clock):
    queue, one, other = two(clock, visibility_timeout=60.0)
    queue.put(b"", id="m")

    async def main():
        [message] = await one.receive(10, 0.0)
        assert await other.receive(10, 59.0) == []
        [again] = await other.receive(10, 2.0)
        assert (again.id, again.delivery_count, again.redelivered) == ("m", 2, True)
        assert await one.acknowledge([message]) == [message]
        assert await other.acknowledge([again]) == []
        assert len(queue) == 0

    run(main(), clock=clock)


def test_extended_message_stays_owned(clock):
    queue, one, other = two(clock, visibility_timeout=60.0)
    queue.put(b"")

    async def main():
        messages = await one.receive(10, 0.0)
        await asyncio.sleep(50.0)
        assert await one.extend(messages) == []
        assert await other.receive(10, 59.0) == []
        await other.receive(10, 5.0)
        assert await one.extend(messages) == messages

    run(main(), clock=clock)


def test_message_without_visibility_timeout_is_owned_until_its_source_closes(clock):
    queue, one, other = two(clock, visibility_timeout=None)
    queue.put(b"")

    async def main():
        await one.receive(10, 0.0)
        assert await other.receive(10, 3600.0) == []
        await one.close()
        assert len(await other.receive(10, 0.0)) == 1

    run(main(), clock=clock)


def test_requeued_message_is_delivered_after_its_delay(clock):
    queue, one, other = two(clock, supports_delay=True)
    queue.put(b"")

    async def main():
        [message] = await one.receive(10, 0.0)
        waiting = asyncio.create_task(other.receive(10, 30.0))
        await asyncio.sleep(1.0)
        await one.requeue(message, 10.0, "busy")
        assert len(await waiting) == 1
        assert clock.monotonic() == 11.0

    run(main(), clock=clock)


def test_waiting_source_gets_a_message_at_once(clock):
    queue, one, _ = two(clock)

    async def main():
        waiting = asyncio.create_task(one.receive(10, 30.0))
        await asyncio.sleep(5.0)
        queue.put(b"")
        assert len(await waiting) == 1
        assert clock.monotonic() == 5.0

    run(main(), clock=clock)


def test_message_is_not_lost_if_the_receiver_is_cancelled_in_the_same_tick(clock):
    queue, one, other = two(clock)

    async def main():
        cancelled = asyncio.create_task(one.receive(10, 30.0))
        waiting = asyncio.create_task(other.receive(10, 30.0))
        await asyncio.sleep(1.0)
        queue.put(b"")
        cancelled.cancel()
        assert len(await waiting) == 1
        assert clock.monotonic() == 1.0

    run(main(), clock=clock)
