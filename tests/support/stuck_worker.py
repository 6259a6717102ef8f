"""A worker process whose handler ignores its cancellation."""

import asyncio
import logging
import os
from contextlib import suppress

from retrytemplate.control import idempotency_key
from retrytemplate.workers import Shutdown, WorkerRuntime

__all__ = ["work_with_stuck_handler"]


def work_with_stuck_handler(queue, parent):
    """Stop the runtime while the handler runs, report to the parent, and end the process."""
    logging.disable()
    asyncio.run(_work(queue, parent))


async def _work(queue, parent):
    keys = []

    async def handle(message, context):
        keys.append(idempotency_key())
        runtime.stop()
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    runtime = WorkerRuntime(
        queue.source(30.0),
        handle,
        name=queue.prefix,
        receive_wait=0.2,
        shutdown=Shutdown(grace=0.0, cancel=0.1),
    )
    report = await runtime.run()
    numbers = {"stuck": report.stuck, "settled": report.settled, "clean": report.clean}
    parent.send((numbers, keys[0]))
    os._exit(0)  # the event loop would wait for the handler
