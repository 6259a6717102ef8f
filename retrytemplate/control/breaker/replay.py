"""What a circuit breaker would have done to calls that were recorded: to find its settings."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, get_args

from attrs import define, evolve, field, fields, frozen

from retrytemplate._internal.validation import check_at_least, check_delay, checked_by, to_seconds
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
    check_at_least(name, value, -FARTHEST, allowed=MOMENT)
    if value > FARTHEST:
        raise ValueError(f"{name} must be {MOMENT}, got {value!r}")


def _ended(name: str, value: Any) -> None:
    if value not in get_args(Ended):
        raise ValueError(f"{name} must be one of {', '.join(get_args(Ended))}, got {value!r}")


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
    outcome: Ended = field(validator=checked_by(_ended))


@frozen(kw_only=True)
class Replayed:
    """What a breaker would have done.

    :param calls: all that were recorded, and ``recorded_failures``: those of them that failed.
    :param opened: how often it would have opened, and ``reopened``: how often again when it looked.
    :param seconds: for which it would not have been closed, in all.
    :param rejected: calls that would not have been made; of them ``rejected_successes`` went well,
        which the breaker would have cost, and ``rejected_failures`` did not.
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
        """Those that it would have let through."""
        return self.recorded_failures - self.rejected_failures


def replay(
    breaker: CircuitBreaker, calls: Iterable[RecordedCall | tuple[float, float, Ended]]
) -> Replayed:
    """Let a breaker of the same settings see calls that were recorded.

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
    """Moves the clock along the recording, and lets the calls end."""

    clock: VirtualClock
    began: float | None = None
    going: list[tuple[float, int, Permit, Ended]] = field(factory=list)
    numbers: Iterator[int] = field(factory=count)

    def begin(self, call: RecordedCall, permit: Permit) -> None:
        """A call that is made, now."""
        ends = call.time + call.duration
        heappush(self.going, (ends, next(self.numbers), permit, call.outcome))

    def wind(self, until: float) -> None:
        """Let everything end that is over by then, in its order."""
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
    """Sees a circuit open and close."""

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
