"""The source over a stream in Valkey: owners, settlements, abandoned entries."""

import os
import subprocess
import sys
from contextlib import asynccontextmanager, closing
from urllib.parse import urlsplit

import pytest

from retrytemplate import MisuseError
from retrytemplate._storage import process_liveness
from retrytemplate.backends import AsyncRedisRetryContextCache
from retrytemplate.workers import RedisStreamSource, SourceUnavailableError
from retrytemplate.workers.message import DamagedMessage
from retrytemplate.workers.sources import redis_scripts as scripts
from retrytemplate.workers.sources import redis_streams
from retrytemplate.workers.testing import SourceConformance
from retrytemplate.workers.testing.source_conformance import letter_for
from tests.support.proxy import Proxy
from tests.support.redis_streams import RedisStream


class TestConformance(SourceConformance):
    @pytest.fixture(autouse=True)
    def _stream(self, stream):
        self.stream = stream

    async def create_queue(self):
        self.stream.client.delete(self.stream.name)

    def make(self):
        return self.stream.source()

    async def put(self, body):
        self.stream.put(body)

    async def end_visibility(self, source):
        self.stream.age(source.visibility_timeout)


@asynccontextmanager
async def closed_at_end(source):
    await source.open()
    try:
        yield source
    finally:
        await source.close()


def opened(stream, **settings):
    return closed_at_end(stream.source(**settings))


@pytest.fixture
async def source(stream):
    async with opened(stream) as made:
        yield made


async def receive_one(source):
    [message] = await source.receive(1, 0.0)
    return message


def ids(messages):
    return [message.id for message in messages]


# -- open and close


async def test_open_creates_group_that_gets_earlier_entries(stream):
    entry = stream.put("a")
    async with opened(stream) as source:
        assert (await receive_one(source)).id == entry


async def test_open_changes_no_existing_group(stream, source):
    stream.put("a")
    message = await receive_one(source)
    async with opened(stream) as other:
        assert await other.receive(1, 0.0) == []
    assert list(stream.pending()) == [message.id]


async def test_open_with_second_group_rejects_deletion(stream, source):
    stream.client.xgroup_create(stream.name, "audit")
    second = stream.source(group="billing")
    with pytest.raises(MisuseError, match=r"has the groups audit, billing, workers: each would"):
        await second.open()
    await second.close()


async def test_groups_without_deletion_each_get_every_message(stream):
    groups = ["billing", "audit"]
    for group in groups:
        async with opened(stream, group=group, delete_acknowledged=False):
            pass
    entry = stream.put("a")
    for group in groups:
        async with opened(stream, group=group, delete_acknowledged=False) as source:
            message = await receive_one(source)
            assert message.id == entry
            assert await source.acknowledge([message]) == []
    assert stream.client.xlen(stream.name) == 1


async def test_open_on_key_of_other_type_is_misuse(stream):
    stream.client.set(stream.name, "text")
    source = stream.source()
    with pytest.raises(MisuseError, match=r"must be a stream: WRONGTYPE"):
        await source.open()
    await source.close()


async def test_close_deletes_a_consumer_that_owns_nothing(stream):
    async with opened(stream, consumer="billing-1") as source:
        [name] = stream.consumers() or [source._consumer]
        stream.put("a")
        await source.acknowledge([await receive_one(source)])
        [name] = stream.consumers()
        assert name.startswith("billing-1-")
    assert stream.consumers() == {}


async def test_close_keeps_a_consumer_that_owns_a_message(stream):
    async with opened(stream) as source:
        stream.put("a")
        await receive_one(source)
    assert list(stream.consumers().values()) == [1]


# -- entries


async def test_entry_becomes_a_message_with_its_fields(stream, source):
    entry = stream.put("a", id="order-17", headers='{"tenant": "x"}')
    message = await receive_one(source)
    assert (message.id, message.body, message.headers) == ("order-17", b"a", {"tenant": "x"})
    assert (message.queue, message.delivery_count) == (stream.name, 1)
    assert message.enqueued_at == int(entry.partition("-")[0]) / 1000


@pytest.mark.parametrize(
    "fields, damage, body",
    [
        ({"other": "x"}, "the field body is missing", b"{b'other': b'x'}"),
        ({"body": "a", "headers": "{"}, "Expecting property name", b"a"),
        ({"body": "a", "headers": '{"n": 1}'}, "must be a JSON object of strings", b"a"),
        ({"body": "a", "headers": "[]"}, "must be a JSON object of strings", b"a"),
        ({"body": "a", "id": b"\xff"}, "can't decode byte 0xff", b"a"),
    ],
)
async def test_damaged_entry_is_a_damaged_message(stream, source, fields, damage, body):
    entry = stream.client.xadd(stream.name, fields)
    message = await receive_one(source)
    assert isinstance(message, DamagedMessage)
    assert (message.id, message.body) == (entry, body)
    assert message.damage.startswith(f"entry {entry}: ")
    assert damage in message.damage
    assert await source.acknowledge([message]) == []


