"""``retrytemplate batch`` as a user runs it: in a process of its own, on a real database."""

import json
import os
import pty
import re
import signal
import sys

import pytest

from retrytemplate.batch import Runs, RunStatus
from retrytemplate.batch.journal.run import Counts
from retrytemplate.cli import main
from retrytemplate.cli.commands.batch.progress import BarReporter, Throughput
from tests.cli.jobs import COMMAND, PATIENCE, Place, lines_of
from tests.support import forked_python
from tests.support.step_fixture import empty_world


@pytest.fixture
def place(tmp_path, monkeypatch):
    made = Place(tmp_path)
    monkeypatch.setenv("RETRYTEMPLATE_STORE", made.url)
    monkeypatch.setenv("COLUMNS", "80")
    return made


def step(place, name="step"):
    return f"{place.job}:{name}"


# -- run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["step", "make", "awaited"])
def test_run_completes_the_step_of_a_file(place, name):
    done = place.run("batch", "run", step(place, name))
    assert (done.returncode, done.stderr) == (0, "")
    assert place.rows() == list(range(12))
    assert "state         completed, 100% read" in done.stdout
    assert "read          12 = 12 written + 0 filtered + 0 dead-lettered + 0 pending" in done.stdout


def test_failed_run_exits_with_1_and_resumes_on_the_next_run(place):
    failed = place.run("batch", "run", step(place), BAD="6")
    assert failed.returncode == 1
    assert "state         failed, 67% read: run it again to resume" in failed.stdout
    assert "error         job.Odd: item 6" in failed.stdout

    done = place.run("batch", "run", step(place))
    assert done.returncode == 0
    assert "processing 3\n" not in done.stdout
    assert place.rows() == list(range(12))


def test_parameters_are_json_or_else_text(place):
    pairs = [
        "day=2026-11-21",
        "limit=20",
        'part="7"',
        "id=007",
        "share=NaN",
        "far=1e999",
        "both=a=b",
    ]
    args = [word for pair in pairs for word in ("--parameter", pair)]
    done = place.run("batch", "run", step(place), *args, "--json")
    assert lines_of(done.stdout)[-1]["parameters"] == {
        "day": "2026-11-21",
        "limit": 20,
        "part": "7",
        "id": "007",
        "share": "NaN",
        "far": "1e999",
        "both": "a=b",
    }


def test_json_output_has_a_line_for_each_change_only(place):
    done = place.run("batch", "run", step(place), "--json")
    lines = lines_of(done.stdout)
    assert (done.returncode, lines[-1]["state"], lines[-1]["written"]) == (0, "completed", 12)
    assert "processing 11" in done.stderr


def test_existing_run_is_resumed_restarted_or_rejected(place):
    for _ in range(2):
        assert place.run("batch", "run", step(place)).returncode == 0
    refused = place.run("batch", "run", step(place), "--on-existing", "refuse")
    assert refused.returncode == 1
    assert (
        "run 1 of step 'copy' with parameters {} already exists and is completed; "
        "use --on-existing resume or --on-existing restart" in refused.stderr
    )

    again = place.run("batch", "run", step(place), "--on-existing", "restart")
    assert again.returncode == 1  # the rows are there already
    assert "run 2 of copy" in again.stdout


def test_progress_without_terminal_is_plain_lines(place):
    child = place.start("batch", "run", step(place), "--interval", "0.05", GATE="9")
    with child:
        place.arrived()
        assert "run 1: 67%, 8 read, 8 written\n" in child.stdout
        place.let_go()
        rest, _ = child.communicate(timeout=PATIENCE)
    assert "run 1: 100%, 12 read, 12 written" in rest
    assert "\x1b" not in rest


def test_progress_in_a_terminal_is_a_live_bar(place):
    code, shown = place.in_a_terminal("batch", "run", step(place, "skipping"), BAD="7")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert code == 0
    assert "\x1b[2K" in shown
    assert "━━━" in text
    assert "run 1 of skipping" in text
    assert "12 read   11 written   0 filtered   1 dead-lettered   0 pending" in text
    assert "1 retry   1 skipped   0 rollbacks   0 crashes" in text
    assert "processing 3" in text


