"""``retrytemplate switch`` as an operator runs it, on real stores."""

from __future__ import annotations

import getpass
import json
import os
import pty
import re
import shlex
import sqlite3
import subprocess
import sys
import time
from argparse import ArgumentParser
from contextlib import closing
from pathlib import Path

import pytest
from rich.cells import cell_len

from retrytemplate.cli import main
from retrytemplate.cli.commands.switch.commands import (
    REPORT_EPILOG,
    RESUME_EPILOG,
    STATUS_EPILOG,
    STOP_EPILOG,
    add_parser,
)
from retrytemplate.control import KillSwitch, RedisSwitchStore, SQLSwitchStore
from retrytemplate.testing import VirtualClock
from tests.support import forked_python

SECRET = "s3cr%2Ft"
DAY = 86_400
REASON = "leak suspected, incident 4711"
MENDED = "mended in release 1.4.2"
STOP = "stop", "--segment", "finance", "--reason", REASON
STOPPED = *STOP, "--for", "24h"
RESUME = "resume", "--segment", "finance", "--justification", MENDED
COMMAND = sys.executable, "-m", "retrytemplate.cli", "switch"


class Office:
    """A database with the switch store of another process."""

    def __init__(self, folder):
        self.path = folder / "switch.db"
        self.url = f"sqlite:///{self.path}"
        self.store = SQLSwitchStore(self.url)
        self.switch = KillSwitch(self.store, 0)
        self.switches = [self.switch]

    def at(self, ago, **settings):
        """A switch whose clock is *seconds* behind."""
        clock = VirtualClock(epoch=time.time() - ago)
        self.switches.append(KillSwitch(self.store, 0, clock=clock, **settings))
        return self.switches[-1]

    def names(self):
        """The tables of the database."""
        with closing(sqlite3.connect(self.path)) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}

    def close(self):
        for switch in self.switches:  # their threads have connections
            switch.close()
        self.store.close()


@pytest.fixture
def office(tmp_path, monkeypatch):
    made = Office(tmp_path)
    sqlite3.connect(made.path).close()
    monkeypatch.setenv("RETRYTEMPLATE_STORE", made.url)
    monkeypatch.setenv("COLUMNS", "96")
    yield made
    made.close()


@pytest.fixture
def shown(office, capsys):
    """The lines that the command prints."""

    def run(*args, code=0):
        assert main(["switch", *map(str, args)]) == code
        out, err = capsys.readouterr()
        assert err == ""
        return [line.rstrip() for line in out.splitlines()]

    return run


@pytest.fixture
def data(office, capsys):
    """The JSON that the command prints."""

    def run(*args, code=0):
        assert main(["switch", *map(str, args), "--json"]) == code
        return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)

    return run


def refused(capsys, *args):
    """The exit code and the error output of a rejected command."""
    try:
        code = main(["switch", *map(str, args)])
    except SystemExit as ended:  # where the arguments cannot even be read
        code = ended.code
    out, err = capsys.readouterr()
    assert out == ""
    return code, err


def facts(lines):
    """The lines of label and text, as a mapping."""
    return {line[:14].rstrip(): line[14:] for line in lines[1:]}


# -- stop ----------------------------------------------------------------------------------------


@pytest.mark.statement("S4-62")
@pytest.mark.parametrize(
    ("option", "scope"),
    [
        (("--segment", "finance"), {"segment": "finance"}),
        (("--feature", "export"), {"feature": "export"}),
        (("--experiment", "blue"), {"experiment": "blue"}),
        (("--global",), {}),
    ],
)
def test_stop_of_the_command_reaches_a_running_switch(office, shown, option, scope):
    assert office.switch.check(**scope)
    shown("stop", *option, "--reason", REASON, "--for", "24h", "--by", "kim")

    assert office.switch.check(**scope).reason.endswith(f"is stopped by kim: {REASON}")
    assert office.switch.check(segment="others").allowed == bool(scope)


def test_stop_prints_reason_operator_end_and_notification(shown):
    lines = shown(*STOPPED, "--by", "kim")
    fields = facts(lines)

    assert lines[0] == "segment 'finance' is stopped"
    assert (fields["reason"], fields["by"]) == (REASON, "kim")
    assert re.fullmatch(r"resumes automatically in 24 h, \d{4}-.* UTC", fields["end"])
    assert fields["notified"] == "no: pending until a process whose switch has notifiers sends it"


def test_operator_defaults_to_the_user_who_is_logged_in(office, shown, monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "lee")

    assert facts(shown(*STOPPED))["by"] == "lee (the user who is logged in)"
    assert office.switch.audit()[0].by == "lee"


