"""Groups of failures: split, translated at the border, raised or collected."""

import asyncio
import concurrent.futures
from contextlib import suppress
from contextvars import ContextVar

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from retrytemplate import CancelReason, ExceptionClassifier, MisuseError
from retrytemplate.testing import run, run_trio
from retrytemplate.workers import (
    Gathered,
    TaskSupervisor,
    cancel_reason,
    gather_all,
    leaf_exceptions,
    process_many,
    split_group,
    translate_group,
)
from tests.support.event_loops import LOOPS
from tests.support.gc_probe import left_by

loops = pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: type(loop).__name__)


def on_virtual_time(loop, main):
    """Run an async function; where every task waits, time jumps to the next timer."""
    return run(main()) if loop is LOOPS[0] else run_trio(main)


class Unavailable(Exception):
    """The service error for failures that may pass."""


class Invalid(Exception):
    """The service error for everything else."""


def translated(error, **options):
    return translate_group(error, retryable=Unavailable, rejected=Invalid, **options)


def mixed():
    transient = ExceptionGroup("transient", [ConnectionError("reset"), TimeoutError("slow")])
    return ExceptionGroup("orders", [ValueError("no name"), transient])


def leaf_types(error):
    return [type(each) for each in leaf_exceptions(error)]


# -- leaves and parts ------------------------------------------------------------------------------


def test_leaves_of_nested_groups_are_in_order():
    assert leaf_types(mixed()) == [ValueError, ConnectionError, TimeoutError]


def test_single_exception_is_its_own_leaf():
    error = ValueError()
    assert leaf_exceptions(error) == (error,)


@pytest.mark.statement("S1-51", "S1-56")
def test_mixed_group_is_split_by_type_and_keeps_its_structure():
    invalid, rest = split_group(mixed(), ValueError)
    assert leaf_types(invalid) == [ValueError]
    assert leaf_types(rest) == [ConnectionError, TimeoutError]
    assert isinstance(rest.exceptions[0], ExceptionGroup)


leaves = st.sampled_from([ValueError, OSError, TimeoutError, KeyError]).map(lambda kind: kind())
trees = st.recursive(
    leaves,
    lambda inner: st.builds(
        ExceptionGroup, st.just("group"), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=40)
@given(trees, st.sets(st.sampled_from([ValueError, OSError, LookupError]), min_size=1))
def test_parts_have_each_leaf_once_and_by_type(error, types):
    matching, rest = (
        () if part is None else leaf_exceptions(part) for part in split_group(error, *types)
    )
    assert all(isinstance(each, tuple(types)) for each in matching)
    assert not any(isinstance(each, tuple(types)) for each in rest)
    assert {*map(id, matching), *map(id, rest)} == set(map(id, leaf_exceptions(error)))


@pytest.mark.parametrize("types", [(), (ValueError, 3), ((ValueError, OSError),)])
def test_types_that_are_not_exception_classes_are_rejected(types):
    with pytest.raises(TypeError, match="types must be one or more exception classes, got"):
        split_group(mixed(), *types)


@pytest.mark.statement("S1-56")
def test_except_star_handles_each_kind_of_a_mixed_group():
    async def invalid():
        raise ValueError("no name")

    async def transient():
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("reset")

    handled = []
    try:
        asyncio.run(gather_all(transient, invalid, on_failure="cancel"))
    except* ValueError as group:
        handled += leaf_types(group)
    except* OSError as group:
        handled += leaf_types(group)
    assert handled == [ValueError, ConnectionError]


# -- at the border ---------------------------------------------------------------------------------


@pytest.mark.statement("S1-52")
def test_group_of_retryable_leaves_becomes_one_error_with_its_count():
    error = split_group(mixed(), OSError)[0]
    made = translated(error)
    assert (type(made), made.args, made.__cause__) == (Unavailable, (2,), error)


@pytest.mark.statement("S1-52", "S1-56")
def test_group_with_one_other_leaf_becomes_the_rejected_error():
    error = mixed()
    made = translated(error)
    assert (type(made), made.args, made.__cause__) == (Invalid, (3,), error)


@settings(max_examples=40)
@given(trees)
def test_group_is_retryable_if_every_leaf_is(error):
    made = translated(error, classifier=ExceptionClassifier({OSError: True}))
    expected = all(isinstance(each, OSError) for each in leaf_exceptions(error))
    assert isinstance(made, Unavailable) is expected
    assert made.args == (len(leaf_exceptions(error)),)


def test_single_exception_is_translated_like_a_group_of_one():
    assert translated(ValueError()).args == (1,)
    assert isinstance(translated(ConnectionError()), Unavailable)


@pytest.mark.statement("S1-52")
@pytest.mark.parametrize(
    "cancelled",
    [
        asyncio.CancelledError(),
        BaseExceptionGroup("both", [ValueError(), asyncio.CancelledError()]),
        ExceptionGroup("both", [ValueError(), concurrent.futures.CancelledError()]),
        BaseExceptionGroup("both", [OSError(), KeyboardInterrupt()]),
        ExceptionGroup("both", [OSError(), MisuseError()]),
    ],
    ids=lambda error: "-".join(each.__name__ for each in leaf_types(error)),
)
def test_group_with_a_cancellation_passes_unchanged(cancelled):
    with pytest.raises(type(cancelled)) as caught:
        raise translated(cancelled)
    assert caught.value is cancelled
    assert cancelled.__cause__ is None


def test_error_of_the_service_may_come_from_a_function():
    made = translate_group(
        mixed(), retryable=Unavailable, rejected=lambda count: Invalid(f"{count} failures")
    )
    assert str(made) == "3 failures"


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"retryable": 3}, "retryable must be callable"),
        ({"rejected": None}, "rejected must be callable"),
        ({"classifier": {}}, "classifier must be an object with the methods classify"),
    ],
)
def test_wrong_setting_of_a_translation_is_named(changed, message):
    with pytest.raises(TypeError, match=message):
        translate_group(mixed(), **{"retryable": Unavailable, "rejected": Invalid} | changed)


