"""``retrytemplate demo`` as a user runs it: in a process of its own."""

import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from retrytemplate.demo.orders import shipped
from tests.support import forked_python

# The longest takes seven seconds where nothing else runs.
PATIENCE = 170.0
pytestmark = pytest.mark.timeout(180)

COMMAND = (sys.executable, "-W", "error", "-m", "retrytemplate.cli", "demo")


def demo(*args, cwd=None):
    return forked_python.run([*COMMAND, *map(str, args)], timeout=PATIENCE, cwd=cwd)


def some_of_the_shipped(path, lines):
    """The head of the shipped file, with its faults."""
    head = shipped().read_bytes().split(b"\n")[: lines + 1]
    path.write_bytes(b"\n".join(head) + b"\n")
    return path


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    return some_of_the_shipped(tmp_path_factory.mktemp("orders") / "orders.csv", 150)


@pytest.fixture(scope="module")
def few_orders(tmp_path_factory):
    """Orders without a fault of the service: a run that waits for nothing."""
    return some_of_the_shipped(tmp_path_factory.mktemp("orders") / "few.csv", 20)


def free_port():
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def figures(orders):
    """The figures of a run with ``--json``, its database and its port."""
    database, port = orders.with_suffix(".json.db"), free_port()
    done = demo("--json", "--input", orders, "--database", database, "--port", port)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout), database, port


@pytest.fixture(scope="module")
def shown(orders):
    """The output of a run without a terminal, and its database."""
    database = orders.with_name("with a space.db")
    done = demo("--input", orders, "--database", database)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, database