# -- receive


async def test_new_and_abandoned_messages_are_received_in_turn(stream, source):
    abandoned = [stream.put("old") for _ in range(4)]
    async with opened(stream) as other:
        await other.receive(4, 0.0)
        stream.age(60)
        for _ in range(4):
            stream.put("new")
        received = [await receive_one(source) for _ in range(8)]
    assert [message.body for message in received] == [b"old", b"new"] * 4
    assert ids(received[::2]) == abandoned


async def test_message_in_flight_here_is_not_received_again(stream, source):
    entry = stream.put("a")
    message = await receive_one(source)
    stream.age(60)
    assert await source.receive(1, 0.0) == []
    assert stream.owner(entry) == source._consumer
    assert await source.acknowledge([message]) == []


async def test_message_that_is_not_extended_is_received_here_again(stream):
    async with opened(stream, visibility_timeout=0.01) as source:
        stream.put("a")
        message = await receive_one(source)
        [again] = await source.receive(1, 1.0)
        assert (again.id, again.redelivered) == (message.id, True)
        assert await source.acknowledge([message]) == [message]
        assert await source.acknowledge([again]) == []


async def test_entry_deleted_while_pending_is_not_received(stream, source):
    entry = stream.put("a")
    async with opened(stream) as other:
        await receive_one(other)
        stream.client.xdel(stream.name, entry)
        stream.age(60)
        assert await source.receive(1, 0.0) == []
    assert stream.pending() == {}


async def test_group_that_was_deleted_is_created_again(stream, source):
    stream.client.delete(stream.name)
    stream.put("a")
    with pytest.raises(SourceUnavailableError, match="NOGROUP"):
        await source.receive(1, 0.0)
    assert (await receive_one(source)).body == b"a"


# -- ended processes


def process(pid, start):
    namespace, boot, *_ = process_liveness.process_fingerprint().rsplit(" ", 3)
    return f"{namespace} {boot} {pid} {start}"


async def test_messages_of_an_ended_process_are_received_at_once(stream, source):
    entries = [stream.put("a") for _ in range(3)]
    _, start = process_liveness._process(str(parent := os.getppid()))
    gone, alive = f"one-1 {process(os.getpid(), 1)}", f"two-1 {process(parent, start)}"
    for consumer, count in ((gone, 2), (alive, 1)):
        stream.client.xreadgroup(stream.group, consumer, {stream.name: ">"}, count=count)
    assert ids(await source.receive(1, 0.0)) == entries[:1]
    assert stream.consumers()[gone] == 1
    message = await receive_one(source)
    assert (message.id, message.delivery_count) == (entries[1], 2)
    assert await source.receive(1, 0.6) == []
    assert set(stream.consumers()) == {alive, source._consumer}


async def test_unused_consumer_of_another_host_is_deleted(stream, source, monkeypatch):
    others = ["one-1 pid:[1] boot 17 99", "made by hand"]
    for consumer in others:
        stream.client.xgroup_createconsumer(stream.name, stream.group, consumer)
    assert await source.receive(1, 0.0) == []
    assert set(others) <= set(stream.consumers())
    monkeypatch.setattr(redis_streams, "UNUSED", -1)
    source._look_at = 0.0
    assert await source.receive(1, 0.0) == []
    assert others[0] not in stream.consumers()
    assert others[1] in stream.consumers()


WORKER = """
import asyncio, sys
from retrytemplate.workers import RedisStreamSource

async def work():
    source = RedisStreamSource(sys.argv[1], sys.argv[2], group=sys.argv[3])
    await source.open()
    first, _ = await source.receive(2, 0.0)
    await source.acknowledge([first])
    print("one of two is acknowledged", flush=True)
    await asyncio.Event().wait()

asyncio.run(work())
"""


async def test_message_of_a_killed_process_is_received_at_once(stream, source):
    entries = [stream.put("a") for _ in range(2)]
    command = [sys.executable, "-c", WORKER, stream.url, stream.name, stream.group]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        worker.stdout.readline()
        worker.kill()
    assert ids(await source.receive(2, 0.0)) == entries[1:]


# -- settlements


async def test_acknowledged_entry_is_deleted(stream, source):
    stream.put("a")
    await source.acknowledge([await receive_one(source)])
    assert stream.client.xlen(stream.name) == 0


