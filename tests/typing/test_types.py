"""Type checkers accept the typing examples.

The files beside this one are read by the checkers and never run; CI reads them with pyright, too.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# Two checkers read the whole library, and others may be at work beside them.
pytestmark = [pytest.mark.timeout(300), pytest.mark.typing]

WRONG = """
from typing import assert_type
from retrytemplate import RetryTemplate

@RetryTemplate().wrap
def fetch(url: str) -> bytes: return b""

assert_type(fetch("page"), str)
"""


# The types of other packages are read where CI checks the same files, with the library: here they
# would take most of the time.
SETTINGS = """
[mypy]
strict = True
[mypy-retrytemplate.*]
follow_imports = silent
[mypy-aiosqlite.*,httpx.*,langgraph.*,matplotlib.*,numpy.*,psycopg.*,redis.*,rich.*,sqlalchemy.*]
follow_imports = skip
"""


def checked(*paths: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    settings = cache / "mypy.ini"
    settings.write_text(SETTINGS)
    return subprocess.run(
        [
            *(sys.executable, "-m", "mypy", f"--config-file={settings}", f"--cache-dir={cache}"),
            *map(str, paths),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.statement("S0-04")
def test_types_survive_every_entry_point_of_a_template(cache: Path) -> None:
    done = checked(*sorted(HERE.glob("[!_]*.py")), cache=cache)
    assert done.returncode == 0, done.stdout + done.stderr


def test_type_that_does_not_survive_is_found(cache: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    done = checked(wrong, cache=cache)
    assert "assert-type" in done.stdout, done.stdout + done.stderr
