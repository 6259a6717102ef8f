"""Events of circuit breakers and their stores."""

from __future__ import annotations

from attrs import frozen

from retrytemplate.control.events import ControlEvent


@frozen(kw_only=True)
class CircuitChanged(ControlEvent):
    """A circuit breaker went from one state to another.

    :param generation: the number of changes so far.
    :param by: who did it by hand, and ``reason``, why; None where calls or time did it.
    """

    before: str
    after: str
    generation: int
    by: str | None = None
    reason: str | None = None


@frozen(kw_only=True)
class LateResult(ControlEvent):
    """A call ended after the state in which it began: it was not counted.

    :param verdict: the verdict of the call, which was not counted.
    """

    verdict: str


@frozen(kw_only=True)
class CircuitStoreLost(ControlEvent):
    """The store of a shared circuit is unavailable, or its record cannot be used.

    :param error: why.
    """

    error: Exception


@frozen(kw_only=True)
class CircuitStoreRecovered(ControlEvent):
    """The store of a shared circuit is available again, and in use.

    :param outage: seconds since it was lost.
    """

    outage: float
