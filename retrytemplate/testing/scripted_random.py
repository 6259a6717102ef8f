"""Random numbers from a list."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from retrytemplate._internal.validation import check_at_least

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ScriptedRandom"]


class ScriptedRandom:
    """A random source that returns the numbers of a list, in order.

    :param values: the results of ``random()``, each in [0, 1).
    :param cycle: start again after the last number, instead of an ``AssertionError``.

    ``drawn`` counts the numbers returned so far.

    >>> from retrytemplate import ExponentialBackoff, RetryTemplate
    >>> from retrytemplate.testing import VirtualClock
    >>> clock = VirtualClock()
    >>> template = RetryTemplate(
    ...     backoff=ExponentialBackoff(initial=1.0, jitter="full"),
    ...     clock=clock,
    ...     random=ScriptedRandom([0.5, 0.75]),
    ... )
    >>> template.outcome(int, "seventeen").ok
    False
    >>> clock.sleeps
    [0.5, 1.5]
    """

    def __init__(self, values: Iterable[float], *, cycle: bool = False) -> None:
        self.values = tuple(values)
        for value in self.values:
            check_at_least("values", value, 0, allowed="numbers in [0, 1)")
            if value >= 1:
                raise ValueError(f"values must be numbers in [0, 1), got {value!r}")
        if cycle and not self.values:
            raise ValueError("values must hold at least one number to cycle through, got none")
        self.cycle = cycle
        self.drawn = 0
        self._lock = threading.RLock()

    def random(self) -> float:
        """Return the next number of the script."""
        with self._lock:
            turn = self.drawn
            if turn >= len(self.values) and not self.cycle:
                raise AssertionError(f"ScriptedRandom: all {turn} numbers are used up")
            self.drawn += 1
        return self.values[turn % len(self.values)]

    def __repr__(self) -> str:
        return f"ScriptedRandom({list(self.values)!r}, cycle={self.cycle}), {self.drawn} drawn"
