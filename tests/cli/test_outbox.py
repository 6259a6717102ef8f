"""``retrytemplate outbox`` as a user runs it, on a real database."""

import json

import pytest

from retrytemplate.cli import main

JOB = """
import os
from sqlalchemy import text
from retrytemplate import NeverRetryPolicy
from retrytemplate.batch import ChunkStep, JobRepository, Outbox

def send(message):
    print("sending", message.payload["order"])
    if message.payload["order"] == int(os.environ.get("REJECTED", 0)):
        raise ConnectionError("the bus is\\ndown")

async def send_awaited(message):
    send(message)

def step(name="ship", send=send, outbox=True):
    return ChunkStep(
        name,
        reader=[1, 2, 3],
        writer=lambda items, transaction: None,
        repository=JobRepository(os.environ["JOBS"]),
        retry=NeverRetryPolicy(),
        outbox=Outbox(send, lambda item: {"order": item}) if outbox else None,
    )

def awaited():
    return step(send=send_awaited)

def hidden():
    return step(send=lambda message: send_awaited(message))

def silent():
    return step(outbox=False)
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """The file of a step whose run is completed, with the messages 2 and 3 waiting."""
    path = tmp_path / "job.py"
    path.write_text(JOB)
    url = f"sqlite:///{tmp_path}/jobs.db"
    for name in ("JOBS", "RETRYTEMPLATE_STORE"):
        monkeypatch.setenv(name, url)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("REJECTED", "2")
    assert main(["batch", "run", f"{path}:step", "--json"]) == 0
    return path


@pytest.fixture
def outbox(job, capsys):
    """The exit code, the lines of the output, and the errors."""
    capsys.readouterr()

    def run(*args):
        code = main(["outbox", *map(str, args)])
        out, err = capsys.readouterr()
        return code, [line.rstrip() for line in out.splitlines()], err

    return run


def test_outbox_list_has_a_line_for_each_message(outbox):
    code, lines, err = outbox("list")
    assert (code, err) == (0, "")
    assert lines[0].split() == ["number", "step", "run", "age", "payload"]
    assert [line.split()[1:3] for line in lines[2:]] == [["ship", "1"], ["ship", "1"]]
    assert lines[2].endswith('{"order": 2}')


def test_outbox_list_as_json_names_the_next_page(outbox):
    _, lines, _ = outbox("list", "--limit", 1, "--json")
    page = json.loads("\n".join(lines))
    [message] = page["messages"]
    assert (message["payload"], message["run"], message["step"]) == ({"order": 2}, 1, "ship")
    assert page["next"] == message["number"]
    _, lines, _ = outbox("list", "--after", page["next"], "--json")
    assert json.loads("\n".join(lines))["next"] is None


def test_outbox_list_names_the_next_page(outbox):
    _, lines, _ = outbox("list", "--limit", 1)
    assert lines[-1].startswith("1 of 2 messages; more: --after ")


def test_outbox_list_without_a_message_prints_a_note(outbox):
    assert outbox("list", "--step", "other") == (0, ["No unsent messages."], "")


def test_outbox_list_of_unknown_run_fails(outbox):
    assert outbox("list", "--run", 99) == (1, [], "retrytemplate outbox: there is no run 99\n")


@pytest.mark.parametrize("name", ["step", "awaited"])
def test_outbox_send_sends_unsent_messages(outbox, job, monkeypatch, name):
    monkeypatch.delenv("REJECTED")
    code, lines, err = outbox("send", f"{job}:{name}")
    assert (code, err) == (0, "")
    assert lines == ["sending 2", "sending 3", "2 sent, 0 unsent"]


def test_outbox_send_that_fails_names_the_failure(outbox, job):
    code, lines, err = outbox("send", f"{job}:step")
    assert (code, lines[-1]) == (1, "0 sent, 2 unsent")
    assert err == "retrytemplate outbox: not sent: ConnectionError: the bus is\n"


def test_outbox_send_of_hidden_coroutine_names_the_option(outbox, job, monkeypatch):
    monkeypatch.delenv("REJECTED")
    code, _, err = outbox("send", f"{job}:hidden")
    assert code == 2
    assert err.endswith("; for this command: --async\n")
    assert outbox("send", f"{job}:hidden", "--async")[1][-1] == "2 sent, 0 unsent"


def test_outbox_send_as_json_prints_the_report(outbox, job):
    code, lines, err = outbox("send", f"{job}:step", "--json")
    report = json.loads("\n".join(lines))
    assert (code, report["sent"], report["unsent"]) == (1, 0, 2)
    assert report["error"]["type"] == "ConnectionError"
    assert "sending 2" in err


def test_outbox_send_of_a_step_without_outbox_is_wrong_use(outbox, job):
    code, _, err = outbox("send", f"{job}:silent")
    assert code == 2
    assert "step 'ship' has no outbox" in err


def test_batch_status_prints_the_number_of_unsent_messages(job, capsys):
    capsys.readouterr()
    assert main(["batch", "status"]) == 0
    assert (
        "2 messages of these runs are unsent; to show: retrytemplate outbox list"
        in capsys.readouterr().out
    )
    assert main(["batch", "status", "1"]) == 0
    shown = capsys.readouterr().out
    assert "outbox        2 unsent; to send: retrytemplate outbox send FILE:NAME" in shown
    assert main(["batch", "status", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unsent"] == 2


def test_batch_run_of_a_completed_run_prints_its_end(job, capfd):
    capfd.readouterr()
    assert main(["batch", "run", f"{job}:step", "--json"]) == 0
    err = capfd.readouterr().err
    assert "run 1 was completed at 20" in err
    assert "UTC; to run it again: --on-existing restart" in err