# -- several works ---------------------------------------------------------------------------------


class Sibling:
    """A work that waits until it is cancelled, and takes time for its cleanup."""

    def __init__(self, loop):
        self.loop = loop
        self.ended = None

    async def __call__(self):
        try:
            await self.loop.forever()
        except self.loop.CANCELLED:
            self.ended = "cancelled"
            raise

    @property
    def cancelled(self):
        return self.ended == "cancelled"


async def fail(error=None):
    raise error or ConnectionError("reset")


@loops
@pytest.mark.statement("S1-50", "S1-53", "S1-153")
def test_failure_cancels_the_siblings_and_waits_for_them(loop):
    siblings = [Sibling(loop), Sibling(loop)]

    async def main():
        with pytest.raises(ExceptionGroup, match=r"^gather_all failed") as caught:
            await gather_all(siblings[0], fail, siblings[1], on_failure="cancel")
        assert [sibling.cancelled for sibling in siblings] == [True, True]
        return leaf_types(caught.value)

    assert loop.run(main) == [ConnectionError]


@loops
@pytest.mark.statement("S1-53", "S1-54", "S1-153")
def test_collected_failure_leaves_the_siblings_running(loop, caplog):
    async def slow():
        await loop.checkpoint()
        await loop.checkpoint()
        return "answer"

    async def main():
        return await gather_all(fail, slow, on_failure="collect")

    gathered = loop.run(main)
    assert gathered.values == (None, "answer")
    assert {position: type(each) for position, each in gathered.failures.items()} == {
        0: ConnectionError
    }
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "WARNING",
        "gather_all: 1 of 2 items failed; the first one at index 0: ConnectionError: reset",
    )


@pytest.mark.statement("S1-53")
def test_choice_between_cancelling_and_collecting_has_no_default():
    with pytest.raises(TypeError, match="on_failure"):
        gather_all(fail)


@loops
@pytest.mark.statement("S1-51")
def test_all_failures_are_in_the_group(loop):
    async def fails_in_its_cleanup():
        try:
            await loop.forever()
        finally:
            raise ValueError("cleanup")

    async def main():
        with pytest.raises(ExceptionGroup) as caught:
            await gather_all(fails_in_its_cleanup, fail, on_failure="cancel")
        return set(leaf_types(caught.value))

    assert loop.run(main) == {ConnectionError, ValueError}


@pytest.mark.statement("S1-54")
def test_collected_failures_can_be_raised_as_a_group():
    failures = {1: ValueError("no name"), 3: OSError("reset")}
    with pytest.raises(ExceptionGroup) as caught:
        Gathered((1, None, 2, None), failures).raise_for_failures()
    assert caught.value.exceptions == tuple(failures.values())


def test_nothing_is_raised_without_failures(caplog):
    gathered = asyncio.run(gather_all(on_failure="collect"))
    assert gathered == Gathered((), {})
    assert gathered.raise_for_failures() is None
    assert caplog.records == []


