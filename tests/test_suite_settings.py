"""The suite's own rules, tried on a small project that has them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def made(folder, files):
    """A project with the suite's own configuration."""
    for name in ("conftest.py", "setup.cfg"):
        shutil.copy(ROOT / name, folder)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def run(project, *arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    path = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=project,
        env=environment | {"PYTHONPATH": path} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


STEPS = "```python\nlast = -1\n```\n" + "".join(
    f"Step {n}:\n```python\nassert last == {n - 1}\nlast = {n}\n```\n" for n in range(9)
)
SKIPPED = """
import pytest
@pytest.mark.skipif(True, reason='no server')
def test_skipped(): ...
@pytest.mark.parametrize("n", range(9))
def test_passes(n): ...
"""


@pytest.fixture(scope="module")
def green(tmp_path_factory):
    """A project in which every test passes except a skipped one."""
    folder = tmp_path_factory.mktemp("green")
    return made(folder, {"README.md": STEPS, "test_it.py": SKIPPED})


def test_examples_of_a_page_run_in_order(green):
    done = run(green, "README.md", "test_it.py", "--randomly-seed=1")
    assert "--randomly-seed=1" in done.stdout
    assert "10 passed, 1 skipped" in done.stdout, done.stdout
    assert done.returncode == 0


def test_skipped_test_fails_a_parallel_run_in_ci(green):
    done = run(green, "README.md", "test_it.py", "-n2", "--dist=worksteal", CI="true")
    assert "10 passed, 1 skipped" in done.stdout, done.stdout
    assert done.returncode == (1 if sys.platform == "linux" else 0)


# Where a leftover stays, its test waits to the end of the limits.
FAILING = """
import itertools, os, pytest, socket, subprocess, sys, threading, warnings
from tests.support import leftovers
SOON, leftovers.SOON, leftovers.CLOSING = leftovers.SOON, 0.2, 0.2
kept = []
resets, reset = [], leftovers.Watchdog.reset
leftovers.Watchdog.reset = lambda dog, limit: (resets.append(limit), reset(dog, limit))
@pytest.mark.timeout(71)
def test_watched():
    pytest.fail(f"the watchdog has {resets[-1]} s")
def test_thread():
    kept.append(threading.Event())
    threading.Thread(target=kept[-1].wait, name="left", daemon=True).start()
def test_process():
    kept.append(subprocess.Popen(["sleep", "1000"]))
def test_killed():
    with pytest.raises(ProcessLookupError):
        os.kill(kept[-1].pid, 0)
def test_grandchild():
    child = "import subprocess; subprocess.Popen(['sleep', '1000'])"
    subprocess.run([sys.executable, "-W", "ignore", "-c", child], check=True)
def test_file():
    kept.append(open(__file__))
def test_socket():
    kept.append(socket.socket())
@pytest.fixture(scope="session")
def shared_file():
    with open(__file__) as file:
        yield file
def test_shared_file(shared_file): ...
def test_failing_block():
    with subprocess.Popen(["sleep", "1000"]):
        raise ValueError
def test_unclosed():
    socket.socket()
def test_warning():
    warnings.warn('old', DeprecationWarning)
def test_nothing():
    leftovers.SOON = SOON
    threading.Thread(target=int).start()
def test_missed():  # by one of the listings
    listed, calls = leftovers.children, itertools.count()
    leftovers.children = lambda: set() if next(calls) == 50 else listed()
    kept.append(subprocess.Popen(["sleep", "0.3"]))
"""
UNKNOWN = "import pytest\n@pytest.mark.statment('S0-01')\ndef test_it(): ...\n"


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """The output of a run with many failures, and the outcomes that it lists."""
    example = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    files = {"README.md": example, "test_it.py": FAILING, "test_unknown.py": UNKNOWN}
    project = made(tmp_path_factory.mktemp("failures"), files)
    done = run(project, *files, "--continue-on-collection-errors", "-p", "no:randomly")
    assert done.returncode == 1, done.stdout
    outcomes = re.findall(r"^(ERROR|FAILED) (?:\S+::test_)?(\S+)", done.stdout, re.MULTILINE)
    return done.stdout, set(outcomes)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_leftover_of_a_test_fails_it(failures):
    output, outcomes = failures
    left = ["thread", "process", "grandchild", "file", "socket"]
    assert outcomes >= {("ERROR", name) for name in left} | {
        ("FAILED", "failing_block"),
        ("FAILED", "unclosed"),
    }
    assert "ResourceWarning: unclosed <socket.socket" in output
    assert re.search(r"the open '/.*/test_it.py'\n", output)
    assert re.search(r"the open 'socket:.*'\n", output)
    assert {name for _, name in outcomes}.isdisjoint(["killed", "shared_file", "nothing", "missed"])


def test_example_with_another_result_fails(failures):
    assert "- 3" in failures[0]
    assert "+ 2" in failures[0]


def test_warning_is_an_error(failures):
    output, outcomes = failures
    assert ("FAILED", "warning") in outcomes
    assert "DeprecationWarning: old" in output


def test_unknown_mark_is_an_error(failures):
    output, outcomes = failures
    assert ("ERROR", "test_unknown.py") in outcomes
    assert "'statment' not found in `markers`" in output


def test_watchdog_begins_again_with_the_limit_of_each_test(failures):
    assert "the watchdog has 71 s" in failures[0]


def test_watchdog_ends_a_process_that_hangs():
    program = (
        "import sys, time; from tests.support.leftovers import Watchdog; Watchdog.MARGIN = 0.05\n"
        "def hangs(): time.sleep(1000)  # the watchdog ends it\n"
        "Watchdog(sys.stderr).reset(0.05); hangs()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, "in hangs" in done.stderr) == (1, True)
