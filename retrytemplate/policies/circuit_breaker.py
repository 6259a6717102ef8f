"""A circuit over a policy: after too many failures no attempt for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from retrytemplate._internal import validation
from retrytemplate.policies.base import JSON, RetryPolicy, StatefulRetryPolicy, as_stateful
from retrytemplate.policies.simple import SimpleRetryPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrytemplate.history import StopReason
    from retrytemplate.policies.result import ResultRetryPolicy

__all__ = ["CircuitBreakerRetryPolicy"]


@frozen(eq=False, repr=False)
class CircuitBreakerRetryPolicy(StatefulRetryPolicy):
    """Refuses attempts for a while once the delegate refuses.

    For stateful executions under one key per circuit, whose record all of them share.  The circuit
    opens when the delegate refuses within *open_timeout* of the circuit's start; it closes, with a
    fresh delegate, when *reset_timeout* has passed since it opened.  Failures are forgotten when
    *open_timeout* passes without it opening; a success forgets nothing.  There is no trial attempt
    in between; for one, use a ``CircuitBreaker`` around the call.

    In the context's attributes: ``circuit.open`` (from the first time it is asked) and
    ``circuit.short_count``, the refusals since it opened.

    Put it at the root of a policy tree: inside another one its record lives only as long as that
    one's.

    :param delegate: says how many failures of which kind are too many.
    :param open_timeout: seconds or a ``timedelta``, from 0; or a callable, read once per execution.
    :param reset_timeout: likewise.
    :raises ValueError: for a time below 0.
    :raises TypeError: for a delegate that is no policy, or what is no time.

    Source: ``org.springframework.retry.policy.CircuitBreakerRetryPolicy``.

    >>> policy = CircuitBreakerRetryPolicy(SimpleRetryPolicy(1), open_timeout=5, reset_timeout=20)
    >>> state = policy.record(policy.start(0.0), OSError(), 0.0)
    >>> allowed, state = policy.decide(state, 1.0)
    >>> allowed, dict(policy.attributes(state))
    (False, {'circuit.short_count': 1, 'circuit.open': True})
    >>> policy.decide(state, 21.0)[0], policy.decide(state, 21.1)[0]
    (False, True)
    """

    keeps_context = True

    delegate: RetryPolicy = field(
        factory=SimpleRetryPolicy, validator=validation.instance_of(RetryPolicy, "a RetryPolicy")
    )
    open_timeout: Any = validation.number_field(5.0, validation.check_limit, validation.to_seconds)
    reset_timeout: Any = validation.number_field(
        20.0, validation.check_limit, validation.to_seconds
    )
    _inner: StatefulRetryPolicy = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_inner", as_stateful(self.delegate))

    @property
    def never_ends(self) -> bool:
        return self.delegate.never_ends

    def start(self, now: float) -> JSON:
        return {**self._new_window(now), "open": None, "short_count": 0}

    def _new_window(self, now: float) -> dict[str, JSON]:
        return {"started": now, "failures": 0, "delegate": self._inner.start(now)}

    def record(self, state: JSON, failure: BaseException, now: float) -> JSON:
        return {
            **state,
            "failures": state["failures"] + 1,
            "delegate": self._inner.record(state["delegate"], failure, now),
        }

    def decide(self, state: JSON, now: float) -> tuple[bool, JSON]:
        state = self._refresh(state, now)
        if state["open"]:
            return False, {**state, "short_count": state["short_count"] + 1}
        allowed, delegate = self._inner.decide(state["delegate"], now)
        return allowed, {**state, "short_count": 0, "delegate": delegate}

    def _refresh(self, state: JSON, now: float) -> dict[str, JSON]:
        """The state after asking whether the circuit is open.  Every comparison is strict."""
        elapsed = now - state["started"]
        allowed, delegate = self._inner.decide(state["delegate"], now)
        state = {**state, "delegate": delegate}
        if allowed:
            if elapsed > self._seconds("open_timeout"):
                state |= self._new_window(now)
        elif elapsed > self._seconds("reset_timeout"):
            state |= self._new_window(now) | {"short_count": 0}
            allowed, state["delegate"] = self._inner.decide(state["delegate"], now)
        elif elapsed < self._seconds("open_timeout") and not state["open"]:
            # The time to reset runs from here; a circuit that trips later keeps its start.
            state["started"] = now
        return {**state, "open": not allowed}

    def _seconds(self, name: str) -> float:
        return float(validation.read_number(name, getattr(self, name), validation.check_limit))

    def stop_reason_from(
        self, state: JSON, failures: int, failure: BaseException | None, now: float
    ) -> StopReason:
        return self._inner.stop_reason_from(state["delegate"], state["failures"], failure, now)

    def recovery_forbidden(self, state: JSON) -> bool:
        return self._inner.recovery_forbidden(state["delegate"])

    def failures(self, state: JSON) -> int | None:
        """The failures since the delegate was last made afresh."""
        return int(state["failures"])

    def attributes(self, state: JSON) -> Mapping[str, JSON]:
        shown = {"circuit.short_count": state["short_count"]}
        if state["open"] is not None:
            shown["circuit.open"] = state["open"]
        return shown

    def matches_library_error(self, failure: BaseException) -> bool:
        return self.delegate.matches_library_error(failure)

    def result_rules(self) -> tuple[ResultRetryPolicy, ...]:
        return self.delegate.result_rules()

    @property
    def dynamic(self) -> bool:
        return callable(self.open_timeout) or callable(self.reset_timeout) or self.delegate.dynamic

    def resolved(self) -> CircuitBreakerRetryPolicy:
        if not self.dynamic:
            return self
        return evolve(self, delegate=self.delegate.resolved(), **validation.read_numbers(self))
