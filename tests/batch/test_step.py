"""A step's settings, its runs, and their identity."""

import asyncio
import sys
import threading
import types
from functools import partial

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from retrytemplate import (
    FixedBackoff,
    Guard,
    MisuseError,
    NeverRetryPolicy,
    ResultRetryPolicy,
    RetryListener,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.batch import (
    ChunkStep,
    CsvReader,
    ForwardReader,
    JobRepository,
    NotResumableError,
    Reader,
    Report,
    RunAbandonedError,
    RunExistsError,
    RunInProgressError,
    SequenceReader,
    SkipPolicy,
    StepFailedError,
)
from retrytemplate.testing import VirtualClock
from tests.batch.test_scenarios import Bad, Flaky, always, skipping
from tests.support.step_fixture import accounted, run


def test_filtered_item_is_counted_and_not_written(world, mode):
    report = run(world.step(range(1, 6), process=lambda item: item if item % 2 else None), mode)
    assert (report.read, report.written, report.filtered) == (5, 3, 2)
    assert world.rows() == [1, 3, 5]


def test_items_are_written_unchanged_without_a_processor(sqlite, mode):
    assert run(sqlite.step([1, 2], processor=None), mode).written == 2
    assert sqlite.rows() == [1, 2]


def test_run_without_items_is_completed(sqlite, mode):
    report = run(sqlite.step([]), mode)
    assert (report.status, report.read) == ("completed", 0)


def test_run_on_a_new_database_creates_its_tables(tmp_path, mode):
    with JobRepository(f"sqlite:///{tmp_path}/jobs.db") as jobs:
        step = ChunkStep("copy", reader=[1], writer=lambda items, tx: None, repository=jobs)
        assert run(step, mode).written == 1


def test_completed_run_is_reported_and_not_repeated(world, mode):
    first = run(world.step([1, 2]), mode)
    world.calls.clear()
    assert run(world.step([1, 2]), mode) == first
    assert world.calls == []


def test_other_parameters_start_another_run(sqlite, mode):
    assert run(sqlite.step([1]), mode, {"day": "monday"}).run_id == 1
    assert run(sqlite.step([2]), mode, {"day": "tuesday"}).run_id == 2
    assert sqlite.rows() == [1, 2]


def test_order_of_parameters_does_not_matter(sqlite, mode):
    first = run(sqlite.step([1]), mode, {"a": 1, "b": 2})
    assert run(sqlite.step([1]), mode, {"b": 2, "a": 1}) == first


@pytest.mark.parametrize("parameters", [0, "", [], (), False, [("day", 1)]])
def test_parameters_that_are_not_a_mapping_are_rejected(sqlite, mode, parameters):
    with pytest.raises(TypeError, match="parameters must be a mapping of JSON values, got"):
        run(sqlite.step([1]), mode, parameters)


def test_parameters_nested_too_deeply_are_rejected(sqlite, mode):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="got values that are nested too deeply"):
        run(sqlite.step([1]), mode, {"deep": deep})


def test_parameters_that_are_not_json_are_rejected(sqlite):
    with pytest.raises(TypeError, match="parameters must be a mapping of JSON values"):
        sqlite.step([1]).run({"day": {1, 2}})


def test_completed_run_can_be_restarted(sqlite, mode):
    run(sqlite.step([1]), mode)
    report = run(sqlite.step([2]), mode, on_existing="restart")
    assert (report.run_id, report.written, sqlite.rows()) == (2, 1, [1, 2])


def test_restart_abandons_a_failed_run(sqlite, mode):
    broken = sqlite.step([1, 2], process=always(2), chunk_size=1, retry=NeverRetryPolicy())
    run(broken, mode)
    with sqlite.jobs.transaction() as transaction:
        transaction.execute(sqlite.out.delete())
    report = run(sqlite.step([1, 2]), mode, on_existing="restart")
    assert (report.run_id, report.written) == (2, 2)


def test_existing_run_can_be_rejected(sqlite, mode):
    run(sqlite.step([1]), mode)
    with pytest.raises(RunExistsError, match=r"run 1 of step .* already exists and is completed"):
        run(sqlite.step([1]), mode, on_existing="refuse")


