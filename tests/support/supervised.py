"""Work and listeners of the tests of supervised tasks, in asyncio and trio."""

import asyncio

import trio

from retrytemplate.control import ControlListener
from retrytemplate.workers import TaskSupervisor, cancel_reason

__all__ = [
    "Broken",
    "Listening",
    "cancel_after_a_second",
    "fails",
    "notes_reason",
    "succeeds",
    "swallows",
]


class Broken(Exception):
    """The failure of a task or a cleanup."""


class Listening(ControlListener):
    """Keeps the events."""

    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)

    def kinds(self):
        return [type(event) for event in self.events]


async def fails():
    raise Broken("no answer")


async def succeeds(value=None):
    return value


def swallows(until):
    """Work that swallows every cancellation until the event is set."""

    async def work():
        while not until.is_set():
            try:
                await until.wait()
            except asyncio.CancelledError:
                continue
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await until.wait()

    return work


def notes_reason(loop, reasons):
    """Work that waits for its cancellation, and notes the reason."""

    async def work():
        try:
            await loop.forever()
        finally:
            reasons.append(cancel_reason())

    return work


def cancel_after_a_second(loop, clock, work):
    """Run work in a task that is cancelled; check that the cancellation passes."""

    async def main():
        async with TaskSupervisor(clock=clock) as supervisor:
            task = supervisor.start(work)
            await clock.sleep_async(1)
            task.cancel()
            await task.wait()
            assert task.cancelled

    loop.run_virtually(main, clock)
