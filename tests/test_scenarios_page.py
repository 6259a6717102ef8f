"""The page of scenarios: what the reference did, and what steps of ours do now."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.documentation

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/batch/scenarios.md")


def run(root, *arguments):
    """In a process of its own: the tool forks."""
    return subprocess.run(
        [sys.executable, root / "tools/scenarios.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def project(tmp_path):
    """A copy of the tool and of its input."""
    for path in (Path("tools/scenarios.py"), PAGE.with_suffix(".toml")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def test_page_of_scenarios_equals_the_behaviour_of_steps():
    done = run(ROOT, "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_page_fails_the_check_and_is_not_created(project):
    done = run(project, "--check")
    assert done.returncode == 1
    assert "run python tools/scenarios.py" in done.stderr
    assert not (project / PAGE).exists()


def test_page_is_made_of_the_listed_scenarios(project):
    listed = project / PAGE.with_suffix(".toml")
    listed.write_text(listed.read_text().replace("until the cache of counts is full", "the end"))
    assert run(project).returncode == 0
    assert "attempts to write, the end | not measured |" in (project / PAGE).read_text()


def test_scenario_without_a_run_is_rejected(project):
    listed = project / PAGE.with_suffix(".toml")
    listed.write_text(listed.read_text().replace("[L]", "[Z]"))
    done = run(project)
    assert done.returncode == 1
    assert "listed are A, B, C, D, E, F, G, H, I, J, K, Z; run are A" in done.stderr
