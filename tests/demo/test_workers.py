"""``retrytemplate demo --workers``: its figures, and the command as a user runs it."""

import asyncio
import json
import re
import shlex
import sqlite3
import sys
from contextlib import closing

import pytest

from retrytemplate.demo import workers
from tests.cli.jobs import Place
from tests.support import forked_python

# The machine of a test run may be busy.
LIMIT = 170.0
pytestmark = pytest.mark.timeout(180)
COMMAND = (sys.executable, "-W", "error", "-m", "retrytemplate.cli")
RESULT = re.compile(
    r"300 messages: 0 lost, 0 doubled, 3 dead-lettered, [3-9] crashes, 0 bystanders dead-lettered"
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A database with the messages, and the numbers of those that crash a process."""
    database = tmp_path_factory.mktemp("demo") / "demo.db"
    return database, asyncio.run(workers.enqueue(database, 7))


@pytest.fixture
def finish(prepared, tmp_path):
    """Writes a result of the processes; returns the counts."""
    source, poisons = prepared
    database = tmp_path / "demo.db"

    def finish(*, processed, dead, crashes=9):
        with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(database)) as new:
            old.backup(new)
            new.executemany("INSERT INTO processed VALUES (?, 1, 1)", [(n,) for n in processed])
            new.executemany(
                "UPDATE queue_jobs SET state = 'dead_lettered' "
                "WHERE json_extract(body, '$.number') = ?",
                [(n,) for n in dead],
            )
            new.commit()
        return workers.count(database, poisons, crashes)

    return finish


def figures(counts):
    return (counts.lost, counts.doubled, counts.dead_lettered, counts.bystanders_dead_lettered)


def test_expected_result_has_every_message_once(prepared, finish):
    poisons = prepared[1]
    counts = finish(processed=set(range(1, 301)) - poisons, dead=poisons)
    assert figures(counts) == (0, 0, 3, 0)
    assert counts.is_expected
    assert RESULT.fullmatch(str(counts))


def test_message_without_result_is_counted_as_lost(prepared, finish):
    poisons = prepared[1]
    good = sorted(set(range(1, 301)) - poisons)
    lost = finish(processed=good[1:], dead=poisons)
    assert (figures(lost), lost.is_expected) == ((1, 0, 3, 0), False)


def test_message_processed_twice_is_counted_as_doubled(prepared, finish):
    poisons = prepared[1]
    good = sorted(set(range(1, 301)) - poisons)
    doubled = finish(processed=[*good, good[0]], dead=poisons)
    assert (figures(doubled), doubled.is_expected) == ((0, 1, 3, 0), False)


def test_dead_letter_of_a_bystander_is_counted(prepared, finish):
    poisons = prepared[1]
    good = sorted(set(range(1, 301)) - poisons)
    bystander = finish(processed=good[1:], dead=[*poisons, good[0]])
    assert (figures(bystander), bystander.is_expected) == ((0, 0, 4, 1), False)


def test_more_than_nine_crashes_are_not_expected(prepared, finish):
    poisons = prepared[1]
    counts = finish(processed=set(range(1, 301)) - poisons, dead=poisons, crashes=10)
    assert not counts.is_expected


def test_worker_demo_in_a_terminal_draws_a_table_and_the_result(tmp_path):
    database = tmp_path / "demo.db"
    args = ("demo", "--workers", "--database", database)
    code, shown = Place(tmp_path).in_a_terminal(*args, limit=LIMIT)
    assert code == 0, shown
    assert RESULT.search(shown)
    assert "\x1b[1A" in shown or "\x1b[2K" in shown
    assert re.search(r"in flight \d+/\d+ · prefetched \d+ · delayed", shown)
    assert "crashed (SIGKILL); it is started again in 0.1 s" in shown
    assert "AttemptLostError" in shown


@pytest.mark.stress
def test_worker_demo_prints_lines_and_commands_that_run(tmp_path):
    command = [*COMMAND, "demo", "--workers", "--database", str(tmp_path / "demo.db")]
    done = forked_python.run(command, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")
    assert RESULT.search(done.stdout)
    commands = re.findall(r"^  retrytemplate (.*)$", done.stdout, re.MULTILINE)
    assert [each.split()[1] for each in commands] == ["list", "show", "enqueue"]
    for each in commands:
        run = forked_python.run([*COMMAND, *shlex.split(each)], timeout=LIMIT)
        assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.stress
def test_worker_demo_with_json_prints_the_figures_only(tmp_path):
    command = [*COMMAND, "demo", "--workers", "--json", "--seed", "42"]
    command += ["--database", str(tmp_path / "demo.db")]
    done = forked_python.run(command, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["messages"], found["processed"], found["dead_lettered"]) == (300, 297, 3)
    assert (found["lost"], found["doubled"], found["bystanders_dead_lettered"]) == (0, 0, 0)
    assert 3 <= found["crashes"] <= 9
    assert len(found["letters"]) == 3


@pytest.mark.parametrize("option", ["--input", "--port"])
def test_worker_demo_rejects_options_of_the_other_demo(tmp_path, option):
    done = forked_python.run([*COMMAND, "demo", "--workers", option, "17"], timeout=LIMIT)
    assert (done.returncode, done.stderr) == (
        2,
        f"retrytemplate demo: --workers and {option} are mutually exclusive\n",
    )


def test_worker_demo_rejects_an_existing_database(tmp_path):
    database = tmp_path / "x.db"
    database.touch()
    command = [*COMMAND, "demo", "--workers", "--database", str(database)]
    done = forked_python.run(command, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (
        2,
        f"retrytemplate demo: --database: {database} exists already; name a new file\n",
    )
