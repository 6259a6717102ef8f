"""The kit for sources."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from retrytemplate.history import AttemptRecord
from retrytemplate.testing.conformance.base import Conformance
from retrytemplate.workers.message import DeadLetter, Message
from retrytemplate.workers.sources.base import METHODS, Source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    # A test of two workers on one queue.
    Course = Callable[[Any, Source, Source], Awaitable[None]]

SETTLEMENTS = "acknowledge requeue dead_letter release extend".split()
POINTS = 12
"""Steps of the event loop after which a call is cancelled, at most."""


def _course(course: Course) -> Callable[[Any], None]:
    """Make a test of a coroutine function that gets two open sources on an empty queue."""

    def test(kit: SourceConformance) -> None:
        async def main() -> None:
            async with kit._two_workers() as (one, other):
                await course(kit, one, other)

        kit.run(main())

    test.__name__, test.__doc__ = course.__name__, course.__doc__
    return test


class SourceConformance(Conformance):
    """Tests for a ``Source``: nothing is lost, and no worker settles the messages of another.

    Two workers use one queue.  The kit needs a server if the source does.

    >>> from retrytemplate.testing import VirtualClock, run
    >>> from retrytemplate.workers.testing import MemoryQueue, MemorySource
    >>> class TestMine(SourceConformance):
    ...     def run(self, main):
    ...         self.clock = VirtualClock()
    ...         run(main, clock=self.clock)
    ...     async def create_queue(self):
    ...         self.queue = MemoryQueue(clock=self.clock)
    ...     def make(self):
    ...         return MemorySource(self.queue)
    ...     async def put(self, body):
    ...         self.queue.put(body)
    >>> TestMine().run_all()
    {}
    """

    wait = 1.0
    """Seconds in which a ready message must be received; set it higher for a slow server."""

    @abstractmethod
    async def create_queue(self) -> None:
        """Create an empty queue for one test; ``make`` and ``put`` use it."""

    @abstractmethod
    def make(self) -> Any:
        """A source on the queue of the test, not opened; each one is another worker."""

    @abstractmethod
    async def put(self, body: bytes) -> None:
        """Publish a message to the queue of the test.

        :param body: digits, which are also JSON.
        """

    async def end_visibility(self, source: Source) -> None:
        """Let the visibility timeout of the delivered messages end; default: wait for it.

        Not called if the source has none.
        """
        await asyncio.sleep((source.visibility_timeout or 0.0) * 1.1)

    async def delete_queue(self) -> None:
        """Delete the queue after a test; default: it stays."""
        return

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run a test in an event loop; default: ``asyncio.run``."""
        asyncio.run(main)

    @asynccontextmanager
    async def _two_workers(self) -> AsyncIterator[tuple[Source, Source]]:
        await self.create_queue()
        one, other = self.make(), self.make()
        try:
            await one.open()
            await other.open()
            yield one, other
        finally:
            await one.close()
            await other.close()
            await self.delete_queue()

    async def _received(self, source: Source, count: int = 1) -> list[Message]:
        """All messages of the queue; fails if they are not *count*."""
        messages: list[Message] = []
        while len(messages) < count:
            received = await source.receive(count - len(messages), self.wait)
            assert received, f"{len(messages)} of {count} messages were received"
            assert len(received) <= count - len(messages), "more messages than asked for"
            messages += received
        return messages

    async def _put_and_receive(self, source: Source, count: int = 1) -> list[Message]:
        for number in range(count):
            await self.put(b"%d" % number)
        return await self._received(source, count)

    async def _lost_message(self, one: Source, other: Source) -> tuple[Message, Message]:
        """A message that one worker lost, and its delivery to the other one."""
        [former] = await self._put_and_receive(one)
        if one.visibility_timeout is None:
            await one.close()
        else:
            await self.end_visibility(one)
        [current] = await self._received(other)
        return former, current

    async def _is_empty(self, *sources: Source) -> None:
        for source in sources:
            assert not await source.receive(10, 0.0), "a settled message was delivered again"

    # -- receive ---------------------------------------------------------------------------------

    def test_it_is_a_source(self) -> None:
        async def main() -> None:
            await self.create_queue()
            source = self.make()
            for name in METHODS:
                assert callable(getattr(source, name, None)), f"it has no method {name}"
            assert isinstance(source, Source), "it lacks an attribute"
            assert source.visibility_timeout is None or source.visibility_timeout > 0
            assert {source.supports_delay, source.transactional} <= {True, False}
            cache: Any = source.default_cache()
            if cache is not None:
                await cache.close()
            await self.delete_queue()

        self.run(main())

    @_course
    async def test_message_has_its_body_and_an_id(self, one: Source, other: Source) -> None:
        messages = await self._put_and_receive(one, 2)
        assert sorted(each.body for each in messages) == [b"0", b"1"]
        assert len({each.id for each in messages}) == 2, "two messages have one id"
        for message in messages:
            assert message.queue == one.name
            assert message.delivery_count in (None, 1)
            assert not message.redelivered, "the first delivery is marked as redelivered"

    @_course
    async def test_empty_queue_returns_nothing(self, one: Source, other: Source) -> None:
        assert not await one.receive(10, 0.0)

    @_course
    async def test_owned_message_is_not_received_again(self, one: Source, other: Source) -> None:
        await self._put_and_receive(one)
        await self._is_empty(one, other)

    @_course
    async def test_waiting_receive_returns_a_message_that_arrives(
        self, one: Source, other: Source
    ) -> None:
        waiting = asyncio.ensure_future(one.receive(10, max(10.0, self.wait)))
        await asyncio.sleep(0)
        await self.put(b"7")
        assert [each.body for each in await waiting] == [b"7"]

    @_course
    async def test_abandoned_message_is_delivered_to_another_worker(
        self, one: Source, other: Source
    ) -> None:
        former, current = await self._lost_message(one, other)
        assert (current.id, current.body) == (former.id, former.body)
        assert current.redelivered, "the second delivery is not marked as redelivered"
        assert current.delivery_count in (None, 2)

    @_course
    async def test_cancelled_receive_loses_no_message(self, one: Source, other: Source) -> None:
        await self.put(b"7")
        for point in range(POINTS):
            task = await _cancelled(point, one.receive(10, 0.0))
            if not task.cancelled() and task.result():
                await one.release(task.result())
            [message] = await self._received(other)
            await other.release([message])

    @_course
    async def test_cancelled_wait_loses_no_message(self, one: Source, other: Source) -> None:
        waiting = asyncio.ensure_future(one.receive(10, max(10.0, self.wait)))
        for _ in range(POINTS):
            await asyncio.sleep(0)
        waiting.cancel()
        await self.put(b"7")
        await asyncio.wait([waiting])
        assert waiting.cancelled(), "receive did not raise its cancellation"
        await self._received(other)

    # -- settle ----------------------------------------------------------------------------------

    @_course
    async def test_acknowledged_message_is_gone(self, one: Source, other: Source) -> None:
        messages = await self._put_and_receive(one, 3)
        assert not await one.acknowledge(messages), "own messages were rejected"
        assert not await one.acknowledge([])
        await self._is_empty(one, other)

    @_course
    async def test_acknowledgement_can_be_repeated(self, one: Source, other: Source) -> None:
        """As after a lost answer."""
        first, second = await self._put_and_receive(one, 2)
        assert not await one.acknowledge([first])
        assert not await one.acknowledge([first, second]), "a repeated message was rejected"
        await self._is_empty(one, other)

    @_course
    async def test_released_message_is_delivered_at_once(self, one: Source, other: Source) -> None:
        messages = await self._put_and_receive(one, 2)
        await one.release(messages)
        await one.release([])
        again = await self._received(other, 2)
        assert {each.id for each in again} == {each.id for each in messages}
        assert {each.delivery_count for each in again} <= {None, 1}, "a release was counted"

    @_course
    async def test_released_message_is_settled_by_its_new_owner_only(
        self, one: Source, other: Source
    ) -> None:
        [former] = await self._put_and_receive(one)
        await one.release([former])
        [current] = await self._received(other)
        assert list(await one.acknowledge([former])) == [former]
        assert not await other.acknowledge([current])

    @_course
    async def test_requeued_message_is_delivered_again(self, one: Source, other: Source) -> None:
        if one.supports_delay:
            [message] = await self._put_and_receive(one)
            await one.requeue(message, 0.0, "busy")
            [again] = await self._received(other)
            assert again.id == message.id
            await other.requeue(again, 3600.0, "busy")
            await self._is_empty(one, other)

    @_course
    async def test_dead_lettered_message_is_gone(self, one: Source, other: Source) -> None:
        [message] = await self._put_and_receive(one)
        for _ in range(2):  # the second time after a lost answer
            await one.dead_letter(message, letter_for(message))
        await self._is_empty(one, other)

    @_course
    async def test_extended_message_stays_owned(self, one: Source, other: Source) -> None:
        if one.visibility_timeout is not None:
            [message] = await self._put_and_receive(one)
            assert not await one.extend([message])
            assert not await one.extend([])
            await self._is_empty(other)
            assert not await one.acknowledge([message])

    @_course
    async def test_extend_restarts_the_visibility_timeout(self, one: Source, other: Source) -> None:
        if one.visibility_timeout is not None:
            [message] = await self._put_and_receive(one)
            await self.end_visibility(one)
            if not await one.extend([message]):  # a queue may have taken it back
                await self._is_empty(other)
                assert not await one.acknowledge([message])

    @_course
    async def test_extend_takes_no_message_back(self, one: Source, other: Source) -> None:
        if one.visibility_timeout is not None:
            former, current = await self._lost_message(one, other)
            assert list(await one.extend([former])) == [former], "a lost message was extended"
            assert not await other.acknowledge([current])

    @_course
    async def test_former_owner_settles_nothing(self, one: Source, other: Source) -> None:
        if one.visibility_timeout is None:
            return  # its connection is closed
        former, current = await self._lost_message(one, other)
        assert list(await one.acknowledge([former])) == [former], "not rejected"
        await one.release([former])
        await one.dead_letter(former, letter_for(former))
        if one.supports_delay:
            await one.requeue(former, 0.0, "busy")
        await self._is_empty(one)
        assert not await other.acknowledge([current]), "the owner lost its message"
        await self._is_empty(one, other)

    @_course
    async def test_cancelled_settlement_is_complete_or_has_no_effect(
        self, one: Source, other: Source
    ) -> None:
        for method in SETTLEMENTS:
            if not _has(one, method):
                continue
            for point in range(0, POINTS, 3):
                [message] = await self._put_and_receive(one)
                arguments = _arguments(method, message)
                await _cancelled(point, getattr(one, method)(*arguments))
                if await one.acknowledge([message]):  # it had an effect
                    assert method not in ("acknowledge", "extend"), f"{method} lost the message"
                    if method != "dead_letter":
                        [again] = await self._received(other)
                        assert not await other.acknowledge([again])
                await self._is_empty(one, other)

    # -- close -----------------------------------------------------------------------------------

    @_course
    async def test_close_keeps_unsettled_messages(self, one: Source, other: Source) -> None:
        [message] = await self._put_and_receive(one)
        await one.close()
        await one.close()
        if one.visibility_timeout is not None:
            await self.end_visibility(other)
        [again] = await self._received(other)
        assert again.id == message.id


def _has(source: Source, method: str) -> bool:
    if method == "requeue":
        return source.supports_delay
    return method != "extend" or source.visibility_timeout is not None


def _arguments(method: str, message: Message) -> tuple[Any, ...]:
    others = {"requeue": (message, 0.0, "busy"), "dead_letter": (message, letter_for(message))}
    return others.get(method, ([message],))


async def _cancelled(point: int, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run a coroutine in a task, and cancel it after some steps of the event loop."""
    task = asyncio.ensure_future(work)
    for _ in range(point):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
    return task


def letter_for(message: Message) -> DeadLetter:
    """A dead letter of the message."""
    failed = AttemptRecord(1, 10.0, 11.0, "ValueError", "bad \0 row")
    return DeadLetter(
        id=f"letter-{message.id}",
        key=f"kit/s:{message.id}",
        reason="bad \0 row",
        phase="handler",
        attempts=1,
        crashes=0,
        history=(failed,),
        first_attempt_at=10.0,
        dead_lettered_at=12.0,
        message=message,
    )
