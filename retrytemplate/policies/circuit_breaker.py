"""A policy that allows no attempt for some time after too many failures."""

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
    """Reject attempts for *reset_timeout* seconds after the delegate allowed no further attempt.

    For stateful executions with one key per circuit; they share its record.  The circuit opens
    when the delegate allows no attempt within *open_timeout* of the circuit's start.  It closes
    *reset_timeout* after it opened; the delegate then starts again.  Failures are discarded when
    *open_timeout* passes and the circuit has not opened; a success discards none.  There is no
    half-open trial attempt; a ``CircuitBreaker`` has one.

    Attributes of the context: ``circuit.open`` (from the first check on) and
    ``circuit.short_count``, the rejections since the circuit opened.

    Use it as the outermost policy: inside another policy its record ends with the record of that
    policy.

    :param delegate: the policy that decides how many failures of which kind open the circuit;
        default ``SimpleRetryPolicy()``.
    :param open_timeout: seconds or a ``timedelta``, default 5, at least 0; or a callable that
        returns it, called once per execution.
    :param reset_timeout: seconds, default 20; otherwise like ``open_timeout``.
    :raises ValueError: if a time is below 0.
    :raises TypeError: if ``delegate`` is not a policy, or a time is not a number.

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
        """The state after the circuit was checked.  Every comparison is strict."""
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
            # The time to reset runs from here; a circuit that opens later keeps its start.
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
        """The failures since the delegate last started."""
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
