"""Replay of dead letters after the cause is fixed."""

import asyncio
import json
import threading

import pytest
from sqlalchemy import create_engine, select

from retrytemplate import (
    Deadline,
    Guard,
    MisuseError,
    NeverRetryPolicy,
    Rejected,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.batch import DeadLetters, JsonCodec, Outbox
from retrytemplate.testing import VirtualClock
from tests.batch.test_scenarios import Bad, Flaky, always, skipping
from tests.support.step_fixture import empty_world, run


def replay(step, mode, *arguments, **settings):
    if mode == "sync":
        return step.replay(*arguments, **settings)
    return asyncio.run(step.replay_async(*arguments, **settings))


def failing_step(world):
    """A step whose items 2 and 3 become dead letters."""
    return world.step(
        [1, 2, 3, 4],
        process=always(2),
        write=always(3),
        retry=SimpleRetryPolicy(2),
        key=lambda item: f"order-{item}",
        **skipping(),
    )


@pytest.fixture
def dead(world, mode):
    """A world in which items 2 and 3 are dead letters."""
    assert run(failing_step(world), mode).dead_lettered == 2
    world.calls.clear()
    return world


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def unchanged(request):
    """The same, for tests that process and write nothing."""
    with empty_world(request.param, request) as made:
        assert run(failing_step(made), "sync").dead_lettered == 2
        made.calls.clear()
        yield made


def letters(world):
    table = world.jobs.tables.letters
    with world.jobs.transaction() as transaction:
        rows = transaction.execute(select(table).order_by(table.c.number)).mappings().all()
    return {row["number"]: dict(row) for row in rows}


def test_replay_after_a_fix_writes_items_and_resolves_letters(dead, mode):
    report = replay(dead.step(), mode, by="kim")
    assert (len(report.replayed), report.failed, report.skipped) == (2, (), ())
    assert dead.rows() == [1, 2, 3, 4]
    for letter in letters(dead).values():
        assert letter["state"] == "replayed"
        assert letter["resolved"] is not None
        audit = json.loads(letter["audit"])
        assert [(entry["action"], entry["by"]) for entry in audit] == [("replayed", "kim")]


def test_second_replay_does_nothing(dead, mode):
    step = dead.step()
    replay(step, mode)
    dead.calls.clear()
    assert replay(step, mode).replayed == ()
    assert dead.calls == []


def test_item_that_fails_again_stays_open_with_all_its_attempts(dead, mode):
    step = dead.step(process=always(2), retry=SimpleRetryPolicy(3))
    report = replay(step, mode, by="kim")
    found = letters(dead)
    assert report.failed == (found[2]["id"],)
    assert (found[2]["state"], found[3]["state"]) == ("open", "replayed")
    attempts = json.loads(found[2]["attempts"])
    assert [attempt["number"] for attempt in attempts] == [1, 2, 3, 4, 5]
    assert json.loads(found[2]["audit"])[0]["action"] == "failed_again"


def test_write_that_fails_again_leaves_nothing(dead, mode):
    report = replay(dead.step(write=always(3)), mode)
    assert dead.rows() == [1, 2, 4]
    assert len(report.failed) == 1


def test_write_of_a_replay_is_retried(dead, mode):
    report = replay(dead.step(write=Flaky(3), retry=SimpleRetryPolicy(2)), mode)
    assert (len(report.replayed), report.failed) == (2, ())
    assert dead.writes() == [[2], [3], [3]]


def test_failed_write_of_a_replay_is_stored_with_its_traceback(dead, mode):
    replay(dead.step(write=always(3), retry=NeverRetryPolicy()), mode)
    assert "raise Bad" in dead.letter(3).attempts[-1]["traceback"]


class Closes(Guard):
    """Admits this number of attempts."""

    def __init__(self, after=0):
        self.left = after

    def admit(self, context):
        if not self.left:
            raise Rejected("closed")
        self.left -= 1


@pytest.mark.parametrize("pieces", [{}, {"processor": None}], ids=["processed", "written"])
def test_rejecting_guard_ends_the_replay_and_changes_no_letter(dead, mode, pieces):
    before = letters(dead)
    template = RetryTemplate(policy=NeverRetryPolicy(), guards=[Closes()])
    report = replay(dead.step(retry=template, **pieces), mode)
    assert (report.replayed, report.failed, report.skipped) == ((), (), ())
    assert report.as_json()["error"] == {
        "type": "retrytemplate.errors.Rejected",
        "message": "closed",
    }
    assert dead.rows() == [1, 4]
    assert letters(dead) == before


def test_item_rejected_after_an_attempt_has_not_failed_again(dead, mode):
    before = letters(dead)
    template = RetryTemplate(policy=SimpleRetryPolicy(2), guards=[Closes(after=1)])
    report = replay(dead.step(process=always(2), retry=template), mode)
    assert (report.failed, report.error.message) == ((), "closed")
    assert letters(dead) == before


def test_expired_deadline_ends_the_replay_with_a_report(dead, mode):
    clock, before = VirtualClock(), letters(dead)

    def write(item, _):
        clock.advance(60.0)

    step = dead.step(write=write, retry=RetryTemplate(clock=clock))
    with Deadline(30.0, clock=clock):
        report = replay(step, mode)
    assert (report.replayed, report.failed) == ((before[2]["id"],), ())
    assert report.error.type_name == "retrytemplate.errors.DeadlineExceededError"
    assert letters(dead)[3] == before[3]
    assert replay(step, mode, error="Bad").replayed == (before[3]["id"],)


class Forgetful(JsonCodec):
    """Cannot decode the letter of item 2."""

    def decode(self, text):
        if text == "2":
            raise ValueError("no such item")
        return super().decode(text)


def test_payload_that_the_codec_cannot_decode_fails_alone(dead, mode):
    found = letters(dead)
    report = replay(dead.step(codec=Forgetful()), mode)
    assert (report.replayed, report.failed) == ((found[3]["id"],), (found[2]["id"],))
    letter = DeadLetters(dead.jobs).find(found[2]["id"])
    assert (letter.state, letter.error_type) == ("open", "ValueError")
    last = letter.history[-1]
    assert (last.number, last.type_name, last.message) == (3, "ValueError", "no such item")


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (Speechless(), "<no text: str() failed>"),
        (Bad("\ud800"), "\\ud800"),
        (Bad("\0"), "\\x00"),
    ],
    ids=["no text", "half a character", "NUL"],
)
def test_failure_with_any_text_is_stored(dead, mode, failure, message):
    def process(item):
        raise failure

    report = replay(dead.step(process=process, retry=NeverRetryPolicy()), mode)
    assert len(report.failed) == 2
    assert dead.letter(2).error_message == message