def test_abandoned_run_is_not_resumed(sqlite, mode):
    failed = run(sqlite.step([1], process=always(1), retry=NeverRetryPolicy()), mode)
    sqlite.jobs.abandon(failed.run_id)
    with pytest.raises(RunAbandonedError, match="restart"):
        run(sqlite.step([1]), mode)


def test_unknown_on_existing_is_rejected(sqlite):
    with pytest.raises(ValueError, match="on_existing must be 'resume' or 'restart'"):
        sqlite.step([1]).run(on_existing="ignore")


def test_run_in_progress_cannot_be_taken(world, mode):
    begun, go_on = threading.Event(), threading.Event()

    def process(item):
        begun.set()
        assert go_on.wait(10)
        return item

    first = threading.Thread(target=world.step([1], process=process).run)
    first.start()
    try:
        assert begun.wait(10)
        with pytest.raises(RunInProgressError, match="in progress in") as caught:
            run(world.step([1]), mode)
    finally:
        go_on.set()
        first.join()
    assert caught.value.lease_until > 0
    assert world.rows() == [1]


def test_stop_ends_the_run_after_the_chunk_and_it_is_resumed(world, mode):
    def process(item):
        if item == 2:
            step.stop()
        return item

    step = world.step(range(1, 8), process=process)
    report = run(step, mode)
    assert (report.status, report.written, report.pending) == ("stopped", 3, 0)
    assert run(step, mode).status == "completed"
    assert world.rows() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_interrupt_is_raised_and_leaves_no_suspect(sqlite, end):
    def process(item):
        if item == 5:
            raise end
        return item

    with pytest.raises(end):
        sqlite.step(range(1, 8), process=process).run()
    report = sqlite.step(range(1, 8)).run()
    assert (report.status, report.crashes, report.written) == ("completed", 0, 7)
    assert sqlite.writes()[-2:] == [[4, 5, 6], [7]]


def test_cancelled_run_can_be_resumed(world):
    async def main():
        reached = asyncio.Event()

        async def process(item):
            if item == 5:
                reached.set()
                await asyncio.Event().wait()
            return item

        task = asyncio.create_task(world.step(range(1, 8), processor=process).run_async())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await world.step(range(1, 8)).run_async()

    report = asyncio.run(main())
    assert (report.status, report.crashes, report.written) == ("completed", 0, 7)
    assert world.rows() == [1, 2, 3, 4, 5, 6, 7]


def test_raise_for_status_raises_for_a_failed_report(sqlite):
    good = sqlite.step([1]).run()
    assert good.raise_for_status() is good
    bad = sqlite.step([2], process=always(2), retry=NeverRetryPolicy(), name="bad").run()
    with pytest.raises(StepFailedError, match="item 2") as caught:
        bad.raise_for_status()
    assert isinstance(caught.value.__cause__, Bad)
    assert caught.value.report is bad


@pytest.mark.parametrize("concurrency", [2, 16])
def test_several_calls_of_the_processor_at_once_keep_the_order(sqlite, mode, concurrency):
    step = sqlite.step(range(1, 31), concurrency=concurrency, chunk_size=10)
    run(step, mode)
    assert sqlite.writes() == [list(range(1, 11)), list(range(11, 21)), list(range(21, 31))]


def test_never_more_calls_at_once_than_allowed(sqlite):
    inside, most, lock = 0, 0, threading.Lock()
    full = threading.Barrier(4, timeout=10)

    def process(item):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        full.wait()
        with lock:
            inside -= 1
        return item

    sqlite.step(range(1, 13), process=process, concurrency=4, chunk_size=12).run()
    assert most == 4


def test_two_items_are_processed_at_once_by_two_threads(sqlite, mode):
    met = threading.Barrier(2, timeout=10)

    def process(item):
        met.wait()
        return item

    assert run(sqlite.step([1, 2], process=process, concurrency=2), mode).written == 2


def test_items_are_processed_in_the_thread_of_the_run(sqlite, mode):
    threads = []

    def process(item):
        threads.append(threading.current_thread())
        return item

    run(sqlite.step([1, 2], process=process), mode)
    assert threads == [threading.current_thread()] * 2


