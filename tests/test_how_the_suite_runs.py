"""The suite's own rules, tried on a small project that has them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def project(tmp_path):
    for name in ("conftest.py", "setup.cfg"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


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


def test_in_ci_a_test_that_did_not_run_fails_the_run(project):
    (project / "test_it.py").write_text(
        "import pytest\n@pytest.mark.skipif(True, reason='no server')\ndef test_it(): ...\n"
    )
    assert run(project, "test_it.py").returncode == 0
    strict = run(project, "test_it.py", CI="true")
    assert strict.returncode == (1 if sys.platform == "linux" else 0), strict.stdout


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_the_examples_of_a_page_keep_their_order_in_every_shuffle(project, seed):
    steps = "".join(
        f"Step {n}:\n```python\nassert last == {n - 1}\nlast = {n}\n```\n" for n in range(9)
    )
    (project / "README.md").write_text(f"```python\nlast = -1\n```\n{steps}")
    (project / "test_it.py").write_text("def test_a(): ...\ndef test_b(): ...\n")
    done = run(project, "README.md", "test_it.py", f"--randomly-seed={seed}")
    assert f"--randomly-seed={seed}" in done.stdout
    assert "12 passed" in done.stdout, done.stdout


LEAVING = """
import socket, subprocess, sys, threading
kept = []
def test_thread():
    kept.append(threading.Event())
    threading.Thread(target=kept[-1].wait, name="left", daemon=True).start()
def test_process():
    kept.append(subprocess.Popen(["sleep", "1000"]))
def test_grandchild():
    child = "import subprocess; subprocess.Popen(['sleep', '1000'])"
    subprocess.run([sys.executable, "-W", "ignore", "-c", child], check=True)
def test_failing_block():
    with subprocess.Popen(["sleep", "1000"]):
        raise ValueError
def test_unclosed():
    socket.socket()
def test_nothing():
    threading.Thread(target=int).start()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_test_that_leaves_something_behind_fails(project):
    (project / "test_it.py").write_text(LEAVING)
    done = run(project, "test_it.py", "-p", "no:randomly", "--tb=line")
    outcomes = set(re.findall(r"^(\w+) test_it.py::test_(\w+)", done.stdout, re.MULTILINE))
    left = ["thread", "process", "grandchild"]
    assert outcomes >= {("ERROR", name) for name in left} | {
        ("FAILED", "failing_block"),
        ("FAILED", "unclosed"),
    }
    assert "ResourceWarning: unclosed <socket.socket" in done.stdout
    assert ("FAILED", "nothing") not in outcomes
    assert done.returncode == 1


def test_watchdog_ends_a_process_that_hangs():
    program = (
        "import sys, time; from tests.leftovers import Watchdog; Watchdog.MARGIN = 0.05\n"
        "def hangs(): time.sleep(1000)\n"
        "Watchdog(sys.stderr).reset(0.05); hangs()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, "in hangs" in done.stderr) == (1, True)


def test_every_example_is_run_so_a_wrong_one_fails(project):
    (project / "README.md").write_text("```python\n>>> 1 + 1\n3\n```\n")
    done = run(project, "README.md")
    assert done.returncode == 1
    assert "Expected:\n    3\nGot:\n    2" in done.stdout


def test_a_warning_and_an_unknown_mark_are_errors(project):
    (project / "test_it.py").write_text(
        "import warnings\ndef test_it():\n    warnings.warn('old', DeprecationWarning)\n"
    )
    assert "DeprecationWarning: old" in run(project, "test_it.py").stdout
    (project / "test_it.py").write_text(
        "import pytest\n@pytest.mark.statment('S0-01')\ndef test_it(): ...\n"
    )
    assert "'statment' not found in `markers`" in run(project, "test_it.py").stdout