@pytest.mark.parametrize("name", ["step", "awaited"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_ends_the_run_after_the_chunk(place, name, number):
    child = place.start("batch", "run", step(place, name), GATE="5")
    with child:
        place.arrived()
        child.send_signal(number)
        assert "interrupt once more" in child.stderr.readline()
        place.let_go()
        out, err = child.communicate(timeout=PATIENCE)
    assert (child.returncode, err) == (1, "")
    assert "state         stopped, 67% read: run it again to resume" in out
    assert place.rows() == list(range(8))

    assert place.run("batch", "run", step(place, name)).returncode == 0
    assert place.rows() == list(range(12))


@pytest.mark.parametrize("name", ["step", "awaited"])
def test_second_signal_interrupts_the_run(place, name):
    child = place.start("batch", "run", step(place, name), GATE="5")
    with child:
        place.arrived()
        child.send_signal(signal.SIGINT)
        assert "interrupt once more" in child.stderr.readline()
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=PATIENCE)
    assert (child.returncode, err) == (130, "")
    assert place.rows() == list(range(4))
    assert place.counted("status") == "stopped"

    assert place.run("batch", "run", step(place, name)).returncode == 0
    assert place.rows() == list(range(12))


def test_third_signal_ends_process_that_ignores_the_second(place):
    child = place.start("batch", "run", step(place, "hard"), GATE="5")
    with child:
        place.arrived()
        child.send_signal(signal.SIGINT)
        assert "interrupt once more" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        place.arrived("caught")
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=PATIENCE)
    assert child.returncode == 130

    status = place.run("batch", "status", "--json")
    assert json.loads(status.stdout)["runs"][0]["state"] == "crashed"
    place.let_go()
    assert place.run("batch", "run", step(place, "hard")).returncode == 0
    assert place.rows() == list(range(12))


AWAITED = """
import os
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from retrytemplate.batch import ChunkStep, JobRepository

async def numbers():
    for number in range(5):
        yield number

url = os.environ["JOBS"].replace("sqlite:", "sqlite+aiosqlite:")
engine = create_async_engine(url, poolclass=NullPool)  # it is never closed
on_engine = ChunkStep("e", reader=[1], writer=lambda *_: None, repository=JobRepository(engine))
streamed = ChunkStep(
    "s", reader=numbers(), writer=lambda *_: None, repository=JobRepository(os.environ["JOBS"])
)
"""


@pytest.mark.parametrize("name", ["on_engine", "streamed"])
def test_undetected_async_component_runs_with_async_option(place, name):
    place.job.write_text(AWAITED)
    blocking = place.run("batch", "run", step(place, name))
    assert blocking.returncode == 2
    assert "run_async()" in blocking.stderr
    assert "never awaited" not in blocking.stderr

    awaited = place.run("batch", "run", step(place, name), "--async")
    assert (awaited.returncode, awaited.stderr) == (0, "")
    assert "state         completed" in awaited.stdout


def test_run_held_by_another_process_is_rejected(place):
    child = place.start("batch", "run", step(place), GATE="5")
    with child:
        place.arrived()
        refused = place.run("batch", "run", step(place))
        place.let_go()
        child.communicate(timeout=PATIENCE)
    assert refused.returncode == 1
    assert "is in progress in" in refused.stderr
    assert child.returncode == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("job.py",), "'job.py': must be FILE:NAME, such as job.py:step"),
        (("{folder}/none.py:step",), "there is no file .*none.py"),
        (("{folder}/none.txt:step",), "there is no file .*none.txt"),
        (("{job}:stepp",), "job.py has no stepp, only step, awaited, hard, skipping"),
        (("{job}:number",), "number of .*job.py must be a ChunkStep, or a function .* got 17"),
        (("{job}:broken",), r"broken\(\) of .*job.py cannot be run: LookupError: no settings"),
        (("{job}:write",), r"write\(\) of .*job.py cannot be run: TypeError"),
        (("{job}:step", "--parameter", "day"), "--parameter: must be NAME=VALUE, .* got 'day'"),
        (("{job}:step", "--parameter", "a=1", "--parameter", "a=2"), "each name once, got 'a=2'"),
        (("{job}:step", "--parameter", "a=" + "[" * 9999), "--parameter: a is nested too deeply"),
        (
            ("{job}:step", "--interval", "0"),
            "seconds from 0.05 to 3600, got '0'",
        ),
        (
            ("{job}:step", "--interval", "soon"),
            "seconds from 0.05 to 3600, got 'soon'",
        ),
        (("{job}:step", "--on-existing", "stop"), "invalid choice: 'stop'"),
    ],
)
def test_invalid_job_exits_with_2_and_the_reason(place, args, says):
    filled = [arg.format(job=place.job, folder=place.folder) for arg in args]
    done = place.run("batch", "run", *filled)
    assert done.returncode == 2
    assert re.search(says, done.stderr), done.stderr