def test_missing_login_requires_the_by_option(office, capsys, monkeypatch):
    def nobody():
        raise OSError("no login name")

    monkeypatch.setattr(getpass, "getuser", nobody)

    assert refused(capsys, *STOPPED) == (
        2,
        "retrytemplate switch: --by: no user is logged in; pass a name\n",
    )
    assert office.names() == set()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("90s", 90), ("90m", 5400), ("24h", DAY), ("1.5d", 1.5 * DAY), ("1w", 7 * DAY)],
)
def test_durations_have_units(data, given, seconds):
    record = data(*STOP, "--for", given)
    assert record["until"] - record["at"] == pytest.approx(seconds)


def test_permanent_stop_is_shown_as_permanent(shown, data):
    assert facts(shown(*STOP, "--permanent"))["end"] == "permanent"
    assert data("status")["stopped"][0]["until"] is None


def test_stop_with_keep_stays_after_its_end(data):
    assert data(*STOPPED)["when_expired"] == "resume"
    assert data(*STOPPED, "--when-expired", "keep")["when_expired"] == "keep"


def test_second_stop_keeps_the_later_end(shown):
    shown(*STOP, "--permanent")
    assert facts(shown(*STOPPED))["end"] == "permanent"


def test_first_change_of_a_store_prints_a_note(shown):
    assert "first change" in facts(shown(*STOPPED))["note"]
    assert "note" not in facts(shown(*STOPPED))


def test_new_name_similar_to_a_known_one_prints_a_note(shown):
    shown(*STOPPED)
    typo = "stop", "--segment", "finanse", *STOPPED[3:]

    note = "segment 'finanse' is new in this store; a similar one is known: 'finance'"
    assert facts(shown("status", "--segment", "finanse"))["note"] == note
    assert facts(shown(*typo))["note"] == note
    assert "note" not in facts(shown(*typo))
    assert "note" not in facts(shown("stop", "--segment", "retail", *STOPPED[3:]))
    assert "note" not in facts(shown("stop", "--feature", "finance", *STOPPED[3:]))


def test_stop_json_is_the_record_of_the_change(office, data):
    record = data(*STOPPED, "--by", "kim")

    assert record.pop("until") - record.pop("at") == pytest.approx(DAY)
    assert record == {
        "kind": "segment",
        "name": "finance",
        "action": "stopped",
        "by": "kim",
        "reason": REASON,
        "share": 0.0,
        "when_expired": "resume",
        "override": False,
        "id": office.switch.audit()[0].id,
        "notified": False,
    }


def test_stop_with_short_reason_is_rejected_and_stops_nothing(office, capsys):
    code, message = refused(capsys, *STOPPED[:4], "leak", "--for", "24h")

    assert code == 1
    assert "reason must have at least 12 characters" in message
    assert office.switch.check(segment="finance")


def in_a_terminal(answer, *args):
    """Run the command in a terminal with typed input; the exit code and the output."""
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    try:
        done = forked_python.run((*COMMAND, *args), stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    return done.returncode, done.stdout, done.stderr


GLOBAL = "stop", "--global", "--reason", "prices wrong, incident 4713", "--for", "2h"


def test_stop_of_everything_in_a_terminal_requests_confirmation(office):
    code, out, err = in_a_terminal(b"n\n", *GLOBAL)

    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "In all processes, for 2 h: 'prices wrong, incident 4713'",
        "Stop everything? [y/N] retrytemplate switch: nothing was changed",
    ]
    assert office.switch.check()


@pytest.mark.parametrize(
    ("answer", "more"), [(b"y\n", ()), (b"", ("--yes",))], ids=["confirmed", "--yes"]
)
def test_stop_of_everything_in_a_terminal_accepts_yes(office, answer, more):
    code, out, _ = in_a_terminal(answer, *GLOBAL, *more)

    assert (code, out.splitlines()[0]) == (0, "everything is stopped")
    assert not office.switch.check()


# -- resume --------------------------------------------------------------------------------------


@pytest.mark.statement("S4-62")
def test_resumed_scope_runs_again(office, shown):
    shown(*STOPPED)
    lines = shown(*RESUME, "--by", "lee")

    assert lines[0] == "segment 'finance' is resumed"
    assert facts(lines)["justification"] == MENDED
    assert facts(lines)["by"] == "lee"
    assert "end" not in facts(lines)
    assert office.switch.check(segment="finance")


