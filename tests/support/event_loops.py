"""The same asynchronous code in asyncio and in trio."""

import asyncio

import trio

__all__ = ["LOOPS"]


class Asyncio:
    CANCELLED = asyncio.CancelledError

    def run(self, main):
        return asyncio.run(main())

    async def checkpoint(self):
        await asyncio.sleep(0)

    async def forever(self):
        await asyncio.Event().wait()

    async def together(self, *functions):
        """Run them at once, and wait for all."""
        async with asyncio.TaskGroup() as group:
            for function in functions:
                group.create_task(function())

    async def cancelled(self, function, when):
        """Run it, and cancel it at the first checkpoint where this is so."""
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

    async def checkpoint(self):
        await trio.lowlevel.checkpoint()

    async def forever(self):
        await trio.sleep_forever()

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
