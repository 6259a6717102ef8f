"""A runtime from the queue to the settlement, on virtual time."""

import asyncio
import gc
import json
import threading
from weakref import ref

import pytest

from retrytemplate import current_context
from retrytemplate.control import ProcessGate
from retrytemplate.errors import CacheUnavailableError, CircuitOpenError, MisuseError
from retrytemplate.testing import VirtualClock
from retrytemplate.workers import (
    Acknowledge,
    MessageSettled,
    QueueAckFailed,
    QueuePaused,
    QueueReceiveFailed,
    RedeliveryPolicy,
    Reject,
    Release,
    Retry,
    WorkerRuntime,
)
from retrytemplate.workers.testing import LeasedMemoryCache, MemoryQueue, MemorySource


def put(world, count=1):
    return [world.queue.put(b"", id=f"m-{number}") for number in range(count)]


@pytest.mark.parametrize("value", [None, 17, Acknowledge()])
def test_returned_value_acknowledges_the_message(world, value):
    put(world, 3)

    async def handle(message, context):
        return value

    report = world.run(handle)
    assert world.settled() == [("acknowledge", "completed")] * 3
    assert world.queue.acknowledged == 3
    assert report.clean


def test_plain_function_runs_in_a_thread_with_its_retry_context():
    source, threads = MemorySource(), []
    source.queue.put(b"")

    async def main():
        loop = asyncio.get_running_loop()

        def handle(message, context):
            threads.append((threading.current_thread().name, current_context() is context))
            loop.call_soon_threadsafe(runtime.stop)

        runtime = WorkerRuntime(source, handle, name="billing", gate=ProcessGate())
        assert (await runtime.run()).clean

    asyncio.run(main())
    assert threads == [("billing-handler_0", True)]


def test_failed_attempt_is_made_again_after_its_backoff(world):
    put(world)
    times = []

    async def handle(message, context):
        times.append((context.attempt, world.clock.monotonic()))
        if context.attempt < 3:
            raise ConnectionError("unreachable")

    world.run(handle)
    assert times == [(1, 0.0), (2, 10.0), (3, 20.0)]
    assert world.queue.acknowledged == 1


def test_queue_that_can_delay_keeps_the_message(make_world):
    world = make_world(supports_delay=True)
    put(world)

    async def handle(message, context):
        world.calls.append(world.clock.monotonic())
        if message.delivery_count < 3:
            raise ConnectionError("unreachable")

    world.run(handle)
    assert world.calls == [0.0, 10.0, 20.0]


def test_requested_delay_replaces_the_backoff(world):
    put(world)

    async def handle(message, context):
        world.calls.append(world.clock.monotonic())
        return Retry(2.5, "busy") if context.attempt == 1 else None

    world.run(handle)
    assert world.calls == [0.0, 2.5]
    assert world.settled()[0] == ("requeue", "retry_requested")


def test_last_failed_attempt_dead_letters_in_the_same_delivery(world):
    put(world)

    async def handle(message, context):
        raise ConnectionError(f"attempt {context.attempt}")

    world.run(handle, retry=RedeliveryPolicy(max_attempts=3))
    [letter] = world.queue.letters
    assert (letter.phase, letter.attempts, letter.crashes) == ("handler", 3, 0)
    assert letter.reason == "ConnectionError: attempt 3"
    assert letter.code_version is None
    assert [each.message for each in letter.history] == ["attempt 1", "attempt 2", "attempt 3"]
    types = [event.error_type for event in world.of(MessageSettled)]
    assert types == ["ConnectionError"] * 3
    assert world.clock.monotonic() < 22.0
    assert len(world.cache) == 0


@pytest.mark.parametrize("is_raised", [True, False])
def test_rejected_message_is_dead_lettered_at_once(world, is_raised):
    put(world)

    async def handle(message, context):
        if is_raised:
            raise Reject("no such order")
        return Reject("no such order")

    world.run(handle)
    assert [letter.attempts for letter in world.queue.letters] == [1]
    assert world.settled() == [("dead_letter", "rejected")]


def test_unlisted_failure_is_requeued(world):
    put(world)

    async def handle(message, context):
        if context.attempt == 1:
            raise ValueError("bad row")

    world.run(handle)
    assert world.settled() == [("requeue", "failed_unlisted"), ("acknowledge", "completed")]


def test_error_that_a_template_never_retries_is_counted(world):
    put(world)

    async def handle(message, context):
        raise MisuseError("wrong call")

    world.run(handle, retry=RedeliveryPolicy(max_attempts=2))
    assert [letter.attempts for letter in world.queue.letters] == [2]


