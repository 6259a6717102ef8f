"""A runtime over a stream in Valkey, and processes of it that are killed."""

import pytest

from retrytemplate import FixedBackoff
from retrytemplate.control import ProcessGate
from retrytemplate.workers import (
    MessageSettled,
    QueueReceiveFailed,
    RedeliveryPolicy,
    WorkerRuntime,
)
from tests.support import valkey
from tests.support.fork_server import processes
from tests.support.redis_streams import RedisStream
from tests.support.stream_worker import (
    BEGUN,
    CRASHES_ALWAYS,
    CRASHES_ONCE,
    EFFECTS,
    attributed,
    exclusive,
    work,
)


class Stopping:
    """Stops a runtime after a number of settlements, and keeps the events."""

    def __init__(self, number):
        self.number = number
        self.events = []

    def on_event(self, event):
        self.events.append(event)
        if len(self.settled()) == self.number:
            self.runtime.stop()

    def settled(self):
        return [
            (event.action, event.outcome)
            for event in self.events
            if isinstance(event, MessageSettled)
        ]


async def settle(stream, handler, number, *others, **settings):
    """Run until *number* messages are settled; return the settlements.

    :param others: further listeners.
    """
    listener = Stopping(number)
    listener.runtime = WorkerRuntime(
        stream.source(dead_letters=f"{stream.name}-dead"),
        handler,
        **{
            "name": stream.name,
            "gate": ProcessGate(),
            "backoff": FixedBackoff(0.01),
            "receive_wait": 0.1,
            "listeners": [listener, *others],
        }
        | settings,
    )
    report = await listener.runtime.run()
    assert report.clean
    return listener.settled()


async def test_processed_messages_leave_the_stream(stream):
    entries = [stream.put(str(number)) for number in range(30)]
    handled = []

    async def handle(message, context):
        handled.append(message.id)

    assert await settle(stream, handle, 30) == [("acknowledge", "completed")] * 30
    assert handled == entries
    assert stream.client.xlen(stream.name) == 0
    assert stream.consumers() == {}


async def test_failed_message_stays_pending_until_its_next_attempt(stream):
    entry = stream.put("a")
    attempts = []

    async def handle(message, context):
        attempts.append((context.attempt, list(stream.pending())))
        if context.attempt < 3:
            raise ConnectionError("unreachable")

    await settle(stream, handle, 3)
    assert attempts == [(1, [entry]), (2, [entry]), (3, [entry])]


async def test_exhausted_message_is_dead_lettered_with_its_history(stream):
    stream.put("a", id="order-17")

    async def handle(message, context):
        raise ConnectionError(f"attempt {context.attempt}")

    settled = await settle(stream, handle, 2, retry=RedeliveryPolicy(max_attempts=2))
    assert settled[-1][0] == "dead_letter"
    [letter] = stream.letters(f"{stream.name}-dead")
    assert (letter["key"], letter["phase"]) == (f"{stream.name}/s:order-17", "handler")
    assert [each["message"] for each in letter["history"]] == ["attempt 1", "attempt 2"]
    assert letter["message"]["body"] == "a"
    assert stream.client.xlen(stream.name) == 0


async def test_damaged_entry_is_dead_lettered_without_an_attempt(stream):
    stream.client.xadd(stream.name, {"other": "x"})
    stream.put("a")
    handled = []

    async def handle(message, context):
        handled.append(message.body)

    settled = await settle(stream, handle, 2)
    assert ("dead_letter", "undecodable") in settled
    assert handled == [b"a"]
    [letter] = stream.letters(f"{stream.name}-dead")
    assert letter["phase"] == "decode"
    assert letter["reason"].endswith("the field body is missing")
    assert letter["message"]["body"] == "{b'other': b'x'}"


@pytest.mark.stress
async def test_runtime_continues_when_a_killed_server_is_back(valkey_binary, tmp_path):
    with valkey.started(valkey_binary, tmp_path / "server") as server:
        stream = RedisStream(server.url)
        handled = []

        async def handle(message, context):
            handled.append(message.id)

        class Restarting:
            def on_event(self, event):
                if isinstance(event, QueueReceiveFailed) and server.process is None:
                    server.start()
                    entries.append(stream.put("b"))
                elif isinstance(event, MessageSettled) and len(handled) == 1:
                    server.kill()

        entries = [stream.put("a")]
        await settle(stream, handle, 2, Restarting())
        assert handled == entries
        stream.close()


# -- processes that are killed


def run_processes(stream, concurrency, prefetch):
    """Start a process again each time it crashes, until the stream is empty; count the crashes."""
    crashes = 0
    while True:
        arguments = stream.url, stream.name, concurrency, prefetch
        process = processes.Process(target=work, args=arguments, daemon=True)
        process.start()
        process.join()
        if process.exitcode != -9:
            assert process.exitcode == 0
            return crashes
        crashes += 1


def tally(stream, what):
    counts = stream.client.hgetall(f"{stream.name}-{what}")
    return {key: int(count) for key, count in counts.items()}


def test_message_of_a_killed_process_runs_exclusively_next(stream):
    stream.put(CRASHES_ONCE, id="suspect")
    stream.put("a", id="later")
    assert run_processes(stream, 1, 1) == 1
    assert tally(stream, BEGUN) == {"suspect": 2, "later": 1}
    assert tally(stream, exclusive) == {"suspect": 1}
    assert tally(stream, attributed) == {}
    assert stream.letters(f"{stream.name}-dead") == []


def check_poison(stream, bystanders, concurrency, prefetch):
    """Process bystanders and one poison message; check that all is exact."""
    for number in range(bystanders):
        if number == bystanders // 2:
            stream.put(CRASHES_ALWAYS, id="poison")
        stream.put("a", id=f"m-{number}")
    crashes = run_processes(stream, concurrency, prefetch)
    assert 2 <= crashes <= 3
    assert len(tally(stream, EFFECTS)) == bystanders
    assert tally(stream, BEGUN)["poison"] == crashes
    assert tally(stream, attributed) == {"poison": 2}
    [letter] = stream.letters(f"{stream.name}-dead")
    assert (letter["message"]["id"], letter["phase"], letter["crashes"]) == ("poison", "crash", 2)
    assert stream.client.xlen(stream.name) == 0


@pytest.mark.statement("S1-75")
def test_poison_message_is_dead_lettered_and_bystanders_complete(stream):
    check_poison(stream, 6, 4, 7)


@pytest.mark.stress
@pytest.mark.parametrize("prefetch", [1, 10, 50])
def test_poison_among_sixty_messages_is_found_exactly(stream, prefetch):
    check_poison(stream, 60, prefetch, prefetch)