def test_resume_under_a_wider_stop_prints_a_note(shown):
    shown(*STOPPED)
    shown(*GLOBAL)
    assert (
        facts(shown(*RESUME))["note"]
        == "the global stop is still in force: this scope stays stopped"
    )


def test_resume_of_a_running_scope_is_rejected(office, capsys):
    office.switch.stop(feature="export", reason=REASON, by="kim", permanent=True)

    assert refused(capsys, *RESUME) == (
        1,
        "retrytemplate switch: segment 'finance' is not stopped; stopped scopes: "
        "feature 'export'\n",
    )


def test_canary_advances_in_steps(office, shown):
    shown(*STOPPED)
    lines = shown(*RESUME, "--canary", "5,25,100")
    assert lines[0] == "segment 'finance' is resumed for 5 % of the keys"
    assert facts(lines)["next"] == "25 %, 100 %, each with --advance, after a check"

    lines = shown(*RESUME, "--advance")
    assert lines[0] == "segment 'finance' is resumed for 25 % of the keys"
    assert office.switch.report().lines[0].entry.share == 25

    assert shown(*RESUME, "--advance")[0] == "segment 'finance' is resumed"
    assert office.switch.check(segment="finance")


def test_failed_canary_is_rolled_back(office, shown):
    shown(*STOPPED)
    shown(*RESUME, "--canary", "50,100")
    lines = shown(*RESUME[:4], "errors are back, incident 4713", "--failed")

    assert lines[0] == "segment 'finance' is stopped again"
    assert office.switch.audit()[0].reason == "not healthy: errors are back, incident 4713"
    assert office.switch.report().lines[0].state == "stopped"


def test_successful_check_takes_the_next_step(office, capfd):
    office.switch.stop(segment="finance", reason=REASON, by="kim", permanent=True)
    office.switch.resume(segment="finance", by="lee", justification=MENDED, canary=(5, 25, 100))
    command = f"{sys.executable} -c 'print(17)'"
    assert main(["switch", *RESUME, "--advance", "--check", command, "--json"]) == 0
    out, err = capfd.readouterr()

    assert (json.loads(out)["action"], json.loads(out)["share"]) == ("advanced", 25.0)
    assert err == "17\n"  # the output of a check is not part of the JSON


def test_failed_check_stops_the_scope_again(office, shown, capsys):
    shown(*STOPPED)
    shown(*RESUME, "--canary", "5,25,100")
    assert main(["switch", *RESUME, "--advance", "--check", "false"]) == 1
    out, err = capsys.readouterr()

    assert out.splitlines()[0] == "segment 'finance' is stopped again"
    assert err == (
        "retrytemplate switch: the check 'false' failed: segment 'finance' is stopped again\n"
    )
    assert office.switch.report().lines[0].state == "stopped"


def test_check_that_is_not_a_program_fails(office, shown, capsys):
    command = office.path.with_name("check")
    command.write_bytes(b"\0")
    command.chmod(0o755)
    shown(*STOPPED)
    shown(*RESUME, "--canary", "5,25,100")
    assert main(["switch", *RESUME, "--advance", "--check", str(command)]) == 1
    out, err = capsys.readouterr()

    assert out.splitlines()[0] == "segment 'finance' is stopped again"
    assert re.match(rf"'{command}' cannot be run: .*Exec format error", err)


@pytest.mark.parametrize("command", ["no-such-command-17", " ", "a 'quote"])
def test_check_command_that_cannot_run_changes_nothing(office, shown, capsys, command):
    shown(*STOPPED)
    shown(*RESUME, "--canary", "5,25,100")
    code, message = refused(capsys, *RESUME, "--advance", "--check", command)

    assert (code, "--check: " in message) == (2, True)
    assert office.switch.report().lines[0].entry.share == 5


def test_advance_without_a_canary_is_rejected(shown, capsys):
    shown(*STOPPED)
    code, message = refused(capsys, *RESUME, "--advance")

    assert (code, message) == (
        1,
        "retrytemplate switch: segment 'finance' is stopped for all keys; start a canary with "
        "resume --canary 5,25,100\n",
    )


def test_resume_of_everything_needs_an_override(office, shown, capsys):
    shown(*GLOBAL)
    back = "resume", "--global", "--justification", MENDED
    code, message = refused(capsys, *back)

    assert (code, message) == (
        1,
        "retrytemplate switch: a global stop must be resumed in steps: use --canary 5,25,100, or "
        "--override to resume all at once\n",
    )
    assert not office.switch.check()
    assert facts(shown(*back, "--by", "lee", "--override"))["by"] == "lee, with an override"
    assert office.switch.audit()[0].override


