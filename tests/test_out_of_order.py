"""Blocks and deadlines that are left in another order than they were entered."""

import asyncio
import contextvars
import gc

import pytest

from retrytemplate import (
    Deadline,
    Guard,
    MisuseError,
    RetryListener,
    RetryState,
    current_context,
)
from retrytemplate._engine.frames import CURRENT, OUTER
from retrytemplate.testing import Recorder, VirtualClock, run
from tests.support.runners import Script, made


def holding(template, blocks=0):
    """A generator that holds an attempt open; *blocks* before it have failed."""
    for attempt in template.attempts():
        with attempt as context:
            if context.attempt <= blocks:
                raise ValueError("not yet")
            yield context


def under_a_deadline(seconds, clock):
    with Deadline(seconds, clock=clock) as deadline:
        yield deadline


@pytest.mark.parametrize("blocks", [0, 1], ids=["inline", "by the engine"])
def test_no_block_is_current_after_two_interleaved_generators_end(blocks):
    first, second = holding(made(), blocks), holding(made(), blocks)
    next(first)
    next(second)
    assert list(first) == list(second) == []
    assert current_context() is None


def test_inner_of_two_interleaved_blocks_is_current_until_it_ends():
    first, second = holding(made(), 1), holding(made(), 1)
    next(first)
    inner = next(second)
    assert list(first) == []
    assert current_context() is inner
    assert list(second) == []
    assert current_context() is None


def test_deadline_left_before_a_later_one_is_not_in_force_afterwards():
    clock = VirtualClock()
    first, second = under_a_deadline(5, clock), under_a_deadline(60, clock)
    next(first)
    later = next(second)
    assert list(first) == []
    assert Deadline.current() is later
    assert list(second) == []
    assert Deadline.current() is None


def test_deadline_left_out_of_order_keeps_the_enclosing_one_in_force():
    clock = VirtualClock()
    with Deadline(100, clock=clock) as around:
        first, second = under_a_deadline(5, clock), under_a_deadline(60, clock)
        next(first)
        next(second)
        assert list(first) == list(second) == []
        assert Deadline.current() is around


@pytest.mark.parametrize("blocks", [0, 1], ids=["inline", "by the engine"])
def test_attempt_entered_in_its_own_block_is_a_misuse(blocks):
    template = made()
    with pytest.raises(MisuseError, match="entered before"):
        for attempt in template.attempts():
            with attempt as context:
                if context.attempt <= blocks:
                    raise ValueError("not yet")
                with attempt:
                    pass
    assert current_context() is None


@pytest.mark.parametrize("blocks", [0, 1], ids=["inline", "by the engine"])
def test_attempt_entered_again_after_its_block_is_a_misuse(blocks):
    for attempt in made().attempts():
        with attempt as context:
            if context.attempt <= blocks:
                raise ValueError("not yet")
    with pytest.raises(MisuseError, match="inside the loop"):
        attempt.__enter__()


class Awaiting(Recorder):
    """A recorder with one hook that waits until it is cancelled or closed."""

    def __init__(self, hook):
        super().__init__()
        setattr(self, hook, self.wait)

    async def wait(self, *arguments):
        await forever()


class Forever:
    def __await__(self):
        while True:
            yield


def forever():
    return Forever()


class Endless(VirtualClock):
    async def sleep_async(self, delay):
        await forever()


async def failing(template):
    async for attempt in template.attempts():
        async with attempt:
            raise ValueError("x")


WAITING = {
    "open": {"listeners": [Awaiting("open")]},
    "before_attempt": {"listeners": [Awaiting("before_attempt")]},
    "on_error": {"listeners": [Awaiting("on_error")]},
    "sleep": {"delay": 1.0, "clock": Endless()},
}


@pytest.mark.parametrize("what", WAITING)
def test_asynchronous_block_closed_during_a_wait_ends_silently(what, unraisable):
    listener = Recorder()
    settings = dict(WAITING[what])
    settings["listeners"] = [listener, *settings.get("listeners", [])]
    template = made(**settings)
    body = failing(template)
    body.send(None)
    body.close()
    assert listener.hooks[-1] == "close"
    assert current_context() is None
    assert unraisable == []


async def test_asynchronous_block_is_closed_silently_in_another_task(unraisable):
    async def held():
        async for attempt in made().attempts():
            async with attempt:
                yield current_context()

    async def close():
        await items.aclose()

    items = held()
    await anext(items)
    await asyncio.create_task(close())
    assert unraisable == []


# -- a generator is closed -------------------------------------------------------------------------


class CountingGuard(Guard):
    """Counts its calls, inner ones included."""

    inherited = True
    times = 0

    def admit(self, context):
        self.times += 1


def block_under_a_deadline(guards):
    with Deadline(5):
        yield from holding(made(guards=guards))


def deadline_in_a_block(guards):
    for attempt in made(guards=guards).attempts():
        with attempt, Deadline(5):
            yield


def block_in_a_block(guards):
    for attempt in made(guards=guards).attempts():
        with attempt:
            yield from holding(made())


def deadline_in_a_deadline(guards):
    with Deadline(5), Deadline(3):
        yield


