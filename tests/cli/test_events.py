"""``retrytemplate events`` on a file and on a table of SQLite."""

import json

import pytest

from retrytemplate.cli import main
from retrytemplate.cli.commands import events as command
from retrytemplate.observe import JsonLinesSink, SQLEventSink
from tests.observe.events import NOW, event

FAILED = {
    "operation": "shop.pay",
    "attempts": 3,
    "max_attempts": 3,
    "reason": "attempts_exhausted",
    "error_type": "OSError",
    "error_message": "down",
}


@pytest.fixture(params=["file", "store"])
def audit(request, tmp_path, monkeypatch):
    """A sink with three events, and the options that name it."""
    monkeypatch.delenv("RETRYTEMPLATE_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    if request.param == "file":
        sink = JsonLinesSink(tmp_path / "events.jsonl")
        options = ["--file", sink.path]
    else:
        url = f"sqlite:///{tmp_path}/events.db"
        sink, options = SQLEventSink(url), ["--store", url]
    sink.emit(event("call.failed", "charge", data=FAILED, execution_id="e1", time=NOW))
    sink.emit(event("hedge.won", "search", severity=10, time=NOW + 1))
    sink.emit(event("shop.refund", "order-17", severity=25, time=NOW + 2, execution_id="e2"))
    yield sink, options
    getattr(sink, "close", lambda: None)()


@pytest.fixture
def listed(audit, capsys):
    """The exit code, the lines of the output, and the errors."""
    _, options = audit

    def run(*args):
        code = main(["events", "list", *options, *map(str, args)])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return run


def test_events_list_has_a_line_for_each_event(listed):
    code, lines, err = listed()
    assert (code, err) == (0, "")
    assert lines[0].split() == ["time", "level", "type", "event"]
    assert [line.split()[4] for line in lines[2:]] == ["25", "hedge.won", "call.failed"]
    assert "WARNING" in lines[4]
    assert "charge (shop.pay): gave up after attempt 3 of 3: OSError: down" in lines[4]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--type", "call.failed"], ["charge"]),
        (["--type", "*.*ed"], ["charge"]),
        (["--subject", "search"], ["search"]),
        (["--execution", "e2"], ["order-17"]),
        (["--type", "call.*", "--execution", "e2"], []),
    ],
)
def test_events_list_has_the_matching_events(listed, filters, found):
    _, lines, _ = listed("--json", *filters)
    assert [each["subject"] for each in json.loads("\n".join(lines))["events"]] == found


def test_events_list_as_json_has_all_fields_and_the_next_page(listed, audit):
    _, lines, _ = listed("--json", "--limit", 2)
    page = json.loads("\n".join(lines))
    refund, hedge = page["events"]
    assert (refund["severity"], refund["time"], refund["execution_id"]) == (25, NOW + 2, "e2")
    assert page["next"] == hedge["id"]
    _, lines, _ = listed("--json", "--before", page["next"])
    [failed] = json.loads("\n".join(lines))["events"]
    assert (failed["subject"], failed["data"]) == ("charge", FAILED)


def test_events_list_names_the_next_page(listed):
    _, lines, _ = listed("--limit", 1)
    assert lines[-1].startswith("There are more: --before ")


def test_events_list_without_an_event_prints_a_note(listed):
    assert listed("--type", "alert.*") == (0, ["No events match."], "")


@pytest.mark.parametrize("as_json", [True, False])
def test_events_followed_are_printed_once_in_their_order(listed, audit, monkeypatch, as_json):
    sink, _ = audit
    new = [
        [],
        [event("call.failed", "late", time=NOW + 3, data=FAILED)],
        [event("hedge.won", "end")],
    ]

    def sleep(seconds):
        assert seconds == command.INTERVAL
        if not new:
            raise KeyboardInterrupt
        for each in new.pop(0):
            sink.emit(each)

    monkeypatch.setattr(command.time, "sleep", sleep)
    code, lines, _ = listed("--follow", "--limit", 2, *(["--json"] if as_json else []))
    assert code == 130
    if as_json:
        subjects = [json.loads(line)["subject"] for line in lines]
        assert subjects == ["search", "order-17", "late", "end"]
    else:
        assert [line.split("  ")[2] for line in lines] == [
            *("hedge.won", "shop.refund", "call.failed", "hedge.won")
        ]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--file", "none.jsonl"], 1, "cannot read none.jsonl: No such file or directory"),
        (["--store", "sqlite:///none.db"], 1, "the database has no table retry_event"),
        (["--store", "redis://127.0.0.1:1"], 2, "--store"),
        (["--file", "a", "--store", "b"], 2, "pass either --store or --file"),
        ([], 2, "pass --store or set RETRYTEMPLATE_STORE"),
    ],
)
def test_events_list_without_a_readable_source_fails(
    tmp_path, monkeypatch, capsys, options, code, text
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RETRYTEMPLATE_STORE", raising=False)
    assert main(["events", "list", *options]) == code
    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("attempt.overrun", {}),
        ("call.failed", {**FAILED, "error_type": 5}),
        ("circuit_breaker.state_changed", {"by": 5}),
    ],
)
def test_events_list_has_a_line_for_data_of_another_program(audit, listed, kind, data):
    audit[0].emit(event(kind, "billing", data=data, time=NOW + 3))
    code, lines, _ = listed()
    assert code == 0
    assert f"billing: {json.dumps(data)}" in lines[2]