@contextmanager
def demo_at_work(database):
    """The demo, once it has processed some lines."""
    with forked_python.Popen(
        [*COMMAND, "--database", str(database)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for shown in process.stdout:
            if " of 3000" in shown:
                break
        yield process


def run_status(database):
    with closing(sqlite3.connect(database)) as connection:
        [(status,)] = connection.execute("SELECT status FROM batch_runs")
        return status


def numbers(database, query):
    with closing(sqlite3.connect(database)) as connection:
        return [int(number) for (number,) in connection.execute(query)]


WRITTEN = "SELECT line FROM written"
DEAD = "SELECT item_key FROM batch_letters"


def assert_every_line_is_in_one_place(path, database):
    content = Path(path).read_bytes().removesuffix(b"\n")
    expected = list(range(2, content.count(b"\n") + 2))
    found = numbers(database, WRITTEN) + numbers(database, DEAD)
    assert sorted(found) == expected


def test_every_line_of_the_shipped_file_is_written_or_dead_lettered(tmp_path):
    database = tmp_path / "all.db"
    done = demo("--json", "--database", database)
    figures = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert_every_line_is_in_one_place(shipped(), database)
    assert figures["read"] == 3000 == figures["written"] + figures["dead_lettered"]
    assert figures["written"] == len(numbers(database, WRITTEN))
    assert figures["dead_lettered"] == len(numbers(database, DEAD)) > 0
    assert figures["retried"] > 200
    assert figures["service_sent"] == figures["client_saw"]
    assert all(figures["service_sent"].values())
    assert figures["problems"] == []


def test_input_file_is_processed(orders, figures):
    found, database, _ = figures
    assert (found["read"], found["input"]) == (150, str(orders))
    assert_every_line_is_in_one_place(orders, database)


def test_same_seed_gives_the_same_figures(orders, figures, tmp_path):
    files = (tmp_path / f"{number}.db" for number in count())

    def same(found):
        names = "read written dead_lettered retried retries attempts service_sent"
        return {name: found[name] for name in names.split()}

    def run(seed):
        done = demo("--json", "--input", orders, "--database", next(files), "--seed", seed)
        found = json.loads(done.stdout)
        assert found["seed"] == seed
        return same(found)

    # A machine that stalls for half a second makes an answer slow that was not meant to be.
    assert any(run(11) == run(11) for _ in range(3))
    assert run(11) != same(figures[0])


def test_tables_print_the_figures_and_the_database(shown):
    output, database = shown
    rows = dict(re.findall(r"^ ?(\w[\w-]*(?: \w+)*?) {2,}(\d+)", output, re.MULTILINE))
    assert rows["read"] == "150"
    assert int(rows["written"]) + int(rows["dead-lettered"]) == 150
    assert int(rows["retried"]) > 0
    assert "time waited" in output
    assert f"\nDatabase: {database}\n" in output
    assert len(numbers(database, WRITTEN)) == int(rows["written"])


def test_tables_explain_their_figures(shown):
    output, _ = shown
    for explanation in (
        "with a price, in transactions of",
        "without a price, by the last error:",
        "failed at least once: ",
        "attempts of a line",
        "service sent",
        "client saw",
    ):
        assert explanation in output


def test_next_command_of_the_demo_lists_its_dead_letters(shown):
    output, database = shown
    command = shlex.split(re.search("^Next: retrytemplate (.*)$", output, re.MULTILINE)[1])
    listed = forked_python.run([*COMMAND[:-1], *command], timeout=PATIENCE)
    assert listed.stdout.count("reprocess-orders") == len(numbers(database, DEAD)) > 0


def test_progress_without_terminal_is_plain_lines(shown):
    output, _ = shown
    progress = re.findall(r"^ +(\d+) of 150: \d+ written, \d+ failed", output, re.MULTILINE)
    assert len(progress) >= 9
    assert "\x1b" not in output


def test_progress_in_a_terminal_is_a_live_bar(few_orders, tmp_path):
    shown = in_a_terminal("--input", few_orders, "--database", tmp_path / "x.db")
    assert shown.count("\r") > 1 or "\x1b[1A" in shown or "\x1b[2K" in shown
    assert "20/20" in shown
    assert "Database:" in shown


def test_terminal_of_0_columns_gets_the_tables(few_orders, monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    done = demo("--input", few_orders)
    assert "dead-lettered" in done.stdout
    default = re.search(r"^Database: (.*\.db)$", done.stdout, re.MULTILINE)[1]
    assert len(numbers(default, WRITTEN)) > 0
    os.unlink(default)


def in_a_terminal(*args):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = forked_python.Popen(
        [*COMMAND, *map(str, args)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if not select.select([ours], [], [], 1.0)[0]:
            continue
        try:
            chunk = os.read(ours, 65_536)
        except OSError:  # the other side is closed: on Linux that is an EIO
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    assert process.wait(PATIENCE) == 0
    return shown.decode()


def test_first_interrupt_stops_the_demo_after_its_chunk(tmp_path):
    database = tmp_path / "x.db"
    with demo_at_work(database) as process:
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert re.fullmatch(
        r"ends after this chunk; interrupt once more to end at once\n"
        r"retrytemplate demo: interrupted: \d+ of 3000 lines are written, .*x\.db\n",
        complaint,
    )
    written, dead = numbers(database, WRITTEN), numbers(database, DEAD)
    assert f"interrupted: {len(written)} of" in complaint
    assert sorted(written + dead) == list(range(2, len(written + dead) + 2))
    assert len(written + dead) % 500 == 0
    assert run_status(database) == "stopped"
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]


def test_second_interrupt_ends_the_demo_within_its_chunk(tmp_path):
    database = tmp_path / "x.db"
    with demo_at_work(database) as process:
        process.send_signal(signal.SIGINT)
        assert "ends after this chunk" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert re.fullmatch(r"retrytemplate demo: interrupted: .*x\.db\n", complaint)
    assert run_status(database) == "stopped"


def test_interrupts_while_the_demo_ends_leave_no_traceback(tmp_path):
    with demo_at_work(tmp_path / "x.db") as process:
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.005)
        _, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in complaint


def test_database_of_an_earlier_run_is_rejected(tmp_path):
    database = tmp_path / "x.db"
    database.write_text("notes")
    done = demo("--database", database)
    assert (done.returncode, done.stderr) == (
        2,
        f"retrytemplate demo: --database: {database} exists already; name a new file\n",
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot read .*orders.csv: No such file or directory"),
        (b"\x00\xff\xfe\x01" * 100, "is not CSV"),
        (b"name;price\nx;3\n", "is not a CSV of orders: its first line must name the columns"),
        (b"", "is not a CSV of orders"),
    ],
    ids=["missing", "binary", "another table", "empty"],
)
def test_file_that_is_missing_or_not_csv_is_wrong_use(tmp_path, content, problem):
    path = tmp_path / "orders.csv"
    if content is not None:
        path.write_bytes(content)
    done = demo("--input", path, "--database", tmp_path / "x.db")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"retrytemplate demo: --input: .*{problem}.*\n", done.stderr)
    assert not (tmp_path / "x.db").exists()


def test_port_in_use_is_wrong_use(orders, tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        done = demo("--input", orders, "--port", port, "--database", tmp_path / "x.db")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"retrytemplate demo: --port: cannot listen on {port}: Address already in use\n"
    )
    assert not (tmp_path / "x.db").exists()


@pytest.mark.parametrize("port", ["-1", "65536", "http", "²"])
def test_invalid_port_is_wrong_use(port):
    done = demo("--port", port)
    assert done.returncode == 2
    assert "must be a whole number from 0 to 65535" in done.stderr


def test_service_listens_on_the_given_port(figures):
    found, _, port = figures
    assert found["port"] == port


def test_database_that_cannot_be_written_is_wrong_use(orders, tmp_path):
    done = demo("--input", orders, "--database", tmp_path / "nowhere" / "x.db")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"retrytemplate demo: --database: cannot write the database .*\n", done.stderr
    )