@loops
def test_values_are_in_the_order_of_the_works(loop):
    async def main():
        async def late():
            await loop.checkpoint()
            return 1

        async def early():
            return None

        return await gather_all(late, early(), late(), on_failure="cancel")

    assert loop.run(main) == Gathered((1, None, 1), {})


@loops
@pytest.mark.parametrize("on_failure", ["cancel", "collect"])
def test_cancelled_caller_ends_all_works_and_passes_the_cancellation(loop, on_failure):
    siblings = [Sibling(loop), Sibling(loop)]
    passed = []

    async def caller():
        try:
            await gather_all(*siblings, on_failure=on_failure)
        except loop.CANCELLED:
            passed.append([sibling.cancelled for sibling in siblings])
            raise

    async def main():
        steps = iter([False, False, True])
        await loop.cancelled(caller, lambda: next(steps))

    loop.run(main)
    assert passed == [[True, True]]


@loops
def test_cancellation_wins_over_a_failure_which_is_logged(loop, caplog):
    async def fails_in_its_cleanup():
        try:
            await loop.forever()
        finally:
            raise ValueError("cleanup")

    async def caller():
        await gather_all(fails_in_its_cleanup, on_failure="collect")

    async def fails():
        await gather_all(fails_in_its_cleanup, on_failure="cancel")

    async def main():
        steps = iter([False, False, True])
        await loop.cancelled(fails, lambda: next(steps))

    loop.run(main)
    assert [record.getMessage() for record in caplog.records] == [
        "gather_all: a task failed during a cancellation: ValueError: cleanup"
    ]


def test_work_that_is_cancelled_by_itself_cancels_the_caller():
    sibling = Sibling(LOOPS[0])

    async def cancels_itself():
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(gather_all(sibling, cancels_itself, on_failure="collect"))
    assert sibling.cancelled


def test_sibling_is_cancelled_once():
    """A second cancellation would interrupt its cleanup."""
    ended = []

    async def cleans_up():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(asyncio.current_task().cancelling())

    async def fails_late():
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("late")

    async def main():
        task = asyncio.create_task(gather_all(cleans_up, fails_late, fail, on_failure="cancel"))
        await asyncio.wait([task])
        assert isinstance(task.exception(), ExceptionGroup)
        assert task.cancelling() == 0

    asyncio.run(main())
    assert ended == [1]


def test_caller_keeps_no_cancellation_after_a_failure():
    async def main():
        with pytest.raises(ExceptionGroup):
            await gather_all(fail, Sibling(LOOPS[0]), on_failure="cancel")
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0)

    asyncio.run(main())


@loops
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_other_base_exceptions_pass_outside_of_a_group(loop, kind):
    sibling = Sibling(loop)
    passed = []

    async def main():
        try:
            await gather_all(sibling, lambda: fail(kind()), on_failure="collect")
        except kind:
            passed.append(sibling.cancelled)

    with suppress(kind):  # asyncio raises an interrupt of a task from the loop, too
        loop.run(main)
    assert passed == [True]


def test_cancellation_in_the_group_of_an_inner_nursery_ends_the_work():
    async def with_nursery():
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    async def main():
        with pytest.raises(ExceptionGroup) as caught:
            await gather_all(with_nursery, fail, on_failure="cancel")
        assert leaf_types(caught.value) == [ConnectionError]
        with trio.CancelScope() as scope:
            scope.cancel()
            await gather_all(with_nursery, on_failure="collect")
        assert scope.cancelled_caught

    trio.run(main)


def reason_seen(loop, stop):
    """The reason that a work sees, which *stop* starts and cancels."""
    seen = []

    async def work():
        try:
            await loop.forever()
        finally:
            seen.append(cancel_reason())

    async def main():
        with suppress(ExceptionGroup, TimeoutError):
            await stop(work)

    on_virtual_time(loop, main)
    return seen


@loops
def test_cancelled_sibling_sees_the_reason(loop):
    async def stop(work):
        await gather_all(work, fail, on_failure="cancel")

    assert reason_seen(loop, stop) == [CancelReason.SIBLING_FAILED]


@loops
def test_work_sees_the_reason_of_the_cancelled_caller(loop):
    async def stop(work):
        async with TaskSupervisor() as supervisor:
            task = supervisor.start(gather_all(work, on_failure="collect"))
            await loop.checkpoint()
            await loop.checkpoint()
            task.cancel(CancelReason.CLIENT_DISCONNECTED)

    assert reason_seen(loop, stop) == [CancelReason.CLIENT_DISCONNECTED]


