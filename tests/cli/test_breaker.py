"""``retrytemplate breaker`` as a user runs it."""

from __future__ import annotations

import json

import pytest

from retrytemplate.cli import main
from retrytemplate.cli.commands.breaker import BREAKERS
from tests.control.breaker.redis.shared import Sharing, failing, fine
from tests.support.postgres import free_port

CALLS = [(n, 0.1, "failure" if 10 <= n < 14 else "success") for n in range(60)]


@pytest.fixture
def recording(tmp_path):
    """A recording as CSV."""
    path = tmp_path / "calls.csv"
    lines = ["time,duration,outcome", *(",".join(map(str, call)) for call in CALLS)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def replayed(capsys, *args):
    """The exit code and the output."""
    try:
        code = main(["breaker", "replay", *map(str, args)])
    except SystemExit as ended:  # where the arguments cannot even be read
        code = ended.code
    return (code, *capsys.readouterr())


@pytest.mark.statement("S4-35")
def test_breakers_are_compared_on_one_recording(recording, capsys):
    code, out, _ = replayed(
        capsys, recording, "--breaker", "consecutive:2", "--breaker", "calls:50,reset_jitter=0"
    )
    assert code == 0
    head, names, _, *rows = out.splitlines()
    assert head == "60 calls in 59 s, 4 of them failures (6.7%)"
    assert names.split() == "breaker opened reopened open rejected wrongly failed".split()
    assert rows[0].split()[:3] == ["consecutive:2", "1", "0"]
    assert rows[1].split() == ["calls:50,reset_jitter=0", "0", "0", "0", "s", "0", "0", "4"]


def test_replay_json_has_every_figure(recording, capsys):
    args = ("--json", "--breaker", "consecutive:2,reset_timeout=5,reset_jitter=0")
    code, out, _ = replayed(capsys, recording, *args)
    assert (code, json.loads(out)) == (
        0,
        [
            {
                "breaker": "consecutive:2,reset_timeout=5,reset_jitter=0",
                "calls": 60,
                "recorded_failures": 4,
                "opened": 1,
                "reopened": 0,
                "seconds": pytest.approx(8.0),
                "rejected": 5,
                "rejected_successes": 3,
                "rejected_failures": 2,
            }
        ],
    )


def test_json_lines_give_the_same_results_as_csv(recording, tmp_path, capsys):
    lines = tmp_path / "calls.jsonl"
    names = ("time", "duration", "outcome", "host")
    records = [json.dumps(dict(zip(names, (*call, "a"), strict=True))) for call in CALLS]
    lines.write_text("\n".join(records), encoding="utf-8")
    args = ("--json", "--breaker", "consecutive:2")
    assert replayed(capsys, lines, *args) == replayed(capsys, recording, *args)


def test_seed_determines_the_jitter(recording, capsys):
    args = (recording, "--json", "--breaker", "consecutive:2,reset_timeout=9,reset_jitter=2")
    first, again, other = (replayed(capsys, *args, "--seed", seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_help_lists_every_kind_of_breaker(capsys):
    _, out, _ = replayed(capsys, "--help")
    for name, kind in BREAKERS.items():
        assert f"  {name}:" in out
        for setting in kind.settings:
            assert f"{setting}=" in out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("time,duration\n1,2", "calls.csv, record 1 must have time, duration, outcome, got"),
        ("time,duration,outcome\n1,soon,success", "calls.csv, record 1: could not convert"),
        ("time,duration,outcome\n1,2,success\n1,2,ok", "calls.csv, record 2: outcome must be"),
        ("time,duration,outcome\n1,2,success,3", "calls.csv, record 1: 4 fields"),
        ("time,duration,outcome\n", "calls.csv: no calls are recorded"),
    ],
)
def test_unreadable_recording_exits_with_1_and_names_the_record(text, problem, tmp_path, capsys):
    path = tmp_path / "calls.csv"
    path.write_text(text, encoding="utf-8")
    code, out, err = replayed(capsys, path)
    assert (code, out) == (1, "")
    assert problem in err


def test_invalid_line_or_missing_file_exits_with_1(tmp_path, capsys):
    path = tmp_path / "calls.jsonl"
    for text in ("17", '{"time": 1, "duration": null, "outcome": "success"}', "{"):
        path.write_text(text, encoding="utf-8")
        assert replayed(capsys, path)[0] == 1
    path.unlink()
    code, _, err = replayed(capsys, path)
    assert (code, "No such file" in err) == (1, True)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("rows:2", "there is no breaker 'rows'; allowed: calls, seconds, consecutive"),
        ("calls", "breaker 'calls' needs number"),
        ("consecutive:2,failure_rate=0.5", "breaker 'consecutive' cannot take"),
        ("calls:50,failure_rate=2", "breaker 'calls': failure_rate must be a share"),
    ],
)
def test_invalid_breaker_is_wrong_use(spec, problem, recording, capsys):
    code, out, err = replayed(capsys, recording, "--breaker", spec)
    assert (code, out) == (2, "")
    assert problem in err


