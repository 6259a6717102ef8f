"""An interrupt at any instruction leaves no thread, and no lock that a thread waits for."""

import subprocess
import sys

import pytest

# How many instructions are passed over: a whole run takes longer than the others.
STRIDES = {
    "attempt": 1,
    "chunk": 1,
    "following": 1,
    "hedged": 2,
    "last_step": 1,
    "permit": 1,
    "service": 3,
    "step": 9,
    "waiter": 1,
}


@pytest.mark.parametrize("scenario", STRIDES)
def test_interrupt_anywhere_leaves_no_thread_or_lock(scenario):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.interrupts", scenario, str(STRIDES[scenario])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