NESTED = [block_under_a_deadline, deadline_in_a_block, block_in_a_block, deadline_in_a_deadline]


@pytest.mark.parametrize("nested", NESTED)
def test_generator_closed_in_two_blocks_leaves_nothing_in_force(nested):
    guard = CountingGuard()
    stream = nested([guard])
    next(stream)
    stream.close()
    before = guard.times
    assert made().call(Deadline.current) is None
    assert guard.times == before


@pytest.mark.parametrize("nested", NESTED)
def test_context_around_a_closed_generator_stays_in_force(nested):
    with Deadline(60) as around:
        stream = nested([])
        next(stream)
        stream.close()
        assert Deadline.current() is around


async def test_closed_async_generator_leaves_no_deadline_in_force():
    async def stream():
        async with Deadline(5), Deadline(3):
            yield

    items = stream()
    await anext(items)
    await items.aclose()
    assert Deadline.current() is None


# -- in a copy of the context ---------------------------------------------------------------------


async def test_block_ended_in_a_copied_context_frees_its_key():
    template, state = made(), RetryState("key")

    def rows():
        for attempt in template.attempts(state=state):
            with attempt:
                yield 1
                yield 2

    stream = rows()
    next(stream)
    assert await asyncio.to_thread(list, stream) == [2]
    assert template.execute(lambda context: "next", state=state) == "next"


async def test_deadline_closed_in_a_copied_context_is_in_force_nowhere():
    async def in_deadline():
        with Deadline(60):
            yield 1

    async def close():
        await stream.aclose()
        return Deadline.current()

    stream = in_deadline()
    await anext(stream)
    assert await asyncio.create_task(close()) is None
    assert Deadline.current() is None


async def test_wrapped_coroutine_closed_in_copied_context_is_current_nowhere():
    async def waits():
        await Forever()

    call = made().wrap(waits)()
    call.send(None)
    contextvars.copy_context().run(call.close)
    assert current_context() is None


# -- in a task, between two attempts --------------------------------------------------------------


class Recording(RetryListener):
    """Records the hooks without the failure, whose frame a recorder would keep."""

    def __init__(self):
        self.hooks = []

    def before_attempt(self, context):
        self.hooks.append("before_attempt")

    def close(self, context, exception):
        self.hooks.append("close")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_asynchronous_loop_left_during_a_wait_frees_the_key():
    listener, state = Recording(), RetryState("key", rollback_for=KeyError)
    template = made(delay=1.0, listeners=[listener])

    async def leaves():
        async for attempt in template.attempts(state=state):
            with attempt:  # a plain one: the wait is awaited by the loop
                raise ConnectionError
            break

    run(leaves(), clock=template.clock)
    gc.collect()
    assert listener.hooks[-1] == "close"
    assert template.execute(lambda context: "next", state=state) == "next"


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
def test_exception_that_would_end_the_loop_silently_is_raised(kind):
    def recovery(context):
        raise kind

    template, state = made(1), RetryState("key")
    with pytest.raises(ValueError):
        template.execute(Script(ValueError()), state=state)
    with pytest.raises(RuntimeError, match=kind.__name__) as caught:
        for attempt in template.attempts(state=state, recovery=recovery):
            with attempt:
                raise AssertionError("no attempt is left")
    assert isinstance(caught.value.__cause__, kind)


# -- deadlines around and within blocks -----------------------------------------------------------


@pytest.mark.parametrize("listeners", [[], [Recording()]], ids=["inline", "by the engine"])
def test_deadline_between_loop_and_attempt_is_in_force_inside(listeners):
    for attempt in made(listeners=listeners).attempts():
        with Deadline(60) as deadline, attempt:
            assert Deadline.current() is deadline
    assert Deadline.current() is None


@pytest.mark.parametrize("blocks", [0, 1], ids=["inline", "by the engine"])
def test_block_that_ends_within_a_later_deadline_keeps_it_in_force(blocks):
    stream = holding(made(), blocks)
    next(stream)
    with Deadline(60) as deadline:
        assert list(stream) == []
        assert Deadline.current() is deadline
    assert Deadline.current() is None


@pytest.mark.parametrize("blocks", [0, 1], ids=["inline", "by the engine"])
def test_interleaved_blocks_leave_no_state(blocks):
    for _ in range(50):
        list(zip(holding(made(), blocks), holding(made(), blocks), strict=True))
    depth, cell = 0, CURRENT.get()
    while cell is not None:
        depth, cell = depth + 1, cell[OUTER]
    assert depth <= 1


def test_deadline_whose_cancel_scope_cannot_start_is_not_in_force():
    async def outside_of_a_loop():
        async with Deadline(5):
            raise AssertionError("it cannot begin")

    with pytest.raises(RuntimeError, match="no running event loop"):
        outside_of_a_loop().send(None)
    assert Deadline.current() is None


def test_attempt_whose_cancel_scope_cannot_start_is_not_current():
    async def outside_of_a_loop():
        async for attempt in made(attempt_timeout=5).attempts():
            async with attempt:
                raise AssertionError("it cannot begin")

    with pytest.raises(RuntimeError, match="no running event loop"):
        outside_of_a_loop().send(None)
    assert current_context() is None