@pytest.mark.parametrize("guards", [[], [Guard()]], ids=["unguarded", "guarded"])
def test_fatal_failure_prevents_further_items(sqlite, mode, guards):
    template = RetryTemplate(policy=NeverRetryPolicy(), guards=guards)
    step = sqlite.step(range(1, 10), process=always(3), chunk_size=9, retry=template)
    assert run(step, mode).status == "failed"
    assert sqlite.processed() == [1, 2, 3]


def test_exit_in_one_thread_prevents_further_items(sqlite):
    exiting, begun = [], threading.Event()

    def process(item):
        if item == 1:
            exiting.append(threading.current_thread())
            begun.set()
            raise SystemExit
        assert begun.wait(10)
        exiting[0].join(10)
        return item

    with pytest.raises(SystemExit):
        sqlite.step(range(1, 10), process=process, concurrency=2, chunk_size=9).run()
    assert max(sqlite.processed()) <= 2


def test_siblings_are_over_before_the_run_ends(sqlite):
    """A concurrent item has ended when run() returns after a failure of another."""
    failing, ended = threading.Event(), []

    def process(item):
        if item == 1:
            failing.set()
            raise Bad
        assert failing.wait(10)
        ended.append(item)
        return item

    step = sqlite.step([1, 2], process=process, concurrency=2, retry=NeverRetryPolicy())
    step.run()
    after = list(ended)
    names = [each.name for each in threading.enumerate()]
    assert not [name for name in names if name.startswith("retrytemplate-batch")]
    assert ended == after


def test_template_is_used_with_all_its_settings(sqlite, mode):
    class Count(RetryListener):
        calls = 0

        def before_attempt(self, context):
            self.calls += 1

    count, clock = Count(), VirtualClock()
    template = RetryTemplate(
        policy=SimpleRetryPolicy(3), backoff=FixedBackoff(60.0), listeners=[count], clock=clock
    )
    report = run(sqlite.step([1, 2], process=Flaky(2), retry=template), mode)
    assert report.retries == 1
    assert clock.sleeps == [60.0]
    assert count.calls == 4  # two items, one of them twice, and a write


def test_result_policy_retries_the_processor(sqlite, mode):
    answers = iter([None, 7])
    policy = ResultRetryPolicy(lambda result: result is None, SimpleRetryPolicy(2))
    run(sqlite.step([1], process=lambda item: next(answers), retry=policy), mode)
    assert sqlite.rows() == [7]


def test_recovery_replaces_an_item_and_never_a_write(sqlite, mode):
    template = RetryTemplate(policy=NeverRetryPolicy(), recovery=lambda context: 20)
    step = sqlite.step([1, 2], process=always(2), write=always(1), retry=template)
    report = run(step, mode)
    assert (report.status, sqlite.writes(), sqlite.rows()) == ("failed", [[1, 20]], [])


def test_other_database_is_written_at_least_once(sqlite, tmp_path):
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    with other.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (n integer)"))

    def write(items, transaction):
        rows = [{"n": item} for item in items]
        transaction.execute(text("INSERT INTO numbers VALUES (:n)"), rows)

    report = sqlite.step([1, 2, 3, 4], writer=write, database=other).run()
    with other.connect() as connection:
        found = connection.execute(text("SELECT n FROM numbers")).scalars().all()
    other.dispose()
    assert (report.status, report.exactly_once, found) == ("completed", False, [1, 2, 3, 4])


async def test_other_database_can_be_asynchronous(sqlite, tmp_path):
    other = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/other.db")
    async with other.begin() as connection:
        await connection.execute(text("CREATE TABLE numbers (n integer)"))

    async def write(items, transaction):
        rows = [{"n": item} for item in items]
        await transaction.execute(text("INSERT INTO numbers VALUES (:n)"), rows)

    report = await sqlite.step([1, 2], writer=write, database=other).run_async()
    async with other.connect() as connection:
        found = (await connection.execute(text("SELECT n FROM numbers"))).scalars().all()
    await other.dispose()
    assert (report.exactly_once, found) == (False, [1, 2])


