"""A runtime on a queue in memory and on virtual time."""

import asyncio

import pytest

from retrytemplate import FixedBackoff
from retrytemplate.control import ProcessGate
from retrytemplate.testing import VirtualClock, run
from retrytemplate.workers import WorkerRuntime
from retrytemplate.workers.testing import LeasedMemoryCache, MemoryQueue, MemorySource


class World:
    """A queue, a context cache, and the runtimes on them."""

    def __init__(self, **options):
        self.clock = VirtualClock()
        self.queue = MemoryQueue("orders", clock=self.clock, **options)
        self.cache = LeasedMemoryCache(clock=self.clock)
        self.events = []
        self.calls = []
        self.before = None

    def on_event(self, event):
        self.events.append(event)

    def fail_until(self, operation, moment):
        """Let an operation of the queue fail until then."""

        def before(name):
            if name == operation and self.clock.monotonic() < moment:
                raise ConnectionError("unreachable")

        self.before = before

    async def note(self, message, context):
        """A handler that notes the ids."""
        self.calls.append(message.id)

    def runtime(self, handler, **options):
        source = MemorySource(self.queue, before=self.before)
        options = {
            "name": "billing",
            "cache": self.cache.connect(),
            "backoff": FixedBackoff(10.0),
            "gate": ProcessGate(),
            "listeners": [self],
            **options,
        }
        return WorkerRuntime(source, handler, clock=self.clock, **options)

    def run(self, handler, *, until=None, **options):
        """Run until the queue is empty, or until a moment; return the report."""
        return run(self.run_async(self.runtime(handler, **options), until), clock=self.clock)

    async def run_async(self, runtime, until=None):
        task = asyncio.create_task(runtime.run())
        while self.clock.monotonic() < (3600.0 if until is None else until):
            if until is None and not len(self.queue):
                break
            if task.done():
                break
            await asyncio.sleep(0.5)
        runtime.stop()
        return await task

    def run_main(self, main):
        return run(main, clock=self.clock)

    def settled(self):
        return [
            (event.action, event.outcome)
            for event in self.events
            if type(event).__name__ == "MessageSettled"
        ]

    def of(self, kind):
        return [event for event in self.events if type(event) is kind]


@pytest.fixture
def world():
    return World()


@pytest.fixture
def make_world():
    return World
