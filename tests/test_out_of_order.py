"""Blocks and deadlines that are left in another order than they were entered, or in the middle."""

import asyncio

import pytest

from retrytemplate import Deadline, MisuseError, current_context
from retrytemplate.testing import Recorder, VirtualClock
from tests.ways import made


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
def test_of_two_generators_that_hold_a_block_none_is_current_after_both_have_ended(blocks):
    first, second = holding(made(), blocks), holding(made(), blocks)
    next(first)
    next(second)
    assert list(first) == list(second) == []
    assert current_context() is None


def test_the_inner_of_two_interleaved_blocks_is_current_until_it_ends():
    first, second = holding(made(), 1), holding(made(), 1)
    next(first)
    inner = next(second)
    assert list(first) == []
    assert current_context() is inner
    assert list(second) == []
    assert current_context() is None


def test_a_deadline_that_is_left_before_a_later_one_is_not_in_force_afterwards():
    clock = VirtualClock()
    first, second = under_a_deadline(5, clock), under_a_deadline(60, clock)
    next(first)
    later = next(second)
    assert list(first) == []
    assert Deadline.current() is later
    assert list(second) == []
    assert Deadline.current() is None


def test_a_deadline_left_out_of_order_leaves_the_one_around_both_in_force():
    clock = VirtualClock()
    with Deadline(100, clock=clock) as around:
        first, second = under_a_deadline(5, clock), under_a_deadline(60, clock)
        next(first)
        next(second)
        assert list(first) == list(second) == []
        assert Deadline.current() is around


@pytest.mark.parametrize("blocks", [0, 1], ids=["inline", "by the engine"])
def test_an_attempt_that_is_entered_in_its_own_block_is_a_misuse(blocks):
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
def test_an_attempt_that_is_entered_again_after_its_block_is_a_misuse(blocks):
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

    async def wait(self, *told):
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
def test_an_asynchronous_block_that_is_closed_while_it_waits_ends_without_a_word(what, unraisable):
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


async def test_an_asynchronous_block_is_closed_in_another_task_without_a_word(unraisable):
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
