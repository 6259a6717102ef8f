"""The same asynchronous code in asyncio and in trio."""

import asyncio

import trio

from retrytemplate.testing import run, run_trio

__all__ = ["LOOPS"]


class Asyncio:
    CANCELLED = asyncio.CancelledError

    def run(self, main):
        return asyncio.run(main())

    def run_virtually(self, main, clock):
        """Run it with the timers of the loop on the virtual clock."""
        return run(main(), clock=clock)

    def event(self):
        return asyncio.Event()

    async def checkpoint(self):
        await asyncio.sleep(0)

    async def forever(self):
        await asyncio.Event().wait()

    def __repr__(self):
        return "asyncio"

    async def together(self, *functions):
        """Run them concurrently and wait for all."""
        async with asyncio.TaskGroup() as group:
            for function in functions:
                group.create_task(function())

    async def cancelled(self, function, when):
        """Run it, and cancel it at the first checkpoint at which the condition holds."""
        task = asyncio.ensure_future(function())
        while not when():
            await self.checkpoint()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


class Trio:
    CANCELLED = trio.Cancelled

    def run(self, main):
        return trio.run(main, strict_exception_groups=True)

    def run_virtually(self, main, clock):
        return run_trio(main, clock=clock)

    def event(self):
        return trio.Event()

    async def checkpoint(self):
        await trio.lowlevel.checkpoint()

    async def forever(self):
        await trio.sleep_forever()

    def __repr__(self):
        return "trio"

    async def together(self, *functions):
        async with trio.open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)

    async def cancelled(self, function, when):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(function)
            while not when():
                await self.checkpoint()
            nursery.cancel_scope.cancel()


LOOPS = [Asyncio(), Trio()]
