"""What a store says of a circuit: read strictly, and as the rules understand it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from retrytemplate.control.breaker.backend import GAUGES
from retrytemplate.control.breaker.state_machine import Change, Circuit, Manual
from retrytemplate.errors import CircuitStoreError

if TYPE_CHECKING:
    from retrytemplate.control.breaker.state_machine import Rules, State

__all__ = ["BY_HAND", "Seen", "change", "note_of", "restored", "seen_in"]

BY_HAND = ("forced_open", "disabled", "metrics_only")
FIELDS = 16
MICROSECONDS = 1_000_000


@frozen(kw_only=True)
class Seen:
    """A circuit as the store had it at a moment.

    :param now: that moment; ``since`` and *until*: when the state began, and when it ends; all on
        the store's clock, in seconds.
    :param era: what every change changes, in text; ``born`` and ``generation`` are its parts.
    :param probes: permits in hand; *granted*: whether one of them is what was asked for.
    :param late: whether what was reported was of another era.
    :param expired: permits that were found to be over.
    :param by: who put it into the state, where calls or time did not, and why.
    """

    now: float
    born: str
    generation: int
    state: State
    since: float
    until: float | None
    opened: int
    successes: int
    calls: int
    failures: int
    slow: int
    probes: int
    granted: bool
    late: bool
    expired: int
    by: str | None
    reason: str | None

    @property
    def era(self) -> str:
        return f"{self.born}.{self.generation}"

    @property
    def gauge(self) -> int:
        """The state as a number."""
        return GAUGES[self.state]

    @property
    def left(self) -> float | None:
        """Seconds until the state ends; None: until somebody ends it."""
        return None if self.until is None else max(0.0, self.until - self.now)

    @property
    def retry_after(self) -> float | None:
        """Seconds until it is worth to ask again; None: nobody knows."""
        return self.left if self.state in ("open", "forced_open") else None

    @property
    def quiet(self) -> bool:
        """Whether a success in time changes nothing but the number of calls."""
        return not (self.failures or self.slow)

    @property
    def manual(self) -> Manual | None:
        """By whom and why, where it was done by hand."""
        if self.by is None and self.reason is None and self.state not in BY_HAND:
            return None
        return Manual(self.by, self.reason, self.until)


@define
class _Tally:
    """What the store has counted, as the rules look at it."""

    calls: int
    failures: int
    slow: int
    quiet: float = -inf


def restored(rules: Rules, seen: Seen, stretch: float) -> Circuit:
    """The circuit that the rules are asked about."""
    circuit = Circuit(
        rules,
        stretch,
        seen.state,
        seen.generation,
        until=seen.until or 0.0,
        opened=seen.opened,
        successes=seen.successes,
        manual=seen.manual if seen.state in BY_HAND else None,
    )
    circuit.counter = _Tally(seen.calls, seen.failures, seen.slow)  # type: ignore[assignment]
    circuit.closed = None
    return circuit


def seen_in(name: str, reply: Any) -> Seen:
    """What the store has answered.

    :raises CircuitStoreError: that is no circuit.
    """
    try:
        *numbers, note = reply.decode().split("\n", FIELDS - 1)
        now, born, generation, state, since, until, *counts = numbers
        opened, successes, calls, failures, slow, probes, granted, late, expired = map(int, counts)
        if state not in GAUGES or opened < 0:
            raise ValueError(state, opened)
        by, reason = _noted(note)
        return Seen(
            now=int(now) / MICROSECONDS,
            born=born,
            generation=int(generation),
            state=state,
            since=int(since) / MICROSECONDS,
            until=int(until) / MICROSECONDS if until else None,
            opened=opened,
            successes=successes,
            calls=calls,
            failures=failures,
            slow=slow,
            probes=probes,
            granted=granted == 1,
            late=late == 1,
            expired=expired,
            by=by,
            reason=reason,
        )
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise CircuitStoreError(
            f"what is stored as the circuit {name!r} is none, or one of another version"
        ) from None


def note_of(by: str | None, reason: str | None) -> str:
    """Who and why, as it is stored."""
    import json

    return "" if by is None and reason is None else json.dumps([by, reason])


def _noted(text: str) -> tuple[str | None, str | None]:
    if not text:
        return None, None
    import json

    by, reason = json.loads(text)
    for each in (by, reason):
        if not isinstance(each, str | None):
            raise TypeError(each)
    return by, reason


def change(before: State, seen: Seen) -> Change:
    """What those who listen are told."""
    return Change(before, seen.state, seen.generation, seen.manual)