@pytest.mark.parametrize("ids", ["12", "", b"12", 1.5, 12, [1.5], ["1"], [True], {"1": 2}])
def test_letters_are_chosen_by_a_sequence_of_ints_alone(unchanged, mode, ids):
    with pytest.raises(TypeError, match="ids must be a sequence of int"):
        replay(unchanged.step(), mode, ids)
    assert unchanged.calls == []


@pytest.mark.parametrize("name", ["error", "key", "by"])
@pytest.mark.parametrize("value", ["", 0, object()])
def test_filter_by_name_must_be_a_str(unchanged, mode, name, value):
    with pytest.raises(TypeError, match=f"{name} must be a non-empty str or None, got"):
        replay(unchanged.step(), mode, **{name: value})
    assert unchanged.calls == []


def test_replay_has_its_own_retries(dead, mode):
    report = replay(dead.step(process=Flaky(2, times=2), retry=SimpleRetryPolicy(3)), mode)
    assert len(report.replayed) == 2


def test_letters_can_be_chosen(dead, mode):
    step, found = dead.step(), letters(dead)
    assert replay(step, mode, error="OtherError").replayed == ()
    assert replay(step, mode, key="order-2").replayed == (found[2]["id"],)
    assert replay(step, mode, [found[3]["id"]], error="Bad").replayed == (found[3]["id"],)
    assert dead.rows() == [1, 2, 3, 4]


def test_letter_is_found_by_a_key_that_no_database_stores(sqlite, mode):
    odd = "a\ud800\0"
    step = sqlite.step([1], process=always(1), key=lambda item: odd, **skipping())
    run(step, mode)
    assert [letter.key for letter in DeadLetters(sqlite.jobs).page(key=odd)] == ["a\\ud800\\x00"]
    assert len(replay(sqlite.step(), mode, key=odd).replayed) == 1


def test_async_send_is_rejected_before_the_replay_writes(dead):
    async def send(message):
        """Not awaited."""

    with pytest.raises(MisuseError, match=r"the outbox is asynchronous; use replay_async\(\)"):
        dead.step(outbox=Outbox(send, lambda item: item)).replay()
    assert dead.rows() == [1, 4]


def test_replay_async_with_a_blocking_database_names_its_twin(sqlite):
    step = sqlite.step([], database=create_engine("sqlite://"))
    with pytest.raises(MisuseError, match=r"database is an Engine: use replay\(\)"):
        replay(step, "async")


def test_null_item_is_written_without_a_filter(sqlite, mode):
    written = []

    def write(items, transaction):
        written.extend(items)

    failing = sqlite.step([None], processor=None, write=always(None), **skipping())
    assert run(failing, mode).dead_lettered == 1
    replay(sqlite.step(processor=None, writer=write), mode)
    assert written == [None]


def test_item_filtered_during_replay_is_resolved(dead, mode):
    report = replay(dead.step(process=lambda item: None), mode)
    assert len(report.replayed) == 2
    assert dead.rows() == [1, 4]


def test_letter_that_cannot_be_replayed_is_skipped(sqlite, mode):
    step = sqlite.step(
        [(1, 2)], process=always((1, 2)), retry=SimpleRetryPolicy(1), name="tuples", **skipping()
    )
    assert run(step, mode).dead_lettered == 1
    report = replay(sqlite.step(name="tuples"), mode)
    assert (report.replayed, len(report.skipped)) == ((), 1)


def test_messages_are_sent_for_replayed_items(dead, mode):
    sent = []
    box = Outbox(lambda message: sent.append(message.payload), lambda item: {"item": item})
    replay(dead.step(outbox=box), mode)
    assert sent == [{"item": 2}, {"item": 3}]


def test_one_of_two_concurrent_replays_writes_each_item(dead):
    """Both have found the letters before either of them writes."""
    met = threading.Barrier(2, timeout=10)

    def process(item):
        if item == 2:
            met.wait()
        return item

    reports = []
    step = dead.step(process=process)
    threads = [threading.Thread(target=lambda: reports.append(step.replay())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dead.rows() == [1, 2, 3, 4]
    replayed = [each for report in reports for each in report.replayed]
    assert len(replayed) == len(set(replayed)) == 2


def test_step_replays_no_letters_of_another_step(dead, mode):
    assert replay(dead.step(name="other"), mode).replayed == ()


def test_letter_has_place_and_error_of_each_attempt(dead):
    letter = dead.letter(2)
    assert (letter.item_key, letter.source, letter.phase) == ("order-2", "items", "process")
    assert [attempt["type_name"] for attempt in letter.attempts] == [f"{Bad.__module__}.Bad"] * 2
    for attempt in letter.attempts:
        assert "raise Bad" in attempt["traceback"]
        assert attempt["host"]
        assert attempt["process"]
        assert attempt["started"] <= attempt["ended"]
