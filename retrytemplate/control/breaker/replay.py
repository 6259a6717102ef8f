"""Replay of recorded calls through a circuit breaker, to find its settings."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from attrs import define, evolve, field, fields, frozen

from retrytemplate._internal.validation import (
    check_choice,
    check_delay,
    check_number,
    checked_by,
    to_seconds,
)
from retrytemplate.control.breaker.breaker import CircuitBreaker
from retrytemplate.control.breaker.events import CircuitChanged
from retrytemplate.control.breaker.permit import Permit
from retrytemplate.control.events import ControlListener
from retrytemplate.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from retrytemplate.control.events import ControlEvent

__all__ = ["RecordedCall", "Replayed", "replay"]

Ended = Literal["success", "failure", "ignored", "cancelled"]
SAY = {
    "success": Permit.success,
    "failure": Permit.failure,
    "ignored": Permit.ignore,
    "cancelled": Permit.cancel,
}


# Beyond it a float is less exact than a tenth of a second.
FARTHEST = 1e15
MOMENT = f"a number of seconds from {-FARTHEST:g} to {FARTHEST:g}"


def _moment(name: str, value: Any) -> None:
    check_number(name, value, MOMENT, lambda moment: -FARTHEST <= moment <= FARTHEST)


@frozen
class RecordedCall:
    """A call that was made without the breaker.

    :param time: when it began, in seconds from any moment.
    :param duration: seconds that it took.
    :param outcome: ``"success"``, ``"failure"``, or what counts for nothing, ``"ignored"`` and
        ``"cancelled"``.
    :raises ValueError: a time or an outcome is not valid, or a time is beyond 1e15.

    >>> RecordedCall(17.0, 0.2, "success").outcome
    'success'
    """

    time: float = field(validator=checked_by(_moment))
    duration: float = field(converter=to_seconds, validator=checked_by(check_delay))
    outcome: Ended = field(validator=checked_by(check_choice, *SAY))


@frozen(kw_only=True)
class Replayed:
    """Effect of a circuit breaker on recorded calls.

    :param calls: number of recorded calls; ``recorded_failures``: number of those that failed.
    :param opened: transitions from closed; ``reopened``: transitions from half-open to open.
    :param seconds: total time for which the circuit would not have been closed.
    :param rejected: number of calls that the breaker would have rejected; ``rejected_successes``
        of them succeeded when they were recorded, ``rejected_failures`` failed.
    """

    calls: int
    recorded_failures: int
    opened: int
    reopened: int
    seconds: float
    rejected: int
    rejected_successes: int
    rejected_failures: int

    @property
    def failures(self) -> int:
        """Recorded failures that the breaker would have admitted."""
        return self.recorded_failures - self.rejected_failures


def replay(
    breaker: CircuitBreaker, calls: Iterable[RecordedCall | tuple[float, float, Ended]]
) -> Replayed:
    """Replay recorded calls through a breaker of the same settings.

    :param breaker: the settings; this one itself sees nothing of it.
    :param calls: the recording, in any order; each a ``RecordedCall``, or a tuple of its fields.

    The recorded service does not know of the breaker.  In truth one that fails under load gets well
    sooner when it is spared.

    >>> from retrytemplate.control import Consecutive
    >>> breaker = CircuitBreaker("billing", window=Consecutive(2), reset_timeout=5, reset_jitter=0)
    >>> calls = [(each, 0.1, "failure" if each in (3, 4) else "success") for each in range(20)]
    >>> seen = replay(breaker, calls)
    >>> seen.opened, seen.rejected_successes, round(seen.seconds, 1)
    (1, 5, 8.0)
    """
    if not isinstance(breaker, CircuitBreaker):
        raise TypeError(f"breaker must be a CircuitBreaker, got {breaker!r}")
    clock = VirtualClock()
    watch, tape = _Watch(clock), _Tape(clock)
    other: dict[str, Any] = {"clock": clock, "listeners": (watch,), "store": None}
    tried = evolve(breaker, **other)
    recorded, rejected = Counter[str](), Counter[str]()
    for call in sorted(map(_call, calls), key=attrgetter("time")):
        tape.wind(call.time)
        recorded[call.outcome] += 1
        permit = tried.permit()
        if permit.acquire() is None:
            tape.begin(call, permit)
        else:
            rejected[call.outcome] += 1
    tape.wind(inf)
    return Replayed(
        calls=recorded.total(),
        recorded_failures=recorded["failure"],
        opened=watch.opened,
        reopened=watch.reopened,
        seconds=watch.in_all(),
        rejected=rejected.total(),
        rejected_successes=rejected["success"],
        rejected_failures=rejected["failure"],
    )


def _call(value: Any) -> RecordedCall:
    if isinstance(value, RecordedCall):
        return value
    if isinstance(value, tuple) and len(value) == len(fields(RecordedCall)):
        return RecordedCall(*value)
    raise TypeError(f"calls: each must be a RecordedCall or a tuple of its fields, got {value!r}")


@define
class _Tape:
    """Advances the clock through the recording, and ends the calls."""

    clock: VirtualClock
    began: float | None = None
    going: list[tuple[float, int, Permit, Ended]] = field(factory=list)
    numbers: Iterator[int] = field(factory=count)

    def begin(self, call: RecordedCall, permit: Permit) -> None:
        """Register a call that begins now."""
        ends = call.time + call.duration
        heappush(self.going, (ends, next(self.numbers), permit, call.outcome))

    def wind(self, until: float) -> None:
        """End the calls that are over by then, in the order of their ends."""
        while self.going and self.going[0][0] <= until:
            ends, _, permit, outcome = heappop(self.going)
            self._move(ends)
            SAY[outcome](permit)
        if until < inf:
            self._move(until)

    def _move(self, to: float) -> None:
        if self.began is None:
            self.began = to
        self.clock.advance(max(0.0, to - self.began - self.clock.monotonic()))


class _Watch(ControlListener):
    """Counts the transitions of a circuit, and the time for which it is not closed."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.opened = self.reopened = 0
        self.seconds = 0.0
        self.since: float | None = None

    def on_event(self, event: ControlEvent) -> None:
        if not isinstance(event, CircuitChanged):
            return
        if event.before == "closed":
            self.opened += 1
            self.since = self.clock.monotonic()
        elif event.after == "open":
            self.reopened += 1
        elif event.after == "closed":
            self.seconds, self.since = self.in_all(), None

    def in_all(self) -> float:
        """Seconds for which it was not closed so far."""
        going_on = 0.0 if self.since is None else self.clock.monotonic() - self.since
        return self.seconds + going_on
