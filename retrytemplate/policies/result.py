"""Retry on a result: a policy that counts rejected results as failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attrs import evolve, field, frozen

from retrytemplate._internal import validation
from retrytemplate.policies.base import JSON, RetryPolicy, StatefulRetryPolicy, as_stateful
from retrytemplate.policies.simple import SimpleRetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import attrs

    from retrytemplate.history import StopReason

__all__ = ["ResultRetryPolicy"]


WhenExhausted = Literal["raise", "return"]


def _one_of_two(
    instance: Any, attribute: attrs.Attribute[WhenExhausted], value: WhenExhausted
) -> None:
    if value not in ("raise", "return"):
        raise ValueError(f"when_exhausted must be 'raise' or 'return', got {value!r}")


@frozen(eq=False, repr=False)
class ResultRetryPolicy(StatefulRetryPolicy):
    """Count a rejected result as a retryable failure, and leave the rest to another policy.

    :param retry_if: takes the result; a true value rejects it.
    :param policy: decides about exceptions and the number of attempts; default
        ``SimpleRetryPolicy()``.
    :param when_exhausted: ``"raise"`` (the default) raises ``UnacceptableResultError``,
        ``"return"`` returns the last result.
    :raises ValueError: if ``when_exhausted`` is another value.
    :raises TypeError: if ``retry_if`` is not a plain function, or ``policy`` not a policy.

    >>> policy = ResultRetryPolicy(lambda result: result is None, SimpleRetryPolicy(2))
    >>> [rule.retry_if(None) for rule in policy.result_rules()]
    [True]
    >>> policy.allows(1, ValueError()), policy.allows(2, ValueError())
    (True, False)
    """

    retry_if: Callable[[Any], Any] = field(
        validator=validation.checked_by(validation.check_function)
    )
    policy: RetryPolicy = field(
        factory=SimpleRetryPolicy,
        validator=validation.instance_of(RetryPolicy, "a RetryPolicy"),
    )
    when_exhausted: WhenExhausted = field(default="raise", validator=_one_of_two)
    keeps_context: bool = field(init=False, eq=False, repr=False)
    _inner: StatefulRetryPolicy = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_inner", as_stateful(self.policy))
        object.__setattr__(self, "keeps_context", self.policy.keeps_context)

    @property
    def needs_state(self) -> bool:
        return self.policy.needs_state

    @property
    def max_attempts(self) -> int | None:
        return self.policy.max_attempts

    @property
    def never_ends(self) -> bool:
        return self.policy.never_ends

    @property
    def attempt_limit(self) -> int | None:
        return self.policy.attempt_limit

    def result_rules(self) -> tuple[ResultRetryPolicy, ...]:
        return (self, *self.policy.result_rules())

    def allows(self, failures: int, failure: BaseException | None) -> bool:
        return self.policy.allows(failures, failure)

    def forbids_recovery(self, failures: int, failure: BaseException) -> bool:
        return self.policy.forbids_recovery(failures, failure)

    def stop_reason(self, failures: int, failure: BaseException | None) -> StopReason:
        return self.policy.stop_reason(failures, failure)

    def matches_library_error(self, failure: BaseException) -> bool:
        return self.policy.matches_library_error(failure)

    def start(self, now: float) -> JSON:
        return self._inner.start(now)

    def record(self, state: JSON, failure: BaseException, now: float) -> JSON:
        return self._inner.record(state, failure, now)

    def decide(self, state: JSON, now: float) -> tuple[bool, JSON]:
        return self._inner.decide(state, now)

    def stop_reason_from(
        self, state: JSON, failures: int, failure: BaseException | None, now: float
    ) -> StopReason:
        return self._inner.stop_reason_from(state, failures, failure, now)

    def recovery_forbidden(self, state: JSON) -> bool:
        return self._inner.recovery_forbidden(state)

    def has_lost_attempt(self, state: JSON) -> bool:
        return self._inner.has_lost_attempt(state)

    def failures(self, state: JSON) -> int | None:
        return self._inner.failures(state)

    def attributes(self, state: JSON) -> Mapping[str, JSON]:
        return self._inner.attributes(state)

    @property
    def dynamic(self) -> bool:
        return self.policy.dynamic

    def resolved(self) -> ResultRetryPolicy:
        return evolve(self, policy=self.policy.resolved()) if self.dynamic else self
