"""``retrytemplate context`` as a user runs it, on a real database."""

from __future__ import annotations

import json
import os
import pty
import re
import sqlite3
import sys
from contextlib import closing

import pytest
from rich.cells import cell_len

from retrytemplate import (
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    SQLRetryContextCache,
)
from retrytemplate.cli import main
from retrytemplate.testing import VirtualClock
from tests.support import forked_python

SECRET = "s3cr%2Ft"


class Shop:
    """A database with the records of a worker."""

    def __init__(self, folder):
        self.path = folder / "retry.db"
        self.url = f"sqlite:///{self.path}"
        self.cache = SQLRetryContextCache(self.url)

    def deliver(self, key, error, times=1, name="charge"):
        policy = SimpleRetryPolicy(30)
        template = RetryTemplate(policy, name=name, cache=self.cache, clock=VirtualClock())

        def charge(context):
            context.attributes["page"] = context.attempt
            raise type(error)(*error.args)  # a new one: its traceback is its own

        for _ in range(times):
            with pytest.raises(type(error)):
                template.execute(charge, state=RetryState(key))
        return template.scoped_key(key)

    def sql(self, statement):
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(statement)


@pytest.fixture
def shop(tmp_path, monkeypatch):
    made = Shop(tmp_path)
    made.deliver("order-17", ConnectionError("host db-17 does not answer"), times=2)
    monkeypatch.setenv("RETRYTEMPLATE_STORE", made.url)
    monkeypatch.setenv("COLUMNS", "80")
    yield made
    made.cache.close()


