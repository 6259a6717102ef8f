"""The worked example of the documentation: messages whose workers are killed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "handle_messages.py"
WORKER = re.compile(r"the attempt of \S+ was lost")


def messages(lines):
    """The sorted output: the order of the messages depends on the leases."""
    return sorted(WORKER.sub("the attempt of a worker was lost", line) for line in lines)


def documented():
    page = (ROOT / "docs" / "guide" / "durable.md").read_text(encoding="utf-8")
    (block,) = re.findall(
        r"```bash\n\$ python examples/handle_messages.py.*\n((?:.+\n)+?)```", page
    )
    return block.splitlines()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.stress)])
def test_every_order_is_stored_once_and_the_poison_is_dead_lettered(kind, tmp_path, request):
    url = f"sqlite:///{tmp_path}/messages.db"
    if kind == "postgresql":
        url = request.getfixturevalue("postgres_url")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, EXAMPLE, url],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert messages(done.stdout.splitlines()) == messages(documented())
