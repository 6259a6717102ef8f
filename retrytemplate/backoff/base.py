"""What a backoff is: the seam to write one's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from retrytemplate._values import JSON, Value

__all__ = ["JSON", "Backoff", "RandomSource"]


class RandomSource(Protocol):
    """What a backoff needs of chance: ``random.Random`` has it."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...


class Backoff(Value, ABC):
    """How long to wait before the next attempt.  Frozen and shareable, like a policy.

    >>> class OneMoreSecond(Backoff):
    ...     def start(self):
    ...         return 1.0
    ...     def next(self, state, failure, random):
    ...         return state, state + 1.0
    >>> OneMoreSecond().next(3.0, OSError(), None)
    (3.0, 4.0)

    Source: ``org.springframework.retry.backoff.BackOffPolicy``.
    """

    never_waits: bool = False
    """True only for a backoff whose every delay is zero: the wait is left out altogether."""

    @abstractmethod
    def start(self) -> JSON:
        """The state at the beginning; it lives as long as the context does."""

    @abstractmethod
    def next(
        self, state: JSON, failure: BaseException, random: RandomSource
    ) -> tuple[float | None, JSON]:
        """The delay in seconds (None: do not retry), and the state after it."""

    @property
    def dynamic(self) -> bool:
        """Whether ``resolved`` has anything to do."""
        return type(self).resolved is not Backoff.resolved

    def resolved(self) -> Backoff:
        """The backoff with every run-time number read; itself where there is none."""
        return self
