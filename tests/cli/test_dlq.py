"""``retrytemplate dlq`` as a user runs it, on a real database."""

import getpass
import json
import re
import sys

import pytest

from retrytemplate import SimpleRetryPolicy
from retrytemplate.batch import DeadLetters, SkipPolicy
from retrytemplate.cli import main
from tests.cli.jobs import Place, lines_of
from tests.support.step_fixture import empty_world


class PriceError(Exception):
    """There is no price."""


def fail(item):
    if item % 2:
        raise PriceError(f"no price for {item}")
    return item


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request, monkeypatch):
    """A database in which items 1, 3 and 5 of one step and item 7 of another are dead letters."""
    settings = {"skip": SkipPolicy(on=PriceError), "retry": SimpleRetryPolicy(2)}
    with empty_world(request.param, request) as made:
        made.step(range(6), process=fail, key=lambda item: f"order-{item}", **settings).run()
        made.step([7], write=lambda item, _: fail(item), name="ship", **settings).run()
        monkeypatch.setenv("RETRYTEMPLATE_STORE", made.url)
        monkeypatch.setenv("COLUMNS", "80")
        yield made


@pytest.fixture
def ids(world):
    return [letter.id for letter in DeadLetters(world.jobs).page()]


@pytest.fixture
def dlq(world, capsys):
    """The exit code, standard output and standard error."""

    def run(*args):
        code = main(["dlq", *map(str, args), "--store-prefix", world.prefix])
        out, err = capsys.readouterr()
        return code, [line.rstrip() for line in out.splitlines()], err

    return run


@pytest.fixture
def shown(dlq):
    def run(*args):
        code, lines, err = dlq(*args)
        assert (code, err) == (0, "")
        return lines

    return run


def keys(lines):
    return [line.split()[2] for line in lines[2:]]


# -- list ----------------------------------------------------------------------------------------


def test_list_prints_a_line_for_each_letter(shown):
    head, rule, *lines = shown("list")
    assert head.split() == "id step key phase tries state age last failure".split()
    assert set(rule) == {"─"}
    assert re.fullmatch(
        r" *\d+  copy  order-1  process      2  open   \d s  PriceError: no price for 1", lines[0]
    )
    assert lines[3].split()[1:6] == ["ship", "items:1", "write", "2", "open"]


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["--step", "copy"], ["order-1", "order-3", "order-5"]),
        (["--phase", "write"], ["items:1"]),
        (["--key", "order-3"], ["order-3"]),
        (["--error", "PriceError", "--step", "ship"], ["items:1"]),
        (["--state", "any", "--limit", "4"], ["order-1", "order-3", "order-5", "items:1"]),
    ],
)
def test_filters_select_matching_letters(shown, args, found):
    assert keys(shown("list", *args)) == found


def test_list_counts_the_attempts_that_a_history_leaves_out(world, shown):
    settings = {"skip": SkipPolicy(on=PriceError), "retry": SimpleRetryPolicy(20)}
    world.step([9], process=fail, name="often", **settings).run()
    assert shown("list", "--step", "often")[2].split()[4] == "20"
    [letter] = json.loads("\n".join(shown("list", "--step", "often", "--json")))["letters"]
    assert letter["attempts"] == 20


def test_list_without_a_match_prints_a_message(shown):
    for args in (["--state", "discarded"], ["--error", "price"], ["--run", "1", "--step", "x"]):
        assert shown("list", *args) == ["No dead letters match."]


@pytest.mark.parametrize("verb", ["list", "export"])
def test_letters_of_unknown_run_fail(dlq, verb):
    assert dlq(verb, "--run", 99) == (1, [], "retrytemplate dlq: there is no run 99\n")


def test_next_page_is_named(shown, ids):
    assert shown("list", "--limit", 3)[-1] == f"There are more: --after {ids[2]}"
    assert keys(shown("list", "--after", ids[2])) == ["items:1"]


def test_list_json_omits_histories_and_names_the_next_page(shown, ids):
    page = json.loads("\n".join(shown("list", "--limit", 1, "--json")))
    [letter] = page["letters"]
    assert page["next"] == letter["id"] == ids[0]
    assert (letter["key"], letter["attempts"], letter["payload"]) == ("order-1", 2, "1")
    assert "history" not in letter
    assert json.loads("\n".join(shown("list", "--json")))["next"] is None


