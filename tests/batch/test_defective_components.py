"""Processors and writers with defects, and templates that reject calls."""

import asyncio
import time

import pytest

from retrytemplate import (
    AttemptTimeout,
    Deadline,
    Guard,
    MisuseError,
    NeverRetryPolicy,
    Rejected,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.batch import Cursor, JobRepositoryError, Outbox, Reader, SkipPolicy
from retrytemplate.testing import VirtualClock
from tests.batch.test_scenarios import Bad, Flaky, always
from tests.support.step_fixture import accounted, run


def test_writer_that_empties_its_list_gets_all_items_on_retry(world, mode):
    fails = Flaky(1)

    def write(items, transaction):
        rows = []
        while items:
            rows.append({"id": items.pop(0), "text": "x"})
        transaction.execute(world.out.insert(), rows)
        fails(1)

    sent = []
    box = Outbox(lambda message: sent.append(message.payload), lambda item: item)
    step = world.step(
        [1, 2, 3], writer=write, retry=SimpleRetryPolicy(2), after_commit=sent.append, outbox=box
    )
    report = run(step, mode)
    assert (report.written, world.rows()) == (3, [1, 2, 3])
    assert sent == [[1, 2, 3], 1, 2, 3]


def test_writer_that_returns_an_awaitable_is_a_misuse(sqlite, mode):
    async def write(items, transaction):
        pass

    step = sqlite.step(
        [1], writer=lambda items, tx: write(items, tx), skip=SkipPolicy(on=Exception)
    )
    report = run(step, mode)
    assert (report.status, report.written, report.dead_lettered) == ("failed", 0, 0)
    assert isinstance(report.exception, MisuseError)


@pytest.mark.parametrize("end", ["rollback", "commit", "close"])
def test_writer_that_ends_the_transaction_is_misuse(world, mode, end):
    def write(items, transaction):
        getattr(transaction, end)()
        if end == "transaction":
            transaction.execute(world.out.insert().values(id=7, text="x"))

    report = run(world.step([1], writer=write, skip=SkipPolicy(on=Exception)), mode)
    assert (report.status, report.written, report.dead_lettered, world.rows()) == (
        "failed",
        0,
        0,
        [],
    )
    assert "has ended its transaction" in str(report.error)


def test_writer_may_use_savepoints(world, mode):
    def write(items, transaction):
        for item in items:
            try:
                with transaction.begin_nested():
                    transaction.execute(world.out.insert().values(id=item, text="x"))
                    always(2)(item)
            except Bad:
                pass

    report = run(world.step([1, 2, 3], writer=write), mode)
    assert (report.status, world.rows()) == ("completed", [1, 3])


async def test_cancellation_raised_by_the_processor_ends_the_run(sqlite):
    async def process(item):
        if item == 2:
            raise asyncio.CancelledError
        return item

    step = sqlite.step([1, 2, 3], processor=process, concurrency=3)
    with pytest.raises(asyncio.CancelledError):
        await step.run_async()
    assert sqlite.rows() == []


async def test_base_exception_is_raised_unchanged(sqlite):
    class Stop(BaseException):
        pass

    async def process(item):
        if item == 2:
            raise Stop
        await asyncio.sleep(0)
        return item

    with pytest.raises(Stop):
        await sqlite.step([1, 2, 3], processor=process, concurrency=3).run_async()


async def test_no_concurrent_task_is_left_when_a_run_ends(sqlite):
    before = asyncio.all_tasks()

    async def process(item):
        if item == 2:
            raise Bad
        for _ in range(item):
            await asyncio.sleep(0)
        return item

    step = sqlite.step(
        range(1, 9), processor=process, concurrency=8, chunk_size=8, retry=NeverRetryPolicy()
    )
    assert (await step.run_async()).status == "failed"
    assert asyncio.all_tasks() == before


async def test_cancelled_run_cancels_its_concurrent_calls(sqlite):
    started, cancelled, release = [], [], asyncio.Event()

    async def process(item):
        started.append(item)
        try:
            await release.wait()
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    running = asyncio.ensure_future(
        sqlite.step([1, 2], processor=process, concurrency=2).run_async()
    )
    while len(started) < 2:
        await asyncio.sleep(0)
    running.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled == [1, 2]


def test_stop_iteration_in_a_thread_is_an_ordinary_failure(sqlite):
    step = sqlite.step(
        [1, 2],
        process=lambda item: next(iter(())),
        concurrency=2,
        retry=NeverRetryPolicy(),
        skip=SkipPolicy(on=RuntimeError),
    )
    assert run(step, "async").dead_lettered == 2


def test_threads_are_limited_by_the_number_of_items(sqlite, mode):
    report = run(sqlite.step([1, 2], concurrency=10**9), mode)
    assert report.written == 2


def test_attempt_timeout_does_not_limit_a_write(sqlite, mode):
    """An interrupted write may be in the database nevertheless."""

    def write(items, transaction):
        rows = [{"id": item, "text": "x"} for item in items]
        transaction.execute(sqlite.out.insert(), rows)
        time.sleep(0.05)  # longer than the limit of a real thread; the length is not asserted

    template = RetryTemplate(attempt_timeout=AttemptTimeout(0.01, in_thread=True))
    report = run(sqlite.step([1, 2, 3], writer=write, processor=None, retry=template), mode)
    assert (report.status, report.rollbacks, sqlite.rows()) == ("completed", 0, [1, 2, 3])


def test_write_that_ends_after_the_deadline_is_kept(sqlite):
    clock = VirtualClock()

    def write(items, transaction):
        rows = [{"id": item, "text": "x"} for item in items]
        transaction.execute(sqlite.out.insert(), rows)
        clock.advance(60.0)

    step = sqlite.step(range(1, 7), writer=write, processor=None, retry=RetryTemplate(clock=clock))
    with Deadline(30.0, clock=clock):
        report = step.run()
    assert (report.status, report.written, sqlite.rows()) == ("failed", 3, [1, 2, 3])
    assert accounted(report)
    assert step.run().written == 6


@pytest.mark.parametrize("deadline", [None, 30.0])
def test_item_that_is_processed_late_is_written_after_one_call(sqlite, deadline):
    clock, calls = VirtualClock(), []

    def process(item):
        calls.append(item)
        clock.advance(10.0)
        return item

    template = RetryTemplate(attempt_timeout=2.0, clock=clock)
    with Deadline(float("inf") if deadline is None else deadline, clock=clock):
        report = sqlite.step([1, 2], process=process, retry=template).run()
    assert (report.status, report.retries, sqlite.rows()) == ("completed", 0, [1, 2])
    assert calls == [1, 2]


class Refuses(Guard):
    def __init__(self, after):
        self.left = after

    def admit(self, context):
        if not self.left:
            raise Rejected("no more today")
        self.left -= 1


@pytest.mark.parametrize("concurrency", [1, 3])
def test_rejection_by_the_template_ends_the_run_without_a_letter(sqlite, mode, concurrency):
    template = RetryTemplate(guards=[Refuses(after=2)])
    step = sqlite.step(
        [1, 2, 3], retry=template, skip=SkipPolicy(on=Exception), concurrency=concurrency
    )
    report = run(step, mode)
    assert (report.status, report.dead_lettered) == ("failed", 0)
    assert isinstance(report.exception, Rejected)


def test_rejected_write_ends_the_run_without_a_letter(sqlite, mode):
    template = RetryTemplate(guards=[Refuses(after=3)])
    report = run(sqlite.step([1, 2, 3], retry=template, skip=SkipPolicy(on=Exception)), mode)
    assert (report.status, report.dead_lettered, sqlite.rows()) == ("failed", 0, [])


def test_expired_deadline_ends_the_run_and_skips_no_item(sqlite):
    clock = VirtualClock()
    template = RetryTemplate(clock=clock)

    def process(item):
        clock.advance(20.0)
        return item

    step = sqlite.step(range(1, 7), process=process, retry=template, skip=SkipPolicy(on=Exception))
    with Deadline(50.0, clock=clock):
        report = step.run()
    assert (report.status, report.dead_lettered) == ("failed", 0)


def test_rejection_inside_the_processor_is_a_failure_of_the_item(sqlite, mode):
    def process(item):
        if item == 2:
            raise Rejected("the service of this item is closed")
        return item

    report = run(sqlite.step([1, 2, 3], process=process, skip=SkipPolicy(on=Rejected)), mode)
    assert (report.status, report.dead_lettered, sqlite.rows()) == ("completed", 1, [1, 3])


@pytest.mark.parametrize("concurrency", [1, 3])
def test_skip_policy_is_called_once_per_failure(sqlite, mode, concurrency):
    answers = iter([False, True, True])
    step = sqlite.step(
        [1, 2, 3],
        process=always(2),
        retry=NeverRetryPolicy(),
        skip=SkipPolicy(on=lambda failure: next(answers)),
        concurrency=concurrency,
    )
    report = run(step, mode)
    assert (report.status, report.filtered, report.dead_lettered) == ("failed", 0, 0)


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("pieces", [{"process": always(2)}, {"write": always(2)}])
def test_skip_policy_that_raises_ends_the_run(sqlite, mode, pieces, concurrency):
    def covers(failure):
        raise KeyError("no such rule")

    skip = SkipPolicy(on=covers)
    step = sqlite.step(
        [1, 2, 3], retry=NeverRetryPolicy(), skip=skip, concurrency=concurrency, **pieces
    )
    report = run(step, mode)
    assert (report.status, report.pending, report.dead_lettered) == ("failed", 3, 0)
    assert isinstance(report.exception, KeyError)
    assert run(sqlite.step([1, 2, 3]), mode).written == 3


class Coding:
    """Keeps items as text, until it fails."""

    encodes = decodes = True

    def encode(self, item):
        if not self.encodes:
            raise LookupError("no such item")
        return str(item)

    def decode(self, text):
        if not self.decodes:
            raise LookupError("no such text")
        return int(text)


def test_codec_that_cannot_decode_kept_items_ends_the_run(sqlite, mode):
    codec = Coding()
    step = sqlite.step(iter([1, 2]), process=always(2), codec=codec, retry=NeverRetryPolicy())
    assert run(step, mode).pending == 2
    codec.decodes = False
    report = run(sqlite.step(iter(()), codec=codec), mode)
    assert (report.status, type(report.exception)) == ("failed", JobRepositoryError)
    assert "the codec cannot decode payloads[0]: LookupError('no such text')" in str(report.error)
    codec.decodes = True
    assert run(sqlite.step(iter(()), codec=codec), mode).written == 2


def test_codec_that_cannot_encode_the_items_ends_the_run(sqlite, mode):
    codec = Coding()
    codec.encodes = False
    report = run(sqlite.step(iter([1, 2]), codec=codec), mode)
    assert (report.status, str(report.error)) == ("failed", "LookupError: no such item")


def test_cursor_that_returns_no_records_ends_the_run(sqlite, mode):
    class Absent(Cursor):
        position = None

        def read(self, limit):
            """Returns nothing by mistake."""

    class Forgetful(Reader):
        def open(self, position=None):
            return Absent()

    report = run(sqlite.step(Forgetful()), mode)
    assert report.status == "failed"
    assert str(report.exception) == "a cursor must read Records, got None"


def test_stop_ends_two_concurrent_runs_of_a_step(sqlite):
    import threading

    met = threading.Barrier(3, timeout=10)

    def process(item):
        if item % 10 == 1:
            met.wait()
            met.wait()
        return item

    step = sqlite.step(range(1, 10), process=process, writer=lambda items, tx: None)
    reports = []
    threads = [
        threading.Thread(target=lambda day=day: reports.append(step.run({"day": day})))
        for day in (1, 2)
    ]
    for thread in threads:
        thread.start()
    met.wait()
    step.stop()
    met.wait()
    for thread in threads:
        thread.join()
    assert [report.status for report in reports] == ["stopped", "stopped"]


def test_stop_of_a_completed_run_is_not_kept_for_the_next(sqlite):
    step = sqlite.step([1])
    step.run()
    step.stop()
    step.run()
    assert step.run({"day": 2}).status == "failed"  # the same id again: it was not stopped


def test_counts_of_a_run_change_in_one_line(sqlite):
    """A trace function is called before each line: numbers that belong together share one line."""
    import sys

    from retrytemplate.batch.journal.run import Run

    seen = []

    def trace(frame, event, argument):
        if frame.f_code is Run.apply.__code__:
            if event == "line":
                run = frame.f_locals["self"]
                seen.append((run.seq, run.counts.read))
            return trace
        return None

    sys.settrace(trace)
    try:
        sqlite.step([1, 2, 3]).run()
    finally:
        sys.settrace(None)
    assert set(seen) == {(1, 0)}


def test_names_of_parameters_are_texts(sqlite):
    with pytest.raises(TypeError, match="parameters must be"):
        sqlite.step([1]).run({1: 2})