def status(capsys, *args):
    try:
        code = main(["breaker", "status", *map(str, args)])
    except SystemExit as ended:
        code = ended.code
    return (code, *capsys.readouterr())


@pytest.fixture
def shared(valkey_url, monkeypatch):
    """Circuits on a server, and the options that select them."""
    monkeypatch.setenv("COLUMNS", "200")
    made = Sharing(valkey_url)
    yield made, ("--store", valkey_url, "--store-prefix", made.prefix)
    made.close()


@pytest.fixture
def circuits(shared):
    """Three circuits: open, closed and forced open."""
    sharing, options = shared
    for _ in range(3):
        sharing.breaker("billing").outcome(failing)
    sharing.breaker("search").outcome(fine)
    sharing.breaker("mail").force_open(by="kim", reason="they asked us to", seconds=7200)
    return options


@pytest.mark.statement("S4-41")
@pytest.mark.statement("S4-91")
def test_breaker_status_shows_every_circuit_of_the_store(circuits, capsys):
    code, out, _ = status(capsys, *circuits)
    assert code == 0
    names, _, *rows = [line.split() for line in out.splitlines()]
    assert names == "circuit state for left calls failures slow permits by reason".split()
    assert (rows[0][:2], rows[0][6:]) == (["billing", "open"], ["3", "3", "0", "0"])
    assert (rows[0][3], rows[0][5]) == ("s", "s")
    assert rows[1][:2] == ["mail", "forced_open"]
    assert rows[1][-5:] == ["kim", "they", "asked", "us", "to"]
    assert rows[2][:2] == ["search", "closed"]


@pytest.mark.statement("S4-41")
def test_status_prints_json(circuits, capsys):
    code, out, _ = status(capsys, *circuits, "--json", "mail", "billing")
    mail, billing = json.loads(out)
    assert code == 0
    assert (mail["name"], mail["state"], mail["gauge"]) == ("mail", "forced_open", 3)
    assert (mail["by"], mail["reason"]) == ("kim", "they asked us to")
    assert 7199 < mail["left"] <= 7200
    assert mail["until"] == pytest.approx(mail["since"] + 7200)
    assert (billing["gauge"], billing["failures"], billing["opened"]) == (2, 3, 1)


@pytest.mark.statement("S4-91")
def test_status_with_exit_code_reports_rejecting_circuits(circuits, capsys):
    assert status(capsys, *circuits, "--exit-code")[0] == 3
    assert status(capsys, *circuits, "--exit-code", "search")[0] == 0


def test_status_changes_nothing(shared, capsys):
    sharing, options = shared
    for _ in range(3):
        sharing.breaker().outcome(failing)
    sharing.advance(31)
    before = sharing.fields()
    _, out, _ = status(capsys, *options, "--json")
    assert (json.loads(out)[0]["state"], json.loads(out)[0]["left"]) == ("open", 0)
    assert sharing.fields() == before


def test_empty_store_has_no_circuits(shared, capsys):
    _, options = shared
    assert status(capsys, *options)[:2] == (0, "The store has no circuits.\n")
    code, _, err = status(capsys, *options, "billing")
    assert (code, err) == (1, "retrytemplate breaker: there is no circuit 'billing' in the store\n")


def test_invalid_circuit_is_reported(shared, capsys):
    sharing, options = shared
    sharing.client.hset(sharing.name(), "mine", "precious")
    code, _, err = status(capsys, *options)
    assert code == 1
    assert "of another version of this library, or of something else" in err


@pytest.mark.parametrize("machine", [(), ("--json",)], ids=["text", "json"])
def test_invalid_circuit_does_not_hide_valid_ones(circuits, shared, capsys, machine):
    sharing, _ = shared
    sharing.client.hset(sharing.name("cash"), "mine", "precious")
    code, out, err = status(capsys, *circuits, *machine)
    assert code == 1
    assert all(name in out for name in ("billing", "mail", "search"))
    assert "the circuit 'cash' in the store is of another version" in err


def test_key_of_another_type_is_reported(circuits, shared, capsys):
    sharing, _ = shared
    key = sharing.name("#").encode().replace(b"#", b"\xff")
    sharing.client.hset(key, "mine", "precious")
    try:
        code, out, _ = status(capsys, *circuits)
    finally:
        sharing.client.delete(key)
    assert (code, len(out.splitlines())) == (0, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "pass --store or set RETRYTEMPLATE_STORE: a URL of Redis or Valkey"),
        (("--store", "sqlite:///x.db"), "--store must be a URL of Redis or Valkey"),
        (("--store", "redis://h", "--store-prefix", "ä"), "--store-prefix must be"),
    ],
)
def test_store_of_another_kind_is_rejected(options, message, capsys, monkeypatch):
    monkeypatch.delenv("RETRYTEMPLATE_STORE", raising=False)
    code, _, err = status(capsys, *options)
    assert code == 2
    assert message in err


def test_unavailable_store_is_reported_without_its_password(capsys):
    code, _, err = status(capsys, "--store", f"redis://me:s3cret@127.0.0.1:{free_port()}/0")
    assert code == 1
    assert "s3cret" not in err
