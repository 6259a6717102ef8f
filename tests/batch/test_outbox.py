"""Messages about written items."""

import asyncio

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from retrytemplate import (
    MisuseError,
    NeverRetryPolicy,
    ResultRetryPolicy,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate._internal.failure_text import type_name
from retrytemplate.batch import (
    JobRepositoryError,
    Outbox,
    Runs,
    SendReport,
    StepListener,
    UnsentMessages,
)
from retrytemplate.batch.journal.schema import now
from tests.batch.test_scenarios import Bad, Flaky
from tests.support.step_fixture import run


class Bus:
    """The receiver of messages; it may be unavailable."""

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


def test_messages_are_sent_after_the_commit(world, mode):
    seen = []

    def send(message):
        seen.append((message.payload, world.rows()))

    run(world.step([1, 2, 3], chunk_size=2, outbox=Outbox(send, about)), mode)
    assert seen == [({"item": 1}, [1, 2]), ({"item": 3}, [1, 2, 3])]


def test_messages_of_the_chunk_in_progress_are_sent_after_a_stop(sqlite, mode):
    bus = Bus()
    step = sqlite.step(
        [1, 3, 4], write=lambda *_: step.stop(), chunk_size=2, outbox=Outbox(bus, about)
    )
    report = run(step, mode)
    assert (report.status, report.unsent) == ("stopped", 0)
    assert bus.payloads() == [{"item": 1}, {"item": 3}]


def test_rolled_back_attempt_sends_nothing(sqlite, mode):
    bus = Bus()
    step = sqlite.step([1], write=Flaky(1), retry=SimpleRetryPolicy(2), outbox=Outbox(bus, about))
    run(step, mode)
    assert bus.payloads() == [{"item": 1}]


def test_sending_is_tried_again_as_the_step_retries(sqlite, mode):
    bus = Bus(failures=1)
    run(sqlite.step([1], retry=SimpleRetryPolicy(2), outbox=Outbox(bus, about)), mode)
    assert bus.payloads() == [{"item": 1}]


def test_message_that_could_not_be_sent_is_sent_with_the_next_chunk(sqlite, mode):
    bus = Bus(failures=1)
    step = sqlite.step([1, 3], chunk_size=1, retry=NeverRetryPolicy(), outbox=Outbox(bus, about))
    report = run(step, mode)
    assert report.status == "completed"
    assert bus.payloads() == [{"item": 1}, {"item": 3}]


def test_messages_after_a_failed_one_wait_for_the_next_turn(sqlite, mode):
    sent_items = []

    def send(message):
        sent_items.append(message.payload["item"])
        if len(sent_items) <= 5:
            raise Bad("the bus is away")

    items = range(11, 17)
    run(
        sqlite.step(items, chunk_size=1, retry=NeverRetryPolicy(), outbox=Outbox(send, about)), mode
    )
    assert sent_items == [11] * 5 + list(items)


def test_messages_sent_before_a_failure_are_not_sent_again(sqlite, mode):
    sent_items = []

    def send(message):
        sent_items.append(message.payload["item"])
        if len(sent_items) == 2:
            raise Bad("the bus is away")

    items = range(11, 15)
    run(
        sqlite.step(items, chunk_size=3, retry=NeverRetryPolicy(), outbox=Outbox(send, about)), mode
    )
    assert sent_items == [11, 12, 12, 13, 14]


def test_result_of_sending_is_not_classified(sqlite, mode):
    bus = Bus()
    rule = ResultRetryPolicy(lambda value: value is None, SimpleRetryPolicy(3))
    run(sqlite.step([1], process=lambda item: item, retry=rule, outbox=Outbox(bus, about)), mode)
    assert bus.payloads() == [{"item": 1}]


def test_recovered_message_is_not_counted_as_sent(sqlite, mode):
    bus = Bus(failures=1)
    template = RetryTemplate(policy=NeverRetryPolicy(), recovery=lambda context: None)
    step = sqlite.step([1, 3], chunk_size=1, retry=template, outbox=Outbox(bus, about))
    assert run(step, mode).status == "completed"
    assert bus.payloads() == [{"item": 1}, {"item": 3}]


def test_asynchronous_send_is_awaited(sqlite):
    sent = []

    async def send(message):
        sent.append(message.payload)

    asyncio.run(sqlite.step([1], outbox=Outbox(send, about)).run_async())
    assert sent == [{"item": 1}]


def test_asynchronous_send_in_a_thread_is_misuse(sqlite):
    async def send(message):
        """Not awaited."""

    with pytest.raises(MisuseError, match="the outbox is asynchronous"):
        sqlite.step([1], outbox=Outbox(send, about)).run()
    assert sqlite.rows() == []


def test_send_that_returns_an_awaitable_in_a_thread_is_misuse(sqlite):
    async def send(message):
        """Not awaited."""

    with pytest.raises(MisuseError, match="returned an awaitable"):
        sqlite.step([1], outbox=Outbox(lambda message: send(message), about)).run()


def test_message_sent_again_keeps_its_id(sqlite, mode):
    ids = []

    def send(message):
        ids.append(message.id)
        if len(ids) == 1:
            raise Bad("sent, but the answer is lost")

    run(sqlite.step([1], retry=SimpleRetryPolicy(2), outbox=Outbox(send, about)), mode)
    assert len(ids) == 2
    assert ids[0] == ids[1]


def test_resumed_run_sends_the_waiting_messages_first(sqlite, mode):
    away = Bus(failures=99)
    broken = sqlite.step(
        [1, 3],
        process=Flaky(3),
        chunk_size=1,
        retry=NeverRetryPolicy(),
        outbox=Outbox(away, about),
    )
    assert run(broken, mode).status == "failed"
    bus = Bus()
    assert run(sqlite.step([1, 3], chunk_size=1, outbox=Outbox(bus, about)), mode).written == 2
    assert bus.payloads() == [{"item": 1}, {"item": 3}]


def test_message_that_is_not_json_ends_the_run_before_its_chunk(sqlite, mode):
    report = run(sqlite.step([1], outbox=Outbox(Bus(), lambda item: {1, 2})), mode)
    assert (report.status, sqlite.rows()) == ("failed", [])
    assert isinstance(report.exception, TypeError)


def generates(message):
    yield message


def test_outbox_requires_two_functions():
    with pytest.raises(TypeError, match="send must be a function, got 'mail'"):
        Outbox("mail", about)
    with pytest.raises(TypeError, match="message must be a function, got None"):
        Outbox(print, None)
    with pytest.raises(TypeError, match="send must be a function, got the generator function"):
        Outbox(generates, about)
    with pytest.raises(TypeError, match="message must be a function, got the generator function"):
        Outbox(print, generates)


def test_message_function_cannot_be_asynchronous(sqlite, mode):
    async def made(item):
        """Not awaited."""

    with pytest.raises(TypeError, match="message must be a plain function, got the coroutine"):
        Outbox(print, made)
    report = run(sqlite.step([1], outbox=Outbox(Bus(), lambda item: made(item))), mode)
    assert (report.status, sqlite.rows()) == ("failed", [])
    assert isinstance(report.exception, MisuseError)


# Identity: a receiver drops the ids that it knows.


class Receiver:
    """Keeps one message of each id; one id never has two contents."""

    def __init__(self):
        self.known = {}

    def __call__(self, message):
        assert self.known.setdefault(message.id, message.payload) == message.payload

    def items(self):
        return sorted(payload["item"] for payload in self.known.values())


class Watch(StepListener):
    def __init__(self):
        self.kinds = []

    def on_event(self, event):
        self.kinds.append(event.kind)


def hold(world, run_id, seconds=60):
    """Let another process hold the run for these seconds."""
    runs = world.jobs.tables.runs
    with world.jobs.transaction() as transaction:
        held = {"status": "running", "worker": "elsewhere-1-1", "process": None}
        held["lease_until"] = now(transaction) + seconds
        transaction.execute(runs.update().where(runs.c.id == run_id).values(held))


def leave_message(world, item, **parameters):
    """Complete a run whose message cannot be sent."""
    away = Outbox(Bus(failures=99), about)
    report = world.step([item], retry=NeverRetryPolicy(), outbox=away).run(parameters)
    assert report.status == "completed"
    return report


def test_message_ids_after_an_emptied_outbox_are_not_reused(world, mode):
    receiver = Receiver()
    run(world.step(range(10, 20), chunk_size=1, outbox=Outbox(receiver, about)), mode)
    assert receiver.items() == list(range(10, 20))


def test_message_ids_of_two_repositories_differ(sqlite, world, mode):
    receiver = Receiver()
    for each in (sqlite, world):
        run(each.step([len(receiver.known) + 10], outbox=Outbox(receiver, about)), mode)
    assert receiver.items() == [10, 11]


def test_slow_sender_deletes_only_the_message_that_it_sent(world, mode):
    receiver, reports = Receiver(), []

    def send(message):
        if not reports:  # meanwhile another sender empties the outbox, and a new message waits
            with world.jobs.transaction() as transaction:
                transaction.execute(world.jobs.tables.messages.delete())
            reports.append(leave_message(world, 3, part=2))
        receiver(message)

    run(world.step([1], outbox=Outbox(send, about)), mode)
    assert run(world.step([3], outbox=Outbox(receiver, about)), mode, {"part": 2}).unsent == 0
    assert receiver.items() == [1, 3]


# Messages that still wait when their run is completed.


def test_report_counts_the_messages_that_wait(world, mode):
    away = Outbox(Bus(failures=99), about)
    report = run(world.step([1, 2, 3], retry=NeverRetryPolicy(), outbox=away), mode)
    assert (report.status, report.unsent) == ("completed", 2)
    assert Runs(world.jobs).find(report.run_id).unsent == 2


def test_resume_of_a_completed_run_sends_pending_messages(world, mode):
    before, bus = leave_message(world, 1), Bus()
    report = run(world.step([1], outbox=Outbox(bus, about)), mode)
    assert (report.run_id, report.unsent, before.unsent) == (before.run_id, 0, 1)
    assert bus.payloads() == [{"item": 1}]


def test_resume_of_a_completed_run_reports_a_failed_send(sqlite, mode):
    leave_message(sqlite, 1)
    seen = Watch()
    away = Outbox(Bus(failures=99), about)
    report = run(sqlite.step([1], outbox=away, listeners=[seen]), mode)
    assert (report.status, report.unsent, seen.kinds) == ("completed", 1, ["not_sent"])


def test_run_with_other_parameters_sends_pending_messages_first(world, mode):
    leave_message(world, 1, day=1)
    bus = Bus()
    report = run(world.step([3], outbox=Outbox(bus, about)), mode, {"day": 2})
    assert bus.payloads() == [{"item": 1}, {"item": 3}]
    assert report.unsent == 0


def test_message_that_cannot_be_sent_delays_its_own_run_only(sqlite, mode):
    for item in (11, 13):
        leave_message(sqlite, item, day=item)
    bus = Bus()

    def send(message):
        if message.payload == {"item": 11}:
            raise Bad("the receiver rejects it")
        bus(message)

    step = sqlite.step([15], retry=NeverRetryPolicy(), outbox=Outbox(send, about))
    assert run(step, mode, {"day": 15}).unsent == 0
    assert bus.payloads() == [{"item": 13}, {"item": 15}]


def test_messages_of_a_run_in_another_process_are_left_to_it(world, mode):
    report = leave_message(world, 1, day=1)
    hold(world, report.run_id)
    bus = Bus()
    run(world.step([3], outbox=Outbox(bus, about)), mode, {"day": 2})
    assert bus.payloads() == [{"item": 3}]


def test_messages_of_a_run_whose_process_crashed_are_sent(world, mode):
    report = leave_message(world, 1, day=1)
    hold(world, report.run_id, seconds=-1)
    bus = Bus()
    run(world.step([3], outbox=Outbox(bus, about)), mode, {"day": 2})
    assert bus.payloads() == [{"item": 1}, {"item": 3}]


def test_messages_of_another_step_are_not_sent(sqlite, mode):
    leave_message(sqlite, 1)
    bus = Bus()
    run(sqlite.step([3], name="other", outbox=Outbox(bus, about)), mode)
    assert bus.payloads() == [{"item": 3}]


def test_replay_sends_pending_messages(sqlite, mode):
    leave_message(sqlite, 1)
    bus = Bus()
    step = sqlite.step([], outbox=Outbox(bus, about))
    report = step.replay() if mode == "sync" else asyncio.run(step.replay_async())
    assert (bus.payloads(), report.unsent) == ([{"item": 1}], 0)


def test_replay_counts_the_messages_that_wait(sqlite, mode):
    leave_message(sqlite, 1)
    step = sqlite.step([], outbox=Outbox(Bus(failures=99), about))
    report = step.replay() if mode == "sync" else asyncio.run(step.replay_async())
    assert report.unsent == 1


def send_outbox(step, mode):
    return step.send_outbox() if mode == "sync" else asyncio.run(step.send_outbox_async())


def test_send_outbox_sends_pending_messages(world, mode):
    leave_message(world, 1)
    bus = Bus()
    step = world.step([], outbox=Outbox(bus, about))
    assert send_outbox(step, mode) == SendReport(sent=1, unsent=0, error=None)
    assert send_outbox(step, mode) == SendReport(sent=0, unsent=0, error=None)
    assert bus.payloads() == [{"item": 1}]


def test_send_outbox_that_fails_names_the_failure(sqlite, mode):
    leave_message(sqlite, 1)
    step = sqlite.step([], outbox=Outbox(Bus(failures=99), about))
    report = send_outbox(step, mode)
    assert (report.sent, report.unsent, report.error.message) == (0, 1, "the bus is away")


def test_send_outbox_of_a_step_without_outbox_is_misuse(sqlite, mode):
    with pytest.raises(MisuseError, match="step 'copy' has no outbox"):
        send_outbox(sqlite.step([]), mode)


async def awaited(*_):
    """A processor or writer that is not called."""


@pytest.mark.parametrize(
    "pieces",
    [
        {"writer": awaited},
        {"processor": awaited},
        {"database": create_async_engine("sqlite+aiosqlite://")},
    ],
    ids=["writer", "processor", "database"],
)
def test_send_outbox_ignores_asynchronous_pieces_but_send(sqlite, pieces):
    leave_message(sqlite, 1)
    bus = Bus()
    assert sqlite.step([], outbox=Outbox(bus, about), **pieces).send_outbox().sent == 1
    assert bus.payloads() == [{"item": 1}]


def test_send_outbox_async_ignores_a_blocking_database(sqlite):
    leave_message(sqlite, 1)
    bus = Bus()
    step = sqlite.step([], outbox=Outbox(bus, about), database=create_engine("sqlite://"))
    assert send_outbox(step, "async").sent == 1


def test_send_outbox_with_asynchronous_send_names_its_twin(sqlite):
    step = sqlite.step([], outbox=Outbox(awaited, about))
    with pytest.raises(MisuseError, match=r"the outbox .*; use send_outbox_async\(\)"):
        step.send_outbox()


def test_damaged_message_counts_as_one_that_cannot_be_sent(world, mode):
    leave_message(world, 1)
    with world.jobs.transaction() as transaction:
        transaction.execute(world.jobs.tables.messages.update().values(payload="{"))
    bus = Bus()
    step = world.step([3], outbox=Outbox(bus, about))
    report = send_outbox(step, mode)
    assert (report.unsent, report.error.type_name) == (1, type_name(JobRepositoryError))
    assert "_outbox, row" in report.error.message
    assert "column payload" in report.error.message
    assert run(step, mode, {"day": 2}).status == "completed"
    assert bus.payloads() == [{"item": 3}]


# Messages as an operator sees them.


def test_unsent_messages_are_listed_with_their_run(world):
    report = leave_message(world, 1)
    [message] = UnsentMessages(world.jobs).page()
    assert (message.step, message.run, message.payload) == ("copy", report.run_id, {"item": 1})
    assert message.problem is None


def test_unsent_messages_are_filtered_and_paged(sqlite):
    runs = [leave_message(sqlite, item, day=item).run_id for item in (11, 13, 15)]
    messages = UnsentMessages(sqlite.jobs)
    first, second = messages.page(limit=2)
    [third] = messages.page(after=second.number)
    assert [each.run for each in (first, second, third)] == runs
    assert [each.id for each in messages.page(run=runs[1])] == [second.id]
    assert (messages.count(step="copy"), messages.count(step="other")) == (3, 0)


def test_unsent_message_that_is_damaged_names_its_problem(sqlite):
    leave_message(sqlite, 1)
    with sqlite.jobs.transaction() as transaction:
        table = sqlite.jobs.tables.messages.name
        transaction.exec_driver_sql(f"UPDATE {table} SET created = 'x'")
    [message] = UnsentMessages(sqlite.jobs).page()
    assert message.created == 0
    assert "column created" in message.problem


def test_two_concurrent_senders_keep_the_order_of_messages(world, mode):
    away = Outbox(Bus(failures=99), about)
    world.step([1, 3, 5], retry=NeverRetryPolicy(), outbox=away).run()
    received = []

    def send(message):
        received.append(message.payload["item"])
        if received == [1]:  # the other sender sends the whole page in the meantime
            other = world.step([], outbox=Outbox(send, about))
            assert other.send_outbox().sent == 3

    report = send_outbox(world.step([], outbox=Outbox(send, about)), mode)
    assert (report.sent, report.unsent) == (3, 0)
    assert list(dict.fromkeys(received)) == [1, 3, 5]


def test_stop_while_waiting_messages_are_sent_ends_the_run(sqlite, mode):
    away = Outbox(Bus(failures=99), about)
    sqlite.step([1, 3, 5], retry=NeverRetryPolicy(), outbox=away).run({"day": 1})
    sent = []

    def send(message):
        sent.append(message.payload["item"])
        step.stop()

    step = sqlite.step([7], outbox=Outbox(send, about))
    assert run(step, mode, {"day": 2}).status == "stopped"
    assert (sent, sqlite.processed()) == ([1], [1, 3, 5])
    assert UnsentMessages(sqlite.jobs).count() == 2


def test_resumed_run_with_nothing_left_to_read_sends_its_messages(sqlite, mode):
    report = leave_message(sqlite, 1)
    runs = sqlite.jobs.tables.runs
    with sqlite.jobs.transaction() as transaction:  # as after a crash behind the last chunk
        transaction.execute(runs.update().values(status="stopped"))
    bus = Bus()
    resumed = run(sqlite.step([1], outbox=Outbox(bus, about)), mode)
    assert (resumed.run_id, resumed.status, resumed.unsent) == (report.run_id, "completed", 0)
    assert bus.payloads() == [{"item": 1}]
