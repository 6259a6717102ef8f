"""The queue in memory."""

import asyncio
from typing import ClassVar

import pytest

from retrytemplate.testing import VirtualClock, run
from retrytemplate.workers.testing import MemoryQueue, MemorySource, SourceConformance
from retrytemplate.workers.testing.source_conformance import letter_for


class TestConformance(SourceConformance):
    options: ClassVar = {}

    def run(self, main):
        self.clock = VirtualClock()
        run(main, clock=self.clock)

    async def create_queue(self):
        self.queue = MemoryQueue(clock=self.clock, **self.options)

    def make(self):
        return MemorySource(self.queue)

    async def put(self, body):
        self.queue.put(body)


class TestConformanceWithDelay(TestConformance):
    options: ClassVar = {"supports_delay": True}


class TestConformanceOfConnection(TestConformance):
    options: ClassVar = {"visibility_timeout": None}


@pytest.fixture
def clock():
    return VirtualClock()


def two(clock, **options):
    queue = MemoryQueue("orders", clock=clock, **options)
    return queue, MemorySource(queue), MemorySource(queue)


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


def test_redelivered_message_wakes_one_of_the_waiting_sources(clock):
    queue, one, _ = two(clock, visibility_timeout=10.0)
    calls = []
    watched = [MemorySource(queue, before=calls.append) for _ in range(3)]
    queue.put(b"")

    async def main():
        await one.receive(10, 0.0)
        waiting = [asyncio.create_task(each.receive(10, 15.0)) for each in watched]
        await asyncio.sleep(10.5)
        assert [task.done() for task in waiting] == [True, False, False]
        assert len(calls) == 4  # each once, and the one that was woken
        await asyncio.wait(waiting)

    run(main(), clock=clock)


def test_messages_that_one_source_leaves_wake_the_next(clock):
    queue, one, other = two(clock)

    async def main():
        waiting = [asyncio.create_task(each.receive(1, 30.0)) for each in (one, other)]
        await asyncio.sleep(1.0)
        queue.put(b"")
        queue.put(b"")
        assert [len(await each) for each in waiting] == [1, 1]
        assert clock.monotonic() == 1.0

    run(main(), clock=clock)


def test_former_owner_writes_no_dead_letter(clock):
    queue, one, other = two(clock, visibility_timeout=10.0)
    queue.put(b"")

    async def main():
        [former] = await one.receive(10, 0.0)
        await asyncio.sleep(10.0)
        await other.receive(10, 0.0)
        await one.dead_letter(former, letter_for(former))

    run(main(), clock=clock)
    assert (queue.letters, len(queue)) == ([], 1)
