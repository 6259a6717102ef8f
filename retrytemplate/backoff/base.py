"""The protocol of backoffs, the backoff without delays, and checks of delays."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from attrs import evolve, field, frozen

from retrytemplate._internal import validation
from retrytemplate._internal.values import JSON, Value

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = [
    "JSON",
    "MAX_DELAY",
    "Backoff",
    "NoBackoff",
    "NumbersBackoff",
    "RandomSource",
    "as_float",
    "check_factor",
]


class RandomSource(Protocol):
    """A source of random numbers, such as ``random.Random``."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...


class Backoff(Value, ABC):
    """Computes the delay before the next attempt.  Immutable, like a policy.

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
    """Whether every delay is zero, so that no wait takes place."""

    @abstractmethod
    def start(self) -> JSON:
        """The state at the start of an execution; it is kept as long as the context."""

    @abstractmethod
    def next(
        self, state: JSON, failure: BaseException, random: RandomSource
    ) -> tuple[float | None, JSON]:
        """The delay in seconds (None: do not retry), and the next state."""

    @property
    def dynamic(self) -> bool:
        """Whether the backoff has numbers that are read at run time."""
        return type(self).resolved is not Backoff.resolved

    def resolved(self) -> Backoff:
        """The backoff with every run-time number read; the backoff itself if it has none."""
        return self


@frozen(eq=False, repr=False)
class NoBackoff(Backoff):
    """No delay: the next attempt follows immediately.

    Source: ``org.springframework.retry.backoff.NoBackOffPolicy``.

    >>> NoBackoff().never_waits
    True
    """

    never_waits = True

    def start(self) -> JSON:
        return None

    def next(
        self, state: JSON, failure: BaseException, random: RandomSource
    ) -> tuple[float | None, JSON]:
        return 0.0, state


@frozen(eq=False, repr=False)
class NumbersBackoff(Backoff):
    """Base of the backoffs whose numbers may be read at run time."""

    never_waits: bool = field(init=False, eq=False, repr=False)
    _dynamic: bool = field(init=False, eq=False, repr=False)

    @property
    def dynamic(self) -> bool:
        return self._dynamic

    def resolved(self) -> Self:
        return evolve(self, **validation.read_numbers(self)) if self._dynamic else self


MAX_DELAY = sys.float_info.max
"""The largest delay, since JSON has no infinity."""


def as_float(value: validation.Seconds | Callable[..., validation.Seconds]) -> Any:
    """A ``timedelta`` or an int as a float; other values unchanged, for the validator."""
    number: Any = validation.to_seconds(value)
    if isinstance(number, int) and not isinstance(number, bool):
        try:
            return float(number)
        except OverflowError:
            return number
    return number


def check_factor(name: str, value: Any) -> None:
    """Raise unless the value is a finite number of at least one."""
    validation.check_at_least(name, value, 1, finite=True)
