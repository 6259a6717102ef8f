"""The rules of a circuit breaker: a state machine without a clock, threads and randomness.

The caller passes the time, and calls from one thread at a time.  A call is admitted before it runs
and reported after it ended, with a verdict: success, failure, ignored or cancelled.  Every change
of state starts a generation.  A report of an earlier generation is late and changes nothing, so a
slow call that was admitted while the circuit was closed cannot close or open it later.

Who may write what:

- One thread at a time writes the state machine and its counter.
- Any thread reads ``closed``, and counts a success there with ``fast_successes`` while the counter
  allows it.
- Any thread reads ``rejecting``, and rejects a call until the end of that state.

| state | event | next state | effect |
|---|---|---|---|
| closed | a success | closed | counted |
| closed | a failure below the thresholds | closed | counted |
| closed | a failure that reaches a threshold | open | counted |
| closed | a slow call that reaches a threshold | open | counted |
| closed | an ignored call | closed | not counted |
| closed | a result of an earlier generation | closed | late |
| open | a call before the end of the state | open | rejected |
| open | a call after the end of the state | half_open | admitted |
| half_open | a call with a free permit | half_open | admitted |
| half_open | a call without a free permit | half_open | rejected |
| half_open | a call after a permit expired | half_open | admitted |
| half_open | a success before the last required one | half_open | counted |
| half_open | the last required success | closed | counted |
| half_open | a failure | open | counted |
| half_open | a slow success | open | counted |
| half_open | a cancelled call | half_open | not counted |
| forced_open | a call before the end of the state | forced_open | rejected |
| forced_open | a call after the end of the state | closed | admitted |
| disabled | a failure that reaches a threshold | disabled | not counted |
| disabled | a call after the end of the state | closed | admitted |
| metrics_only | a failure that reaches a threshold | metrics_only | counted |
| metrics_only | a call after the end of the state | closed | admitted |

An operator may move the circuit from each state to each of forced_open, disabled, metrics_only and
closed.  While the circuit is half-open a permit limits the concurrent trial calls; an ignored or
cancelled call releases its permit without a transition, and a permit that is never reported
expires.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal

from attrs import define, field, frozen

from retrytemplate.control.breaker.window import FAILED, SLOW, Consecutive

if TYPE_CHECKING:
    from retrytemplate.control.breaker.window import Calls, Counter, Seconds

    Verdict = Literal["success", "failure", "ignored", "cancelled"]
    State = Literal["closed", "open", "half_open", "forced_open", "disabled", "metrics_only"]

OPEN_TO_ALL: tuple[State, ...] = ("closed", "disabled", "metrics_only")
"""The states in which a call needs no permit."""

REJECTING: tuple[State, ...] = ("open", "forced_open")
"""The states in which no call is admitted."""

# How often the open time has grown before it stops growing: no float is too small for it.
MAX_BACKOFF_EXPONENT = 64


@frozen
class CircuitConfig:
    """The settings of a circuit."""

    window: Calls | Seconds | Consecutive
    minimum_calls: int
    failure_rate: float
    slow_rate: float
    reset_timeout: float
    reset_growth: float
    reset_maximum: float
    half_open_calls: int
    required_successes: int
    permit_timeout: float


@frozen
class ManualOverride:
    """The operator who forced a state, and the reason."""

    by: str | None
    reason: str | None


@frozen
class StateTransition:
    """From one state to another.

    :param manual: by hand, and why.
    """

    before: State
    after: State
    generation: int
    manual: ManualOverride | None


@frozen
class SavedState:
    """The state of a machine that another one continues.

    :param remaining: seconds until the state ends by itself.
    """

    state: State
    remaining: float
    manual: ManualOverride | None
    consecutive_opens: int
    counter: Counter


@define(eq=False)
class CircuitStateMachine:
    """One circuit.  Every change of state begins a generation.

    A report for a call of another generation is late: it changes nothing.

    :param jitter_factor: the random factor of the next open time.
    :param counter: the window; while the circuit is open, the calls that opened it.
    :param closed: the same while it is closed, where any thread may look: a success is counted
        there at once, as long as the counter is quiet.
    :param rejecting: the state and its end, while it rejects every call; any thread may read it.
    """

    rules: CircuitConfig
    jitter_factor: float = 1.0
    state: State = "closed"
    generation: int = 0
    counter: Counter = field(init=False)
    closed: Counter | None = field(init=False)
    rejecting: tuple[State, float] | None = None
    until: float = inf  # when the state ends by itself
    consecutive_opens: int = 0  # times in a row, without a close between
    successes: int = 0
    half_open_permits: dict[int, float] = field(factory=dict)  # when each permit expires
    issued: int = 0
    manual: ManualOverride | None = None
    rejected: int = 0
    late_results: int = 0
    expired: int = 0
    changes: list[StateTransition] = field(factory=list)  # not reported to the listeners

    def __attrs_post_init__(self) -> None:
        self.counter = self.closed = self.rules.window.counter()

    # Before the call.

    def admit(self, now: float) -> int | None:
        """The number of the permit, 0 where none is counted; None: no call now."""
        self.expire(now)
        if self.state in OPEN_TO_ALL:
            return 0
        if self.state == "half_open":
            self._expire_permits(now)
            if len(self.half_open_permits) < self.rules.half_open_calls:
                self.issued += 1
                self.half_open_permits[self.issued] = now + self.rules.permit_timeout
                return self.issued
        self.reject()
        return None

    def reject(self) -> None:
        """Count a call that was not admitted."""
        self.rejected += 1

    def expire(self, now: float) -> None:
        """Apply the transition that is due by time."""
        if now < self.until:
            return
        if self.state == "open":
            self._transition_to("half_open")
        elif self.manual is not None:
            self.manual = None
            self._close()

    def _expire_permits(self, now: float) -> None:
        """Release the permits whose time is over; their reports are late."""
        gone = [number for number, until in self.half_open_permits.items() if now >= until]
        for number in gone:
            del self.half_open_permits[number]
        self.expired += len(gone)

    def retry_after(self, now: float) -> float | None:
        """Seconds until a call may be admitted; None: unknown."""
        if self.state in REJECTING and self.until < inf:
            return max(0.0, self.until - now)
        return None

    def counted(self, now: float) -> Counter:
        """The window, without the calls that have left it by now."""
        if self.state in ("closed", "metrics_only"):
            self.counter.evict(now)
        return self.counter

    # After it.

    def report(
        self, generation: int, permit: int, verdict: Verdict, slow: bool, now: float
    ) -> bool:
        """Report the result of an admitted call; False: it is too late to count."""
        if generation != self.generation:
            self.late_results += 1
            return False
        if self.state == "half_open":
            if self.half_open_permits.pop(permit, None) is None:
                self.late_results += 1
                return False
            self.successes += verdict == "success" and not slow
        elif verdict in ("success", "failure") and self.state != "disabled":
            self.counter.add(code_of(verdict, slow), now)
        self.evaluate_thresholds(verdict, slow, now)
        return True

    def evaluate_thresholds(self, verdict: Verdict, slow: bool, now: float) -> None:
        """Apply the transition that follows from a counted call."""
        if self.state == "closed":
            if self._exceeds_thresholds():
                self._open(now)
        elif self.state == "half_open":
            if verdict == "failure" or (slow and verdict == "success"):
                self._open(now)
            elif self.successes >= self.rules.required_successes:
                self._close()

    def _exceeds_thresholds(self) -> bool:
        rules, counter = self.rules, self.counter
        if isinstance(rules.window, Consecutive):
            return counter.failures >= rules.window.number
        calls = counter.calls
        if calls < rules.minimum_calls:
            return False
        failing = _reaches(counter.failures, rules.failure_rate, calls)
        return failing or _reaches(counter.slow, rules.slow_rate, calls)

    # From state to state.

    def _open(self, now: float) -> None:
        rules = self.rules
        growth = rules.reset_growth ** min(self.consecutive_opens, MAX_BACKOFF_EXPONENT)
        base = min(rules.reset_timeout * growth, max(rules.reset_maximum, rules.reset_timeout))
        self.consecutive_opens += 1
        self._transition_to("open", now + base * self.jitter_factor)

    def _close(self) -> None:
        self.consecutive_opens = 0
        self._transition_to("closed")

    def force_state(self, state: State, manual: ManualOverride | None, until: float = inf) -> None:
        """Put it into a state manually; closed: with no calls counted."""
        self.manual, self.consecutive_opens = None if state == "closed" else manual, 0
        self._transition_to(state, until, manual)

    def saved(self, now: float) -> SavedState:
        """The state, for another machine; its time is relative to *now*."""
        self.expire(now)
        counter = self.counted(now).copied()
        return SavedState(
            self.state, self.until - now, self.manual, self.consecutive_opens, counter
        )

    def restore(self, saved: SavedState, now: float, with_window: bool) -> None:
        """Enter the saved state of another machine; results of earlier calls are late."""
        before, self.manual = self.state, saved.manual
        self._enter(saved.state, now + saved.remaining)
        self.consecutive_opens = saved.consecutive_opens
        if with_window:
            self.counter = saved.counter
            self.counter.generation = self.generation
            self.closed = self.counter if saved.state == "closed" else None
        if before != saved.state:
            self.changes.append(StateTransition(before, saved.state, self.generation, saved.manual))

    def _transition_to(
        self, state: State, until: float = inf, manual: ManualOverride | None = None
    ) -> None:
        before = self.state
        self._enter(state, until)
        self.changes.append(StateTransition(before, state, self.generation, manual))

    def _enter(self, state: State, until: float) -> None:
        self.state, self.until = state, until
        self.generation += 1
        self.successes = 0
        self.half_open_permits.clear()
        self.counter.fast_path_until = -inf  # the result of a call in progress is late from now on
        if state not in ("open", "half_open"):
            self.counter = self.rules.window.counter()
            self.counter.generation = self.generation
        self.closed = self.counter if state == "closed" else None
        self.rejecting = (state, until) if state in REJECTING else None


def code_of(verdict: Verdict, slow: bool) -> int:
    """The code of a call in a window."""
    return (FAILED if verdict == "failure" else 0) | (SLOW if slow else 0)


def _reaches(part: int, rate: float, whole: int) -> bool:
    # A quotient is rounded as the rate was when it was written down; a product is not.
    return part > 0 and part / whole >= rate
