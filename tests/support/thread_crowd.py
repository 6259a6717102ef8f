"""Groups of threads and tasks that all request a permit of one circuit."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from retrytemplate import CircuitOpenError
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT

__all__ = ["cancelled_anywhere", "come_and_go", "tasks_at_once"]


class Enough(Exception):
    """The task that cancels the others has waited long enough."""


def tasks_at_once(loop, breaker, number, places):
    """Run *number* tasks that stay inside until all others are rejected; the counts of both.

    The circuit has *places* permits.
    """
    inside, rejected = [], []

    async def enter():
        inside.append(1)
        while len(rejected) < number - places:
            await loop.checkpoint()

    async def work():
        try:
            await breaker.call_async(enter)
        except CircuitOpenError as error:
            rejected.append(error)

    loop.run(lambda: loop.together(*[work] * number))
    return len(inside), len(rejected)


def cancelled_anywhere(loop, breaker, random, number, steps):
    """Run *number* tasks, and cancel them after *steps* steps of the loop."""

    async def enter():
        for _ in range(random.randrange(4)):
            await loop.checkpoint()

    async def permit():
        async with breaker.permit():
            await enter()

    async def work():
        while True:
            try:
                await (breaker.call_async(enter) if random.random() < 0.5 else permit())
            except CircuitOpenError:
                await loop.checkpoint()

    async def stop():
        for _ in range(steps):
            await loop.checkpoint()
        raise Enough

    with pytest.raises(ExceptionGroup) as raised:
        loop.run(lambda: loop.together(*[work] * number, stop))
    assert raised.group_contains(Enough)


def come_and_go(breakers, times):
    """Enter and leave in a thread each: the maximum at once, and the total."""
    inside = most = admitted = 0
    lock = threading.Lock()

    def enter():
        nonlocal inside, most, admitted
        with lock:
            admitted += 1
            inside += 1
            most = max(most, inside)
        with lock:
            inside -= 1

    def work(breaker):
        for _ in range(times):
            with suppress(CircuitOpenError), breaker.permit():
                enter()

    with ThreadPoolExecutor(len(breakers)) as pool:
        for future in [pool.submit(work, each) for each in breakers]:
            future.result(JOIN_TIMEOUT)
    return most, admitted