# -- status --------------------------------------------------------------------------------------


@pytest.mark.statement("S4-62", "S4-91")
def test_status_prints_a_line_for_each_stop(office, shown):
    office.at(3 * DAY).stop(segment="finance", reason=REASON, by="kim", permanent=True)
    office.at(7000).stop(feature="export", reason="wrong totals", by="lee", expires_in=2 * DAY)
    office.at(5000).resume(feature="export", by="lee", justification=MENDED, canary=(25, 100))
    head, rule, first, second, pending = shown("status")

    assert head.split() == ["what", "state", "for", "by", "end", "reason"]
    assert set(rule) == {"─"}
    assert re.fullmatch(rf"segment 'finance' +stopped +3 d +kim +permanent +{REASON}", first)
    assert re.fullmatch(
        r"feature 'export' +resumed for 25 % +1 h 57 min +lee +due in 46 h +wrong.*", second
    )
    assert pending == "Pending notifications: 3 changes, the oldest 3 d old."


def test_notified_change_is_not_pending(office, shown, data):
    changes = []
    with office.at(60, notifiers=[changes.append]) as switch:  # the notifier is called then
        switch.stop(segment="finance", reason=REASON, by="kim", permanent=True)
    assert len(shown("status")) == 3
    assert data("status")["pending"] == {"changes": 0, "oldest": None}
    assert facts(shown(*RESUME))["notified"].startswith("no: pending")
    assert data("status")["pending"]["changes"] == 1


def test_expired_stop_is_not_shown(office, shown):
    office.at(60).stop(segment="finance", reason=REASON, by="kim", expires_in=50)

    assert shown("status")[0] == "Nothing is stopped."
    assert shown("status", "--segment", "finance") == ["segment 'finance' runs"]


@pytest.mark.statement("S4-91")
def test_status_json_has_every_field(office, data):
    assert data("status")["stopped"] == []
    office.at(3 * DAY).stop(
        segment="finance", reason=REASON, by="kim", expires_in=DAY, when_expired="keep"
    )
    status = data("status")
    [entry] = status["stopped"]

    assert status["version"] == 1
    assert status["pending"]["oldest"] == pytest.approx(3 * DAY, abs=60)
    assert (entry["kind"], entry["name"], entry["by"]) == ("segment", "finance", "kim")
    assert (entry["state"], entry["overdue"]) == ("stopped, overdue", True)
    assert entry["age"] == pytest.approx(3 * DAY, abs=60)
    assert entry["left"] == pytest.approx(-2 * DAY, abs=60)


@pytest.mark.statement("S4-62")
def test_status_of_names_prints_the_decision_of_a_check(office, shown):
    office.at(7000).stop(segment="finance", reason=REASON, by="kim", permanent=True)

    assert shown("status", "--segment", "hr", "--feature", "export") == [
        "segment 'hr' and feature 'export' runs"
    ]
    lines = shown("status", "--segment", "finance", "--feature", "export")
    assert lines[0] == "segment 'finance' and feature 'export' is stopped"
    assert facts(lines)["because"] == f"segment 'finance' is stopped by kim: {REASON}"
    assert re.fullmatch(r"\d{4}-.* UTC, 1 h 57 min ago", facts(lines)["since"])


@pytest.mark.parametrize("key", ["user-1", "user-2", "user-3", "17", '"17"', '["eu", 17]'])
def test_key_decides_as_in_a_check_while_a_canary_runs(office, data, key):
    office.switch.stop(segment="finance", reason=REASON, by="kim", permanent=True)
    office.switch.resume(segment="finance", by="lee", justification=MENDED, canary=(50, 100))
    given = {"17": 17, '"17"': "17", '["eu", 17]': ("eu", 17)}.get(key, key)
    decision = data("status", "--segment", "finance", "--key", key)

    assert decision["allowed"] == office.switch.check(segment="finance", key=given).allowed
    assert decision["entry"]["next_shares"] == [100.0]


def test_status_of_a_key_alone_checks_everything(office, shown):
    assert shown("status", "--key", "user-17") == ["everything, key 'user-17': runs"]
    office.switch.stop(everything=True, reason=REASON, by="kim", permanent=True)
    assert shown("status", "--key", "17")[0] == "everything, key 17: is stopped"