def test_traceback_of_a_failing_file_has_its_own_frames_only(place):
    place.job.write_text("import json\n\njson.loads('{')\n")
    done = place.run("batch", "run", step(place))
    assert done.returncode == 2
    assert f'File "{place.job}", line 3, in <module>' in done.stderr
    assert "_files.py" not in done.stderr
    assert "importlib" not in done.stderr


@pytest.mark.parametrize("driver", ["a file", "a function"])
def test_job_file_that_exits_is_wrong_use(place, driver):
    ends = "raise SystemExit('boom')\n"
    place.job.write_text(ends if driver == "a file" else f"def step():\n    {ends}")
    done = place.run("batch", "run", step(place))
    assert done.returncode == 2
    assert re.search(r"job.py cannot be run: SystemExit: boom\n$", done.stderr)


# -- watch ---------------------------------------------------------------------------------------


def test_watch_from_another_process_agrees_with_the_table(place):
    child = place.start("batch", "run", step(place), GATE="9")
    with child:
        place.arrived()
        watching = place.start("batch", "watch", "--interval", "0.05")
        with watching:
            first = json.loads(watching.stdout.readline())
            assert (first["state"], first["progress"]) == ("running", pytest.approx(8 / 12))
            for column in ("read", "written", "filtered", "dead_lettered", "retries", "updated"):
                assert first[column] == place.counted(column)
            place.let_go()
            child.communicate(timeout=PATIENCE)
            out, err = watching.communicate(timeout=PATIENCE)
    assert (watching.returncode, err) == (0, "")
    last = lines_of(out)[-1]
    assert (last["state"], last["written"]) == ("completed", place.counted("written"))


def test_watch_in_a_terminal_draws_the_bar_and_ends_with_the_run(place):
    place.run("batch", "run", step(place), BAD="6")
    code, shown = place.in_a_terminal("batch", "watch", "1")
    assert code == 1
    assert "run 1 of copy" in shown
    assert "8 read" in shown


def test_watch_in_a_terminal_follows_a_run_of_another_process_to_its_end(place):
    child = place.start("batch", "run", step(place), GATE="9")
    with child:
        place.arrived()
        code, shown = place.in_a_terminal(
            "batch", "watch", "--interval", "0.05", when=("running", place.let_go)
        )
        child.communicate(timeout=PATIENCE)
    assert code == 0
    before, _, after = shown.partition("completed")
    assert "8 read" in before
    assert "67%" in before
    assert "100%" in after
    assert "12 written" in after


def test_narrow_terminal_without_unicode_gets_ascii(place):
    place.run("batch", "run", step(place))
    plain = {"PYTHONIOENCODING": "ascii", "COLUMNS": "40"}
    for verb in ("watch", "status"):
        code, shown = place.in_a_terminal("batch", verb, **plain)
        assert (code, shown.isascii()) == (0, True), shown
        assert "Traceback" not in shown


def test_watch_prefers_the_run_in_progress_to_a_newer_one(place):
    child = place.start("batch", "run", step(place), GATE="0")
    with child:
        place.arrived()
        place.run("batch", "run", step(place), "--parameter", "n=2", GATE="-1", BAD="0")
        watching = place.start("batch", "watch", "--step", "copy")
        with watching:
            assert json.loads(watching.stdout.readline())["run_id"] == 1
            place.let_go()
            child.communicate(timeout=PATIENCE)
            watching.communicate(timeout=PATIENCE)


def test_watch_without_a_run_exits_with_1(place):
    place.run("batch", "run", step(place))
    for args, says in (((99,), "there is no run 99"), (("--step", "x"), "there is no run of 'x'")):
        done = place.run("batch", "watch", *args)
        assert (done.returncode, done.stderr) == (1, f"retrytemplate batch: {says}\n")


