"""The first use of an object, interrupted by a signal handler that uses it."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "support" / "half_imported.py"
SETUP = """
from itertools import count
from retrytemplate import RetryState, RetryTemplate

keys = count()

def fails(*arguments):
    raise ConnectionError("reset")

class Busy(ConnectionError):
    class response:
        status_code = 503
        headers = {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}

def busy():
    raise Busy
"""

FIRST_USES = {
    "a backoff": (
        "from retrytemplate import FixedBackoff\nt = RetryTemplate(backoff=FixedBackoff(0.0001))",
        "t.call(fails)",
    ),
    "a listener": (
        "from retrytemplate import LoggingListener as L\nt = RetryTemplate(listeners=[L()])",
        "t.call(fails)",
    ),
    "an outcome": ("t = RetryTemplate()", "t.outcome(fails)"),
    "a failure that is kept": (
        "t = RetryTemplate()",
        "t.execute(fails, state=RetryState(next(keys)))",
    ),
    "a success that is kept": (
        "t = RetryTemplate()",
        "t.execute(lambda context: 1, state=RetryState(next(keys), remember=60))",
    ),
    "a date in Retry-After": (
        "from retrytemplate import NoBackoff, RetryAfterBackoff\n"
        "t = RetryTemplate(backoff=RetryAfterBackoff(NoBackoff()))",
        "t.call(busy)",
    ),
    "an operation": (
        "from retrytemplate.control import Operations\no = Operations()",
        "o.call(str(next(keys)), int)",
    ),
    "a preset": (
        "from retrytemplate.control import FAST_IO\n"
        "t = FAST_IO.with_(initial=0.0001, maximum=0.0001, jitter=None).template()",
        "t.call(fails)",
    ),
}


def attacked(setup, use):
    """The number of places that were attacked, and the errors."""
    command = [sys.executable, "-P", "-W", "ignore", str(PROGRAM), setup, use]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    places, *errors = done.stdout.splitlines()
    return int(places), errors


@pytest.mark.parametrize("subject", FIRST_USES)
def test_first_use_in_a_signal_handler_meets_no_half_imported_module(subject):
    setup, use = FIRST_USES[subject]
    assert attacked(SETUP + setup, use)[1] == []


def test_attack_finds_a_module_that_is_imported_at_the_first_use():
    setup = "def use():\n    from random import Random"
    places, errors = attacked(setup, "use()")
    assert places > 10
    assert errors[0].startswith("random:1 ImportError: cannot import name 'Random'")
