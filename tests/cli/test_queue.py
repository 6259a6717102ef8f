"""``retrytemplate queue`` as a user runs it, on a real database."""

import asyncio
import io
import json

import pytest

from retrytemplate.cli import main
from retrytemplate.history import AttemptRecord
from retrytemplate.workers import DeadLetter, JobQueue, SQLSource


async def fill(url):
    """A completed, a dead-lettered, a running and a ready job; their ids."""
    async with JobQueue(url) as jobs:
        source = SQLSource(jobs)
        ids = [await jobs.enqueue({"order": i}, f"order-{i}") for i in range(4)]
        done, dead, _ = await source.receive(3, 0.0)
        await source.acknowledge([done])
        failed = AttemptRecord(5, 10.0, 11.0, "ValueError", "no price\nfor 1")
        letter = DeadLetter(
            "l-1", "k", "no price", "handler", 5, 1, (failed,), 1.0, 2.0, dead, "v7"
        )
        await source.dead_letter(dead, letter)
    return ids


@pytest.fixture
def ids(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("RETRYTEMPLATE_STORE", url)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return asyncio.run(fill(url))


@pytest.fixture
def queue(capsys):
    """The exit code, the lines of the output, and the errors."""

    def run(*args):
        try:
            code = main(["queue", *args])
        except SystemExit as ended:
            code = ended.code
        out, err = capsys.readouterr()
        return code, [line.rstrip() for line in out.splitlines()], err

    return run


def parsed(result):
    return json.loads("\n".join(result[1]))


def test_queue_list_has_a_line_for_each_job(ids, queue):
    code, lines, err = queue("list")
    assert (code, err) == (0, "")
    assert lines[0].split() == ["id", "key", "state", "tries", "age", "last", "failure"]
    shown = [(job_id, f"order-{i}") for i, job_id in enumerate(ids)]
    assert [tuple(line.split()[:2]) for line in lines[2:]] == shown
    states = ["completed", "dead_lettered", "running", "ready"]
    assert [line.split()[2] for line in lines[2:]] == states
    assert lines[3].endswith("no price")
    assert all(len(line) <= 80 for line in lines)


def test_queue_list_filters_by_state_and_names_the_next_page(ids, queue):
    page = parsed(queue("list", "--state", "dead_lettered", "--json"))
    assert [job["id"] for job in page["jobs"]] == [ids[1]]
    assert page["next"] is None
    page = parsed(queue("list", "--limit", "2", "--json"))
    rest = parsed(queue("list", "--after", str(page["next"]), "--json"))
    assert [job["id"] for job in page["jobs"] + rest["jobs"]] == ids
    assert queue("list", "--queue", "mails")[1] == ["No jobs match."]


def test_queue_show_prints_the_dead_letter_with_its_attempts(ids, queue):
    code, lines, err = queue("show", ids[1])
    assert (code, err) == (0, "")
    assert lines[0] == f"job {ids[1]}"
    text = "\n".join(lines)
    facts = ("attempts      5, crashes 1", "phase handler", "code          v7", "for 1")
    for fact in ('{"order": 1}', *facts):
        assert fact in text
    assert parsed(queue("show", ids[1], "--json"))["letter"]["reason"] == "no price"
    assert any(line.startswith("worker") for line in queue("show", ids[2])[1])


def test_queue_show_of_unknown_job_fails(ids, queue):
    assert queue("show", "nope") == (
        1,
        [],
        "retrytemplate queue: there is no job 'nope' in the queue 'jobs'\n",
    )


def test_queue_enqueue_registers_a_job_once(ids, queue, tmp_path, monkeypatch):
    (tmp_path / "job.json").write_text('{"report": "ü"}')
    code, [job_id], err = queue("enqueue", "job.json", "--key", "report-1", "--delay", "60")
    assert (code, err) == (0, "")
    monkeypatch.setattr("sys.stdin", io.StringIO("[17]"))
    assert parsed(queue("enqueue", "-", "--key", "report-1", "--json")) == {"id": job_id}
    job = parsed(queue("show", job_id, "--json"))
    assert (job["body"], job["state"]) == ({"report": "ü"}, "delayed")


def test_queue_enqueue_replays_a_dead_lettered_job_once(ids, queue):
    replay = ("enqueue", "--replay", ids[1], "--reason", "fixed", "--by", "ada")
    assert queue(*replay) == (0, [ids[1]], "")
    job = parsed(queue("show", ids[1], "--json"))
    assert job["state"] == "ready"
    assert [(each["by"], each["reason"]) for each in job["replays"]] == [("ada", "fixed")]
    assert "by ada: fixed" in "\n".join(queue("show", ids[1])[1])
    code, _, err = queue(*replay)
    assert code == 1
    assert f"there is no dead-lettered job '{ids[1]}'" in err


@pytest.mark.parametrize(
    "message, args",
    [
        ("pass either FILE or --replay", []),
        ("pass either FILE or --replay", ["x.json", "--replay", "x"]),
        ("FILE requires --key", ["x.json"]),
        ("--replay requires --reason", ["--replay", "x"]),
        ("cannot read x.json: No such file", ["x.json", "--key", "x"]),
        ("damaged.json must have one JSON value", ["damaged.json", "--key", "x"]),
        ("must be a number of seconds", ["x.json", "--key", "x", "--delay", "-1"]),
    ],
)
def test_wrong_use_of_queue_enqueue_is_named(ids, queue, tmp_path, message, args):
    (tmp_path / "damaged.json").write_text("{")
    code, _, err = queue("enqueue", *args)
    assert code == 2
    assert message in err


@pytest.mark.parametrize("verb", [("list",), ("enqueue", "job.json", "--key", "x")])
def test_queue_commands_create_no_tables(tmp_path, queue, verb):
    job, file = tmp_path / "job.json", tmp_path / "jobs.db"
    job.write_text("1")
    verb = [str(job) if each == "job.json" else each for each in verb]
    code, _, err = queue(*verb, "--store", f"sqlite:///{file}")
    assert (code, err) == (1, f"retrytemplate queue: there is no file {file}\n")
    file.touch()
    code, _, err = queue(*verb, "--store", f"sqlite:///{file}")
    assert (code, err) == (1, "retrytemplate queue: the database has no tables queue_*\n")
    assert file.stat().st_size == 0


def test_invalid_store_of_queue_is_named(queue):
    code, _, err = queue("list", "--store", "redis://localhost")
    assert (code, err) == (
        2,
        "retrytemplate queue: --store must be a URL of SQLite or PostgreSQL, got scheme 'redis'\n",
    )
    code, _, err = queue("list", "--store", "postgresql://me:secret@127.0.0.1:1/x")
    assert code == 1
    assert "secret" not in err
