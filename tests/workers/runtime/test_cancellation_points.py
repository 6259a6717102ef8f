"""A runtime on each queue that is cancelled at each point of a message."""

import asyncio
from contextvars import Context

import pytest

from retrytemplate import FixedBackoff
from retrytemplate.control import ProcessGate, idempotency_key
from retrytemplate.workers import WorkerRuntime
from tests.support.fork_server import processes
from tests.support.queue_worker import run_until_settled
from tests.support.stuck_worker import work_with_stuck_handler

LEASE = 30.0


def at_settlement(source, call):
    """Call a function when the source begins to settle a message."""
    name = "run_in_transaction" if source.transactional else "acknowledge"
    if hasattr(source, "end_and_acknowledge"):
        name = "end_and_acknowledge"
    settle = getattr(source, name)

    async def settling(*arguments, **options):
        call()
        return await settle(*arguments, **options)

    setattr(source, name, settling)


async def settle_the_rest(queue, handle):
    """Run another worker, if messages are left."""
    if await queue.left():
        await run_until_settled(queue.source(LEASE), handle, name=queue.prefix)
    assert await queue.left() == 0
    assert "dead_lettered" not in (await queue.ends()).values()


@pytest.mark.statement("S1-71")
@pytest.mark.parametrize(
    "point, attempts", [("gate", 1), ("handler", 2), ("effect", 1), ("acknowledgement", 1)]
)
async def test_message_cancelled_at_a_point_keeps_its_attempt(any_queue, point, attempts):
    await any_queue.fill(["m-1"])
    source, gate, calls, reached = any_queue.source(LEASE), ProcessGate(), [], asyncio.Event()

    async def handle(message, context):
        calls.append((context.attempt, idempotency_key(), context.attributes.get("crashes", 0)))
        if point == "handler" and len(calls) == 1:
            reached.set()
            await asyncio.Event().wait()
        elif point == "effect":
            running.cancel()

    entry = gate.exclusive()
    if point == "gate":
        Context().run(entry.__enter__)  # as another task
        receive = source.receive

        async def received(*arguments):
            messages = await receive(*arguments)
            if messages:
                reached.set()
            return messages

        source.receive = received
    elif point == "acknowledgement":
        at_settlement(source, lambda: running.cancel())
    runtime = WorkerRuntime(
        source,
        handle,
        name=any_queue.prefix,
        gate=gate,
        backoff=FixedBackoff(60.0),
        receive_wait=0.2,
    )
    running = asyncio.create_task(runtime.run())
    if point in ("gate", "handler"):
        await reached.wait()
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    if point == "gate":
        entry.__exit__()
    await settle_the_rest(any_queue, handle)
    assert calls == [(1, calls[0][1], 0)] * attempts


async def test_message_of_a_stuck_handler_is_done_by_another_process(any_queue):
    await any_queue.fill(["m-1"])
    here, there = processes.Pipe()
    worker = processes.Process(target=work_with_stuck_handler, args=(any_queue, there))
    worker.start()
    there.close()
    report, key = here.recv()
    worker.join()
    here.close()
    assert report == {"stuck": 1, "settled": 0, "clean": False}
    assert await any_queue.left() == 1
    calls = []

    async def handle(message, context):
        calls.append((idempotency_key(), context.attributes.get("crashes", 0)))

    await settle_the_rest(any_queue, handle)
    assert calls == [(key, 0)]
