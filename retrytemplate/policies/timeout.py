"""As many attempts as begin in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from retrytemplate import _checks
from retrytemplate.policies.base import JSON, StatefulRetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.stop_reasons import StopReason

__all__ = ["TimeoutRetryPolicy", "seconds"]


def seconds(value: _checks.Seconds | Callable[[], _checks.Seconds]) -> Any:
    """A ``timedelta`` as seconds."""
    return _checks.duration(value)


@frozen(eq=False, repr=False)
class TimeoutRetryPolicy(StatefulRetryPolicy):
    """Another attempt as long as no more than *timeout* seconds have passed since the start.

    It looks at the clock between attempts only: it cuts neither an attempt nor a sleep short.  For
    a limit that does, use a ``Deadline``.  In a stateful execution the time runs on from the first
    delivery.

    :param timeout: seconds or a ``timedelta``, from 0; or a callable that gives them, read once per
        execution.
    :raises ValueError: for a time below 0.

    Source: ``org.springframework.retry.policy.TimeoutRetryPolicy``.

    >>> policy = TimeoutRetryPolicy(30.0)
    >>> started = policy.start(100.0)
    >>> policy.decide(started, 130.0)[0], policy.decide(started, 130.1)[0]
    (True, False)
    """

    timeout: Any = field(converter=seconds, validator=_checks.number_or_callable(_checks.limit))

    def start(self, now: float) -> JSON:
        return now

    def record(self, state: JSON, failure: BaseException, now: float) -> JSON:
        return state

    def decide(self, state: JSON, now: float) -> tuple[bool, JSON]:
        if callable(self.timeout):
            return self.resolved().decide(state, now)
        return now - state <= self.timeout, state

    def stop_reason_from(
        self, state: JSON, failures: int, failure: BaseException | None, now: float
    ) -> StopReason:
        return "time_limit"

    @property
    def dynamic(self) -> bool:
        return callable(self.timeout)

    def resolved(self) -> TimeoutRetryPolicy:
        if not self.dynamic:
            return self
        return evolve(self, timeout=_checks.read("timeout", self.timeout, _checks.limit))