@pytest.mark.parametrize("rollback", ["savepoint", "none"])
def test_failed_attempt_is_rolled_back_by_its_setting(world, mode, rollback):
    """In place everything that a failed attempt did is in the transaction still."""
    write = Flaky(3)
    if rollback == "none":  # the attempt fails before it has written anything

        def write(item, number, fails=Flaky(1)):  # noqa: B008  # one for all calls
            fails(item)

    step = world.step([1, 2, 3], write=write, rollback=rollback, retry=SimpleRetryPolicy(2))
    report = run(step, mode)
    assert (report.status, report.written) == ("completed", 3)
    assert (report.retries, report.rollbacks) == (1, 1)
    assert world.rows() == [1, 2, 3]


def test_items_of_a_forward_reader_are_journaled_until_written(world, mode):
    broken = world.step((item for item in range(1, 5)), process=always(2), retry=NeverRetryPolicy())
    assert run(broken, mode).status == "failed"
    report = run(world.step(item for item in [4, 5]), mode)
    assert (report.status, report.read) == ("completed", 5)
    assert world.rows() == [1, 2, 3, 4, 5]
    assert accounted(report)


def test_reader_without_journal_warns_and_cannot_be_resumed(sqlite):
    def step(**settings):
        reader = ForwardReader(iter([1, 2]), journal=False)
        with pytest.warns(UserWarning, match="cannot be resumed"):
            return sqlite.step(reader=reader, **settings)

    assert step(process=always(2), retry=NeverRetryPolicy()).run().status == "failed"
    with pytest.raises(NotResumableError, match="restart"):
        step().run()


def test_item_that_the_journal_cannot_encode_ends_the_run_first(sqlite, mode):
    report = run(sqlite.step(each for each in [{1, 2}]), mode)
    assert (report.status, sqlite.calls) == ("failed", [])
    assert isinstance(report.exception, TypeError)


