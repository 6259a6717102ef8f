"""The command's frame: verbs, exit codes, messages."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from retrytemplate import cli
from retrytemplate.cli.errors import UsageError
from retrytemplate.errors import MissingExtraError

COMMAND = (sys.executable, "-W", "error", "-m", "retrytemplate.cli")


@pytest.fixture
def verb(monkeypatch):
    """Register the function as verb ``try``, run it and return the exit code."""

    def run(function):
        module = SimpleNamespace(
            add_parser=lambda subparsers: subparsers.add_parser("try"), run=function
        )
        monkeypatch.setattr(cli, "VERBS", {"try": module})
        return cli.main(["try"])

    return run


@pytest.mark.parametrize("code", [0, 1, 2])
def test_exit_code_is_that_of_the_verb(verb, code):
    assert verb(lambda args: code) == code


def raising(error):
    def run(args):
        raise error

    return run


def test_wrong_use_exits_with_2_and_the_reason(verb, capsys):
    assert verb(raising(UsageError("there is no such thing"))) == 2
    assert capsys.readouterr() == ("", "retrytemplate try: there is no such thing\n")


def test_message_with_escape_sequence_is_printed_escaped(verb, capsys):
    assert verb(raising(UsageError("no key 'a\x1b[2J\nb'"))) == 2
    assert capsys.readouterr().err == "retrytemplate try: no key 'a\\x1b[2J\\nb'\n"


def test_missing_extra_is_named_and_exits_with_2(verb, capsys):
    error = MissingExtraError("the table needs rich: install retrytemplate[cli]")

    assert verb(raising(error)) == 2
    assert "install retrytemplate[cli]" in capsys.readouterr().err


def test_interrupt_exits_with_130_without_output(verb, capsys):
    assert verb(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("verb_name", sorted(cli.VERBS))
def test_every_verb_has_help_with_an_example(verb_name, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([verb_name, "--help"])

    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"  retrytemplate {verb_name}" in shown


@pytest.mark.parametrize("arguments", [[], ["no-such-verb"]])
def test_command_without_verb_shows_its_usage_and_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)

    assert ended.value.code == 2
    assert "usage: retrytemplate" in capsys.readouterr().err


def test_closed_pipe_prints_no_traceback():
    done = subprocess.run(
        f"{sys.executable} -m retrytemplate.cli simulate --policy always | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [("simulate",), ("simulate", "--json"), ("--help",)])
def test_pipe_closed_before_the_start_prints_no_traceback(arguments, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # buffered output is flushed at the end
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as unread:
        done = subprocess.run(
            (*COMMAND, *arguments), stdout=unread, stderr=subprocess.PIPE, text=True, check=False
        )

    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("arguments", ["simulate", "simulate --json", "simulate --help"])
def test_command_without_standard_output_prints_nothing(arguments):
    done = subprocess.run(
        f"{' '.join(COMMAND)} {arguments} >&-", shell=True, stderr=subprocess.PIPE, check=False
    )

    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


def test_failing_output_exits_with_1():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            (*COMMAND, "simulate", "--json"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == 1
    assert done.stderr == "retrytemplate simulate: [Errno 28] No space left on device\n"


def test_command_loads_packages_of_extras_on_first_use():
    code = (
        "import sys; from retrytemplate.cli import main; main(['simulate', '--json']); "
        "sys.exit(any(name in sys.modules for name in ('rich', 'matplotlib')))"
    )

    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("module", ["asyncio", "matplotlib", "rich", "sqlalchemy"])
def test_command_loads_heavy_modules_only_for_their_verbs(module):
    script = f"import sys, retrytemplate.cli; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


GROUPS = ("batch", "breaker", "context", "dlq", "outbox", "switch")


@pytest.mark.parametrize("arguments", [[], *([group] for group in GROUPS)])
def test_command_without_its_verb_prints_help_and_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert shown.out == ""
    assert shown.err.startswith(" ".join(["usage: retrytemplate", *arguments]))
    assert "show this help message and exit" in shown.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["bacth", "run"], "did you mean 'batch'?"),
        (["dlq", "lst"], "did you mean 'list'?"),
        (["simulate", "--polciy", "simple"], "did you mean '--policy'?"),
        (["dlq", "list", "--sotre=sqlite://"], "did you mean '--store'?"),
        (["simulate", "--policy", "simpel"], "did you mean 'simple'?"),
        (["simulate", "--backoff", "expnential"], "did you mean 'exponential'?"),
        (["simulate", "--policy", "simple:max_attemps=3"], "did you mean 'max_attempts'?"),
    ],
)
def test_misspelt_word_names_a_similar_one_and_exits_with_2(arguments, hint, capsys):
    try:
        code = cli.main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert capsys.readouterr().err.endswith(f"; {hint}\n")


def test_version_prints_the_version_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"retrytemplate {version('retrytemplate')}\n"
