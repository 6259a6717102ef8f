"""Inspection of dead letters, and decisions about them."""

import io
import json
import re
import threading

import pytest
from sqlalchemy import create_engine, event

from retrytemplate import SimpleRetryPolicy
from retrytemplate.batch import DeadLetters, JobRepository, JobRepositoryError, SkipPolicy
from tests.support import step_fixture
from tests.support.step_fixture import empty_world, run


class Odd(Exception):
    """What odd items raise."""


class VeryOdd(Exception):
    """What 5 raises."""


def fail(item):
    if item == 5:
        raise VeryOdd("five")
    if item % 2:
        raise Odd(f"item {item}")
    return item


def letters_of(world):
    """Those of the items 1, 3, 5 of the step "copy", and of 7 in the writer of "other"."""
    skip = {"skip": SkipPolicy(on=Exception), "retry": SimpleRetryPolicy(2)}
    world.step(range(1, 7), process=fail, key=lambda item: f"k{item}", **skip).run()
    world.step([7], write=lambda item, _: fail(item), name="other", **skip).run()
    return DeadLetters(world.jobs)


@pytest.fixture
def letters(world):
    return letters_of(world)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def unchanged(request):
    """The same letters, for tests that change none of them."""
    with empty_world(request.param, request) as made:
        yield letters_of(made)


def numbers(letters):
    return [int(letter.payload) for letter in letters]


def test_letter_has_the_state_of_its_item_when_given_up(unchanged):
    letter = unchanged.find(unchanged.page()[0].id)

    assert (letter.step, letter.source, letter.number) == ("copy", "items", 1)
    assert (letter.key, letter.ordinal, letter.phase) == ("k1", 1, "process")
    assert (letter.payload, letter.replayable, letter.code_version) == ("1", True, None)
    assert letter.error_type.endswith("test_dead_letters.Odd")
    assert letter.error_message == "item 1"
    assert (letter.state, letter.resolved, letter.audit, letter.problem) == ("open", None, (), None)


def test_history_of_a_letter_consists_of_attempt_records(letters):
    history = letters.page()[0].history
    assert [attempt.number for attempt in history] == [1, 2]
    assert history[0].type_name.endswith(".Odd")
    assert "Traceback" in history[0].traceback
    assert history[1].duration >= 0


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("piece", ["process", "write"])
def test_traceback_of_a_letter_has_no_frames_of_the_library(sqlite, mode, piece, concurrency):
    settings = {piece: lambda item, *_: fail(item), "concurrency": concurrency}
    run(sqlite.step([1, 2], skip=SkipPolicy(on=Odd), retry=SimpleRetryPolicy(2), **settings), mode)
    [letter] = DeadLetters(sqlite.jobs).page()
    for attempt in letter.history:
        places = re.findall(r'File "(.*?)", line \d+, in (.*)', attempt.traceback)
        assert places[-1] == (__file__, "fail")
        assert {file for file, _ in places} == {__file__, step_fixture.__file__}


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, [1, 3, 5, 7]),
        ({"step": "copy"}, [1, 3, 5]),
        ({"step": "cop"}, []),
        ({"run": 2}, [7]),
        ({"state": "open"}, [1, 3, 5, 7]),
        ({"state": "discarded"}, []),
        ({"error": "Odd"}, [1, 3, 7]),
        ({"error": "odd"}, []),
        ({"error": "dd"}, []),
        ({"error": f"{__name__}.VeryOdd"}, [5]),
        ({"key": "k3"}, [3]),
        ({"phase": "write"}, [7]),
        ({"phase": "process", "error": "Odd", "step": "copy"}, [1, 3]),
    ],
)
def test_filters_leave_the_letters_that_fit_all_of_them(unchanged, filters, found):
    assert numbers(unchanged.page(**filters)) == found
    assert unchanged.count(**filters) == len(found)


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        (
            {"state": "lost"},
            "state must be 'open' or 'replayed' or 'discarded' or None, got 'lost'",
        ),
        (
            {"phase": "reading"},
            "phase must be 'read' or 'process' or 'write' or 'crash' or None, got",
        ),
        ({"key": 3}, "key must be"),
        ({"step": b"copy"}, "step must be"),
        ({"error": ValueError}, "error must be"),
        ({"run": "2"}, "run must be an int or None, got '2'"),
        ({"limit": 0}, "limit must be"),
        ({"after": -1}, "after must be"),
        ({"after": 2**63}, "after must be a signed 64-bit int, got 9223372036854775808"),
        ({"limit": 2**63}, "limit must be a signed 64-bit int"),
        ({"run": 10**30}, "run must be a signed 64-bit int or None"),
        ({"step": "\ud800"}, r"step must be a string that a database can store, got '\\ud800'"),
    ],
)
def test_unknown_filter_is_rejected_by_name(unchanged, filters, says):
    with pytest.raises((TypeError, ValueError), match=says):
        unchanged.page(**filters)