def test_csv_file_is_resumed_where_it_stopped(world, mode, tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("n\n" + "".join(f"{n}\n" for n in range(1, 8)))

    def step(fails):
        return world.step(
            reader=CsvReader(path),
            process=lambda row: fails(int(row["n"])),
            retry=NeverRetryPolicy(),
        )

    assert run(step(always(5)), mode).written == 3
    world.calls.clear()
    assert run(step(always()), mode).read == 7
    assert [int(row["n"]) for row in world.processed()] == [4, 5, 6, 7]
    assert world.rows() == [1, 2, 3, 4, 5, 6, 7]


def test_broken_record_is_skipped_by_the_policy(sqlite, mode, tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("n,m\n1,1\n2\n3,3\n")
    step = sqlite.step(
        reader=CsvReader(path),
        process=lambda row: int(row["n"]),
        skip=SkipPolicy(on=ValueError),
    )
    report = run(step, mode)
    assert (sqlite.rows(), sqlite.letters(), report.dead_lettered) == ([1, 3], [2], 1)
    letter = sqlite.letter(2)
    assert (letter.phase, letter.payload, letter.replayable) == ("read", "2\n", 0)


def test_missing_file_ends_the_run_with_its_name(sqlite, mode, tmp_path):
    report = run(sqlite.step(reader=CsvReader(tmp_path / "none.csv")), mode)
    assert report.status == "failed"
    assert "none.csv" in str(report.error)


def test_pieces_that_have_to_be_awaited_need_asyncio(sqlite):
    async def awaited(*_):
        pass

    for piece in ("processor", "writer"):
        with pytest.raises(MisuseError, match=f"the {piece} is asynchronous"):
            sqlite.step([1], **{piece: awaited}).run()
    with pytest.raises(MisuseError, match="processor"):
        sqlite.step([1], processor=lambda item: awaited()).run()


def test_asynchronous_writer_gets_an_asynchronous_connection(world):
    async def write(items, transaction):
        for item in items:
            await transaction.execute(world.out.insert().values(id=item, text="x"))

    async def process(item):
        await asyncio.sleep(0)
        return item * 10

    report = run(world.step([1, 2], processor=process, writer=write, concurrency=2), "async")
    assert (report.written, world.rows()) == (2, [10, 20])


async def awaited_key(item):
    return item


NONSENSE = [
    ({"name": ""}, "name must be a non-empty str"),
    ({"reader": 17}, "reader"),
    ({"processor": "upper"}, "processor must be a function or None, got 'upper'"),
    ({"writer": None}, "writer must be a function, got None"),
    ({"chunk_size": 0}, "chunk_size must be an int >= 1, got 0"),
    ({"repository": "sqlite:///jobs.db"}, "repository must be a JobRepository"),
    ({"database": "sqlite:///out.db"}, "database must be an engine"),
    ({"retry": 3}, "retry must be a RetryPolicy or a RetryTemplate, got 3"),
    ({"backoff": 1.0}, "backoff must be a Backoff"),
    ({"retry": RetryTemplate(), "backoff": FixedBackoff(1.0)}, "backoff must be left out"),
    ({"skip": ValueError}, "skip must be a SkipPolicy or None"),
    ({"max_crashes": 0}, "max_crashes must be an int >= 1"),
    ({"key": "id"}, "key must be a function or None"),
    ({"key": awaited_key}, "key must be a plain function, got the coroutine"),
    ({"name": "a\x00b"}, "name must be a string that a database can store"),
    ({"code_version": "\ud800"}, "code_version must be a string that a database can store"),
    ({"rollback": "serializable"}, "rollback must be 'transaction' or 'savepoint'"),
    ({"fault_search": "guess"}, "fault_search must be 'bisect' or 'linear'"),
    ({"concurrency": 0}, "concurrency must be an int >= 1"),
    ({"outbox": print}, "outbox must be an Outbox or None"),
    ({"listeners": [print]}, "listeners must be an object with the methods on_event"),
    ({"codec": "json"}, "codec must be an object with the methods encode, decode"),
    ({"code_version": 3}, "code_version must be a non-empty str or None"),
]


@pytest.mark.parametrize(("settings", "problem"), NONSENSE)
def test_invalid_setting_is_rejected_at_construction(sqlite, settings, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        sqlite.step([1], **settings)


def generates(*given):
    yield given


async def generates_awaited(*given):
    yield given


class Generates:
    def __call__(self, *given):
        yield given


@pytest.mark.parametrize("piece", ["processor", "writer", "key", "after_commit"])
@pytest.mark.parametrize(
    "function", [generates, generates_awaited, Generates(), partial(generates, 1)]
)
def test_generator_function_as_component_is_rejected(sqlite, piece, function):
    with pytest.raises(TypeError, match=f"{piece} must be a function.*, got the generator"):
        sqlite.step([1], **{piece: function})


def test_awaitable_generator_is_accepted_as_processor(sqlite):
    @types.coroutine
    def process(item):
        yield
        return item

    assert run(sqlite.step([1, 2], processor=process), "async").written == 2


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("filtered", [0, 1])
def test_processor_that_returns_awaitables_is_misuse(sqlite, concurrency, filtered):
    async def awaited(item):
        """Not awaited."""

    def process(item):
        return None if item <= filtered else awaited(item)

    step = sqlite.step([1, 2, 3], processor=process, concurrency=concurrency)
    with pytest.raises(MisuseError, match="the processor returned an awaitable"):
        step.run()
    assert sqlite.rows() == []


def test_skip_policy_on_a_signal_names_its_own_parameter():
    with pytest.raises(ValueError, match=r"^on must be subclasses"):
        SkipPolicy(on=KeyboardInterrupt)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"limit": -1}, "limit must be an int >= 0, got -1"),
        ({"rate": 1.5}, "rate must be a share between 0 and 1, or None, got 1.5"),
        ({"after": -1}, "after must be an int >= 0"),
        ({"on": "ValueError"}, "retry_on|on must"),
        ({"on": KeyboardInterrupt}, "KeyboardInterrupt"),
    ],
)
def test_invalid_skip_policy_is_rejected(settings, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        SkipPolicy(**{"on": ValueError, **settings})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nonsense",), "url must be a database URL"),
        (("mysql://localhost/db",), "url must be a URL of SQLite or PostgreSQL"),
        (("sqlite://",), "url must name a file"),
        (("sqlite:///:memory:",), "url must name a file"),
        (("sqlite:///jobs.db", 0), "lease must be"),
        (("sqlite:///jobs.db", float("inf")), "lease must be"),
        (("sqlite:///jobs.db", 30.0, "no-dash"), "prefix must be"),
    ],
)
def test_invalid_repository_is_rejected(arguments, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        JobRepository(*arguments)


def test_repr_of_a_step_has_its_name(sqlite):
    assert "copy" in repr(sqlite.step([1]))
    assert isinstance(sqlite.step([1]).run(), Report)
    assert isinstance(sqlite.step([1]), ChunkStep)


def test_impure_processor_runs_in_the_transaction_once_per_attempt(world, mode):
    seen = []

    def process(item, transaction):
        seen.append(item)
        transaction.execute(world.out.insert().values(id=item + 100, text="audit"))
        return None if item == 2 else item

    step = world.step(
        [1, 2, 3], processor=process, pure=False, write=Flaky(3), retry=SimpleRetryPolicy(2)
    )
    report = run(step, mode)
    assert seen == [1, 2, 3, 1, 2, 3]
    assert world.rows() == [1, 3, 101, 102, 103]
    assert (report.written, report.filtered, report.retries) == (2, 1, 1)
    assert accounted(report)


@pytest.mark.parametrize(
    "settings",
    [
        {"processor": None},
        {"processor": lambda item, transaction: item or 0, "pure": False},
    ],
    ids=["no processor", "in the transaction"],
)
def test_null_item_is_an_item(sqlite, mode, settings):
    written = []

    def write(items, transaction):
        written.extend(items)
        if items[-1] == 3:
            raise Bad

    step = sqlite.step(
        [None, 2, 3], writer=write, retry=NeverRetryPolicy(), **settings, **skipping()
    )
    report = run(step, mode)
    nothing = None if settings["processor"] is None else 0
    assert (report.written, report.filtered, report.dead_lettered) == (2, 0, 1)
    assert nothing in written
    assert accounted(report)


def test_failure_of_an_impure_processor_is_isolated_and_rolled_back(world, mode):
    def process(item, transaction):
        transaction.execute(world.out.insert().values(id=item + 100, text="audit"))
        return always(2)(item)

    step = world.step(
        [1, 2, 3],
        processor=process,
        pure=False,
        retry=NeverRetryPolicy(),
        skip=SkipPolicy(on=Bad),
    )
    run(step, mode)
    assert (world.rows(), world.letters()) == ([1, 3, 101, 103], [2])


class Unawaited(Reader):
    """A reader whose records must be awaited."""

    seekable = True

    def open(self, position):
        return self

    position = 0

    async def read(self, limit):
        """Not awaited."""

    def close(self):
        """Nothing is open."""


def test_reader_that_must_be_awaited_is_misuse(sqlite):
    step = sqlite.step(reader=Unawaited())
    with pytest.raises(MisuseError, match="reader returned an awaitable"):
        step.run()
    assert sqlite.step([1, 2]).run().written == 2


class Ajar(SequenceReader):
    """A reader whose cursor raises on close."""

    def open(self, position):
        cursor = super().open(position)

        class Cursor:
            read = staticmethod(cursor.read)

            @property
            def position(self):
                return cursor.position

            def close(self):
                raise OSError("the disk is gone")

        return Cursor()


def test_error_on_closing_a_reader_is_logged_and_changes_nothing(sqlite, mode, caplog):
    report = run(sqlite.step(reader=Ajar([1, 2])), mode)
    assert (report.status, report.written) == ("completed", 2)
    assert "the disk is gone" in caplog.text


def test_misuse_is_never_skipped(sqlite):
    async def awaited(item):
        pass

    step = sqlite.step([1], processor=lambda item: awaited(item), skip=SkipPolicy(on=Exception))
    with pytest.raises(MisuseError):
        step.run()
    assert sqlite.letters() == []


def test_signal_handler_may_stop_a_run_at_any_moment(sqlite):
    """A handler runs between two lines of whatever it interrupts."""
    step = sqlite.step(range(6))
    files = {threading.__file__, sys.modules[ChunkStep.__module__].__file__}

    def interrupted(frame, event, argument):
        if frame.f_code.co_filename in files:
            step.stop()
        return interrupted

    sys.settrace(interrupted)
    try:
        report = step.run()
    finally:
        sys.settrace(None)
    assert report.status == "stopped"
