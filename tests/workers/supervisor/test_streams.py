"""Streams with bounded concurrency: limits, failures, cancellation; loops without ``await``."""

import asyncio
import gc
import random
import threading
from datetime import timedelta

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from retrytemplate import Deadline, DeadlineExceededError, MisuseError
from retrytemplate.testing import run, run_trio
from retrytemplate.workers import StreamReport, checkpoint, process_stream
from tests.support.event_loops import LOOPS
from tests.support.gc_probe import no_collector

ASYNCIO, TRIO = LOOPS
loops = pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: type(loop).__name__)


def on_virtual_time(loop, main):
    """Run an async function; where every task waits, time jumps to the next timer."""
    return run(main()) if loop is ASYNCIO else run_trio(main)


def tasks_alive():
    """The number of tasks of the running loop, this one included."""
    if trio.lowlevel.in_trio_task():
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


class Source:
    """Yields items; it records the number read, and whether it was closed."""

    def __init__(self, loop, items, *, pauses=lambda item: 0):
        self.loop = loop
        self.items = items
        self.pauses = pauses
        self.read = 0
        self.closed = False

    async def __aiter__(self):
        try:
            for item in self.items:
                for _ in range(self.pauses(item)):
                    await self.loop.checkpoint()
                self.read += 1
                yield item
        finally:
            self.closed = True


async def ignore(item):
    pass


def causes(error):
    """The types in a group, and their notes."""
    return [(type(each), getattr(each, "__notes__", None)) for each in error.exceptions]


def garbage_of(loop, main):
    """The objects that only the garbage collector frees, of an async function without result."""

    async def measured():
        await main()
        with no_collector():
            gc.collect()
            for _ in range(10):
                await main()
            return gc.collect()

    return loop.run(measured)


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.statement("S1-120")
@pytest.mark.parametrize(
    "loop, items", [(ASYNCIO, 100_000), (TRIO, 10_000)], ids=["asyncio", "trio"]
)
def test_number_of_tasks_is_fixed_for_any_number_of_items(loop, items):
    alive = set()

    async def work(item):
        if item % 1000 == 0:
            alive.add(tasks_alive())
            await loop.checkpoint()

    async def main():
        before = tasks_alive()
        report = await process_stream(Source(loop, range(items)), work, concurrency=8)
        return before, report

    before, report = loop.run(main)
    assert report == StreamReport(items=items, values=(), failures={})
    assert max(alive) <= before + 8 + 1 + (loop is TRIO)  # the reader; a frame of the nursery


@pytest.mark.statement("S1-121", "S1-122")
@settings(max_examples=30)
@given(
    concurrency=st.integers(1, 5),
    buffer=st.none() | st.integers(1, 12),
    pauses=st.lists(st.integers(0, 3), min_size=1, max_size=7),
    slow_source=st.booleans(),
    loop=st.sampled_from(LOOPS),
)
def test_reader_stays_within_the_buffer(concurrency, buffer, pauses, slow_source, loop):
    running = most_running = most_ahead = begun = 0
    source = Source(loop, range(60), pauses=lambda item: slow_source * (item % 3))

    async def work(item):
        nonlocal running, most_running, most_ahead, begun
        most_ahead = max(most_ahead, source.read - begun)
        assert item == begun, "work begins in the order of the source"
        begun += 1
        running += 1
        most_running = max(most_running, running)
        for _ in range(pauses[item % len(pauses)]):
            await loop.checkpoint()
        running -= 1

    async def main():
        return await process_stream(source, work, concurrency=concurrency, buffer=buffer)

    assert loop.run(main).items == begun == 60
    assert most_running <= concurrency
    assert most_ahead <= (2 * concurrency if buffer is None else buffer)


@loops
@pytest.mark.statement("S1-122")
def test_source_is_not_read_while_the_buffer_is_full(loop):
    source = Source(loop, range(100))

    async def work(item):
        await loop.forever()

    async def main():
        async def stream():
            await process_stream(source, work, concurrency=3)

        steps = iter(range(30))
        await loop.cancelled(stream, lambda: next(steps) == 29)

    loop.run(main)
    assert source.read == 3 + 6
    assert source.closed


@loops
@pytest.mark.statement("S1-124")
def test_items_may_have_any_value(loop):
    items = [None, StopIteration, Ellipsis, StopAsyncIteration(), (), None]

    async def work(item):
        return item

    async def main():
        return await process_stream(iter(items), work, concurrency=2, ordered=True)

    assert loop.run(main).values == tuple(items)