@pytest.mark.parametrize("filters", [{"error": "Bad\ud800\0"}, {"key": "Bad\ud800\0"}])
def test_filter_values_are_escaped_like_stored_ones(unchanged, filters):
    assert unchanged.page(**filters) == []


@pytest.mark.parametrize(
    ("number", "error"),
    [("1", TypeError), (True, TypeError), (1.0, TypeError), (None, TypeError), (2**63, ValueError)],
)
def test_value_that_is_not_a_letter_number_is_rejected(unchanged, number, error):
    with pytest.raises(error, match=r"letter_id must be (an|a signed 64-bit) int, got"):
        unchanged.find(number)


@pytest.mark.parametrize("number", [0, -1, 2**63 - 1])
def test_missing_letter_is_not_found(unchanged, number):
    assert unchanged.find(number) is None
    assert unchanged.discard([number], by="ada", reason="x").unknown == (number,)


def test_id_over_64_bits_is_rejected(unchanged):
    with pytest.raises(ValueError, match="ids must be signed 64-bit ints, got 9223372036854775808"):
        unchanged.discard([1, 2**63], by="ada", reason="x")


def test_export_requires_a_writable_stream(unchanged):
    with pytest.raises(TypeError, match="stream must be an object with the methods write, got 'x'"):
        unchanged.export("x")


def test_pages_follow_each_other(unchanged):
    first = unchanged.page(limit=3)
    assert numbers(first) == [1, 3, 5]
    assert numbers(unchanged.page(after=first[-1].id)) == [7]
    assert unchanged.page(after=10**6) == []


def test_each_reads_all_letters_page_by_page(unchanged, monkeypatch):
    monkeypatch.setattr("retrytemplate.batch.dead_letters.PAGE", 2)
    assert numbers(unchanged.each()) == [1, 3, 5, 7]


def test_discarded_letter_records_person_and_reason(letters):
    target = letters.page()[1].id
    done = letters.discard([target], by="ada", reason="a duplicate")
    letter = letters.find(target)

    assert (done.discarded, done.before, done.replayed, done.unknown) == ((target,), (), (), ())
    assert letter.state == "discarded"
    [entry] = letter.audit
    assert (entry.by, entry.action, entry.reason) == ("ada", "discarded", "a duplicate")
    assert letter.created <= letter.resolved == entry.at


def test_letter_is_discarded_once(letters):
    target = letters.page()[0].id
    letters.discard([target, target], by="ada", reason="first")
    again = letters.discard([target], by="bob", reason="second")

    assert (again.discarded, again.before) == ((), (target,))
    assert [entry.by for entry in letters.find(target).audit] == ["ada"]


def test_discard_leaves_replayed_letters_and_names_missing_ones(letters, world):
    first, *_ = letters.page()
    world.step(name="copy").replay([first.id])
    done = letters.discard([99, first.id], by="ada", reason="never mind")

    assert (done.discarded, done.replayed, done.unknown) == ((), (first.id,), (99,))
    assert letters.find(first.id).state == "replayed"
    assert [entry.action for entry in letters.find(first.id).audit] == ["replayed"]


