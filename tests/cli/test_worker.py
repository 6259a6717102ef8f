"""``retrytemplate worker`` as a user runs it: in processes of its own, on a real database."""

import asyncio
import json
import signal
import subprocess
from contextlib import contextmanager

import pytest

from retrytemplate.cli import main
from retrytemplate.cli.commands.worker.fleet import Fleet, describe
from retrytemplate.workers import JobQueue, RuntimeSnapshot
from tests.cli.jobs import COMMAND, PATIENCE, Place, lines_of
from tests.support import forked_python
from tests.support.polling import wait_until
from tests.support.redis_streams import RedisStream

# A message with the text "wait" blocks until a file is there; "crash" ends its process.
APP = """
import asyncio, os, signal, sys
from pathlib import Path
from retrytemplate import FixedBackoff
from retrytemplate.workers import JobQueue, Reject, Shutdown, SQLSource, WorkerRuntime

HERE = Path(__file__).parent
LIMITS = Shutdown(intake=0.1, grace=30.0, cancel=0.2)
jobs = JobQueue(f"sqlite:///{HERE}/jobs.db")

async def handle(message, context):
    print("handling", message.body.decode())
    (HERE / "arrived").touch()
    if b"reject" in message.body:
        raise Reject("no such order")
    if b"crash" in message.body:
        os._exit(9)
    if b"kill" in message.body:
        os.kill(os.getpid(), signal.SIGKILL)
    while b"wait" in message.body and not (HERE / "go").exists():
        await asyncio.sleep(0.01)  # the interval of the polls

def stubborn(message, context):
    (HERE / "arrived").touch()
    import time
    while not (HERE / "go").exists():
        time.sleep(0.01)  # the interval of the polls

def make(handler=handle):
    return WorkerRuntime(
        SQLSource(jobs, lease=6.0), handler, name="billing", concurrency=4, receive_wait=0.05,
        backoff=FixedBackoff(0.05), remember=3.0, shutdown=LIMITS,
    )

runtime = make()
number = 17
def threaded():
    return make(stubborn)
"""


