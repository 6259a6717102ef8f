"""The backend of a circuit breaker in this process, and the snapshot of a circuit."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.locks import Monitor, Reentered
from retrytemplate.control.breaker.state_machine import (
    OPEN_TO_ALL,
    CircuitStateMachine,
    ManualOverride,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.control.breaker.state_machine import (
        CircuitConfig,
        SavedState,
        State,
        Verdict,
    )

    # The permit (0: none is counted; None: no call now), in which generation, the state, and
    # seconds until it is worth to ask again.
    Admission = tuple[Any, Any, State, float | None]


class LocalBackend:
    """A circuit of this process.  Only the rules run inside the monitor.

    :param jitter: from the previous factor of the open time, the next; called outside of the
        monitor.
    """

    does_io = False

    def __init__(
        self,
        rules: CircuitConfig,
        jitter: Callable[[float | None], float],
        pending_events: list[Any] | None = None,
    ) -> None:
        self.pending_events: list[Any] = [] if pending_events is None else pending_events
        self.fast_path = self.circuit = CircuitStateMachine(
            rules, jitter_factor=jitter(None), changes=self.pending_events
        )
        self._jitter = jitter
        self._monitor = Monitor()

    def admit(self, now: float) -> Admission:
        """A permit, or none."""
        circuit = self.circuit
        closed = circuit.closed
        if closed is not None:  # nothing is written: as a wrapped function does
            return 0, closed.generation, "closed", None
        rejecting = circuit.rejecting
        if rejecting is not None:
            state, until = rejecting
            if now < until:  # only a count is written: it needs no lock
                self._monitor.defer(circuit.reject)
                return None, None, state, None if until == inf else until - now
        try:
            return self._monitor.run(self._admit, now)
        except Reentered:
            return self._admit_by_state(now)

    admit_without_io = admit

    def _admit(self, now: float) -> Admission:
        circuit = self.circuit
        number = circuit.admit(now)
        retry_after = circuit.retry_after(now) if number is None else None
        return number, circuit.generation, circuit.state, retry_after

    def _admit_by_state(self, now: float) -> Admission:
        """Admit or reject without a write: a state that needs a permit rejects."""
        circuit = self.circuit
        state, generation = circuit.state, circuit.generation
        if state in OPEN_TO_ALL:
            return 0, generation, state, None
        self._monitor.post(circuit.reject)
        return None, generation, state, circuit.retry_after(now)

    def report(
        self, generation: int, permit: int, verdict: Verdict, slow: bool, now: float
    ) -> bool:
        """Report the result of an admitted call; False: it is too late to count."""
        closed = self.circuit.closed
        if (
            closed is not None
            and generation == closed.generation
            and verdict == "success"
            and not slow
            and now < closed.fast_path_until
        ):  # nothing else is written: as a wrapped function does
            next(closed.fast_successes)
            return True
        counted = self._monitor.post(self.circuit.report, generation, permit, verdict, slow, now)
        return counted is not False

    report_without_io = report

    def count(self, verdict: Verdict, slow: bool, now: float) -> None:
        """Count a call that was admitted elsewhere."""
        self._monitor.post(self._count, verdict, slow, now)

    def _count(self, verdict: Verdict, slow: bool, now: float) -> None:
        self.circuit.report(self.circuit.generation, 0, verdict, slow, now)

    def drain_events(self) -> list[Any]:
        """The events since the last call of this method."""
        pending_events = []
        with suppress(IndexError):  # another thread may be faster
            while self.pending_events:
                pending_events.append(self.pending_events.pop(0))
        if pending_events:
            self.circuit.jitter_factor = self._jitter(self.circuit.jitter_factor)
        return pending_events

    def snapshot(self, name: str, now: float) -> CircuitSnapshot:
        """The present state and counts."""
        try:
            return self._monitor.run(self._counted, name, now)
        except Reentered:
            return circuit_snapshot(name, self.circuit, now, self.circuit.counter.known_calls)

    def _counted(self, name: str, now: float) -> CircuitSnapshot:
        self.circuit.expire(now)
        return circuit_snapshot(name, self.circuit, now, self.circuit.counted(now).calls)

    def force_state(
        self, state: State, by: str | None, reason: str | None, seconds: float | None, now: float
    ) -> None:
        """Force a state; closed: with no calls counted."""
        until = inf if seconds is None else now + seconds
        self._monitor.post(self.circuit.force_state, state, ManualOverride(by, reason), until)

    def saved(self, now: float) -> SavedState:
        """The present state, for another breaker."""
        return self._monitor.run(self.circuit.saved, now)

    def restore(self, saved: SavedState, now: float, with_window: bool) -> None:
        """Continue the state of another breaker."""
        self._monitor.post(self.circuit.restore, saved, now, with_window)

    def close(self) -> None:
        """Do nothing: the circuit holds no resources."""


# Above 0: calls are rejected.
GAUGES = {
    "metrics_only": -2,
    "disabled": -1,
    "closed": 0,
    "half_open": 1,
    "open": 2,
    "forced_open": 3,
}


@frozen(kw_only=True)
class CircuitSnapshot:
    """State and counts of a circuit.

    :param calls: those in the window, and how many of them were ``failures`` and ``slow``; of an
        open circuit those that opened it.
    :param retry_after: seconds until a call may be tried again; None: now, or unknown.
    :param probes: trial calls in progress; ``successes``: trial calls that succeeded.
    :param rejected: calls that were not made, ``late``: results that came after a change, and
        ``expired``: permits that were not released in time, all since the breaker was created.
    :param by: who put it into this state by hand, ``reason``: why.
    """

    name: str
    state: State
    generation: int
    calls: int
    failures: int
    slow: int
    retry_after: float | None
    probes: int
    successes: int
    rejected: int
    late: int
    expired: int
    by: str | None
    reason: str | None

    @property
    def gauge(self) -> int:
        """The state as a number for metrics, above 0 if calls are rejected.

        0 closed, 1 half_open, 2 open, 3 forced_open; -1 disabled, -2 metrics_only.

        >>> from retrytemplate.control import CircuitBreaker
        >>> breaker = CircuitBreaker("billing")
        >>> breaker.snapshot().gauge
        0
        >>> breaker.force_open(by="kim", reason="they asked us to")
        >>> breaker.snapshot().gauge
        3
        """
        return GAUGES[self.state]


def circuit_snapshot(
    name: str, circuit: CircuitStateMachine, now: float, calls: int
) -> CircuitSnapshot:
    """The snapshot of a circuit with these calls in its window."""
    counter, manual = circuit.counter, circuit.manual
    return CircuitSnapshot(
        name=name,
        state=circuit.state,
        generation=circuit.generation,
        calls=calls,
        failures=counter.failures,
        slow=counter.slow,
        retry_after=circuit.retry_after(now),
        probes=len(circuit.half_open_permits),
        successes=circuit.successes,
        rejected=circuit.rejected,
        late=circuit.late_results,
        expired=circuit.expired,
        by=None if manual is None else manual.by,
        reason=None if manual is None else manual.reason,
    )