def test_one_of_two_concurrent_discards_takes_effect(letters, world):
    target = letters.page()[0].id
    start, became = threading.Barrier(4), []

    def discard(name):
        with JobRepository(world.url, prefix=world.prefix, timeout=30) as jobs:
            start.wait(30)
            became.append(DeadLetters(jobs).discard([target], by=name, reason="at once"))

    threads = [threading.Thread(target=discard, args=(f"p{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(len(each.discarded) for each in became) == [0, 0, 0, 1]
    assert sum(len(each.before) for each in became) == 3
    assert len(letters.find(target).audit) == 1


@pytest.fixture
def racing(sqlite):
    """Has something done by others between the look at letter 1 and the decision about it.

    The repository is on an engine of the caller, which locks nothing that it reads.
    """
    sqlite.step([1], process=fail, skip=SkipPolicy(on=Odd), retry=SimpleRetryPolicy(1)).run()
    engine = create_engine(sqlite.url)

    def race(*others):
        left = list(others)

        def decide(*arguments):
            if left and arguments[2].startswith(f"UPDATE {sqlite.prefix}_letters"):
                left.pop()()

        event.listen(engine, "before_cursor_execute", decide)
        return JobRepository(engine, prefix=sqlite.prefix)

    yield race
    engine.dispose()


def decided(world):
    letter = DeadLetters(world.jobs).find(1)
    return letter.state, [entry.by for entry in letter.audit]


def discard(jobs, by):
    return DeadLetters(jobs).discard([1], by=by, reason="x")


def test_letter_discarded_meanwhile_keeps_the_first_decision(sqlite, racing):
    jobs = racing(lambda: discard(sqlite.jobs, "ada"))
    assert discard(jobs, "bob").before == (1,)
    assert decided(sqlite) == ("discarded", ["ada"])


def test_letter_replayed_meanwhile_is_not_discarded(sqlite, racing):
    jobs = racing(lambda: sqlite.step().replay(by="kim"))
    assert discard(jobs, "bob").replayed == (1,)
    assert decided(sqlite) == ("replayed", ["kim"])


def test_letter_that_fails_again_is_discarded_with_both_audit_entries(sqlite, racing):
    jobs = racing(lambda: sqlite.step(process=fail).replay(by="kim"))
    assert discard(jobs, "bob").discarded == (1,)
    assert decided(sqlite) == ("discarded", ["kim", "bob"])


@pytest.mark.parametrize("process", [fail, lambda item: None], ids=["fails again", "is filtered"])
def test_letter_discarded_meanwhile_is_not_replayed(sqlite, racing, process):
    jobs = racing(lambda: discard(sqlite.jobs, "ada"))
    report = sqlite.step(process=process, repository=jobs).replay(by="kim")
    assert (report.replayed, report.failed, report.skipped) == ((), (), (1,))
    assert decided(sqlite) == ("discarded", ["ada"])


@pytest.mark.parametrize("given", [{"by": " "}, {"reason": ""}, {"by": None}, {"reason": 3}])
def test_discard_requires_person_and_reason(letters, given):
    with pytest.raises(ValueError, match=f"{next(iter(given))} must be a non-blank str"):
        letters.discard([1], **{"by": "ada", "reason": "x"} | given)
    assert letters.count(state="open") == 4


@pytest.mark.parametrize("ids", ["12", b"\x01", [True], ["1"], [1.0], 1, None, {1: 2}, {1}])
def test_discard_of_other_values_than_numbers_changes_nothing(unchanged, ids):
    with pytest.raises(TypeError, match="ids must be a sequence of ints, got"):
        unchanged.discard(ids, by="ada", reason="x")
    assert unchanged.count(state="open") == 4


def test_export_has_one_line_per_letter_with_all_fields(letters):
    stream = io.StringIO()
    assert letters.export(stream, step="copy") == 3

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["key"] for line in lines] == ["k1", "k3", "k5"]
    assert [attempt["number"] for attempt in lines[0]["history"]] == [1, 2]
    assert lines[0]["audit"] == []
    assert lines[2]["error_message"] == "five"


def test_unreadable_letter_hides_no_other_letter(letters, world):
    broken, whole, *_ = letters.page()
    table = world.jobs.tables.letters
    for column, text in (("attempts", '[{"number": 1}]'), ("audit", "[{}]"), ("attempts", "[")):
        with world.jobs.transaction() as transaction:
            change = table.update().where(table.c.id == broken.id)
            transaction.execute(change.values({column: text}))
        found, other, *_ = letters.page()
        assert found.problem
        assert found.payload == broken.payload
        assert other == whole


def test_database_without_tables_is_reported_and_unchanged(tmp_path):
    path = tmp_path / "jobs.db"
    path.touch()
    with JobRepository(f"sqlite:///{path}") as jobs:
        letters = DeadLetters(jobs)
        for ask in (letters.page, letters.count, lambda: letters.discard([1], by="a", reason="b")):
            with pytest.raises(JobRepositoryError, match=r"has no tables batch_\*"):
                ask()
    assert path.stat().st_size == 0