@pytest.mark.statement("S1-73")
def test_attempt_timeout_bounds_the_handler_and_not_the_settlement(world):
    put(world, 2)
    acknowledged = []

    async def handle(message, context):
        await asyncio.sleep(60.0 if message.id == "m-0" and context.attempt == 1 else 9.0)

    runtime = world.runtime(handle, attempt_timeout=10.0)
    acknowledge = runtime.source.acknowledge

    async def slow(messages):
        await asyncio.sleep(4.0)
        acknowledged.extend(message.id for message in messages)
        return await acknowledge(messages)

    runtime.source.acknowledge = slow
    world.run_main(world.run_async(runtime))
    assert acknowledged == ["m-1", "m-0"]
    assert world.settled()[0] == ("requeue", "timed_out")


def test_release_is_not_counted_and_the_second_one_pauses_the_intake(world):
    put(world)

    async def handle(message, context):
        world.calls.append((world.clock.monotonic(), context.attempt))
        return Release("later") if len(world.calls) < 3 else None

    world.run(handle)
    assert world.calls == [(0.0, 1), (0.0, 1), (1.0, 1)]
    assert [(event.reason, event.seconds) for event in world.of(QueuePaused)] == [("later", 1.0)]


def test_rejected_call_is_not_counted_and_waits_for_its_retry_after(world):
    put(world)

    async def handle(message, context):
        world.calls.append((world.clock.monotonic(), context.attempt))
        if len(world.calls) == 1:
            raise CircuitOpenError("open", retry_after=7.0)

    world.run(handle)
    assert world.calls == [(0.0, 1), (7.0, 1)]
    assert world.settled()[0] == ("requeue", "deferred")


def test_message_that_cannot_be_decoded_is_dead_lettered_without_an_attempt(world):
    world.queue.put(b"{", id="m-0")

    async def handle(payload, context):
        world.calls.append(payload)

    def decode(message):
        raise ValueError("no JSON")

    world.run(handle, decode=decode)
    [letter] = world.queue.letters
    assert (letter.phase, letter.reason, world.calls) == ("decode", "no JSON", [])


@pytest.mark.parametrize("decode", [None, json.loads], ids=["handler", "decode"])
def test_code_version_is_stored_with_each_dead_letter(world, decode):
    put(world)

    async def handle(message, context):
        raise Reject("no such order")

    world.run(handle, decode=decode, code_version="v7")
    [letter] = world.queue.letters
    assert (letter.phase, letter.code_version) == ("decode" if decode else "handler", "v7")
    assert letter.as_json()["code_version"] == "v7"


def test_code_version_of_another_type_is_named():
    with pytest.raises(TypeError, match="code_version must be a non-empty str or None, got 7"):
        WorkerRuntime(MemorySource(), print, name="billing", code_version=7)


def test_handler_gets_the_decoded_body_and_the_key(world):
    world.queue.put(b"17", id="m-0")

    async def handle(payload, context):
        world.calls.append((payload, context.key))

    world.run(handle, decode=lambda message: int(message.body), key=lambda message: "order-17")
    assert world.calls == [(17, "order-17")]


def test_redelivery_of_a_success_is_acknowledged_without_a_run(world):
    world.queue.put(b"", id="m-0")
    world.queue.put(b"", id="m-0")  # the same message, sent twice

    async def handle(message, context):
        world.calls.append(message.id)

    world.run(handle, concurrency=1)
    assert world.calls == ["m-0"]
    assert world.settled() == [("acknowledge", "completed"), ("acknowledge", "already_completed")]


def test_duplicate_in_flight_waits_for_the_first_one(world):
    world.queue.put(b"", id="m-0")
    world.queue.put(b"", id="m-0")

    async def handle(message, context):
        world.calls.append(message.id)
        await asyncio.sleep(5.0)

    world.run(handle)
    assert world.calls == ["m-0"]
    assert ("requeue", "in_progress") in world.settled()


def test_number_of_attempts_is_at_most_the_concurrency(world):
    put(world, 30)
    running, most = [], []

    async def handle(message, context):
        running.append(message.id)
        most.append(len(running))
        await asyncio.sleep(1.0)
        running.remove(message.id)

    world.run(handle, concurrency=4)
    assert max(most) == 4
    assert world.clock.monotonic() < 10.0


def test_prefetched_messages_and_those_in_flight_are_at_most_prefetch(world):
    put(world, 30)
    most = []

    async def handle(message, context):
        owned = [entry for entry in world.queue._entries.values() if entry.owner is not None]
        most.append(len(owned))
        await asyncio.sleep(1.0)

    world.run(handle, concurrency=2, prefetch=5)
    assert max(most) == 5


def test_intake_does_not_call_the_queue_for_each_message(world):
    put(world, 400)
    calls = []
    world.before = calls.append

    async def handle(message, context):
        await asyncio.sleep(world.clock.monotonic() % 0.7 + 0.1)

    world.run(handle, concurrency=4, prefetch=16)
    assert world.queue.acknowledged == 400
    assert calls.count("receive") < 400 / 4 + 10


