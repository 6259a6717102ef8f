"""How a circuit stands, for whoever looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from retrytemplate.control.circuit import State

__all__ = ["GAUGES", "CircuitSnapshot"]

# Above 0: calls are refused.
GAUGES = {
    "metrics only": -2,
    "disabled": -1,
    "closed": 0,
    "half-open": 1,
    "open": 2,
    "forced open": 3,
}


@frozen(kw_only=True)
class CircuitSnapshot:
    """How a circuit stands.

    :param calls: those in the window, and how many of them were ``failures`` and ``slow``; of an
        open circuit those that opened it.
    :param retry_after: seconds until a call may be tried again; None: now, or nobody knows.
    :param probes: calls of half-open that go on; ``successes``: those that went well.
    :param rejected: calls that were not made, ``late``: results that came after a change, and
        ``expired``: permits that nobody gave back, all since the breaker was made.
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
        """The state as a number for metrics, above 0 where calls are refused.

        0 closed, 1 half-open, 2 open, 3 forced open; -1 disabled, -2 metrics only.

        >>> from retrytemplate.control import CircuitBreaker
        >>> breaker = CircuitBreaker("billing")
        >>> breaker.snapshot().gauge
        0
        >>> breaker.force_open(by="kim", reason="they asked us to")
        >>> breaker.snapshot().gauge
        3
        """
        return GAUGES[self.state]
