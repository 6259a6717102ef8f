"""Run a backoff delay by delay, with its state converted to JSON at every step."""

from __future__ import annotations

from random import Random
from typing import Any

from retrytemplate import Backoff
from tests.support.pickling import restored

FAILURE = ValueError("any")


def delays(backoff: Backoff, count: int, random: Any = None, failure: BaseException = FAILURE):
    """The first delays of one execution, drawn from *random*."""
    random = random or Random(0)
    state, values = restored(backoff.start()), []
    for _ in range(count):
        delay, state = backoff.next(state, failure, random)
        state = restored(state)
        values.append(delay)
    return values