class Workers(Place):
    """A folder with a runtime and its queue."""

    def __init__(self, folder):
        super().__init__(folder)
        (folder / "app.py").write_text(APP)

    def enqueue(self, *bodies):
        async def fill():
            async with JobQueue(self.url) as jobs:
                return [await jobs.enqueue(body, f"{body}-{i}") for i, body in enumerate(bodies)]

        return asyncio.run(fill())

    def states(self):
        return self._sql("SELECT state FROM queue_jobs ORDER BY number")

    @contextmanager
    def running(self, *args):
        """The command in this folder."""
        with forked_python.Popen(
            [*COMMAND, "worker", "run", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.folder,
        ) as process:
            yield process

    def is_settled(self):
        return not {"waiting", "running"} & set(self.states())


@pytest.fixture
def workers(tmp_path):
    return Workers(tmp_path)


def finished(process):
    """The exit code, the lines, and the errors."""
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out.splitlines(), err


def test_run_prints_warnings_and_lines_and_ends_clean(workers):
    workers.enqueue("one", "reject", "three")
    with workers.running("app:runtime", "--interval", "0.05") as process:
        wait_until(workers.is_settled)
        process.send_signal(signal.SIGTERM)
        code, lines, _ = finished(process)
    assert (code, workers.states()) == (0, ["completed", "dead_lettered", "completed"])
    warnings = [line.split(":")[0] for line in lines if line.startswith("warning")]
    assert warnings == [
        "warning grace-exceeds-visibility",
        "warning remember-below-visibility",
        "warning shutdown-exceeds-orchestrator",
    ]
    assert 'handling "one"' in lines
    last = lines[-1]
    assert last.startswith(f"billing stopped {workers.url} jobs 00:00:")
    assert "acknowledged 2 (" in last
    assert "dead-lettered 1, released 0, crashes 0, stuck 0" in last
    assert "attempt 1 of 5  " in last
    assert last.endswith("no such order; dead-letter")


def test_lines_count_the_abandoned_threads_of_all_processes():
    fleet = Fleet("billing", "jobs", is_group=True)
    known = {"name": "billing", "queue_name": "jobs", "state": "running", "concurrency": 2}
    fleet.add(0, RuntimeSnapshot(**known, abandoned_threads=1))
    assert describe(fleet, ", ")[2].endswith("stuck 0, abandoned threads 1")
    fleet.add(1, RuntimeSnapshot(**known, abandoned_threads=2))
    assert fleet.as_json()["abandoned_threads"] == 3
    fleet.remove(1)
    fleet.add(0, RuntimeSnapshot(**known))
    assert describe(fleet, ", ")[2].endswith("stuck 0")


def test_run_with_json_prints_an_object_per_line(workers):
    workers.enqueue("one")
    with workers.running("app.py:make", "--json", "--concurrency", "7") as process:
        wait_until(workers.is_settled)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    objects = lines_of(out)
    assert process.returncode == 0
    assert [each["type"] for each in objects[:3]] == ["warning"] * 3
    assert objects[0]["rule"] == "grace-exceeds-visibility"
    last = objects[-1]
    assert (last["type"], last["state"], last["acknowledged"]) == ("stopped", "stopped", 1)
    assert (last["concurrency"], last["processes"], last["process_crashes"]) == (7, 1, 0)
    assert 'handling "one"' in err


def test_second_interrupt_ends_the_grace_period_with_130(workers):
    workers.enqueue("wait")
    with workers.running("app:runtime", "--json", "--interval", "0.05") as process:
        workers.arrived()
        process.send_signal(signal.SIGINT)
        assert any('"draining"' in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        assert finished(process)[0] == 130
    assert workers.states() == ["waiting"]


def test_run_that_cancels_attempts_ends_with_1(workers):
    workers.enqueue("wait")
    text = (workers.folder / "app.py").read_text().replace("grace=30.0", "grace=0.1")
    (workers.folder / "app.py").write_text(text)
    with workers.running("app:runtime") as process:
        workers.arrived()
        process.send_signal(signal.SIGTERM)
        assert finished(process)[0] == 1
    assert workers.states() == ["waiting"]


def test_third_interrupt_ends_a_blocked_process(workers):
    workers.enqueue("one")
    with workers.running("app:threaded") as process:
        workers.arrived()

        def interrupt():
            process.send_signal(signal.SIGINT)
            return process.poll() is not None

        wait_until(interrupt)
        assert process.returncode == 130


@pytest.mark.parametrize("body", ["crash", pytest.param("kill", marks=pytest.mark.stress)])
def test_processes_that_crash_are_started_again(workers, body):
    workers.enqueue("one", body, "three")
    with workers.running("app:runtime", "--processes", "2", "--json") as process:
        wait_until(workers.is_settled)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
    objects = lines_of(out)
    crashes = [each for each in objects if each["type"] == "process_crashed"]
    assert process.returncode == 0, out + err
    assert workers.states() == ["completed", "dead_lettered", "completed"]
    assert 2 <= len(crashes) <= 3
    assert {each["exit_code"] for each in crashes} == {9 if body == "crash" else -9}
    assert objects[-1]["process_crashes"] == len(crashes)
    assert 'handling "one"' in err


def test_status_lists_the_runtimes_that_run(workers, monkeypatch, capsys):
    workers.enqueue("wait")
    monkeypatch.setenv("COLUMNS", "120")
    with workers.running("app:runtime") as process:
        workers.arrived()
        assert main(["worker", "status", "--store", workers.url, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["workers"]
        assert main(["worker", "status", "--store", workers.url]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert main(["worker", "status", "--store", workers.url, "--name", "mails"]) == 0
        assert capsys.readouterr().out == (
            "No workers of the name 'mails' run on a cache with the prefix queue or retry.\n"
        )
        (workers.folder / "go").touch()
        process.send_signal(signal.SIGTERM)
        assert finished(process)[0] == 0
    [worker] = found
    assert (worker["name"], worker["queue_name"]) == ("billing", "jobs")
    assert f":{process.pid}:" in worker["worker"]
    assert 0 <= worker["age"] < 15
    assert shown[0].split()[:3] == ["name", "worker", "state"]
    assert shown[2].split()[0] == "billing"
    assert len(shown) == 3
    assert main(["worker", "status", "--store", workers.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"workers": []}


STREAM_APP = """
import os
from pathlib import Path
from retrytemplate.workers import RedisStreamSource, WorkerRuntime

async def handle(message, context):
    (Path(__file__).parent / "arrived").touch()

NAME = os.environ["STREAM"]
source = RedisStreamSource(os.environ["URL"], NAME, group="workers", dead_letters=f"{NAME}-dead")
runtime = WorkerRuntime(source, handle, name=NAME, receive_wait=0.05)
"""


def test_status_finds_the_runtime_of_a_redis_stream(workers, valkey_url, capsys):
    stream = RedisStream(valkey_url)
    stream.put("one")
    (workers.folder / "stream.py").write_text(STREAM_APP)
    workers.environment |= {"URL": valkey_url, "STREAM": stream.name}
    with workers.running("stream:runtime") as process:
        workers.arrived()
        status = ["worker", "status", "--store", valkey_url, "--name", stream.name, "--json"]
        assert main(status) == 0
        [worker] = json.loads(capsys.readouterr().out)["workers"]
        process.send_signal(signal.SIGTERM)
        assert finished(process)[0] == 0
    assert f":{process.pid}:" in worker["worker"]
    assert main(status) == 0
    assert json.loads(capsys.readouterr().out) == {"workers": []}
    stream.close()


def test_status_of_a_database_without_tables_names_the_prefixes(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/jobs.db"
    (tmp_path / "jobs.db").touch()
    assert main(["worker", "status", "--store", url]) == 1
    assert capsys.readouterr().err == (
        "retrytemplate worker: the database has no tables queue_* or retry_*: no worker has run on "
        "it, or its context cache has another prefix, to be named by --store-prefix\n"
    )
    assert main(["worker", "status", "--store", url, "--store-prefix", "shop"]) == 1
    assert "the database has no tables shop_*: " in capsys.readouterr().err
    assert (tmp_path / "jobs.db").stat().st_size == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["none:runtime"], "there is no module none"),
        (["none.py:runtime"], "there is no file none.py"),
        (["app:nothing"], "app has no nothing, only runtime"),
        (["app:number"], "number of app must be a WorkerRuntime"),
        (["app"], "'app': must be FILE:NAME, such as app:runtime"),
        (["app:runtime", "--processes", "0"], "must be a whole number from 1 to 1000"),
        (["app:runtime", "--interval", "0"], "must be a number of seconds from 0.05 to 3600"),
    ],
)
def test_wrong_use_of_worker_run_is_named(workers, args, message):
    with workers.running(*args) as process:
        code, _, err = finished(process)
    assert code == 2
    assert message in err


def test_runtime_that_cannot_start_ends_with_1(workers):
    (workers.folder / "jobs.db").write_text("no database" * 100)
    with workers.running("app:runtime") as process:
        code, _, err = finished(process)
    assert code == 1
    assert "file is not a database" in err
    assert "Traceback" not in err
