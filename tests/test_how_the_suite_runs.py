"""The suite's own rules, tried on a small project that has them."""

import os
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