def test_long_names_are_cut_to_the_width_of_the_terminal(world, shown):
    step = world.step(
        [9],
        process=lambda item: fail(item) if item else item,
        name="long",
        key=lambda item: "customer/" * 20 + "last",
        skip=SkipPolicy(on=Exception),
    )
    step.run()
    [line] = shown("list", "--step", "long")[2:]
    assert len(line) <= 80
    assert re.search(r"custom\S*…\S*last ", line)


# -- show ----------------------------------------------------------------------------------------


def test_letter_is_shown_with_its_attempts(shown, ids):
    text = "\n".join(shown("show", ids[0]))
    assert text.startswith(f"dead letter {ids[0]}\nstep          copy, run 1\n")
    for line in ("key           order-1", "payload       1", "phase         process"):
        assert f"\n{line}\n" in text
    assert re.search(r"\nattempt 1, ended .* process \d+\n  Traceback", text)
    assert re.search(r"\nattempt 2, .*\n(  .*\n)+  .*PriceError: no price for 1$", text)


def test_show_json_has_the_history(shown, ids):
    letter = json.loads("\n".join(shown("show", ids[0], "--json")))
    assert [attempt["number"] for attempt in letter["history"]] == [1, 2]
    assert (letter["state"], letter["audit"], letter["problem"]) == ("open", [], None)


def test_show_of_an_unknown_letter_exits_with_1(dlq):
    assert dlq("show", 99) == (1, [], "retrytemplate dlq: there is no dead letter 99\n")


# -- discard -------------------------------------------------------------------------------------


def test_discard_records_operator_and_reason(shown, ids):
    assert shown("discard", *ids[:2], "--by", "ada", "--reason", "test orders") == [
        "2 letters discarded"
    ]
    assert keys(shown("list")) == ["order-5", "items:1"]
    assert keys(shown("list", "--state", "discarded")) == ["order-1", "order-3"]
    [audit] = [line for line in shown("show", ids[0]) if line.startswith("discarded")]
    assert re.fullmatch(r"discarded     \d{4}-.* UTC by ada: test orders", audit)


def test_second_discard_changes_nothing(world, shown, ids):
    shown("discard", ids[0], "--by", "ada", "--reason", "first")
    assert shown("discard", *ids[:2], "--by", "bob", "--reason", "second") == [
        "1 letter discarded, 1 letter before"
    ]
    assert [each.by for each in DeadLetters(world.jobs).find(ids[0]).audit] == ["ada"]


def test_operator_defaults_to_the_user_who_is_logged_in(world, shown, ids):
    shown("discard", ids[0], "--reason", "x")
    assert DeadLetters(world.jobs).find(ids[0]).audit[0].by == getpass.getuser()


def test_discard_names_invalid_letters_and_discards_the_others(dlq, ids):
    code, lines, err = dlq("discard", 99, ids[0], "--reason", "x", "--json")
    assert (code, err) == (1, "retrytemplate dlq: there is no dead letter 99\n")
    assert json.loads("\n".join(lines)) == {
        "discarded": [ids[0]],
        "before": [],
        "replayed": [],
        "unknown": [99],
    }


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("discard", "1"), "the following arguments are required: --reason"),
        (("discard", "1", "--reason", " "), "--reason must be a non-blank str, got ' '"),
        (("discard", "x", "--reason", "y"), "must be a whole number from 1 to"),
        (("list", "--state", "lost"), "invalid choice: 'lost'"),
        (("list", "--limit", "0"), "must be a whole number from 1 to 10000, got '0'"),
        (("list", "--error", ""), "argument --error: must be a non-empty string"),
        (("list", "--key", ""), "argument --key: must be a non-empty string"),
        (("list", "--step", ""), "argument --step: must be a non-empty string"),
        (
            ("list", "--step", "\udcff"),
            "argument --step: must be a string that a database can store",
        ),
        (("list", "--error", "\udcff"), "argument --error: must be a string that a database can"),
        (("replay", "job.py:step", "--error", ""), "argument --error: must be a non-empty str"),
        (("replay", "job.py:step", "--by", ""), "argument --by: must be a non-empty string"),
        (("show",), "the following arguments are required: ID"),
    ],
)
def test_wrong_use_names_the_allowed_values(monkeypatch, tmp_path, capsys, args, says):
    monkeypatch.setenv("RETRYTEMPLATE_STORE", f"sqlite:///{tmp_path}/missing.db")
    try:
        code = main(["dlq", *args])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert says in capsys.readouterr().err


