"""Events of steps, dead letters and configurations."""

import asyncio
import json

import pytest

from retrytemplate.batch import ChunkStep, DeadLetters, JobRepository, Outbox, SkipPolicy
from retrytemplate.config import ConfigError, load
from retrytemplate.testing import capture_events
from tests.observe.test_event_sources import checked


@pytest.fixture
def jobs(tmp_path):
    with JobRepository(f"sqlite:///{tmp_path}/jobs.db") as repository:
        yield repository


def invert(jobs, numbers=(1, 0, 2), **settings):
    """A step of which the second item fails."""
    values = {"processor": lambda number: 1 / number, "writer": lambda items, transaction: None}
    values |= {"skip": SkipPolicy(on=ZeroDivisionError), "chunk_size": 2} | settings
    return ChunkStep("invert", reader=list(numbers), repository=jobs, **values)


def dead_letter(jobs):
    invert(jobs).run()
    [letter] = DeadLetters(jobs).page()
    return letter


def test_run_has_its_events_with_the_counts_of_its_report(jobs):
    with capture_events() as captured:
        report = invert(jobs).run()
    assert {event.type for event in captured.events} >= {"item.failed", "item.dead_lettered"}
    [started] = checked(captured.events, "run.started")
    [ended] = checked(captured.events, "run.ended")
    assert set(started.data["counts"].values()) == {0}
    counts = {name: getattr(report, name) for name in ended.data["counts"]}
    assert ended.data == {"run": report.run_id, "status": "completed", "counts": counts}
    assert (counts["written"], counts["dead_lettered"]) == (2, 1)


def test_write_that_fails_is_rolled_back_and_a_message_stays_unsent(jobs):
    failures = [ValueError("locked")]

    def write(items, transaction):
        if failures:
            raise failures.pop()

    def send(message):
        raise ConnectionError("unreachable")

    outbox = Outbox(send=send, message=lambda item: item)
    with capture_events() as captured:
        invert(jobs, (1, 2), writer=write, outbox=outbox).run()
    assert checked(captured.events, "item.rolled_back")
    assert checked(captured.events, "outbox.not_sent")


def replay_sync(step, letter):
    return step.replay([letter.id], by="ada")


def replay_async(step, letter):
    return asyncio.run(step.replay_async([letter.id], by="ada"))


@pytest.mark.parametrize("replay", [replay_sync, replay_async])
def test_replayed_letter_has_an_event_with_the_operator(jobs, replay):
    letter = dead_letter(jobs)
    with capture_events() as captured:
        assert replay(invert(jobs, processor=float), letter).replayed == (letter.id,)
    [event] = checked(captured.events, "dead_letter.replayed")
    assert event.subject == "invert"
    assert event.data == {"letter": letter.id, "by": "ada", "reason": None}


def test_letter_that_fails_again_has_no_event(jobs):
    letter = dead_letter(jobs)
    with capture_events() as captured:
        invert(jobs).replay([letter.id])
    assert captured.page(type="dead_letter.*") == []


def test_discarded_letter_has_one_event_with_its_reason(jobs):
    letter = dead_letter(jobs)
    with capture_events() as captured:
        for _ in range(2):
            DeadLetters(jobs).discard([letter.id, 99], by="ada", reason="test token=17")
    [event] = checked(captured.events, "dead_letter.discarded")
    assert event.subject == "invert"
    assert event.data == {"letter": letter.id, "by": "ada", "reason": "test token=***"}


def test_events_of_letters_are_json_for_listeners(jobs):
    class Notes:
        events = ()

        def on_event(self, event):
            self.events += (event,)

    letter, notes = dead_letter(jobs), Notes()
    invert(jobs, processor=float, listeners=[notes]).replay([letter.id], by="ada")
    [made] = [json.loads(json.dumps(each.as_json())) for each in notes.events]
    assert (made["kind"], made["letter"], made["by"]) == ("replayed", letter.id, "ada")


# Configurations.


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "resilience.toml"
    made.write_text("[bulkhead.endpoints.search]\nlimit = 3")
    return made


def test_configuration_that_is_loaded_has_an_event(file):
    with capture_events() as captured:
        load(file)
    [event] = checked(captured.events, "config.loaded")
    assert event.subject == str(file)
    assert (event.data["changed"], event.data["problems"]) == (["search"], [])
    assert "search.bulkhead" in event.data["rebuilt"]


def test_reload_has_an_event_with_the_changes(file):
    config = load(file)
    file.write_text("[bulkhead.endpoints.search]\nlimit = 5")
    with capture_events() as captured:
        config.reload()
    [event] = checked(captured.events, "config.loaded")
    assert (event.data["changed"], event.data["rebuilt"]) == (["search"], [])


@pytest.mark.parametrize("is_loaded", [True, False], ids=["reload", "load"])
def test_configuration_that_is_not_valid_has_an_event(file, is_loaded):
    config = load(file) if is_loaded else None
    file.write_text("[bulkhead.endpoints.search]\nlimit = 'token=17 '")
    with capture_events() as captured, pytest.raises(ConfigError) as error:
        config.reload() if config else load(file)
    [event] = checked(captured.events, "config.rejected")
    [problem] = event.data["problems"]
    assert problem == str(error.value.problems[0]).replace("token=17", "token=***")