@loops
def test_empty_source_ends_at_once(loop):
    async def main():
        return await process_stream([], ignore, concurrency=5)

    assert loop.run(main) == StreamReport(items=0, values=(), failures={})


@loops
def test_ordered_results_are_in_the_order_of_the_source(loop):
    async def work(item):
        for _ in range(item % 4):
            await loop.checkpoint()
        return item

    async def main():
        return await process_stream(range(50), work, concurrency=6, ordered=True)

    assert loop.run(main).values == tuple(range(50))


@loops
def test_item_that_exceeds_its_limit_fails_and_the_others_continue(loop, caplog):
    async def work(item):
        if item == 1:
            assert Deadline.current().remaining() <= 5
            await (asyncio if loop is ASYNCIO else trio).sleep(60)
        return item

    async def main():
        return await process_stream(
            range(4),
            work,
            concurrency=2,
            per_item_timeout=timedelta(seconds=5),
            on_failure="collect",
            ordered=True,
        )

    report = on_virtual_time(loop, main)
    assert (report.items, report.values) == (4, (0, None, 2, 3))
    error = report.failures[1]
    assert (type(error), error.kind, error.limit) == (DeadlineExceededError, "item", 5.0)
    assert error.outcome_unknown
    with pytest.raises(ExceptionGroup):
        report.raise_for_failures()


# -- failures --------------------------------------------------------------------------------------


def failing_stream(loop, source, work, **options):
    """The group that a stream raises, once every task has ended."""

    async def main():
        before = tasks_alive()
        with pytest.raises(ExceptionGroup) as caught:
            await process_stream(source, work, **{"concurrency": 3} | options)
        assert tasks_alive() == before
        return caught.value

    return on_virtual_time(loop, main)


@loops
@pytest.mark.statement("S1-50", "S1-123")
@pytest.mark.parametrize("items", [5, 1000], ids=["source waits", "buffer is full"])
def test_failing_worker_cancels_the_others_and_the_reader(loop, items):
    cancelled = []

    async def source():
        try:
            for item in range(items):
                yield item
            await loop.forever()
        finally:
            cancelled.append("source")

    async def work(item):
        if item == 4:
            await loop.checkpoint()
            raise ValueError("bad row")
        try:
            await loop.forever()
        except loop.CANCELLED:
            cancelled.append(item)
            raise

    error = failing_stream(loop, source(), work, concurrency=5)
    assert causes(error) == [(ValueError, ["item 4"])]
    assert sorted(cancelled, key=str) == [0, 1, 2, 3, "source"]


@loops
@pytest.mark.statement("S1-123")
@pytest.mark.parametrize("on_failure", ["raise", "collect"])
def test_failing_source_cancels_the_workers(loop, on_failure):
    cancelled = []

    async def items():
        yield 1
        await loop.checkpoint()
        await loop.checkpoint()
        raise OSError("reset")

    async def work(item):
        try:
            await loop.forever()
        except loop.CANCELLED:
            cancelled.append(item)
            raise

    error = failing_stream(loop, items(), work, on_failure=on_failure)
    assert causes(error) == [(OSError, None)]
    assert cancelled == [1]


@loops
def test_failures_are_collected_by_position(loop, caplog):
    async def work(item):
        if item % 4 == 1:
            raise ValueError(f"bad {item}")

    async def main():
        source = Source(loop, range(10))
        report = await process_stream(source, work, concurrency=3, on_failure="collect")
        assert source.closed
        return report

    report = loop.run(main)
    assert (report.items, report.values) == (10, ())
    assert {position: str(each) for position, each in report.failures.items()} == {
        position: f"bad {position}" for position in (1, 5, 9)
    }
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@loops
@pytest.mark.statement("S1-123")
@pytest.mark.parametrize("failing", ["worker", "source"])
def test_work_that_swallows_its_cancellation_gets_no_further_item(loop, failing):
    begun = []

    async def items():
        for item in range(3):
            yield item
        await loop.checkpoint()
        await loop.checkpoint()
        if failing == "source":
            raise OSError("reset")
        yield 3
        await loop.forever()

    async def work(item):
        begun.append(item)
        if item == 3:
            raise OSError("reset")
        try:
            await loop.forever()
        except loop.CANCELLED:
            return

    concurrency = 4 if failing == "worker" else 1
    error = failing_stream(loop, items(), work, concurrency=concurrency, buffer=9)
    assert [kind for kind, _ in causes(error)] == [OSError]
    assert begun == ([0, 1, 2, 3] if failing == "worker" else [0])


