"""Interrupts of a command that runs a step."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOP_NOTICE = "ends after this chunk; interrupt once more to end at once"


def print_stderr(text: str) -> None:
    """Print a line on standard error; safe in a signal handler, because it takes no lock."""
    os.write(2, f"{text}\n".encode())


@contextmanager
def stopped_by_signals(stop: Callable[[], None], notice: Callable[[str], None]) -> Iterator[None]:
    """Stop the step at the first signal, interrupt it at the second, end the process at the third.

    If a signal arrived, the process ends soon after the block: the next signal ends it at once.

    :param stop: called in the signal handler, like *notice*; both must take no lock.
    """
    received = 0

    def handle(number: int, frame: Any) -> None:
        nonlocal received
        received += 1
        if received == 1:
            stop()
            notice(STOP_NOTICE)
        elif received == 2:
            raise KeyboardInterrupt
        else:
            os._exit(INTERRUPTED)

    # A shell starts background processes with SIGINT ignored: it stays ignored.
    heeded = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, handle) for each in heeded}
    try:
        yield
    finally:
        if received:
            received = max(received, 2)
        else:
            for each, handler in before.items():
                signal.signal(each, handler)
