"""Cancellations while a key is taken, written or released: no key stays held."""

import asyncio
import itertools

import pytest

from retrytemplate import RetryState, RetryTemplate, SimpleRetryPolicy

POINTS = 12  # more than any of the executions has


class Watched:
    """Awaits a coroutine and reports its n-th suspension."""

    def __init__(self, coroutine, point, report):
        self.coroutine, self.point, self.report = coroutine, point, report

    def __await__(self):
        steps = self.coroutine.__await__()
        for number in itertools.count():
            try:
                waited = steps.send(None)
            except StopIteration as stop:
                return stop.value
            while True:
                if number == self.point:
                    self.report()
                    number = -1
                try:
                    yield waited
                except BaseException as exc:
                    try:
                        waited = steps.throw(exc)
                    except StopIteration as stop:
                        return stop.value
                else:
                    break


async def cancelled_at(point, coroutine, times):
    """Run a coroutine in a task; cancel it at its n-th suspension, in each loop iteration.

    :param times: None: until the task has ended.
    """
    reached = asyncio.Event()

    async def watched():
        return await Watched(coroutine, point, reached.set)

    task = asyncio.create_task(watched())
    arrival = asyncio.create_task(reached.wait())
    await asyncio.wait([task, arrival], return_when=asyncio.FIRST_COMPLETED)
    arrival.cancel()
    for number in itertools.count():
        if task.done() or number == times:
            break
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task, arrival])
    return task


def succeed(context):
    return "handled"


def fail(context):
    raise ValueError("no price")


@pytest.mark.parametrize("times", [1, 2, None], ids=["once", "twice", "storm"])
@pytest.mark.parametrize("callback", [succeed, fail], ids=["success", "recovery"])
async def test_cancelled_execution_leaves_no_key_held(store, callback, times):
    async with store.async_cache() as cache:
        template = RetryTemplate(SimpleRetryPolicy(2), cache=cache, name="work")
        await template.execute_async(succeed, state=RetryState("warm"))
        for point in range(POINTS):
            execution = template.execute_async(
                callback,
                recovery=succeed,
                state=RetryState(point, rollback_for=()),
            )
            task = await cancelled_at(point, execution, times)
            if not task.cancelled():
                assert task.result() == "handled"
            key = template.scoped_key(point)
            row = store.row(key)
            assert row is None or row["worker"] is None, point
            claim = await cache.begin(key, worker="next")
            assert claim.lost is None
            await cache.release(claim)
        names = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
        assert names == {"retrytemplate-leases"}