def test_status_with_exit_code_reports_stops(office, shown):
    shown("status", "--exit-code", code=0)
    office.switch.stop(segment="finance", reason=REASON, by="kim", permanent=True)
    shown("status", "--exit-code", code=3)
    shown("status", "--segment", "finance", "--exit-code", code=3)
    shown("status", "--segment", "hr", "--exit-code", code=0)
    shown("status", code=0)


@pytest.mark.parametrize("args", [("status",), ("report", "--audit", "3")])
def test_status_creates_no_table(office, shown, args):
    lines = shown(*args)

    assert "othing is stopped; this store has no changes" in lines[0]
    assert office.names() == set()


def test_status_changes_nothing_and_notifies_no_listener(office, shown):
    office.at(60).stop(segment="finance", reason=REASON, by="kim", expires_in=50)
    before = office.store.load(None), office.store.records()
    shown("status")
    shown("report", "--audit", "5")

    assert (office.store.load(None), office.store.records()) == before


def test_no_line_is_wider_than_the_terminal(office, shown, monkeypatch):
    name = "注文番号-二〇二六年十一月二十一日-東京都千代田区-最終"
    office.switch.stop(segment=name, reason="no " * 99 + "price", by="kim", permanent=True)
    monkeypatch.setenv("COLUMNS", "80")
    for args in (("status",), ("report", "--audit", "1")):
        table = [line for line in shown(*args) if "…" in line]
        assert table
        assert max(map(cell_len, table)) <= 80


def test_control_characters_are_escaped(office, shown):
    office.switch.stop(
        segment="\x1b[31mred", reason="\x1b]0;title\x07 of the window", by="k\x1bm", permanent=True
    )
    name = "\x1b[31mred"
    for args in (
        ("status",),
        ("status", "--segment", name),
        ("report", "--audit", 1),
        ("resume", "--segment", name, "--justification", f"{MENDED}\x1b[0m", "--by", "\x1b[1m"),
    ):
        assert "\x1b" not in "\n".join(shown(*args))


# -- report --------------------------------------------------------------------------------------


@pytest.mark.statement("S4-62", "S4-66")
def test_report_prints_all_facts_of_each_stop_overdue_ones_first(office, shown):
    office.at(30 * DAY).stop(segment="finance", reason=REASON, by="kim", permanent=True)
    office.at(9 * DAY).stop(
        feature="export", reason="wrong totals", by="lee", expires_in=DAY, when_expired="keep"
    )
    lines = shown("report")
    title, first, second = "\n".join(lines).split("\n\n")[:3]

    assert re.fullmatch(r"Kill switch, \d{4}-.* UTC: 2 stopped, 1 overdue", title)
    assert first.startswith("feature 'export': stopped, overdue\n")
    assert second.startswith("segment 'finance': stopped\n")
    fields = facts(second.splitlines())
    assert re.fullmatch(r"\d{4}-.* UTC, 30 d ago", fields.pop("since"))
    assert fields == {"by": "kim", "reason": REASON, "end": "permanent"}
    assert lines[-1] == "Pending notifications: 2 changes, the oldest 30 d old."


def test_report_with_audit_prints_the_last_changes(office, shown, data):
    assert shown("report", "--audit", "2")[-1] == "No changes."
    shown(*STOPPED)
    shown(*RESUME, "--canary", "5,100")
    shown(*RESUME, "--advance")
    table = shown("report", "--audit", "2")[-2:]

    assert re.match(r"\d{4}-.* UTC  segment 'finance'  advanced 100 %  ", table[0])
    assert re.match(r"\d{4}-.* UTC  segment 'finance'  resumed 5 %  ", table[1])
    changes = data("report", "--audit", "2")["changes"]
    assert [(each["action"], each["notified"]) for each in changes] == [
        ("advanced", False),
        ("resumed", False),
    ]
    assert "changes" not in data("report")


# -- the store -----------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["postgres_url", "valkey_url"])
def test_stop_on_a_server_is_shown(office, shown, data, request, server):
    url, prefix = request.getfixturevalue(server), f"switch{os.getpid()}"
    kind = RedisSwitchStore if server == "valkey_url" else SQLSwitchStore
    where = "--store", url, "--store-prefix", prefix
    assert data("status", *where)["version"] == 0
    shown(*STOPPED, *where)

    with closing(kind(url, prefix)) as store, KillSwitch(store) as switch:
        assert not switch.check(segment="finance")
        assert data("status", *where)["stopped"][0]["reason"] == REASON
        shown(*RESUME, *where)
        switch.refresh()
        assert switch.check(segment="finance")