async def test_acknowledgement_with_lost_answers_is_not_rejected(stream):
    """Although the entry is no longer pending when its visibility is extended."""
    stream.put("a")
    words = scripts.ACKNOWLEDGE.sha.encode()
    stream.client.script_load(scripts.ACKNOWLEDGE.text)
    with Proxy(urlsplit(stream.url).port) as proxy:
        proxied = RedisStreamSource(f"redis://127.0.0.1:{proxy.port}", stream.name, group="workers")
        async with closed_at_end(proxied) as source:
            message = await receive_one(source)
            proxy.cut("after", words, times=2)  # the library repeats it once by itself
            with pytest.raises(SourceUnavailableError):
                await source.acknowledge([message])
            assert proxy.cuts == 2
            assert await source.extend([message]) == []
            assert await source.acknowledge([message]) == []
    assert stream.client.xlen(stream.name) == 0


async def test_dead_letter_is_an_entry_that_a_source_receives(stream):
    letters = f"{stream.name}-dead"
    async with opened(stream, dead_letters=letters) as source:
        stream.put("a", headers='{"tenant": "x"}')
        message = await receive_one(source)
        for _ in range(2):  # the second time after a lost answer
            await source.dead_letter(message, letter_for(message))
    [letter] = stream.letters(letters)
    assert letter == letter_for(message).as_json()
    with closing(RedisStream(stream.url, letters)) as dead:
        async with opened(dead) as source:
            assert (await receive_one(source)).id == letter["id"]


async def test_dead_letter_that_cannot_be_written_keeps_the_message(stream):
    letters = f"{stream.name}-dead"
    stream.client.set(letters, "no stream")
    async with opened(stream, dead_letters=letters) as source:
        entry = stream.put("a")
        message = await receive_one(source)
        with pytest.raises(SourceUnavailableError, match=r"dead_letter .* failed .*WRONGTYPE"):
            await source.dead_letter(message, letter_for(message))
        assert list(stream.pending()) == [entry]


async def test_former_owner_writes_no_dead_letter(stream):
    letters = f"{stream.name}-dead"
    async with opened(stream, dead_letters=letters) as source:
        entry = stream.put("a")
        message = await receive_one(source)
        stream.give(entry, "another")
        await source.dead_letter(message, letter_for(message))
        assert stream.letters(letters) == []
        assert stream.owner(entry) == "another"


async def test_dead_letter_stream_is_limited_by_maxlen(stream):
    letters = f"{stream.name}-dead"
    async with opened(stream, dead_letters=letters, maxlen=1) as source:
        for _ in range(300):  # about: whole nodes of entries are deleted
            stream.put("a")
        for message in await source.receive(300, 0.0):
            await source.dead_letter(message, letter_for(message))
    assert stream.client.xlen(letters) < 300


async def test_stream_cannot_delay_a_message(stream, source):
    stream.put("a")
    with pytest.raises(MisuseError, match="supports_delay is False"):
        await source.requeue(await receive_one(source), 1.0, "busy")


# -- the server


async def test_unreachable_server_is_a_typed_error(stream):
    source = RedisStreamSource("redis://127.0.0.1:1", "orders", group="billing")
    with pytest.raises(SourceUnavailableError, match="open of 'orders' failed in the store of the"):
        await source.open()
    await source.close()


async def test_default_cache_sends_commands_together(stream, source):
    cache = source.default_cache()
    assert isinstance(cache, AsyncRedisRetryContextCache)
    assert cache.lease == 30.0
    assert type(cache._store).__name__ == "PipelinedConnections"
    claim = await cache.begin("work/s:1", worker="one")
    await cache.release(claim)
    await cache.close()


@pytest.mark.parametrize(
    "error, message, settings",
    [
        (TypeError, "stream must be a non-blank str", {"stream": ""}),
        (TypeError, "group must be a non-blank str", {"group": None}),
        (TypeError, "consumer must be a non-empty str or None", {"consumer": 17}),
        (ValueError, "visibility_timeout must be .* from 0.01", {"visibility_timeout": 0}),
        (TypeError, "dead_letters must be a non-empty str or None", {"dead_letters": ""}),
        (ValueError, "maxlen must be an int >= 1, got 0", {"maxlen": 0}),
        (TypeError, "delete_acknowledged must be True or", {"delete_acknowledged": 1}),
        (TypeError, "url must be a Redis URL or", {"url": None}),
    ],
)
def test_invalid_setting_is_named(error, message, settings):
    settings = {"url": "redis://localhost", "stream": "orders", "group": "billing"} | settings
    with pytest.raises(error, match=message):
        RedisStreamSource(**settings)