def test_work_sees_the_reason_in_a_plain_cancellation_of_its_caller():
    async def stop(work):
        task = asyncio.create_task(gather_all(work, on_failure="collect"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel(CancelReason.DEADLINE_EXCEEDED)
        await asyncio.wait([task])

    assert reason_seen(LOOPS[0], stop) == [CancelReason.DEADLINE_EXCEEDED]


def test_each_work_has_its_own_context_variables():
    name = ContextVar("name", default="caller")

    async def work():
        before = name.get()
        name.set("work")
        return before

    async def main():
        name.set("main")
        return await gather_all(work, work, on_failure="cancel")

    assert asyncio.run(main()).values == ("main", "main")


def test_works_that_are_rejected_are_closed():
    coroutine = fail()
    with pytest.raises(TypeError, match="works must be coroutine functions or awaitables, got 3"):
        asyncio.run(gather_all(coroutine, 3, on_failure="cancel"))
    assert coroutine.cr_frame is None
    coroutine = fail()
    with pytest.raises(ValueError, match="on_failure must be 'cancel' or 'collect', got 'raise'"):
        asyncio.run(gather_all(coroutine, on_failure="raise"))
    assert coroutine.cr_frame is None


@pytest.mark.parametrize("on_failure", ["cancel", "collect"])
def test_plain_function_is_named(on_failure):
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(gather_all(int, on_failure=on_failure))
    (error,) = caught.value.exceptions
    assert isinstance(error, MisuseError)
    assert str(error) == "work must be a coroutine function, got the plain function int"


@pytest.mark.parametrize("on_failure", ["cancel", "collect"])
def test_failures_leave_no_cycles(on_failure):
    with asyncio.Runner() as runner:

        async def main():
            with suppress(ExceptionGroup):
                await gather_all(fail, fail, on_failure=on_failure)

        assert left_by(lambda: runner.run(main())) == 0


# -- many items ------------------------------------------------------------------------------------


@loops
@pytest.mark.statement("S1-121")
def test_results_of_many_items_are_in_their_order(loop):
    running = most = 0

    async def work(item):
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(item % 5):
            await loop.checkpoint()
        running -= 1
        return -item

    async def main():
        return await process_many(range(100), work, concurrency=7)

    assert loop.run(main) == tuple(range(0, -100, -1))
    assert most == 7


@loops
@pytest.mark.statement("S1-54", "S1-153")
def test_failures_of_many_items_are_collected_by_position(loop, caplog):
    async def work(item):
        if item % 3 == 0:
            raise ValueError(f"bad {item}")
        return item

    async def main():
        return await process_many([1, 3, 5, 6], work, concurrency=2, on_failure="collect")

    gathered = loop.run(main)
    assert gathered.values == (1, None, 5, None)
    assert {position: str(each) for position, each in gathered.failures.items()} == {
        1: "bad 3",
        3: "bad 6",
    }
    (record,) = caplog.records
    assert record.getMessage().endswith(
        "2 of 4 items failed; the first one at index 1: ValueError: bad 3"
    )


@loops
@pytest.mark.statement("S1-50", "S1-51")
def test_failure_of_an_item_names_its_position_and_cancels_the_others(loop):
    cancelled = []

    async def work(item):
        if item == "bad":
            raise ValueError(item)
        try:
            await loop.forever()
        except loop.CANCELLED:
            cancelled.append(item)
            raise

    async def main():
        with pytest.raises(ExceptionGroup, match=r"^process_many\(.*work\) failed") as caught:
            await process_many(["a", "b", "bad", "never"], work, concurrency=3)
        (error,) = caught.value.exceptions
        return error.__notes__

    assert loop.run(main) == ["item 2"]
    assert sorted(cancelled) == ["a", "b"]


@pytest.mark.statement("S1-121")
@pytest.mark.parametrize(
    "changed, message",
    [
        ({"concurrency": 0}, "concurrency must be an int >= 1, got 0"),
        ({"per_item_timeout": 0}, "per_item_timeout must be .* > 0, or None, got 0"),
        ({"on_failure": "cancel"}, "on_failure must be 'raise' or 'collect', got 'cancel'"),
        ({"items": 3}, "source must be an iterable or an async iterable, got 3"),
        ({"work": 3}, "work must be a coroutine function, got 3"),
    ],
)
def test_wrong_setting_for_many_items_is_named(changed, message):
    arguments = {"items": [1], "work": fail, "concurrency": 2} | changed
    with pytest.raises((TypeError, ValueError), match=message):
        asyncio.run(process_many(**arguments))
