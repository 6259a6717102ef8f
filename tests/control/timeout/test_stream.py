"""The limits of a stream: its first item, the next item, the total."""

import asyncio

import pytest

from retrytemplate import Deadline, DeadlineExceededError
from retrytemplate.control import ControlListener, StreamTimeout, time_left
from retrytemplate.testing import VirtualClock, run, run_trio


def in_asyncio(main, clock):
    return run(main(), clock=clock)


def in_trio(main, clock):
    return run_trio(main, clock=clock)


runs = pytest.mark.parametrize("runs", [in_asyncio, in_trio], ids=["asyncio", "trio"])


@pytest.fixture
def clock():
    return VirtualClock()


async def tokens(clock, delays, closed=None):
    try:
        for number, delay in enumerate(delays):
            await clock.sleep_async(delay)
            yield number
    finally:
        if closed is not None:
            closed.append(clock.monotonic())


async def collected(stream):
    got = []
    try:
        async for item in stream:
            got.append(item)
    except DeadlineExceededError as error:
        return got, error.kind
    return got, None


@pytest.mark.statement("S4-13")
@runs
@pytest.mark.parametrize(
    ("limits", "delays", "got", "kind", "ended"),
    [
        ({"first": 5.0, "between": 1.0}, [4.0, 0.5, 0.5], [0, 1, 2], None, 5.0),
        ({"first": 5.0, "between": 1.0}, [6.0, 0.5], [], "first item", 5.0),
        ({"first": 5.0, "between": 1.0}, [4.0, 0.5, 2.0], [0, 1], "next item", 5.5),
        ({"first": 5.0, "between": 9.0, "total": 8.0}, [4.0, 3.0, 3.0], [0, 1], "stream", 8.0),
        ({"first": None, "between": 1.0}, [60.0, 2.0], [0], "next item", 61.0),
        ({"first": 5.0, "between": None}, [4.0, 60.0], [0, 1], None, 64.0),
        ({"first": None, "between": None, "total": 2.0}, [9.0], [], "stream", 2.0),
    ],
)
def test_each_item_has_its_limit(runs, limits, delays, got, kind, ended, clock):
    stream_limits = StreamTimeout(**limits, clock=clock)
    closed = []

    async def main():
        return await collected(stream_limits.over(tokens(clock, delays, closed)))

    assert runs(main, clock) == (got, kind)
    assert clock.monotonic() == ended
    assert closed == [ended], "the stream itself was cut, and cleaned up"


@runs
def test_time_of_the_consumer_counts_for_the_total_only(runs, clock):
    limits = StreamTimeout(first=1.0, between=1.0, total=10.0, clock=clock)

    async def main():
        got = []
        with pytest.raises(DeadlineExceededError) as raised:
            async for item in limits.over(tokens(clock, [0.5] * 9)):
                got.append(item)
                await clock.sleep_async(5.0)
        return got, raised.value.kind

    assert runs(main, clock) == ([0, 1], "stream")


@runs
def test_source_of_a_stream_inherits_the_limit_of_the_item(runs, clock):
    left = []

    async def source():
        left.append(time_left())
        yield 1
        left.append(time_left())
        yield 2

    async def main():
        async for _ in StreamTimeout(first=5.0, between=1.0, clock=clock).over(source()):
            assert Deadline.current() is None, "it is not in force in the consumer"

    runs(main, clock)
    assert left == [5.0, 1.0]


@runs
def test_deadline_around_a_stream_applies(runs, clock):
    async def main():
        with Deadline(4.5, kind="request", clock=clock):
            return await collected(
                StreamTimeout(first=5.0, between=1.0, clock=clock).over(
                    tokens(clock, [4.0, 0.75, 0.5])
                )
            )

    assert runs(main, clock) == ([0], "request")
    assert clock.monotonic() == 4.5


@runs
def test_abandoned_stream_can_be_closed(runs, clock):
    closed = []

    async def main():
        stream = StreamTimeout(clock=clock).over(tokens(clock, [1.0, 1.0], closed))
        async for _ in stream:
            break
        await stream.aclose()

    runs(main, clock)
    assert closed == [1.0]


def test_failure_of_the_stream_passes(clock):
    async def breaks():
        yield 1
        raise ConnectionError("reset")

    async def main():
        return [item async for item in StreamTimeout(clock=clock).over(breaks())]

    with pytest.raises(ConnectionError, match="reset"):
        run(main(), clock=clock)


def test_outer_cancellation_passes(clock):
    async def main():
        task = asyncio.ensure_future(
            collected(StreamTimeout(clock=clock).over(tokens(clock, [9.0])))
        )
        await asyncio.sleep(1.0)  # virtual seconds
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        return type(result)

    assert run(main(), clock=clock) is asyncio.CancelledError


@pytest.mark.statement("S4-13")
def test_plain_iterator_is_checked_at_each_item(clock):
    closed = []

    def plain():
        try:
            for number, delay in enumerate([4.0, 0.5, 2.0, 0.5]):
                clock.advance(delay)
                yield number
        finally:
            closed.append(clock.monotonic())

    stream = StreamTimeout(first=5.0, between=1.0, clock=clock).over(plain())
    got = []
    with pytest.raises(DeadlineExceededError) as raised:
        for item in stream:
            got.append(item)
    assert (got, raised.value.kind) == ([0, 1], "next item")
    stream.close()
    assert closed == [6.5]
    assert list(StreamTimeout(clock=clock).over([1, 2])) == [1, 2]
    StreamTimeout(clock=clock).over([1, 2]).close()


def test_slow_stream_is_reported(clock):
    events = []

    class Recorded(ControlListener):
        def on_event(self, event):
            events.append(event)

    limits = StreamTimeout(first=1.0, name="answers", listeners=[Recorded()], clock=clock)

    async def main():
        return await collected(limits.over(tokens(clock, [9.0])))

    run(main(), clock=clock)
    (event,) = events
    assert (event.name, event.kind, event.limit, event.elapsed) == ("answers", "first item", 1, 1)


def test_stream_that_ends_between_two_items_is_reported(clock):
    events = []

    class Recorded(ControlListener):
        def on_event(self, event):
            events.append(event)

    items = StreamTimeout(total=4.0, listeners=[Recorded()], clock=clock).over([1, 2])
    next(items)
    clock.advance(5)
    with pytest.raises(DeadlineExceededError) as raised:
        next(items)
    (event,) = events
    assert (event.operation, event.kind, event.limit, event.elapsed) == ("next", "stream", 4, 5)
    assert event.error is raised.value


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"first": 0}, "first must be"),
        ({"between": -1}, "between must be"),
        ({"total": "long"}, "total must be"),
        ({"name": ""}, "name must be"),
        ({"listeners": [17]}, "listeners: each must be"),
        ({"clock": 17}, "clock must be"),
    ],
)
def test_wrong_limits_are_rejected(given, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        StreamTimeout(**given)


def test_wrong_type_of_stream_is_rejected():
    with pytest.raises(TypeError, match="stream must be an iterable or an async iterable, got 17"):
        StreamTimeout().over(17)