def test_missing_rich_is_named_with_its_extra_and_json_works(few_orders, tmp_path):
    without = "import sys; sys.modules['rich'] = None; from retrytemplate.cli import main; "
    call = [sys.executable, "-c", without + "sys.exit(main(sys.argv[1:]))", "demo"]
    call += ["--input", str(few_orders), "--database", str(tmp_path / "x.db")]
    done = subprocess.run(call, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert "install retrytemplate[cli]" in done.stderr
    assert not (tmp_path / "x.db").exists()
    assert subprocess.run([*call, "--json"], capture_output=True, timeout=PATIENCE).returncode == 0


def test_help_has_an_example():
    done = demo("--help")
    assert done.returncode == 0
    assert "retrytemplate demo --input orders.csv" in done.stdout


def test_closed_pipe_prints_no_traceback(few_orders, tmp_path):
    database = tmp_path / "unread.db"
    read, write = os.pipe()
    os.close(read)
    command = [*COMMAND, "--json", "--input", str(few_orders), "--database", str(database)]
    with (
        open(write, "w") as unread,
        forked_python.Popen(command, stdout=unread, stderr=subprocess.PIPE) as process,
    ):
        _, messages = process.communicate(timeout=PATIENCE)
    assert (process.returncode, messages) == (1, b"")
    assert_every_line_is_in_one_place(few_orders, database)


def test_empty_orders_file_exits_with_0(tmp_path):
    path = tmp_path / "orders.csv"
    path.write_text("order_id,placed_on,customer,sku,quantity\n")
    done = demo("--input", path, "--database", tmp_path / "x.db")
    assert (done.returncode, done.stderr) == (0, "")


def test_file_of_faulty_lines_exits_with_0(tmp_path):
    path = tmp_path / "orders.csv"
    path.write_text("order_id,placed_on,customer,sku,quantity\n\n\n,,\n")
    done = demo("--json", "--input", path, "--database", tmp_path / "x.db")
    figures = json.loads(done.stdout)
    assert (done.returncode, figures["read"], figures["dead_lettered"]) == (0, 3, 3)


def test_example_script_prints_the_same_figures(orders, figures):
    root = Path(__file__).parents[2]
    script = root / "examples" / "reprocess_orders.py"
    shown = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(orders)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    found, *_ = figures
    assert (
        f"150 lines read, {150 + found['retries'] + found['dead_lettered']} deliveries"
        in shown.stdout
    )
    assert f"{found['written']} written, {found['dead_lettered']} dead" in shown.stdout
