"""Messages about what was written."""

import asyncio

import pytest

from retrytemplate import (
    MisuseError,
    NeverRetryPolicy,
    ResultRetryPolicy,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.batch import Outbox
from tests.batch.test_scenarios import Bad, Flaky
from tests.batch.world import run


class Bus:
    """Where messages are sent to; it may be away."""

    def __init__(self, failures=0):
        self.sent, self.failures = [], failures

    def __call__(self, message):
        if self.failures:
            self.failures -= 1
            raise Bad("the bus is away")
        self.sent.append(message)

    def payloads(self):
        return [message.payload for message in self.sent]


def about(item):
    return None if item == 2 else {"item": item}


def test_what_was_written_is_told_after_the_commit(world, way):
    seen = []

    def send(message):
        seen.append((message.payload, world.rows()))

    run(world.step([1, 2, 3], chunk_size=2, outbox=Outbox(send, about)), way)
    assert seen == [({"item": 1}, [1, 2]), ({"item": 3}, [1, 2, 3])]


def test_of_an_attempt_that_was_rolled_back_nothing_is_sent(sqlite, way):
    bus = Bus()
    step = sqlite.step([1], write=Flaky(1), retry=SimpleRetryPolicy(2), outbox=Outbox(bus, about))
    run(step, way)
    assert bus.payloads() == [{"item": 1}]


def test_sending_is_tried_again_as_the_step_retries(sqlite, way):
    bus = Bus(failures=1)
    run(sqlite.step([1], retry=SimpleRetryPolicy(2), outbox=Outbox(bus, about)), way)
    assert bus.payloads() == [{"item": 1}]


def test_what_cannot_be_sent_stays_and_goes_with_the_next_chunk(sqlite, way):
    bus = Bus(failures=1)
    step = sqlite.step([1, 3], chunk_size=1, retry=NeverRetryPolicy(), outbox=Outbox(bus, about))
    report = run(step, way)
    assert report.status == "completed"
    assert bus.payloads() == [{"item": 1}, {"item": 3}]


def test_behind_a_message_that_cannot_be_sent_the_others_wait_for_the_next_turn(sqlite, way):
    asked = []

    def send(message):
        asked.append(message.payload["item"])
        if len(asked) <= 5:
            raise Bad("the bus is away")

    items = range(11, 17)
    run(sqlite.step(items, chunk_size=1, retry=NeverRetryPolicy(), outbox=Outbox(send, about)), way)
    assert asked == [11] * 5 + list(items)


def test_what_was_sent_before_it_in_that_turn_is_not_sent_again(sqlite, way):
    asked = []

    def send(message):
        asked.append(message.payload["item"])
        if len(asked) == 2:
            raise Bad("the bus is away")

    items = range(11, 15)
    run(sqlite.step(items, chunk_size=3, retry=NeverRetryPolicy(), outbox=Outbox(send, about)), way)
    assert asked == [11, 12, 12, 13, 14]


def test_what_sending_returns_is_not_judged(sqlite, way):
    bus = Bus()
    rule = ResultRetryPolicy(lambda value: value is None, SimpleRetryPolicy(3))
    run(sqlite.step([1], process=lambda item: item, retry=rule, outbox=Outbox(bus, about)), way)
    assert bus.payloads() == [{"item": 1}]


def test_what_a_recovery_is_called_for_is_not_sent(sqlite, way):
    bus = Bus(failures=1)
    template = RetryTemplate(policy=NeverRetryPolicy(), recovery=lambda context: None)
    step = sqlite.step([1, 3], chunk_size=1, retry=template, outbox=Outbox(bus, about))
    assert run(step, way).status == "completed"
    assert bus.payloads() == [{"item": 1}, {"item": 3}]


def test_an_asynchronous_function_sends_where_it_is_awaited(sqlite):
    sent = []

    async def send(message):
        sent.append(message.payload)

    asyncio.run(sqlite.step([1], outbox=Outbox(send, about)).run_async())
    assert sent == [{"item": 1}]


def test_an_asynchronous_function_cannot_send_in_a_thread(sqlite):
    async def send(message):
        """Not awaited."""

    with pytest.raises(MisuseError, match="the outbox has to be awaited"):
        sqlite.step([1], outbox=Outbox(send, about)).run()
    assert sqlite.rows() == []


def test_nor_can_a_function_that_gives_what_must_be_awaited(sqlite):
    async def send(message):
        """Not awaited."""

    with pytest.raises(MisuseError, match="returned an awaitable"):
        sqlite.step([1], outbox=Outbox(lambda message: send(message), about)).run()


def test_a_message_keeps_its_id_when_it_is_sent_again(sqlite, way):
    ids = []

    def send(message):
        ids.append(message.id)
        if len(ids) == 1:
            raise Bad("sent, but the answer is lost")

    run(sqlite.step([1], retry=SimpleRetryPolicy(2), outbox=Outbox(send, about)), way)
    assert len(ids) == 2
    assert ids[0] == ids[1]


def test_a_run_that_goes_on_sends_first_what_is_left(sqlite, way):
    away = Bus(failures=99)
    broken = sqlite.step(
        [1, 3],
        process=Flaky(3),
        chunk_size=1,
        retry=NeverRetryPolicy(),
        outbox=Outbox(away, about),
    )
    assert run(broken, way).status == "failed"
    bus = Bus()
    assert run(sqlite.step([1, 3], chunk_size=1, outbox=Outbox(bus, about)), way).written == 2
    assert bus.payloads() == [{"item": 1}, {"item": 3}]


def test_a_message_that_is_no_json_ends_the_run_before_anything_of_the_chunk_is_written(
    sqlite, way
):
    report = run(sqlite.step([1], outbox=Outbox(Bus(), lambda item: {1, 2})), way)
    assert (report.status, sqlite.rows()) == ("failed", [])
    assert isinstance(report.exception, TypeError)


def generates(message):
    yield message


def test_an_outbox_needs_two_functions():
    with pytest.raises(TypeError, match="send must be a function, got 'mail'"):
        Outbox("mail", about)
    with pytest.raises(TypeError, match="message must be a function, got None"):
        Outbox(print, None)
    with pytest.raises(TypeError, match="send must be a function, got the generator function"):
        Outbox(generates, about)
    with pytest.raises(TypeError, match="message must be a function, got the generator function"):
        Outbox(print, generates)


def test_a_message_cannot_be_awaited(sqlite, way):
    async def made(item):
        """Not awaited."""

    with pytest.raises(TypeError, match="message must be a plain function, got coroutine"):
        Outbox(print, made)
    report = run(sqlite.step([1], outbox=Outbox(Bus(), lambda item: made(item))), way)
    assert (report.status, sqlite.rows()) == ("failed", [])
    assert isinstance(report.exception, MisuseError)
