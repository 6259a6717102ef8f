"""Handlers that are plain functions: they run in threads, which no attempt can cancel."""

import asyncio
import threading

import pytest

from retrytemplate import FixedBackoff
from retrytemplate.control import ProcessGate
from retrytemplate.errors import GateTimeoutError
from retrytemplate.workers import MessageSettled, RedeliveryPolicy, WorkerRuntime
from retrytemplate.workers.runtime.threads import HandlerThreads
from retrytemplate.workers.testing import MemorySource
from tests.support.polling import TIMEOUT, wait_until

pytestmark = pytest.mark.statement("S1-111")


class Attempts:
    """Stops a runtime after the settlement at which a condition is true."""

    def __init__(self, condition):
        self.condition = condition
        self.outcomes = []

    def on_event(self, event):
        if isinstance(event, MessageSettled):
            self.outcomes.append(event.outcome)
            if self.condition():
                self.runtime.stop()


def run_until(condition, handler, *, messages=1, **settings):
    """Make attempts until the condition is true; return the runtime, outcomes and report.

    An attempt that is cancelled before its thread has begun abandons none, and is made again.
    """
    source, attempts = MemorySource(), Attempts(condition)
    for _ in range(messages):
        source.queue.put(b"")
    settings = {
        "attempt_timeout": 0.05,
        "retry": RedeliveryPolicy(max_attempts=100_000),
        "backoff": FixedBackoff(0.01),
        "gate": ProcessGate(),
        "receive_wait": 0.01,
        "listeners": [attempts],
    } | settings
    attempts.runtime = WorkerRuntime(source, handler, name="billing", **settings)
    report = asyncio.run(attempts.runtime.run())
    return attempts.runtime, attempts.outcomes, report


@pytest.fixture
def go():
    """An event that ends the handlers, at the latest after the test."""
    event = threading.Event()
    yield event
    event.set()


def test_thread_beyond_its_attempt_is_counted_until_it_ends(go):
    begun = threading.Event()

    def handle(message, context):
        begun.set()
        go.wait(TIMEOUT)

    runtime, outcomes, report = run_until(begun.is_set, handle)
    assert set(outcomes) == {"timed_out"}
    assert (report.stuck, report.error) == (0, None)
    assert runtime.snapshot().abandoned_threads == 1
    assert runtime.snapshot().as_json()["abandoned_threads"] == 1
    go.set()
    wait_until(lambda: not runtime.snapshot().abandoned_threads)


def test_stop_flag_is_set_at_the_attempt_timeout():
    returned = threading.Event()

    def handle(message, context, *, stop):
        assert stop.wait(TIMEOUT)
        returned.set()

    _, outcomes, _ = run_until(returned.is_set, handle, concurrency=1000)
    assert set(outcomes) == {"timed_out"}


def test_stop_flag_is_set_when_a_shutdown_cancels_the_attempt():
    flags = []

    async def main():
        loop, source = asyncio.get_running_loop(), MemorySource()
        source.queue.put(b"")

        def handle(message, context, stop=None):
            for _ in range(2):  # the second one ends the grace period
                loop.call_soon_threadsafe(runtime.stop)
            flags.append(stop.wait(TIMEOUT))

        runtime = WorkerRuntime(
            source, handle, name="billing", concurrency=1, gate=ProcessGate(), receive_wait=0.01
        )
        return await runtime.run()

    report = asyncio.run(main())
    assert (report.cancelled, report.error) == (1, None)
    wait_until(lambda: flags)
    assert flags == [True]


def test_stop_flag_of_a_handler_that_returns_in_time_is_not_set():
    flags = []

    def handle(message, context, *, stop):
        flags.append(stop)

    _, outcomes, report = run_until(lambda: True, handle, attempt_timeout=TIMEOUT)
    assert (outcomes, report.clean) == (["completed"], True)
    assert not flags[0].is_set()


def test_abandoned_thread_keeps_no_attempt_waiting(go):
    begun = threading.Event()

    def handle(payload, context):
        if payload == "hangs":
            begun.set()
            go.wait(TIMEOUT)
        return payload

    async def main():
        threads = HandlerThreads(handle, "billing", 1, ProcessGate(), lambda error: None)
        hanging = asyncio.create_task(threads.call("hangs", None))
        await asyncio.to_thread(begun.wait, TIMEOUT)
        hanging.cancel()
        await asyncio.wait([hanging])
        async with asyncio.timeout(TIMEOUT):
            value = await threads.call("next", None)
        counted = threads.abandoned
        threads.close()
        return value, counted

    assert asyncio.run(main()) == ("next", 1)


def test_exclusive_entry_waits_for_an_abandoned_thread(go):
    begun, gate = threading.Event(), ProcessGate()

    def handle(message, context):
        begun.set()
        go.wait(TIMEOUT)

    run_until(begun.is_set, handle, gate=gate)
    assert gate.snapshot().shared == 1
    with pytest.raises(GateTimeoutError), gate.exclusive(0):
        pass
    go.set()
    with gate.exclusive(TIMEOUT):
        pass


def test_runtime_with_an_abandoned_thread_per_attempt_stops_with_an_error(go):
    def handle(message, context):
        go.wait(TIMEOUT)

    _, outcomes, report = run_until(lambda: False, handle, messages=2, concurrency=2)
    assert set(outcomes) == {"timed_out"}
    assert "2 threads continue after the end of their attempts" in str(report.error)
    assert not report.clean