def test_stop_from_the_command_line_is_seen_by_a_running_process(office):
    script = f"""
import sys
from retrytemplate.control import KillSwitch, SQLSwitchStore
switch = KillSwitch(SQLSwitchStore({office.url!r}), 0)
print(*switch.check(segment="finance"), flush=True)
sys.stdin.readline()
print(*switch.check(segment="finance"), flush=True)
"""
    with forked_python.Popen(
        (sys.executable, "-c", script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "True \n"
        done = forked_python.run((*COMMAND, *STOPPED), stdin=subprocess.DEVNULL)
        output, _ = process.communicate("\n")

    assert done.returncode == 0
    assert output.startswith("False segment 'finance' is stopped by ")


def test_unprintable_change_is_committed_and_reported(office):
    with open("/dev/full", "w") as full:
        done = forked_python.run((*COMMAND, *STOPPED), stdin=subprocess.DEVNULL, stdout=full)

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "segment 'finance' is stopped, but the result cannot be printed",
        "retrytemplate switch: [Errno 28] No space left on device",
    ]
    assert not office.switch.check(segment="finance")


def test_missing_database_file_is_not_created(capsys, tmp_path):
    path = tmp_path / "none.db"
    for args in (("status",), ("report",), STOPPED, RESUME):
        assert refused(capsys, *args, "--store", f"sqlite:///{path}") == (
            1,
            f"retrytemplate switch: there is no file {path}\n",
        )
    assert list(tmp_path.iterdir()) == []


def test_unreadable_document_exits_with_1(office, capsys):
    office.switch.stop(segment="finance", reason=REASON, by="kim", permanent=True)
    with closing(sqlite3.connect(office.path)) as connection, connection:
        connection.execute("UPDATE retry_switch SET document = '{\"v\": 99}'")

    for args in (("status",), ("report",), STOPPED, RESUME):
        code, message = refused(capsys, *args)
        assert (code, "this version reads up to" in message) == (1, True)


@pytest.fixture
def unreadable(office):
    """The second of three records is of a later version."""
    for name in ("finance", "hr", "sales"):
        office.at(DAY).stop(segment=name, reason=REASON, by="kim", permanent=True)
    with closing(sqlite3.connect(office.path)) as connection, connection:
        later = "UPDATE retry_switch_audit SET record = '{\"v\": 99}' WHERE number = 2"
        connection.execute(later)


WHY = "record 2 has format 99, this version reads up to 1"


def test_unreadable_record_is_listed_among_the_others(unreadable, shown):
    lines = shown("report", "--audit", 10)
    table = lines[lines.index(next(line for line in lines if line.startswith("when"))) + 2 :]

    assert [re.split("  +", line)[1] for line in table if line] == [
        "segment 'sales'",
        "record 2",
        "segment 'finance'",
    ]
    assert "cannot be read" in table[1]
    assert f"1 change cannot be read: {WHY}" in lines
    assert "Pending notifications: 2 changes, the oldest 24 h old." in lines
    assert f"1 change cannot be read: {WHY}" in shown("status")


def test_json_of_an_unreadable_record_has_the_reason(unreadable, data):
    rubbish = {"number": 2, "error": WHY, "notified": False}
    report = data("report", "--audit", 10)

    assert report["unreadable"] == [rubbish]
    assert report["changes"][1] == rubbish
    assert [each.get("name") for each in report["changes"]] == ["sales", None, "finance"]
    assert data("status")["unreadable"] == [rubbish]


def test_change_is_committed_despite_an_unreadable_record(unreadable, shown):
    fields = facts(shown(*RESUME))

    assert (fields["justification"], fields["notified"][:2]) == (MENDED, "no")
    assert "note" not in fields


@pytest.mark.parametrize(
    ("url", "code"),
    [
        (f"postgresql://me:{SECRET}@127.0.0.1:1/db", 1),
        (f"redis://me:{SECRET}@127.0.0.1:1/0", 1),
        (f"postgresql+nonsense://me:{SECRET}@host/db", 2),
        (f"mysql://me:{SECRET}@host/db", 2),
        (f"me:{SECRET}@host/db", 2),
    ],
)
def test_unavailable_store_is_reported_without_its_password(capsys, url, code):
    for args in (("status",), STOPPED, RESUME, (*RESUME, "--advance")):
        given, message = refused(capsys, *args, "--store", url)
        assert given == code
        assert not re.search("s3cr", message)
        assert message.endswith(": nothing was changed\n") == (code == 1 and args != ("status",))


def test_missing_store_is_wrong_use(capsys, monkeypatch):
    monkeypatch.delenv("RETRYTEMPLATE_STORE", raising=False)
    code, message = refused(capsys, "status")

    assert code == 2
    assert "pass --store or set RETRYTEMPLATE_STORE: a URL of" in message


# -- the switch of a program ---------------------------------------------------------------------

SERVICE = """
import os
from retrytemplate.control import KillSwitch, SQLSwitchStore

def notify(record):
    print("notified:", record)

print("loaded")
switch = KillSwitch(
    SQLSwitchStore(os.environ["RETRYTEMPLATE_STORE"]),
    scopes={"segment": ["finance", "hr"]},
    incident=r"incident \\d+",
    notifiers=[notify],
)
memory = KillSwitch()
number = 17
"""


@pytest.fixture
def service(office, monkeypatch):
    """The options that select the switch of a program."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = office.path.with_name("service.py")
    path.write_text(SERVICE)
    yield "--switch", f"{path}:switch"
    for name in ("service", "job_service"):
        sys.modules.pop(name, None)


def test_switch_of_a_file_calls_its_notifiers(office, service, capsys):
    assert main(["switch", *STOPPED, *service, "--json"]) == 0
    out, err = capsys.readouterr()

    assert json.loads(out)["notified"]
    assert err.startswith("loaded\nnotified: segment 'finance' stopped by ")
    assert not office.switch.check(segment="finance")


def test_names_and_rules_of_a_switch_file_apply(office, service, capsys):
    for args, says in (
        (("stop", "--segment", "finanse", *STOPPED[3:]), "there is no segment 'finanse'"),
        (("stop", "--feature", "export", *STOPPED[3:]), "there is no feature 'export'"),
        (("status", "--segment", "finanse"), "the segments declared are: 'finance', 'hr'"),
        (("stop", "--segment", "hr", "--reason", "leak suspected", "--for", "1h"), "must contain"),
    ):
        code, message = refused(capsys, *args, *service)
        assert (code, says in message) == (1, True)
    assert refused(capsys, *RESUME, *service)[0] == 1
    assert office.switch.report().lines == ()


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("switch", ("--store", "sqlite:///x.db"), "--store: cannot be combined with --switch"),
        ("memory", (), "--switch: must have a store that processes share, got <KillSwitch"),
        ("number", (), "number of .*service.py must be a KillSwitch, or a function .* got 17"),
        ("swich", (), "has no swich, only switch, memory"),
    ],
)
def test_invalid_switch_file_is_wrong_use(service, capsys, name, more, says):
    file = service[1].removesuffix(":switch")
    code, message = refused(capsys, "status", "--switch", f"{file}:{name}", *more)

    assert code == 2
    assert re.search(says, message)


# -- wrong use -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("stop", *STOPPED[3:]), "one of the arguments --global --segment --feature --experiment"),
        ((*STOPPED, "--global"), "--global: not allowed with argument --segment"),
        ((*STOPPED, "--feature", "x"), "--feature: not allowed with argument --segment"),
        (STOP, "one of the arguments --for --permanent is required"),
        ((*STOPPED, "--permanent"), "--permanent: not allowed with argument --for"),
        (
            (*STOP, "--permanent", "--when-expired", "resume"),
            "--when-expired resume: needs --for",
        ),
        (STOPPED[:3] + STOPPED[5:], "the following arguments are required: --reason"),
        ((*STOPPED, "--reason", ""), "--reason: must be a non-empty string"),
        ((*STOPPED, "--by", ""), "--by: must be a non-empty string"),
        ((*STOPPED, "--by", "   "), "--by must be a non-blank str"),
        (("stop", "--segment", " x", *STOPPED[3:]), "--segment must be a name: .* got ' x'"),
        (("stop", "--feature", "", *STOPPED[3:]), "--feature must be a name: .* got ''"),
        ((*STOPPED, "--when-expired", "drop"), "choose from '?resume'?, '?keep'?"),
        *(
            (
                (*STOP, f"--for={given}"),
                f"--for: must be a duration of at most ten years, .* {given!r}",
            )
            for given in ("24", "h", "24 h", "1y", "0h", "-1h", "1e3s", "nanh", "523w", "٣h", "")
        ),
        (("resume", *RESUME[3:]), "one of the arguments --global --segment"),
        (RESUME[:3], "the following arguments are required: --justification"),
        ((*RESUME, "--advance", "--failed"), "--failed: not allowed with argument --advance"),
        ((*RESUME, "--advance", "--canary", "5,100"), "--canary: not allowed with"),
        ((*RESUME, "--advance", "--override"), "--override: cannot be combined"),
        ((*RESUME, "--failed", "--override"), "--override: cannot be combined"),
        ((*RESUME, "--check", "true"), "--check: needs --advance"),
        *(
            ((*RESUME, "--canary", given), f"--canary: must be increasing percentages .* {given!r}")
            for given in ("", "5", "25,5,100", "0,100", "5,25,101", "a,b", "5,,100", "nan,100")
        ),
        (("status", "--global"), "unrecognized arguments: --global"),
        (("status", "--segment", ""), "--segment must be a name"),
        *(
            (("stop", option, "fin\udcc3\udca4nz", *STOPPED[3:]), f"{option}: must be valid")
            for option in ("--segment", "--feature", "--experiment", "--by")
        ),
        ((*STOP[:4], "leak \udce4 suspected", "--for", "1h"), "--reason: must be valid"),
        ((*RESUME[:4], "leak \udce4 mended"), "--justification: must be valid"),
        (("status", "--segment", "\udce4"), "--segment: must be valid"),
        (("status", "--key", "\udce4"), "--key: must be valid"),
        (("status", "--segment", "x", "--key", "1.5"), "--key: must be a string, .* got '1.5'"),
        (("status", "--segment", "x", "--key", "{}"), "--key: must be a string, .* got '{}'"),
        (("status", "--segment", "x", "--key", "[" * 99999), "--key: it is nested too deeply"),
        (("status", "--segment", "x", "--key", ""), "--key: must be a non-empty string"),
        (("report", "--audit", "0"), "must be a whole number from 1 to 1000, got '0'"),
        (("status", "--store", "switch.db"), "--store must be a URL of SQLite"),
        (("status", "--store", "sqlite://"), "--store must name a file"),
        (("status", "--store-prefix", "x;y"), "--store-prefix must be .* got 'x;y'"),
    ],
)
def test_wrong_use_names_the_allowed_values_and_changes_nothing(office, capsys, args, says):
    code, message = refused(capsys, *args)

    assert code == 2
    assert re.search(says, message)
    assert office.names() == set()


@pytest.mark.parametrize("verb", ["stop", "resume", "status", "report"])
def test_each_verb_has_help_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["switch", verb, "--help"])
    out = capsys.readouterr().out

    assert ended.value.code == 0
    assert f"  retrytemplate switch {verb} " in out
    assert {"--store", "--store-prefix", "--switch", "--json"} <= set(re.findall(r"--[\w-]+", out))


def test_changes_need_no_cli_extra(office, shown, data, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)

    assert shown(*STOPPED)[0] == "segment 'finance' is stopped"
    assert shown(*RESUME)[0] == "segment 'finance' is resumed"
    assert data("status")["stopped"] == []


# -- the pages -----------------------------------------------------------------------------------

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
TYPED = re.compile(r"^\$ retrytemplate (switch .*)$", re.M)
PROGRAM = re.compile(r"^```python\n(# file: (\S+)\n.*?)^```", re.M | re.S)


@pytest.mark.parametrize(
    "page", ["control/kill-switch", "operations/runbook", "operations/switch-commands"]
)
def test_commands_of_a_page_run_in_order(office, page, monkeypatch, capsys):
    probe = office.path.with_name("errors-are-rare.sh")
    probe.write_text("#!/bin/sh\n")
    probe.chmod(0o755)
    monkeypatch.chdir(probe.parent)
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    for source, name in PROGRAM.findall(text):
        Path(name).write_text(source, encoding="utf-8")
    lines = TYPED.findall(text.replace("\\\n", ""))

    assert [main(shlex.split(line)) for line in lines] == [0] * len(lines)
    assert lines or page == "control/kill-switch"
    assert capsys.readouterr().err == ""


def test_examples_of_the_help_are_valid(office, capsys):
    parser = ArgumentParser()
    add_parser(parser.add_subparsers())
    epilogs = (STOP_EPILOG, RESUME_EPILOG, STATUS_EPILOG, REPORT_EPILOG)
    text = "\n".join(epilogs).replace("\\\n", " ")
    lines = re.findall(r"^  .*retrytemplate (switch [^|\n]*)", text, re.M)
    lines += re.findall(r"retrytemplate (switch stop --global.*)", text)

    for line in lines:
        args = vars(parser.parse_args(shlex.split(line)))
        reason = args.get("reason") or args.get("justification") or REASON
        assert office.switch.stop(feature="x", reason=reason, by="kim", permanent=True)
    assert len(lines) > 15