# -- status --------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request, monkeypatch):
    """A database with three runs: completed, failed, abandoned."""

    def fail(item):
        raise ValueError(f"item {item}")

    with empty_world(request.param, request) as made:
        made.step(range(5)).run({"day": "2026-11-21"})
        made.step([1], process=fail, name="price").run({"n": 2, "file": "orders.csv"})
        made.jobs.abandon(made.step([1], process=fail).run().run_id)
        monkeypatch.setenv("RETRYTEMPLATE_STORE", made.url)
        monkeypatch.setenv("COLUMNS", "80")
        yield made


@pytest.fixture
def shown(world, capsys):
    """The lines that the command prints."""

    def run(*args):
        assert main(["batch", *map(str, args), "--store-prefix", world.prefix]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return [line.rstrip() for line in out.splitlines()]

    return run


def test_status_lists_runs_newest_first(shown):
    head, rule, *lines = shown("status")
    assert head.split() == "run step state share written letters rate age parameters".split()
    assert set(rule) == {"─"}
    assert [line.split()[:3] for line in lines] == [
        ["3", "copy", "abandoned"],
        ["2", "price", "failed"],
        ["1", "copy", "completed"],
    ]
    assert re.search(r" 100% +5 +0 .* day=2026-11-21$", lines[2])
    assert max(map(len, lines)) <= 80


def test_status_filters_by_step_and_pages(shown):
    assert [line.split()[0] for line in shown("status", "--step", "price")[2:]] == ["2"]
    page = shown("status", "--limit", 2)
    assert page[-1] == "There are more: --before 2"
    assert [line.split()[0] for line in shown("status", "--before", 2)[2:]] == ["1"]
    assert shown("status", "--step", "none") == ["No runs match."]


def test_status_of_one_run_prints_all_facts(shown):
    lines = shown("status", 2)
    assert lines[0] == "run 2 of price"
    assert "parameters    file=orders.csv n=2" in lines
    assert "state         failed, 100% read: run it again to resume" in lines
    assert "error         ValueError: item 1" in lines
    assert "retries       2, rollbacks 0, crashes 0" in lines
    assert "writes        exactly once" in lines


def test_status_json_has_every_field(world, capsys):
    assert main(["batch", "status", "--json", "--limit", "2", "--store-prefix", world.prefix]) == 0
    page = json.loads(capsys.readouterr().out)
    assert [each["run_id"] for each in page["runs"]] == [3, 2]
    assert page["next"] == 2
    assert page["runs"][1]["error"] == {"type": "ValueError", "message": "item 1"}


def test_json_output_needs_no_extra(world, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    for args in (["status"], ["watch", "1"], ["abandon", "2"]):
        assert main(["batch", *args, "--json", "--store-prefix", world.prefix]) == 0
        assert json.loads(capsys.readouterr().out)


# -- abandon -------------------------------------------------------------------------------------


def test_abandon_twice_leaves_the_run_abandoned(world, shown):
    for _ in range(2):
        assert shown("abandon", 2) == ["run 2 abandoned"]
    assert Runs(world.jobs).find(2).state == "abandoned"


def test_abandon_rejects_completed_and_unknown_runs(world, capsys):
    for number, says in ((1, "run 1 is completed and cannot be abandoned"), (9, "no run 9")):
        assert main(["batch", "abandon", str(number), "--store-prefix", world.prefix]) == 1
        assert says in capsys.readouterr().err
    assert Runs(world.jobs).find(1).state == "completed"


def test_run_of_abandoned_run_names_the_option_to_restart(place):
    place.run("batch", "run", step(place), BAD="6")
    place.run("batch", "abandon", "1", "--yes")

    rejected = place.run("batch", "run", step(place))
    assert (
        rejected.returncode,
        "was abandoned; start again with --on-existing restart" in rejected.stderr,
    ) == (1, True)


def test_abandon_in_a_terminal_requests_confirmation(place):
    place.run("batch", "run", step(place), BAD="6")
    ours, theirs = pty.openpty()
    os.write(ours, b"n\n")
    command = [*COMMAND, "batch", "abandon", "1"]
    done = forked_python.run(command, stdin=theirs, env=place.environment)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 1
    assert "Abandon run 1? [y/N]" in done.stderr
    assert place.counted("status") == "failed"


# -- the store, and help --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "code", "says"),
    [
        ("jobs.db", 2, "--store must be a database URL"),
        (
            "mysql://me:secret@host/db",
            2,
            "--store must be a URL of SQLite or PostgreSQL, got scheme 'mysql'",
        ),
        ("sqlite://", 2, "--store must name a file"),
        ("sqlite:////none/jobs.db", 1, "there is no file /none/jobs.db"),
        ("postgresql://me:secret@127.0.0.1:1/db", 1, "the job repository cannot be used"),
    ],
)
def test_invalid_store_is_reported_without_its_password(capsys, store, code, says):
    assert main(["batch", "status", "--store", store]) == code
    message = capsys.readouterr().err
    assert says in message
    assert "secret" not in message


def test_missing_store_is_wrong_use(capsys, monkeypatch):
    monkeypatch.delenv("RETRYTEMPLATE_STORE", raising=False)
    assert main(["batch", "status"]) == 2
    assert "pass --store or set RETRYTEMPLATE_STORE" in capsys.readouterr().err
    assert main(["batch", "status", "--store", "sqlite:///x.db", "--store-prefix", "x;y"]) == 2
    assert "--store-prefix must be" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["status", "watch"])