def test_source_that_swallows_its_cancellation_does_not_hang():
    async def items():
        yield 0
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                yield 1

    async def work(item):
        await asyncio.sleep(1)
        raise ValueError("bad row")

    error = failing_stream(ASYNCIO, items(), work, buffer=1)
    assert causes(error) == [(ValueError, ["item 0"])]


@pytest.mark.parametrize("on_failure", ["raise", "collect"])
def test_work_that_cancels_its_own_task_ends_the_stream(on_failure):
    source = Source(ASYNCIO, range(100))

    async def work(item):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async def main():
        with pytest.raises(asyncio.CancelledError):
            await process_stream(source, work, concurrency=3, on_failure=on_failure)
        assert tasks_alive() == 1
        assert asyncio.current_task().cancelling() == 0

    run(main())
    assert source.closed


@loops
@pytest.mark.parametrize("on_failure", ["raise", "collect"])
def test_plain_function_as_work_is_named(loop, on_failure):
    error = failing_stream(loop, [3], lambda item: item, on_failure=on_failure)
    (cause,) = error.exceptions
    assert isinstance(cause, MisuseError)
    assert "got the plain function test_streams.py:" in str(cause)


@loops
@pytest.mark.parametrize("on_failure", ["raise", "collect"])
def test_failures_leave_no_cycles(loop, on_failure):
    async def work(item):
        raise ValueError(item)

    async def main():
        try:
            await process_stream([1, 2, 3], work, concurrency=2, on_failure=on_failure)
        except ExceptionGroup:
            return

    assert garbage_of(loop, main) == 0


# -- the end of the source -------------------------------------------------------------------------


class Cursor:
    """A plain iterator with ``close``."""

    def __init__(self, closing=None):
        self.closed = 0
        self.closing = closing

    def __iter__(self):
        return self

    def __next__(self):
        return 1

    def close(self):
        self.closed += 1
        return self.closing


@loops
def test_plain_iterator_is_closed_after_a_failure(loop):
    cursor = Cursor()

    async def work(item):
        raise ValueError(item)

    failing_stream(loop, cursor, work)
    assert cursor.closed == 1


@loops
def test_close_that_must_be_awaited_is_awaited(loop):
    async def closing():
        await loop.checkpoint()
        raise OSError("close")

    class Rows(Cursor):
        __iter__ = None
        rest = 3

        def __aiter__(self):
            return self

        async def __anext__(self):
            self.rest -= 1
            if self.rest:
                return self.rest
            raise StopAsyncIteration

    error = failing_stream(loop, Rows(closing()), ignore)
    assert causes(error) == [(OSError, None)]


@loops
def test_source_is_closed_in_the_task_that_reads_it(loop):
    current = asyncio.current_task if loop is ASYNCIO else trio.lowlevel.current_task
    seen = []

    async def items():
        try:
            seen.append(current())
            yield 0
            await loop.forever()
        finally:
            seen.append(current())

    async def work(item):
        raise ValueError

    failing_stream(loop, items(), work)
    assert seen[0] is seen[1]


# -- cancelled at any point ------------------------------------------------------------------------


class Planned(Exception):
    """A failure that the plan of a run has."""


class RandomStream:
    """A stream with random settings, items and failures, cancelled at a random step."""

    def __init__(self, loop, seed):
        self.loop = loop
        self.random = draw = random.Random(seed)
        self.concurrency = draw.randint(1, 5)
        self.buffer = draw.choice([None, 1, 3])
        self.items = draw.choice([0, 1, 7, 30])
        self.on_failure = draw.choice(["raise", "collect"])
        self.timeout = draw.choice([None, 5])
        self.failing_item = draw.choice([None, None, draw.randint(0, 30)])
        self.failing_source = draw.choice([None, None, None, draw.randint(0, 30)])
        self.endless = draw.random() < 0.3
        self.cancelled_at = draw.randint(0, 40)
        self.twice = draw.random() < 0.3
        self.steps = 0
        self.open = self.working = 0

    def pauses(self):
        return range(self.random.choice([0, 0, 1, 3]))

    async def source(self):
        self.open += 1
        try:
            for item in range(self.items):
                for _ in self.pauses():
                    await self.loop.checkpoint()
                if item == self.failing_source:
                    raise Planned
                yield item
            if self.endless:
                await self.loop.forever()
        finally:
            try:
                for _ in self.pauses():
                    await self.loop.checkpoint()
            finally:
                self.open -= 1

    async def work(self, item):
        self.working += 1
        try:
            for _ in self.pauses():
                await self.loop.checkpoint()
            if item == self.failing_item:
                raise Planned
        finally:
            self.working -= 1

    async def stream(self):
        return await process_stream(
            self.source(),
            self.work,
            concurrency=self.concurrency,
            buffer=self.buffer,
            per_item_timeout=self.timeout,
            on_failure=self.on_failure,
        )

    def check(self, outcome):
        assert (self.open, self.working) == (0, 0)
        if isinstance(outcome, StreamReport):
            assert outcome.items == self.items
        elif isinstance(outcome, ExceptionGroup):
            assert {kind for kind, _ in causes(outcome)} == {Planned}
        else:
            assert outcome == "cancelled"

    async def in_asyncio(self):
        task = asyncio.create_task(self.stream())
        for _ in range(self.cancelled_at):
            await asyncio.sleep(0)
        task.cancel()
        if self.twice:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task], timeout=1000)
        assert task.done(), "it hangs"
        assert asyncio.all_tasks() == {asyncio.current_task()}
        self.check("cancelled" if task.cancelled() else task.exception() or task.result())

    async def in_trio(self):
        outcome = "cancelled"
        with trio.fail_after(1000):
            async with trio.open_nursery() as nursery:
                scope = trio.CancelScope()

                async def caller():
                    nonlocal outcome
                    with scope:
                        try:
                            outcome = await self.stream()
                        except ExceptionGroup as exc:
                            outcome = exc

                nursery.start_soon(caller)
                for _ in range(self.cancelled_at):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        self.check(outcome)