@pytest.fixture
def shown(shop, capsys):
    """The lines that the command prints."""

    def run(*args):
        assert main(["context", *map(str, args)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return [line.rstrip() for line in out.splitlines()]

    return run


@pytest.fixture
def data(shop, capsys):
    """The JSON that the command prints."""

    def run(*args):
        assert main(["context", *map(str, args), "--json"]) == 0
        return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)

    return run


def rejected(capsys, *args):
    """The exit code and the error output of a rejected command."""
    try:
        code = main(["context", *map(str, args)])
    except SystemExit as ended:  # where the arguments cannot even be read
        code = ended.code
    out, err = capsys.readouterr()
    assert out == ""
    return code, err


# -- list ----------------------------------------------------------------------------------------


def test_list_prints_phase_failures_and_last_failure(shown):
    head, rule, line = shown("list")

    assert head.split() == ["key", "phase", "failed", "age/lease", "last", "failure"]
    assert set(rule) == {"─"}
    assert re.fullmatch(
        r"charge/s:order-17  idle        2        \d s  ConnectionError: host db-17 does n…", line
    )


def test_list_prints_the_remaining_lease_of_a_held_key(shop, shown):
    shop.cache.begin("charge/s:held", worker="one", lease=3500)
    assert re.fullmatch(r"charge/s:held +attempting +0 +58 min left", shown("list")[2])


def test_list_marks_a_lost_attempt(shop, shown):
    shop.cache.begin("charge/s:lost", worker="one")
    shop.sql("UPDATE retry_contexts SET lease_until = 5 WHERE worker = 'one'")
    assert re.fullmatch(r"charge/s:lost +lost +0 +\d s", shown("list")[2])


def test_long_names_are_cut_to_the_width_of_the_terminal(shop, shown, monkeypatch):
    shop.deliver("/".join(["customer"] * 20) + "/last", ValueError("x" * 500), name="invoices")
    shop.deliver(
        "注文番号-二〇二六年十一月二十一日-東京都千代田区-最終", ValueError("接続でき" * 9)
    )
    for columns in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = shown("list")

        assert len(lines) == 5
        assert max(map(cell_len, lines)) <= columns
        assert lines[3].startswith("charge/s:")
        assert re.match(r"invoices/.*…\S*/last  idle ", lines[4])


def test_names_are_not_truncated_without_a_terminal(shop, shown, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    key = shop.deliver("/".join(["customer"] * 9), ValueError("no " * 20 + "price"))

    assert shown("list", "--prefix", key)[2].startswith(key)


def test_control_characters_are_escaped(shop, shown):
    shop.deliver("\x1b[31mred\n\u202e", ValueError("\x1b]0;title\x07 [bold]x[/bold]\n2"))
    text = "\n".join(shown("list", "--prefix", "charge/s:\x1b"))

    assert r"charge/s:\x1b[31mred\n\u202e" in text
    assert r"ValueError: \x1b]0" in text
    assert "\x1b" not in text


def test_terminal_without_unicode_gets_ascii(shop, monkeypatch, capfdbinary):
    shop.deliver("zu-spät", ValueError("⏰ " * 40))
    with open(1, "w", encoding="ascii", closefd=False) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["context", "list"]) == 0
        assert main(["context", "show", "charge/s:zu-spät"]) == 0
    out = capfdbinary.readouterr().out

    assert rb"charge/s:zu-sp\xe4t" in out
    assert rb"\u23f0" in out


def test_next_page_is_named(shop, shown):
    for number in range(18, 24):
        shop.deliver(f"order {number}", ValueError("x"))
    first = shown("list", "--limit", 3)
    assert first[-1] == "There are more: --after 'charge/s:order 20'"

    last = shown("list", "--after", "charge/s:order 20")
    assert [line.split("  ")[0] for line in last[2:]] == [
        "charge/s:order 21",
        "charge/s:order 22",
        "charge/s:order 23",
        "charge/s:order-17",
    ]


def test_only_keys_with_the_prefix_are_listed(shop, shown):
    shop.deliver("order-17", ValueError("x"), name="refund")

    assert [line.split()[0] for line in shown("list", "--prefix", "refund/")[2:]] == [
        "refund/s:order-17"
    ]
    assert shown("list", "--prefix", "orders/") == ["No keys match."]


def test_list_json_has_pages(shop, data):
    shop.deliver("order-18", ValueError("x"))
    page = data("list", "--limit", 1)
    [entry] = page["keys"]

    assert page["next"] == entry["key"] == "charge/s:order-17"
    assert (entry["phase"], entry["failures"], entry["held"]) == ("idle", 2, False)
    assert entry["last"]["message"] == "host db-17 does not answer"
    assert "history" not in entry
    assert data("list", "--after", page["next"])["next"] is None


def test_list_marks_an_unreadable_record(shop, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shop.sql("UPDATE retry_contexts SET record = '{\"format\": 99}'")

    assert "this version reads up to" in shown("list")[2]
    assert "this version reads up to" in "\n".join(shown("show", "charge/s:order-17"))


# -- show ----------------------------------------------------------------------------------------


def test_show_prints_all_facts_of_a_key(shop, shown):
    lines = shown("show", "charge/s:order-17")

    assert lines[0] == "charge/s:order-17"
    assert "phase         idle" in lines
    assert "attempts      2 of at most 30, 2 failed" in lines
    assert "last failure  ConnectionError: host db-17 does not answer" in lines
    assert 'attributes    {"page": 2}' in lines
    assert [line for line in lines if re.fullmatch(r"written +\d{4}-.* UTC, \d s ago", line)]


def test_attempts_of_a_key_are_shown_with_place_time_and_traceback(shown):
    text = "\n".join(shown("show", "charge/s:order-17"))
    first, second = re.split(r"^(?=attempt \d)", text, flags=re.M)[1:]

    assert re.match(
        r"attempt 1, ended \d{4}-\d\d-\d\d .* UTC, took \d\.\d{3} s on host \S+, process \d+\n"
        r"  Traceback \(most recent call last\):\n",
        first,
    )
    assert second.endswith("\n  ConnectionError: host db-17 does not answer")


def test_show_names_the_attempts_that_are_not_kept(shop, shown):
    shop.deliver("order-18", ValueError("x"), times=22)
    lines = shown("show", "charge/s:order-18")
    heads = [line for line in lines if re.match(r"\(?attempts? \d", line)]

    assert [head.split(",")[0] for head in heads[:5]] == [
        "attempt 1",
        "attempt 2",
        "attempt 3",
        "(attempts 4 to 9 are not kept)",
        "attempt 10",
    ]


def test_show_names_the_holder_of_a_key(shop, shown):
    shop.cache.begin("charge/s:order-17", worker="host-3:4711:18", lease=3500)
    lines = shown("show", "charge/s:order-17")

    assert "phase         attempting" in lines
    assert [
        line
        for line in lines
        if re.fullmatch(r"held by +host-3:4711:18, until \d{4}-.* UTC, in 58 min", line)
    ]


def test_show_names_the_worker_of_a_lost_attempt(shop, shown):
    shop.cache.begin("charge/s:order-17", worker="host-3:4711:18")
    shop.sql("UPDATE retry_contexts SET lease_until = lease_until - 99")
    text = "\n".join(shown("show", "charge/s:order-17"))

    assert "phase         attempting, lost: the lease expired" in text
    assert re.search(r"was held by   host-3:4711:18, until .*, 1 min ago", text)


def test_show_prints_that_the_next_delivery_recovers(shop, shown):
    template = RetryTemplate(SimpleRetryPolicy(1), name="once", cache=shop.cache)
    template.bind(state=RetryState("a")).outcome(lambda: 1 / 0)

    assert (
        "phase         idle, no attempts remain: the next delivery runs the recovery or fails"
        in shown("show", "once/s:a")
    )


def test_show_prints_the_end_of_a_completion_marker(shop, shown):
    shop.cache.succeed(shop.cache.begin("charge/s:done", worker="one"), remember=3500)
    lines = shown("show", "charge/s:done")

    assert "phase         done" in lines
    assert [line for line in lines if re.fullmatch(r"forgotten +\d.* UTC, in 58 min", line)]
    assert not [line for line in lines if line.startswith("failed")]


def test_show_prints_an_end_beyond_the_calendar(shop, shown):
    shop.cache.succeed(shop.cache.begin("charge/s:done", worker="one"), remember=1e300)
    assert "forgotten     1e+300 s after 1970, in 1.157407e+295 d" in shown("show", "charge/s:done")


def test_show_json_has_the_whole_record(shop, data):
    record = data("show", "charge/s:order-17")

    assert (record["format"], record["key"], record["phase"]) == (1, "charge/s:order-17", "idle")
    assert (record["failures"], record["attributes"]) == (2, {"page": 2})
    assert [attempt["number"] for attempt in record["history"]] == [1, 2]
    assert "ConnectionError: host" in record["history"][0]["traceback"]
    assert {"worker", "lease_until", "version", "fence", "fingerprint"} <= set(record)


def test_show_of_an_unknown_key_exits_with_1(shop, capsys):
    assert rejected(capsys, "show", "charge/s:order-99") == (
        1,
        "retrytemplate context: no record of the key 'charge/s:order-99'\n",
    )


# -- forget --------------------------------------------------------------------------------------


def test_keys_are_forgotten(shop, shown):
    shop.deliver("order-18", ValueError("x"))

    assert shown("forget", "charge/s:order-17") == ["1 key forgotten"]
    assert shop.cache.keys() == ["charge/s:order-18"]


def test_forget_names_unknown_keys_and_forgets_the_others(shop, capsys):
    code = main(["context", "forget", "nope", "charge/s:order-17", "--json"])
    out, err = capsys.readouterr()

    assert (code, err) == (1, "retrytemplate context: no record of these keys: 'nope'\n")
    assert json.loads(out) == {"forgotten": ["charge/s:order-17"], "unknown": ["nope"]}
    assert shop.cache.keys() == []


def in_a_terminal(answer, *args):
    """Run ``forget`` in a terminal with typed input; the exit code and the output."""
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    try:
        command = (sys.executable, "-m", "retrytemplate.cli", "context", "forget", *args)
        done = forked_python.run(command, stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("answer", [b"\n", b"n\n", b"yesterday\n"])
def test_forget_in_a_terminal_requests_confirmation(shop, answer):
    shop.cache.begin("charge/s:held", worker="host:17:1")
    code, out, err = in_a_terminal(answer, "charge/s:order-17", "charge/s:held")

    assert (code, out) == (1, "")
    assert err.splitlines() == [
        "'charge/s:order-17': idle, failed 2",
        "'charge/s:held': attempting, failed 0, held by 'host:17:1'",
        "Forget 2 keys? [y/N] retrytemplate context: no key is forgotten",
    ]
    assert shop.cache.keys() == ["charge/s:order-17"]


def test_forget_in_a_terminal_accepts_yes(shop):
    code, out, _ = in_a_terminal(b"Y\n", "charge/s:order-17")
    assert (code, out, shop.cache.keys()) == (0, "1 key forgotten\n", [])


def test_forget_with_yes_requests_no_confirmation(shop):
    assert in_a_terminal(b"", "charge/s:order-17", "--yes") == (0, "1 key forgotten\n", "")


# -- the store -----------------------------------------------------------------------------------


def test_store_option_overrides_the_environment(shop, shown, monkeypatch):
    monkeypatch.setenv("RETRYTEMPLATE_STORE", "sqlite:///elsewhere.db")
    assert len(shown("list", "--store", shop.url)) == 3


def test_url_of_an_async_driver_is_accepted(shop, shown):
    assert len(shown("list", "--store", f"sqlite+aiosqlite:///{shop.path}")) == 3


def test_store_prefix_selects_the_tables(shop, capsys):
    assert rejected(capsys, "list", "--store-prefix", "other") == (
        1,
        "retrytemplate context: the database has no tables other_*\n",
    )


def test_missing_store_is_wrong_use(capsys, monkeypatch):
    monkeypatch.delenv("RETRYTEMPLATE_STORE", raising=False)
    code, reported = rejected(capsys, "list")

    assert code == 2
    assert "pass --store or set RETRYTEMPLATE_STORE: a URL of" in reported


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ("list", "--store", "retry.db"),
            "--store must be a URL of SQLite, PostgreSQL, Redis",
        ),
        (
            ("list", "--store", "mysql://h/db"),
            "a URL of SQLite, PostgreSQL, Redis or Valkey, .*, got scheme 'mysql'",
        ),
        (("list", "--store", "sqlite://"), "--store must name a file"),
        (("list", "--store", "postgresql://h:port/db"), "--store must be a database URL"),
        (("list", "--store-prefix", "x;y"), "--store-prefix must be .* got 'x;y'"),
        (("list", "--limit", "0"), "must be a whole number from 1 to 10000, got '0'"),
        (("show",), "the following arguments are required: KEY"),
        (("forget",), "the following arguments are required: KEY"),
    ],
)
def test_wrong_use_names_the_allowed_values(shop, capsys, args, says):
    code, reported = rejected(capsys, *args)
    assert code == 2
    assert re.search(says, reported)