@pytest.mark.parametrize(
    ("name", "says"), [("", "non-empty string"), ("\udcff", "that a database can store")]
)
def test_invalid_step_name_is_wrong_use(capsys, verb, name, says):
    with pytest.raises(SystemExit) as ended:
        main(["batch", verb, "--step", name])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["run", "status", "watch", "abandon"])
def test_each_verb_has_help_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["batch", verb, "--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"  retrytemplate batch {verb} " in out
    assert "--json" in out


# -- the pace and the bar --------------------------------------------------------------------------


def a_run(**fields):
    usual = dict.fromkeys(
        "worker lease_until suspects isolated_item error code_version taken ended progress".split()
    )
    usual |= {"run_id": 3, "step": "price", "parameters": {}, "generation": 1, "state": "running"}
    usual |= {"pending": 0, "isolating": False, "exactly_once": True, "done_before": 0}
    usual |= {"counts": Counts(), "started": 0.0, "updated": 0.0, "now": 0.0}
    return RunStatus(**usual | fields)


def at(moment, done, now=None):
    return a_run(counts=Counts(written=done), updated=moment, now=moment if now is None else now)


def test_throughput_is_that_of_the_recent_window():
    throughput = Throughput(window=30.0)
    rates = [throughput.update(at(10.0 * number, 100 * number)) for number in range(4)]
    rates += [
        throughput.update(at(40.0 + 10 * number, 300 + 10 * number)) for number in range(1, 6)
    ]
    assert rates[:4] == [None, 10.0, 10.0, 10.0]
    assert rates[-1] == pytest.approx(1.0)


def test_throughput_falls_while_no_items_are_processed():
    throughput = Throughput()
    throughput.update(at(0.0, 0))
    throughput.update(at(10.0, 100))
    assert [throughput.update(at(10.0, 100, now=now)) for now in (12.0, 20.0, 110.0)] == [
        10.0,
        10.0,
        1.0,
    ]


def drawn(run):
    bar = BarReporter()
    bar.screen.console.width = 80
    with bar.screen.console.capture() as capture:
        bar.screen.console.print(bar.render(run))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_bar_shows_throughput_and_remaining_time():
    counts = Counts(read=600, written=590, filtered=5, dead_lettered=5, skipped=5, retries=12)
    run = a_run(
        counts=counts, progress=0.25, taken=40.0, now=100.0, parameters={"day": "x", "n": 3}
    )
    head, line, *rest = drawn(run)
    assert head == "run 3 of price day=x n=3   running"
    assert re.fullmatch(r"[━╸╺ ]+ 25%  10/s  3:00 left", line)
    assert rest == [
        "600 read   590 written   5 filtered   5 dead-lettered   0 pending",
        "12 retries   5 skipped   0 rollbacks   0 crashes",
    ]


def test_bar_shows_suspects():
    assert drawn(a_run(isolating=True))[-1] == "isolating: the items of a chunk are suspects"
    assert (
        drawn(a_run(isolating=True, suspects=17, isolated_item=3))[-1]
        == "isolating: 17 suspects, item 3 of the chunk alone"
    )


def test_bar_escapes_control_characters():
    assert drawn(a_run(step="\x1b[31m[bold]red"))[0] == r"run 3 of \x1b[31m[bold]red   running"
