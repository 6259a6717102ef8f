"""The events of a run, and their order."""

import asyncio
import logging

import pytest

from retrytemplate import MisuseError, SimpleRetryPolicy
from retrytemplate.batch import SkipPolicy, StepListener
from retrytemplate.listeners import add_default, remove_default
from tests.batch.test_scenarios import Bad, Flaky, always, skipping
from tests.support.step_fixture import run


class Recorder(StepListener):
    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)

    def brief(self):
        return [(each.kind, *each.numbers) for each in self.events]


class Awaited(Recorder):
    async def on_event(self, event):
        await asyncio.sleep(0)
        self.events.append(event)


def test_items_and_transactions_have_events_in_order(sqlite, mode):
    recorder = Recorder()
    step = sqlite.step(
        [1, 2, 3],
        process=always(1),
        write=Flaky(3),
        retry=SimpleRetryPolicy(2),
        listeners=[recorder],
        **skipping(),
    )
    run(step, mode)
    assert recorder.brief() == [
        ("started",),
        ("read", 1, 2, 3),
        ("failed", 1),
        ("failed", 1),
        ("processed", 2),
        ("processed", 3),
        ("rolled_back", 2, 3),
        ("dead_lettered", 1),
        ("written", 2, 3),
        ("ended",),
    ]


def test_items_filtered_in_the_transaction_have_its_events(sqlite, mode):
    recorder, seen = Recorder(), []

    def process(item, transaction):
        return None if item == 2 else item

    step = sqlite.step(
        [1, 2, 3, 4, 2],
        processor=process,
        pure=False,
        chunk_size=4,
        writer=lambda items, transaction: always(1)(*items[:1]),
        retry=SimpleRetryPolicy(1),
        fault_search="linear",
        after_commit=seen.append,
        listeners=[recorder],
        **skipping(),
    )
    report = run(step, mode)
    summary = [(each.kind, *each.numbers) for each in recorder.events if each.committed]
    assert summary == [
        ("filtered", 2),
        ("written", 3),
        ("written", 4),
        ("dead_lettered", 1),
        ("filtered", 5),
    ]
    assert (report.written, report.filtered, report.dead_lettered) == (2, 2, 1)
    assert seen == [[3, 4]]


def test_event_reports_whether_its_transaction_committed(sqlite, mode):
    recorder = Recorder()
    step = sqlite.step(
        [1, 2], write=always(2), retry=SimpleRetryPolicy(1), listeners=[recorder], **skipping()
    )
    run(step, mode)
    summary = [
        (each.kind, each.transaction, each.committed)
        for each in recorder.events
        if each.transaction
    ]
    assert summary == [
        ("rolled_back", 1, False),
        ("written", 2, True),
        ("rolled_back", 2, False),
        ("dead_lettered", 2, True),
    ]


def test_rolled_back_decision_has_no_final_event(sqlite):
    """The letter of item 1 is decided before the write fails, and reported once, when committed."""
    recorder = Recorder()
    step = sqlite.step(
        [1, 2, 3],
        process=always(1),
        write=always(3),
        retry=SimpleRetryPolicy(1),
        listeners=[recorder],
        **skipping(),
    )
    step.run()
    final = [(each.kind, *each.numbers) for each in recorder.events if each.committed]
    assert sorted(final) == [("dead_lettered", 1), ("dead_lettered", 3), ("written", 2)]


def test_ended_event_of_a_failed_run_has_its_error(sqlite, mode):
    recorder = Recorder()
    step = sqlite.step([1], process=always(1), retry=SimpleRetryPolicy(1), listeners=[recorder])
    run(step, mode)
    last = recorder.events[-1]
    assert (last.kind, last.status, last.error.message) == ("ended", "failed", "item 1")
    assert last.as_json()["error"] == {
        "type": "tests.batch.test_scenarios.Bad",
        "message": "item 1",
    }


def test_asynchronous_listener_is_awaited(sqlite):
    recorder = Awaited()
    run(sqlite.step([1], listeners=[recorder]), "async")
    assert recorder.brief() == [
        ("started",),
        ("read", 1),
        ("processed", 1),
        ("written", 1),
        ("ended",),
    ]


def test_async_listener_is_rejected_without_asyncio(sqlite):
    with pytest.raises(MisuseError, match="listener"):
        sqlite.step([1], listeners=[Awaited()]).run()


def test_error_of_a_listener_is_logged_and_changes_nothing(sqlite, mode, caplog):
    class Breaks(StepListener):
        def on_event(self, event):
            raise Bad("no disk for the log")

    with caplog.at_level(logging.ERROR, "retrytemplate.batch"):
        report = run(sqlite.step([1], listeners=[Breaks()]), mode)
    assert report.status == "completed"
    assert "no disk for the log" in caplog.text


def test_hook_is_called_after_the_commit_with_written_items(sqlite, mode):
    seen = []

    def hook(items):
        seen.append((list(items), sqlite.rows()))

    step = sqlite.step(
        range(1, 5),
        process=always(2),
        write=Flaky(4),
        chunk_size=2,
        after_commit=hook,
        retry=SimpleRetryPolicy(2),
        skip=SkipPolicy(on=Bad),
    )
    run(step, mode)
    assert seen == [([1], [1]), ([3, 4], [1, 3, 4])]


def test_error_of_the_commit_hook_is_logged_and_changes_nothing(sqlite, mode, caplog):
    def hook(items):
        raise Bad("no mail today")

    report = run(sqlite.step([1], after_commit=hook), mode)
    assert (report.status, sqlite.rows()) == ("completed", [1])
    assert "no mail today" in caplog.text


def test_default_listener_gets_the_events_of_steps_of_any_age(sqlite, mode):
    own, default = Recorder(), Recorder()
    step = sqlite.step([1, 2], listeners=[own])
    add_default(default)
    try:
        run(step, mode)
    finally:
        remove_default(default)
    assert own.brief() == default.brief() != []


def test_default_listener_that_is_also_an_own_one_is_notified_once(sqlite, mode):
    recorder = Recorder()
    step = sqlite.step([1, 2], listeners=[recorder])
    add_default(recorder)
    try:
        run(step, mode)
    finally:
        remove_default(recorder)
    assert recorder.brief().count(("started",)) == 1


def test_registered_listener_gets_the_events_of_the_next_run(sqlite, mode):
    order = []

    class Named(StepListener):
        def __init__(self, name):
            self.name = name

        def on_event(self, event):
            if event.kind == "started":
                order.append(self.name)

    step = sqlite.step([1, 2], listeners=[Named("second")])
    step.register_listener(Named("third"))
    step.register_listener(Named("first"), 0)
    run(step, mode)
    assert order == ["first", "second", "third"]


def test_registered_object_without_on_event_is_rejected(sqlite):
    step = sqlite.step([1, 2])
    with pytest.raises(TypeError, match="listener must"):
        step.register_listener(object())
    with pytest.raises(TypeError, match="index must be an int or None"):
        step.register_listener(Recorder(), "first")
