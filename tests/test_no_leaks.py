"""An execution leaves nothing behind: no cycles, frames, exceptions or context variables."""

import asyncio
import gc
import sys
import weakref
from contextlib import suppress

import pytest

from retrytemplate import (
    AttemptTimeout,
    FixedBackoff,
    NoBackoff,
    RecordedFailure,
    RetryTemplate,
    SimpleRetryPolicy,
    current_context,
)
from retrytemplate.testing import VirtualClock, run
from tests.support.gc_probe import left_by, no_collector
from tests.support.runners import made


class Trouble(Exception):
    """An exception with a weak reference to detect its end."""


class Local:
    """A local object of a failing call: a large response, an open handle."""


def driven(coroutine):
    """Run a coroutine that never waits, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


# -- how to get in ------------------------------------------------------------------------------


def called(template, fn):
    return lambda: template.call(fn)


def wrapped(template, fn):
    return template.wrap(fn)


def executed(template, fn):
    return lambda: template.execute(lambda context: fn())


def outcome_of(template, fn):
    return lambda: template.outcome(fn).unwrap()


def in_a_block(template, fn):
    def body():
        for attempt in template.attempts():
            with attempt:
                return fn()

    return body


def awaited(fn):
    async def turn(*context):
        return fn()

    return turn


def called_async(template, fn):
    turn = awaited(fn)
    return lambda: driven(template.call_async(turn))


def wrapped_async(template, fn):
    turn = template.wrap(awaited(fn))
    return lambda: driven(turn())


def executed_async(template, fn):
    turn = awaited(fn)
    return lambda: driven(template.execute_async(turn))


def in_an_async_block(template, fn):
    async def body():
        async for attempt in template.attempts():
            async with attempt:
                return fn()

    return lambda: driven(body())


ENTRANCES = [
    called,
    wrapped,
    executed,
    outcome_of,
    in_a_block,
    called_async,
    wrapped_async,
    executed_async,
    in_an_async_block,
]
every_entrance = pytest.mark.parametrize("entrance", ENTRANCES)
THROUGHOUT = [called, wrapped, executed, called_async, wrapped_async, executed_async]


class InstantClock(VirtualClock):
    """Sleeps in no time, without a loop, and keeps no list."""

    def sleep(self, delay):
        pass

    async def sleep_async(self, delay):
        pass


def failing(times):
    """A function that fails a number of times, then succeeds, repeatedly."""
    turn = 0

    def fn():
        nonlocal turn
        local = Local()
        turn = (turn + 1) % (times + 1)
        if turn:
            raise Trouble(f"with {type(local).__name__}")
        return "value"

    return fn


def raising(failure, refs):
    """Raise a failure that only its handler holds, and observe it."""
    refs.append(weakref.ref(failure))
    try:
        raise failure
    finally:
        del failure


def swallowing(call):
    with suppress(Trouble):
        call()


SETTINGS = {
    "inline": {},
    "watched": {"listeners": [type("OpenOnly", (), {"open": lambda self, context: None})()]},
    "waiting": {"backoff": FixedBackoff(1.0)},
    "recovering": {"recovery": lambda context: "recovered"},
}
each_setting = pytest.mark.parametrize("setting", SETTINGS)
each_end = pytest.mark.parametrize("failures", [0, 2, 99], ids=["success", "late", "exhausted"])


def template_for(setting):
    return RetryTemplate(SimpleRetryPolicy(3), **{"clock": InstantClock()} | SETTINGS[setting])


# -- cycles -------------------------------------------------------------------------------------


@every_entrance
@each_setting
@each_end
def test_reference_counting_alone_frees_the_objects_of_a_call(entrance, setting, failures):
    call = entrance(template_for(setting), failing(failures))
    swallowing(call)

    assert left_by(lambda: swallowing(call)) == 0


def test_planted_cycle_is_found():
    """The check itself can fail: a frame that keeps its exception is a cycle."""

    def careless():
        try:
            failing(99)()
        except Trouble as exc:
            kept = exc
        return kept is None

    assert left_by(careless) > 0


def broken_recovery(context):
    raise Trouble("of the recovery")


def in_blocks(template, fn):
    """A weak reference to the exception that the loop raises."""
    try:
        for attempt in template.attempts():
            with attempt:
                fn()
    except Exception as exc:
        return weakref.ref(exc)


def in_asynchronous_blocks(template, fn):
    async def blocks():
        try:
            async for attempt in template.attempts():
                async with attempt:
                    fn()
        except Exception as exc:
            return weakref.ref(exc)

    return run(blocks())


each_kind_of_block = pytest.mark.parametrize("blocks", [in_blocks, in_asynchronous_blocks])


@each_kind_of_block
def test_block_whose_recovery_raises_leaves_no_cycle(blocks):
    with no_collector():
        left = blocks(made(1, recovery=broken_recovery), failing(1))
        assert left() is None


@each_kind_of_block
def test_block_whose_late_value_is_discarded_leaves_no_cycle(blocks):
    clock, limit = VirtualClock(), AttemptTimeout(1.0, on_late_result="discard")
    with no_collector():
        template = made(1, clock=clock, attempt_timeout=limit)
        left = blocks(template, lambda: clock.advance(2.0))
        assert left() is None


@pytest.mark.parametrize("entrance", THROUGHOUT)
@each_end
def test_thousand_calls_leave_no_block_of_memory(entrance, failures):
    call = entrance(template_for("inline"), failing(failures))

    def many():
        for _ in range(1000):
            swallowing(call)

    def grown():
        before = sys.getallocatedblocks()
        many()
        return sys.getallocatedblocks() - before

    with no_collector():
        # The first turns fill the interpreter's own free lists.
        assert min(grown() for _ in range(6)) < 100, "less than one block in ten calls"


# -- frames of failed attempts ------------------------------------------------------------------


@every_entrance
@each_setting
def test_objects_of_failed_attempts_are_freed_before_a_later_one(entrance, setting):
    alive = []
    refs = []

    def fn():
        local = Local()
        alive.append(sum(ref() is not None for ref in refs))
        refs.append(weakref.ref(local))
        raise Trouble

    template = template_for(setting).with_(policy=SimpleRetryPolicy(6))
    with no_collector():
        swallowing(entrance(template, fn))
        assert len(alive) == 6
        assert max(alive) <= 1, "of the last one at most"


@pytest.mark.parametrize("entrance", THROUGHOUT)
def test_failures_are_freed_after_a_late_success(entrance):
    refs = []

    def fn():
        if len(refs) < 2:
            raising(Trouble("soon gone"), refs)
        return "value"

    with no_collector():
        assert entrance(made(3, clock=InstantClock()), fn)() == "value"
        assert [ref() for ref in refs] == [None, None]


@pytest.mark.parametrize("entrance", THROUGHOUT)
@pytest.mark.parametrize(
    "recovery", [None, lambda context: "recovered"], ids=["alone", "recovered"]
)
def test_kept_context_holds_text_and_no_exception(entrance, recovery):
    contexts, refs = [], []

    def fn():
        contexts.append(current_context())
        raising(Trouble("text"), refs)

    with no_collector():
        swallowing(entrance(made(3, clock=InstantClock(), recovery=recovery), fn))
        assert [ref() for ref in refs] == [None, None, None]
    last = contexts[0].last_exception
    assert type(last) is RecordedFailure
    assert (last.type_name.endswith("Trouble"), last.message) == (True, "text")
    assert last.__traceback__ is None


def test_template_keeps_nothing_of_a_call():
    template = made(3, name="template")
    arguments = [Local()]
    ref = weakref.ref(arguments[0])

    def fn(argument):
        raise Trouble

    with no_collector():
        swallowing(lambda: template.call(fn, arguments.pop()))
        assert ref() is None


def test_dropped_template_is_freed():
    template = RetryTemplate(SimpleRetryPolicy(3), NoBackoff())
    guarded = template.wrap(failing(1))
    guarded()
    ref = weakref.ref(guarded)
    del guarded
    gc.collect()
    assert ref() is None


# -- what tasks share ---------------------------------------------------------------------------


async def test_child_tasks_of_one_attempt_share_its_context():
    async def child(number):
        current_context().attributes[number] = "written"
        await asyncio.sleep(0)

    @made().wrap
    async def parent():
        await asyncio.gather(*map(child, range(3)))
        return current_context().attributes

    assert await parent() == dict.fromkeys(range(3), "written")
    assert await parent() == dict.fromkeys(range(3), "written")


async def test_context_first_requested_by_a_child_task_is_the_parents():
    async def child():
        return current_context()

    @made().wrap
    async def parent():
        theirs = await asyncio.create_task(child())
        return theirs is current_context()

    assert await parent()


async def test_executions_in_sibling_tasks_have_separate_contexts():
    template = made()

    @template.wrap
    async def child(number):
        context = current_context()
        context.attributes["number"] = number
        await asyncio.sleep(0)
        assert current_context() is context
        return context.attributes["number"], context.parent.attributes["parent"], id(context)

    @template.wrap
    async def parent(name):
        current_context().attributes["parent"] = name
        return await asyncio.gather(*map(child, range(5)))

    first, second = await asyncio.gather(parent("first"), parent("second"))
    assert [(number, name) for number, name, _ in first] == [(n, "first") for n in range(5)]
    assert [(number, name) for number, name, _ in second] == [(n, "second") for n in range(5)]
    assert len({identity for *_, identity in first + second}) == 10


async def test_task_that_outlives_its_attempt_keeps_that_context():
    seen, gate = [], asyncio.Event()

    async def outliving():
        await gate.wait()
        seen.append(current_context().attempt)
        seen.append(current_context().closed)

    tasks = []

    @made().wrap
    async def parent():
        tasks.append(asyncio.create_task(outliving()))
        return current_context()

    await parent()
    await parent()
    gate.set()
    await asyncio.gather(*tasks)
    assert seen == [1, True, 1, True]
    assert current_context() is None


def test_context_of_a_finished_loop_is_empty():
    async def body():
        @made(3, delay=1.0).wrap
        async def fails():
            raise Trouble

        with pytest.raises(Trouble):
            await fails()
        return current_context()

    assert run(body()) is None
    assert current_context() is None