# -- export --------------------------------------------------------------------------------------


def test_export_prints_a_line_for_each_letter_and_the_count(dlq, shown, ids):
    shown("discard", ids[0], "--reason", "x")
    code, lines, err = dlq("export", "--step", "copy", "--state", "any")
    letters = [json.loads(line) for line in lines]
    assert (code, err) == (0, "3 letters\n")
    assert [letter["key"] for letter in letters] == ["order-1", "order-3", "order-5"]
    assert [letter["state"] for letter in letters] == ["discarded", "open", "open"]
    assert all(len(letter["history"]) == 2 for letter in letters)


def test_json_output_needs_no_extra(shown, ids, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    for args in (["list"], ["show", ids[0]], ["discard", ids[0], "--reason", "x"]):
        assert json.loads("\n".join(shown(*args, "--json")))


# -- replay --------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path):
    """A job whose item 7 is a dead letter."""
    made = Place(tmp_path)
    done = made.run("batch", "run", f"{made.job}:skipping", BAD="7")
    assert (done.returncode, 7 in made.rows()) == (0, False)
    return made


def test_letter_is_replayed_with_the_step_of_a_file(place):
    replayed = place.run("dlq", "replay", f"{place.job}:skipping", "--by", "ada")
    assert (replayed.returncode, replayed.stderr) == (0, "")
    assert replayed.stdout.splitlines()[-1] == "1 letter replayed"
    assert place.rows() == list(range(12))

    [letter] = lines_of(place.run("dlq", "export", "--state", "replayed").stdout)
    assert [(each["action"], each["by"]) for each in letter["audit"]] == [("replayed", "ada")]


def test_replay_that_fails_again_keeps_the_letter_open(place):
    replayed = place.run("dlq", "replay", f"{place.job}:skipping", "--json", BAD="7")
    assert replayed.returncode == 1
    assert json.loads(replayed.stdout) == {
        "replayed": [],
        "failed": [1],
        "failures": {"1": {"type": "job.Odd", "message": "item 7"}},
        "skipped": [],
        "error": None,
        "unsent": 0,
    }
    assert replayed.stderr.endswith(
        "retrytemplate dlq: failed again: 1\nretrytemplate dlq: letter 1: Odd: item 7\n"
    )
    assert "open" in place.run("dlq", "list").stdout


def test_letter_is_replayed_once_and_only_with_its_own_step(place):
    assert place.run("dlq", "replay", f"{place.job}:skipping", "1").returncode == 0
    for name in ("skipping", "step"):
        again = place.run("dlq", "replay", f"{place.job}:{name}", "1")
        assert again.returncode == 1
        assert again.stderr == "retrytemplate dlq: no open letter of this step: 1\n"


def test_rejected_replay_changes_nothing_and_exits_with_1(place):
    with place.job.open("a") as job:
        job.write("""
from attrs import evolve
from retrytemplate import Guard, Rejected, RetryTemplate

class Closed(Guard):
    def admit(self, context):
        raise Rejected("closed")

closed = evolve(skipping, retry=RetryTemplate(guards=[Closed()]))
""")
    refused = place.run("dlq", "replay", f"{place.job}:closed", "1", "--json")
    assert refused.returncode == 1
    report = json.loads(refused.stdout)
    assert (report["failed"], report["error"]["message"]) == ([], "closed")
    message = "the replay stopped early: retrytemplate.errors.Rejected: closed"
    assert refused.stderr.splitlines() == [f"retrytemplate dlq: {message}"]
    [letter] = lines_of(place.run("dlq", "export").stdout)
    assert (letter["error_type"], letter["audit"]) == ("job.Odd", [])


def test_replay_filters_letters(place):
    for args in (["--error", "KeyError"], ["--key", "x"]):
        done = place.run("dlq", "replay", f"{place.job}:skipping", *args)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0 letters replayed")


@pytest.mark.parametrize("verb", ["list", "show", "discard", "export", "replay"])
def test_each_verb_has_help_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["dlq", verb, "--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"  retrytemplate dlq {verb} " in out
    assert "--json" in out
