"""The lines of ``install()`` in the log of a user's program."""

import subprocess
import sys

PROGRAM = """
import logging
from contextlib import suppress

from retrytemplate import (
    AttemptTimeoutError, ExhaustedRetryError, FixedBackoff, RetryState, RetryTemplate,
    SimpleRetryPolicy, observe,
)
from retrytemplate.control import CircuitBreaker, Consecutive
from retrytemplate.testing import VirtualClock

logging.basicConfig(level="INFO", format="%(levelname)-7s %(message)s")
clock = VirtualClock()
charge = RetryTemplate(SimpleRetryPolicy(4), FixedBackoff(0.2), name="charge", clock=clock)
fetches = RetryTemplate(SimpleRetryPolicy(4, not_on=AttemptTimeoutError), clock=clock)
orders = RetryTemplate(SimpleRetryPolicy(3), name="orders", clock=clock)
billing = CircuitBreaker("billing", window=Consecutive(1), reset_jitter=0, clock=clock)


def pay_invoice(context):
    clock.advance(0.65)
    raise ConnectionError("reset\\nby the server")


def fetch(context):
    clock.advance(0.1)
    raise AttemptTimeoutError("longer than 10 s")


def handle(context):
    raise ValueError("bad row")


observe.install(clock=clock)
with suppress(ExhaustedRetryError):
    charge.execute(pay_invoice, state=RetryState("order-17", rollback_for=lambda error: False))
with suppress(AttemptTimeoutError):
    fetches.execute(fetch)
for _ in range(3):
    with suppress(ValueError):
        orders.execute(handle, state=RetryState("m-9"), recovery=lambda context: None)
with suppress(ConnectionError):
    billing.call(pay_invoice, None)
clock.advance(2)
pay_invoice = billing.wrap(pay_invoice)
for _ in range(4813):
    charge.outcome(pay_invoice, None)
"""

# Without metrics a first attempt is not timed, so the third line has no duration.
LINES = """\
WARNING charge (shop.pay_invoice) key=order-17: attempt 1 of 4 failed: ConnectionError: reset; \
next attempt in 0.2 s
WARNING charge (shop.pay_invoice) key=order-17: gave up after attempt 4 of 4 in 3.2 s: \
ConnectionError: reset; reason: attempts exhausted
WARNING shop.fetch: gave up after attempt 1 of 4: AttemptTimeoutError: longer than 10 s; \
reason: not retryable
WARNING orders (shop.handle) key=m-9: attempt 3 of 3 failed: ValueError: bad row; \
the next delivery runs the recovery
INFO    charge (shop.pay_invoice): rejected by circuit breaker billing; retry after 28 s
INFO    charge (shop.pay_invoice): rejected by circuit breaker billing 4812 times in 10 s
WARNING circuit breaker billing: closed -> open
""".splitlines()


def test_program_without_further_settings_writes_the_documented_lines(tmp_path):
    (tmp_path / "shop.py").write_text(PROGRAM)
    command = [sys.executable, "-c", "import shop"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    written = done.stderr.splitlines()
    assert [each for each in LINES if each not in written] == [], done.stderr
