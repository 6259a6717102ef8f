"""Workers of a simulated cluster, some of whose messages crash them."""

import asyncio
from contextlib import nullcontext

from retrytemplate.workers import WorkerRuntime

__all__ = ["NoGate", "factory"]


class NoGate:
    """Lets every attempt in, exclusive ones beside others."""

    def shared(self, timeout=None):
        return nullcontext()

    exclusive = shared


def factory(poisons, *, gate=None, then=None, **options):
    """Makes the runtime of a worker; its handler takes 0.5 to 1.5 seconds.

    :param poisons: ids of the messages that crash the worker.
    :param gate: None: that of the worker.
    :param then: called with each other message; returns its outcome.
    """

    def make(worker):
        async def handle(message, context):
            await asyncio.sleep(worker.random.uniform(0.5, 1.5))
            if message.id in poisons:
                await worker.crash()
            return None if then is None else await then(message)

        return WorkerRuntime(
            worker.source,
            handle,
            **{
                "name": "billing",
                "cache": worker.cache,
                "gate": worker.gate if gate is None else gate,
                "clock": worker.clock,
                "random": worker.random,
                "listeners": [worker],
                "concurrency": 16,
                "receive_wait": 20.0,  # an idle worker takes a step for each call
            }
            | options,
        )

    return make