def test_intake_without_prefetched_messages_fills_a_free_place_at_once(world):
    put(world, 3)
    began = []

    async def handle(message, context):
        began.append(world.clock.monotonic())
        await asyncio.sleep(10.0 if message.id == "m-0" else 1.0)

    world.run(handle, concurrency=2, prefetch=2)
    assert began == pytest.approx([0.0, 0.0, 1.0], abs=0.01)


def test_processed_message_is_freed_without_the_garbage_collector(world):
    put(world)
    contexts = []

    async def handle(message, context):
        contexts.append(ref(context))

    async def main():
        runtime = world.runtime(handle)
        task = asyncio.create_task(world.run_async(runtime, until=30.0))
        await asyncio.sleep(25.0)
        alive = [context() for context in contexts]
        await task
        return alive

    gc.disable()
    try:
        assert world.run_main(main()) == [None]
    finally:
        gc.enable()


def test_long_attempt_keeps_its_message_and_its_lease(world):
    put(world)

    async def handle(message, context):
        world.calls.append(context.attempt)
        await asyncio.sleep(600.0)

    world.run(handle, attempt_timeout=1000.0)
    assert world.calls == [1]
    assert world.queue.acknowledged == 1


def test_long_delay_is_left_to_the_visibility_timeout(world):
    put(world)

    async def handle(message, context):
        world.calls.append(world.clock.monotonic())
        return Retry(100.0, "busy") if len(world.calls) == 1 else None

    world.run(handle, max_local_delay=60.0)
    # Redelivered after 60 s, too early; then kept for the rest.
    assert world.calls == [0.0, 100.0]
    assert world.settled()[0] == ("none", "retry_requested")


@pytest.mark.statement("S1-72")
def test_failed_acknowledgement_is_repeated_then_counted(world, caplog):
    put(world)
    world.fail_until("acknowledge", 20.0)

    world.run(world.note)
    [event] = world.of(QueueAckFailed)
    assert (event.queue_name, event.reason, event.count) == ("orders", "ConnectionError", 1)
    assert (
        "billing: cannot settle 1 message: ConnectionError; the queue delivers each again: check "
        "its server, or raise settle_timeout"
    ) in caplog.messages
    assert world.calls == ["m-0"]  # the redelivery is acknowledged while the success is remembered
    assert world.queue.acknowledged == 1


def test_unavailable_queue_is_read_again_and_logged_once(world, caplog):
    put(world)
    world.fail_until("receive", 5.0)

    world.run(world.note)
    assert world.calls == ["m-0"]
    assert len(world.of(QueueReceiveFailed)) > 2
    assert [text for text in caplog.messages if "cannot receive" in text] == [
        "billing: cannot receive messages from orders: ConnectionError: unreachable; the worker "
        "tries again after growing pauses, and messages in flight continue: check the server of "
        "the queue"
    ]


def test_visibility_that_cannot_be_extended_is_logged_and_tried_again(world, caplog):
    put(world)
    world.fail_until("extend", 25.0)

    async def handle(message, context):
        world.calls.append(message.id)
        await asyncio.sleep(70.0)

    world.run(handle, attempt_timeout=100.0)
    assert (world.calls, world.queue.acknowledged) == (["m-0"], 1)
    assert [text for text in caplog.messages if "cannot extend" in text] == [
        "billing: cannot extend the visibility timeout of 1 message: ConnectionError: unreachable; "
        "the worker tries again; a message whose timeout ends before is delivered to another worker"
    ]


class FailingCache(LeasedMemoryCache):
    """The store is unavailable while ``is_away`` names the operation."""

    is_away = ()

    def begin(self, key, **options):
        if "begin" in self.is_away:
            raise CacheUnavailableError("unreachable")
        return super().begin(key, **options)

    def succeed(self, claim, **options):
        if "succeed" in self.is_away:
            self._renewer.drop(claim)
            raise CacheUnavailableError("unreachable")
        return super().succeed(claim, **options)


def test_attempts_that_fail_in_one_store_outage_pause_once(world):
    put(world, 8)
    cache = FailingCache(clock=world.clock)
    cache.is_away = ("begin",)

    async def handle(message, context):
        pass

    async def main():
        runtime = world.runtime(handle, cache=cache, concurrency=8)
        task = asyncio.create_task(world.run_async(runtime))
        await asyncio.sleep(0.05)
        cache.is_away = ()
        await task

    world.run_main(main())
    assert max(event.seconds for event in world.of(QueuePaused)) < 1.0


def test_error_of_another_part_of_an_execution_is_logged_with_its_message(world, caplog):
    put(world)

    class Broken(LeasedMemoryCache):
        def begin(self, key, **options):
            if world.clock.monotonic() < 1.0:
                raise ValueError("odd")
            return super().begin(key, **options)

    world.run(world.note, cache=Broken(clock=world.clock))
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert any(each.startswith("billing key=m-0: attempt 0 of 5: ") for each in errors)


