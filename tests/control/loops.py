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

    async def together(self, *functions):
        """Run them at once, and wait for all."""
        async with asyncio.TaskGroup() as group:
            for function in functions:
                group.create_task(function())


class Trio:
    CANCELLED = trio.Cancelled

    def run(self, main):
        return trio.run(main, strict_exception_groups=True)

    async def checkpoint(self):
        await trio.lowlevel.checkpoint()

    async def together(self, *functions):
        async with trio.open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)


LOOPS = [Asyncio(), Trio()]
