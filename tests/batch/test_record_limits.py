"""Stored failures: redacted, and bounded in size."""

import asyncio
import json

import pytest

from retrytemplate import SimpleRetryPolicy
from retrytemplate.batch import (
    DeadLetters,
    ForwardReader,
    JobRepository,
    ReadError,
    Runs,
    SkipPolicy,
)
from retrytemplate.batch.journal.letters import joined
from retrytemplate.history import AttemptRecord
from tests.batch.test_scenarios import Bad
from tests.support.step_fixture import World, run

SECRET = "hunter2"


def redact(text):
    return text.replace(SECRET, "***")


@pytest.fixture
def kept(tmp_path):
    """Makes worlds whose repository keeps failures by these settings."""
    worlds = []

    def make(**settings):
        world = World(f"sqlite:///{tmp_path}/jobs.db", "batch")
        world.jobs.close()
        world.jobs = JobRepository(world.url, **settings)
        worlds.append(world)
        return world

    yield make
    for each in worlds:
        each.close()


def fail(item, _=None):
    raise Bad(f"password={SECRET} of {item}")


def everything(world):
    """All that the journal's tables hold, as text."""
    with world.jobs.transaction() as transaction:
        tables = world.jobs.tables
        return " ".join(
            str(list(transaction.execute(table.select())))
            for table in (tables.runs, tables.letters)
        )


def replay(step, mode):
    return step.replay() if mode == "sync" else asyncio.run(step.replay_async())


@pytest.mark.parametrize("piece", ["process", "write"])
def test_redact_is_applied_to_dead_letters(kept, mode, piece):
    world = kept(redact=redact)
    step = world.step([1], skip=SkipPolicy(on=Bad), **{piece: fail})
    run(step, mode)
    [letter] = DeadLetters(world.jobs).page()
    assert letter.error_message == letter.history[0].message == "password=*** of 1"
    assert "password=***" in letter.history[-1].traceback
    assert SECRET not in everything(world)


def test_redact_is_applied_to_replays(kept, mode):
    world = kept(redact=redact)
    step = world.step([1], process=fail, skip=SkipPolicy(on=Bad))
    run(step, mode)
    assert replay(step, mode).failed
    assert SECRET not in everything(world)


def test_redact_is_applied_to_the_error_of_a_run(kept, mode):
    world = kept(redact=redact)
    report = run(world.step([1], process=fail), mode)
    assert Runs(world.jobs).find(report.run_id).error.message == "password=*** of 1"
    assert SECRET not in everything(world)
    assert SECRET in str(report.exception)


def test_redact_is_applied_before_a_long_traceback_is_cut(kept, mode):
    def process(item):
        raise Bad(SECRET + 20_000 * "x" + SECRET)

    world = kept(redact=lambda text: text.replace("unter2x", "#").replace("unter2", "#"))
    run(world.step([1], process=process, skip=SkipPolicy(on=Bad)), mode)
    assert "unter2" not in everything(world)


def test_redact_is_applied_to_records_that_cannot_be_read(kept, mode):
    world = kept(redact=redact)
    stored = []
    reader = ForwardReader([1, 2])
    opened = reader.open

    def open_broken(position=None):
        cursor = opened(position)
        read = cursor.read

        def read_broken(limit):
            records = read(limit)
            if records:
                about = {"text": "1", "source": records.source, "number": records.number(0)}
                records.broken[0] = ReadError(f"bad line: {SECRET}", **about)
                records.items[0] = "1"
            return records

        cursor.read = read_broken
        return cursor

    def process(item):
        stored.append(everything(world))
        return item

    reader.open = open_broken
    run(world.step(reader=reader, process=process, skip=SkipPolicy(on=ReadError)), mode)
    [letter] = DeadLetters(world.jobs).page()
    assert letter.error_message.endswith("bad line: ***")
    [during] = stored
    assert "bad line: ***" in during
    assert SECRET not in during


@pytest.mark.parametrize("name", ["Bad", 4_000_000 * "É"])
def test_large_failure_is_stored_within_the_record_limit(kept, mode, name):
    failure = type(name, (Exception,), {})

    def process(item):
        raise failure(3_000_000 * "é")

    world = kept(record_limit=8192)
    step = world.step([1], process=process, skip=SkipPolicy(on=Exception))
    run(step, mode)
    replay(step, mode)
    letter = world.letter(1)
    stored = json.dumps([letter.attempts, letter.error_type, letter.error_message])
    assert len(stored) < 8192
    assert letter.error_message.startswith("é")


def test_large_error_of_a_run_is_stored_within_the_record_limit(kept, mode):
    def process(item):
        raise Bad(3_000_000 * "x")

    world = kept()
    report = run(world.step([1], process=process), mode)
    assert len(Runs(world.jobs).find(report.run_id).error.message) <= 8 * 1024


def test_history_of_many_replays_is_bounded_and_its_count_exact(kept, mode):
    world = kept()
    step = world.step([1], process=fail, retry=SimpleRetryPolicy(3), skip=SkipPolicy(on=Bad))
    run(step, mode)
    for _ in range(7):
        replay(step, mode)
    [letter] = DeadLetters(world.jobs).page()
    assert letter.attempts == 24
    assert [each.number for each in letter.history] == [1, 2, 3, *range(12, 25)]
    assert letter.as_json()["attempts"] == 24


def test_count_of_attempts_includes_those_that_a_history_leaves_out(kept, mode):
    world = kept()
    policy = SimpleRetryPolicy(40)
    run(world.step([1], process=fail, retry=policy, skip=SkipPolicy(on=Bad)), mode)
    [letter] = DeadLetters(world.jobs).page()
    assert (letter.attempts, len(letter.history)) == (40, 16)


def test_each_attempt_of_a_long_history_has_its_traceback(kept, mode):
    world = kept()
    run(world.step([1], process=fail, retry=SimpleRetryPolicy(20), skip=SkipPolicy(on=Bad)), mode)
    [letter] = DeadLetters(world.jobs).page()
    numbers = [attempt.number for attempt in letter.history if "raise Bad" in attempt.traceback]
    assert numbers == [1, 2, 3, *range(8, 21)]


def test_joined_attempts_are_numbered_on():
    def attempts(*numbers):
        return [AttemptRecord(number, None, None, "Bad", "no") for number in numbers]

    both = joined(attempts(1, 2, 30), attempts(1, 5))
    assert [each.number for each in both] == [1, 2, 30, 31, 35]
    assert [each.number for each in joined((), attempts(1))] == [1]


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"redact": "x"}, TypeError, "redact must be callable, got 'x'"),
        ({"record_limit": 8191}, ValueError, "record_limit must be an int >= 8192, got 8191"),
    ],
)
def test_repository_with_bad_record_settings_is_rejected(tmp_path, settings, error, says):
    with pytest.raises(error, match=says):
        JobRepository(f"sqlite:///{tmp_path}/jobs.db", **settings)