@pytest.mark.parametrize(("operation", "calls"), [("begin", 1), ("succeed", 2)])
def test_store_outage_releases_the_message_and_pauses(world, caplog, operation, calls):
    put(world)
    cache = FailingCache(clock=world.clock)
    cache.is_away = (operation,)

    async def handle(message, context):
        world.calls.append(message.id)

    async def main():
        runtime = world.runtime(handle, cache=cache)
        task = asyncio.create_task(world.run_async(runtime))
        await asyncio.sleep(0.05)
        cache.is_away = ()
        await task

    world.run_main(main())
    assert world.settled()[0] == ("release", "store_unavailable")
    assert world.queue.acknowledged == 1
    assert len(world.calls) == calls  # an unrecorded success is never acknowledged
    assert world.of(QueuePaused)
    assert (
        "billing: the context cache cannot begin or end an attempt: CacheUnavailableError: "
        "unreachable; the worker releases its messages and tries again after growing pauses: "
        "check the server of the cache"
    ) in caplog.messages
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


def test_dead_letter_that_cannot_be_written_is_tried_again_without_an_attempt(world):
    put(world)
    world.fail_until("dead_letter", 12.0)

    async def handle(message, context):
        world.calls.append(message.id)
        raise Reject("gone")

    world.run(handle)
    assert world.calls == ["m-0"]
    assert [letter.reason for letter in world.queue.letters] == ["Reject: gone"]
    assert world.settled()[0] == ("requeue", "letter_not_written")


def test_lost_attempt_beside_others_makes_the_next_one_exclusive(world):
    put(world, 3)
    inside = []

    async def main():
        crashed = world.cache.connect()
        crashed.begin("billing/s:m-0", worker="host:1:abc-1")
        await crashed.close()
        await asyncio.sleep(30.0)
        await world.run_async(world.runtime(handle))

    async def handle(message, context):
        inside.append(message.id)
        await asyncio.sleep(1.0)
        if message.id == "m-0":
            assert inside == ["m-0"]
        inside.remove(message.id)

    world.run_main(main())
    kinds = [type(event).__name__ for event in world.events]
    assert kinds.count("MessageSuspected") == 1
    assert kinds.count("MessageExclusive") == 1
    assert world.queue.letters == []


def test_last_attributed_crash_dead_letters_without_an_attempt(world):
    put(world)

    async def main():
        crashed = world.cache.connect()
        claim = crashed.begin("billing/s:m-0", worker="host:1:abc-1!")
        await crashed.close()
        await asyncio.sleep(claim.lease)
        await world.run_async(world.runtime(handle, retry=RedeliveryPolicy(max_crashes=1)))

    async def handle(message, context):
        world.calls.append(message.id)

    world.run_main(main())
    [letter] = world.queue.letters
    assert (letter.phase, letter.crashes, letter.attempts, world.calls) == ("crash", 1, 0, [])
    assert world.settled() == [("dead_letter", "crashed")]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": " "}, "name must be a non-blank str"),
        ({"concurrency": 0}, "concurrency must be an int >= 1, got 0"),
        ({"prefetch": 0}, "prefetch must be an int >= 1, got 0"),
        ({"attempt_timeout": 0}, "attempt_timeout must be"),
        ({"retry": 3}, "retry must be a RedeliveryPolicy, got 3"),
        ({"backoff": 3}, "backoff must be a Backoff, got 3"),
        ({"key": "id"}, "key must be callable"),
        ({"listeners": [3]}, "listeners: each must be an object"),
        ({"cache": object()}, "cache must be an object with the methods"),
    ],
)
def test_wrong_setting_is_named(options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        WorkerRuntime(MemorySource(), print, **{"name": "billing", **options})


def test_blocking_cache_is_rejected(tmp_path):
    from retrytemplate import SQLRetryContextCache

    cache = SQLRetryContextCache(f"sqlite:///{tmp_path}/retry.db")
    with cache, pytest.raises(MisuseError, match="AsyncSQLRetryContextCache"):
        WorkerRuntime(MemorySource(), print, name="billing", cache=cache)


def test_source_without_cache_needs_one():
    class Bare(MemorySource):
        def default_cache(self):
            return None

    with pytest.raises(MisuseError, match="cache must be given, because Bare has no default one"):
        WorkerRuntime(Bare(), print, name="billing")


def test_default_cache_reads_the_clock_of_its_queue():
    clock = VirtualClock()
    runtime = WorkerRuntime(
        MemorySource(MemoryQueue(clock=clock)), print, name="billing", gate=ProcessGate()
    )
    assert runtime.cache._clock is clock
