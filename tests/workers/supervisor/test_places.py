"""Places of a limit: none is lost and none is given twice, whatever callers are cancelled."""

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate.testing import VirtualClock, run
from retrytemplate.workers import SupervisorStoppedError, TaskSupervisor

moments = st.integers(0, 20).map(lambda tenths: tenths / 10)


@given(
    limit=st.integers(1, 3),
    callers=st.lists(st.tuples(moments, moments, st.none() | moments), max_size=12),
)
def test_every_caller_that_is_not_cancelled_gets_its_place(limit, callers):
    clock = VirtualClock()
    active, most, ran = set(), [0], set()

    async def work(number, duration):
        active.add(number)
        most[0] = max(most[0], len(active))
        try:
            await asyncio.sleep(duration)
        finally:
            active.discard(number)
            ran.add(number)

    async def main():
        async with TaskSupervisor(limit=limit, clock=clock) as supervisor:

            async def caller(number, begin, duration):
                await asyncio.sleep(begin)
                await supervisor.start_when_free(work, number, duration)

            tasks = []
            for number, (begin, duration, cancelled_at) in enumerate(callers):
                task = asyncio.create_task(caller(number, begin, duration))
                tasks.append(task)
                if cancelled_at is not None:
                    asyncio.get_running_loop().call_later(cancelled_at, task.cancel)
            await asyncio.gather(*tasks, return_exceptions=True)
            for _ in range(limit):  # every place is free again, some time later
                await supervisor.start_when_free(asyncio.sleep, 100)
            assert len(supervisor.snapshot().active) == 1
            return {number for number, task in enumerate(tasks) if not task.cancelled()}

    placed = run(main(), clock=clock)
    assert ran == placed
    assert most[0] <= limit


@pytest.mark.parametrize("stops", [False, True])
def test_ten_thousand_cancelled_callers_leave_no_place_taken(stops):
    clock, random = VirtualClock(), Random(17)

    async def main():
        async with TaskSupervisor(limit=5, clock=clock) as supervisor:
            loop = asyncio.get_running_loop()
            callers = []
            for _ in range(10_000):
                caller = asyncio.create_task(
                    supervisor.start_when_free(asyncio.sleep, random.random())
                )
                callers.append(caller)
                loop.call_later(random.random() * 100, caller.cancel)
            await asyncio.sleep(50)
            if stops:
                await supervisor.stop()
            ends = await asyncio.gather(*callers, return_exceptions=True)
            assert any(isinstance(each, SupervisorStoppedError) for each in ends) is stops
            if not stops:
                for _ in range(5):
                    await asyncio.wait_for(supervisor.start_when_free(asyncio.sleep, 1), 10)

    run(main(), clock=clock)