def test_missing_database_file_is_not_created(capsys, tmp_path):
    path = tmp_path / "none.db"

    assert rejected(capsys, "list", "--store", f"sqlite:///{path}") == (
        1,
        f"retrytemplate context: there is no file {path}\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_file_without_database_exits_with_1(capsys, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("no database")
    code, reported = rejected(capsys, "list", "--store", f"sqlite:///{path}")

    assert code == 1
    assert "file is not a database" in reported
    assert path.read_text() == "no database"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        (f"postgresql://me:{SECRET}@127.0.0.1:1/db", 1),
        (f"postgresql://127.0.0.1:1/db?password={SECRET}&nonsense=s3cr/t", 1),
        (f"postgresql+nonsense://me:{SECRET}@host/db", 2),
        (f"postgresql://me:{SECRET}@host:port/db", 2),
        (f"mysql://me:{SECRET}@host/db", 2),
        (f"me:{SECRET}@host/db", 2),
    ],
)
def test_password_is_never_shown(capsys, url, code):
    for args in (("list",), ("show", "key"), ("forget", "key", "--json")):
        given, reported = rejected(capsys, *args, "--store", url)
        assert given == code
        assert not re.search("s3cr", reported)


@pytest.mark.parametrize("args", [("list",), ("list", "--limit")])
def test_password_in_an_argument_that_is_not_a_url_is_not_shown(capsys, args):
    code, reported = rejected(capsys, *args, f"postgresql://me:{SECRET}@host/db")
    assert code == 2
    assert not re.search("s3cr", reported)


@pytest.mark.parametrize("verb", ["list", "show", "forget"])
def test_each_verb_has_help_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["context", verb, "--help"])
    out = capsys.readouterr().out

    assert ended.value.code == 0
    assert f"  retrytemplate context {verb} " in out
    assert {"--store", "--store-prefix", "--json"} <= set(re.findall(r"--[\w-]+", out))


def test_json_output_needs_no_extra(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert data("list")["next"] is None