def cancel_streams(loop, seeds):
    """Run a random stream for each seed in one event loop; the error names the seed."""

    async def main():
        for seed in seeds:
            made = RandomStream(loop, seed)
            try:
                await (made.in_asyncio() if loop is ASYNCIO else made.in_trio())
            except BaseException as exc:
                exc.add_note(f"seed {seed}")
                raise

    on_virtual_time(loop, main)


@loops
@pytest.mark.statement("S1-123")
def test_stream_that_is_cancelled_at_any_step_ends_and_closes_its_source(loop, caplog):
    cancel_streams(loop, range(150))


@pytest.mark.stress
@loops
@pytest.mark.statement("S1-123")
def test_ten_thousand_cancelled_streams_end_and_close_their_sources(loop, caplog):
    first = random.randrange(10**9)
    cancel_streams(loop, range(first, first + 10_000))


# -- loops without await ---------------------------------------------------------------------------


def in_new_thread(function):
    """Run it in a thread, in which no call of ``checkpoint`` was counted."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@loops
@pytest.mark.statement("S1-110")
def test_checkpoint_yields_at_every_nth_call(loop):
    calls = 0
    seen = []

    async def busy():
        nonlocal calls
        for _ in range(35):
            calls += 1
            await checkpoint(every=10)

    async def other():
        while calls < 35:
            seen.append(calls)
            await loop.checkpoint()

    async def main():
        await loop.together(busy, other)

    in_new_thread(lambda: loop.run(main))
    assert set(seen) <= {0, 10, 20, 30}
    assert len(seen) >= 3, "it runs at every yield; trio runs tasks in a random order"


@loops
@pytest.mark.statement("S1-110")
def test_loop_without_await_is_cancelled_at_a_checkpoint(loop):
    calls = 0

    async def busy():
        nonlocal calls
        while True:
            calls += 1
            await checkpoint()

    async def main():
        await loop.cancelled(busy, lambda: calls > 0)

    in_new_thread(lambda: loop.run(main))
    assert 1000 <= calls <= 3000


@pytest.mark.parametrize("every", [0, -1, True, 2.5, "1000", None])
def test_wrong_interval_of_checkpoints_is_named(every):
    with pytest.raises((TypeError, ValueError), match="every must be an int >= 1, got"):
        asyncio.run(checkpoint(every))


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"concurrency": 0}, "concurrency must be an int >= 1, got 0"),
        ({"concurrency": 2.0}, r"concurrency must be an int >= 1, got 2\.0"),
        ({"buffer": 0}, "buffer must be an int >= 1, got 0"),
        ({"per_item_timeout": -1}, "per_item_timeout must be .* > 0, or None, got -1"),
        ({"on_failure": None}, "on_failure must be 'raise' or 'collect', got None"),
        ({"ordered": 1}, "ordered must be True or False, got 1"),
        ({"source": None}, "source must be an iterable or an async iterable, got None"),
        ({"work": None}, "work must be a coroutine function, got None"),
    ],
)
def test_wrong_setting_of_a_stream_is_named(changed, message):
    arguments = {"source": [1], "work": ignore, "concurrency": 2} | changed
    with pytest.raises((TypeError, ValueError), match=message):
        asyncio.run(process_stream(**arguments))
