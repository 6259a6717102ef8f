"""A backoff asked for one delay after the other, its state through JSON at every step."""

from __future__ import annotations

from random import Random
from typing import Any

from retrytemplate import Backoff
from tests.support.pickling import restored

FAILURE = ValueError("any")


def delays(backoff: Backoff, count: int, chance: Any = None, failure: BaseException = FAILURE):
    """The first delays of one execution, drawn from *chance*."""
    chance = chance or Random(0)
    state, told = restored(backoff.start()), []
    for _ in range(count):
        delay, state = backoff.next(state, failure, chance)
        state = restored(state)
        told.append(delay)
    return told
