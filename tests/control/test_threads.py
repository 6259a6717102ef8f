"""Blocking steps that are awaited."""

import threading

import pytest

from retrytemplate.control._threads import run_in_thread
from tests.support.event_loops import LOOPS


@pytest.mark.parametrize("loop", LOOPS)
def test_step_runs_in_another_thread(loop):
    async def main():
        return await run_in_thread(threading.get_ident)

    assert loop.run(main) != threading.get_ident()


@pytest.mark.parametrize("loop", LOOPS)
def test_error_of_a_step_is_raised(loop):
    async def main():
        with pytest.raises(ValueError, match="x"):
            await run_in_thread(int, "x")

    loop.run(main)


@pytest.mark.parametrize("loop", LOOPS)
def test_cancellation_waits_for_the_end_of_the_step(loop):
    began, goes_on, ended = threading.Event(), threading.Event(), []

    def step():
        began.set()
        assert goes_on.wait(10)
        ended.append(True)

    async def call():
        try:
            await run_in_thread(step)
        finally:
            assert ended == [True]

    async def main():
        def ready():
            if began.is_set():
                threading.Timer(0.01, goes_on.set).start()
                return True
            return False

        await loop.cancelled(call, ready)
        assert ended == [True]

    loop.run(main)
